"""Turn pairs of results into verdicts: a `Change` for every cell and metric of two sides.

A cell that was measured on one side only is `missing` or `new`. A changed status gives the verdict
of `verdict_of_statuses`. Otherwise each metric is compared as `core.metrics` declares: `ratio`
by Welch's test (or by pairs, if both sides were measured in the same rounds), Benjamini–Hochberg
(over times or sizes) and an effect beyond the limit; `exact` by its integers; `bound` by a factor
and an absolute difference, times only of two trials per side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from effbench.analysis.limits import STATUS, CellFacts, Limit, Limits
from effbench.analysis.matching import CellPair
from effbench.core.cell import Status
from effbench.core.labels import grouped
from effbench.core.metrics import METRICS, Metric, percent
from effbench.core.settings import OnFailure
from effbench.stats.intervals import TUNED, is_number, log_mean
from effbench.stats.significance import (
    FLOOR,
    Compilations,
    RatioTest,
    compare,
    compare_pairs,
    significant,
)
from effbench.store.sides import CellResult


class Verdict(StrEnum):
    """How a cell's figure changed from one side to the other; the most important first."""

    BROKEN = "broken"  # its status has a worse class (CLASSES)
    SLOWER = "slower"
    MISSING = "missing"
    AMBIGUOUS = "ambiguous"  # neither shown nor excluded
    FIXED = "fixed"
    FASTER = "faster"
    NEW = "new"
    SAME = "same"  # a change beyond the floor is excluded


CHANGED = (Verdict.SLOWER, Verdict.FASTER)
#: Verdicts that make a check fail.
FAILING = (Verdict.SLOWER, Verdict.BROKEN, Verdict.MISSING)
#: Status -> its class, best first: works, runs differently from what the mode promises, cannot run
#: here, failed.
CLASSES = {
    Status.OK: 0,
    Status.DEGRADED: 1,
    Status.OOM: 2,
    Status.UNSUPPORTED: 2,
    Status.ERROR: 3,
    Status.TIMEOUT: 3,
    Status.CRASHED: 3,
    Status.INCORRECT: 3,
}
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
    "cell_key": "key",
}
#: (cell key, metric) -> relative change that is noise between sweeps; it raises the limit above the
#: floor.
Thresholds = Mapping[tuple[str, str], float]
#: Reasons why a metric that only one side has is `ambiguous`.
NOT_BEFORE, NOT_NOW = "not measured before", "not measured now"
#: Start of the reason why a change beyond its floor is `ambiguous`; the threshold follows.
IN_NOISE = "inside the noise threshold"
#: Start of the reason why a compile time beyond its limit is `ambiguous`: on a busy machine, single
#: compilations of unchanged code differed by a factor of up to 4.
ONE_TIME = "a side has only one such time, so the spread is unknown"
#: People read it instead of `ambiguous` if a figure is marked.
NOT_JUDGED = "not judged"


@dataclass
class Change:
    """The verdict on one metric of one cell, or on its status. `ratio`: after ÷ before, with its 95
    % bounds. `limit`: relative change that counts; for a tested ratio its `floor`, or the noise
    threshold if larger. `ignored`: fails no check. `kernels`: how those of both sides differ.
    `host_noise`: relative change of a launch-bound cell's time that may come from the host.

    `marked_before`, `marked_after`: whether the figure of this side comes from a disturbed host.
    `disturbance`: then why; the row has no verdict (`ambiguous` in data), unless a re-run gave it
    one. `must_be_judged`: such a row fails a check."""

    key: str
    name: str
    metric: str
    verdict: Verdict
    before: float | None = None
    after: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    limit: float | None = None
    reason: str | None = None
    ignored: bool = False
    floor: float | None = None
    kernels: str | None = None
    host_noise: float = 0.0
    about: CellFacts = field(default_factory=CellFacts, repr=False, compare=False)
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
    def has_both(self) -> bool:
        """Whether there is a figure on both sides."""
        return self.before is not None and self.after is not None

    @property
    def gates(self) -> bool:
        if self.ignored:
            return False
        return self.verdict in FAILING or (self.is_unjudged and self.must_be_judged)

    @property
    def difference(self) -> float:
        """The absolute difference of the figures, infinite if one is missing."""
        if self.before is None or self.after is None:
            return math.inf
        return abs(self.after - self.before)

    @property
    def growth(self) -> float:
        """The relative change from the smaller figure to the larger one."""
        if self.ratio is None:
            return 0.0
        return max(self.ratio, 1 / max(self.ratio, 1e-300)) - 1

    def verdict_by(self, is_significant: bool, floor: float) -> Verdict:
        """Return the verdict by the interval of the ratio; see `verdict_of`."""
        if self.ratio is None:
            return Verdict.AMBIGUOUS
        return verdict_of(self.ratio, self.low, self.high, is_significant, floor)

    def set_plain_ratio(self) -> None:
        """Set the ratio of the figures, without an interval."""
        if self.before and self.after is not None:
            self.ratio = self.after / self.before

    def add_reason(self, text: str | None) -> None:
        self.reason = joined(self.reason, text)

    def doubt(self, why: str | None, verdict: Verdict = Verdict.AMBIGUOUS) -> None:
        """Set the verdict that the row has instead, with the reason in front."""
        self.verdict = verdict
        self.reason = joined(why, self.reason)


@dataclass(frozen=True)
class Figures:
    """The valid figures of a metric by round. `invalid`: text about invalid and missing ones."""

    metric: Metric
    before: Mapping[int, float]
    after: Mapping[int, float]
    invalid: str | None = None

    @classmethod
    def of(cls, pair: CellPair, metric: str) -> Figures:
        before, invalid_before = valid_figures(pair.before, metric, "before")
        after, invalid_now = valid_figures(pair.after, metric, "now")
        return cls(METRICS[metric], before, after, joined(invalid_before, invalid_now))

    @property
    def are_any(self) -> bool:
        return bool(self.before or self.after or self.invalid)

    @property
    def are_on_both(self) -> bool:
        return bool(self.before and self.after)

    @property
    def missing(self) -> str | None:
        """Which side alone has no figure."""
        if self.before:
            return NOT_NOW
        if self.after:
            return NOT_BEFORE
        return None

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
        is_of_sweep = self.metric.compare == "bound" and not self.metric.of_trial
        if self.have_ratio or is_of_sweep:
            return math.exp(log_mean(figures.values()).value)
        return max(figures.values())


def judge(
    pairs: Iterable[CellPair],
    limits: Limits,
    thresholds: Thresholds | None = None,
    interleaved: bool = False,
) -> list[Change]:
    """Return every verdict, the most important first. `interleaved`: both sides were measured in
    the same rounds, so pairs are compared."""
    changes: list[Change] = []
    for pair in pairs:
        whole = status_change(pair, limits)
        if whole is not None:
            changes.append(whole)
        else:
            changes += figure_changes(pair, limits, thresholds or {}, interleaved)
    tested = [change for change in changes if change.floor is not None]
    # families of tests, so that ignored changes do not affect the others
    families = grouped(tested, lambda change: (change.ignored, change.metric in SIZES))
    for family in families.values():
        tests = significant([change.p_value for change in family], limits.q)
        for change, is_significant in zip(family, tests, strict=True):
            decide(change, is_significant)
    return ordered(changes)


def ordered(changes: Iterable[Change], first: str | None = None) -> list[Change]:
    """Return the most important changes first: by verdict, then rows of the metric `first`, then by
    size."""
    order = list(Verdict)

    def place(change: Change) -> tuple[int, bool, float]:
        size = 0.0
        if change.ratio:
            size = abs(math.log(change.ratio))
        elif change.ratio == 0 or change.metric == STATUS:
            size = math.inf
        return order.index(change.verdict), change.metric != first, -size

    return sorted(changes, key=place)


def counts(changes: Iterable[Change]) -> dict[Verdict, int]:
    """Return verdict -> number of rows, the most important first; without verdicts that do not
    occur."""
    numbers = Counter(change.verdict for change in changes)
    return {verdict: numbers[verdict] for verdict in Verdict if numbers[verdict]}


def counted(changes: Iterable[Change]) -> str:
    """Return `2 slower, 1 ambiguous, 5 not judged, 30 same`, the most important first."""
    words = Counter(change.word for change in changes)
    order = list(map(str, Verdict))
    order.insert(order.index(Verdict.AMBIGUOUS) + 1, NOT_JUDGED)
    return ", ".join(f"{words[word]} {word}" for word in order if words[word])


def shared_rounds(metric: str, *sides: CellResult | None) -> int:
    """Return the number of rounds in which every side has a figure."""
    rounds = []
    for side in sides:
        figures = side.figures.get(metric, {}) if side else {}
        rounds.append({number for number, value in figures.items() if value is not None})
    return len(set.intersection(*rounds))


# --- statuses ---


def verdict_of_statuses(before: str | None, now: str | None) -> Verdict | None:
    """Return the verdict on a cell by its statuses (at most one may be None: not measured); None if
    its figures must be compared. Raises ValueError for an unknown status."""
    if before is None:
        return Verdict.NEW
    if now is None:
        return Verdict.MISSING
    old, new = CLASSES[Status(before)], CLASSES[Status(now)]
    if new > old:
        return Verdict.BROKEN
    if not Status(now).is_measured:
        return Verdict.SAME
    return Verdict.FIXED if new < old else None


def status_of(result: CellResult | None) -> str | None:
    if result is None:
        return None
    return result.status


def status_change(pair: CellPair, limits: Limits) -> Change | None:
    """Return the verdict on a cell whose figures cannot be compared; None if they can."""
    before, after = pair.before, pair.after
    verdict = verdict_of_statuses(status_of(before), status_of(after))
    if verdict is None:
        return None
    limit = limits.of(pair.about, STATUS)
    change = Change(pair.key, pair.name, STATUS, verdict, reason=pair.why, about=pair.about)
    change.ignored = bool(limit.ignore)
    if after is None:
        change.ignored |= limits.on_missing == OnFailure.ignore
        if before and not Status(before.status).is_measured:
            change.ignored = True  # such a cell has no figures to guard
            change.add_reason(f"it gave no figures before: {before}")
    elif before is None:
        if after.status != Status.OK:
            change.add_reason(str(after))
    elif str(after) == str(before):
        change.reason = f"{after} (as before)"
    else:
        change.reason = f"{after} (before {before})"
    change.add_reason(exception_text(limit))
    return change


# --- figures ---


def figure_changes(
    pair: CellPair, limits: Limits, thresholds: Thresholds, interleaved: bool
) -> Iterator[Change]:
    """Yield a row for each metric that some side has; rows that the tests decide have a `floor`."""
    for name in limits.metrics:
        figures = Figures.of(pair, name)
        if not figures.are_any:
            continue
        limit = limits.of(pair.about, name)
        change = Change(pair.key, pair.name, name, Verdict.AMBIGUOUS, about=pair.about)
        change.limit = least_change(figures.metric, limit, thresholds.get((pair.key, name), 0.0))
        change.ignored = bool(limit.ignore)
        change.before = figures.summary(figures.before)
        change.after = figures.summary(figures.after)
        if not figures.are_on_both:
            change.reason = joined(figures.missing, figures.invalid)
        elif figures.metric.is_timed and pair.disturbance is not None:
            leave_unjudged(change, pair, limits)
        else:
            change.reason = figures.invalid
            judge_figures(change, pair, figures, limit, interleaved)
        change.add_reason(exception_text(limit))
        yield change


def least_change(metric: Metric, limit: Limit, threshold: float) -> float:
    """Return the relative change of a metric that counts."""
    if metric.compare == "exact":
        return 0.0
    if metric.compare == "bound":
        return float(limit.factor or 1.0) - 1
    return max(limit.floor or 0.0, threshold)


def leave_unjudged(change: Change, pair: CellPair, limits: Limits) -> None:
    """Note why the row of a time has no test and no verdict: a side is marked."""
    change.set_plain_ratio()
    change.marked_before = pair.before is not None and pair.before.disturbance is not None
    change.marked_after = pair.after is not None and pair.after.disturbance is not None
    change.reason = change.disturbance = pair.disturbance
    change.must_be_judged = limits.on_unjudged == OnFailure.fail


def judge_figures(
    change: Change, pair: CellPair, figures: Figures, limit: Limit, interleaved: bool
) -> None:
    """Set the verdict of a row with figures on both sides, unless the tests of all rows decide
    it."""
    least = limit.least or 0.0
    if not figures.have_ratio:
        if figures.metric.compare != "ratio":
            change.set_plain_ratio()
        judge_range(change, figures, least)
        if change.verdict in CHANGED:
            doubt_range(change, pair, figures)
        return
    is_paired = add_test(change, pair, figures, interleaved)
    if least and change.difference <= least:
        change.doubt("the difference is too small to matter", Verdict.SAME)
        return
    change.floor = limit.floor
    if pair.is_launch_bound and change.metric in HOST_METRICS:
        change.host_noise = change.smallest_slowdown or 0.0
        if not is_paired:
            change.host_noise = max(change.host_noise, HOST_CHANGE)
    if change.p_value is None:
        change.doubt("a side has only one trial, so the spread is unknown")


def doubt_range(change: Change, pair: CellPair, figures: Figures) -> None:
    """Make a change ambiguous that may be a coincidence."""
    metric = figures.metric
    # autotuning also decides what is fused
    may_be_tuned = any(name.endswith(TUNED) for name in pair.kernels.by_chance)
    if metric.name == "kernels" and may_be_tuned:
        change.doubt(pair.kernels.difference)
    if metric.unit == "s" and 1 in (len(figures.before), len(figures.after)):
        change.doubt(ONE_TIME)


def add_test(change: Change, pair: CellPair, figures: Figures, interleaved: bool) -> bool:
    """Add ratio, interval and p-value; return whether pairs were compared."""
    by_chance: frozenset[str] = frozenset()
    if change.metric not in SIZES:
        change.kernels = pair.kernels.difference
        by_chance = pair.kernels.by_chance
    compiled = Compilations(compilations_of(pair.before), compilations_of(pair.after), by_chance)
    # parts of a sweep that was resumed after an update have different rounds
    is_paired = interleaved and len(figures.before.keys() & figures.after.keys()) >= 2
    run_test = compare_pairs if is_paired else compare
    test = run_test(figures.before, figures.after, change.limit or 0.0, compiled)
    change.test = test
    change.ratio = test.ratio
    change.low = test.low
    change.high = test.high
    change.p_value = test.p_value
    # these may be means over compilations, like those of results
    if test.before is not None:
        change.before, change.after = test.before, test.after
    return is_paired


def compilations_of(side: CellResult | None) -> Mapping[int, int | None]:
    """Return round -> compile cache."""
    return side.compilations if side else {}


def judge_range(change: Change, figures: Figures, least: float) -> None:
    """Set the verdict: a change exceeds all trials of the other side by more than `least` and by
    its limit."""
    factor = 1 + (change.limit or 0.0)
    old, new = sorted(figures.before.values()), sorted(figures.after.values())

    def is_below(side: list[float], other: list[float]) -> bool:
        return other[0] - side[-1] > least and other[0] > factor * side[-1]

    low, high = min(old[0], new[0]), max(old[-1], new[-1])
    is_same_range = (old[0], old[-1]) == (new[0], new[-1])
    if is_same_range or high - low <= least or high <= factor * low:
        change.verdict = Verdict.SAME
    elif is_below(old, new):
        change.verdict = Verdict.SLOWER
    elif is_below(new, old):
        change.verdict = Verdict.FASTER
    else:
        text = figures.metric.format
        if figures.metric.compare == "exact":
            text = "{:.15g}".format
        before = f"{text(old[0])} to {text(old[-1])} before"
        now = f"{text(new[0])} to {text(new[-1])} now"
        change.doubt(f"its trials differ: {before}, {now}")


def decide(change: Change, is_significant: bool) -> None:
    """Set the verdict of a tested row; `is_significant`: by the tests of all rows."""
    floor, limit = change.floor or 0.0, change.limit or 0.0
    change.verdict = change.verdict_by(is_significant, limit)
    if change.verdict in CHANGED:
        if change.growth <= change.host_noise:
            noise = percent(change.host_noise)
            change.doubt(f"launch-bound: up to {noise} may be noise of the host")
    elif change.verdict_by(is_significant, floor) in CHANGED:
        change.doubt(
            f"beyond the floor of {percent(floor)}, but {IN_NOISE} of {percent(limit)} from earlier"
            " sweeps"
        )
    elif looks_significant(change, floor):
        change.doubt("not significant among all rows")
    if change.growth > floor:
        change.reason = joined(change.kernels, change.reason)


def looks_significant(change: Change, floor: float) -> bool:
    """Return whether the row is ambiguous although its own interval shows a change."""
    if change.low is None or change.high is None or change.low <= 1 <= change.high:
        return False
    is_change = change.verdict_by(True, floor) in CHANGED
    return change.verdict is Verdict.AMBIGUOUS and is_change


def verdict_of(
    ratio: float, low: float | None, high: float | None, is_significant: bool, floor: float = FLOOR
) -> Verdict:
    """Return the verdict on a ratio after ÷ before with its 95 % bounds: `slower` or `faster` if it
    differs significantly from 1, and by more than `floor`; `same` if the bounds exclude that;
    `ambiguous` otherwise."""
    if low is None or high is None:
        return Verdict.AMBIGUOUS
    if is_significant and ratio > 1 + floor:
        return Verdict.SLOWER
    if is_significant and ratio < 1 / (1 + floor):
        return Verdict.FASTER
    if low >= 1 / (1 + floor) and high <= 1 + floor:
        return Verdict.SAME
    return Verdict.AMBIGUOUS


def valid_figures(
    side: CellResult | None, metric: str, when: str
) -> tuple[dict[int, float], str | None]:
    """Return the valid figures of a side, and a text about invalid and missing ones."""
    every = side.figures.get(metric, {}) if side else {}
    least = least_valid(metric)
    valid = {
        number: float(value)
        for number, value in every.items()
        if is_number(value) and value >= least
    }
    # if no trial has the metric, it was not measured
    is_unmeasured = all(value is None for value in every.values())
    if is_unmeasured or len(valid) == len(every):
        return valid, None
    odd = len(every) - len(valid)
    return valid, f"{odd} of {len(every)} trials {when} have no valid figure"


def least_valid(metric: str) -> float:
    """Return the smallest valid figure: a time or an energy of 0 was not measured; a count, a
    memory size or an error may be 0."""
    if METRICS[metric].unit in ("bytes", ""):
        return 0.0
    return math.ulp(0.0)


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
    how = "ignored" if limit.ignore else "by exception"
    return f"{how}: {limit.reason}"


def joined(*parts: str | None) -> str | None:
    return "; ".join(filter(None, parts)) or None
