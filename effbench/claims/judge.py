"""Judge claims by what was measured; a claim that the intervals leave open is `undecided`."""

from __future__ import annotations

import json
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
from effbench.core.labels import grouped
from effbench.core.printable import listed, one_line
from effbench.store.decisions import ClaimVerdict

NO_ROW = "no row was measured"
#: What a statement is -> the words before the labels of such parts in a reason.
TITLES = {True: "holds for", False: "not for", None: "open for"}
UNMEASURED = "not measured for"
#: The same for a claim of one statement; otherwise the statement says why.
ALONE = {True: "holds", False: "does not hold"}


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
        if self.statement.is_measured:
            return TITLES[self.statement.holds]
        return UNMEASURED


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
    absences = [absence_of(value) for value in inputs.values()]
    if NO_ROW in absences:
        return unmeasured(claim, NO_ROW)
    if all(absences):
        return unmeasured(claim, absences[0])
    if not claim.axes:
        answer = answer_of(claim, inputs)
        return judge_parts(claim, answer, parts_of(answer, ""))
    answer = Answer(None)
    with suppress(ValueError):  # interval() finds one row in each part, but several in all
        answer = answer_of(claim, inputs)
    (name,) = [name for name, value in inputs.items() if not isinstance(value, ClaimFacts)]
    parts = []
    for label, rows in split(inputs[name], claim.axes):
        parts += parts_of(answer_of(claim, {**inputs, name: rows}), label)
    return judge_parts(claim, answer, parts)


def absence_of(value: Any) -> str:
    """Return why an input of a claim has nothing to judge by; empty if it has."""
    if isinstance(value, ClaimFacts):
        return value.absence
    return NO_ROW if value.empty else ""


def judge_parts(claim: Claim, answer: Answer, parts: Sequence[Part]) -> Judgement:
    """Judge a claim by its parts. A part of the matrix without measurements is omitted; a statement
    without measurements stays open."""
    measured = [part for part in parts if part.statement.is_measured]
    if not parts:
        return unmeasured(claim, NO_ROW)
    if not measured:
        return unmeasured(claim, parts[0].statement.why)
    gaps = gaps_of(part.statement.figure for part in parts if part.statement.figure is not None)
    if claim.axes:
        parts = measured
    reason = reason_of(parts)
    left_out = [gap for gap in gaps if gap not in reason]
    if left_out:
        reason += f"; left out: {listed(left_out, 3)}"
    verdict = verdict_of({part.statement.holds for part in parts})
    return Judgement(claim, verdict, one_line(reason), value_of(answer), parts, answer.also)


def unmeasured(claim: Claim, reason: str) -> Judgement:
    verdict = ClaimVerdict.NOT_MEASURED
    if reason.startswith(Status.UNSUPPORTED):
        verdict = ClaimVerdict.NOT_MEASURABLE
    return Judgement(claim, verdict, one_line(reason))


def verdict_of(outcomes: set[bool | None]) -> ClaimVerdict:
    if {True, False} <= outcomes:
        return ClaimVerdict.DEPENDS
    if None in outcomes:
        return ClaimVerdict.UNDECIDED
    if True in outcomes:
        return ClaimVerdict.CONFIRMED
    return ClaimVerdict.REFUTED


def reason_of(parts: Sequence[Part]) -> str:
    """Return where the claim holds and where it does not."""
    if len(parts) == 1 and not parts[0].label:
        statement = parts[0].statement
        return statement.why or ALONE[bool(statement.holds)]
    separator = ", "
    if any(separator in part.label for part in parts):
        separator = " · "
    by_title = grouped(parts, lambda part: part.title)
    texts = []
    for title in (*TITLES.values(), UNMEASURED):
        if title in by_title:
            group = by_title[title]
            text = f"{title} {listed([part.label for part in group], 6, separator)}"
            why = group[0].statement.why
            if why not in ("", OPEN):
                text += f" ({why})"
            texts.append(text)
    return "; ".join(texts)


# --- what the claim's function answers ---


def answer_of(claim: Claim, inputs: Mapping[str, Any]) -> Answer:
    assert claim.function is not None
    try:
        answer = claim.function(**inputs)
    except NotMeasuredError as error:
        return Answer(Statement(None, str(error)))
    if isinstance(answer, Answer):
        return answer
    statement = statement_of(answer)
    return Answer(statement, statement.figure)


def parts_of(answer: Answer, label: str) -> list[Part]:
    """Return the statements of an answer; `label`: of the part of the matrix."""
    if not isinstance(answer.holds, Mapping):
        return [Part(label, statement_of(answer.holds), value_of(answer))]
    end = f": {label}" if label else ""
    return [Part(text + end, statement_of(held)) for text, held in answer.holds.items()]


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
    return None if value.is_missing else value


# --- JSON ---


def bounds(value: Figure | None) -> dict[str, float]:
    if value is None:
        return {}
    return {"value": value.value, "low": value.low, "high": value.high}


def as_json(value: Any) -> Any:
    """Return figures and facts for JSON; an unknown bound becomes None."""
    return json.loads(json.dumps(value, default=plain), parse_constant=lambda name: None)


def plain(value: Any) -> Any:
    """Return a value that JSON does not know."""
    if isinstance(value, Figure):
        return bounds(value) if value.low < value.high else value.value
    if hasattr(value, "tolist"):  # NumPy and pandas
        return value.tolist()
    return str(value)
