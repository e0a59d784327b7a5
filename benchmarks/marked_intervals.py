"""Simulate hosts that switch between two speeds, and count how often marked intervals contain the
quiet figure.

Each simulated host is slow for a fraction of the time, in spells of random length. A trial takes
batches of samples until it has spent its budget on undisturbed ones, or its patience. The figures
and intervals come from the code that effbench itself runs: `Timing.figure` for a trial,
`store.summary` for the result.

    python benchmarks/marked_intervals.py [--sweeps 2000]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from effbench.core.cell import Status, Trial
from effbench.core.table import Column, Record, Table
from effbench.measure.rules import Rules
from effbench.measure.samples import Timing
from effbench.store.summary import CountedTrials, estimate

QUIET_MS = 1.0
BATCH_S = 0.003
SAMPLES_PER_BATCH = 3
#: Standard deviation of the logarithm of samples, and between processes on an undisturbed host.
SAMPLE_SD, PROCESS_SD = 0.02, 0.01
#: Latency follows the fixed work with this exponent: 0.65 was measured on an H200.
FOLLOWS = 0.65
#: An unmarked figure is wrong if it is further off.
CLOSE = 0.05


@dataclass(frozen=True)
class Host:
    """A host with two speeds.

    `slow`: fraction of the time at the slower speed; `spell_s`: mean length of a slow spell;
    `slowdown`: of the fixed work; `mistaken`: fraction of slow batches that look undisturbed.
    """

    slow: float
    spell_s: float
    slowdown: float
    mistaken: float = 0.001

    def states(self, rng: np.random.Generator) -> Iterator[bool]:
        """Yield for each batch whether the host is slow."""
        mean_s = {True: self.spell_s, False: self.spell_s * (1 - self.slow) / self.slow}
        is_slow = bool(rng.random() < self.slow)
        while True:
            spell_s = rng.exponential(mean_s[is_slow])
            for _ in range(max(1, round(spell_s / BATCH_S))):
                yield is_slow
            is_slow = not is_slow

    def factor(self, is_slow: bool) -> float:
        """Return a call's time ÷ that on the quiet host."""
        if is_slow:
            return self.slowdown**FOLLOWS
        return 1.0


@dataclass(frozen=True)
class Protocol:
    """The settings of a protocol that matter here."""

    name: str
    rounds: int
    budget_s: float
    patience: float


PROTOCOLS = (
    Protocol("quick", rounds=1, budget_s=0.3, patience=1.5),
    Protocol("three rounds", rounds=3, budget_s=0.5, patience=2.0),
    Protocol("standard", rounds=5, budget_s=0.5, patience=2.0),
)
HOSTS = [
    Host(slow, spell_s, slowdown)
    for slow in (0.5, 0.9, 0.99)
    for spell_s in (0.06, 0.5, 3.0)
    for slowdown in (1.4, 2.7)
]
COLUMNS = [
    Column("protocol"),
    Column("slow", numeric=True),
    Column("spell", numeric=True),
    Column("slowdown", numeric=True),
    Column("marked", numeric=True),
    Column("coverage", "marked intervals that contain the quiet figure", numeric=True),
    Column("wrong", numeric=True),
]


def timed(rng: np.random.Generator, host: Host, protocol: Protocol, level_ms: float) -> Timing:
    """Return the samples of one process on this host. `level_ms`: its median on a quiet host."""
    timing = Timing()
    patience_s = protocol.patience * protocol.budget_s
    undisturbed_s = passed_s = 0.0
    for is_slow in host.states(rng):
        if undisturbed_s >= protocol.budget_s or passed_s >= patience_s:
            break
        factor = host.factor(is_slow)
        noise = np.exp(rng.normal(0.0, SAMPLE_SD, SAMPLES_PER_BATCH))
        samples_ms = (level_ms * factor * noise).tolist()
        passed_s += BATCH_S * factor
        if is_slow and rng.random() >= host.mistaken:
            timing.disturbed_ms += samples_ms
        else:
            timing.samples_ms += samples_ms
            undisturbed_s += BATCH_S * factor
    return timing


def trial_of(timing: Timing, host: Host, round: int) -> Trial:
    figure = timing.figure(Rules(), host.slowdown)
    trial = Trial("simulated", round, Status.OK)
    trial.latency_ms = figure.median.value
    trial.latency_median_low_ms = figure.median.low
    trial.latency_median_high_ms = figure.median.high
    if figure.is_marked:
        trial.disturbance = "host busy"
    return trial


@dataclass
class Tally:
    """Results of a simulated host. `covered`: marked ones whose interval contains the quiet figure;
    `wrong`: unmarked ones more than 5 % from it."""

    results: int = 0
    marked: int = 0
    covered: int = 0
    wrong: int = 0

    def add(self, trials: list[Trial], quiet_ms: float) -> None:
        counted = CountedTrials.of(trials)
        interval = estimate(counted.kept, "latency_ms").interval()
        self.results += 1
        if counted.disturbance is not None:
            self.marked += 1
            self.covered += interval.low <= quiet_ms <= interval.high
        else:
            self.wrong += abs(interval.value / quiet_ms - 1) > CLOSE

    @property
    def coverage(self) -> float | None:
        """The fraction of marked intervals that contain the quiet figure; None without marked
        results."""
        if self.marked == 0:
            return None
        return self.covered / self.marked


def simulate(host: Host, protocol: Protocol, sweeps: int, seed: int) -> Tally:
    """Simulate this many results of a cell. One trial speaks for its process, several speak for all
    processes."""
    rng = np.random.default_rng(seed)
    tally = Tally()
    for _ in range(sweeps):
        levels_ms = (QUIET_MS * np.exp(rng.normal(0.0, PROCESS_SD, protocol.rounds))).tolist()
        trials = []
        for number, level_ms in enumerate(levels_ms):
            timing = timed(rng, host, protocol, level_ms)
            trials.append(trial_of(timing, host, number))
        quiet_ms = QUIET_MS
        if protocol.rounds == 1:
            quiet_ms = levels_ms[0]
        tally.add(trials, quiet_ms)
    return tally


def line_of(protocol: Protocol, host: Host, tally: Tally) -> Record:
    coverage = "–"
    if tally.coverage is not None:
        coverage = f"{tally.coverage:.1%}"
    return {
        "protocol": protocol.name,
        "slow": f"{host.slow:.0%}",
        "spell": f"{host.spell_s} s",
        "slowdown": f"{host.slowdown} ×",
        "marked": f"{tally.marked / tally.results:.0%}",
        "coverage": coverage,
        "wrong": f"{tally.wrong / tally.results:.1%}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sweeps", type=int, default=500, help="simulated results per host and protocol"
    )
    args = parser.parse_args()
    lines = []
    for protocol in PROTOCOLS:
        for seed, host in enumerate(HOSTS):
            tally = simulate(host, protocol, args.sweeps, seed)
            lines.append(line_of(protocol, host, tally))
    print(Table(COLUMNS, lines).render("markdown"), end="")


if __name__ == "__main__":
    main()
