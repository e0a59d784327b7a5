"""Advice as a sentence with its evidence: which mode to run, and which batch sizes to capture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from effbench.analysis.advice import Candidate, Question, Recommendation
from effbench.analysis.capture_lists import CaptureList, Costs, Trace
from effbench.core.labels import ABSENT
from effbench.core.metrics import METRICS, SPEEDUPS, percent
from effbench.core.printable import one_line
from effbench.core.table import Column, Shown, Table
from effbench.render.marks import Estimate
from effbench.render.reasons import reason_of

milliseconds = METRICS["latency_ms"].format
MEASURE_AGAIN = "measure again when the machine is quiet"


@dataclass
class Advice:
    """The answer in one sentence, a table, further lines, and the same content for JSON."""

    answer: str
    table: Table
    lines: list[str]
    data: dict[str, Any]


# --- which mode ---


def mode_advice(advice: Recommendation) -> Advice:
    """Return a recommendation with its evidence."""
    question, chosen, base = advice.question, advice.chosen, advice.base
    case, bs = chosen.row.case, chosen.result.bs
    marked = {
        candidate.mode: candidate.result.disturbance
        for candidate in advice.ranked
        if candidate.is_marked
    }
    answer = sentence(advice, list(marked))
    why = ""
    if base is not None:
        winners = [chosen.result, *(tie.result for tie in advice.ties)]
        why = reason_of(base.result, winners, question.speedup)
    lines = [f"excluded: {mode} ({text})" for mode, text in advice.excluded.items()]
    if why:
        lines.insert(0, f"why: {why}")
    table = modes_table(advice)
    data = {
        "answer": answer,
        "mode": chosen.mode,
        "why": why,
        "model": case,
        "bs": bs,
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
    question, chosen, base = advice.question, advice.chosen, advice.base
    clauses = [f"preparation takes {seconds(chosen.prepare_s)}", because(advice)]
    speedup = Estimate.of(chosen.result, question.speedup)
    if base is not None and base is not chosen and speedup.value is not None:
        text = speedup.text
        if speedup.interval:
            text += f" ({speedup.interval}×)"
        clauses.insert(0, f"{text} the speed of {base.mode} in {question.quantity}")
    if chosen.is_marked:
        clauses.append(f"its figure is marked (host disturbed); {MEASURE_AGAIN}")
    elif marked:
        names = ", ".join(marked)
        clauses.append(f"not compared, because the host was disturbed: {names}; {MEASURE_AGAIN}")
    where = f"{chosen.row.case} at bs {chosen.result.bs}"
    return f"Run {where} with {chosen.mode}: {'; '.join(clauses)}."


def because(advice: Recommendation) -> str:
    """Return the reason for the recommended mode, as the end of a sentence."""
    question = advice.question
    text = f"lowest {question.quantity}"
    if question.calls:
        text += f" over {question.calls:,} calls including preparation"
    if not advice.ties:
        return text
    tied = [candidate.mode for candidate in (advice.ranked[0], *advice.ties)]
    others = ", ".join(mode for mode in tied if mode != advice.chosen.mode)
    if advice.are_alike:
        return f"no significant winner: ties with {others}, and has the shortest preparation"
    return f"{text}, but too few rounds to rule out {others}"


def modes_table(advice: Recommendation) -> Table:
    """Return a table of the modes, the best first."""
    question = advice.question

    def estimate(candidate: Candidate, metric: str) -> Shown:
        return Estimate.of(candidate.result, metric).shown

    def speedup(candidate: Candidate, metric: str) -> Shown:
        return estimate(candidate, metric)._replace(sub="")

    def preparation(candidate: Candidate) -> Shown:
        text = seconds(candidate.prepare_s)
        if candidate.is_warm:
            text += " (warm)"
        return Shown(candidate.prepare_s, text)

    call = partial(estimate, metric=question.time)
    columns = [
        Column("mode", value=attrgetter("mode")),
        Column("call_ms", f"{question.quantity} per call", numeric=True, value=call),
    ]
    if question.calls:
        title = f"per call with preparation ({question.calls:,} calls)"
        score = attrgetter("score_ms")
        columns.append(Column("score_ms", title, numeric=True, format=milliseconds, value=score))
    for metric in SPEEDUPS:
        value = partial(speedup, metric=metric)
        title = METRICS[metric].title
        columns.append(Column(metric, title, numeric=True, optional=True, value=value))
    calls, memory = METRICS["break_even_calls"].format, METRICS["peak_reserved_bytes"].format
    pays_back, reserved = advice.break_even, attrgetter("result.peak_reserved_bytes")
    columns += [
        Column("prepare_s", "preparation", numeric=True, value=preparation),
        Column("break_even", "pays back after", numeric=True, format=calls, value=pays_back),
        Column("memory_bytes", "memory", numeric=True, format=memory, value=reserved),
        Column("trials", "rounds", numeric=True, value=attrgetter("result.trials")),
    ]
    return Table(columns, advice.ranked)


def seconds(value: float) -> str:
    if value < 0.001:
        return "< 1 ms"
    return f"{value:.2g} s"


# --- which batch sizes ---


def lists_advice(
    best: CaptureList,
    others: Sequence[CaptureList],
    trace: Trace,
    costs: Costs,
    question: Question,
) -> Advice:
    """Return the best capture list with others for comparison."""
    answer = "capture nothing: calls without a graph are fastest"
    if best.sizes:
        answer = f"capture: {best.sizes}"
    calls = f"{sum(trace.values())} calls of {min(trace)} to {max(trace)} rows"
    lines = [f"{costs.case}, {costs.mode}; {calls}"]
    if costs.marked:
        sizes = ", ".join(map(str, sorted(costs.marked)))
        lines.append(f"marked (host disturbed): bs {one_line(sizes, 80)}; {MEASURE_AGAIN}")
    if best.unmeasured:
        lines.append(f"not measured, estimated from other sizes: {one_line(best.unmeasured, 80)}")
    data = {
        "model": costs.case,
        "mode": costs.mode,
        "metric": question.quantity,
        "advised": asdict(best),
        "others": [asdict(other) for other in others],
    }
    return Advice(answer, lists_table([best, *others], question), lines, data)


def lists_table(lists: Sequence[CaptureList], question: Question) -> Table:
    """Return a table of capture lists; the first one is the advised one."""
    best_ms = lists[0].latency_ms or math.nan

    def ratio(option: CaptureList) -> str:
        if option.latency_ms is None:
            return ABSENT
        return f"{option.latency_ms / best_ms:.3f}×"

    def padding(option: CaptureList) -> str:
        if option.padding_waste is None:
            return ABSENT
        return percent(option.padding_waste)

    def memory(option: CaptureList) -> str:
        text = METRICS["graph_pool_bytes"].format(option.memory_bytes)
        limit = question.memory_bytes
        if limit is not None and (option.memory_bytes or 0) > limit:
            text += ", over budget"
        return text

    call, without = attrgetter("latency_ms"), attrgetter("fallbacks")
    title = f"{question.quantity} per call"
    columns = [
        Column("name", "capture list", value=attrgetter("name")),
        Column("graphs", numeric=True, value=lambda option: len(option.sizes)),
        Column("call", title, numeric=True, format=milliseconds, value=call),
        Column("ratio", "relative to advised", numeric=True, value=ratio),
        Column("padding", numeric=True, value=padding),
        Column("fallbacks", "without a graph", numeric=True, format=percent, value=without),
        Column("memory", numeric=True, value=memory),
    ]
    return Table(columns, lists)
