"""Labels that distinguish the rows of a sweep: model, bs, mode, and everything else that was swept.

A figure or table of model × bs × mode alone would merge rows that differ in dtype, an input shape
or the interpreter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from effbench.core import parallel
from effbench.core.cell import LATER_NUMERICS, Cell, Identity, Result, Status

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
_OMITTED = {f"numerics.{name}": value for name, value in LATER_NUMERICS.items()}
_OMITTED |= {"parallel": parallel.NONE}
#: Fields of `Identity` that become labels if they vary, in this order.
FIELDS = (
    "dtype",
    "phase",
    "device",
    "gpu_name",
    "torch_version",
    "python",
    "interpreter",
    "folder",
)
#: Fields that become labels if all other labels do not distinguish the rows.
FALLBACKS = ("sweep_id", "environment_id", "cell_key")
#: Labels that describe the environment.
PLACES = ("gpu_name", "torch_version", "python", "interpreter", "folder", "environment_id")
_STREAM, _RATE = "stream.name", "stream.rate"
#: Parameters that are labels even if all rows have the same value: bs is the largest size of a
#: stream and would look like the only one, and a generation or a call on several devices would look
#: like a single call on one.
_ALWAYS = (_STREAM, _RATE, "generate.prompt", "generate.new_tokens", "parallel", "cache")
#: Parameters that have a field of their own, or follow from `_ALWAYS`.
_COVERED = frozenset(
    {
        "bs",
        "dtype",
        "phase",
        "device",
        "model.name",
        "mode.name",
        "stream.samples_per_call",
        "stream.sizes",
    }
)
ABSENT = "—"
#: Dotted path -> value of the parameters of a cell.
Parameters = dict[str, Hashable]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class LabelledResult(Result):
    """A result with its labels in reading order: model, further swept parameters, bs. `mode_label`
    is the mode's name with its swept settings."""

    labels: dict[str, Any]
    mode_label: str

    @classmethod
    def of(cls, result: Result, labels: dict[str, Any], mode_label: str) -> LabelledResult:
        """Return a result with labels. The constructor would set each of 120 fields on its own."""
        labelled = object.__new__(cls)
        vars(labelled).update(vars(result), labels=labels, mode_label=mode_label)
        return labelled

    @property
    def is_ok(self) -> bool:
        return self.status is Status.OK

    @property
    def case(self) -> str:
        """All labels except bs on one line: the name of a curve over bs."""
        return self.curve("bs")

    def curve(self, axis: str) -> str:
        """Return all labels except this one on one line: the name of a curve over it."""
        words = [str(self.labels["model"])]
        for name, value in self.labels.items():
            if name not in ("model", axis) and value != ABSENT:
                words.append(f"{name}={value}")
        return " · ".join(words)

    def number(self, label: str) -> float:
        """Return the number that a label has in this row; NaN if it has none."""
        try:
            return float(self.labels[label])
        except ValueError:
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
        return name_of(self, self.labels, self.mode_label)


#: Results of one sweep or more, labelled together.
LabelledResults = Sequence[LabelledResult]


def label_rows(results: Iterable[Result]) -> list[LabelledResult]:
    """Return results with labels, so that no two rows have the same labels and mode. They are
    sorted by model and further labels in order of first appearance, then by bs."""
    results = list(results)
    labeller = Labeller(results)
    rows = list(map(LabelledResult.of, results, labeller.labels_of_rows(), labeller.modes))
    first: dict[tuple[str, Any], int] = {}
    for row in rows:
        for item in row.labels.items():
            first.setdefault(item, len(first))

    def rank(row: LabelledResult) -> tuple[list[int], int]:
        *ranks, _ = [first[item] for item in row.labels.items()]
        return ranks, row.bs

    return sorted(rows, key=rank)


def row_names(rows: Iterable[Identity]) -> list[str]:
    """Return a unique name for each row."""
    rows = list(rows)
    labeller = Labeller(rows)
    return list(map(name_of, rows, labeller.labels_of_rows(), labeller.modes))


def cell_names(cells: Iterable[Cell]) -> dict[str, str]:
    """Return cell key -> unique name of the cell."""
    distinct = {cell.key: cell.identity() for cell in cells}
    return dict(zip(distinct, row_names(distinct.values()), strict=True))


def name_of(row: Identity, labels: Mapping[str, Any], mode: str) -> str:
    """Return labels and mode on one line, without what a comparison took away."""
    words = [row.model]
    for name, value in labels.items():
        if name not in ("model", "dtype") and value not in (ABSENT, 0):
            words.append(f"{short_label(name)}={value}")
    return " ".join(filter(None, [*words, mode, row.dtype]))


def swept_columns(rows: Iterable[Identity]) -> dict[str, list[Any]]:
    """Return the swept parameters that are no columns of the view: name in overrides -> the value
    of each row, in the order of the rows; None for rows without the parameter."""
    rows = list(rows)
    labeller = Labeller(rows)
    columns: dict[str, list[Any]] = {}
    for path in labeller.paths:
        columns[_label_of(path)] = [params.get(path) for params in labeller.params]
    for field in ("interpreter", "folder"):
        if field in labeller.labels:
            columns[field] = [getattr(row, field) for row in rows]
    return columns


def short_label(label: str) -> str:
    short = label.removeprefix("model.").removeprefix("module.")
    return short.removeprefix("generate.").removeprefix("coldstart.")


def axis_of(rows: LabelledResults) -> str:
    """Return the label for the x axis of figures: `bs`, or the label with the most numbers if only
    one bs was swept and all rows have a number."""
    if len({row.bs for row in rows}) > 1:
        return "bs"

    def numbers(label: str) -> int:
        values = {row.number(label) for row in rows}
        return len(values) if all(map(math.isfinite, values)) else 0

    return max(["bs", *rows[0].labels], key=numbers)


# --- finding the labels ---


class Labeller:
    """Finds what distinguishes some rows.

    `labels`: label -> text for each row, without bs. `modes`: for each row the name of its mode
    with its swept settings. `paths`: the swept parameters, those of modes last. `params`: for each
    row its parameters.
    """

    def __init__(self, rows: Sequence[Identity]) -> None:
        self.rows = rows
        self.params = [all_parameters(row.params) for row in rows]
        self.labels = {"model": self._texts_of_field("model")}
        for field in FIELDS:
            texts = self._texts_of_field(field)
            if _vary(texts) or (field == "phase" and "inference" not in texts):
                self.labels[field] = texts
        paths = sorted(set().union(*self.params) - _COVERED)
        self.settings = self._settings([path for path in paths if path.startswith("mode.")])
        swept = self._swept([path for path in paths if not path.startswith("mode.")])
        self.labels |= {_label_of(path): texts for path, texts in swept.items()}
        modes = [row.mode for row in rows]
        self.modes = list(map(self._name_of_mode, modes, self.params))
        self.paths = [*swept, *sorted(set().union(*self.settings.values()))]
        self._add_fallbacks()

    def _add_fallbacks(self) -> None:
        """Add fields as long as rows with the same labels remain."""
        for field in FALLBACKS:
            texts = self._texts_of_field(field)
            points = zip(self._points(), self.modes, strict=True)
            if len(set(points)) < len(self.rows) and _vary(texts):
                self.labels[field] = texts

    def labels_of_rows(self) -> list[dict[str, Any]]:
        """Return the labels of each row, bs last."""
        names = [*self.labels, "bs"]
        return [dict(zip(names, point, strict=True)) for point in self._points()]

    def _texts_of_field(self, field: str) -> list[str]:
        return [str(getattr(row, field) or ABSENT) for row in self.rows]

    def _points(self, *more: Iterable[Hashable]) -> list[tuple[Hashable, ...]]:
        """Return all labels and the batch size of each row, and what `more` holds for it."""
        return list(zip(*self.labels.values(), [row.bs for row in self.rows], *more, strict=True))

    def _settings(self, paths: Sequence[str]) -> dict[str, set[str]]:
        """Return mode -> which of these settings vary among its rows with the same labels, except
        bs."""
        settings: dict[str, set[str]] = {row.mode: set() for row in self.rows}
        first: dict[tuple[str, ...], Parameters] = {}
        for row, params, *labels in zip(self.rows, self.params, *self.labels.values(), strict=True):
            other = first.setdefault((row.mode, *labels), params)
            for path in paths:
                if params.get(path) != other.get(path):
                    settings[row.mode].add(path)
        return settings

    def _swept(self, paths: Sequence[str]) -> dict[str, list[str]]:
        """Return the parameters that distinguish rows beyond labels and bs, which excludes a cache
        size that follows bs or a shape that follows a width, with the text of each row. Arguments
        of the module are tried first, because inputs refer to them. A variable must distinguish
        rows of one mode: it may belong to a mode."""
        # the length of a cache follows the prompt, not the other way round
        always: dict[str, list[str]] = {}
        for path in _ALWAYS:
            texts = self._texts(path)
            if path in paths and set(texts) != {_OMITTED.get(path)}:
                always[path] = texts
        swept: dict[str, list[str]] = {}
        for path in sorted(paths, key=lambda path: not path.startswith("model.module.")):
            texts = self._texts(path)
            if not _vary(texts):  # as most; what follows is slower
                continue
            points = self._points(*always.values(), *swept.values())
            if path.startswith("env."):
                points = list(zip(points, self._texts_of_field("mode"), strict=True))
            if len(set(zip(points, texts, strict=True))) > len(set(points)):
                swept[path] = texts
        return dict(sorted(swept.items())) | always

    def _texts(self, path: str) -> list[str]:
        return [override_text(params.get(path)) for params in self.params]

    def _name_of_mode(self, mode: str, params: Parameters) -> str:
        """Return the name of a mode with its settings that vary."""
        settings = []
        for path in sorted(self.settings[mode]):
            if params.get(path) is not None:
                settings.append(f"{path.removeprefix('mode.')}={override_text(params[path])}")
        if not settings:
            return mode
        return f"{mode} ({', '.join(settings)})"


def _label_of(path: str) -> str:
    if path == _STREAM:
        return "stream"
    return path


def _vary(texts: Iterable[str]) -> bool:
    return len(set(texts)) > 1


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


def modes_of(rows: LabelledResults) -> list[str]:
    """Return the labels of these results' modes, in canonical order."""
    return mode_order((row.mode_label, row.mode) for row in rows)


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


def all_parameters(params: Mapping[str, Any]) -> Parameters:
    """Return dotted path -> value of a cell's parameters, with those that cells omit."""
    return _OMITTED | flatten(params)


def flatten(value: Mapping[str, Any], prefix: str = "") -> Parameters:
    """Return dotted path -> value of nested mappings. Lists of mappings with a `name` (a model's
    inputs) are treated as mappings by name; other lists become JSON text."""
    flat: Parameters = {}
    for key, item in value.items():
        path = f"{prefix}{key}"
        part = _by_name(item) if isinstance(item, list) else item
        if isinstance(part, dict):
            flat |= flatten(part, f"{path}.")
        else:
            flat[path] = part
    return flat


def _by_name(items: list[Any]) -> dict[str, Any] | str:
    if not items or not all(isinstance(item, dict) and "name" in item for item in items):
        return json.dumps(items)
    named = {}
    for item in items:
        named[item["name"]] = {key: value for key, value in item.items() if key != "name"}
    return named
