"""One file a figure. Each module holds a `data` function (view → plain DataFrame), a `draw` function
(that DataFrame → Plotly figure) and a `FIGURE` that names both; the page finds it by itself."""

from __future__ import annotations

import importlib
import pkgutil

from effbench.report.figures.base import Figure


def all_figures() -> list[Figure]:
    """The `FIGURE` of every module in this package, in reading order."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return sorted((m.FIGURE for m in modules if hasattr(m, "FIGURE")), key=lambda figure: (figure.order, figure.name))
