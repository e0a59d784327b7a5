"""Which mode should a model run in at a batch size, by measured results? `recommend` ranks the
modes, `Recommendation.chosen` chooses among those that tie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from effbench.analysis.winners import log_of
from effbench.core.cell import Result, Status
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import LabelledResult, flatten, grouped, label_rows
from effbench.core.metrics import METRICS, SPEEDUPS, bounds_of
from effbench.core.quantities import format_bytes
from effbench.stats.intervals import LogEstimate, is_less
from effbench.store.summary import break_even_calls
from effbench.store.sweeps import recorded_here_first

if TYPE_CHECKING:
    from effbench.store.store import Store

Value = TypeVar("Value")
#: The time per call that counts, as users type it (`latency` or `period`) -> its speedup.
QUANTITIES = {METRICS[time].title: speedup for speedup, time in SPEEDUPS.items()}


# --- the results that answer ---


def rows_at(
    rows: Iterable[Result], model: str | None = None, bs: int | None = None
) -> list[LabelledResult]:
    """Return the rows of a model at a batch size, each by default the only one, except streams.
    `model`: its name, or with other swept parameters `mlp · dtype=float32`. Raises
    NothingFoundError if no row matches, UsageError if several models or sizes do."""
    rows = list(rows)
    if not rows:
        raise NothingFoundError("this sweep has no results yet")
    labelled = label_rows(row for row in rows if "stream.name" not in flatten(row.params))
    by_case = grouped(labelled, lambda row: row.case)
    named = [row.case for row in labelled if model in (None, row.case, row.labels["model"])]
    if not named:
        known = ", ".join(by_case)
        if not known:
            known = "none with a fixed batch size; run a sweep without stream, as in bs=1,8,64"
        raise NothingFoundError(
            f"no result of {model or 'any model'} in this sweep; measured models: {known}"
        )
    by_size = grouped(by_case[the_only(named, "model")], lambda row: row.bs)
    if bs is None:
        bs = the_only(by_size, "bs")
    if bs not in by_size:
        sizes = ", ".join(map(str, by_size))
        raise NothingFoundError(f"bs={bs} was not measured; measured: {sizes}")
    return by_size[bs]


def the_only(values: Iterable[Value], name: str) -> Value:
    """Return the only distinct value. Raises UsageError if there are several."""
    first, *others = dict.fromkeys(values)
    if others:
        known = ", ".join(map(str, (first, *others)))
        raise UsageError(
            f"the sweep has several values of {name}: {known}; choose one with --{name}"
        )
    return first


def sweep_with(store: Store, model: str, bs: int | None) -> str:
    """Return the id of the completed sweep with most ok results of a model at this batch size
    (None: any) that are not marked; of several that with most trials, then the newest. Raises
    NothingFoundError without any result of the model."""
    weights = {}
    for sweep in recorded_here_first(store.sweeps()):
        if sweep.state != "completed":
            continue
        rows = [row for row in store.results(sweep.id) if row.model == model]
        ok = [row for row in rows if row.status is Status.OK]
        if ok:
            weights[sweep.id] = weight_of(ok, bs)
    if not weights:
        raise NothingFoundError(
            f"{store.name} has no ok result of {model} in a completed sweep;"
            f" `effbench advise mode {model}` measures it"
        )
    return max(weights, key=weights.__getitem__)


def weight_of(rows: Iterable[Result], bs: int | None) -> tuple[int, int]:
    """Return what ranks a sweep with these rows: its unmarked ones at this batch size (None: any),
    then their trials."""
    unmarked = 0
    trials = 0
    for row in rows:
        if bs in (None, row.bs):
            unmarked += not row.marked
            trials += row.trials
    return unmarked, trials


# --- the mode ---


@dataclass(frozen=True)
class Question:
    """What counts. `quantity`: a key of QUANTITIES. `calls`: number of calls per preparation; None
    ignores preparation. `memory_bytes`: limit of peak reserved memory."""

    quantity: str = "latency"
    calls: int | None = None
    memory_bytes: int | None = None

    @property
    def speedup(self) -> str:
        return QUANTITIES[self.quantity]

    @property
    def time(self) -> str:
        """The metric with the time per call."""
        return SPEEDUPS[self.speedup]


@dataclass(frozen=True)
class Candidate:
    """A mode that may be recommended."""

    result: LabelledResult
    question: Question

    @property
    def mode(self) -> str:
        return self.result.mode_label

    @property
    def is_marked(self) -> bool:
        """Whether its figures come from a disturbed host: then it comes last and ties with none."""
        return bool(self.result.marked)

    @property
    def call_ms(self) -> float:
        return self.result.value(self.question.time) or 0.0

    @property
    def is_warm(self) -> bool:
        """Whether its preparation is known only with a filled compile cache."""
        return self.result.compile_cold_s is None and self.result.compile_warm_s is not None

    @property
    def prepare_s(self) -> float:
        """The time until the mode is ready. Modes that do not compile still capture or trace: for
        them it is the time to the first output. In a fresh process it is the cold start."""
        result = self.result
        compile_s = (result.compile_cold_s, result.compile_warm_s)
        for seconds in (result.cold_s, *compile_s, result.first_call_s):
            if seconds is not None:
                return seconds
        return 0.0

    @property
    def score_ms(self) -> float:
        """The time per call with its part of the preparation."""
        if not self.question.calls:
            return self.call_ms
        return self.call_ms + 1000 * self.prepare_s / self.question.calls

    @property
    def score(self) -> LogEstimate:
        """The logarithm of the score; only the time per call is uncertain."""
        call = log_of(self.result, self.question.time)
        error = call.error
        if error is not None:
            error *= self.call_ms / self.score_ms
        return LogEstimate(math.log(self.score_ms), error, call.df)


@dataclass(frozen=True)
class Recommendation:
    """The best mode and its rivals. `ranked`: the best score first. `ties`: modes whose difference
    from the best is not significant. `excluded`: mode -> reason."""

    question: Question
    ranked: Sequence[Candidate]
    ties: Sequence[Candidate]
    excluded: Mapping[str, str]

    @property
    def reference(self) -> Candidate | None:
        """The reference mode, unless it is excluded."""
        for candidate in self.ranked:
            if candidate.result.is_baseline:
                return candidate
        return None

    @property
    def are_alike(self) -> bool:
        """Whether it is known that the ties tie; otherwise one of them may be faster."""
        return self.ranked[0].score.error is not None

    @property
    def chosen(self) -> Candidate:
        """The recommended mode: of modes that tie, the one with the shortest preparation; the
        fastest one if it is not known whether they tie."""
        if not self.are_alike:
            return self.ranked[0]
        return min(
            [self.ranked[0], *self.ties],
            key=lambda candidate: candidate.prepare_s,
        )

    def break_even(self, candidate: Candidate) -> int | None:
        """Return the calls until a preparation pays back against the reference mode; None if it
        never does, if that is not significant, or if one of the two is marked."""
        reference = self.reference
        if reference is None or candidate is reference:
            return None
        if reference.is_marked or candidate.is_marked:
            return None
        least_gain, _ = bounds_of(candidate.result, self.question.speedup)
        if least_gain is not None and least_gain <= 1:
            return None
        preparation_s = candidate.prepare_s
        if candidate.result.cold_s is not None:  # the reference has a cold start, too
            preparation_s = max(0.0, preparation_s - reference.prepare_s)
        return break_even_calls(preparation_s, reference.call_ms, candidate.call_ms)


def recommend(rows: Sequence[LabelledResult], question: Question) -> Recommendation:
    """Recommend a mode for one case and batch size. Raises NothingFoundError if no mode is left."""
    candidates = []
    excluded = {}
    for row in rows:
        why = why_excluded(row, question)
        if why is None:
            candidates.append(Candidate(row, question))
        else:
            excluded[row.mode_label] = why
    if not candidates:
        texts = [f"{mode} ({why})" for mode, why in excluded.items()]
        raise NothingFoundError(f"no mode is left: {', '.join(texts)}")
    best, *others = sorted(
        candidates, key=lambda candidate: (candidate.is_marked, candidate.score_ms)
    )
    return Recommendation(
        question,
        [best, *others],
        [candidate for candidate in others if is_tie(best, candidate)],
        excluded,
    )


def why_excluded(result: Result, question: Question) -> str | None:
    """Return why a result cannot be chosen, None if it can."""
    limit = question.memory_bytes
    memory = result.peak_reserved_bytes
    if result.status is not Status.OK:
        return f"{result.status}: {result.reason or 'no reason recorded'}"
    if result.value(question.time) is None:
        return f"no {question.quantity} was measured"
    if limit is None:
        return None
    if memory is None:
        return "its memory was not measured (CUDA only); omit --memory"
    if memory > limit:
        return f"needs {format_bytes(memory)} of memory, more than allowed"
    return None


def is_tie(best: Candidate, other: Candidate) -> bool:
    """Return whether a candidate may be as good as the best one."""
    if best.is_marked or other.is_marked:
        return False
    # without intervals all tie, but a preparation alone may cost more than all of the best mode
    preparation_ms = other.score_ms - other.call_ms
    return preparation_ms <= best.score_ms and not is_less(best.score, other.score)
