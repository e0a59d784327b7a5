"""Scaling: latency and throughput against batch size by mode, and why graphs help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.report.figures import all_figures
from effbench.report.site.pages.base import CHARTS, GRIDS, Page, PageFolder


def context(folder: PageFolder) -> Mapping[str, Any]:
    tidy = folder.subject.tidy
    return {"sections": [folder.section(figure, tidy) for figure in all_figures("scaling")], "models": models(tidy)}


def models(tidy: Any) -> list[str]:
    """What the page's small multiples can be narrowed to."""
    return list(dict.fromkeys(tidy["case"]))


PAGE = Page("scaling", "Scaling", 30, context, scripts=GRIDS + CHARTS)
