"""Labels that distinguish the rows of a sweep: model, bs, mode, and everything else that was swept.

A figure or table of model × bs × mode alone would merge rows that differ in dtype, an input shape
or the interpreter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
    {
        "bs",
        "dtype",
        "phase",
        "device",
        "model.name",
        "mode.name",
        _STREAM,
        _RATE,
    }
    | {"stream.samples_per_call", "stream.sizes", "stream.dim"}
)
#: Columns that become labels if the other labels do not distinguish all rows.
_FALLBACKS = ("sweep_id", "environment_id", "cell_key", "key")
ABSENT = "—"
_SCALARS = frozenset(
    {
        type(None),
        str,
        int,
        float,
        bool,
    }
)
#: A row of the view `results`: column -> value.
ViewRow = Mapping[str, Any]
#: Dotted path -> value of the parameters of a cell.
Parameters = dict[str, Hashable]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


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
    def status(self) -> str:
        return str(self.source["status"])

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def reason(self) -> str | None:
        """Why the result is not ok, or what is remarkable about it."""
        reason = self.source.get("reason")
        if reason is None:
            return None
        return str(reason)

    @property
    def case(self) -> str:
        """All labels except bs on one line: the name of a curve over bs."""
        return self.curve("bs")

    def curve(self, axis: str) -> str:
        """Return all labels except this one on one line: the name of a curve over it."""
        words = [str(self.labels["model"])]
        for name, value in self.labels.items():
            if name not in ("model", axis) and value not in (ABSENT, None):
                words.append(f"{name}={value}")
        return " · ".join(words)

    def number(self, label: str) -> float:
        """Return the number that a label has in this row; NaN if it has none."""
        try:
            return float(self.labels.get(label, math.nan))
        except (TypeError, ValueError):
            return math.nan

    @property
    def where(self) -> str:
        """The labels of the environment, such as `torch_version=2.13.0`; empty if there is only one
        environment."""
        places = [name for name in self.labels if name in PLACES]
        return " ".join(f"{name}={self.labels[name]}" for name in places)

    @property
    def name(self) -> str:
        """All labels and the mode on one line: `Net how=fast bs=2 default (fullgraph=True)
        float32`."""
        words = [self.labels["model"]]
        for name, value in self.labels.items():
            if name not in ("model", "bs", "dtype") and value != ABSENT:
                words.append(f"{short_label(name)}={value}")
        words += [f"bs={self.labels['bs']}", self.mode, self.source.get("dtype")]
        return " ".join(word for word in words if word not in (None, ABSENT, "bs=None"))


#: Rows of one sweep or more, labelled together.
LabelledRows = Sequence[LabelledRow]


def label_rows(rows: Iterable[ViewRow]) -> list[LabelledRow]:
    """Return rows of the view with labels, so that no two rows have the same labels and mode. They
    are sorted by model and further labels in order of first appearance, then by bs."""
    labelled = _Labeller.of(rows).label()
    first: dict[tuple[str, Any], int] = {}
    for row in labelled:
        for item in row.labels.items():
            first.setdefault(item, len(first))

    def rank(row: LabelledRow) -> list[int]:
        ranks = [first[name, value] for name, value in row.labels.items() if name != "bs"]
        bs = row.labels["bs"]
        return [*ranks, -1 if bs is None else bs]

    return sorted(labelled, key=rank)


def row_names(rows: Iterable[ViewRow]) -> list[str]:
    """Return a unique name for each row."""
    return [row.name for row in _Labeller.of(rows).label()]


def swept_columns(rows: Iterable[ViewRow]) -> dict[str, list[Any]]:
    """Return the swept parameters that are no columns of the view: name in overrides -> the value
    of each row, in the order of the rows; None for rows without the parameter."""
    labelled = _Labeller.of(rows).label()
    columns: dict[str, list[Any]] = {}
    for position, row in enumerate(labelled):
        for name, value in row.swept.items():
            columns.setdefault(name, [None] * len(labelled))[position] = value
    return columns


def cell_row(cell: Cell) -> dict[str, Any]:
    """Return a row of the view for a cell."""
    return {
        "model": cell.model_name,
        "mode": cell.mode_name,
        "bs": cell.bs,
        "dtype": cell.dtype,
        "phase": cell.phase,
        "device": cell.device,
        "params": cell.params(),
        "cell_key": cell.key,
    }


def cell_names(cells: Iterable[Cell]) -> dict[str, str]:
    """Return cell key -> unique name of the cell."""
    distinct = {cell.key: cell_row(cell) for cell in cells}
    return dict(zip(distinct, row_names(distinct.values()), strict=True))


def short_label(label: str) -> str:
    return label.removeprefix("model.").removeprefix("module.").removeprefix("generate.")


def axis_of(rows: LabelledRows) -> str:
    """Return the label for the x axis of figures: the rate if all requests arrive at one and
    several were swept; else `bs`, or the label with the most numbers if only one bs was swept and
    all rows have a number."""
    # bs is the largest batch that the server takes
    if _count_numbers(rows, _RATE) > 1:
        return _RATE
    if len({row.labels["bs"] for row in rows}) > 1:
        return "bs"
    best, most = "bs", 1
    for label in rows[0].labels if rows else ():
        numbers = _count_numbers(rows, label)
        if numbers > most:
            best, most = label, numbers
    return best


def _count_numbers(rows: LabelledRows, label: str) -> int:
    """Return how many numbers a label has; 0 if a row has none."""
    numbers = {row.number(label) for row in rows}
    if all(map(math.isfinite, numbers)):
        return len(numbers)
    return 0


# --- finding the labels ---


@dataclass
class _Labeller:
    """Rows of the view with what is known of each: its parameters, its mode, and its labels so
    far."""

    rows: list[dict[str, Any]]
    params: list[Parameters]
    modes: list[str]
    labels: list[dict[str, Any]]

    @classmethod
    def of(cls, rows: Iterable[ViewRow]) -> _Labeller:
        finite = [_without_infinities(row) for row in rows]
        return cls(
            rows=finite,
            params=[OMITTED | flatten(row.get("params") or {}) for row in finite],
            modes=[override_text(row.get("mode")) for row in finite],
            labels=[{"model": override_text(row.get("model"))} for row in finite],
        )

    def label(self) -> list[LabelledRow]:
        """Return the rows with labels, in their order. NaN and infinity become None."""
        columns = self._varying_columns()
        self._add(columns, self.rows)
        settings = self._settings()
        paths = self._swept_paths()
        self._add(paths, self.params)
        names = self._names_of_modes(settings)
        for column in _FALLBACKS:
            distinct = set(zip(self._points(), names, strict=True))
            if len(distinct) < len(self.rows) and self._varies(column):
                self._add([column], self.rows)
        labelled = []
        for index, row in enumerate(self.rows):
            params, mode = self.params[index], self.modes[index]
            swept = {_label_of(path): params.get(path) for path in paths}
            swept |= {path: params.get(path) for path in settings[mode]}
            swept |= {column: row[column] for column in _OF_INTERPRETERS if column in columns}
            bs = row.get("bs")
            labels = {**self.labels[index], "bs": None if bs is None else int(bs)}
            labelled.append(LabelledRow(labels, names[index], mode, row, swept))
        return labelled

    def _add(self, names: Iterable[str], sources: Sequence[Mapping[str, Any]]) -> None:
        """Add labels with the values of these columns or paths."""
        for name in names:
            for labels, source in zip(self.labels, sources, strict=True):
                labels[_label_of(name)] = override_text(source.get(name))

    def _points(self) -> list[Hashable]:
        """Return the labels and the batch size of each row."""
        points: list[Hashable] = []
        for labels, row in zip(self.labels, self.rows, strict=True):
            points.append((*labels.values(), row.get("bs")))
        return points

    def _varies(self, column: str) -> bool:
        return _vary(row.get(column) for row in self.rows)

    def _varying_columns(self) -> list[str]:
        """Return the columns that are labels. The phase is one if it is not always inference."""
        phases = {row.get("phase") for row in self.rows}
        columns = []
        for column in COLUMNS:
            is_unusual = column == "phase" and not phases <= {None, "inference"}
            if is_unusual or self._varies(column):
                columns.append(column)
        return columns

    def _settings(self) -> dict[str, list[str]]:
        """Return mode -> its settings that vary among rows with the same model and columns."""
        known = set().union(*self.params) - _COVERED
        paths = sorted(path for path in known if path.startswith("mode."))
        alike: dict[tuple[str, Hashable], list[Parameters]] = {}
        for mode, labels, params in zip(self.modes, self.labels, self.params, strict=True):
            key = mode, tuple(labels.values())
            alike.setdefault(key, []).append(params)
        settings: dict[str, list[str]] = {mode: [] for mode in self.modes}
        for path in paths:
            for (mode, _), members in alike.items():
                is_swept = _vary(params.get(path) for params in members)
                if is_swept and path not in settings[mode]:
                    settings[mode].append(path)
        return settings

    def _swept_paths(self) -> list[str]:
        """Return the parameters that distinguish rows beyond labels and bs, which excludes a cache
        size that follows bs or a shape that follows a width. Arguments of the module are tried
        first, because inputs refer to them. A variable must distinguish rows of one mode: it may
        belong to a mode."""
        paths = set().union(*self.params)
        # the length of a cache follows the prompt, not the other way round
        always = [path for path in _ALWAYS if path in paths]
        points = self._points()
        for path in always:
            points = list(zip(points, self._texts(path), strict=True))
        swept = []
        for path in sorted(paths - _COVERED, key=_by_origin):
            if path.startswith("mode.") or path in always:
                continue
            texts = self._texts(path)
            if len(set(texts)) < 2:  # as most paths; what follows is slower
                continue
            known = points
            if path.startswith("env."):
                known = list(zip(points, self.modes, strict=True))
            if len(set(zip(known, texts, strict=True))) > len(set(known)):
                swept.append(path)
                points = list(zip(points, texts, strict=True))
        return [*sorted(swept), *always]

    def _texts(self, path: str) -> list[str]:
        return [override_text(params.get(path)) for params in self.params]

    def _names_of_modes(self, settings: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the name of each row's mode with its settings that vary."""
        names = []
        for mode, params in zip(self.modes, self.params, strict=True):
            texts = []
            for path in settings[mode]:
                if params.get(path) is not None:
                    texts.append(f"{path.removeprefix('mode.')}={override_text(params[path])}")
            names.append(f"{mode} ({', '.join(texts)})" if texts else mode)
        return names


def _by_origin(path: str) -> tuple[bool, str]:
    return not path.startswith("model.module."), path


def _without_infinities(row: ViewRow) -> dict[str, Any]:
    """Return a row in which NaN and infinity are None."""
    finite = dict(row)
    for key, value in row.items():
        is_figure = isinstance(value, float)
        if is_figure and not math.isfinite(value):
            finite[key] = None
    return finite


def _label_of(path: str) -> str:
    if path == _STREAM:
        return "stream"
    return path


def _vary(values: Iterable[Any]) -> bool:
    return len({override_text(value) for value in values}) > 1


def override_text(value: Any) -> str:
    """Return a value as an override spells it."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


# --- helpers for rows and parameters ---


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return key -> its items, both in order of appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def mode_order(modes: Iterable[tuple[str, str]]) -> list[str]:
    """Return the distinct names of modes, given as (name, base name), in canonical order, then by
    name."""
    rank = {name: index for index, name in enumerate(MODES)}

    def place(mode: tuple[str, str]) -> tuple[Any, ...]:
        name, base = mode
        return rank.get(base, len(MODES)), natural(base), natural(name), name

    return [name for name, _ in sorted(set(modes), key=place)]


def natural(name: str) -> list[str | float]:
    """Return a sort key that puts `P2` before `P10`, and `1e-5` before `0.01`."""
    parts: list[str | float] = [*_NUMBER.split(name)]
    parts[1::2] = map(float, parts[1::2])  # every other part is a number
    return parts


def flatten(value: Mapping[str, Any], prefix: str = "") -> Parameters:
    """Return dotted path -> value of nested mappings. Lists of mappings with a `name` (a model's
    inputs) are treated as mappings by name; other lists become JSON text."""
    flat: Parameters = {}
    for key, item in value.items():
        path = f"{prefix}{key}"
        if type(item) in _SCALARS:  # most values; `isinstance` is slower
            flat[path] = item
            continue
        if isinstance(item, list) and item and all(map(_is_named, item)):
            item = {str(part["name"]): _without_name(part) for part in item}
        if isinstance(item, Mapping):
            flat |= flatten(item, f"{path}.")
        else:
            flat[path] = item
            if isinstance(item, list):
                flat[path] = json.dumps(item)
    return flat


def _is_named(part: object) -> bool:
    return isinstance(part, Mapping) and "name" in part


def _without_name(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in part.items() if name != "name"}
