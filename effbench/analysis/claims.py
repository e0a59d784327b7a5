"""Claims held against measurements: rows of the view `results`, and pieces of evidence.

A verdict follows the measurement, whichever way it falls; what the intervals leave open is `undecided`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from effbench.analysis.estimate import ABSENT, Estimate, Truth, as_estimate
from effbench.analysis.expression import ExpressionError, NothingMeasured, chosen, evaluate, names_in
from effbench.analysis.rows import Missing, Rows, cell_of, parameter, shown
from effbench.cell import Status
from effbench.metrics import INTERVALS

#: What speaks of a mode beside its baseline: of a baseline alone it would say something that is not meant.
AGAINST_BASELINE = frozenset({"speedup", "memory_ratio", "break_even_calls", "relative.mode"})


NO_INTERVAL = "the figure has no interval: a single trial of a cell says nothing of its spread"


class Verdict(StrEnum):
    """What measuring says of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    DEPENDS = "depends"  # true in a stated part of the matrix
    UNDECIDED = "undecided"  # the intervals leave it open
    NOT_MEASURABLE = "not measurable here"
    NOT_MEASURED = "not measured yet"


@dataclass(frozen=True)
class Claim:
    """A statement and how it is judged. Expressions are those of `analysis.expression`.

    `value`: the figure that is shown; `holds`: the condition, in which `value` is that figure, or statement ->
    condition where the claim says several things; `each`: names, for each of whose combinations every condition is
    judged by itself; `also`: further figures to show; `needs`: cuda, where it says nothing about other devices;
    `not_measurable`: why no measurement decides it.
    """

    id: str
    text: str
    sweep: str | None = None
    value: str | None = None
    unit: str = ""
    holds: str | Mapping[str, str] | None = None
    each: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None
    not_measurable: str | None = None
    published: str | None = None

    @property
    def conditions(self) -> dict[str, str]:
        """Statement -> condition; the statement is empty where there is only one."""
        if isinstance(self.holds, Mapping):
            return dict(self.holds)
        return {} if self.holds is None else {"": self.holds}

    @property
    def decisive(self) -> list[str]:
        """The expressions that the verdict rests on."""
        return [text for text in (self.value, *self.conditions.values()) if text]


@dataclass(frozen=True)
class Part:
    """One part of the matrix, or one statement of several: its label (empty for all of it), what holds there, and the
    figure. `missing`: why a statement was not measured, and so is open."""

    label: str
    truth: Truth
    value: Estimate | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Judgement:
    """A verdict, why, the figure over all, and what was found by part."""

    claim: str
    verdict: Verdict
    reason: str
    value: Estimate | None = None
    unit: str = ""
    parts: tuple[Part, ...] = ()
    also: Mapping[str, Any] = field(default_factory=dict)


def judge(claim: Claim, rows: Rows) -> Judgement:
    """Raises ExpressionError where the claim asks for what does not exist."""
    if claim.not_measurable:
        return Judgement(claim.id, Verdict.NOT_MEASURABLE, claim.not_measurable)
    rests_on = subjects(claim)
    of_rows = speaks_of_rows(rests_on)
    if rests_on & AGAINST_BASELINE and (reason := unsupported_everywhere(rows)):
        return Judgement(claim.id, Verdict.NOT_MEASURABLE, reason)
    failed = [row for row in rows.rows if row["status"] != Status.OK and concerns(claim, row)] if of_rows else []
    try:
        value = overall(claim, rows)
        parts = {
            ": ".join(filter(None, (statement, label))): part_of(claim, statement, label, part)
            for label, part in rows.split(claim.each).items()
            for statement in claim.conditions
        }
        if parts and all(part is not None and part.missing for part in parts.values()):
            raise NothingMeasured(next(iter(parts.values())).missing)
        also = {name: _value_of(text, rows) for name, text in claim.also.items()}
    except NothingMeasured as nothing:
        missing = [rows.evidence[name] for name in rows.evidence if f"evidence.{name}" in rests_on]
        return Judgement(
            claim.id, nothing_measured(failed, missing, str(nothing)), with_failed(str(nothing), failed, rows.paths)
        )
    measured = tuple(part for part in parts.values() if part is not None)
    if not measured:
        reason = "no part of the matrix was measured"
        return Judgement(claim.id, nothing_measured(failed, ()), with_failed(reason, failed, rows.paths))
    verdict = verdict_of([part.truth for part in measured])
    reason = with_failed(reason_of(verdict, measured, single_trials(rows, rests_on)), failed, rows.paths)
    return Judgement(claim.id, verdict, reason, value, claim.unit, measured, also)


def subjects(claim: Claim) -> set[str]:
    """Names that the claim's value and condition speak of, and by which it is split."""
    return set(claim.each).union(*map(names_in, claim.decisive)) - {"value"}


def concerns(claim: Claim, row: Mapping[str, Any]) -> bool:
    """Not where the claim speaks of other modes, and of no baseline."""
    modes = [chosen(text, "mode") for text in claim.decisive if "mode" in names_in(text)]
    return not modes or None in modes or row["mode"] in {"eager"}.union(*filter(None, modes))


def speaks_of_rows(names: set[str]) -> bool:
    return any(name.partition(".")[0] != "evidence" for name in names)


def overall(claim: Claim, rows: Rows) -> Estimate | None:
    """The figure over all rows; None where only the parts that `each` names have one, such as that of a single row."""
    try:
        return figure(claim, rows)
    except ExpressionError:
        if not claim.each:
            raise
        return None  # what is a mistake in each part, too, is said of the part


def figure(claim: Claim, rows: Rows) -> Estimate | None:
    if claim.value is None:
        return None
    found = evaluate(claim.value, rows)
    if found is None or found is ABSENT:
        raise NothingMeasured(f"{claim.value} has no value")
    try:
        return as_estimate(found)
    except TypeError as error:
        raise ExpressionError(f"claim {claim.id}: value {claim.value!r} is no single number") from error


def part_of(claim: Claim, statement: str, label: str, rows: Rows) -> Part | None:
    """What holds in one part; None where nothing was measured of it (and it is not all there is).

    A statement of several that was not measured stays open: the others alone do not confirm the claim.
    """
    condition = claim.conditions[statement]
    try:
        value = figure(claim, rows)
        truth = evaluate(condition, rows if value is None else rows.with_value(value))
    except NothingMeasured as nothing:
        if statement:
            return Part(": ".join(filter(None, (statement, label))), None, missing=str(nothing))
        if not label:
            raise
        return None
    if truth is ABSENT:
        truth = None
    if not (truth is None or isinstance(truth, bool)):
        raise ExpressionError(f"claim {claim.id}: {condition!r} is no single condition")
    return Part(": ".join(filter(None, (statement, label))), truth, None if statement else value)


def _value_of(text: str, rows: Rows) -> Any:
    try:
        return evaluate(text, rows)
    except NothingMeasured:
        return None


def verdict_of(truths: Sequence[Truth]) -> Verdict:
    if True in truths and False in truths:
        return Verdict.DEPENDS
    if None in truths:
        return Verdict.UNDECIDED
    return Verdict.CONFIRMED if True in truths else Verdict.REFUTED


def reason_of(verdict: Verdict, parts: Sequence[Part], single: bool = False) -> str:
    """Where it holds and where not. `single`: a figure that it rests on is of one trial."""
    if len(parts) == 1 and not parts[0].label:
        said = {
            Verdict.CONFIRMED: "holds",
            Verdict.REFUTED: "does not hold",
            Verdict.UNDECIDED: why_open(parts[0].value, single),
        }
        return said[verdict]
    groups = {
        "holds for": [part for part in parts if part.truth is True],
        "not for": [part for part in parts if part.truth is False],
        "open for": [part for part in parts if part.truth is None and not part.missing],
        "not measured for": [part for part in parts if part.missing],
    }
    texts = []
    for title, found in groups.items():
        if found:
            labels = [part.label for part in found]
            named = ", ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "")
            why = found[0].missing or (NO_INTERVAL if single and title == "open for" else None)
            texts.append(f"{title} {named}" + (f" ({why})" if why else ""))
    return "; ".join(texts)


def single_trials(rows: Rows, names: set[str]) -> bool:
    """Has a row one of these figures without its interval?"""
    return any(
        row["status"] == Status.OK and isinstance(found := cell_of(row, name), Estimate) and math.isinf(found.high)
        for row in rows.rows
        for name in names & INTERVALS.keys()
        if name in row
    )


def why_open(value: Estimate | None, single: bool = False) -> str:
    if value is not None and math.isnan(value.value):
        return "the figure is not defined (a division by 0, or a logarithm or mean of what is not above 0)"
    if single or (value is not None and not (math.isfinite(value.low) and math.isfinite(value.high))):
        return NO_INTERVAL
    return "the interval leaves it open"


def unsupported_everywhere(rows: Rows) -> str | None:
    """Why, where all rows there are, all but a baseline's, are `unsupported`."""
    others = [row for row in rows.rows if row["mode"] != "eager"] or rows.rows
    if not others or any(row["status"] != Status.UNSUPPORTED for row in others):
        return None
    return str(others[0]["reason"])


def nothing_measured(failed: Sequence[Mapping[str, Any]], evidence: Sequence[Any], reason: str = "") -> Verdict:
    """It cannot be measured here if all that is missing is unsupported. `reason`: of a part of evidence that is."""
    missing = [piece for piece in evidence if isinstance(piece, Missing)]
    unsupported = [piece.reason.startswith(Status.UNSUPPORTED) for piece in missing]
    unsupported += [row["status"] == Status.UNSUPPORTED for row in failed]
    unsupported = unsupported or [reason.startswith(Status.UNSUPPORTED)]
    return Verdict.NOT_MEASURABLE if all(unsupported) else Verdict.NOT_MEASURED


def further(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """What this row has of the experiment's own names, which tell rows of one model, size and mode apart."""
    found = {name: parameter(row, path) for name, path in names.items()}
    return "".join(f" {name}={shown(value)}" for name, value in found.items() if value is not ABSENT)


def with_failed(reason: str, failed: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """Names the rows that are left out, with the first's reason. `names`: name -> path of a parameter."""
    if not failed:
        return reason
    first = failed[0]
    named = [f"{row['model']} bs {row['bs']} {row['mode']}{further(row, names)} {row['status']}" for row in failed[:3]]
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"{reason}; left out: {', '.join(named)}{more} ({' '.join(str(first['reason']).split())})"
