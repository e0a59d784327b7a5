"""Each module holds a `FIGURE`, or `FIGURES` that share code. A figure names its `data` function (the report's frame →
a plain table) and its `draw` function (that table → a drawing); the page finds it by itself."""

from __future__ import annotations

import importlib
import pkgutil

from effbench.report.figures.base import Figure


def all_figures(page: str | None = None) -> list[Figure]:
    """Return the figures of every module in this package (of those on one page), in reading order."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    figures = [one for module in modules for one in getattr(module, "FIGURES", [getattr(module, "FIGURE", None)])]
    wanted = [figure for figure in figures if figure and page in (None, figure.page)]
    return sorted(wanted, key=lambda figure: (figure.order, figure.name))
