"""Cost: memory against latency, compile time, and when it has paid back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.report.figures import all_figures
from effbench.report.site.pages.base import CHARTS, GRIDS, MODELS, MODELS_A_PAGE, Page, PageFolder, models


def context(folder: PageFolder) -> Mapping[str, Any]:
    tidy = folder.subject.tidy
    return {
        "sections": [folder.section(figure, tidy) for figure in all_figures("cost")],
        "models": models(tidy),
        "models_a_page": MODELS_A_PAGE,
    }


PAGE = Page("cost", "Cost", 40, context, scripts=GRIDS + CHARTS + MODELS)
