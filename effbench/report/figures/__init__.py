"""One file a figure. Each module holds a `FIGURE` that names its `data` function (the report's frame → a plain table)
and its `draw` function (that table → a drawing); the page finds it by itself."""

from __future__ import annotations

import importlib
import pkgutil

from effbench.report.figures.base import Figure


def all_figures(page: str | None = None) -> list[Figure]:
    """Return the `FIGURE` of every module in this package (of those on one page), in reading order."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    figures = [module.FIGURE for module in modules if hasattr(module, "FIGURE")]
    wanted = [figure for figure in figures if page in (None, figure.page)]
    return sorted(wanted, key=lambda figure: (figure.order, figure.name))
