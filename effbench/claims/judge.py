"""Judge claims by what was measured; a claim that the intervals leave open is `undecided`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from effbench.claims.definition import Answer, Claim
from effbench.claims.figures import (
    NOT_MEASURED,
    OPEN,
    TITLES,
    UNMEASURED,
    Figure,
    NotMeasuredError,
    Statement,
    as_figure,
    gaps_of,
)
from effbench.core.cell import Status
from effbench.core.labels import grouped
from effbench.core.printable import listed, one_line
from effbench.store.schema import ClaimVerdict

#: What a claim of one statement is, if that is not open; otherwise the statement says why.
ALONE: dict[bool | None, str] = {True: "holds", False: "does not hold"}


@dataclass(frozen=True)
class Judgement:
    """A verdict, the reason, the figure to show, and whether each statement of the claim holds (the
    text of a claim's only statement is empty). `also`: further figures."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    value: Figure = NOT_MEASURED
    parts: Mapping[str, bool | None] = field(default_factory=dict)
    also: Mapping[str, Any] = field(default_factory=dict)


def judge(claim: Claim, inputs: Mapping[str, Any]) -> Judgement:
    """Judge a claim by the inputs of its function: name -> DataFrame of rows, or ClaimFacts. A
    statement without measurements stays open.

    Raises NotMeasuredError, what the function raises, and TypeError if its answer cannot be read.
    """
    answer = claim.function(**inputs)
    if not isinstance(answer, Answer):
        answer = Answer(answer, getattr(answer, "figure", None))
    # the text of a claim's only statement is empty
    parts = answer.holds if isinstance(answer.holds, Mapping) else {"": answer.holds}
    statements = {text: statement_of(part) for text, part in parts.items()}
    value = as_figure(answer.value)
    check_measured(statements.values(), value)
    gaps = gaps_of([*(statement.figure for statement in statements.values()), value])
    reason = reason_of(statements)
    left_out = [gap for gap in gaps if gap not in reason]
    if left_out:
        reason += f"; left out: {listed(left_out, 3)}"
    outcomes = {text: statement.holds for text, statement in statements.items()}
    return Judgement(
        claim,
        verdict_of(set(outcomes.values())),
        one_line(reason),
        value,
        outcomes,
        answer.also,
    )


def check_measured(statements: Iterable[Statement], value: Figure) -> None:
    """Raise NotMeasuredError with the first reason, unless a statement was measured."""
    reasons = []
    for statement in statements:
        if statement.title != UNMEASURED:
            return
        reasons.append(statement.why)
    reasons.append(value.why_missing)
    raise NotMeasuredError(reasons[0])


def unmeasured(claim: Claim, reason: str) -> Judgement:
    """Return the judgement of a claim that could not be measured."""
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


def reason_of(statements: Mapping[str, Statement]) -> str:
    """Return which statements hold and which do not; the text of a claim's only statement is
    empty."""
    if "" in statements:
        statement = statements[""]
        return statement.why or ALONE[statement.holds]
    separator = ", "
    if any(separator in text for text in statements):
        separator = " · "
    by_title = grouped(statements, lambda text: statements[text].title)
    reasons = []
    for title in (*TITLES.values(), UNMEASURED):
        if title in by_title:
            texts = by_title[title]
            reason = f"{title} {listed(texts, 6, separator)}"
            why = statements[texts[0]].why
            if why not in ("", OPEN):
                reason = f"{reason} ({why})"
            reasons.append(reason)
    return "; ".join(reasons)


def statement_of(value: Any) -> Statement:
    """Return a comparison, a bool or None (not measured) as a statement. Raises TypeError."""
    if isinstance(value, Statement):
        return value
    if value is None:
        value = NOT_MEASURED
    if isinstance(value, Figure) and value.is_missing:
        return Statement(None, value.why_missing, value)
    if isinstance(value, bool | np.bool_):
        return Statement(bool(value), "", NOT_MEASURED)
    raise TypeError(
        "expected a comparison such as figure.above(1), a bool or None, got"
        f" {one_line(repr(value), 80)}"
    )


# --- JSON ---


def as_json(value: Any) -> Any:
    """Return figures and facts for JSON; an unknown bound becomes None."""
    return json.loads(json.dumps(value, default=of_libraries), parse_constant=lambda name: None)


def of_libraries(value: Any) -> Any:
    """Return a value that JSON does not know."""
    if isinstance(value, Figure):
        return bounds(value) if value.low < value.high else value.value
    if hasattr(value, "tolist"):  # NumPy and pandas
        return value.tolist()
    return str(value)


def bounds(value: Figure) -> dict[str, float]:
    return {"value": value.value, "low": value.low, "high": value.high}
