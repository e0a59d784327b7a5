"""Compare the two sides of a duet: which one is faster, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.core.cell import Trial
from effbench.core.meeting import ALONE, DUET
from effbench.core.metrics import significant
from effbench.core.printable import count
from effbench.run.duets import kernels_by_chance
from effbench.run.plan import is_of_duet
from effbench.stats.intervals import log_mean
from effbench.stats.significance import (
    Compilations,
    RatioTest,
    compare_pairs,
    is_decided,
)

#: The largest relative difference that counts as no difference.
FLOOR = 0.01
#: Compared metrics.
TIMES = ("latency_ms", "period_ms")


@dataclass(frozen=True)
class DuetSide:
    """A side: its name, such as `mode=default`, and its trials, one per round."""

    name: str
    trials: Sequence[Trial]

    @property
    def failure(self) -> str | None:
        """How a trial ended that has no figures; None if all have some."""
        failed = [trial for trial in self.trials if not trial.status.is_measured]
        if not failed:
            return None
        last = failed[-1]
        return f"{last.status}: {last.reason}" if last.reason else str(last.status)

    @property
    def measured(self) -> dict[int, Trial]:
        """Round -> its trial with figures."""
        return {trial.round: trial for trial in self.trials if trial.status.is_measured}

    @property
    def remarks(self) -> list[str]:
        """What a reader has to know about its trials."""
        texts = [
            f"{self.name} is {trial.status}: {trial.reason}"
            for trial in self.trials
            if trial.reason
        ]
        return list(dict.fromkeys(texts))


@dataclass(frozen=True)
class DuetRow:
    """A time of both sides in ms per call. `test`: of the ratio second ÷ first. `is_marked`:
    whether the host was disturbed."""

    metric: str
    first: float
    second: float
    test: RatioTest
    is_marked: bool = False


@dataclass(frozen=True)
class DuetAnswer:
    """The comparison of two sides of a cell. `cell`: its name. `rows`: latency and period, if both
    sides have them. `duets`: the number of complete ones; `alone`: why rounds were not timed in
    turn."""

    cell: str
    first: DuetSide
    second: DuetSide
    rows: Sequence[DuetRow] = ()
    duets: int = 0
    alone: Sequence[str] = ()

    @classmethod
    def of(cls, cell: str, first: DuetSide, second: DuetSide) -> DuetAnswer:
        """Return the comparison of the rounds that both sides have. Undisturbed rounds count if
        there are any."""
        old, new = first.measured, second.measured
        rounds = sorted(old.keys() & new.keys())
        disturbed = {trial.round for trial in (*old.values(), *new.values()) if trial.disturbance}
        quiet = [number for number in rounds if number not in disturbed]
        used = quiet or rounds
        before = [old[number] for number in used]
        after = [new[number] for number in used]
        rows = [row_of(metric, before, after, is_marked=not quiet) for metric in TIMES]
        alone = reasons_alone(
            trial
            for trial in (*first.trials, *second.trials)
            if trial.round in rounds and trial.status.is_measured
        )
        return cls(cell, first, second, list(filter(None, rows)), len(used), alone)

    @property
    def sentence(self) -> str:
        """The answer: `mode=default is 1.310× as fast as mode=eager (1.290–1.330; 3 duets)`."""
        for side in (self.first, self.second):
            if side.failure:
                return f"{side.name} has no figures to compare: {side.failure}"
        # the sides may have been timed one after the other
        trials = [*self.first.trials, *self.second.trials]
        unit = "duet" if any(map(is_of_duet, trials)) else "round"
        if not self.rows:
            return f"{self.first.name} and {self.second.name} have no complete {unit} to compare"
        row = self.rows[0]
        text = sentence_of(self.first.name, self.second.name, row.test, count(self.duets, unit))
        if row.is_marked:
            text += "; the host was busy"
        return text

    def is_slower(self, fraction: float) -> bool:
        """Return whether the second side is significantly slower than the first one by more than
        this fraction."""
        tests = [row.test for row in self.rows if not row.is_marked]
        return any(test.low is not None and test.low > 1 + fraction for test in tests)


def reasons_alone(trials: Iterable[Trial]) -> list[str]:
    """Return why trials were not timed in turn, each reason once."""
    reasons: dict[str, None] = {}
    for trial in trials:
        duet = trial.extra.get(DUET)
        if isinstance(duet, dict) and ALONE in duet:
            reasons[str(duet[ALONE])] = None
    return list(reasons)


def row_of(
    metric: str, before: Sequence[Trial], after: Sequence[Trial], is_marked: bool
) -> DuetRow | None:
    """Return the row of a metric; None if a side lacks it."""
    old, new = figures_of(before, metric), figures_of(after, metric)
    if not before or not all([*old.values(), *new.values()]):
        return None
    kernels = kernels_by_chance(before, after)
    caches = figures_of(before, "compilation"), figures_of(after, "compilation")
    test = compare_pairs(old, new, FLOOR, Compilations(*caches, kernels))
    first, second = (math.exp(log_mean(side.values()).value) for side in (old, new))
    return DuetRow(metric, first, second, test, is_marked)


def figures_of(trials: Sequence[Trial], name: str) -> dict[int, Any]:
    """Return round -> this field of its trial."""
    return {trial.round: getattr(trial, name) for trial in trials}


def sentence_of(first: str, second: str, test: RatioTest, duets: str) -> str:
    """Return which side is faster. `test`: of the ratio second ÷ first of their times; `duets`: `3
    duets`."""
    ratio, low, high = test.ratio, test.low, test.high
    if low is None or high is None:
        times = f"{significant(ratio, 4)}×"
        return f"{second} takes {times} the time of {first} ({duets}; one has no interval)"
    difference = ""
    if is_decided(low, high, FLOOR) and 1 / (1 + FLOOR) <= ratio <= 1 + FLOOR:
        difference = f"difference beyond {FLOOR * 100:g} %"
    elif low <= 1 <= high:
        difference = "significant difference"
    if difference:
        how = f"{second} takes {signed(ratio)} ({signed(low)} to {signed(high)}; {duets})"
        return f"no {difference} between {first} and {second}: {how}"
    fast, slow = first, second
    if ratio < 1:
        fast, slow = second, first
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    bounds = f"{significant(low, 4)}–{significant(high, 4)}"
    return f"{fast} is {significant(ratio, 4)}× as fast as {slow} ({bounds}; {duets})"


def signed(ratio: float) -> str:
    """Return a ratio as a change with its sign: `+0.4 %` for 1.004, `−0.4 %` for 0.996."""
    change = 100 * (ratio - 1)
    sign = "−" if change < 0 else "+"
    return f"{sign}{abs(change):.1f} %"
