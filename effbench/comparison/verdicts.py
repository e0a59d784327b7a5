"""One verdict for every cell and metric of two sides.

Pure: pairs of results go in, `Change` comes out. The rules, in the order in which they apply: a cell that was not
measured on one side is `missing` or `new`; a changed status gives the verdict of `verdict_of_statuses`; otherwise each
metric is compared as `effbench.metrics` declares: `ratio` by Welch's test (or by pairs, if both sides were measured in
the same rounds), Benjamini–Hochberg over all of the comparison that is not ignored, and an effect beyond the limit
(one beyond its floor, but inside a wider noise threshold, is `ambiguous`); `exact` by its integers; `bound` by a factor
and an absolute difference. A metric that only one side has is `ambiguous`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from effbench.cell import Status
from effbench.comparison.limits import Limit, Limits
from effbench.metrics import METRICS, percent
from effbench.stats.intervals import is_number, log_mean
from effbench.stats.significance import FLOOR, compare, compare_pairs, significant
from effbench.store.sides import CellResult


class Verdict(StrEnum):
    """How a cell's figure changed from one side to the other; what matters most first."""

    BROKEN = "broken"  # its status fell a class (CLASSES)
    SLOWER = "slower"
    MISSING = "missing"
    AMBIGUOUS = "ambiguous"  # neither shown nor excluded
    FIXED = "fixed"
    FASTER = "faster"
    NEW = "new"
    SAME = "same"  # a change beyond the floor is excluded


ORDER = tuple(Verdict)
CHANGED = (Verdict.SLOWER, Verdict.FASTER)
#: By these a check fails.
FAILING = (Verdict.SLOWER, Verdict.BROKEN, Verdict.MISSING)
#: Status -> its class, the smaller the better: it works (`noisy`: as its name says, if disturbed); it gives figures,
#: though not of what its name says; it cannot run here, which is an answer; it failed.
CLASSES = {
    Status.OK: 0, Status.NOISY: 0, Status.DEGRADED: 1, Status.OOM: 2, Status.UNSUPPORTED: 2,
    Status.ERROR: 3, Status.TIMEOUT: 3, Status.CRASHED: 3, Status.INCORRECT: 3,
}  # fmt: skip
#: In a launch-bound cell these follow the host, whose processes differ by a fifth and more.
HOST_METRICS = frozenset({"latency_ms", "period_ms", "energy_mj"})
#: A row as plain values (`record`), in exports and in the Python API: column -> attribute of a Change.
COLUMNS = {
    "cell": "name", "metric": "metric", "verdict": "verdict", "before": "before", "after": "after", "ratio": "ratio",
    "ci_low": "low", "ci_high": "high", "p_value": "p_value", "limit": "limit",
    "smallest_slowdown": "smallest_slowdown", "gates": "gates", "reason": "reason", "cell_key": "key",
}  # fmt: skip
#: Why a metric that only one side has is `ambiguous`.
NOT_BEFORE, NOT_NOW = "not measured before", "not measured now"
#: Why a change beyond its floor is `ambiguous`; the reason goes on with the threshold.
IN_NOISE = "inside the noise threshold"
#: The metric of a row about a whole cell.
STATUS = "status"


@dataclass(frozen=True)
class Pair:
    """A cell on both sides; None if that side has no result, and then `why` may give the reason.

    `about`: its model, bs, mode, dtype, phase, device and hardware, which exceptions match.
    """

    key: str
    name: str
    about: Mapping[str, Any]
    before: CellResult | None
    after: CellResult | None
    why: str | None = None


@dataclass(frozen=True)
class Change:
    """The verdict on one metric of one cell (or on its status). Figures in the metric's unit, geometric means over
    trials; `ratio` is after ÷ before, `low` and `high` its 95 % bounds. `limit`: relative change that counts; for a
    ratio its `floor`, or the noise threshold if that is wider. `smallest_slowdown`: detectable in four cases of five;
    `error`, `df`: of the ratio's logarithm. `gates`: a check fails by it."""

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
        """A check would fail by it if it were not ignored."""
        return self.ignored and self.verdict in FAILING

    def because(self, *reasons: str | None, **changes: Any) -> Change:
        """Return it with further reasons and other changes."""
        return replace(self, **changes, reason=joined(self.reason, *reasons))


def judge(
    pairs: Iterable[Pair],
    limits: Limits,
    threshold: Callable[[str, str], float] = lambda key, metric: 0.0,
    interleaved: bool = False,
) -> list[Change]:
    """Return every verdict, what matters most first.

    `threshold`: (cell key, metric) -> relative change seen between unchanged sweeps (0 if unknown); it raises the limit
    above the floor. `interleaved`: both sides were measured in the same rounds, so pairs are compared.
    """
    pairs = list(pairs)
    found: list[Change] = []
    tests: list[int] = []  # indices into found of rows that depend on the other tests
    for pair in pairs:
        if (whole := status_change(pair)) is not None:
            limit = limits.of(pair.about, STATUS)
            ignored = limit.ignore or (whole.verdict is Verdict.MISSING and limits.on_missing == "ignore")
            # a cell without figures is not guarded
            ignored |= pair.after is None and not gives_figures(pair.before.status)
            found.append(whole.because(exception_text(limit), ignored=ignored))
            continue
        for metric in limits.metrics:
            limit = limits.of(pair.about, metric)
            change, is_tested = change_of(pair, metric, limit, interleaved, threshold(pair.key, metric))
            if change is not None:
                tests += [len(found)] if is_tested else []
                if limit.reason is not None or limit.ignore:
                    change = change.because(exception_text(limit), ignored=limit.ignore)
                found.append(change)
    bounds = {pair.key: (pair.before.bound, pair.after.bound) for pair in pairs if pair.before and pair.after}
    # what is ignored must not change what is not: two families of tests
    for ignored in (False, True):
        family = [index for index in tests if found[index].ignored is ignored]
        sure = significant([found[index].p_value for index in family], limits.q)
        for index, is_significant in zip(family, sure, strict=True):
            found[index] = decided(found[index], is_significant, bounds[found[index].key])
    return ordered(found)


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Return what matters most first: by verdict, then by the size of the change."""

    def size(change: Change) -> float:
        if change.ratio is None:
            return math.inf if change.metric == STATUS else 0.0
        return abs(math.log(change.ratio)) if change.ratio > 0 else math.inf

    return sorted(changes, key=lambda change: (ORDER.index(change.verdict), -size(change)))


def counted(changes: Sequence[Change]) -> str:
    """Return `2 slower, 1 broken`, in the order of the rows."""
    return ", ".join(f"{number} {verdict}" for verdict, number in Counter(one.verdict for one in changes).items())


# --- statuses ---


def gives_figures(status: str | None) -> bool:
    """False also for None, a cell that was not measured."""
    return status is not None and Status(status).is_measured


def verdict_of_statuses(before: str | None, now: str | None) -> Verdict | None:
    """Return the verdict on a cell by its statuses (None: not measured); None if its figures are to be compared.

    A cell that fails in another way than before is `same` if it stays in its class or becomes unable to run: nothing
    that anyone relied on is lost. Raises ValueError for an unknown status, and if neither side was measured.
    """
    if before is None or now is None:
        if before is now:
            raise ValueError("a cell that was measured on neither side has no verdict")
        return Verdict.NEW if before is None else Verdict.MISSING
    old, new = CLASSES[Status(before)], CLASSES[Status(now)]
    if new > old:
        return Verdict.BROKEN
    if new < old:
        return Verdict.FIXED if gives_figures(now) else Verdict.SAME
    if not gives_figures(now):
        return Verdict.SAME
    return Verdict.AMBIGUOUS if Status.NOISY in (before, now) else None


def status_change(pair: Pair) -> Change | None:
    """Return the verdict on a cell whose figures cannot be compared; None if they can."""
    before, after = pair.before, pair.after
    verdict = verdict_of_statuses(before and before.status, after and after.status)
    if verdict is None:
        return None
    if before is None:
        reason = joined(pair.why, None if after.status == Status.OK else str(after))
    elif after is None:
        reason = joined(pair.why, None if gives_figures(before.status) else f"it gave no figures before: {before}")
    elif verdict is Verdict.AMBIGUOUS:
        sides = (("before", before), ("now", after))
        reason = joined(*(f"{when} {side}" for when, side in sides if side.status == Status.NOISY))
    elif before.status == Status.OK:
        reason = f"{after} (ok before)"
    elif after.status == Status.OK:
        reason = f"ok now (before {before})"
    else:
        reason = str(after) if before.status == after.status else f"{after} (before {before})"
        reason = f"no figures on either side: {reason}" if verdict is Verdict.SAME else reason
    return Change(pair.key, pair.name, STATUS, verdict, reason=reason, about=pair.about)


# --- figures ---


def change_of(
    pair: Pair, metric: str, limit: Limit, interleaved: bool = False, threshold: float = 0.0
) -> tuple[Change | None, bool]:
    """Return the row of one metric, None if neither side has it; and whether its verdict still depends on the other
    tests of the comparison."""
    before, after, odd = usable(pair, metric)
    how = METRICS[metric].compare
    counts = {"ratio": max(limit.floor, threshold), "exact": 0.0, "bound": limit.factor - 1}[how]
    floor = limit.floor if how == "ratio" else None
    row = Change(pair.key, pair.name, metric, Verdict.AMBIGUOUS, limit=counts, floor=floor, about=pair.about)
    if not before or not after:
        if not before and not after:
            return (replace(row, reason=odd) if odd else None), False
        ends = [largest_or_mean(side, how) if side else None for side in (before, after)]
        reason = joined(NOT_NOW if before else NOT_BEFORE, odd)
        return replace(row, before=ends[0], after=ends[1], reason=reason), False
    old, new = max(before.values()), max(after.values())
    if how == "ratio" and min(*before.values(), *after.values()) > 0:
        return tested(row, before, after, limit, interleaved, odd)
    row = replace(row, before=old, after=new, ratio=new / old if old and how != "ratio" else None, reason=odd)
    if how == "bound":
        # one value a sweep: both a factor and an absolute difference must be exceeded
        changed = abs(new - old) > limit.least and max(new, old) > limit.factor * min(new, old)
        return replace(
            row, verdict=(Verdict.SLOWER if new > old else Verdict.FASTER) if changed else Verdict.SAME
        ), False
    # counts, and sizes of which a trial has 0 (no graph pool, say) so that there is no ratio
    verdict, reason = by_range(
        before, after, limit.least, "{:.15g}".format if floor is None else METRICS[metric].format
    )
    return replace(row, verdict=verdict, reason=joined(reason, odd)), False


def tested(
    row: Change, before: Mapping[int, float], after: Mapping[int, float], limit: Limit, interleaved: bool,
    odd: str | None,
) -> tuple[Change, bool]:  # fmt: skip
    if interleaved and len(before.keys() & after.keys()) >= 2:
        comparison = compare_pairs(before, after, row.limit)
    else:
        comparison = compare(list(before.values()), list(after.values()), row.limit)
    reason = "one trial on a side tells nothing of the spread" if comparison.p_value is None else None
    means = {"before": largest_or_mean(before, "ratio"), "after": largest_or_mean(after, "ratio")}
    row = replace(row, **means, **comparison._asdict(), reason=joined(reason, odd))
    if limit.least and abs(row.after - row.before) <= limit.least:
        return replace(row, verdict=Verdict.SAME, reason=joined("too small a difference to matter", odd)), False
    return row, True


def by_range(
    before: Mapping[int, float], after: Mapping[int, float], least: float, format: Callable[[float], str]
) -> tuple[Verdict, str | None]:
    """A change is beyond all trials of the other side, by more than `least`."""
    old, new = sorted(before.values()), sorted(after.values())
    if max(old[-1], new[-1]) - min(old[0], new[0]) <= least or (old[0], old[-1]) == (new[0], new[-1]):
        return Verdict.SAME, None
    if new[0] - old[-1] > least:
        return Verdict.SLOWER, None
    if old[0] - new[-1] > least:
        return Verdict.FASTER, None
    ends = [f"{format(side[0])} to {format(side[-1])}" for side in (old, new)]
    return Verdict.AMBIGUOUS, f"its trials differ: {ends[0]} before, {ends[1]} now"


def decided(change: Change, is_significant: bool, bounds: tuple[str | None, str | None]) -> Change:
    """Return the row with its verdict, once it is known which of all tests are significant."""
    figures = (change.ratio, change.low, change.high, is_significant)
    verdict = verdict_of(*figures, change.limit)
    if verdict not in CHANGED and verdict_of(*figures, change.floor) in CHANGED:
        wide = f"{IN_NOISE} of {percent(change.limit)} from earlier sweeps"
        said = f"beyond the floor of {percent(change.floor)}, but {wide}"
        return replace(change, verdict=Verdict.AMBIGUOUS, reason=joined(said, change.reason))
    if change.metric in HOST_METRICS and "launch" in bounds and verdict in CHANGED:
        slowdown = verdict is Verdict.SLOWER
        if (change.ratio if slowdown else 1 / max(change.ratio, 1e-300)) - 1 <= change.smallest_slowdown:
            said = f"launch-bound: less than the {change.smallest_slowdown:.0%} that these trials can show"
            return replace(change, verdict=Verdict.AMBIGUOUS, reason=joined(said, change.reason))
    return change if verdict is change.verdict else replace(change, verdict=verdict)


def verdict_of(
    ratio: float, low: float | None, high: float | None, is_significant: bool, floor: float = FLOOR
) -> Verdict:
    """Return the verdict on a ratio after ÷ before with its 95 % bounds.

    `slower` or `faster` if it differs significantly from 1, and by more than `floor`; `same` if the bounds exclude any
    change beyond `floor`; `ambiguous` otherwise, and without bounds.
    """
    if low is None or high is None:
        return Verdict.AMBIGUOUS
    if is_significant and ratio > 1 + floor:
        return Verdict.SLOWER
    if is_significant and ratio < 1 / (1 + floor):
        return Verdict.FASTER
    return Verdict.SAME if low >= 1 / (1 + floor) and high <= 1 + floor else Verdict.AMBIGUOUS


def usable(pair: Pair, metric: str) -> tuple[dict[int, float], dict[int, float], str | None]:
    """Return the possible figures of both sides, and what was omitted. A time or an energy of 0 was not measured; a
    count or a size of memory may be 0."""
    can_be_zero = METRICS[metric].unit in ("bytes", "")
    sides = []
    odd = []
    for side, when in ((pair.before, "before"), (pair.after, "now")):
        every = side.figures.get(metric, {})
        given = {number: value for number, value in every.items() if value is not None}
        kept = {
            number: float(value)
            for number, value in given.items()
            if is_number(value) and (value > 0 or (value == 0 and can_be_zero))
        }
        if given and len(given) < len(every):  # NaN of a counted trial is stored as nothing
            odd.append(f"{len(every) - len(given)} of {len(every)} trials {when} without this figure")
        if len(kept) < len(given):
            odd.append(f"{len(given) - len(kept)} of {len(given)} figures {when} are impossible and omitted")
        sides.append(kept)
    return sides[0], sides[1], "; ".join(odd) or None


def largest_or_mean(figures: Mapping[int, float], how: str) -> float:
    """The geometric mean of what is compared as a ratio, the largest of other figures."""
    values = list(figures.values())
    return math.exp(log_mean(values).value) if how == "ratio" and min(values) > 0 else max(values)


def record(change: Change) -> dict[str, Any]:
    """Return one row under COLUMNS; a number that is not finite is None."""
    row = {column: getattr(change, name) for column, name in COLUMNS.items()} | {"verdict": str(change.verdict)}
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()}


def exception_text(limit: Limit) -> str | None:
    if limit.reason is None:
        return None
    return f"{'ignored' if limit.ignore else 'by exception'}: {limit.reason}"


def joined(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None
