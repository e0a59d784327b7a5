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
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from effbench.core.cell import Status, Trial
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
        fast_s = self.spell_s * (1 - self.slow) / max(self.slow, 1e-9)
        is_slow = bool(rng.random() < self.slow)
        while True:
            spell_s = rng.exponential(self.spell_s if is_slow else fast_s)
            for _ in range(max(1, round(spell_s / BATCH_S))):
                yield is_slow
            is_slow = not is_slow


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
FRACTIONS = (0.5, 0.9, 0.99)
SPELLS_S = (0.06, 0.5, 3.0)
SLOWDOWNS = (1.4, 2.7)


def simulated_trial(
    rng: np.random.Generator, host: Host, protocol: Protocol, round: int, level: float
) -> Trial:
    """Return the trial of one process on this host. `level`: the process's median on a quiet host,
    in ms."""
    timing = Timing()
    undisturbed_s = passed_s = 0.0
    for is_slow in host.states(rng):
        if undisturbed_s >= protocol.budget_s or passed_s >= protocol.patience * protocol.budget_s:
            break
        factor = host.slowdown**FOLLOWS if is_slow else 1.0
        samples = (level * factor * np.exp(rng.normal(0.0, SAMPLE_SD, SAMPLES_PER_BATCH))).tolist()
        passed_s += BATCH_S * factor
        if is_slow and rng.random() >= host.mistaken:
            timing.disturbed_ms += samples
        else:
            timing.samples_ms += samples
            undisturbed_s += BATCH_S * factor
    figure = timing.figure(Rules(), host.slowdown)
    trial = Trial("simulated", round, Status.OK)
    trial.latency_ms = figure.median.value
    trial.latency_median_low_ms = figure.median.low
    trial.latency_median_high_ms = figure.median.high
    trial.disturbance = "host busy" if figure.is_marked else None
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
            self.wrong += abs(interval.value / quiet_ms - 1) > 0.05

    @property
    def coverage(self) -> float | None:
        """The fraction of marked intervals that contain the quiet figure; None without marked
        results."""
        return self.covered / self.marked if self.marked else None


def simulate(host: Host, protocol: Protocol, sweeps: int, seed: int) -> Tally:
    """Simulate this many results of a cell. One trial speaks for its process, several speak for all
    processes."""
    rng = np.random.default_rng(seed)
    tally = Tally()
    for _ in range(sweeps):
        levels = (QUIET_MS * np.exp(rng.normal(0.0, PROCESS_SD, protocol.rounds))).tolist()
        trials = [
            simulated_trial(rng, host, protocol, number, level)
            for number, level in enumerate(levels)
        ]
        tally.add(trials, levels[0] if protocol.rounds == 1 else QUIET_MS)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sweeps", type=int, default=500, help="simulated results per host and protocol"
    )
    sweeps = parser.parse_args().sweeps
    print(
        "| protocol | slow | spell | slowdown | marked | marked intervals that contain the quiet"
        " figure | wrong |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for protocol in PROTOCOLS:
        hosts = [Host(*facts) for facts in itertools.product(FRACTIONS, SPELLS_S, SLOWDOWNS)]
        for number, host in enumerate(hosts):
            tally = simulate(host, protocol, sweeps, seed=number)
            coverage = "–" if tally.coverage is None else f"{tally.coverage:.1%}"
            marked_part, wrong_part = tally.marked / tally.results, tally.wrong / tally.results
            print(
                f"| {protocol.name} | {host.slow:.0%} | {host.spell_s} s | {host.slowdown} × "
                f"| {marked_part:.0%} | {coverage} | {wrong_part:.1%} |"
            )


if __name__ == "__main__":
    main()
