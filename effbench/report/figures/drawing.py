"""Plotly figures as plain values.

Plotly's own classes check each property of each trace, about 50 ms a figure, and a report has hundreds; here the tests
do that (`validated`).
"""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go

from effbench.analysis.swept import plain

_COMPACT: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False, "ensure_ascii": False}


def scatter(**settings: Any) -> dict[str, Any]:
    return {"type": "scatter", **settings}


def bar(**settings: Any) -> dict[str, Any]:
    return {"type": "bar", **settings}


def heatmap(**settings: Any) -> dict[str, Any]:
    return {"type": "heatmap", **settings}


class Drawing:
    """`data`: traces; `layout`: a mapping. Both by Plotly's names, without its underscores for nested ones."""

    def __init__(self, layout: dict[str, Any]) -> None:
        self.data: list[dict[str, Any]] = []
        self.layout = dict(layout)

    def add_trace(self, trace: dict[str, Any]) -> None:
        self.data.append(trace)

    def add_annotation(self, **settings: Any) -> None:
        self.layout.setdefault("annotations", []).append(settings)

    def add_hline(self, y: float, **settings: Any) -> None:
        """A horizontal line over the whole width."""
        shape = {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "y0": y, "y1": y, "yref": "y"}
        self.layout.setdefault("shapes", []).append(shape | settings)

    def add_vline(self, x: float, **settings: Any) -> None:
        """A vertical line over the whole height."""
        shape = {"type": "line", "x0": x, "x1": x, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain"}
        self.layout.setdefault("shapes", []).append(shape | settings)

    def update_layout(self, **settings: Any) -> None:
        _merge(self.layout, settings)

    def to_dict(self) -> dict[str, Any]:
        return {"data": self.data, "layout": self.layout}

    def to_json(self) -> str:
        """NaN is null."""
        try:
            return json.dumps(self.to_dict(), **_COMPACT, default=_listed)
        except ValueError:
            return json.dumps(_finite(self.to_dict()), **_COMPACT)

    def validated(self) -> go.Figure:
        """The same as Plotly's own class. Raises ValueError for what Plotly does not know."""
        return go.Figure(json.loads(self.to_json()))


def _merge(old: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            _merge(old[key], value)
        else:
            old[key] = value


def _listed(value: Any) -> Any:
    """Of numpy and pandas."""
    return _finite(value.tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return plain(value)
