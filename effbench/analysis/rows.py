"""What the names of an expression mean: rows of the view `results`, parameters of their cells, pieces of evidence.

A figure of a row that is not `ok` does not exist here.
"""

from __future__ import annotations

import difflib
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from effbench.analysis import estimate
from effbench.analysis.estimate import ABSENT, Estimate, Vector
from effbench.analysis.expression import ExpressionError, NothingMeasured
from effbench.cell import Status
from effbench.metrics import INTERVALS

#: What describes a row rather than measures it: there whatever its status.
DESCRIPTIONS = frozenset(
    {"sweep_id", "sweep_name", "label", "model", "bs", "mode", "dtype", "phase", "device", "status", "reason", "trials",
     "gpu_name", "torch_version", "python", "environment_id", "cell_key"}
)  # fmt: skip
HIDDEN = frozenset({"params", "started_at", "facts"})


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
            there = any(same(parameter(row, path), reference) and row["status"] == Status.OK for row in everywhere)
            lacks = "has this figure" if there else "was measured"
            raise NothingMeasured(f"no row with {name} = {reference} {lacks}")
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
    if name in INTERVALS:
        low, high = (row.get(bound) for bound in INTERVALS[name])
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
