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
    ClaimError,
    Figure,
    NotMeasuredError,
    Outcome,
    as_figure,
    gaps_of,
)
from effbench.experiments.frames import split
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
    frames = {name: value for name, value in inputs.items() if not isinstance(value, Facts)}
    absences = [value.absence for value in inputs.values() if isinstance(value, Facts)]
    if any(frame.empty for frame in frames.values()):
        return unmeasured(claim, "no row was measured")
    if not frames and all(absences):
        return unmeasured(claim, absences[0])
    if not claim.axes:
        answer = call(claim, inputs)
        return judge_parts(claim, answer, parts_of(answer, ""))
    answer, parts = Answer(None), []
    with suppress(ClaimError):  # interval() finds one row in each part, but several in all
        answer = call(claim, inputs)
    ((name, frame),) = frames.items()
    for label, rows in split(frame, claim.axes):
        parts += parts_of(call(claim, {**inputs, name: rows}), label)
    return judge_parts(claim, answer, parts)


def judge_parts(claim: Claim, answer: Answer, parts: Sequence[Part]) -> Judgement:
    """Judge a claim by its parts. A part of the matrix without measurements is omitted; a statement
    without measurements stays open."""
    figures = [part.outcome.figure for part in parts]
    gaps = gaps_of(figure for figure in figures if figure is not None)
    left_out = ""
    if gaps:
        names = listed([f"{gap.name} {gap.status}" for gap in gaps], 3)
        left_out = f"; left out: {names} ({one_line(gaps[0].reason)})"
    measured = [part for part in parts if part.outcome.is_measured]
    if not measured:
        if gaps and all(gap.status == Status.UNSUPPORTED for gap in gaps):
            return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, one_line(gaps[0].reason))
        why = parts[0].outcome.why if parts else "no part of the matrix was measured"
        return unmeasured(claim, why + left_out)
    if claim.axes:
        parts = measured
    verdict = verdict_of([part.outcome.holds for part in parts])
    reason = reason_of(verdict, parts) + left_out
    return Judgement(claim, verdict, reason, value_of(answer), parts, answer.also)


def unmeasured(claim: Claim, reason: str) -> Judgement:
    is_unsupported = reason.startswith(Status.UNSUPPORTED)
    verdict = ClaimVerdict.NOT_MEASURABLE if is_unsupported else ClaimVerdict.NOT_MEASURED
    return Judgement(claim, verdict, reason)


def verdict_of(outcomes: Sequence[bool | None]) -> ClaimVerdict:
    if True in outcomes and False in outcomes:
        return ClaimVerdict.DEPENDS
    if None in outcomes:
        return ClaimVerdict.UNDECIDED
    return ClaimVerdict.CONFIRMED if True in outcomes else ClaimVerdict.REFUTED


def reason_of(verdict: ClaimVerdict, parts: Sequence[Part]) -> str:
    """Return where the claim holds and where it does not."""
    if len(parts) == 1 and not parts[0].label:
        texts = {ClaimVerdict.CONFIRMED: "holds", ClaimVerdict.REFUTED: "does not hold"}
        return texts.get(verdict, parts[0].outcome.why)
    groups = {
        "holds for": [part for part in parts if part.outcome.holds is True],
        "not for": [part for part in parts if part.outcome.holds is False],
        "open for": [part for part in parts if part.outcome.is_open],
        "not measured for": [part for part in parts if not part.outcome.is_measured],
    }
    separator = " · " if any(", " in part.label for part in parts) else ", "
    texts = []
    for title, group in groups.items():
        if group:
            why = group[0].outcome.why
            because = "" if why in ("", OPEN) else f" ({why})"
            labels = listed([part.label for part in group], 6, separator)
            texts.append(f"{title} {labels}{because}")
    return "; ".join(texts)


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
        texts = {text: f"{text}: {label}" if label else text for text in answer.holds}
        return [Part(texts[text], outcome_of(holds)) for text, holds in answer.holds.items()]
    outcome, value = outcome_of(answer.holds), value_of(answer)
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
    return None if value.is_missing else value


# --- JSON ---


def bounds(value: Figure | None) -> dict[str, float]:
    return {} if value is None else {"value": value.value, "low": value.low, "high": value.high}


def as_json(value: Any) -> Any:
    """Return figures and facts for JSON; an unknown bound becomes None."""
    if isinstance(value, Figure):
        return as_json(value.value if value.is_exact or value.is_missing else bounds(value))
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
