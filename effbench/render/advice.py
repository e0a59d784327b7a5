"""Advice from measured results: which mode to run for a model at a batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from effbench.analysis.winners import log_of
from effbench.core.cell import Result, Status
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import LabelledRow, flatten, grouped, label_rows
from effbench.core.metrics import INTERVALS, format_bytes
from effbench.render.reasons import reason_of
from effbench.render.tables import TIMES
from effbench.stats.intervals import LogEstimate, is_less
from effbench.store.summary import break_even_calls
from effbench.store.sweeps import recorded_here_first

if TYPE_CHECKING:
    from effbench.store.store import Store

#: Metric, as users type it -> column with the time per call.
CALL = {"latency": "latency_ms", "period": "period_ms"}


# --- the results that answer ---


def rows_of_case(rows: Iterable[Result], model: str | None) -> list[LabelledRow]:
    """Return the rows of one model, except streams. `model`: its name, or with other swept
    parameters `mlp · dtype=float32`. Raises NothingFoundError if no row matches, UsageError if
    several models do."""
    rows = list(rows)
    if not rows:
        raise NothingFoundError("this sweep has no results yet")
    labelled = label_rows(row for row in rows if not is_of_stream(row))
    by_case = grouped(labelled, lambda row: row.case)
    named = [row.case for row in labelled if model in (None, row.case, row.labels["model"])]
    if not named:
        known = ", ".join(by_case)
        known = known or "none with a fixed batch size; run a sweep without stream, as in bs=1,8,64"
        raise NothingFoundError(
            f"no result of {model or 'any model'} in this sweep; measured models: {known}"
        )
    return by_case[the_only(list(dict.fromkeys(named)), "--model")]


def is_of_stream(row: Result) -> bool:
    return "stream.name" in flatten(row.params)


def rows_at(
    rows: Iterable[Result], model: str | None = None, bs: int | None = None
) -> list[LabelledRow]:
    """Return the rows of a model at a batch size, each by default the only one. Raises like
    `rows_of_case`."""
    case = rows_of_case(rows, model)
    sizes = sorted({row.labels["bs"] for row in case})
    if bs is None:
        bs = the_only(sizes, "--bs")
    if bs not in sizes:
        raise NothingFoundError(f"bs={bs} was not measured; measured: {', '.join(map(str, sizes))}")
    return [row for row in case if row.labels["bs"] == bs]


def the_only(values: Sequence[Any], option: str) -> Any:
    """Return the only value. Raises UsageError if there are several."""
    if len(values) > 1:
        raise UsageError(
            f"the sweep has several values of {option.removeprefix('--')}:"
            f" {', '.join(map(str, values))}; choose one with {option}"
        )
    return values[0]


def sweep_with(store: Store, model: str, bs: int | None) -> str:
    """Return the id of the completed sweep with most ok results of a model at this batch size
    (None: any) that are not marked; of several that with most trials, then with most ok results,
    then the newest. Raises NothingFoundError without any result of the model."""
    weights: dict[str, tuple[int, ...]] = {}
    for sweep in recorded_here_first(store.sweeps()):
        if sweep.state != "completed":
            continue
        ok = [
            row for row in store.results(sweep.id) if row.model == model and row.status == Status.OK
        ]
        at_size = [row for row in ok if bs in (None, row.bs)]
        if ok:
            unmarked = sum(not row.marked for row in at_size)
            trials = sum(row.trials for row in at_size)
            weights[sweep.id] = unmarked, trials, len(ok)
    if not weights:
        raise NothingFoundError(
            f"{store.name} has no ok result of {model} in a completed sweep; omit --stored"
        )
    return max(weights, key=lambda sweep_id: weights[sweep_id])


# --- the mode ---


@dataclass(frozen=True)
class Question:
    """What counts. `metric`: latency or period. `calls`: number of calls per preparation; None
    ignores preparation. `memory_bytes`: limit of peak reserved memory."""

    metric: str = "latency"
    calls: int | None = None
    memory_bytes: int | None = None

    @property
    def column(self) -> str:
        return CALL[self.metric]


@dataclass(frozen=True)
class Candidate:
    """A mode that may be recommended.

    `call_ms`: its time per call; `score_ms`: with its part of the preparation, and `score` its
    logarithm. `prepare_s`: time until the mode is ready (`is_warm`: with a filled compile cache).
    `break_even`: calls until the preparation pays back; None if it never does. Figures of a
    disturbed host are marked: they come last and tie with none.
    """

    mode: str
    result: Result
    call_ms: float
    score_ms: float
    score: LogEstimate
    prepare_s: float
    is_warm: bool
    break_even: int | None

    @property
    def is_marked(self) -> bool:
        return bool(self.result.marked)


@dataclass(frozen=True)
class Recommendation:
    """The best mode and its rivals. `ranked`: the best score first. `ties`: modes whose difference
    from the best is not significant. `are_alike`: it is known that they tie; otherwise one of them
    may be faster. `excluded`: mode -> reason."""

    question: Question
    rows: Sequence[LabelledRow]
    ranked: Sequence[Candidate]
    ties: Sequence[Candidate]
    are_alike: bool
    excluded: Mapping[str, str]

    @property
    def base(self) -> Candidate | None:
        """The baseline, unless it is excluded."""
        for candidate in self.ranked:
            if candidate.result.is_baseline:
                return candidate
        return None

    @property
    def mode(self) -> Candidate:
        """The recommended mode: of modes that tie, the one with the shortest preparation; the
        fastest one if it is not known whether they tie."""
        if not self.are_alike:
            return self.ranked[0]
        alike = [self.ranked[0], *self.ties]
        return min(alike, key=lambda candidate: candidate.prepare_s)

    def because(self) -> str:
        """Return the reason for the recommended mode, as the end of a sentence."""
        text = f"lowest {self.question.metric}"
        if self.question.calls:
            text += f" over {self.question.calls:,} calls including preparation"
        tied = [candidate.mode for candidate in (self.ranked[0], *self.ties)]
        others = ", ".join(mode for mode in tied if mode != self.mode.mode)
        if not self.ties:
            return text
        if self.are_alike:
            return f"no significant winner: ties with {others}, and has the shortest preparation"
        return f"{text}, but too few rounds to rule out {others}"

    def why(self) -> str:
        """Return the baseline's bottleneck, and what the mode changes."""
        if self.base is None:
            return ""
        winners = [self.mode.result, *(tie.result for tie in self.ties)]
        return reason_of(self.base.result, winners, TIMES[self.question.column])


def recommend(rows: Sequence[LabelledRow], question: Question) -> Recommendation:
    """Recommend a mode for one case and batch size. Raises NothingFoundError if no mode is left."""
    excluded = exclude(rows, question)
    kept = [row for row in rows if row.mode not in excluded]
    base = base_of(rows)
    candidates = [candidate_of(row, base, question) for row in kept]
    ranked = sorted(candidates, key=lambda candidate: (candidate.is_marked, candidate.score_ms))
    are_alike = ranked[0].score.error is not None
    return Recommendation(question, rows, ranked, ties_of(ranked), are_alike, excluded)


def base_of(rows: Sequence[LabelledRow]) -> Result | None:
    """Return the baseline's result, None if it failed."""
    for row in rows:
        if row.is_ok and row.result.is_baseline:
            return row.result
    return None


def exclude(rows: Sequence[LabelledRow], question: Question) -> dict[str, str]:
    """Return the modes that cannot be chosen, and why. Raises NothingFoundError if no mode is
    left."""
    excluded = {}
    for row in rows:
        why = why_excluded(row.result, question)
        if why:
            excluded[row.mode] = why
    if len(excluded) < len(rows):
        return excluded
    texts = []
    for why, modes in grouped(excluded, lambda mode: excluded[mode]).items():
        texts.append(f"{', '.join(modes)} ({why})")
    raise NothingFoundError(f"no mode is left: {'; '.join(texts)}")


def why_excluded(result: Result, question: Question) -> str | None:
    """Return why a result cannot be chosen, None if it can."""
    limit, memory = question.memory_bytes, result.peak_reserved_bytes
    if result.status != Status.OK:
        return f"{result.status}: {result.reason or 'no reason recorded'}"
    if result.value(question.column) is None:
        return f"no {question.metric} was measured"
    if limit is None:
        return None
    if memory is None:
        return "its memory was not measured (CUDA only); omit --memory"
    if memory > limit:
        return f"needs {format_bytes(memory)} of memory, more than allowed"
    return None


def candidate_of(row: LabelledRow, base: Result | None, question: Question) -> Candidate:
    """Return a row as a candidate. `base`: the baseline's result, None if it failed."""
    result = row.result
    call_ms = result.value(question.column)
    assert call_ms is not None, "excluded otherwise"
    cold, warm = result.compile_cold_s, result.compile_warm_s
    # modes that do not compile still capture or trace: use the time to the first output
    times = [time for time in (cold, warm, result.first_call_s, 0.0) if time is not None]
    score_ms = call_ms
    if question.calls:
        score_ms += 1000 * times[0] / question.calls
    call = log_of(result, question.column)
    error = call.error
    if error is not None:  # only the time per call is uncertain
        error *= call_ms / score_ms
    return Candidate(
        mode=row.mode,
        result=result,
        call_ms=call_ms,
        score_ms=score_ms,
        score=LogEstimate(math.log(score_ms), error, call.df),
        prepare_s=times[0],
        is_warm=cold is None and warm is not None,
        break_even=break_even_of(result, base, question.column, times[0]),
    )


def break_even_of(result: Result, base: Result | None, column: str, prepare_s: float) -> int | None:
    """Return the calls until the preparation pays back against the baseline; None if it never
    does, or one of them is marked."""
    if base is None or result is base or base.marked or result.marked:
        return None
    gain_low = result.value(INTERVALS[TIMES[column]][0])
    if gain_low is not None and gain_low <= 1:
        return None
    return break_even_calls(prepare_s, base.value(column) or 0.0, result.value(column) or 0.0)


def ties_of(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates whose difference from the first one is not significant."""
    best, *others = ranked
    rivals = [candidate for candidate in others if not candidate.is_marked]
    if best.is_marked:
        return []
    # without intervals all tie, but a preparation alone may cost more than all of the best mode
    return [
        rival
        for rival in rivals
        if rival.score_ms - rival.call_ms <= best.score_ms and not is_less(best.score, rival.score)
    ]
