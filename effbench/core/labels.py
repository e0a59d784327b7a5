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
#: stream and would look like the only one, and a generation would look like a single call.
_ALWAYS = (_STREAM, _RATE, "generate.prompt", "generate.new_tokens")
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
_SCALARS = frozenset({type(None), str, int, float, bool})
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
            return float(self.labels.get(label, math.nan))
        except ValueError:
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
        return name_of(self, self.labels, self.mode_label)


#: Results of one sweep or more, labelled together.
LabelledResults = Sequence[LabelledResult]


def label_rows(results: Iterable[Result]) -> list[LabelledResult]:
    """Return results with labels, so that no two rows have the same labels and mode. They are
    sorted by model and further labels in order of first appearance, then by bs."""
    results = list(results)
    labeller = Labeller(results)
    rows = []
    for index, result in enumerate(results):
        labels, mode_label = labeller.labels_of(index), labeller.modes[index]
        rows.append(LabelledResult(**vars(result), labels=labels, mode_label=mode_label))
    first: dict[tuple[str, Any], int] = {}
    for row in rows:
        for item in row.labels.items():
            first.setdefault(item, len(first))

    def rank(row: LabelledResult) -> list[int]:
        ranks = [first[name, value] for name, value in row.labels.items() if name != "bs"]
        return [*ranks, row.labels["bs"]]

    return sorted(rows, key=rank)


def row_names(rows: Iterable[Identity]) -> list[str]:
    """Return a unique name for each row."""
    rows = list(rows)
    labeller = Labeller(rows)
    names = []
    for index, row in enumerate(rows):
        names.append(name_of(row, labeller.labels_of(index), labeller.modes[index]))
    return names


def cell_names(cells: Iterable[Cell]) -> dict[str, str]:
    """Return cell key -> unique name of the cell."""
    distinct = {cell.key: cell.identity() for cell in cells}
    return dict(zip(distinct, row_names(distinct.values()), strict=True))


def name_of(row: Identity, labels: Mapping[str, Any], mode: str) -> str:
    words = [row.model]
    for name, value in labels.items():
        if name not in ("model", "bs", "dtype") and value != ABSENT:
            words.append(f"{short_label(name)}={value}")
    if row.bs:
        words.append(f"bs={row.bs}")
    words += [mode, row.dtype]
    return " ".join(word for word in words if word)


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
    return label.removeprefix("model.").removeprefix("module.").removeprefix("generate.")


def axis_of(rows: LabelledResults) -> str:
    """Return the label for the x axis of figures: `bs`, or the label with the most numbers if only
    one bs was swept and all rows have a number."""
    if not rows or len({row.labels["bs"] for row in rows}) > 1:
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
            is_unusual = field == "phase" and not {"inference", ABSENT}.issuperset(texts)
            if is_unusual or _vary(texts):
                self.labels[field] = texts
        settings = self._settings()
        self.paths = self._swept_paths()
        for path in self.paths:
            self.labels[_label_of(path)] = self._texts(path)
        self.modes = self._names_of_modes(settings)
        self.paths += sorted(set().union(*settings.values()))
        for field in FALLBACKS:
            texts = self._texts_of_field(field)
            is_unique = len(set(zip(self._points(), self.modes, strict=True))) == len(rows)
            if not is_unique and _vary(texts):
                self.labels[field] = texts

    def labels_of(self, index: int) -> dict[str, Any]:
        """Return the labels of a row, bs last."""
        labels: dict[str, Any] = {label: texts[index] for label, texts in self.labels.items()}
        return labels | {"bs": self.rows[index].bs}

    def _texts_of_field(self, field: str) -> list[str]:
        return [override_text(getattr(row, field)) or ABSENT for row in self.rows]

    def _texts(self, path: str) -> list[str]:
        return [override_text(params.get(path)) for params in self.params]

    def _points(self) -> list[Hashable]:
        """Return all labels and the batch size of each row."""
        return list(zip(*self.labels.values(), [row.bs for row in self.rows], strict=True))

    def _settings(self) -> dict[str, list[str]]:
        """Return mode -> its settings that vary among rows with the same labels, except bs."""
        settings: dict[str, set[str]] = {row.mode: set() for row in self.rows}
        first: dict[tuple[str, ...], Parameters] = {}
        for index, (row, params) in enumerate(zip(self.rows, self.params, strict=True)):
            labels = (texts[index] for texts in self.labels.values())
            other = first.setdefault((row.mode, *labels), params)
            if params is other:
                continue
            for path in params.keys() | other.keys():
                is_setting = path.startswith("mode.") and path not in _COVERED
                if is_setting and params.get(path) != other.get(path):
                    settings[row.mode].add(path)
        return {mode: sorted(paths) for mode, paths in settings.items()}

    def _swept_paths(self) -> list[str]:
        """Return the parameters that distinguish rows beyond labels and bs, which excludes a cache
        size that follows bs or a shape that follows a width. Arguments of the module are tried
        first, because inputs refer to them. A variable must distinguish rows of one mode: it may
        belong to a mode."""
        paths = set().union(*self.params) - _COVERED
        # the length of a cache follows the prompt, not the other way round
        always = [path for path in _ALWAYS if path in paths]
        points = self._points()
        for path in always:
            points = list(zip(points, self._texts(path), strict=True))
        swept = []
        for path in sorted(paths.difference(always), key=_by_origin):
            texts = self._texts(path)
            if path.startswith("mode.") or not _vary(texts):  # as most; what follows is slower
                continue
            known = points
            if path.startswith("env."):
                known = list(zip(points, self._texts_of_field("mode"), strict=True))
            if len(set(zip(known, texts, strict=True))) > len(set(known)):
                swept.append(path)
                points = list(zip(points, texts, strict=True))
        return [*sorted(swept), *always]

    def _names_of_modes(self, settings: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the name of each row's mode with its settings that vary."""
        names = []
        for row, params in zip(self.rows, self.params, strict=True):
            known = [path for path in settings[row.mode] if params.get(path) is not None]
            texts = [
                f"{path.removeprefix('mode.')}={override_text(params[path])}" for path in known
            ]
            names.append(f"{row.mode} ({', '.join(texts)})" if texts else row.mode)
        return names


def _by_origin(path: str) -> tuple[bool, str]:
    return not path.startswith("model.module."), path


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
        if type(item) in _SCALARS:  # most values; `isinstance` is slower
            flat[path] = item
        elif isinstance(item, Mapping):
            flat |= flatten(item, f"{path}.")
        elif not isinstance(item, list):
            flat[path] = item
        elif item and all(isinstance(part, Mapping) and "name" in part for part in item):
            for part in item:
                named = flatten(part, f"{path}.{part['name']}.")
                named.pop(f"{path}.{part['name']}.name")
                flat |= named
        else:
            flat[path] = json.dumps(item)
    return flat
