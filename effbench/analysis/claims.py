"""Claims held against measurements: rows of the view `results`, and pieces of evidence.

A figure of a row that is not `ok` does not exist here. A verdict follows the measurement, whichever way it falls; what
the intervals leave open is `undecided`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from effbench.analysis import estimate
from effbench.analysis.estimate import Estimate, Truth, Vector, as_estimate
from effbench.analysis.expression import ExpressionError, NothingMeasured, evaluate
from effbench.cell import Status

#: Columns with an interval of their own, and their bounds.
BOUNDS = {
    "latency_ms": ("latency_ci_low_ms", "latency_ci_high_ms"),
    "period_ms": ("period_ci_low_ms", "period_ci_high_ms"),
    "speedup": ("speedup_ci_low", "speedup_ci_high"),
}
#: What describes a row rather than measures it: there whatever its status.
DESCRIPTIONS = frozenset(
    {"sweep_id", "sweep_name", "label", "model", "bs", "mode", "dtype", "phase", "device", "status", "reason", "trials",
     "gpu_name", "torch_version", "python", "environment_id", "cell_key"}
)  # fmt: skip
HIDDEN = frozenset({"params", "started_at", "facts"})


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

    `value`: the figure that is shown; `holds`: the condition, in which `value` is that figure; `each`: names, for each
    of whose combinations the condition is judged by itself; `also`: further figures to show; `needs`: cuda, where it
    says nothing about other devices; `not_measurable`: why no measurement decides it.
    """

    id: str
    text: str
    sweep: str | None = None
    value: str | None = None
    unit: str = ""
    holds: str | None = None
    each: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None
    not_measurable: str | None = None
    published: str | None = None


@dataclass(frozen=True)
class Part:
    """One part of the matrix: its label (empty for all of it), what holds there, and the figure."""

    label: str
    truth: Truth
    value: Estimate | None = None


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


class Missing(Mapping[str, Any]):
    """Evidence that could not be gathered: whatever is asked of it was not measured."""

    is_open = True

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self):
        return iter(())

    def __len__(self) -> int:
        return 0


class Rows:
    """The names of an expression over rows of the view (built-in values, `params` a dict) and pieces of evidence.

    `names`: further ones, each the dotted path of a parameter. `facts`: cell key -> what the mode said (medians over
    trials where they are numbers).
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        names: Mapping[str, str] | None = None,
        evidence: Mapping[str, Any] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows = list(rows)
        self.paths = dict(names or {})
        self.evidence = dict(evidence or {})
        self.facts = dict(facts or {})
        self.extra = dict(extra or {})

    def names(self) -> list[str]:
        columns = [name for name in self.rows[0] if name not in HIDDEN] if self.rows else []
        return [*self.paths, *columns, *(["evidence"] if self.evidence else []), *self.extra]

    def value_of(self, name: str) -> Any:
        if name in self.extra:
            return self.extra[name]
        if name == "evidence" and self.evidence:
            return self.evidence
        if name in self.paths:
            return Vector(tuple(parameter(row, self.paths[name]) for row in self.rows))
        if not self.rows:
            raise NothingMeasured("no row was measured")
        if name in HIDDEN or name not in self.rows[0]:
            raise KeyError(name)
        return Vector(tuple(cell_of(row, name) for row in self.rows))

    def relative(self, values: Vector, name: str, reference: Any) -> Vector:
        if len(values) != len(self.rows):
            raise ValueError("relative() takes a whole column: select rows of what it gives")
        path = self.paths.get(name, name)
        found = {
            identity(row, path): value
            for row, value in zip(self.rows, values, strict=True)
            if same(parameter(row, "mode.name" if path == "mode" else path), reference) and value is not None
        }
        compared = []
        for row, value in zip(self.rows, values, strict=True):
            other = found.get(identity(row, path))
            ratio = None if value is None or other is None else estimate.combine(lambda a, b: a / b, other, value)
            compared.append(ratio)
        if not found:
            raise NothingMeasured(f"no row with {name} = {reference} was measured")
        return Vector(tuple(compared))

    def fact(self, name: str) -> Vector:
        return Vector(
            tuple(
                number(self.facts.get(row["cell_key"], {}).get(name)) if row["status"] == Status.OK else None
                for row in self.rows
            )
        )

    def split(self, names: Sequence[str]) -> dict[str, Rows]:
        """Label -> the rows of one combination of values of `names`, in order of appearance."""
        if not names:
            return {"": self}
        parts: dict[str, list[Mapping[str, Any]]] = {}
        columns = [self.value_of(name) for name in names]
        for index, row in enumerate(self.rows):
            values = [column.values[index] for column in columns]
            label = " ".join(
                shown(value) if name in ("model", "mode") else f"{name}={shown(value)}"
                for name, value in zip(names, values, strict=True)
            )
            parts.setdefault(label, []).append(row)
        return {label: Rows(rows, self.paths, self.evidence, self.facts) for label, rows in parts.items()}


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """One value of a row as expressions see it."""
    value = row[name]
    if name in DESCRIPTIONS:
        return number(value)
    if row["status"] != Status.OK or value is None:
        return None
    if name in BOUNDS:
        low, high = (row.get(bound) for bound in BOUNDS[name])
        # one trial has no interval: what it says is not known to any width, and its comparisons stay open
        return Estimate(float(value), low, high) if low is not None and high is not None else _alone(row, name)
    return number(value)


def _alone(row: Mapping[str, Any], name: str) -> Estimate:
    """A baseline's own speedup is 1 by definition; a single trial's figure could be anything."""
    value = float(row[name])
    if name == "speedup" and value == 1.0:
        return Estimate.exact(1.0)
    return Estimate(value, 0.0, float("inf"))


def number(value: Any) -> Any:
    return Estimate.exact(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


def same(value: Any, reference: Any) -> bool:
    return (value.value if isinstance(value, Estimate) else value) == reference


def shown(value: Any) -> str:
    return f"{value.value:g}" if isinstance(value, Estimate) else str(value)


def parameter(row: Mapping[str, Any], path: str) -> Any:
    """A parameter of the cell by its dotted path; None where this cell has none."""
    found: Any = row["params"]
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return number(found) if not isinstance(found, Mapping | list) else json.dumps(found, sort_keys=True)


def identity(row: Mapping[str, Any], path: str) -> str:
    """All of a cell but one parameter, with where it was measured."""
    left = json.loads(json.dumps(row["params"]))
    holder = left
    *outer, last = path.split(".")
    for part in outer:
        holder = holder.get(part, {})
    holder.pop(last, None)
    return json.dumps([row["environment_id"], left], sort_keys=True)


def judge(claim: Claim, rows: Rows) -> Judgement:
    """Raises ExpressionError where the claim asks for what does not exist."""
    if claim.not_measurable:
        return Judgement(claim.id, Verdict.NOT_MEASURABLE, claim.not_measurable)
    if reason := unsupported_everywhere(rows):
        return Judgement(claim.id, Verdict.NOT_MEASURABLE, reason)
    try:
        value = figure(claim, rows)
        parts = tuple(part_of(claim, label, part) for label, part in rows.split(claim.each).items())
        also = {name: _value_of(text, rows) for name, text in claim.also.items()}
    except NothingMeasured as nothing:
        return Judgement(claim.id, nothing_measured(rows, str(nothing)), why_nothing(rows, str(nothing)))
    measured = [part for part in parts if part is not None]
    if not measured:
        return Judgement(claim.id, Verdict.NOT_MEASURED, why_nothing(rows, "no part of the matrix was measured"))
    verdict = verdict_of([part.truth for part in measured])
    left_out = len(parts) - len(measured)
    reason = reason_of(verdict, measured) + (f"; {left_out} parts could not be measured" if left_out else "")
    return Judgement(claim.id, verdict, reason, value, claim.unit, tuple(measured), also)


def figure(claim: Claim, rows: Rows) -> Estimate | None:
    if claim.value is None:
        return None
    found = evaluate(claim.value, rows)
    try:
        return as_estimate(found)
    except TypeError as error:
        raise ExpressionError(f"claim {claim.id}: value {claim.value!r} is no single number") from error


def part_of(claim: Claim, label: str, rows: Rows) -> Part | None:
    """What holds in one part; None where nothing was measured of it (and it is not all there is)."""
    assert claim.holds is not None
    try:
        value = figure(claim, rows)
        scope = Rows(rows.rows, rows.paths, rows.evidence, rows.facts, {} if value is None else {"value": value})
        truth = evaluate(claim.holds, scope)
    except NothingMeasured:
        if not label:
            raise
        return None
    if not (truth is None or isinstance(truth, bool)):
        raise ExpressionError(f"claim {claim.id}: {claim.holds!r} is no single condition")
    return Part(label, truth, value)


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


def reason_of(verdict: Verdict, parts: Sequence[Part]) -> str:
    """Where it holds and where not."""
    if len(parts) == 1 and not parts[0].label:
        said = {
            Verdict.CONFIRMED: "holds",
            Verdict.REFUTED: "does not hold",
            Verdict.UNDECIDED: "the interval leaves it open",
        }
        return said[verdict]
    groups = {"holds for": True, "not for": False, "open for": None}
    texts = []
    for title, truth in groups.items():
        labels = [part.label for part in parts if part.truth is truth]
        if labels:
            named = ", ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "")
            texts.append(f"{title} {named}")
    return "; ".join(texts)


def unsupported_everywhere(rows: Rows) -> str | None:
    """Why, where all rows there are (and no evidence) are `unsupported`, all but a baseline's."""
    if rows.evidence or not rows.rows:
        return None
    others = [row for row in rows.rows if row["mode"] != "eager"] or rows.rows
    if any(row["status"] != Status.UNSUPPORTED for row in others):
        return None
    return str(others[0]["reason"])


def nothing_measured(rows: Rows, reason: str) -> Verdict:
    missing = [piece for piece in rows.evidence.values() if isinstance(piece, Missing)]
    if any(piece.reason.startswith("unsupported") for piece in missing):
        return Verdict.NOT_MEASURABLE
    return Verdict.NOT_MEASURED


def why_nothing(rows: Rows, reason: str) -> str:
    """With the first failure among the rows, which is why nothing is there."""
    failed = [row for row in rows.rows if row["status"] != Status.OK]
    if not failed:
        return reason
    return f"{reason} ({len(failed)} rows are not ok; first: {failed[0]['status']}, {failed[0]['reason']})"
