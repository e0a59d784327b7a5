"""Scaling (figures against batch size, bottlenecks) and cost (memory, compile time), as small
multiples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.report.figures import all_figures
from effbench.report.marks import note
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder, Section, model_ranges, models
from effbench.report.site.pages.cell import link
from effbench.report.tables import IS_UNCLEAR, bottleneck_table, no_bottlenecks

BOTTLENECKS = (
    "Launch: the GPU waits for the host, so a CUDA graph helps. Memory, compute: the call is near"
    " the machine's limit. Latency: the kernels are too small or too inefficient to reach a limit."
)


def context(folder: PageFolder) -> Mapping[str, Any]:
    device_sweep = folder.device_sweep
    figures = all_figures(folder.page)
    sections = [section for section in map(folder.section, figures) if section.tables]
    notes = []
    if folder.page == "scaling":
        nothing = no_bottlenecks(device_sweep.labelled)
        if nothing is None:
            sections.append(bottlenecks(folder))
        else:
            notes.append(f"{nothing[0].upper()}{nothing[1:]}.")
    lead = "" if sections else " ".join(figure.absent for figure in figures if figure.absent)
    marks = note(device_sweep.labelled) if sections else ""
    if marks:
        notes.insert(0, f"{marks} Their symbols in the figures are open or pale.")
    names = models(device_sweep) if sections else []
    return {
        "lead": lead,
        "sections": sections,
        "notes": notes,
        "models": names,
        "ranges": model_ranges(names),
    }


def bottlenecks(folder: PageFolder) -> Section:
    """Return the section with the bottleneck of each cell."""
    device_sweep = folder.device_sweep
    table = bottleneck_table(device_sweep.labelled, lambda row: link(device_sweep, row.source))
    caption = BOTTLENECKS
    if device_sweep.speedups.is_unclear:
        caption += f" {IS_UNCLEAR.capitalize()}."
    return folder.table("why", table, caption, page=11, linked=True)


SCRIPTS = (*GRIDS, *CHARTS, "models.js")
PAGES = [
    Page("scaling", "Scaling", context, scripts=SCRIPTS),
    Page("cost", "Cost", context, scripts=SCRIPTS),
]
