"""Every cell and metric of two sweeps against each other: one verdict each, with what it rests on.

Pure: what both sides know of each cell goes in, `Change` comes out. The rules, in the order in which they apply:
a cell that was not measured on one side is `missing` or `new`; one whose status changed has the verdict of
`effbench.analysis.statuses`; of the rest each metric is compared as `effbench.metrics` declares: `ratio` by Welch's
test (or by pairs, where both were measured in the same rounds), Benjamini–Hochberg over all of the comparison that is
not ignored, and an effect beyond the limit (one beyond its floor, but inside a wider noise fence is `ambiguous`);
`exact` by its integers; `bound` by a factor and an absolute difference. A metric that one side alone has is
`ambiguous`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.analysis.confirm import paired as compare_pairs
from effbench.analysis.limits import Limit, Limits
from effbench.analysis.statistics import is_number, log_mean
from effbench.analysis.statuses import gives_figures, is_guarded, verdict_of_statuses
from effbench.analysis.verdicts import Comparison, Verdict, benjamini_hochberg, compare, verdict_of
from effbench.cell import Status
from effbench.metrics import METRICS, percent

#: Of a cell that waits for launches these follow the host, whose processes differ by a fifth and more.
HOST_METRICS = frozenset({"latency_ms", "period_ms", "energy_mj"})
CHANGED = (Verdict.SLOWER, Verdict.FASTER)
#: By these a check fails.
FAILING = (Verdict.SLOWER, Verdict.BROKEN, Verdict.MISSING)
#: What matters most first.
ORDER = (
    Verdict.BROKEN, Verdict.SLOWER, Verdict.MISSING, Verdict.AMBIGUOUS, Verdict.FIXED, Verdict.FASTER, Verdict.NEW,
    Verdict.SAME,
)  # fmt: skip
#: A row as plain values (`record`), of exports and of the Python API.
COLUMNS = (
    "cell", "metric", "verdict", "before", "after", "ratio", "ci_low", "ci_high", "p_value", "limit",
    "smallest_slowdown", "gates", "reason", "cell_key",
)  # fmt: skip
#: Why a metric that one side alone has is `ambiguous`.
NOT_BEFORE, NOT_NOW = "not measured before", "not measured now"
#: Why a change beyond its floor is `ambiguous`; the reason goes on with the fence.
IN_FENCE = "inside the noise fence"
#: The metric of a row that speaks of a whole cell.
STATUS = "status"


@dataclass(frozen=True)
class Side:
    """What one sweep knows of a cell in one environment.

    `figures`: metric -> round -> figure of that round's trial; a metric with one value a sweep has it under round 0.
    `bound`: what most of its time goes into, as in `results`.
    """

    status: str
    reason: str | None = None
    bound: str | None = None
    figures: Mapping[str, Mapping[int, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A cell on both sides; None where that sweep has no result of it, and then `why` may say the reason.

    `about`: its model, bs, mode, dtype, phase, device and hardware, which exceptions are tied to.
    """

    key: str
    name: str
    about: Mapping[str, Any]
    before: Side | None
    after: Side | None
    why: str | None = None


@dataclass(frozen=True)
class Change:
    """The verdict on one metric of one cell (or on its status). Figures in the metric's unit, geometric means over
    trials; `ratio` is after ÷ before, `low` and `high` its 95 % bounds. `limit`: relative change that counts; of a
    ratio its `floor`, or the noise fence where that is wider. `smallest_slowdown`: what such trials would have shown in
    four cases of five; `error`, `df`: of the ratio's logarithm. `gates`: a check fails by it."""

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
    smallest_slowdown: float | None = None
    reason: str | None = None
    ignored: bool = False
    error: float | None = None
    df: float | None = None
    floor: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def gates(self) -> bool:
        return not self.ignored and self.verdict in FAILING

    @property
    def is_overlooked(self) -> bool:
        """A check would fail by it, were it not ignored."""
        return self.ignored and self.verdict in FAILING


def screen(
    pairs: Iterable[Pair],
    limits: Limits,
    fence: Callable[[str, str], float] = lambda key, metric: 0.0,
    in_turns: bool = False,
) -> list[Change]:
    """Every verdict, what matters most first.

    `fence`: relative change that a metric of a cell was seen to make between unchanged sweeps (0 where unknown); it
    raises the limit above the floor. `in_turns`: both sides were measured in the same rounds, so pairs are compared.
    """
    pairs = list(pairs)
    found: list[Change] = []
    tests: list[tuple[int, Comparison]] = []  # index into found
    for pair in pairs:
        whole = status_change(pair)
        if whole is not None:
            limit = limits.of(pair.about, STATUS)
            ignored = limit.ignore or (whole.verdict is Verdict.MISSING and limits.on_missing == "ignore")
            ignored |= not is_guarded(pair.before and pair.before.status, pair.after and pair.after.status)
            found.append(replace(whole, ignored=ignored, reason=also(whole.reason, limit)))
            continue
        for metric in limits.metrics:
            limit = limits.of(pair.about, metric)
            how = METRICS[metric].compare
            if how == "ratio":
                change, comparison = of_ratio(pair, metric, limit, in_turns, fence(pair.key, metric))
                if comparison is not None:
                    tests.append((len(found), comparison))
            else:
                change = of_integers(pair, metric, limit) if how == "exact" else of_bound(pair, metric, limit)
            if change is not None:
                if limit.reason is not None or limit.ignore:
                    change = replace(change, ignored=limit.ignore, reason=also(change.reason, limit))
                found.append(change)
    bounds = {pair.key: (pair.before.bound, pair.after.bound) for pair in pairs if pair.before and pair.after}
    # what is ignored must not change what is not: two families of tests
    for ignored in (False, True):
        family = [(index, comparison) for index, comparison in tests if found[index].ignored is ignored]
        significant = benjamini_hochberg([comparison.p_value for _, comparison in family], limits.q)
        for (index, comparison), is_significant in zip(family, significant, strict=True):
            found[index] = decided(found[index], comparison, is_significant, bounds[found[index].key], limits)
    return screen_order(found)


def screen_order(changes: Iterable[Change]) -> list[Change]:
    """What matters most first."""
    return sorted(changes, key=lambda change: (ORDER.index(change.verdict), -size(change)))


def status_change(pair: Pair) -> Change | None:
    """The verdict on a cell whose figures cannot be compared; None where they can."""
    before, after = pair.before, pair.after
    verdict = verdict_of_statuses(before and before.status, after and after.status)
    if verdict is None:
        return None
    if before is None:
        return whole(pair, verdict, also_said(pair.why, None if after.status == Status.OK else describe(after)))
    if after is None:
        unguarded = None if gives_figures(before.status) else f"it gave no figures before: {describe(before)}"
        return whole(pair, verdict, also_said(pair.why, unguarded))
    if verdict is Verdict.AMBIGUOUS:
        sides = (("before", before), ("now", after))
        return whole(pair, verdict, also_said(*(f"{w} {describe(s)}" for w, s in sides if s.status == Status.NOISY)))
    if before.status == Status.OK:
        return whole(pair, verdict, f"{describe(after)} (ok before)")
    if after.status == Status.OK:
        return whole(pair, verdict, f"ok now (before {describe(before)})")
    said = describe(after) if before.status == after.status else f"{describe(after)} (before {describe(before)})"
    return whole(pair, verdict, f"no figures on either side: {said}" if verdict is Verdict.SAME else said)


def describe(side: Side) -> str:
    return f"{side.status}: {side.reason}" if side.reason else str(side.status)


def whole(pair: Pair, verdict: Verdict, reason: str | None) -> Change:
    return Change(pair.key, pair.name, STATUS, verdict, reason=reason, about=pair.about)


def of_ratio(
    pair: Pair, metric: str, limit: Limit, in_turns: bool, fence: float = 0.0
) -> tuple[Change | None, Comparison | None]:
    """What the test says before the others of the comparison are known; None twice where no side has the metric."""
    before, after, odd = usable(pair, metric)
    counts = max(limit.floor, fence)
    blank = Change(
        pair.key, pair.name, metric, Verdict.AMBIGUOUS, limit=counts, floor=limit.floor, about=pair.about
    )  # fmt: skip
    if not before or not after:
        change = one_sided(blank, before, after, odd)
        return (replace(change, **means(before, after)) if change else None), None
    if min(before.values()) <= 0 or min(after.values()) <= 0:
        change = of_nothing(blank, before, after, limit)
        return replace(change, reason=also_said(change.reason, odd)), None
    if in_turns and len(before.keys() & after.keys()) >= 2:
        comparison = compare_pairs(before, after, counts)
    else:
        comparison = compare(list(before.values()), list(after.values()), counts)
    reason = "one trial on a side tells nothing of the spread" if comparison.p_value is None else None
    change = replace(
        blank, **means(before, after), ratio=comparison.ratio, low=comparison.low, high=comparison.high,
        p_value=comparison.p_value, smallest_slowdown=comparison.smallest_slowdown, reason=also_said(reason, odd),
        error=comparison.error, df=comparison.df,
    )  # fmt: skip
    if limit.least and abs(change.after - change.before) <= limit.least:
        return replace(change, verdict=Verdict.SAME, reason=also_said("too small a difference to matter", odd)), None
    return change, comparison


def of_nothing(blank: Change, before: Mapping[int, float], after: Mapping[int, float], limit: Limit) -> Change:
    """Where a trial has 0 (no graph pool, say) there is no ratio; the difference decides, as of counts."""
    verdict, reason = by_range(before, after, limit.least, METRICS[blank.metric].format)
    return replace(blank, before=max(before.values()), after=max(after.values()), verdict=verdict, reason=reason)


def by_range(
    before: Mapping[int, float], after: Mapping[int, float], least: float, format: Callable[[float], str]
) -> tuple[Verdict, str | None]:
    """Changed is what lies beyond all trials of the other side, by more than `least`."""
    old, new = sorted(before.values()), sorted(after.values())
    if max(old[-1], new[-1]) - min(old[0], new[0]) <= least or (old[0], old[-1]) == (new[0], new[-1]):
        return Verdict.SAME, None
    if new[0] - old[-1] > least:
        return Verdict.SLOWER, None
    if old[0] - new[-1] > least:
        return Verdict.FASTER, None
    ends = [f"{format(side[0])} to {format(side[-1])}" for side in (old, new)]
    return Verdict.AMBIGUOUS, f"its trials differ: {ends[0]} before, {ends[1]} now"


def decided(
    change: Change, comparison: Comparison, significant: bool, bounds: tuple[str | None, str | None], limits: Limits
) -> Change:
    """The verdict, now that it is known which tests are significant among all of them."""
    figures = (comparison.ratio, comparison.low, comparison.high, significant)
    verdict = verdict_of(*figures, change.limit)
    if verdict not in CHANGED and verdict_of(*figures, change.floor) in CHANGED:
        wide = f"{IN_FENCE} of {percent(change.limit)} that earlier sweeps give"
        said = f"beyond the floor of {percent(change.floor)}, but {wide}"
        return replace(change, verdict=Verdict.AMBIGUOUS, reason=also_said(said, change.reason))
    if change.metric in HOST_METRICS and "launch" in bounds and verdict in CHANGED:
        slowdown = verdict is Verdict.SLOWER
        if (comparison.ratio if slowdown else 1 / max(comparison.ratio, 1e-300)) - 1 <= comparison.smallest_slowdown:
            said = f"launch-bound: less than the {comparison.smallest_slowdown:.0%} that these trials can show"
            return replace(change, verdict=Verdict.AMBIGUOUS, reason=also_said(said, change.reason))
    return change if verdict is change.verdict else replace(change, verdict=verdict)


def of_integers(pair: Pair, metric: str, limit: Limit) -> Change | None:
    """Counts: any change counts (beyond `least`, where an exception gives one); where trials of one side disagree, only
    one beyond their range."""
    before, after, odd = usable(pair, metric)
    blank = Change(pair.key, pair.name, metric, Verdict.AMBIGUOUS, limit=0.0, about=pair.about)
    if not before or not after:
        return one_sided(blank, before, after, odd)
    verdict, reason = by_range(before, after, limit.least, "{:.15g}".format)
    old, new = max(before.values()), max(after.values())
    ratio = new / old if old else None
    return replace(blank, verdict=verdict, before=old, after=new, ratio=ratio, reason=also_said(reason, odd))


def of_bound(pair: Pair, metric: str, limit: Limit) -> Change | None:
    """One value a sweep: a factor and an absolute difference, both exceeded."""
    before, after, odd = usable(pair, metric)
    blank = Change(pair.key, pair.name, metric, Verdict.AMBIGUOUS, limit=limit.factor - 1, about=pair.about)
    if not before or not after:
        return one_sided(blank, before, after, odd)
    old, new = max(before.values()), max(after.values())
    verdict = Verdict.SAME
    if abs(new - old) > limit.least and max(new, old) > limit.factor * min(new, old):
        verdict = Verdict.SLOWER if new > old else Verdict.FASTER
    return replace(blank, verdict=verdict, before=old, after=new, ratio=new / old if old else None, reason=odd)


def one_sided(blank: Change, before: Mapping[int, float], after: Mapping[int, float], odd: str | None) -> Change | None:
    """The row of a metric that one side has, with the largest of its figures; None where neither has it, unless there
    were figures that cannot be."""
    if not before and not after:
        return replace(blank, reason=odd) if odd else None
    ends = {"before": max(before.values(), default=None), "after": max(after.values(), default=None)}
    return replace(blank, **ends, reason=also_said(NOT_NOW if before else NOT_BEFORE, odd))


def usable(pair: Pair, metric: str) -> tuple[dict[int, float], dict[int, float], str | None]:
    """The figures of both sides that can be, and what was left out. A time or an energy of 0 cannot be: it was not
    measured; a count or a size of memory can."""
    can_be_zero = METRICS[metric].unit in ("bytes", "")
    sides = []
    odd = []
    for side, when in ((pair.before, "before"), (pair.after, "now")):
        given = {number: value for number, value in side.figures.get(metric, {}).items() if value is not None}
        kept = {
            number: float(value)
            for number, value in given.items()
            if is_number(value) and (value > 0 or (value == 0 and can_be_zero))
        }
        rounds = len(side.figures.get(metric, ()))
        if given and len(given) < rounds:  # a trial that was counted, but not in this: NaN is stored as nothing
            odd.append(f"{rounds - len(given)} of {rounds} trials {when} without this figure")
        if len(kept) < len(given):
            odd.append(f"{len(given) - len(kept)} of {len(given)} figures {when} cannot be: left out")
        sides.append(kept)
    return sides[0], sides[1], "; ".join(odd) or None


def means(before: Mapping[int, float], after: Mapping[int, float]) -> dict[str, float | None]:
    def mean(values: Sequence[float]) -> float | None:
        if not values:
            return None
        return math.exp(log_mean(values).value) if min(values) > 0 else max(values)

    return {"before": mean(list(before.values())), "after": mean(list(after.values()))}


def size(change: Change) -> float:
    """How much it changed, for the order: what the interval is sure of, else the ratio."""
    if change.ratio is None:
        return math.inf if change.metric == STATUS else 0.0
    return abs(math.log(change.ratio)) if change.ratio > 0 else math.inf


def record(change: Change) -> dict[str, Any]:
    """One row under COLUMNS; what is no finite number is None."""
    row = {
        "cell": change.name, "metric": change.metric, "verdict": str(change.verdict), "before": change.before,
        "after": change.after, "ratio": change.ratio, "ci_low": change.low, "ci_high": change.high,
        "p_value": change.p_value, "limit": change.limit, "smallest_slowdown": change.smallest_slowdown,
        "gates": change.gates, "reason": change.reason, "cell_key": change.key,
    }  # fmt: skip
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()}


def also(reason: str | None, limit: Limit) -> str | None:
    """With what an exception says."""
    if limit.reason is None:
        return reason
    said = f"{'ignored' if limit.ignore else 'by exception'}: {limit.reason}"
    return also_said(reason, said)


def also_said(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None
