"""Turn pairs of results into verdicts: a `Change` for every cell and metric of two sides.

`judge` gives the verdicts of two sweeps, which `analysis/confirm.py` replaces by those of a second
run: `verdict_of_statuses` that of a cell whose status changed, `decide` that
of a tested ratio, `judge_range` that of any other figure.

A cell that was measured on one side only is `missing` or `new`. Metrics are compared as
`core.metrics` declares: `ratio` by Welch's test (or by pairs, if both sides were measured in the
same rounds), Benjamini–Hochberg (over times or sizes) and an effect beyond the limit; `exact` by
its integers; `bound` by a factor and an absolute difference, times only of two trials per side.

What makes a trial `degraded` is decided in `RunningTrial.judge` (worker/trial.py), and what makes
it `incorrect` where its workload compares outputs (workloads/).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from effbench.analysis.limits import STATUS, Limit, Limits
from effbench.analysis.matching import ComparedCell
from effbench.core.cell import Status
from effbench.core.labels import grouped
from effbench.core.metrics import METRICS
from effbench.core.quantities import Metric, percent
from effbench.core.settings import OnFailure
from effbench.stats.intervals import are_tuned, log_mean
from effbench.stats.significance import (
    ALPHA,
    Compilations,
    RatioTest,
    compare,
    compare_pairs,
    significant,
)
from effbench.store.sides import ResultWithTrials


class Verdict(StrEnum):
    """How a cell's figure changed from one side to the other; the most important first."""

    BROKEN = "broken"  # its status has a worse class (`class_of_status`)
    SLOWER = "slower"
    MISSING = "missing"
    AMBIGUOUS = "ambiguous"  # neither shown nor excluded
    FIXED = "fixed"
    FASTER = "faster"
    NEW = "new"
    SAME = "same"  # a change beyond the floor is excluded, or both sides failed


CHANGED = (Verdict.SLOWER, Verdict.FASTER)
#: Verdicts that make a check fail.
FAILING = (Verdict.SLOWER, Verdict.BROKEN, Verdict.MISSING)
#: Verdicts on a change that a sweep shows, whether it makes a check fail or not.
SHOWN_FIRST = (*CHANGED, Verdict.BROKEN, Verdict.FIXED)
#: In a launch-bound cell these depend on the host, and differ by 1.4 % (SD) between sessions.
HOST_METRICS = frozenset({"latency_ms", "latency_p95_ms", "period_ms", "energy_mj"})
#: Smaller changes of these need pairs.
HOST_CHANGE = 0.05
#: Their tests are a family of their own, because noisy times must not hide a change of memory.
SIZES = frozenset(name for name, metric in METRICS.items() if metric.unit == "bytes")
#: Columns of a row in exports and in the Python API (`record`) -> attribute of a Change.
COLUMNS = {
    "cell": "name",
    "metric": "metric",
    "verdict": "verdict",
    "before": "before",
    "after": "after",
    "ratio": "ratio",
    "ci_low": "low",
    "ci_high": "high",
    "p_value": "p_value",
    "limit": "limit",
    "smallest_slowdown": "smallest_slowdown",
    "gates": "gates",
    "reason": "reason",
    "cause": "cause",
    "cell_key": "key",
}
#: Why a compile time beyond its limit is `ambiguous`: on a busy machine, single compilations of
#: unchanged code differed by a factor of up to 4.
ONE_TIME = "a side has only one such time, so the spread is unknown"
#: Start of the reason why a marked figure has no verdict.
DISTURBED = "host disturbed"
#: People read it instead of `ambiguous` if a figure is marked.
NOT_JUDGED = "not judged"


@dataclass
class Change:
    """The verdict on one metric of one cell, or on its status. `ratio`: after ÷ before, with its 95
    % bounds; `test`: of the ratio, if it was tested. `limit`: relative change that counts.
    `ignored`: fails no check. `results`: those that are compared; none in rows about a status.
    `cause`: where the time went; None if that is unknown. `kernels`: how those of both sides
    differ. `host_noise`: relative change of a launch-bound cell's time that may come from the
    host.

    `marked_before`, `marked_after`: whether the figure of this side comes from a disturbed host.
    `disturbance`: then why; the row has no verdict (`ambiguous` in data), unless a re-run gave it
    one. `must_be_judged`: such a row fails a check."""

    key: str
    name: str
    metric: str
    verdict: Verdict = Verdict.AMBIGUOUS
    before: float | None = None
    after: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    limit: float | None = None
    reason: str | None = None
    ignored: bool = False
    results: Sequence[ResultWithTrials] = ()
    cause: str | None = None
    kernels: str | None = None
    host_noise: float = 0.0
    test: RatioTest | None = None
    marked_before: bool = False
    marked_after: bool = False
    disturbance: str | None = None
    must_be_judged: bool = False

    @property
    def is_unjudged(self) -> bool:
        """Whether the row has no verdict because a figure is marked."""
        return self.disturbance is not None

    @property
    def word(self) -> str:
        """The verdict as people read it."""
        return NOT_JUDGED if self.is_unjudged else self.verdict

    @property
    def smallest_slowdown(self) -> float | None:
        if self.test is None:
            return None
        return self.test.smallest_slowdown

    @property
    def largest_same(self) -> float:
        """The largest ratio within the limit."""
        return 1 + (self.limit or 0.0)

    @property
    def has_both(self) -> bool:
        """Whether there is a figure on both sides."""
        return self.before is not None and self.after is not None

    @property
    def is_one_sided(self) -> bool:
        """Whether there is a figure on one side only."""
        return (self.before is None) != (self.after is None)

    @property
    def is_changed(self) -> bool:
        """Whether Markdown shows the row first; it folds the others."""
        return self.gates or self.verdict in SHOWN_FIRST

    @property
    def gates(self) -> bool:
        if self.ignored:
            return False
        return self.verdict in FAILING or (self.is_unjudged and self.must_be_judged)

    def verdict_by(self, is_significant: bool) -> Verdict:
        """Return the verdict by the 95 % bounds of the ratio: `slower` or `faster` if it differs
        significantly from 1, and by more than the limit; `same` if the bounds exclude that;
        `ambiguous` otherwise."""
        if self.ratio is None or self.low is None or self.high is None:
            return Verdict.AMBIGUOUS
        most = self.largest_same
        least = 1 / most
        if is_significant and self.ratio > most:
            return Verdict.SLOWER
        if is_significant and self.ratio < least:
            return Verdict.FASTER
        if least <= self.low and self.high <= most:
            return Verdict.SAME
        return Verdict.AMBIGUOUS

    def add_reason(self, text: str | None) -> None:
        self.reason = joined(self.reason, text)

    def doubt(self, why: str | None, verdict: Verdict = Verdict.AMBIGUOUS) -> None:
        """Set the verdict that the row has instead, with the reason in front."""
        self.verdict = verdict
        self.reason = joined(why, self.reason)


@dataclass(frozen=True)
class RoundFigures:
    """The figures of a metric on both sides, by round."""

    metric: Metric
    before: Mapping[int, float]
    after: Mapping[int, float]

    @property
    def have_ratio(self) -> bool:
        """Whether a test can compare their logarithms: sizes may be 0 in a trial, such as a graph
        pool."""
        if self.metric.compare != "ratio":
            return False
        return 0 not in self.before.values() and 0 not in self.after.values()

    def summary(self, figures: Mapping[int, float]) -> float | None:
        """Return the geometric mean of the figures of a side, or the largest, as in results; None
        without figures."""
        if not figures:
            return None
        if self.have_ratio or self.metric.combine == "mean":
            return math.exp(log_mean(figures.values()).value)
        return max(figures.values())


def judge(
    cells: Iterable[ComparedCell],
    limits: Limits,
    interleaved: bool = False,
) -> list[Change]:
    """Return every verdict, the most important first. `interleaved`: both sides were measured in
    the same rounds, so pairs are compared."""
    changes: list[Change] = []
    for cell in cells:
        whole = status_change(cell, limits)
        if whole is not None:
            changes.append(whole)
        else:
            changes += figure_changes(cell, limits, interleaved)
    # `same` by an absolute limit needs no test
    tested = [
        change
        for change in changes
        if change.test is not None and change.verdict is not Verdict.SAME
    ]
    # families of tests, so that ignored changes do not affect the others
    families = grouped(tested, lambda change: (change.ignored, change.metric in SIZES))
    for family in families.values():
        tests = significant([change.p_value for change in family], limits.q)
        for change, is_significant in zip(family, tests, strict=True):
            decide(change, is_significant)
    return ordered(changes)


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Return the most important changes first: by verdict, then by size."""
    order = list(Verdict)

    def place(change: Change) -> tuple[int, float]:
        size = 0.0
        if change.ratio:
            size = abs(math.log(change.ratio))
        elif change.ratio == 0 or change.metric == STATUS:
            size = math.inf
        return order.index(change.verdict), -size

    return sorted(changes, key=place)


def tally(changes: Iterable[Change]) -> str:
    """Return `2 slower, 1 ambiguous, 5 not judged, 30 same` of rows in their order."""
    words = Counter(change.word for change in changes)
    return ", ".join(f"{number} {word}" for word, number in words.items())


# --- statuses ---


def verdict_of_statuses(before: Status | None, now: Status | None) -> Verdict | None:
    """Return the verdict on a cell by its statuses (at most one may be None: not measured); None if
    its figures must be compared."""
    if before is None:
        return Verdict.NEW
    if now is None:
        return Verdict.MISSING
    old = class_of_status(before)
    new = class_of_status(now)
    if new > old:
        return Verdict.BROKEN
    if not now.is_measured:
        return Verdict.SAME
    return Verdict.FIXED if new < old else None


def class_of_status(status: Status) -> int:
    """Return the class of a status, best first: works, runs differently from what the mode
    promises, cannot run here, failed."""
    if status.is_failure:
        return 3
    if not status.is_measured:
        return 2
    return int(status is not Status.OK)


def status_change(cell: ComparedCell, limits: Limits) -> Change | None:
    """Return the verdict on a cell whose figures cannot be compared; None if they can."""
    before = cell.before
    after = cell.after
    old_status = before.status if before else None
    new_status = after.status if after else None
    verdict = verdict_of_statuses(old_status, new_status)
    if verdict is None:
        return None
    known = before or after
    assert known is not None
    limit = limits.of(known, cell.hardware, STATUS)
    change = Change(
        cell.key,
        cell.name,
        STATUS,
        verdict,
        reason=cell.why,
        ignored=limit.ignore,
    )
    if before and after:
        change.reason = f"{after} (before {before})"
    elif before:
        change.ignored |= limits.on_missing == OnFailure.ignore
        if not before.status.is_measured:
            change.ignored = True  # such a cell has no figures to guard
            change.add_reason(f"it gave no figures before: {before}")
    elif after and after.status != Status.OK:
        change.add_reason(str(after))
    change.add_reason(exception_text(limit))
    return change


# --- figures ---


def figure_changes(
    cell: ComparedCell,
    limits: Limits,
    interleaved: bool,
) -> Iterator[Change]:
    """Yield a row for each metric that some side has; those with a `test` wait for the tests of all
    rows."""
    before, after = cell.results
    disturbance = disturbance_text(before.disturbance, after.disturbance)
    for name in limits.metrics:
        metric = METRICS[name]
        figures = RoundFigures(metric, before.figures(metric), after.figures(metric))
        if not figures.before and not figures.after:
            continue
        limit = limits.of(before, cell.hardware, name)
        change = Change(
            cell.key,
            cell.name,
            name,
            before=figures.summary(figures.before),
            after=figures.summary(figures.after),
            limit=limit.least_change(metric),
            ignored=limit.ignore,
            results=cell.results,
        )
        if change.before and change.after is not None:
            change.ratio = change.after / change.before
        if change.is_one_sided:
            when = "before" if change.before is None else "now"
            change.doubt(f"not measured {when}")
        elif metric.is_timed and disturbance is not None:
            change.marked_before = before.disturbance is not None
            change.marked_after = after.disturbance is not None
            change.disturbance = disturbance
            change.reason = disturbance
            change.must_be_judged = limits.on_unjudged == OnFailure.fail
        elif figures.have_ratio:
            judge_ratio(change, cell, figures, limit.least, interleaved)
        else:
            judge_range(change, cell, figures, limit.least)
        change.add_reason(exception_text(limit))
        yield change


def disturbance_text(before: str | None, now: str | None) -> str | None:
    """Return why the times of a side are marked: `host disturbed now: busy for 83 % of the timing`;
    None if they are not. `before`, `now`: why those of each side are."""
    marked = [when for when, why in (("before", before), ("now", now)) if why]
    if not marked:
        return None
    return f"{DISTURBED} {' and '.join(marked)}: {now or before}"


def judge_ratio(
    change: Change,
    cell: ComparedCell,
    figures: RoundFigures,
    least: float,
    interleaved: bool,
) -> None:
    """Add the test of the ratio. The tests of all rows decide together, unless the difference is
    too small to matter. `least`: the absolute difference that matters."""
    # parts of a sweep that was resumed after an update have different rounds
    is_paired = interleaved and len(figures.before.keys() & figures.after.keys()) >= 2
    test = test_of_ratio(change, cell, figures, is_paired)
    change.test = test
    change.ratio = test.ratio
    change.low = test.low
    change.high = test.high
    change.p_value = test.p_value
    # these may be means over compilations, like those of results
    if test.before is not None:
        change.before = test.before
        change.after = test.after
    difference = (change.after or 0.0) - (change.before or 0.0)
    if least and abs(difference) <= least:
        change.doubt("the difference is too small to matter", Verdict.SAME)
        return
    change.host_noise = host_noise_of(change, is_paired)
    if test.p_value is None:
        change.doubt("a side has only one trial, so the spread is unknown")


def host_noise_of(change: Change, is_paired: bool) -> float:
    """Return which relative change of a tested row may come from the host."""
    bounds = [result.bound for result in change.results]
    if change.metric not in HOST_METRICS or "launch" not in bounds:
        return 0.0
    floor = 0.0 if is_paired else HOST_CHANGE
    return max(change.smallest_slowdown or 0.0, floor)


def test_of_ratio(
    change: Change, cell: ComparedCell, figures: RoundFigures, is_paired: bool
) -> RatioTest:
    """Return the test of a ratio, and note which kernels differ. `is_paired`: rounds are compared
    with each other."""
    old, new = cell.results
    by_chance: frozenset[str] = frozenset()
    if change.metric not in SIZES:
        change.kernels = cell.kernels.difference
        by_chance = cell.kernels.by_chance
    run_test = compare_pairs if is_paired else compare
    return run_test(
        figures.before,
        figures.after,
        change.limit or 0.0,
        Compilations(old.compile_caches, new.compile_caches, by_chance),
    )


def judge_range(
    change: Change,
    cell: ComparedCell,
    figures: RoundFigures,
    least: float,
) -> None:
    """Set the verdict: a change exceeds all trials of the other side by more than `least` and by
    its limit, and is not likely to be a coincidence."""
    metric = figures.metric
    old = figures.before.values()
    new = figures.after.values()
    old_least, old_most = min(old), max(old)
    new_least, new_most = min(new), max(new)
    is_same_range = old_least == new_least and old_most == new_most

    def exceeds(value: float, other: float) -> bool:
        return value - other > least and value > change.largest_same * other

    if exceeds(new_least, old_most):
        change.verdict = Verdict.SLOWER
    elif exceeds(old_least, new_most):
        change.verdict = Verdict.FASTER
    elif is_same_range or not exceeds(max(old_most, new_most), min(old_least, new_least)):
        change.verdict = Verdict.SAME
    else:
        change.doubt("its trials differ")
    if change.verdict not in CHANGED:
        return
    # autotuning also decides what is fused
    if metric.name == "kernels" and are_tuned(cell.kernels.by_chance):
        change.doubt(cell.kernels.difference)
    if metric.unit == "s" and 1 in (len(old), len(new)):
        change.doubt(ONE_TIME)


def decide(change: Change, is_significant: bool) -> None:
    """Set the verdict of a tested row; `is_significant`: by the tests of all rows."""
    ratio = change.ratio or 1e-300
    factor = max(ratio, 1 / ratio)
    is_significant_alone = change.p_value is not None and change.p_value < ALPHA
    change.verdict = change.verdict_by(is_significant)
    if change.verdict in CHANGED:
        if factor <= 1 + change.host_noise:
            noise = percent(change.host_noise)
            change.doubt(f"launch-bound: up to {noise} may be noise of the host")
    elif change.verdict_by(is_significant_alone) in CHANGED:
        change.doubt("not significant among all rows")
    if factor > change.largest_same:
        change.reason = joined(change.kernels, change.reason)


def record(change: Change) -> dict[str, Any]:
    """Return one row under COLUMNS; a number that is not finite is None."""
    row: dict[str, Any] = {}
    for column, name in COLUMNS.items():
        value = getattr(change, name)
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        row[column] = value
    return row | {"verdict": str(change.verdict)}


def exception_text(limit: Limit) -> str | None:
    if not limit.reason:
        return None
    if limit.ignore:
        return f"ignored: {limit.reason}"
    return f"by exception: {limit.reason}"


def joined(*parts: str | None) -> str | None:
    return "; ".join(filter(None, parts)) or None
