"""The pages of small multiples: scaling (against batch size, and bottlenecks) and cost (memory, compiling)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.report.figures import all_figures
from effbench.report.site.page import CHARTS, GRIDS, MODELS_A_PAGE, Page, PageFolder, models
from effbench.report.tables import bottleneck_table


def context(folder: PageFolder) -> Mapping[str, Any]:
    found = {
        "sections": [folder.section(figure) for figure in all_figures(folder.page)],
        "models": models(folder.device_sweep),
        "models_a_page": MODELS_A_PAGE,
    }
    if folder.page == "scaling":
        found["why"] = folder.grid("why", bottleneck_table(folder.device_sweep.labelled))
    return found


SCRIPTS = (*GRIDS, *CHARTS, "models.js")
PAGES = [Page("scaling", "Scaling", 30, context, scripts=SCRIPTS), Page("cost", "Cost", 40, context, scripts=SCRIPTS)]
