"""Compare the two sides of a duet: which one is faster, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from effbench.cell import Trial
from effbench.meeting import DUET
from effbench.metrics import significant
from effbench.printable import count
from effbench.stats.intervals import log_mean
from effbench.stats.significance import (
    Comparison,
    Compilations,
    compare_pairs,
    is_decided,
)
from effbench.sweeping.duets import kernels_by_chance
from effbench.sweeping.plan import is_of_duet

#: The largest relative difference that counts as no difference.
FLOOR = 0.01
#: Ratio from which a sentence gives a factor instead of a percentage.
FACTOR = 1.1
#: Compared metrics -> the name of their series in a duet.
SERIES = {"latency_ms": "latency", "period_ms": "period"}


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
    """A metric of both sides. `test`: of the ratio second ÷ first; None for the ratio in disturbed
    moments, which has no interval. `is_marked`: whether the host was disturbed."""

    metric: str
    title: str
    first: float
    second: float
    test: Comparison | None = None
    is_marked: bool = False

    @property
    def ratio(self) -> float:
        return self.second / self.first


@dataclass(frozen=True)
class DuetAnswer:
    """The comparison of two sides of a cell. `cell`: its name. `rows`: latency and period first.
    `duets`: the number of complete ones; `alone`: why rounds were not, in the words of their
    trials."""

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
        rows: list[DuetRow] = []
        if used:
            for metric in SERIES:
                rows += rows_of(metric, before, after, is_marked=not quiet)
        alone = why_alone([*first.trials, *second.trials], rounds)
        return cls(cell, first, second, rows, len(used), alone)

    @property
    def unit(self) -> str:
        """What a round is: a duet, unless the sides were timed one after the other."""
        trials = [*self.first.trials, *self.second.trials]
        return "duet" if any(map(is_of_duet, trials)) else "round"

    @property
    def sentence(self) -> str:
        """The answer: `mode=default is 1.31× as fast as mode=eager (1.29–1.33; 3 duets)`."""
        for side in (self.first, self.second):
            if side.failure:
                return f"{side.name} has no figures to compare: {side.failure}"
        if not self.rows or self.rows[0].test is None:
            return (
                f"{self.first.name} and {self.second.name} have no complete {self.unit} to compare"
            )
        duets = count(self.duets, self.unit)
        text = sentence_of(self.first.name, self.second.name, self.rows[0].test, duets)
        if self.rows[0].is_marked:
            text += "; the host was busy"
        return text

    def is_slower(self, fraction: float) -> bool:
        """Return whether the second side is significantly slower than the first one by more than
        this fraction."""
        tests = [row.test for row in self.rows if row.test is not None and not row.is_marked]
        return any(test.low is not None and test.low > 1 + fraction for test in tests)


def why_alone(trials: Iterable[Trial], rounds: Sequence[int]) -> tuple[str, ...]:
    """Return why trials of these rounds were not timed in turn, each reason once."""
    reasons: dict[str, None] = {}
    for trial in trials:
        is_counted = trial.round in rounds and trial.status.is_measured
        if is_counted and DUET in trial.extra and not is_of_duet(trial):
            reasons[trial.extra[DUET]["alone"]] = None
    return tuple(reasons)


def rows_of(
    metric: str, before: Sequence[Trial], after: Sequence[Trial], is_marked: bool
) -> list[DuetRow]:
    """Return the row of a metric, and that of its disturbed moments if there were any; none if a
    side lacks it."""
    old, new = (figures_of(side, metric) for side in (before, after))
    if not all([*old.values(), *new.values()]):
        return []
    name = SERIES[metric]
    kernels = kernels_by_chance(before, after)
    compiled = Compilations(
        figures_of(before, "compilation"), figures_of(after, "compilation"), kernels
    )
    test = compare_pairs(old, new, FLOOR, compiled)
    first, second = (math.exp(log_mean(side.values()).value) for side in (old, new))
    rows = [DuetRow(metric, name, first, second, test, is_marked)]
    old_disturbed, new_disturbed = disturbed_ms(before, name), disturbed_ms(after, name)
    shared = old_disturbed.keys() & new_disturbed.keys()
    if shared and not is_marked:
        first = median(old_disturbed[number] for number in shared)
        second = median(new_disturbed[number] for number in shared)
        rows.append(DuetRow(metric, f"{name} in disturbed moments", first, second))
    return rows


def figures_of(trials: Sequence[Trial], name: str) -> dict[int, Any]:
    """Return round -> this field of its trial."""
    return {trial.round: getattr(trial, name) for trial in trials}


def disturbed_ms(trials: Sequence[Trial], series: str) -> dict[int, float]:
    """Return round -> time per call in the disturbed moments of the duet, where there were any."""
    times: dict[int, float] = {}
    for trial in trials:
        counts = (trial.extra.get(DUET) or {}).get(series)
        if isinstance(counts, dict) and counts.get("disturbed_ms"):
            times[trial.round] = float(counts["disturbed_ms"])
    return times


def sentence_of(first: str, second: str, test: Comparison, duets: str) -> str:
    """Return which side is faster. `test`: of the ratio second ÷ first of their times; `duets`: `3
    duets`."""
    ratio, low, high = test.ratio, test.low, test.high
    if low is None or high is None:
        direction = "more" if ratio > 1 else "less"
        change = f"{abs(100 * (ratio - 1)):.1f} % {direction}"
        return f"{second} takes {change} time than {first} ({duets}; one has no interval)"
    difference = ""
    if is_decided(low, high, FLOOR) and 1 / (1 + FLOOR) <= ratio <= 1 + FLOOR:
        difference = f"difference beyond {FLOOR * 100:g} %"
    elif low <= 1 <= high:
        difference = "significant difference"
    if difference:
        how = f"{second} takes {signed(ratio)} ({signed(low)} to {signed(high)}; {duets})"
        return f"no {difference} between {first} and {second}: {how}"
    if ratio > 1:
        return f"{first} is {speed_text(ratio, low, high, second, duets)}"
    return f"{second} is {speed_text(1 / ratio, 1 / high, 1 / low, first, duets)}"


def speed_text(speed: float, least: float, most: float, slow: str, duets: str) -> str:
    """Return `1.31× as fast as mode=default (1.29–1.33; 3 duets)`, in per cent for a small
    difference."""
    if speed >= FACTOR:
        bounds = f"{significant(least, 3)}–{significant(most, 3)}"
        return f"{significant(speed, 3)}× as fast as {slow} ({bounds}; {duets})"
    bounds = f"{100 * (least - 1):.1f}–{100 * (most - 1):.1f} %"
    return f"{100 * (speed - 1):.1f} % faster than {slow} ({bounds}; {duets})"


def signed(ratio: float) -> str:
    """Return a ratio as a change with its sign: `+0.4 %` for 1.004, `−0.4 %` for 0.996."""
    change = 100 * (ratio - 1)
    sign = "−" if change < 0 else "+"
    return f"{sign}{abs(change):.1f} %"
