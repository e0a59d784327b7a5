"""Claims held against measurements: rows of the view `results`, and pieces of evidence.

A figure of a row that is not `ok` does not exist here. A verdict follows the measurement, whichever way it falls; what
the intervals leave open is `undecided`.
"""

from __future__ import annotations

import difflib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from effbench.analysis import estimate
from effbench.analysis.estimate import ABSENT, Estimate, Truth, Vector, as_estimate
from effbench.analysis.expression import ExpressionError, NothingMeasured, chosen, evaluate, names_in
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
#: What speaks of a mode beside its baseline: of a baseline alone it would say something that is not meant.
AGAINST_BASELINE = frozenset({"speedup", "memory_ratio", "break_even_calls", "relative.mode"})
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
    trials where they are numbers). `all_rows`: those of which these are a part.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        names: Mapping[str, str] | None = None,
        evidence: Mapping[str, Any] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        all_rows: Rows | None = None,
    ) -> None:
        self.rows = list(rows)
        self.paths = dict(names or {})
        self.evidence = dict(evidence or {})
        self.facts = dict(facts or {})
        self.extra = dict(extra or {})
        self.all_rows = all_rows

    def whole(self) -> Rows:
        return self.all_rows or self

    def with_value(self, value: Any) -> Rows:
        """The same rows, with one more name."""
        return Rows(self.rows, self.paths, self.evidence, self.facts, {"value": value}, self.all_rows)

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
        everywhere = self.whole().rows
        if len(values) != len(everywhere):
            raise ValueError("relative() takes a whole column: select rows of what it gives")
        path = self.path_of(name)
        found: dict[str, dict[str, Any]] = {}  # what to compare with, by sweep
        for row, value in zip(everywhere, values, strict=True):
            if same(parameter(row, path), reference) and value is not ABSENT:
                by_sweep = found.setdefault(identity(row, path), {})
                if row["sweep_id"] in by_sweep:
                    raise ValueError(f"relative(): several rows have {name} = {reference}, and differ in that alone")
                by_sweep[row["sweep_id"]] = value
        if not found:
            raise NothingMeasured(f"no row with {name} = {reference} was measured")
        own = {id(row): value for row, value in zip(everywhere, values, strict=True)}
        return Vector(tuple(self.ratio(row, own[id(row)], found.get(identity(row, path), {})) for row in self.rows))

    @staticmethod
    def ratio(row: Mapping[str, Any], value: Any, others: Mapping[str, Any]) -> Any:
        """To the reference of the row's own sweep where it has one, else to that of another of this experiment."""
        if value is ABSENT or not others:
            return ABSENT
        other = others.get(row["sweep_id"], next(reversed(others.values())))
        # a reference compared with itself is 1, however wide its interval
        return Estimate.exact(1.0) if other is value else estimate.combine(operator.truediv, other, value)

    def path_of(self, name: str) -> str:
        """Of a parameter. Raises ExpressionError for what no row has."""
        path = {"mode": "mode.name", "model": "model.name"}.get(name, self.paths.get(name, name))
        if all(parameter(row, path) is ABSENT for row in self.whole().rows):
            near = difflib.get_close_matches(name, [*self.paths, "mode", "model", "bs", "dtype", "phase"], n=1)
            hint = f"; nearest: {near[0]}" if near else "; declare it under names"
            raise ExpressionError(f"relative(): no row has a parameter {name!r}{hint}")
        return path

    def fact(self, name: str) -> Vector:
        return Vector(
            tuple(
                number(self.facts.get(row["cell_key"], {}).get(name, ABSENT)) if row["status"] == Status.OK else ABSENT
                for row in self.rows
            )
        )

    def split(self, names: Sequence[str]) -> dict[str, Rows]:
        """Label -> the rows of one combination of values of `names`, in order of appearance. Rows that have no such
        parameter (a baseline, of a mode's setting) are in no part."""
        if not names:
            return {"": self}
        parts: dict[str, list[Mapping[str, Any]]] = {}
        columns = [self.value_of(name) for name in names]
        for index, row in enumerate(self.rows):
            values = [column.values[index] for column in columns]
            if any(value is ABSENT for value in values):
                continue
            label = " ".join(
                shown(value) if name in ("model", "mode") else f"{name}={shown(value)}"
                for name, value in zip(names, values, strict=True)
            )
            parts.setdefault(label, []).append(row)
        return {
            label: Rows(rows, self.paths, self.evidence, self.facts, self.extra, self.whole())
            for label, rows in parts.items()
        }


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """One value of a row as expressions see it."""
    value = row[name]
    if name in DESCRIPTIONS:
        return number(value)
    if row["status"] != Status.OK or value is None:
        return ABSENT
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
    """A parameter of the cell by its dotted path; ABSENT where this cell has none."""
    found: Any = row["params"]
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return ABSENT
        found = found[part]
    return number(found) if not isinstance(found, Mapping | list) else json.dumps(found, sort_keys=True)


def identity(row: Mapping[str, Any], path: str) -> str:
    """All of a cell but one parameter (or its whole mode or model), with where it was measured. Inputs of a model
    follow from its settings, so that they go with any of these."""
    left = json.loads(json.dumps(row["params"]))
    *outer, last = [path.partition(".")[0]] if path in ("mode.name", "model.name") else path.split(".")
    if path.startswith("model.module."):
        left["model"].pop("inputs", None)
    holder = left
    for part in outer:
        holder = holder.get(part) if isinstance(holder, Mapping) else None
    if isinstance(holder, dict):
        holder.pop(last, None)
    return json.dumps([row["environment_id"], left], sort_keys=True)


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
        value = figure(claim, rows)
        parts = {label: part_of(claim, label, part) for label, part in rows.split(claim.each).items()}
        also = {name: _value_of(text, rows) for name, text in claim.also.items()}
    except NothingMeasured as nothing:
        missing = [rows.evidence[name] for name in rows.evidence if f"evidence.{name}" in rests_on]
        return Judgement(claim.id, nothing_measured(failed, missing), with_failed(str(nothing), failed))
    measured = tuple(part for part in parts.values() if part is not None)
    if not measured:
        reason = "no part of the matrix was measured"
        return Judgement(claim.id, nothing_measured(failed, ()), with_failed(reason, failed))
    verdict = verdict_of([part.truth for part in measured])
    reason = with_failed(reason_of(verdict, measured), failed)
    return Judgement(claim.id, verdict, reason, value, claim.unit, measured, also)


def subjects(claim: Claim) -> set[str]:
    """Names that the claim's value and condition speak of, and by which it is split."""
    texts = filter(None, (claim.value, claim.holds))
    return set(claim.each).union(*(names_in(text) for text in texts)) - {"value"}


def concerns(claim: Claim, row: Mapping[str, Any]) -> bool:
    """Not where the claim speaks of other modes, and of no baseline."""
    modes = [chosen(text, "mode") for text in (claim.value, claim.holds) if text and "mode" in names_in(text)]
    return not modes or None in modes or row["mode"] in {"eager"}.union(*filter(None, modes))


def speaks_of_rows(names: set[str]) -> bool:
    return any(name.partition(".")[0] != "evidence" for name in names)


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


def part_of(claim: Claim, label: str, rows: Rows) -> Part | None:
    """What holds in one part; None where nothing was measured of it (and it is not all there is)."""
    assert claim.holds is not None
    try:
        value = figure(claim, rows)
        truth = evaluate(claim.holds, rows if value is None else rows.with_value(value))
    except NothingMeasured:
        if not label:
            raise
        return None
    if truth is ABSENT:
        truth = None
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
            Verdict.UNDECIDED: why_open(parts[0].value),
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


def why_open(value: Estimate | None) -> str:
    if value is not None and math.isnan(value.value):
        return "the figure is not defined (a division by 0, or a logarithm or mean of what is not above 0)"
    if value is not None and not (math.isfinite(value.low) and math.isfinite(value.high)):
        return "the figure has no interval: a single trial of a cell says nothing of its spread"
    return "the interval leaves it open"


def unsupported_everywhere(rows: Rows) -> str | None:
    """Why, where all rows there are, all but a baseline's, are `unsupported`."""
    others = [row for row in rows.rows if row["mode"] != "eager"] or rows.rows
    if not others or any(row["status"] != Status.UNSUPPORTED for row in others):
        return None
    return str(others[0]["reason"])


def nothing_measured(failed: Sequence[Mapping[str, Any]], evidence: Sequence[Any]) -> Verdict:
    """It cannot be measured here if all that is missing is unsupported."""
    missing = [piece for piece in evidence if isinstance(piece, Missing)]
    unsupported = [piece.reason.startswith(Status.UNSUPPORTED) for piece in missing]
    unsupported += [row["status"] == Status.UNSUPPORTED for row in failed]
    return Verdict.NOT_MEASURABLE if unsupported and all(unsupported) else Verdict.NOT_MEASURED


def with_failed(reason: str, failed: Sequence[Mapping[str, Any]]) -> str:
    """Names the rows that are left out, with the first's reason."""
    if not failed:
        return reason
    first = failed[0]
    named = [f"{row['model']} bs {row['bs']} {row['mode']} {row['status']}" for row in failed[:3]]
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"{reason}; left out: {', '.join(named)}{more} ({' '.join(str(first['reason']).split())})"
