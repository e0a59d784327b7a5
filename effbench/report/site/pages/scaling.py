"""Scaling: latency and throughput against batch size by mode, why graphs help, and what bounds each cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.report.figures import all_figures
from effbench.report.site.grid import Column, Grid
from effbench.report.site.material import Subject
from effbench.report.site.pages.base import CHARTS, GRIDS, MODELS, MODELS_A_PAGE, Page, PageFolder, models
from effbench.report.why_table import table_of


def context(folder: PageFolder) -> Mapping[str, Any]:
    tidy = folder.subject.tidy
    return {
        "sections": [folder.section(figure, tidy) for figure in all_figures("scaling")],
        "models": models(tidy),
        "models_a_page": MODELS_A_PAGE,
        "why": folder.grid("why", bounds(folder.subject)),
    }


def bounds(subject: Subject) -> Grid:
    """What bounds each cell, with the figures that say so."""
    table = table_of(subject.labelled)
    filters = {"model", "mode", "bound"}
    columns = [
        Column(heading, numeric=numeric, filter=heading in filters, wide=heading == "why")
        for heading, numeric in zip(table.headings, table.numeric, strict=True)
    ]
    return Grid("What bounds each cell", columns, table.rows)


PAGE = Page("scaling", "Scaling", 30, context, scripts=GRIDS + CHARTS + MODELS)
