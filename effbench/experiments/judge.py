"""Judge claims by what was measured; a claim that the intervals leave open is `undecided`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from effbench.cell import Status
from effbench.experiments.definition import Answer, Claim
from effbench.experiments.facts import Facts
from effbench.experiments.figures import (
    NO_VALUE,
    OPEN,
    TITLES,
    ClaimError,
    Figure,
    Gap,
    NotMeasuredError,
    Outcome,
    as_figure,
    gaps_of,
)
from effbench.experiments.frames import split
from effbench.labels import grouped
from effbench.printable import describe, listed, one_line
from effbench.store.decisions import ClaimVerdict


@dataclass(frozen=True)
class Part:
    """The outcome of a part of the matrix, or of a statement of the claim (`label`; empty for all),
    and the figure to show."""

    label: str
    outcome: Outcome
    value: Figure | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict, the reason, the figure over all rows, and the parts. `also`: further figures."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    value: Figure | None = None
    parts: Sequence[Part] = ()
    also: Mapping[str, Any] = field(default_factory=dict)


def judge(claim: Claim, inputs: Mapping[str, Any]) -> Judgement:
    """Judge a claim by the inputs of its function: name -> DataFrame of rows, or Facts. Raises
    ClaimError if the function fails or uses something that does not exist."""
    if claim.not_measurable:
        return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, claim.not_measurable)
    frames = {}
    absences = []
    for name, value in inputs.items():
        if isinstance(value, Facts):
            absences.append(value.absence)
        elif value.empty:
            return unmeasured(claim, "no row was measured")
        else:
            frames[name] = value
    if not frames and all(absences):
        return unmeasured(claim, absences[0])
    if not claim.axes:
        answer = call(claim, inputs)
        return judge_parts(claim, answer, parts_of(answer, ""))
    answer = Answer(None)
    with suppress(ClaimError):  # interval() finds one row in each part, but several in all
        answer = call(claim, inputs)
    parts = []
    ((name, frame),) = frames.items()
    for label, rows in split(frame, claim.axes):
        parts += parts_of(call(claim, {**inputs, name: rows}), label)
    return judge_parts(claim, answer, parts)


def judge_parts(claim: Claim, answer: Answer, parts: Sequence[Part]) -> Judgement:
    """Judge a claim by its parts. A part of the matrix without measurements is omitted; a statement
    without measurements stays open."""
    figures = [part.outcome.figure for part in parts]
    gaps = gaps_of(figure for figure in figures if figure is not None)
    measured = [part for part in parts if part.outcome.is_measured]
    if measured:
        if claim.axes:
            parts = measured
        verdict = verdict_of([part.outcome.holds for part in parts])
        reason = reason_of(verdict, parts) + text_of_gaps(gaps)
        return Judgement(claim, verdict, reason, value_of(answer), parts, answer.also)
    statuses = {gap.status for gap in gaps}
    if statuses == {Status.UNSUPPORTED}:
        return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, one_line(gaps[0].reason))
    why = parts[0].outcome.why if parts else "no part of the matrix was measured"
    return unmeasured(claim, why + text_of_gaps(gaps))


def unmeasured(claim: Claim, reason: str) -> Judgement:
    verdict = ClaimVerdict.NOT_MEASURED
    if reason.startswith(Status.UNSUPPORTED):
        verdict = ClaimVerdict.NOT_MEASURABLE
    return Judgement(claim, verdict, reason)


def verdict_of(outcomes: Sequence[bool | None]) -> ClaimVerdict:
    if True in outcomes and False in outcomes:
        return ClaimVerdict.DEPENDS
    if None in outcomes:
        return ClaimVerdict.UNDECIDED
    if True in outcomes:
        return ClaimVerdict.CONFIRMED
    return ClaimVerdict.REFUTED


def reason_of(verdict: ClaimVerdict, parts: Sequence[Part]) -> str:
    """Return where the claim holds and where it does not."""
    if len(parts) == 1 and not parts[0].label:
        words = {ClaimVerdict.CONFIRMED: "holds", ClaimVerdict.REFUTED: "does not hold"}
        return words.get(verdict, parts[0].outcome.why)
    separator = ", "
    if any(separator in part.label for part in parts):
        separator = " · "
    groups = grouped(parts, lambda part: part.outcome.title)
    texts = []
    for title in TITLES:
        group = groups.get(title)
        if group:
            labels = listed([part.label for part in group], 6, separator)
            why = group[0].outcome.why
            because = "" if why in ("", OPEN) else f" ({why})"
            texts.append(f"{title} {labels}{because}")
    return "; ".join(texts)


def text_of_gaps(gaps: Sequence[Gap]) -> str:
    """Return the names of rows that are left out, and the reason of the first one."""
    if not gaps:
        return ""
    names = listed([f"{gap.name} {gap.status}" for gap in gaps], 3)
    return f"; left out: {names} ({one_line(gaps[0].reason)})"


# --- what the claim's function answers ---


def call(claim: Claim, inputs: Mapping[str, Any]) -> Answer:
    assert claim.function is not None
    try:
        result = claim.function(**inputs)
    except NotMeasuredError as error:
        return Answer(Outcome(None, str(error)))
    except ClaimError:
        raise
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        raise ClaimError(f"its function raised {describe(error)}") from error
    if not isinstance(result, Answer):
        outcome = outcome_of(result)
        return Answer(outcome, outcome.figure)
    if not isinstance(result.also, Mapping):
        raise ClaimError(f"also: expected text -> figure, got {one_line(repr(result.also), 80)}")
    return result


def parts_of(answer: Answer, label: str) -> list[Part]:
    if isinstance(answer.holds, Mapping):
        where = f": {label}" if label else ""
        return [Part(text + where, outcome_of(holds)) for text, holds in answer.holds.items()]
    outcome = outcome_of(answer.holds)
    value = value_of(answer)
    if value is None and answer.value is not None and outcome.holds is not None:
        # a comparison with NaN is false, but decides nothing
        outcome = Outcome(None, "its figure was not measured")
    return [Part(label, outcome, value)]


def outcome_of(value: Any) -> Outcome:
    """Return a comparison, a bool or None (not measured) as an outcome. Raises ClaimError."""
    if isinstance(value, Outcome):
        return value
    if isinstance(value, Figure) and value.is_missing:
        return Outcome(None, value.why, value)
    if value is None:
        return Outcome(None, NO_VALUE)
    if type(value).__name__ in ("bool", "bool_"):  # bool_ is NumPy's
        return Outcome(bool(value))
    raise ClaimError(
        "expected a comparison such as figure.above(1), a bool or None, got"
        f" {one_line(repr(value), 80)}"
    )


def value_of(answer: Answer) -> Figure | None:
    value = as_figure(answer.value)
    if value.is_missing:
        return None
    return value


# --- JSON ---


def bounds(value: Figure | None) -> dict[str, float]:
    if value is None:
        return {}
    return {"value": value.value, "low": value.low, "high": value.high}


def as_json(value: Any) -> Any:
    """Return figures and facts for JSON; an unknown bound becomes None."""
    if isinstance(value, Figure):
        return as_json(value.value if value.is_exact else bounds(value))
    if hasattr(value, "tolist"):  # NumPy and pandas
        return as_json(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return str(value)
