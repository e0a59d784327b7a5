"""Judge claims by what was measured; a claim that the intervals leave open is `undecided`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from effbench.claims.definition import Answer, Claim
from effbench.claims.facts import ClaimFacts
from effbench.claims.figures import (
    NO_VALUE,
    OPEN,
    Figure,
    NotMeasuredError,
    Statement,
    as_figure,
    gaps_of,
)
from effbench.claims.frames import split
from effbench.core.cell import Status
from effbench.core.printable import listed, one_line
from effbench.store.decisions import ClaimVerdict


@dataclass(frozen=True)
class Part:
    """A statement about a part of the matrix, or one of several statements of the claim (`label`;
    empty for all), and the figure to show."""

    label: str
    statement: Statement
    value: Figure | None = None

    @property
    def title(self) -> str:
        """The words before the label in the reason of a verdict."""
        if not self.statement.is_measured:
            return "not measured for"
        return {True: "holds for", False: "not for", None: "open for"}[self.statement.holds]


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
    """Judge a claim by the inputs of its function: name -> DataFrame of rows, or ClaimFacts.

    Raises what the function raises, and TypeError if its answer cannot be read.
    """
    if claim.not_measurable:
        return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, claim.not_measurable)
    frames = {}
    absences = []
    for name, value in inputs.items():
        if isinstance(value, ClaimFacts):
            absences.append(value.absence)
        else:
            frames[name] = value
    if any(frame.empty for frame in frames.values()):
        return unmeasured(claim, "no row was measured")
    if not frames and all(absences):
        return unmeasured(claim, absences[0])
    if not claim.axes:
        answer = answer_of(claim, inputs)
        return judge_parts(claim, answer, parts_of(answer, ""))
    answer = Answer(None)
    with suppress(ValueError):  # interval() finds one row in each part, but several in all
        answer = answer_of(claim, inputs)
    ((name, frame),) = frames.items()
    parts = []
    for label, rows in split(frame, claim.axes):
        inputs_of_part = {**inputs, name: rows}
        parts += parts_of(answer_of(claim, inputs_of_part), label)
    return judge_parts(claim, answer, parts)


def judge_parts(claim: Claim, answer: Answer, parts: Sequence[Part]) -> Judgement:
    """Judge a claim by its parts. A part of the matrix without measurements is omitted; a statement
    without measurements stays open."""
    figures = [part.statement.figure for part in parts if part.statement.figure is not None]
    measured = [part for part in parts if part.statement.is_measured]
    if not parts:
        return unmeasured(claim, "no row was measured")
    if not measured:
        return unmeasured(claim, parts[0].statement.why)
    if claim.axes:
        parts = measured
    verdict = verdict_of([part.statement.holds for part in parts])
    reason = reason_of(verdict, parts)
    left_out = [gap for gap in gaps_of(figures) if gap not in reason]
    if left_out:
        reason += f"; left out: {listed(left_out, 3)}"
    return Judgement(claim, verdict, one_line(reason), value_of(answer), parts, answer.also)


def unmeasured(claim: Claim, reason: str) -> Judgement:
    verdict = ClaimVerdict.NOT_MEASURED
    if reason.startswith(Status.UNSUPPORTED):
        verdict = ClaimVerdict.NOT_MEASURABLE
    return Judgement(claim, verdict, one_line(reason))


def verdict_of(holds: Sequence[bool | None]) -> ClaimVerdict:
    if True in holds and False in holds:
        return ClaimVerdict.DEPENDS
    if None in holds:
        return ClaimVerdict.UNDECIDED
    if True in holds:
        return ClaimVerdict.CONFIRMED
    return ClaimVerdict.REFUTED


def reason_of(verdict: ClaimVerdict, parts: Sequence[Part]) -> str:
    """Return where the claim holds and where it does not."""
    if len(parts) == 1 and not parts[0].label:
        words = {ClaimVerdict.CONFIRMED: "holds", ClaimVerdict.REFUTED: "does not hold"}
        return words.get(verdict, parts[0].statement.why)
    separator = ", "
    if any(separator in part.label for part in parts):
        separator = " · "
    texts = []
    for title in ("holds for", "not for", "open for", "not measured for"):
        group = [part for part in parts if part.title == title]
        if group:
            labels = listed([part.label for part in group], 6, separator)
            text = f"{title} {labels}"
            why = group[0].statement.why
            if why not in ("", OPEN):
                text += f" ({why})"
            texts.append(text)
    return "; ".join(texts)


# --- what the claim's function answers ---


def answer_of(claim: Claim, inputs: Mapping[str, Any]) -> Answer:
    assert claim.function is not None
    try:
        result = claim.function(**inputs)
    except NotMeasuredError as error:
        return Answer(Statement(None, str(error)))
    if isinstance(result, Answer):
        return result
    statement = statement_of(result)
    return Answer(statement, statement.figure)


def parts_of(answer: Answer, label: str) -> list[Part]:
    if isinstance(answer.holds, Mapping):
        where = f": {label}" if label else ""
        parts = []
        for text, held in answer.holds.items():
            parts.append(Part(text + where, statement_of(held)))
        return parts
    statement = statement_of(answer.holds)
    value = value_of(answer)
    if value is None and answer.value is not None and statement.holds is not None:
        # a comparison with NaN is false, but decides nothing
        statement = Statement(None, "its figure was not measured")
    return [Part(label, statement, value)]


def statement_of(value: Any) -> Statement:
    """Return a comparison, a bool or None (not measured) as a statement. Raises TypeError."""
    if isinstance(value, Statement):
        return value
    if isinstance(value, Figure) and value.is_missing:
        return Statement(None, value.why_missing, value)
    if value is None:
        return Statement(None, NO_VALUE)
    if type(value).__name__ in ("bool", "bool_"):  # bool_ is NumPy's
        return Statement(bool(value))
    raise TypeError(
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
        if value.low < value.high:
            return as_json(bounds(value))
        return as_json(value.value)
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
