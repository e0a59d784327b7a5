"""Figures of the report: each module defines a `FIGURE` or several `FIGURES`, which `all_figures`
finds. A figure's `data` function selects points and columns of the report's results, and its `draw`
function draws them."""

from __future__ import annotations

import importlib
import pkgutil

from effbench.render.figures.base import Figure


def all_figures() -> list[Figure]:
    """Return all figures, in reading order."""
    figures: list[Figure] = []
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        figures += getattr(module, "FIGURES", ())
        if hasattr(module, "FIGURE"):
            figures.append(module.FIGURE)
    return sorted(figures, key=lambda figure: (figure.order, figure.name))
