"""Turn pairs of results into verdicts: a `Change` for every cell and metric of two sides.

A cell that was measured on one side only is `missing` or `new`. A changed status gives the verdict
of `verdict_of_statuses`. Otherwise each metric is compared as `effbench.metrics` declares: `ratio`
by Welch's test (or by pairs, if both sides were measured in the same rounds), Benjamini–Hochberg
(over times or sizes) and an effect beyond the limit; `exact` by its integers; `bound` by a factor
and an absolute difference, times only of two trials per side.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from effbench.cell import Status
from effbench.comparison.limits import STATUS, Limit, Limits
from effbench.config import OnFailure
from effbench.metrics import METRICS, percent
from effbench.stats.intervals import TUNED, is_number, log_mean
from effbench.stats.significance import FLOOR, Comparison, compare, compare_pairs, significant
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
#: In a launch-bound cell these depend on the host, and differ by 1.4 % (SD) between sessions: below
#: 5 %, use pairs.
HOST_METRICS, HOST_CHANGE = (
    frozenset({"latency_ms", "latency_p95_ms", "period_ms", "energy_mj"}),
    0.05,
)
#: Their tests are a family of their own, because noisy times must not hide a change of memory.
SIZES = frozenset(name for name, metric in METRICS.items() if metric.unit == "bytes")
#: Compilations per side after which kernels that differ between the sides, but not within one, are
#: no coincidence.
LEAST_COMPILATIONS = 3
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
#: Start of the reason why a marked figure has no verdict.
DISTURBED = "host disturbed"
#: People read it instead of `ambiguous` if a figure is marked.
NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Pair:
    """A cell on both sides. `before`, `after`: None without a result, and then `why` may give the
    reason. `about`: its model, bs, mode, dtype, phase, device and hardware, which exceptions match.
    `differs`: the cells differ."""

    key: str
    name: str
    about: Mapping[str, Any]
    before: CellResult | None
    after: CellResult | None
    why: str | None = None
    differs: bool = False

    @property
    def disturbance(self) -> str | None:
        """Why the times of a side are marked: `host disturbed now: busy for 83 % of the timing`;
        None if they are not."""
        before = self.before.disturbance if self.before else None
        after = self.after.disturbance if self.after else None
        if before and after:
            return f"{DISTURBED} before and now: {after}"
        if before or after:
            return f"{DISTURBED} {'before' if before else 'now'}: {before or after}"
        return None

    @cached_property
    def compilations(self) -> list[dict[int, int | None]]:
        """Round -> compile cache, of both sides."""
        return [
            {n: number for n, (number, _) in side.compiled.items()}
            for side in (self.before, self.after)
        ]

    @cached_property
    def kernels(self) -> tuple[str | None, set[str]]:
        """How the kernels of the sides differ, and the kernels among which the compiler may choose
        by chance: none if each side has one choice, in all of LEAST_COMPILATIONS or in a cell of
        its own."""
        sides = [[*side.compiled.values()] for side in (self.before, self.after)]
        old, new = ({kernels for _, kernels in side if kernels} for side in sides)
        count = min(len({number for number, _ in side if number is not None}) for side in sides)
        is_known = old and new and old != new and count and not self.differs
        if max(len(old), len(new)) <= 1 and (self.differs or count >= LEAST_COMPILATIONS):
            return f"other kernels in each of {count} compilations" if is_known else None, set()
        return (
            "the compiler chose other kernels, unless the code changed" if is_known else None,
            old | new,
        )


@dataclass
class Change:
    """The verdict on one metric of one cell, or on its status. `ratio`: after ÷ before, with its 95
    % bounds. `limit`: relative change that counts; for a tested ratio its `floor`, or the noise
    threshold if larger. `ignored`: fails no check. `kernels`: how those of both sides differ.

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
    about: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    test: Comparison | None = None
    marked_before: bool = False
    marked_after: bool = False
    disturbance: str | None = None
    must_be_judged: bool = False

    @property
    def is_unjudged(self) -> bool:
        """Whether the row has no verdict because a figure is marked."""
        return self.disturbance is not None

    @property
    def smallest_slowdown(self) -> float | None:
        return None if self.test is None else self.test.smallest_slowdown

    @property
    def gates(self) -> bool:
        if self.ignored:
            return False
        return self.verdict in FAILING or (self.is_unjudged and self.must_be_judged)


def judge(
    pairs: Iterable[Pair],
    limits: Limits,
    thresholds: Thresholds | None = None,
    interleaved: bool = False,
) -> list[Change]:
    """Return every verdict, the most important first. `interleaved`: both sides were measured in
    the same rounds, so pairs are compared."""
    pairs = list(pairs)
    changes: list[Change] = []
    for pair in pairs:
        whole = status_change(pair, limits)
        changes += (
            figure_changes(pair, limits, thresholds or {}, interleaved)
            if whole is None
            else [whole]
        )
    launch_bound = {
        # parts of a sweep that was resumed after an update have different rounds
        pair.key: (
            0.0
            if interleaved and shared_rounds("latency_ms", pair.before, pair.after) >= 2
            else HOST_CHANGE
        )
        for pair in pairs
        if any(side and side.bound == "launch" for side in (pair.before, pair.after))
    }
    # families of tests, so that ignored changes do not affect the others
    for ignored, of_sizes in itertools.product((False, True), repeat=2):
        tested = [
            change for change in changes if change.floor is not None and change.ignored is ignored
        ]
        family = [change for change in tested if (change.metric in SIZES) is of_sizes]
        tests = significant([change.p_value for change in family], limits.q)
        for change, is_significant in zip(family, tests, strict=True):
            decide(change, is_significant, launch_bound.get(change.key))
    return ordered(changes)


def ordered(changes: Iterable[Change], first: str | None = None) -> list[Change]:
    """Return the most important changes first: by verdict, then rows of the metric `first`, then by
    size."""
    order = list(Verdict)

    def place(change: Change) -> tuple[int, bool, float]:
        if change.ratio:
            size = abs(math.log(change.ratio))
        else:
            size = math.inf if change.ratio == 0 or change.metric == STATUS else 0.0
        return order.index(change.verdict), change.metric != first, -size

    return sorted(changes, key=place)


def counts(changes: Iterable[Change]) -> dict[Verdict, int]:
    """Return verdict -> number of rows, the most important first; without verdicts that do not
    occur."""
    numbers = Counter(change.verdict for change in changes)
    return {verdict: numbers[verdict] for verdict in Verdict if numbers[verdict]}


def counted(changes: Iterable[Change]) -> str:
    """Return `2 slower, 1 ambiguous, 5 not judged, 30 same`, the most important first."""
    changes = list(changes)
    judged = [change for change in changes if not change.is_unjudged]
    unjudged = len(changes) - len(judged)
    texts = {verdict: f"{number} {verdict}" for verdict, number in counts(judged).items()}
    words = []
    for verdict in Verdict:
        if verdict in texts:
            words.append(texts[verdict])
        if verdict is Verdict.AMBIGUOUS and unjudged:
            words.append(f"{unjudged} {NOT_JUDGED}")
    return ", ".join(words)


def shared_rounds(metric: str, *sides: CellResult | None) -> int:
    """Return the number of rounds in which every side has a figure."""
    figures = [side.figures.get(metric, {}) if side else {} for side in sides]
    return sum(all(of.get(number) is not None for of in figures) for number in figures[0])


# --- statuses ---


def verdict_of_statuses(before: str | None, now: str | None) -> Verdict | None:
    """Return the verdict on a cell by its statuses (at most one may be None: not measured); None if
    its figures must be compared. Raises ValueError for an unknown status."""
    if before is None or now is None:
        return Verdict.NEW if before is None else Verdict.MISSING
    old, new = CLASSES[Status(before)], CLASSES[Status(now)]
    if new > old:
        return Verdict.BROKEN
    if not Status(now).is_measured:
        return Verdict.SAME
    return Verdict.FIXED if new < old else None


def status_change(pair: Pair, limits: Limits) -> Change | None:
    """Return the verdict on a cell whose figures cannot be compared; None if they can."""
    before, after = pair.before, pair.after
    verdict = verdict_of_statuses(before and before.status, after and after.status)
    if verdict is None:
        return None
    limit = limits.of(pair.about, STATUS)
    ignored = limit.ignore or (verdict is Verdict.MISSING and limits.on_missing == "ignore")
    if before is None:
        reason = joined(pair.why, None if after.status == Status.OK else str(after))
    elif after is None:
        failed = not Status(before.status).is_measured  # such a cell has no figures to guard
        reason = joined(pair.why, f"it gave no figures before: {before}" if failed else None)
        ignored |= failed
    else:
        reason = (
            f"{after} (as before)" if str(after) == str(before) else f"{after} (before {before})"
        )
    reason = joined(reason, exception_text(limit))
    return Change(
        pair.key, pair.name, STATUS, verdict, reason=reason, ignored=ignored, about=pair.about
    )


# --- figures ---


def figure_changes(
    pair: Pair, limits: Limits, thresholds: Thresholds, interleaved: bool
) -> Iterator[Change]:
    """Yield a row for each metric that some side has; rows that the tests decide have a `floor`."""
    for metric in limits.metrics:
        before, after, odd = usable(pair, metric)
        if not before and not after and not odd:
            continue
        if METRICS[metric].is_timed and pair.disturbance and before and after:
            yield unjudged_change(pair, metric, before, after, limits, thresholds)
            continue
        how, limit = METRICS[metric].compare, limits.of(pair.about, metric)
        counts = least_change(pair, metric, limit, thresholds)
        change = Change(
            pair.key,
            pair.name,
            metric,
            Verdict.AMBIGUOUS,
            limit=counts,
            reason=odd,
            about=pair.about,
        )
        change.ignored = limit.ignore
        has_ratio = how == "ratio" and 0 not in (*before.values(), *after.values())
        is_mean = has_ratio or (how == "bound" and not METRICS[metric].of_trial)  # as in results
        change.before, change.after = (summary(side, is_mean) for side in (before, after))
        if before and after:
            if how != "ratio" and change.before:
                change.ratio = change.after / change.before
            if has_ratio:
                add_test(change, pair, before, after, limit, interleaved)
            else:  # also sizes that are 0 in a trial, such as a graph pool
                by_range(change, before, after, limit.least)
                if metric == "kernels" and change.verdict in CHANGED:
                    doubt_tuned(change, pair)
                if (
                    METRICS[metric].unit == "s"
                    and change.verdict in CHANGED
                    and 1 in (len(before), len(after))
                ):
                    change.verdict, change.reason = (
                        Verdict.AMBIGUOUS,
                        joined(ONE_TIME, change.reason),
                    )
        elif before or after:
            change.reason = joined(NOT_NOW if before else NOT_BEFORE, odd)
        change.reason = joined(change.reason, exception_text(limit))
        yield change


def least_change(pair: Pair, metric: str, limit: Limit, thresholds: Thresholds) -> float:
    """Return the relative change of a metric that counts."""
    how = METRICS[metric].compare
    if how == "ratio":
        return max(limit.floor, thresholds.get((pair.key, metric), 0.0))
    return 0.0 if how == "exact" else limit.factor - 1


def unjudged_change(
    pair: Pair,
    metric: str,
    before: Mapping[int, float],
    after: Mapping[int, float],
    limits: Limits,
    thresholds: Thresholds,
) -> Change:
    """Return the row of a time of which a side is marked: figures and their ratio, without a test
    and a verdict."""
    limit = limits.of(pair.about, metric)
    change = Change(pair.key, pair.name, metric, Verdict.AMBIGUOUS, about=pair.about)
    change.limit = least_change(pair, metric, limit, thresholds)
    change.ignored = limit.ignore
    is_mean = METRICS[metric].compare == "ratio" or not METRICS[metric].of_trial
    change.before, change.after = summary(before, is_mean), summary(after, is_mean)
    if change.before:
        change.ratio = change.after / change.before
    change.marked_before = pair.before.disturbance is not None
    change.marked_after = pair.after.disturbance is not None
    change.disturbance = pair.disturbance
    change.must_be_judged = limits.on_unjudged == OnFailure.fail
    change.reason = joined(pair.disturbance, exception_text(limit))
    return change


def summary(figures: Mapping[int, float], is_mean: bool) -> float | None:
    """Return the geometric mean of figures, or the largest; None without figures."""
    if not figures:
        return None
    return math.exp(log_mean(figures.values()).value) if is_mean else max(figures.values())


def add_test(
    change: Change,
    pair: Pair,
    before: Mapping[int, float],
    after: Mapping[int, float],
    limit: Limit,
    interleaved: bool,
) -> None:
    """Add ratio, interval and p-value, and the verdict if the change is too small to matter."""
    change.kernels, kernels = (None, set()) if change.metric in SIZES else pair.kernels
    test = compare_pairs if interleaved and len(before.keys() & after.keys()) >= 2 else compare
    change.test = test(before, after, change.limit, pair.compilations, kernels)
    for name in ("ratio", "low", "high", "p_value"):
        setattr(change, name, getattr(change.test, name))
    # which may be means over compilations, like those of results
    if test is compare and change.test.sides:
        change.before, change.after = (math.exp(side.value) for side in change.test.sides)
    if limit.least and abs(change.after - change.before) <= limit.least:
        change.verdict, change.reason = (
            Verdict.SAME,
            joined("the difference is too small to matter", change.reason),
        )
        return
    change.floor = limit.floor
    if change.p_value is None:
        change.reason = joined("a side has only one trial, so the spread is unknown", change.reason)


def by_range(
    change: Change, before: Mapping[int, float], after: Mapping[int, float], least: float
) -> None:
    """Set the verdict: a change exceeds all trials of the other side by more than `least` and by
    its limit."""
    factor = 1 + change.limit
    old_low, old_high, new_low, new_high = (
        end(side.values()) for side in (before, after) for end in (min, max)
    )
    low, high = min(old_low, new_low), max(old_high, new_high)
    if high - low <= least or high <= factor * low or (old_low, old_high) == (new_low, new_high):
        change.verdict = Verdict.SAME
    elif new_low - old_high > least and new_low > factor * old_high:
        change.verdict = Verdict.SLOWER
    elif old_low - new_high > least and old_low > factor * new_high:
        change.verdict = Verdict.FASTER
    else:
        form = (
            "{:.15g}".format
            if METRICS[change.metric].compare == "exact"
            else METRICS[change.metric].format
        )
        ranges = (
            f"{form(old_low)} to {form(old_high)} before, {form(new_low)} to {form(new_high)} now"
        )
        change.reason = joined(f"its trials differ: {ranges}", change.reason)


def doubt_tuned(change: Change, pair: Pair) -> None:
    """Make a change of `kernels` ambiguous if autotuning, which also decides what is fused, may
    have chosen them."""
    reason, kernels = pair.kernels
    if any(name.endswith(TUNED) for name in kernels):
        change.verdict, change.reason = Verdict.AMBIGUOUS, joined(reason, change.reason)


def decide(change: Change, is_significant: bool, host_change: float | None) -> None:
    """Set the verdict of a row; `is_significant`: by the tests of all rows. `host_change`: least if
    launch-bound."""
    figures = (change.ratio, change.low, change.high)
    change.verdict = verdict_of(*figures, is_significant, change.limit)
    why = None
    if change.verdict not in CHANGED:
        is_unsure = change.verdict is Verdict.AMBIGUOUS and change.low is not None
        if verdict_of(*figures, is_significant, change.floor) in CHANGED:
            limit, floor = percent(change.limit), percent(change.floor)
            why = f"beyond the floor of {floor}, but {IN_NOISE} of {limit} from earlier sweeps"
        elif (
            is_unsure
            and verdict_of(*figures, not change.low <= 1 <= change.high, change.floor) in CHANGED
        ):
            # the interval alone looks significant
            why = "not significant among all rows"
    elif host_change is not None and change.metric in HOST_METRICS:
        growth = change.ratio if change.verdict is Verdict.SLOWER else 1 / max(change.ratio, 1e-300)
        if growth - 1 <= (least := max(change.smallest_slowdown, host_change)):
            why = f"launch-bound: up to {percent(least)} may be noise of the host"
    if why:
        change.verdict, change.reason = Verdict.AMBIGUOUS, joined(why, change.reason)
    if not 1 / (1 + change.floor) <= change.ratio <= 1 + change.floor:
        change.reason = joined(change.kernels, change.reason)


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
    return Verdict.SAME if low >= 1 / (1 + floor) and high <= 1 + floor else Verdict.AMBIGUOUS


def usable(pair: Pair, metric: str) -> tuple[dict[int, float], dict[int, float], str | None]:
    """Return the valid figures of both sides, and a text about invalid and missing ones."""
    least, sides, odd = least_valid(metric), [], None
    for side, when in ((pair.before, "before"), (pair.after, "now")):
        every = side.figures.get(metric, {})
        kept = {
            number: float(value)
            for number, value in every.items()
            if is_number(value) and value >= least
        }
        # if no trial has the metric, it was not measured
        if len(kept) < len(every) and any(value is not None for value in every.values()):
            odd = joined(
                odd, f"{len(every) - len(kept)} of {len(every)} trials {when} have no valid figure"
            )
        sides.append(kept)
    return sides[0], sides[1], odd


def least_valid(metric: str) -> float:
    """Return the smallest valid figure: a time or an energy of 0 was not measured; a count, a
    memory size or an error may be 0."""
    return 0.0 if METRICS[metric].unit in ("bytes", "") else math.ulp(0.0)


def record(change: Change) -> dict[str, Any]:
    """Return one row under COLUMNS; a number that is not finite is None."""
    row = {column: getattr(change, name) for column, name in COLUMNS.items()} | {
        "verdict": str(change.verdict)
    }
    return {
        key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()
    }


def exception_text(limit: Limit) -> str | None:
    return limit.reason and f"{'ignored' if limit.ignore else 'by exception'}: {limit.reason}"


def joined(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None
