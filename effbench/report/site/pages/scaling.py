"""Scaling (figures against batch size, bottlenecks) and cost (memory, compile time), as small multiples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.report.figures import all_figures
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder, model_ranges, models
from effbench.report.site.pages.cell import link
from effbench.report.tables import IS_UNCLEAR, bottleneck_table

BOTTLENECKS = (
    "Launch: the GPU waits for the host, so a CUDA graph helps. Memory, compute: the call is near the machine's limit. "
    "Latency: the kernels are too small or too inefficient to reach a limit."
)


def context(folder: PageFolder) -> Mapping[str, Any]:
    sections = [section for figure in all_figures(folder.page) if (section := folder.section(figure)).caption]
    if folder.page == "scaling":
        device_sweep = folder.device_sweep
        table = bottleneck_table(device_sweep.labelled, lambda row: link(device_sweep, row.source))
        caption = BOTTLENECKS + f" {IS_UNCLEAR.capitalize()}." * device_sweep.speedups.is_unclear
        sections.append(folder.table("why", table, caption, page=11, linked=True))
    names = models(folder.device_sweep)
    return {"sections": sections, "models": names, "ranges": model_ranges(names)}


SCRIPTS = (*GRIDS, *CHARTS, "models.js")
PAGES = [Page("scaling", "Scaling", context, scripts=SCRIPTS), Page("cost", "Cost", context, scripts=SCRIPTS)]
