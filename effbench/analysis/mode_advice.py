"""Which mode to run one model in at one batch size, out of measured results: by the time of a call, or of so many calls
with the preparation that comes before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from effbench.analysis.cost_curve import CALL
from effbench.analysis.row_labels import LabelledRow
from effbench.analysis.statistics import is_less, stored_log_mean
from effbench.analysis.summary import break_even_calls
from effbench.errors import NothingFoundError
from effbench.metrics import INTERVALS

FLOOR = 0.02  # sessions drift by about as much


@dataclass(frozen=True)
class Choice:
    """A mode that may be chosen.

    `prepare_s`: before it is ready, once in a process; `warm`: of a compile cache that was filled, the cold one is
    unknown. `break_even`: calls until that is paid back against the baseline; None: never, or it is the baseline.
    `score_ms`: a call, with its share of the preparation (`share_ms`) where the calls are known.
    """

    mode: str
    call_ms: float
    low_ms: float | None
    high_ms: float | None
    trials: int | None
    prepare_s: float
    warm: bool
    memory_bytes: float | None
    speedup: float | None
    break_even: int | None
    score_ms: float
    share_ms: float


@dataclass(frozen=True)
class ModeAdvice:
    """`ranked`: best first. `close`: those that cannot be told from the best. `excluded`: mode -> why it is out."""

    ranked: list[Choice]
    close: list[str]
    excluded: dict[str, str]
    doubts: list[str] = field(default_factory=list)

    @property
    def best(self) -> Choice:
        return self.ranked[0]


def advise_mode(
    rows: Sequence[LabelledRow],
    metric: str = "latency",
    calls: int | None = None,
    memory_bytes: int | None = None,
    baseline_mode: str = "eager",
) -> ModeAdvice:
    """`rows`: of one case and batch size. `calls`: how many follow one preparation; None: it does not count.
    `memory_bytes`: most peak reserved memory. Raises NothingFoundError where nothing is left."""
    column = CALL[metric]
    excluded: dict[str, str] = {}
    usable = []
    for row in rows:
        source = row.source
        if source["status"] != "ok":
            excluded[row.mode] = f"{source['status']}: {source['reason'] or 'no reason recorded'}"
        elif source.get(column) is None:
            excluded[row.mode] = f"no {metric} was measured"
        elif memory_bytes is not None and source.get("peak_reserved_bytes") is None:
            excluded[row.mode] = "its memory was not measured"
        elif memory_bytes is not None and source["peak_reserved_bytes"] > memory_bytes:
            excluded[row.mode] = "needs more memory than allowed"
        else:
            usable.append(row)
    if not usable:
        reasons = "; ".join(f"{mode} {why}" for mode, why in excluded.items())
        raise NothingFoundError(f"no mode is left: {reasons or 'nothing was measured here'}")
    # the baseline's own time counts also where it is out itself, for its memory
    base = next((row.source for row in rows if row.base_mode == baseline_mode and row.source["status"] == "ok"), None)
    ranked = sorted((choice(row, column, calls, base) for row in usable), key=lambda one: one.score_ms)
    close = [one.mode for one in ranked[1:] if overlap(ranked[0], one)]
    doubts = []
    if any(one.low_ms is None for one in ranked):
        doubts.append(f"some figures have no interval (one trial, or a period): {FLOOR:.0%} decides what is too close")
    if calls is not None and (warm := [one.mode for one in ranked if one.warm]):
        doubts.append(f"only seen with a filled compile cache, a cold start takes longer: {', '.join(warm)}")
    return ModeAdvice(ranked, close, excluded, doubts)


def choice(row: LabelledRow, column: str, calls: int | None, base: dict | None) -> Choice:
    source = row.source
    cold, warm = source.get("compile_cold_s"), source.get("compile_warm_s")
    # what compiles nothing still captures or traces: until the first output is there
    prepare_s = next((value for value in (cold, warm, source.get("first_call_s")) if value is not None), 0.0)
    low, high = (source.get(name) for name in INTERVALS[column])
    share = prepare_s * 1000 / calls if calls else 0.0
    baseline_ms = base and base.get(column)
    is_base = base is source
    return Choice(
        mode=row.mode,
        call_ms=source[column],
        low_ms=low,
        high_ms=high,
        trials=source.get("trials"),
        prepare_s=prepare_s,
        warm=cold is None and warm is not None,
        memory_bytes=source.get("peak_reserved_bytes"),
        speedup=baseline_ms / source[column] if baseline_ms else None,
        break_even=None if is_base or not baseline_ms else break_even_calls(prepare_s, baseline_ms, source[column]),
        score_ms=source[column] + share,
        share_ms=share,
    )


def overlap(best: Choice, other: Choice) -> bool:
    """Return whether `best` is not significantly faster; without intervals, whether they are less than FLOOR apart."""
    if None in (best.low_ms, best.high_ms, other.low_ms, other.high_ms):
        return other.score_ms <= best.score_ms * (1 + FLOOR)
    a, b = (
        stored_log_mean(one.score_ms, one.low_ms + one.share_ms, one.high_ms + one.share_ms, one.trials)
        for one in (best, other)
    )
    return not is_less(a, b)
