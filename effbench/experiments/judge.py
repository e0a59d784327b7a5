"""Judge claims by what was measured; a claim that the intervals leave open is `undecided`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
)
from effbench.experiments.frames import DISTURBANCE, shown, split
from effbench.metrics import is_missing
from effbench.printable import describe, listed, one_line
from effbench.store.decisions import ClaimVerdict

if TYPE_CHECKING:
    import pandas as pd

#: Stands for the status of a row whose figures decide nothing, because the host was disturbed.
MARKED = "marked"


@dataclass(frozen=True)
class Part:
    """Whether a claim holds in a part of the matrix, or a statement of it (`label`; empty for all),
    and the figure."""

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
    parts: tuple[Part, ...] = ()
    also: Mapping[str, Any] = field(default_factory=dict)


def judge(claim: Claim, inputs: Mapping[str, Any]) -> Judgement:
    """Judge a claim by the inputs of its function: name -> DataFrame of rows, or Facts. Raises
    ClaimError if the function fails or uses something that does not exist."""
    if claim.not_measurable:
        return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, claim.not_measurable)
    frames = {name: value for name, value in inputs.items() if not isinstance(value, Facts)}
    checks = [value for value in inputs.values() if isinstance(value, Facts)]
    absences = [facts.absence for facts in checks if facts.absence]
    if any(frame.empty for frame in frames.values()):
        return Judgement(claim, ClaimVerdict.NOT_MEASURED, "no row was measured")
    if len(absences) == len(inputs):
        return Judgement(claim, without_measurement(absences), absences[0])
    overall = call_for_all_rows(claim, inputs)
    answers = {"": overall}
    if claim.axes:
        ((name, frame),) = frames.items()
        parts = split(frame, claim.axes)
        answers = {label: call(claim, {**inputs, name: rows}) for label, rows in parts}
    failed = failed_rows(frames.values(), [overall, *answers.values()])
    left_out = text_of_failed(failed, frames.values())
    if reason := why_unsupported(failed, frames.values()):
        return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, reason)
    parts = [part for label, answer in answers.items() for part in parts_of(answer, label)]
    if not any(part.outcome.is_measured for part in parts):
        reason = parts[0].outcome.why if parts else "no part of the matrix was measured"
        reasons = [*absences, *map(status_of, failed)] or [reason]
        return Judgement(claim, without_measurement(reasons), reason + left_out)
    verdict = verdict_of([part.outcome.holds for part in parts])
    reason = reason_of(verdict, parts) + left_out
    return Judgement(claim, verdict, reason, value_of(overall), tuple(parts), overall.also)


# --- what the claim's function answers ---


def call_for_all_rows(claim: Claim, inputs: Mapping[str, Any]) -> Answer:
    """Return the answer over all rows; an empty one if the claim has parts and only they have a
    figure, because interval() finds one row in each part, but several in all."""
    try:
        return call(claim, inputs)
    except ClaimError:
        if not claim.axes:
            raise
        return Answer(None)


def call(claim: Claim, inputs: Mapping[str, Any]) -> Answer:
    assert claim.function is not None
    try:
        result = claim.function(**inputs)
        if not isinstance(result, Answer):
            outcome = outcome_of(result)
            return Answer(outcome, outcome.figure)
    except NotMeasuredError as error:
        return Answer(Outcome(None, str(error), is_measured=False))
    except ClaimError:
        raise
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        raise ClaimError(f"its function raised {describe(error)}") from error
    if not isinstance(result.also, Mapping):
        raise ClaimError(f"also: expected text -> figure, got {one_line(repr(result.also), 80)}")
    return result


def outcome_of(value: Any) -> Outcome:
    """Return a comparison, a bool or None (not measured) as an outcome. Raises ClaimError."""
    if isinstance(value, Outcome):
        return value
    if isinstance(value, Figure) and value.is_missing:
        return Outcome(None, value.why, value, is_measured=False)
    if value is None:
        return Outcome(None, NO_VALUE, is_measured=False)
    if type(value).__name__ not in ("bool", "bool_"):  # bool_ is NumPy's
        raise ClaimError(
            "expected a comparison such as figure.above(1), a bool or None, got"
            f" {one_line(repr(value), 80)}"
        )
    return Outcome(bool(value))


def outcomes_of(answer: Answer) -> dict[str, Outcome]:
    """Return statement -> outcome; the only statement of an answer without statements is empty."""
    statements = answer.holds if isinstance(answer.holds, Mapping) else {"": answer.holds}
    return {text: outcome_of(holds) for text, holds in statements.items()}


def value_of(answer: Answer) -> Figure | None:
    value = None if answer.value is None else as_figure(answer.value)
    return None if value is None or value.is_missing else value


def parts_of(answer: Answer, label: str) -> list[Part]:
    """Return the parts of an answer. A part of the matrix without measurements is omitted; a
    statement without measurements stays open."""
    outcomes = outcomes_of(answer)
    if isinstance(answer.holds, Mapping):
        return [
            Part(f"{text}: {label}" if label else text, outcome)
            for text, outcome in outcomes.items()
        ]
    outcome, value = outcomes[""], value_of(answer)
    if answer.value is not None and value is None and outcome.holds is not None:
        # a comparison with NaN is false, but decides nothing
        outcome = Outcome(None, "its figure was not measured", is_measured=False)
    if label and not outcome.is_measured:
        return []
    return [Part(label, outcome, value)]


# --- rows that are left out ---


def failed_rows(frames: Iterable[pd.DataFrame], answers: Iterable[Answer]) -> list[pd.Series]:
    """Return the rows without a figure that the answers need, because they failed or are marked."""
    gaps: dict[str, None] = {}
    for answer in answers:
        figures = [outcome.figure for outcome in outcomes_of(answer).values()]
        for figure in (*figures, answer.value):
            if isinstance(figure, Figure):
                gaps |= dict.fromkeys(figure.gaps)
    rows = {row.name: row for frame in frames for _, row in frame.iterrows()}
    return [row for label, row in rows.items() if label in gaps and status_of(row) != Status.OK]


def why_unsupported(failed: Sequence[pd.Series], frames: Iterable[pd.DataFrame]) -> str | None:
    """Return the reason if all rows are unsupported, apart from a baseline."""
    rows = [row for frame in frames for _, row in frame.iterrows()]
    rows = [row for row in rows if row["mode"] != "eager"] or rows
    if failed and all(row["status"] == Status.UNSUPPORTED for row in rows):
        return str(rows[0]["reason"])
    return None


def text_of_failed(failed: Sequence[pd.Series], frames: Iterable[pd.DataFrame]) -> str:
    """Return the names of the failed rows, with their swept parameters, and the reason of the first
    one."""
    if not failed:
        return ""
    swept = dict.fromkeys(name for frame in frames for name in frame.attrs["paths"])
    names = []
    for row in failed:
        settings = [f"{name}={shown(row[name])}" for name in swept if not is_missing(row.get(name))]
        words = [row["model"], "bs", str(row["bs"]), row["mode"], *settings, status_of(row)]
        names.append(" ".join(words))
    first = failed[0]
    reason = first[DISTURBANCE] if status_of(first) == MARKED else first["reason"]
    return f"; left out: {listed(names, 3)} ({' '.join(str(reason).split())})"


def status_of(row: Mapping[str, Any]) -> str:
    """Return the status of a row, or `marked` if it is ok, but a disturbed host makes its figures
    decide nothing."""
    is_disturbed = row["status"] == Status.OK and not is_missing(row.get(DISTURBANCE))
    return MARKED if is_disturbed else str(row["status"])


# --- verdicts ---


def without_measurement(reasons: Sequence[str]) -> ClaimVerdict:
    is_unsupported = all(reason.startswith(Status.UNSUPPORTED) for reason in reasons)
    return ClaimVerdict.NOT_MEASURABLE if is_unsupported else ClaimVerdict.NOT_MEASURED


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
    groups: dict[str, list[Part]] = {
        "holds for": [],
        "not for": [],
        "open for": [],
        "not measured for": [],
    }
    titles = {True: "holds for", False: "not for", None: "open for"}
    for part in parts:
        outcome = part.outcome
        title = titles[outcome.holds] if outcome.is_measured else "not measured for"
        groups[title].append(part)
    separator = " · " if any(", " in part.label for part in parts) else ", "
    texts = []
    for title, group in groups.items():
        if not group:
            continue
        why = group[0].outcome.why
        because = "" if why in ("", OPEN) else f" ({why})"
        labels = listed([part.label for part in group], 6, separator)
        texts.append(f"{title} {labels}{because}")
    return "; ".join(texts)


# --- JSON ---


def bounds(value: Figure | None) -> dict[str, float]:
    return {} if value is None else {"value": value.value, "low": value.low, "high": value.high}


def as_json(value: Any) -> Any:
    """Return figures and facts for JSON; an infinite bound becomes None."""
    if isinstance(value, Figure) and value.is_missing:
        return None
    if isinstance(value, Figure):
        return as_json(value.value if value.is_exact else bounds(value))
    if hasattr(value, "tolist"):  # NumPy and pandas
        return as_json(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)
