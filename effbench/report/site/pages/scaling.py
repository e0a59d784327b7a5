"""The pages of small multiples: scaling (against batch size, and bottlenecks) and cost (memory, compiling)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.report.figures import all_figures
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder, model_ranges, models
from effbench.report.tables import bottleneck_table

BOTTLENECKS = (
    "Launch: the GPU waits for the host. Memory, compute: a ceiling of this machine is near. Latency: kernels too small"
    " for either. Of a profiled pass, on CUDA only."
)


def context(folder: PageFolder) -> Mapping[str, Any]:
    sections = [folder.section(figure) for figure in all_figures(folder.page)]
    if folder.page == "scaling":
        sections.append(folder.table("why", bottleneck_table(folder.device_sweep.labelled), BOTTLENECKS))
    names = models(folder.device_sweep)
    return {"sections": sections, "models": names, "ranges": model_ranges(names)}


SCRIPTS = (*GRIDS, *CHARTS, "models.js")
PAGES = [Page("scaling", "Scaling", 30, context, scripts=SCRIPTS), Page("cost", "Cost", 40, context, scripts=SCRIPTS)]
