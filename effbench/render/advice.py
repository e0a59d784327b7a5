"""Advice as a sentence with its evidence: which mode to run, measured or predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from effbench.analysis.advice import Candidate, Recommendation
from effbench.analysis.predict import Predictions
from effbench.core.images import in_images
from effbench.core.labels import LabelledResult
from effbench.core.metrics import METRICS, SPEEDUPS, why_marked
from effbench.core.table import Column, Record, Shown, Table
from effbench.render.marks import Estimate
from effbench.render.reasons import reason_of

#: How far to trust predictions.
LEFT_OUT = (
    "nothing was compiled: this assumes no graph breaks; for networks left out of the fit, such"
    " intervals held 80 % of the speedups"
)
MEASURE_AGAIN = "measure again when the machine is quiet"


@dataclass
class Advice:
    """The answer in one sentence, a table, further lines, and the same content for JSON."""

    answer: str
    table: Table
    lines: list[str]
    data: dict[str, Any]


def mode_advice(advice: Recommendation) -> Advice:
    """Return a recommendation with its evidence."""
    question, chosen, reference = advice.question, advice.chosen, advice.reference
    marked = {
        candidate.mode: candidate.result.disturbance
        for candidate in advice.ranked
        if candidate.is_marked
    }
    why = ""
    if reference is not None:
        winners = [chosen.result, *(tie.result for tie in advice.ties)]
        why = reason_of(reference.result, winners, question.speedup)
    lines = [f"excluded: {mode} ({text})" for mode, text in advice.excluded.items()]
    if why:
        lines.insert(0, f"why: {why}")
    table = modes_table(advice)
    answer = sentence(advice, list(marked))
    data = {
        "answer": answer,
        "mode": chosen.mode,
        "why": why,
        "model": chosen.result.case,
        "bs": chosen.result.bs,
        "metric": question.quantity,
        "calls": question.calls,
        "modes": table.records(),
        "too_close_to_call": [candidate.mode for candidate in advice.ties],
        "excluded": advice.excluded,
        "marked": marked,
    }
    return Advice(answer, table, lines, data)


def sentence(advice: Recommendation, marked: list[str]) -> str:
    """Return the recommendation in one sentence. `marked`: the modes with marked figures."""
    question, chosen, reference = advice.question, advice.chosen, advice.reference
    clauses = [f"preparation takes {seconds(chosen.prepare_s)}", because(advice)]
    speedup = Estimate.of(chosen.result, question.speedup)
    if reference is not None and reference is not chosen and speedup.value is not None:
        text = f"{speedup.shown.line} the speed of {reference.mode} in {question.quantity}"
        clauses.insert(0, text)
    if chosen.is_marked:
        clauses.append(f"its figure is marked (host disturbed); {MEASURE_AGAIN}")
    elif marked:
        names = ", ".join(marked)
        clauses.append(f"not compared, because the host was disturbed: {names}; {MEASURE_AGAIN}")
    where = f"{chosen.result.case} at bs {chosen.result.bs}"
    return f"Run {where} with {chosen.mode}: {'; '.join(clauses)}."


def because(advice: Recommendation) -> str:
    """Return the reason for the recommended mode, as the end of a sentence."""
    question = advice.question
    text = f"lowest {question.quantity}"
    if question.calls:
        text += f" over {question.calls:,} calls including preparation"
    tied = [candidate.mode for candidate in (advice.ranked[0], *advice.ties)]
    others = ", ".join(mode for mode in tied if mode != advice.chosen.mode)
    if advice.ties and advice.are_alike:
        return f"no significant winner: ties with {others}, and has the shortest preparation"
    if advice.ties:
        return f"{text}, but too few rounds to rule out {others}"
    return text


def modes_table(advice: Recommendation) -> Table:
    """Return a table of the modes, the best first."""
    question = advice.question
    columns = [
        Column("mode"),
        Column("call_ms", f"{question.quantity} per call", numeric=True),
    ]
    if question.calls:
        title = f"per call with preparation ({question.calls:,} calls)"
        columns.append(Column("score_ms", title, numeric=True))
    for metric in SPEEDUPS:
        columns.append(Column(metric, METRICS[metric].title, numeric=True, optional=True))
    columns += [
        Column("prepare_s", "preparation", numeric=True),
        Column("break_even", "pays back after", numeric=True),
        Column("memory_bytes", "memory", numeric=True),
        Column("trials", "rounds", numeric=True),
    ]
    return Table(columns, [row_of(advice, candidate) for candidate in advice.ranked])


def row_of(advice: Recommendation, candidate: Candidate) -> Record:
    """Return a row of the table of modes."""
    result = candidate.result
    preparation = seconds(candidate.prepare_s)
    if candidate.is_warm:
        preparation += " (warm)"
    calls = advice.break_even(candidate)
    paid = formatted("break_even_calls", calls)
    speedups = {metric: Estimate.of(result, metric).shown for metric in SPEEDUPS}
    return {
        "mode": candidate.mode,
        "call_ms": Estimate.of(result, advice.question.time).shown,
        "score_ms": formatted("latency_ms", candidate.score_ms),
        **{metric: speedup._replace(details="") for metric, speedup in speedups.items()},
        "prepare_s": Shown(candidate.prepare_s, preparation),
        "break_even": paid._replace(text=paid.text + in_images(result, calls)),
        "memory_bytes": formatted("peak_reserved_bytes", result.peak_reserved_bytes),
        "trials": result.trials,
    }


def formatted(metric: str, value: float | None) -> Shown:
    """Return a value in the format of a metric."""
    return Shown(value, METRICS[metric].format(value))


def seconds(value: float) -> str:
    if value < 0.001:
        return "< 1 ms"
    return f"{value:.2g} s"


def prediction_advice(eager: LabelledResult, predictions: Predictions) -> Advice:
    """Return the predictions from a result in eager."""
    mark = why_marked(eager, "latency_ms")
    rows = []
    for mode in predictions.ranked:
        speedup = Estimate("speedup", mode.speedup, mode.low, mode.high, mark).shown
        rows.append((mode.mode, formatted("latency_ms", mode.latency_ms), speedup))
    columns = [Column("mode"), Column("latency", numeric=True), Column("speedup", numeric=True)]
    table = Table.of(columns, rows)
    first, _, speedup = rows[0]
    answer = (
        f"{eager.case} at bs {eager.bs}: {first} is predicted to have {speedup.line} the speed of"
        " eager in latency"
    )
    if predictions.rivals:
        names = ", ".join(rival.mode for rival in predictions.rivals)
        answer += f"; {names} may be faster"
    lines = [f"not predicted: {mode} ({why})" for mode, why in predictions.unsure.items()]
    lines.append(LEFT_OUT)
    if mark:
        lines.append(f"~: {mark}; {MEASURE_AGAIN}")
    data = {"answer": answer, "modes": table.records(), "not_predicted": predictions.unsure}
    return Advice(f"{answer}.", table, lines, data)
