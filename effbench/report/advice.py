"""Advice from measured results: which mode to run for a model at a batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from effbench.cell import Result, Status
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import LabelledRow, flatten, grouped, label_rows
from effbench.metrics import INTERVALS, bounds_of, format_bytes
from effbench.report.reasons import outcome_of, reason
from effbench.report.tables import TIMES, SpeedupRow, is_baseline, least, log_of, speedup_table
from effbench.stats.elimination import CLOSE, Race
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


def is_of_stream(result: Result) -> bool:
    return "stream.name" in flatten(result.params)


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
            f"the sweep has several: {', '.join(map(str, values))}; choose one with {option}"
        )
    return values[0]


def sweep_with(store: Store, model: str, bs: int | None) -> str:
    """Return the id of the completed sweep with most ok results of a model at this batch size
    (None: any) that are not marked, of several that with most ok results, then with most trials, or
    the newest. Raises NothingFoundError without any result of the model."""
    weights: dict[str, tuple[int, ...]] = {}
    for sweep in recorded_here_first(store.sweeps()):
        if sweep.state != "completed":
            continue
        rows = [row for row in store.results(sweep.id) if row.model == model]
        ok = [row for row in rows if row.status is Status.OK]
        if ok:
            weights[sweep.id] = weight_of(ok, bs)
    if not weights:
        raise NothingFoundError(
            f"{store.name} has no ok result of {model} in a completed sweep; omit --stored"
        )
    return max(weights, key=lambda sweep_id: weights[sweep_id])


def weight_of(rows: Sequence[Result], bs: int | None) -> tuple[int, ...]:
    at_size = [row for row in rows if bs in (None, row.bs)]
    unmarked = [row for row in at_size if not row.marked]
    trials = sum(row.trials for row in at_size)
    return len(unmarked), len(at_size), trials, len(rows)


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
    result: Result
    call_ms: float
    score_ms: float
    prepare_s: float
    is_warm: bool
    is_marked: bool
    break_even: int | None
    eliminated: int | None

    @property
    def part_ms(self) -> float:
        """The preparation's part of the score."""
        return self.score_ms - self.call_ms

    @property
    def trials(self) -> int:
        return self.result.trials


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
        if not self.ties or not self.race:
            return False
        return not self.race.is_tie

    @property
    def is_once(self) -> bool:
        """Whether no rival is ruled out, because one round gives no intervals."""
        if not self.ties or self.race:
            return False
        low, _ = INTERVALS[self.question.column]
        return self.ranked[0].result.value(low) is None

    @property
    def is_of_single_trials(self) -> bool:
        """Whether a race was decided after one trial per mode."""
        if not self.race or not self.rivals or self.ties or self.question.calls:
            return False
        return self.ranked[0].trials == 1

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
        tied = [candidate.mode for candidate in (best, *self.ties)]
        names = ", ".join(mode for mode in tied if mode != self.mode.mode)
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
        if self.ties:
            return after
        for rival in self.rivals:
            longer_s = rival.prepare_s - best.prepare_s
            calls = break_even_calls(longer_s, best.call_ms, rival.call_ms)
            if best is self.base:
                calls = rival.break_even  # as the table has it
            is_faster = is_less(log_of(rival.result, column), log_of(best.result, column))
            if calls is not None and calls > 0 and is_faster:
                after[rival.mode] = calls
        return after

    @cached_property
    def table(self) -> dict[str, SpeedupRow]:
        """Quantity (latency, period) -> row of speedups."""
        kept = [row for row in self.rows if row.mode not in self.excluded]
        rows = speedup_table(kept, "speedup", self.question.baseline_mode).rows
        return {row.quantity: row for row in rows}

    def why(self) -> str:
        """Return the baseline's bottleneck, and what the mode changes."""
        first, *_ = self.table.values()
        row = self.table.get(self.question.metric, first)
        tied = [tie.mode for tie in self.ties]
        return reason(replace(row, leader=self.mode.mode, tied=tied))

    def other_winners(self) -> list[str]:
        """Return which modes are best in another quantity: `default wins period`."""
        if self.race:
            return []
        texts = []
        for name, row in self.table.items():
            if row.best and name != self.question.metric:
                texts.append(f"{outcome_of(row)} {name}")
        return texts


def recommend(
    rows: Sequence[LabelledRow], question: Question, race: Race | None = None
) -> Recommendation:
    """Recommend a mode for one case and batch size. Raises NothingFoundError if no mode is left."""
    excluded = exclude(rows, question)
    kept = [row for row in rows if row.mode not in excluded]
    if race and not is_valid(race, kept):
        race = None
    base: Result | None = None
    for row in rows:
        if is_baseline(row, question.baseline_mode) and row.is_ok:
            base = row.result
            break
    candidates = [candidate_of(row, base, question, race) for row in kept]

    def rank(candidate: Candidate) -> tuple[bool, bool, float]:
        is_out = candidate.eliminated is not None and not question.calls
        return is_out, candidate.is_marked, candidate.score_ms

    ranked = sorted(candidates, key=rank)
    ties = ties_of(ranked, question, race)
    return Recommendation(question, rows, ranked, ties, excluded, race)


def exclude(rows: Sequence[LabelledRow], question: Question) -> dict[str, str]:
    """Return the modes that cannot be chosen, and why. Raises NothingFoundError if no mode is
    left."""
    excluded = {}
    for row in rows:
        reason = why_excluded(row.result, question)
        if reason:
            excluded[row.mode] = reason
    if len(excluded) < len(rows):
        return excluded
    texts = []
    for reason, modes in grouped(excluded, lambda mode: excluded[mode]).items():
        texts.append(f"{', '.join(modes)} ({reason})")
    raise NothingFoundError(f"no mode is left: {'; '.join(texts)}")


def is_valid(race: Race, rows: Sequence[LabelledRow]) -> bool:
    """Return whether a race is one of these results. If a round was measured again, the race would
    have gone otherwise with its new figure."""
    for row in rows:
        key = row.result.cell_key
        if key not in race.estimates:
            return False
        if key in race.eliminated and row.result.trials > race.eliminated[key]:
            return False
    return True


def candidate_of(
    row: LabelledRow, base: Result | None, question: Question, race: Race | None
) -> Candidate:
    """Return a row as a candidate. `base`: the baseline's result, None if it failed."""
    result = row.result
    call_ms = result.value(question.column) or 0.0
    cold, warm = result.compile_cold_s, result.compile_warm_s
    # modes that do not compile still capture or trace: use the time to the first output
    times = [cold, warm, result.first_call_s, 0.0]
    prepare_s = next(time for time in times if time is not None)
    score_ms = call_ms
    if question.calls:
        score_ms += 1000 * prepare_s / question.calls
    gain_low, _ = bounds_of(result, TIMES[question.column])
    is_gain = not result.marked and (gain_low is None or gain_low > 1)
    break_even = None
    if is_gain and base is not None and base is not result and not base.marked:
        base_ms = base.value(question.column) or 0.0
        break_even = break_even_calls(prepare_s, base_ms, call_ms)
    return Candidate(
        mode=row.mode,
        result=result,
        call_ms=call_ms,
        score_ms=score_ms,
        prepare_s=prepare_s,
        is_warm=cold is None and warm is not None,
        is_marked=bool(result.marked),
        break_even=break_even,
        eliminated=race.eliminated.get(result.cell_key) if race else None,
    )


def ties_of(ranked: Sequence[Candidate], question: Question, race: Race | None) -> list[Candidate]:
    """Return the candidates whose difference from the first one is not significant."""
    best, *others = ranked
    if best.is_marked:
        return []
    rivals = [candidate for candidate in others if not candidate.is_marked]
    if race and question.calls:
        score = race_score(race, best)
        return [rival for rival in rivals if not is_less(score, race_score(race, rival))]
    if race:
        return [rival for rival in rivals if rival.eliminated is None]
    return ties_by_intervals(best, rivals, question.column)


def ties_by_intervals(best: Candidate, rivals: Sequence[Candidate], column: str) -> list[Candidate]:
    scored = [with_preparation(candidate, column) for candidate in (best, *rivals)]
    _, places = least(scored, column)
    ties = [rivals[place - 1] for place in places]
    # without intervals all tie, but a preparation alone may cost more than all of the best mode
    return [rival for rival in ties if rival.part_ms <= best.score_ms]


def with_preparation(candidate: Candidate, column: str) -> Result:
    """Return the result with its part of the preparation in its time per call."""
    times: dict[str, Any] = {}
    for name in (column, *INTERVALS[column]):
        time_ms = candidate.result.value(name)
        if time_ms is not None:
            times[name] = time_ms + candidate.part_ms
    return replace(candidate.result, **times)


def race_score(race: Race, candidate: Candidate) -> LogEstimate:
    """Return the logarithm of a score; only the time per call makes it uncertain."""
    call = race.estimates[candidate.result.cell_key]
    error = call.error
    if error is not None:
        error *= candidate.call_ms / candidate.score_ms
    return LogEstimate(math.log(candidate.score_ms), error, call.df)


def why_excluded(result: Result, question: Question) -> str | None:
    """Return why a result cannot be chosen, None if it can."""
    limit, memory = question.memory_bytes, result.peak_reserved_bytes
    if result.status is not Status.OK:
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
