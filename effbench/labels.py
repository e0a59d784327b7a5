"""Labels that distinguish the rows of a sweep: model, bs, mode, and everything else that was swept.

A figure or table of model × bs × mode alone would merge rows that differ in dtype, an input shape
or the interpreter.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.cell import LATER_NUMERICS, Cell

#: Canonical order of the modes; other modes follow by name.
MODES = (
    "eager",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
    "cuda-graph",
    "default+graph",
    "compile+graph",
)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
#: Parameters that cells omit -> their values.
OMITTED = {f"numerics.{name}": value for name, value in LATER_NUMERICS.items()}
#: Columns of the view and of `environments.labelled` that become labels if they vary, in this
#: order.
COLUMNS = (
    "dtype",
    "phase",
    "device",
    "gpu_name",
    "torch_version",
    "python",
    "interpreter",
    "folder",
)
#: Labels that describe the environment.
PLACES = ("gpu_name", "torch_version", "python", "interpreter", "folder", "environment_id")
#: Columns of `environments.labelled` that the view does not have.
_OF_INTERPRETERS = ("interpreter", "folder")
_STREAM, _RATE = "stream.name", "stream.rate"
#: Parameters that are labels even if all rows have the same value: bs is the largest size of a
#: stream and would look like the only one, and a generation would look like a single call.
_ALWAYS = (_STREAM, _RATE, "generate.prompt", "generate.new_tokens")
#: Parameters that have their own column.
_COVERED = frozenset(
    {"bs", "dtype", "phase", "device", "model.name", "mode.name", _STREAM, _RATE}
    | {"stream.samples_per_call", "stream.sizes", "stream.dim"}
)
#: Columns that become labels if the other labels do not distinguish all rows.
_FALLBACKS = ("sweep_id", "environment_id", "cell_key", "key")
ABSENT = "—"
_SCALARS = frozenset({type(None), str, int, float, bool})


@dataclass
class LabelledRow:
    """A row of the view (`source`) with its `labels` in reading order: model, further swept
    parameters, bs. `mode` is the mode's name with its swept settings; `base_mode` is the name
    alone. `swept`: the swept parameters that are no columns of the view, by their names in
    overrides, with the values that the cell has."""

    labels: dict[str, Any]
    mode: str
    base_mode: str
    source: dict[str, Any]
    swept: dict[str, Any] = field(default_factory=dict)

    @property
    def case(self) -> str:
        """All labels except bs on one line: the name of a curve over bs."""
        return self.curve("bs")

    def curve(self, axis: str) -> str:
        """Return all labels except this one on one line: the name of a curve over it."""
        extra = [
            f"{name}={value}"
            for name, value in self.labels.items()
            if name not in ("model", axis) and value not in (ABSENT, None)
        ]
        return " · ".join([str(self.labels["model"]), *extra])

    def number(self, label: str) -> float:
        """Return the number that a label has in this row; NaN if it has none."""
        try:
            return float(self.labels.get(label))
        except (TypeError, ValueError):
            return math.nan

    @property
    def where(self) -> str:
        """The labels of the environment, such as `torch_version=2.13.0`; empty if there is only one
        environment."""
        return " ".join(f"{name}={value}" for name, value in self.labels.items() if name in PLACES)

    @property
    def name(self) -> str:
        """All labels and the mode on one line: `Net how=fast bs=2 default (fullgraph=True)
        float32`."""
        extra = [
            f"{short_label(name)}={value}"
            for name, value in self.labels.items()
            if name not in ("model", "bs", "dtype") and value != ABSENT
        ]
        words = [
            self.labels["model"],
            *extra,
            f"bs={self.labels['bs']}",
            self.mode,
            self.source.get("dtype"),
        ]
        return " ".join(word for word in words if word not in (None, ABSENT, "bs=None"))


def label_rows(rows: Iterable[Mapping[str, Any]]) -> list[LabelledRow]:
    """Return rows of the view with labels, so that no two rows have the same labels and mode. They
    are sorted by model and further labels in order of first appearance, then by bs."""
    labelled = _labelled(rows)
    first: dict[tuple[str, Any], int] = {}
    for row in labelled:
        for item in row.labels.items():
            first.setdefault(item, len(first))

    def rank(row: LabelledRow) -> list[int]:
        bs = row.labels["bs"]
        return [
            *(first[item] for item in row.labels.items() if item[0] != "bs"),
            -1 if bs is None else bs,
        ]

    return sorted(labelled, key=rank)


def short_label(label: str) -> str:
    return label.removeprefix("model.").removeprefix("module.").removeprefix("generate.")


def axis_of(rows: Sequence[LabelledRow]) -> str:
    """Return the label for the x axis of figures: the rate if all requests arrive at one and
    several were swept; else `bs`, or the label with the most numbers if only one bs was swept and
    all rows have a number."""
    rates = {row.number(_RATE) for row in rows}
    # bs is the largest batch that the server takes
    if len(rates) > 1 and all(map(math.isfinite, rates)):
        return _RATE
    if len({row.labels["bs"] for row in rows}) > 1:
        return "bs"
    best, most = "bs", 1
    for label in rows[0].labels if rows else ():
        numbers = {row.number(label) for row in rows}
        if len(numbers) > most and all(map(math.isfinite, numbers)):
            best, most = label, len(numbers)
    return best


def row_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a unique name for each row."""
    return [row.name for row in _labelled(rows)]


def cell_row(cell: Cell) -> dict[str, Any]:
    """Return a row of the view for a cell."""
    row = {name: getattr(cell, name) for name in ("bs", "dtype", "phase", "device")}
    return {
        "model": cell.model_name,
        "mode": cell.mode_name,
        **row,
        "params": cell.params(),
        "cell_key": cell.key,
    }


def cell_names(cells: Iterable[Cell]) -> dict[str, str]:
    """Return cell key -> unique name of the cell."""
    distinct = {cell.key: cell_row(cell) for cell in cells}
    return dict(zip(distinct, row_names(distinct.values()), strict=True))


def _labelled(rows: Iterable[Mapping[str, Any]]) -> list[LabelledRow]:
    """Return the rows with labels, in their order. NaN and infinity become None."""
    rows = [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in rows
    ]
    params = [OMITTED | flatten(row.get("params") or {}) for row in rows]
    unusual = {"phase"} if any(row.get("phase") not in (None, "inference") for row in rows) else ()
    columns = [
        name for name in COLUMNS if name in unusual or _varies(row.get(name) for row in rows)
    ]
    labels = [{name: override_text(row.get(name)) for name in ("model", *columns)} for row in rows]
    modes, sizes = [override_text(row.get("mode")) for row in rows], [row.get("bs") for row in rows]
    groups: dict[tuple, list[dict[str, Hashable]]] = defaultdict(list)
    for label, mode, values in zip(labels, modes, params, strict=True):
        groups[mode, *label.values()].append(values)
    # parameters that vary among rows with the same model, mode and columns: mode settings, and all
    # others
    of_mode: dict[str, set[str]] = defaultdict(set)
    others: set[str] = set()
    for (mode, *_), members in groups.items():
        for path in {path for values in members for path in values} - _COVERED - others:
            if _varies(values.get(path) for values in members):
                (of_mode[mode] if path.startswith("mode.") else others).add(path)
    # those that differ only between modes, as after `exclude`; but variables may belong to a mode
    points: dict[tuple, list[dict[str, Hashable]]] = defaultdict(list)
    for label, bs, values in zip(labels, sizes, params, strict=True):
        points[(*label.values(), bs, *(values.get(path) for path in sorted(others)))].append(values)
    for members in points.values():
        for path in {path for values in members for path in values} - _COVERED - others:
            if not path.startswith(("mode.", "env.")) and _varies(
                values.get(path) for values in members
            ):
                others.add(path)
    always = [path for path in _ALWAYS if any(path in values for values in params)]
    # the length of the cache follows the prompt, not the other way round
    known = [
        (*label.values(), bs, *(override_text(values.get(path)) for path in always))
        for label, bs, values in zip(labels, sizes, params, strict=True)
    ]
    paths = [*_undetermined(others, known, params), *always]
    for label, values in zip(labels, params, strict=True):
        label |= {
            "stream" if path == _STREAM else path: override_text(values.get(path)) for path in paths
        }
    names = []
    for mode, values in zip(modes, params, strict=True):
        settings = [
            f"{path.removeprefix('mode.')}={override_text(values[path])}"
            for path in sorted(of_mode[mode] & values.keys())
            if values[path] is not None
        ]
        names.append(f"{mode} ({', '.join(settings)})" if settings else mode)
    for name in _FALLBACKS:
        points = {
            (*label.values(), *point) for label, *point in zip(labels, sizes, names, strict=True)
        }
        if len(points) < len(rows) and _varies(row.get(name) for row in rows):
            labels = [
                label | {name: override_text(row.get(name))}
                for label, row in zip(labels, rows, strict=True)
            ]
    labelled = []
    for label, bs, name, mode, row, values in zip(
        labels, sizes, names, modes, rows, params, strict=True
    ):
        swept = {"stream" if path == _STREAM else path: values.get(path) for path in paths}
        swept |= {path: values.get(path) for path in sorted(of_mode[mode])}
        swept |= {name: row[name] for name in _OF_INTERPRETERS if name in columns}
        labelled.append(
            LabelledRow({**label, "bs": bs if bs is None else int(bs)}, name, mode, row, swept)
        )
    return labelled


def swept_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the swept parameters that are no columns of the view: name in overrides -> the value
    of each row, in the order of the rows; None for rows without the parameter."""
    labelled = _labelled(rows)
    names = dict.fromkeys(name for row in labelled for name in row.swept)
    return {name: [row.swept.get(name) for row in labelled] for name in names}


def grouped(items: Iterable[Any], key: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    """Return key -> its items, both in order of appearance."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def mode_order(modes: Iterable[tuple[str, str]]) -> list[str]:
    """Return the distinct names of modes, given as (name, base name), in canonical order, then by
    name."""
    rank = {name: index for index, name in enumerate(MODES)}

    def place(mode: tuple[str, str]) -> tuple:
        name, base = mode
        return rank.get(base, len(MODES)), natural(base), natural(name), name

    return [name for name, _ in sorted(set(modes), key=place)]


def natural(name: str) -> list[str | float]:
    """Return a sort key that puts `P2` before `P10`, and `1e-5` before `0.01`."""
    return [float(part) if index % 2 else part for index, part in enumerate(_NUMBER.split(name))]


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Hashable]:
    """Return dotted path -> value of nested mappings. Lists of mappings with a `name` (a model's
    inputs) are treated as mappings by name; other lists become JSON text."""
    flat: dict[str, Hashable] = {}
    for key, item in value.items():
        path = f"{prefix}{key}"
        if type(item) in _SCALARS:  # most values; `isinstance` is slower
            flat[path] = item
            continue
        if (
            isinstance(item, list)
            and item
            and all(isinstance(part, Mapping) and "name" in part for part in item)
        ):
            item = {
                str(part["name"]): {name: inner for name, inner in part.items() if name != "name"}
                for part in item
            }
        if type(item) is dict or isinstance(item, Mapping):
            flat |= flatten(item, f"{path}.")
        else:
            flat[path] = (json.dumps(item) if item else "[]") if isinstance(item, list) else item
    return flat


def _undetermined(
    paths: set[str], known: list[tuple], params: list[dict[str, Hashable]]
) -> list[str]:
    """Return the paths that distinguish rows beyond the `known` labels, which excludes a cache size
    that follows bs or a shape that follows a width. Arguments of the module are tried first,
    because inputs refer to them."""
    kept = []
    for path in sorted(paths, key=lambda path: (not path.startswith("model.module."), path)):
        more = [
            (*before, override_text(values.get(path)))
            for before, values in zip(known, params, strict=True)
        ]
        if len(set(more)) > len(set(known)):
            kept.append(path)
            known = more
    return sorted(kept)


def _varies(values: Iterable[Any]) -> bool:
    return len({override_text(value) for value in values}) > 1


def override_text(value: Any) -> str:
    """Return a value as an override spells it."""
    return (
        str(value).lower() if isinstance(value, bool) else ABSENT if value is None else str(value)
    )
