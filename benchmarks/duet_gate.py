"""Which slowdowns do duets confirm on a busy machine, and how often do they raise a false alarm?

    python benchmarks/duet_gate.py [--cell cpu] [--busy "at times"] [--layers 100,105]
        [--rounds 20] [--unchanged 60] [--db FILE] [SETTING ...]

Deep networks run in duets: 100 layers against 100, 102, 103, 105 and 110. They are narrow and run
on the CPU (`cpu`), narrow on a GPU that waits for the host (`launch-bound`), or wide on a GPU
(`gpu-bound`). Other programs work on every core, as in `busy_host.py`. All rounds are recorded.
Then the rule of `check --confirm` is replayed on cells whose duets are drawn from the recorded
ones: at least 3 and at most 20, until the interval shows or excludes a slowdown beyond it. For
comparison, the same rule is replayed with the ratios of separate processes: the sides' trials of
different rounds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from busy_host import LOOPS, busy

from effbench.analysis.duet import TIMES
from effbench.cli.duet import measure
from effbench.cli.options import side_of
from effbench.core.cell import Trial
from effbench.run.duets import StoppingRule
from effbench.stats.significance import (
    FLOOR,
    LEAST_DUETS,
    MOST_PAIRS,
    RatioTest,
    compare_pairs,
    is_decided,
)

DEPTH = 100
CHANGED = (100, 102, 103, 105, 110)
KINDS = {
    "cpu": ("model.module.width=64", "bs=1", "device=cpu", "threads=1"),
    "launch-bound": ("model.module.width=256", "bs=8", "device=cuda"),
    "gpu-bound": ("model.module.width=4096", "bs=2048", "device=cuda", "dtype=bfloat16"),
}
COMMON = ("model=mlp", "mode=eager")
CELLS = 2000


@dataclass(frozen=True)
class Recorded:
    """The duets of one change. `ratios`: None for a marked duet; `separate`: ratios of trials of
    different rounds; `seconds`: mean duration of a duet, with the start of its processes; `phases`:
    what they consist of."""

    depth: int
    ratios: list[float | None]
    separate: list[float]
    seconds: float
    phases: dict[str, float]


@dataclass
class Rates:
    """How replayed cells end. `duets`: median number of a cell."""

    confirmed: float
    same: float
    duets: float


def record(db: str, depth: int, rounds: int, settings: Sequence[str]) -> Recorded:
    """Run all rounds of one change, without ending early."""
    first = f"model.module.depth={DEPTH}"
    second = f"model.module.depth={depth}"
    if depth == DEPTH:  # both sides must differ in a setting
        first += " numerics.seed=0"
        second += " numerics.seed=1"
    words = [*COMMON, f"protocol.rounds={rounds}", *settings]
    options = argparse.Namespace(
        first=first,
        second=second,
        words=words,
        db=db,
        config_dir=None,
        format="json",  # without progress
        out=None,
    )
    floors = dict.fromkeys(TIMES, FLOOR)
    began = time.monotonic()
    _, (answer,) = measure(options, side_of(first), side_of(second), floors)
    seconds = (time.monotonic() - began) / rounds
    duets = answer.duets
    old = latencies(duets.before, duets.rounds)
    new = latencies(duets.after, duets.rounds)
    ratios: list[float | None] = []
    for number in sorted(duets.rounds):
        is_quiet = number in duets.quiet
        ratios.append(new[number] / old[number] if is_quiet else None)
    later = [*new.values()]
    later.append(later.pop(0))  # of the next round each
    separate = [after / before for before, after in zip(old.values(), later, strict=True)]
    phases = phase_seconds([*duets.before, *duets.after], rounds)
    return Recorded(depth, ratios, separate, seconds, phases)


def latencies(trials: Sequence[Trial], rounds: Collection[int]) -> dict[int, float]:
    """Return round -> latency in ms, of the trials in these rounds."""
    return {trial.round: trial.latency_ms for trial in trials if trial.round in rounds}


def phase_seconds(trials: Sequence[Trial], rounds: int) -> dict[str, float]:
    """Return phase -> seconds that both trials of a duet spend in it, on average."""
    phases: dict[str, float] = {}
    for trial in trials:
        for name, seconds in trial.extra.get("phase_seconds", {}).items():
            phases[name] = phases.get(name, 0.0) + seconds / rounds
        phases["other"] = phases.get("other", 0.0) + (trial.overhead_s or 0.0) / rounds
    return phases


def replay(ratios: Sequence[float | None], rng: np.random.Generator) -> Rates:
    """Return how cells end whose duets are drawn from these."""
    confirmed = same = 0
    needed = []
    for _ in range(CELLS):
        drawn = [ratios[place] for place in rng.integers(0, len(ratios), MOST_PAIRS)]
        ended = duets_until_settled(drawn)
        needed.append(ended)
        counted = [ratio for ratio in drawn[:ended] if ratio is not None]
        if len(counted) < LEAST_DUETS:
            continue
        test = compared(counted)
        if test.low is not None and test.low > 1 + FLOOR:
            confirmed += 1
        elif is_settled(counted):
            same += 1
    return Rates(confirmed / CELLS, same / CELLS, statistics.median(needed))


def duets_until_settled(drawn: Sequence[float | None]) -> int:
    """Return how many of these duets run."""
    counted = []
    for number, ratio in enumerate(drawn, 1):
        if ratio is not None:
            counted.append(ratio)
        if len(counted) >= LEAST_DUETS and is_settled(counted):
            return number
    return len(drawn)


def compared(counted: Sequence[float]) -> RatioTest:
    """Compare both sides of duets with these ratios."""
    after = dict(enumerate(counted))
    return compare_pairs(dict.fromkeys(after, 1.0), after, FLOOR)


def is_settled(counted: Sequence[float]) -> bool:
    test = compared(counted)
    return is_decided(test.low, test.high, FLOOR, only_slowdowns=True)


def spread(ratios: Sequence[float]) -> str:
    if len(ratios) < 2:
        return "–"
    return f"{statistics.stdev(map(math.log, ratios)):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", choices=list(LOOPS), help="other programs on every core")
    parser.add_argument("--cell", choices=list(KINDS), default="cpu", help="kind of network")
    parser.add_argument(
        "--layers", default=",".join(map(str, CHANGED)), help="depths of the second network"
    )
    parser.add_argument("--rounds", type=int, default=20, help="duets of each changed network")
    parser.add_argument("--unchanged", type=int, default=60, help="duets of the unchanged network")
    parser.add_argument("--db", help="database to keep; default: a temporary one")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    StoppingRule.is_settled = lambda *_: False  # type: ignore[method-assign]  # record all rounds
    rng = np.random.default_rng(1)
    headings = (
        "layers",
        "duets",
        "marked",
        "mean change",
        "SD of a duet",
        "confirmed",
        "no slowdown",
        "duets a cell",
        "seconds a cell",
        "SD separate",
        "confirmed, separate",
    )
    print(f"| {' | '.join(headings)} |")
    print(f"|{' ---: |' * len(headings)}")
    with tempfile.TemporaryDirectory() as folder, busy(args.busy):
        db = args.db or str(Path(folder) / "gate.db")
        for depth in map(int, args.layers.split(",")):
            rounds = args.unchanged if depth == DEPTH else args.rounds
            found = record(db, depth, rounds, [*KINDS[args.cell], *args.settings])
            usable = [ratio for ratio in found.ratios if ratio is not None]
            in_turn, apart = replay(found.ratios, rng), replay(found.separate, rng)
            values = (
                f"{DEPTH} against {depth}",
                f"{len(found.ratios)}",
                f"{len(found.ratios) - len(usable)}",
                f"{statistics.geometric_mean(usable) - 1:+.1%}" if usable else "–",
                spread(usable),
                f"{in_turn.confirmed:.1%}",
                f"{in_turn.same:.1%}",
                f"{in_turn.duets:g}",
                f"{in_turn.duets * found.seconds:.0f}",
                spread(found.separate),
                f"{apart.confirmed:.1%}",
            )
            print(f"| {' | '.join(values)} |", flush=True)
            parts = ", ".join(f"{name} {value:.2f}" for name, value in found.phases.items())
            print(f"seconds of a duet by phase: {parts}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
