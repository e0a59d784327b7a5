"""What distinguishes the rows of a frame: which columns and parameters were swept beside model, bs and mode.

Standard library and the core types only. A figure or table of model × bs × mode would merge rows that differ in more
(dtype, an input shape, the interpreter); here each row gets labels that keep it apart.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from effbench.cell import Cell

#: Canonical order of the modes; any other follows alphabetically.
MODES = (
    "eager",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
    "cuda-graph",
    "compile+graph",
)
#: Columns of the view, and of `environments.labelled`, that become a label when they vary, in this order.
COLUMNS = ("dtype", "phase", "device", "gpu_name", "torch_version", "python", "interpreter", "folder")
#: Columns of the environment among the labels.
PLACES = ("gpu_name", "torch_version", "python", "interpreter", "folder", "environment_id")
#: Parameters that have a column of their own.
_STREAM = "stream.name"
_COVERED = frozenset(
    {"bs", "dtype", "phase", "device", "model.name", "mode.name", _STREAM, "stream.samples_per_call", "stream.sizes"}
)
_FALLBACKS = ("sweep_id", "environment_id")
ABSENT = "—"


@dataclass
class SweptRow:
    """One row of the view: `labels` (model, further swept parameters, bs, in reading order), `mode`, `source`.

    `mode` is the mode's name, followed by its own swept settings where there are any; `base_mode` is the bare name.
    """

    labels: dict[str, Any]
    mode: str
    base_mode: str
    source: dict[str, Any]

    @property
    def case(self) -> str:
        """All labels but bs, as one line: what a curve over bs belongs to."""
        extra = [f"{name}={value}" for name, value in self.labels.items() if name not in ("model", "bs")]
        return " · ".join([str(self.labels["model"]), *extra])

    @property
    def where(self) -> str:
        """Of the labels those that say where it was measured, `torch_version=2.13.0`; empty where that is one place."""
        return " ".join(f"{name}={value}" for name, value in self.labels.items() if name in PLACES)

    @property
    def name(self) -> str:
        """All of it on one line, as progress and reasons say it: `Net how=fast bs=2 default (fullgraph=True) float32`;
        without what the row does not say."""
        extra = [f"{name.removeprefix('model.').removeprefix('module.')}={value}"
                 for name, value in self.labels.items() if name not in ("model", "bs", "dtype")]  # fmt: skip
        own = self.source
        words = [
            None if own.get("model") is None else str(self.labels["model"]), *extra,
            None if own.get("bs") is None else f"bs={self.labels['bs']}",
            None if own.get("mode") is None else self.mode, None if own.get("dtype") is None else str(own["dtype"]),
        ]  # fmt: skip
        return " ".join(word for word in words if word)


def row_names(rows: list[dict[str, Any]]) -> list[str]:
    """A name for each row (built-in values) that tells it from all others."""
    names = {id(swept.source): swept.name for swept in swept_rows(rows)}
    return [names[id(row)] for row in rows]


def cell_names(cells: Iterable[Cell]) -> dict[str, str]:
    """The same for cells, by their keys."""
    found = {cell.key: cell for cell in cells}
    rows = [
        {"model": cell.model_name, "bs": cell.bs, "mode": cell.mode_name, "dtype": cell.dtype, "phase": cell.phase,
         "device": cell.device, "params": cell.params()}
        for cell in found.values()
    ]  # fmt: skip
    return dict(zip(found, row_names(rows), strict=True))


def plain(value: Any) -> Any:
    """`value` as a built-in type; NaN, infinities, NaT and NA become None."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "item") and not isinstance(value, (list, dict, str)):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain_rows(frame_or_rows: Any) -> list[dict[str, Any]]:
    """A DataFrame or an iterable of mappings as a list of dicts of built-in values."""
    rows: Iterable[Mapping[str, Any]] = frame_or_rows
    if hasattr(frame_or_rows, "to_dict"):
        rows = frame_or_rows.to_dict("records")
    return [{str(name): plain(value) for name, value in row.items()} for row in rows]


def swept_rows(rows: list[dict[str, Any]]) -> list[SweptRow]:
    """Label `rows` (built-in values) so that no two share labels and mode; sorted by model, labels and bs.

    Models come in order of first appearance, so do values of further labels; bs numerically.
    """
    params = [flatten(_parse(row.get("params"))) for row in rows]
    columns = [name for name in COLUMNS if _varies(row.get(name) for row in rows)]
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[(row.get("model"), row.get("mode"), *(_text(row.get(name)) for name in columns))].append(index)
    of_row: set[str] = set()
    of_mode: dict[str, set[str]] = defaultdict(set)
    for (_, mode, *_), members in groups.items():
        for path in {path for index in members for path in params[index]} - _COVERED - of_row:
            if _varies(params[index].get(path) for index in members):
                (of_mode[mode] if path.startswith("mode.") else of_row).add(path)

    paths_of_row = _undetermined(of_row, rows, columns, params)
    # also where all have the same: bs is the largest size of a stream and would pass for the only one
    has_streams = any(_STREAM in values for values in params)
    result = []
    for row, values in zip(rows, params, strict=True):
        labels: dict[str, Any] = {"model": _text(row.get("model"))}
        labels |= {name: _text(row.get(name)) for name in columns}
        labels |= {path: _text(values.get(path)) for path in paths_of_row}
        labels |= {"stream": _text(values.get(_STREAM))} if has_streams else {}
        labels["bs"] = row.get("bs") if row.get("bs") is None else int(row["bs"])
        base = _text(row.get("mode"))
        paths = sorted(of_mode[row.get("mode")] & values.keys())
        settings = ", ".join(f"{path.removeprefix('mode.')}={_text(values[path])}" for path in paths)
        result.append(SweptRow(labels, f"{base} ({settings})" if settings else base, base, row))
    _keep_apart(result)
    return _sorted(result)


def mode_order(modes: Iterable[tuple[str, str]]) -> list[str]:
    """Distinct modes, given as (name, bare name), in canonical order, others alphabetically."""
    rank = {name: index for index, name in enumerate(MODES)}
    return [name for name, _ in sorted(set(modes), key=lambda pair: (rank.get(pair[1], len(MODES)), pair[1], pair[0]))]


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Hashable]:
    """Nested mappings as dotted paths, lists of named things (a model's inputs) by their names; other lists become
    their JSON text."""
    flat: dict[str, Hashable] = {}
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping):
            flat |= flatten(item, f"{path}.")
        elif isinstance(item, list) and item and all(isinstance(part, Mapping) and "name" in part for part in item):
            for part in item:
                flat |= flatten(
                    {name: inner for name, inner in part.items() if name != "name"}, f"{path}.{part['name']}."
                )
        else:
            flat[path] = json.dumps(item) if isinstance(item, list) else item
    return flat


def _undetermined(
    paths: set[str], rows: list[dict[str, Any]], columns: list[str], params: list[dict[str, Hashable]]
) -> list[str]:
    """The paths that tell more than the labels before them: not a cache size that follows bs, not an input's shape that
    follows a width. Arguments of the module come first, as inputs refer to them."""
    known = [tuple(_text(row.get(name)) for name in ("model", "bs", *columns)) for row in rows]
    kept = []
    for path in sorted(paths, key=lambda path: (not path.startswith("model.module."), path)):
        values = [_text(values.get(path)) for values in params]
        if len(set(zip(known, values, strict=True))) > len(set(known)):
            kept.append(path)
            known = [(*before, value) for before, value in zip(known, values, strict=True)]
    return sorted(kept)


def _parse(params: Any) -> dict[str, Any]:
    if isinstance(params, str):
        params = json.loads(params)
    return params if isinstance(params, dict) else {}


def _varies(values: Iterable[Any]) -> bool:
    return len({_text(value) for value in values}) > 1


def _text(value: Any) -> str:
    return ABSENT if value is None else str(value)


def _keep_apart(rows: list[SweptRow]) -> None:
    """Add a label until no two rows share labels and mode."""

    def clash() -> bool:
        return len({(*row.labels.values(), row.mode) for row in rows}) < len(rows)

    def add(name: str, values: list[str]) -> None:
        for row, value in zip(rows, values, strict=True):
            bs = row.labels.pop("bs")
            row.labels |= {name: value, "bs": bs}

    for name in _FALLBACKS:
        if clash() and _varies(row.source.get(name) for row in rows):
            add(name, [_text(row.source.get(name)) for row in rows])
    if clash():
        seen: dict[tuple, int] = defaultdict(int)
        numbers = []
        for row in rows:
            key = (*row.labels.values(), row.mode)
            seen[key] += 1
            numbers.append(str(seen[key]))
        add("#", numbers)


def _sorted(rows: list[SweptRow]) -> list[SweptRow]:
    first: dict[tuple[str, Any], int] = {}
    for index, row in enumerate(rows):
        for item in row.labels.items():
            first.setdefault(item, index)

    def key(row: SweptRow) -> tuple:
        others = tuple(first[item] for item in row.labels.items() if item[0] != "bs")
        return (*others, row.labels["bs"] if row.labels["bs"] is not None else -1)

    return sorted(rows, key=key)
