"""Every cell and metric of two sweeps against each other: one verdict each, with what it rests on.

Pure: what both sides know of each cell goes in, `Change` comes out. The rules, in the order in which they apply:
a cell that was not measured on one side is `missing` or `new`; one whose status changed is `broken` or `fixed`; of the
rest each metric is compared as `effbench.metrics` declares: `ratio` by Welch's test (or by pairs, where both were
measured in the same rounds), Benjamini–Hochberg over all of the comparison, and an effect beyond the limit; `exact` by
its integers; `bound` by a factor and an absolute difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.analysis.confirm import paired as compare_pairs
from effbench.analysis.limits import Limit, Limits
from effbench.analysis.statistics import geometric_mean
from effbench.analysis.verdicts import Comparison, Verdict, benjamini_hochberg, compare, verdict_of
from effbench.cell import Status
from effbench.metrics import METRICS

#: Of a cell that waits for launches these follow the host, whose processes differ by a fifth and more.
HOST_METRICS = frozenset({"latency_ms", "period_ms", "energy_mj"})
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
    trials; `ratio` is after ÷ before, `low` and `high` its 95 % bounds. `limit`: relative change that counts.
    `smallest_slowdown`: what such trials would have shown in four cases of five; `error`, `df`: of the ratio's
    logarithm. `gates`: a check fails by it."""

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
    about: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def gates(self) -> bool:
        return not self.ignored and self.verdict in (Verdict.SLOWER, Verdict.BROKEN)


def screen(
    pairs: Iterable[Pair],
    limits: Limits,
    fence: Callable[[str, str], float] = lambda key, metric: 0.0,
    in_turns: bool = False,
) -> list[Change]:
    """Every verdict, what matters most first.

    `fence`: relative change that a metric of a cell was seen to make between unchanged sweeps (0 where unknown); it
    raises the floor. `in_turns`: both sides were measured in the same rounds, so pairs are compared.
    """
    pairs = list(pairs)
    found: list[Change] = []
    tests: list[tuple[int, Comparison]] = []  # index into found
    for pair in pairs:
        whole = status_change(pair)
        if whole is not None:
            limit = limits.of(pair.about, STATUS)
            found.append(replace(whole, ignored=limit.ignore, reason=also(whole.reason, limit)))
            continue
        for metric in limits.metrics:
            limit = limits.of(pair.about, metric)
            how = METRICS[metric].compare
            if how == "ratio":
                limit = replace(limit, floor=max(limit.floor, fence(pair.key, metric)))
                change, comparison = of_ratio(pair, metric, limit, in_turns)
                if comparison is not None:
                    tests.append((len(found), comparison))
            else:
                change = of_integers(pair, metric) if how == "exact" else of_bound(pair, metric, limit)
            if change is not None:
                found.append(replace(change, ignored=limit.ignore, reason=also(change.reason, limit)))
    significant = benjamini_hochberg([comparison.p_value for _, comparison in tests], limits.q)
    bounds = {pair.key: (pair.before.bound, pair.after.bound) for pair in pairs if pair.before and pair.after}
    for (index, comparison), is_significant in zip(tests, significant, strict=True):
        found[index] = decided(found[index], comparison, is_significant, bounds[found[index].key], limits)
    return screen_order(found)


def screen_order(changes: Iterable[Change]) -> list[Change]:
    """What matters most first."""
    return sorted(changes, key=lambda change: (ORDER.index(change.verdict), -size(change)))


def status_change(pair: Pair) -> Change | None:
    """The verdict on a cell whose figures cannot be compared; None where they can."""
    before, after = pair.before, pair.after
    if before is None or after is None:
        verdict = Verdict.NEW if before is None else Verdict.MISSING
        return whole(pair, verdict, pair.why)
    comparable = (Status.OK, Status.DEGRADED)
    if before.status == after.status and before.status in comparable:
        return None
    if Status.NOISY in (before.status, after.status):
        side = "before" if before.status == Status.NOISY else "now"
        disturbed = before if side == "before" else after
        return whole(pair, Verdict.AMBIGUOUS, f"{side} {describe(disturbed)}")
    if before.status == Status.OK:
        return whole(pair, Verdict.BROKEN, f"{describe(after)} (ok before)")
    if after.status == Status.OK:
        return whole(pair, Verdict.FIXED, f"ok now (before {describe(before)})")
    said = describe(after) if before.status == after.status else f"{describe(after)} (before {describe(before)})"
    return whole(pair, Verdict.SAME, f"not ok on either side: {said}")


def describe(side: Side) -> str:
    return f"{side.status}: {side.reason}" if side.reason else str(side.status)


def whole(pair: Pair, verdict: Verdict, reason: str | None) -> Change:
    return Change(pair.key, pair.name, STATUS, verdict, reason=reason, about=pair.about)


def of_ratio(pair: Pair, metric: str, limit: Limit, in_turns: bool) -> tuple[Change | None, Comparison | None]:
    """What the test says before the others of the comparison are known; None twice where no side has the metric."""
    before, after, odd = usable(pair, metric)
    blank = Change(pair.key, pair.name, metric, Verdict.AMBIGUOUS, limit=limit.floor, about=pair.about)
    if not before and not after:
        return (replace(blank, reason=odd), None) if odd else (None, None)
    if not before or not after:
        which = "before" if not before else "now"
        return replace(blank, **means(before, after), reason=also_said(f"not measured {which}", odd)), None
    if min(before.values()) <= 0 or min(after.values()) <= 0:
        return replace(of_nothing(blank, before, after, limit), reason=odd or None), None
    if in_turns and len(before.keys() & after.keys()) >= 2:
        comparison = compare_pairs(before, after, limit.floor)
    else:
        comparison = compare(list(before.values()), list(after.values()), limit.floor)
    reason = "one trial on a side tells nothing of the spread" if comparison.p_value is None else None
    names = ("ratio", "low", "high", "p_value", "smallest_slowdown", "error", "df")
    known = {name: getattr(comparison, name) for name in names}
    change = replace(blank, **means(before, after), **known, reason=also_said(reason, odd))
    if limit.least and abs(change.after - change.before) <= limit.least:
        return replace(change, verdict=Verdict.SAME, reason=also_said("too small a difference to matter", odd)), None
    return change, comparison


def of_nothing(blank: Change, before: Mapping[int, float], after: Mapping[int, float], limit: Limit) -> Change:
    """Where a side is 0 (no graph pool, say) there is no ratio; the difference decides."""
    old, new = max(before.values()), max(after.values())
    changed = Verdict.SLOWER if new > old else Verdict.FASTER
    verdict = Verdict.SAME if abs(new - old) <= limit.least else changed
    return replace(blank, before=old, after=new, verdict=verdict)


def decided(
    change: Change, comparison: Comparison, significant: bool, bounds: tuple[str | None, str | None], limits: Limits
) -> Change:
    """The verdict, now that it is known which tests are significant among all of them."""
    verdict = verdict_of(comparison.ratio, comparison.low, comparison.high, significant, change.limit)
    if change.metric in HOST_METRICS and "launch" in bounds and verdict in (Verdict.SLOWER, Verdict.FASTER):
        seen = max(comparison.ratio, 1 / comparison.ratio) - 1
        if seen <= comparison.smallest_slowdown:
            said = f"launch-bound: less than the {comparison.smallest_slowdown:.0%} that these trials can show"
            return replace(change, verdict=Verdict.AMBIGUOUS, reason=also_said(said, change.reason))
    return replace(change, verdict=verdict)


def of_integers(pair: Pair, metric: str) -> Change | None:
    """Counts: any change counts; where trials of one side disagree, only one beyond their range."""
    before, after, odd = usable(pair, metric)
    if not before or not after:
        return None
    old, new = sorted(before.values()), sorted(after.values())
    reason = odd
    if new[0] > old[-1]:
        verdict = Verdict.SLOWER
    elif new[-1] < old[0]:
        verdict = Verdict.FASTER
    elif (old[0], old[-1]) == (new[0], new[-1]):
        verdict = Verdict.SAME
    else:
        verdict = Verdict.AMBIGUOUS
        reason = also_said(f"its trials differ: {old[0]:g} to {old[-1]:g} before, {new[0]:g} to {new[-1]:g} now", odd)
    ratio = new[-1] / old[-1] if old[-1] else None
    return Change(
        pair.key, pair.name, metric, verdict, old[-1], new[-1], ratio, reason=reason, limit=0.0, about=pair.about
    )


def of_bound(pair: Pair, metric: str, limit: Limit) -> Change | None:
    """One value a sweep: a factor and an absolute difference, both exceeded."""
    before, after, odd = usable(pair, metric)
    if not before or not after:
        return None
    old, new = max(before.values()), max(after.values())
    verdict = Verdict.SAME
    if abs(new - old) > limit.least and max(new, old) > limit.factor * min(new, old):
        verdict = Verdict.SLOWER if new > old else Verdict.FASTER
    ratio = new / old if old else None
    return Change(
        pair.key, pair.name, metric, verdict, old, new, ratio, limit=limit.factor - 1, reason=odd, about=pair.about
    )


def usable(pair: Pair, metric: str) -> tuple[dict[int, float], dict[int, float], str | None]:
    """The finite figures of both sides, and what was left out."""
    sides = []
    odd = []
    for side, when in ((pair.before, "before"), (pair.after, "now")):
        given = {number: value for number, value in side.figures.get(metric, {}).items() if value is not None}
        kept = {number: float(value) for number, value in given.items() if math.isfinite(value) and value >= 0}
        if len(kept) < len(given):
            odd.append(f"{len(given) - len(kept)} of {len(given)} figures {when} are no finite number")
        sides.append(kept)
    return sides[0], sides[1], "; ".join(odd) or None


def means(before: Mapping[int, float], after: Mapping[int, float]) -> dict[str, float | None]:
    def mean(values: Sequence[float]) -> float | None:
        if not values:
            return None
        return geometric_mean(values).value if min(values) > 0 else max(values)

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
