"""The first answer of fresh processes, a section of the page of charts: its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from effbench.analysis.coldstart import ColdStart, case_of, cold_starts_of
from effbench.core.labels import LabelledResults, grouped
from effbench.core.metrics import COLD_PARTS
from effbench.core.table import Table
from effbench.render.coldstart import seconds_of, sentences, tables, title_of
from effbench.render.site.page import PageFolder
from effbench.render.site.pages.scaling import Panel
from effbench.render.site.writer import Json

NAME = "coldstart"
#: Part -> its colour: grey before the mode is prepared. Distinct in common colour vision, on light
#: and dark.
COLORS = {
    "cold_interpreter_s": "#c2c9d1",
    "cold_imports_s": "#a1abb6",
    "cold_device_s": "#828d99",
    "cold_build_s": "#66717d",
    "cold_load_s": "#56b4e9",
    "cold_trace_s": "#e69f00",
    "cold_compile_s": "#d55e00",
    "cold_autotune_s": "#cc79a7",
    "cold_capture_s": "#0072b2",
    "cold_first_call_s": "#009e73",
}


@dataclass(frozen=True)
class ColdSection:
    """A drawing for each case, with a bar for each mode and cache. `name`: of the drawing in
    figures.js; `index`: path of what they share."""

    index: str
    panels: list[Panel]
    sentences: list[str]
    table: Table
    name: str = NAME
    title: str = "First answer of a fresh process"
    caption: str = (
        "Seconds since the start of the process, in order. Grey: start, imports, model; coloured:"
        " preparing the mode, and the first call. Click on a part to hide it."
    )


def section_of(
    folder: PageFolder, rows: LabelledResults, axis: str, models: Sequence[str]
) -> ColdSection | None:
    """Write the data of the drawings and return the section; None without cold starts. `models`:
    curves over `axis`."""
    starts = cold_starts_of(rows)
    if not starts:
        return None
    shown = [part for part in COLD_PARTS if any(start.row.value(part) for start in starts)]
    parts = [{"name": part, "title": title_of(part), "color": COLORS[part]} for part in shown]
    figure = {"kind": "stack", "quantity": "seconds until the first answer", "parts": parts}
    index = folder.data("coldstart-index", {"figures": {NAME: figure}})
    panels: list[Panel] = []
    for case, of_case in grouped(starts, lambda start: case_of(start.row)).items():
        source = folder.data(f"coldstart-{len(panels)}", list(map(bar_of, of_case)))
        at = models.index(of_case[0].row.curve(axis))
        panels.append(Panel(case, at, source))
    return ColdSection(index, panels, sentences(starts), tables(starts)[0])


def bar_of(start: ColdStart) -> Json:
    """Return what the drawing needs of a cold start."""
    row = start.row
    return {
        "name": f"{row.mode_label}, {start.cache}",
        "total": seconds_of(row),
        "mark": row.disturbance,
        "parts": {part: row.value(part) for part in COLD_PARTS},
    }
