"""Advice from measured results: which mode to run for a model at a batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from effbench.cell import Status
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import LabelledRow, flatten, grouped, label_rows
from effbench.metrics import INTERVALS, format_bytes
from effbench.report.reasons import outcome_of, reason
from effbench.report.tables import TIMES, Row, is_baseline, least, log_of, speedup_table
from effbench.stats.elimination import CLOSE, Race
from effbench.stats.intervals import LogEstimate, is_less
from effbench.store.summary import break_even_calls
from effbench.store.sweeps import recorded_here_first

if TYPE_CHECKING:
    from effbench.store.store import Store

#: Metric, as users type it -> column with the time per call.
CALL = {"latency": "latency_ms", "period": "period_ms"}


# --- the results that answer ---


def rows_of_case(rows: Iterable[Mapping[str, Any]], model: str | None) -> list[LabelledRow]:
    """Return the rows of one model, except streams. `model`: its name, or with other swept
    parameters `mlp · dtype=float32`. Raises NothingFoundError if no row matches, UsageError if
    several models do."""
    rows = list(rows)
    if not rows:
        raise NothingFoundError("this sweep has no results yet")
    fixed = [row for row in rows if "stream.name" not in flatten(row.get("params") or {})]
    labelled = label_rows(fixed)
    named = [row for row in labelled if model in (None, row.case, row.labels["model"])]
    if not named:
        known = ", ".join(dict.fromkeys(row.case for row in labelled))
        known = known or "none with a fixed batch size; run a sweep without stream, as in bs=1,8,64"
        raise NothingFoundError(
            f"no result of {model or 'any model'} in this sweep; measured models: {known}"
        )
    case = the_only(list(dict.fromkeys(row.case for row in named)), "--model")
    return [row for row in labelled if row.case == case]


def rows_at(
    rows: Iterable[Mapping[str, Any]], model: str | None = None, bs: int | None = None
) -> list[LabelledRow]:
    """Return the rows of a model at a batch size, each by default the only one. Raises like
    `rows_of_case`."""
    case = rows_of_case(rows, model)
    sizes = sorted({row.labels["bs"] for row in case})
    bs = the_only(sizes, "--bs") if bs is None else bs
    if bs not in sizes:
        raise NothingFoundError(f"bs={bs} was not measured; measured: {', '.join(map(str, sizes))}")
    return [row for row in case if row.labels["bs"] == bs]


def the_only(values: Sequence[Any], option: str) -> Any:
    """Return the only value. Raises UsageError if there are several."""
    if len(values) > 1:
        raise UsageError(
            f"the sweep has several: {', '.join(map(str, values))}; choose one with {option}"
        )
    return values[0]


def sweep_with(store: Store, model: str, bs: int | None) -> str:
    """Return the id of the completed sweep with most ok results of a model at this batch size
    (None: any) that are not marked, of several that with most ok results, then with most trials, or
    the newest. Raises NothingFoundError without any result of the model."""
    weights: dict[str, tuple[int, ...]] = {}
    for sweep in recorded_here_first(store.sweeps()):
        rows = [row for row in store.results(sweep.id) if row["model"] == model]
        ok = [row for row in rows if row["status"] == Status.OK]
        if sweep.state == "completed" and ok:
            at_size = [row for row in ok if bs in (None, row["bs"])]
            unmarked = [row for row in at_size if not row["marked"]]
            trials = sum(row["trials"] for row in at_size)
            weights[sweep.id] = (len(unmarked), len(at_size), trials, len(ok))
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
    baseline_mode: str = "eager"

    @property
    def column(self) -> str:
        return CALL[self.metric]


@dataclass(frozen=True)
class Candidate:
    """A mode that may be recommended.

    `call_ms`: its time per call; `score_ms`: with its part of the preparation. `prepare_s`: time
    until the mode is ready (`is_warm`: with a filled compile cache). `break_even`: calls until the
    preparation pays back; None if it never does. `eliminated`: the round after which a race left it
    out. Figures of a disturbed host are marked: they come last and tie with none.
    """

    mode: str
    source: Mapping[str, Any]
    call_ms: float
    score_ms: float
    prepare_s: float
    is_warm: bool
    is_marked: bool
    break_even: int | None
    eliminated: int | None

    @property
    def trials(self) -> int:
        trials: int = self.source["trials"]
        return trials


@dataclass(frozen=True)
class Recommendation:
    """The best mode and its rivals. `ranked`: the best score first. `ties`: modes whose difference
    from the best is not significant. `excluded`: mode -> reason. `race`: of these results, if there
    was one."""

    question: Question
    rows: Sequence[LabelledRow]
    ranked: Sequence[Candidate]
    ties: Sequence[Candidate]
    excluded: Mapping[str, str]
    race: Race | None

    @property
    def base(self) -> Candidate | None:
        """The baseline, unless it is excluded."""
        mode = self.question.baseline_mode
        return next((candidate for candidate in self.ranked if candidate.mode == mode), None)

    @property
    def rivals(self) -> list[Candidate]:
        """The other modes that were compared with the best one."""
        return [candidate for candidate in self.ranked[1:] if not candidate.is_marked]

    @property
    def is_open(self) -> bool:
        """Whether a race ended before all rivals were ruled out."""
        return bool(self.ties) and self.race is not None and not self.race.is_tie

    @property
    def is_once(self) -> bool:
        """Whether no rival is ruled out, because one round gives no intervals."""
        low = INTERVALS[self.question.column][0]
        return bool(self.ties) and self.race is None and self.ranked[0].source.get(low) is None

    @property
    def is_of_single_trials(self) -> bool:
        """Whether a race was decided after one trial per mode."""
        is_single = self.race is not None and self.ranked[0].trials == 1
        return is_single and bool(self.rivals) and not (self.ties or self.question.calls)

    @property
    def mode(self) -> Candidate:
        """The recommended mode: of modes that tie, the one with the shortest preparation; the
        fastest one if it is not known whether they tie."""
        best = self.ranked[0]
        if self.is_open or self.is_once:
            return best
        return min([best, *self.ties], key=lambda candidate: candidate.prepare_s)

    def because(self) -> str:
        """Return the reason for the recommended mode, as the end of a sentence."""
        question, best = self.question, self.ranked[0]
        lowest = f"lowest {question.metric}"
        if question.calls:
            lowest += f" over {question.calls:,} calls including preparation"
        tied = [candidate.mode for candidate in (best, *self.ties) if candidate is not self.mode]
        names = ", ".join(tied)
        if self.is_once:
            return f"{lowest} in one round, which gives no intervals: {names} may be as fast"
        if self.is_open:
            # stricter than a 95 % interval, because several modes and rounds are compared
            rounds = "one trial each does" if best.trials == 1 else f"{best.trials} rounds do"
            return f"{lowest}, but {rounds} not rule out {names}{self.bound()}"
        if self.ties:
            return f"no significant winner: ties with {names}, and has the shortest preparation"
        if self.is_of_single_trials:
            least = min(rival.call_ms for rival in self.rivals) / best.call_ms
            lowest += f" in one trial per mode; all others took at least {least:.2f} times as long"
        return lowest

    def bound(self) -> str:
        """Return how much faster than the best mode a rival may be, if a race is over. It knows
        neither the preparation nor a limit of memory."""
        question = self.question
        is_limited = question.calls is not None or question.memory_bytes is not None
        if self.race is None or not self.race.is_over or is_limited:
            return ""
        return f": at most {100 * (CLOSE - 1):.0f} % higher, with 95 % confidence"

    def pays_back(self) -> dict[str, int]:
        """Return mode -> number of calls from which on it beats the best one: its preparation is
        longer, but each call is significantly faster."""
        best, column = self.ranked[0], self.question.column
        after: dict[str, int] = {}
        for rival in () if self.ties else self.rivals:
            longer_s = rival.prepare_s - best.prepare_s
            calls = break_even_calls(longer_s, best.call_ms, rival.call_ms)
            if best is self.base:
                calls = rival.break_even  # as the table has it
            is_faster = is_less(log_of(rival.source, column), log_of(best.source, column))
            if calls is not None and calls > 0 and is_faster:
                after[rival.mode] = calls
        return after

    @cached_property
    def table(self) -> dict[str, Row]:
        """Quantity (latency, period) -> row of speedups."""
        kept = [row for row in self.rows if row.mode not in self.excluded]
        rows = speedup_table(kept, "speedup", self.question.baseline_mode).rows
        return {row.quantity: row for row in rows}

    def why(self) -> str:
        """Return the baseline's bottleneck, and what the mode changes."""
        row = self.table.get(self.question.metric, next(iter(self.table.values())))
        return reason(replace(row, leader=self.mode.mode, tied=[tie.mode for tie in self.ties]))

    def other_winners(self) -> list[str]:
        """Return which modes are best in another quantity: `default wins period`."""
        if self.race:
            return []
        others = {name: row for name, row in self.table.items() if name != self.question.metric}
        return [f"{outcome_of(row)} {name}" for name, row in others.items() if row.best]


def recommend(
    rows: Sequence[LabelledRow], question: Question, race: Race | None = None
) -> Recommendation:
    """Recommend a mode for one case and batch size. Raises NothingFoundError if no mode is left."""
    reasons = {row.mode: why_excluded(row.source, question) for row in rows}
    excluded = {mode: text for mode, text in reasons.items() if text}
    if len(excluded) == len(rows):
        modes = grouped(excluded, lambda mode: excluded[mode])
        lost = "; ".join(f"{', '.join(names)} ({text})" for text, names in modes.items())
        raise NothingFoundError(f"no mode is left: {lost}")
    ok = [row for row in rows if row.source["status"] == Status.OK]
    bases = [row.source for row in ok if is_baseline(row, question.baseline_mode)]
    kept = [row for row in rows if row.mode not in excluded]
    if race and not is_valid(race, kept):
        race = None
    candidates = [candidate_of(row, [*bases, {}][0], question, race) for row in kept]

    def rank(candidate: Candidate) -> tuple[bool, bool, float]:
        is_out = candidate.eliminated is not None and not question.calls
        return is_out, candidate.is_marked, candidate.score_ms

    ranked = sorted(candidates, key=rank)
    ties = ties_of(ranked, question, race)
    return Recommendation(question, rows, ranked, ties, excluded, race)


def is_valid(race: Race, rows: Sequence[LabelledRow]) -> bool:
    """Return whether a race is one of these results. If a round was measured again, the race would
    have gone otherwise with its new figure."""
    trials = {row.source["cell_key"]: row.source["trials"] for row in rows}
    is_known = trials.keys() <= race.estimates.keys()
    return is_known and all(trials.get(key, 0) <= n for key, n in race.eliminated.items())


def candidate_of(
    row: LabelledRow, base: Mapping[str, Any], question: Question, race: Race | None
) -> Candidate:
    """Return a row as a candidate. `base`: the baseline's result, empty if it failed."""
    source, column = row.source, question.column
    cold, warm = source.get("compile_cold_s"), source.get("compile_warm_s")
    # modes that do not compile still capture or trace: use the time to the first output
    known = [value for value in (cold, warm, source.get("first_call_s")) if value is not None]
    prepare_s, call_ms = [*known, 0.0][0], source[column]
    gain_low = source.get(INTERVALS[TIMES[column]][0])
    is_slower = gain_low is not None and gain_low <= 1
    break_even = None
    if source is not base and not (is_slower or source.get("marked") or base.get("marked")):
        break_even = break_even_calls(prepare_s, base.get(column) or 0.0, call_ms)
    return Candidate(
        mode=row.mode,
        source=source,
        call_ms=call_ms,
        score_ms=call_ms + (1000 * prepare_s / question.calls if question.calls else 0.0),
        prepare_s=prepare_s,
        is_warm=cold is None and warm is not None,
        is_marked=bool(source.get("marked")),
        break_even=break_even,
        eliminated=race.eliminated.get(source["cell_key"]) if race else None,
    )


def ties_of(ranked: Sequence[Candidate], question: Question, race: Race | None) -> list[Candidate]:
    """Return the candidates whose difference from the first one is not significant."""
    best, *others = ranked
    rivals = [candidate for candidate in others if not (candidate.is_marked or best.is_marked)]
    if race and question.calls:
        best_score = race_score(race, best)
        return [rival for rival in rivals if not is_less(best_score, race_score(race, rival))]
    if race:
        return [rival for rival in rivals if rival.eliminated is None]
    scored = [with_preparation(candidate, question.column) for candidate in (best, *rivals)]
    _, tied = least(scored, question.column)
    ties = [rivals[place - 1] for place in tied]
    # without intervals all tie, but a preparation alone may cost more than all of the best mode
    return [rival for rival in ties if rival.score_ms - rival.call_ms <= best.score_ms]


def with_preparation(candidate: Candidate, column: str) -> dict[str, Any]:
    """Return the result with its part of the preparation in its time per call."""
    source, more_ms = dict(candidate.source), candidate.score_ms - candidate.call_ms
    for name in (column, *INTERVALS[column]):
        if source.get(name) is not None:
            source[name] += more_ms
    return source


def race_score(race: Race, candidate: Candidate) -> LogEstimate:
    """Return the logarithm of a score; only the time per call makes it uncertain."""
    call, score_ms = race.estimates[candidate.source["cell_key"]], candidate.score_ms
    error = None if call.error is None else call.error * candidate.call_ms / score_ms
    return LogEstimate(math.log(score_ms), error, call.df)


def why_excluded(source: Mapping[str, Any], question: Question) -> str | None:
    """Return why a result cannot be chosen, None if it can."""
    limit, memory = question.memory_bytes, source.get("peak_reserved_bytes")
    if source["status"] != Status.OK:
        return f"{source['status']}: {source['reason'] or 'no reason recorded'}"
    if source.get(question.column) is None:
        return f"no {question.metric} was measured"
    if limit is not None and memory is None:
        return "its memory was not measured (CUDA only); omit --memory"
    if limit is not None and memory > limit:
        return f"needs {format_bytes(memory)} of memory, more than allowed"
    return None
