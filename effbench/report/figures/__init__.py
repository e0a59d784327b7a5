"""Figures of the report: each module defines a `FIGURE` or several `FIGURES`, which `all_figures`
finds. A figure's `data` function selects rows and columns of the report's results, and its `draw`
function draws them."""

from __future__ import annotations

import importlib
import pkgutil

from effbench.report.figures.base import Figure


def all_figures(page: str | None = None) -> list[Figure]:
    """Return all figures, or those of one page, in reading order."""
    modules = [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    ]
    figures = [
        it
        for module in modules
        for it in getattr(module, "FIGURES", [getattr(module, "FIGURE", None)])
    ]
    wanted = [figure for figure in figures if figure and page in (None, figure.page)]
    return sorted(wanted, key=lambda figure: (figure.order, figure.name))
