"""Charts: figures against batch size, memory and compile time, with a drawing per model.

The page loads the results of a model and draws them with `static/figures.js`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from effbench.analysis.scaling import scalings_of
from effbench.core.labels import (
    LabelledResult,
    LabelledResults,
    axis_of,
    grouped,
    modes_of,
    short_label,
)
from effbench.core.metrics import METRICS
from effbench.render.colors import style_of
from effbench.render.site.page import CHARTS, Context, Page, PageFolder, estimates_of
from effbench.render.site.pages import coldstart
from effbench.render.site.pages import scaling as scaling_data
from effbench.render.site.writer import Json

#: Models that a page shows at a time.
MODELS_A_PAGE = 8
#: Label on the x axis -> its title; others are their own title.
TITLES = {
    "bs": "batch size (samples)",
    "stream.rate": "arrival rate (requests/s)",
    "generate.prompt": "prompt length (tokens)",
    "generate.new_tokens": "new tokens",
}


@dataclass(frozen=True)
class Plot:
    """A section of the page. `kind`: `lines` of the first metric against the x axis, `bars` with
    the metrics in front of each other, or `dots` in a row per mode. `quantity`: title of the axis
    with the values. `hover`: further metrics in the texts on hover. `of_failed`: whether it also
    draws results that are not ok. `is_fraction`: the axis with the values begins at 0, instead of
    being logarithmic."""

    name: str
    title: str
    kind: Literal["lines", "bars", "dots"]
    quantity: str
    metrics: tuple[str, ...]
    caption: str
    hover: tuple[str, ...] = ()
    of_failed: bool = False
    is_fraction: bool = False

    def draws(self, row: LabelledResult) -> bool:
        """Return whether a result has a value to draw."""
        if not row.is_ok and not self.of_failed:
            return False
        return any(row.value(metric) is not None for metric in self.metrics)


LATENCY = Plot(
    "latency",
    "Latency against {axis}",
    "lines",
    "latency (ms)",
    ("latency_ms",),
    "Latency of one call (arrivals: of one request) on logarithmic axes. Bars are 95 % intervals"
    " across trials, omitted if the upper bound is over 100 times the lower one. Lines break at"
    " results that are not ok, which the page Cells lists.",
    hover=("period_ms", "throughput_per_s"),
)
THROUGHPUT = Plot(
    "throughput",
    "Throughput against {axis}",
    "lines",
    "throughput (samples/s)",
    ("throughput_per_s",),
    "The device is saturated where a line flattens. Samples per second of back-to-back calls (on"
    " CPUs and in generation: of single calls) on logarithmic axes; bars are 95 % intervals.",
    hover=("period_ms",),
)
MEMORY = Plot(
    "memory",
    "Memory",
    "bars",
    "device memory (MiB)",
    ("peak_reserved_bytes", "graph_pool_bytes"),
    "Peak reserved device memory in steady state, with a warm compile cache. The hatched part is"
    " the memory of graph pools.",
    hover=("peak_reserved_cold_bytes", "peak_allocated_bytes", "relative_memory"),
)
COMPILE = Plot(
    "compile",
    "Compile time",
    "dots",
    "compile time (s)",
    ("compile_cold_s", "compile_warm_s"),
    "Filled marks: empty compile cache. Open marks: cache filled by the same cell. Each size has"
    " its own mark; imports are not included.",
    hover=("first_call_s", "break_even_calls"),
    of_failed=True,
)
PLOTS = (LATENCY, THROUGHPUT, MEMORY, COMPILE)
EFFICIENCY = Plot(
    "efficiency",
    "Scaling efficiency",
    "lines",
    "efficiency (1: ideal)",
    (scaling_data.EFFICIENCY,),
    "Ideal time ÷ measured time. Tensor parallel (tp) divides a call among devices: ideally, two"
    " take half of the time. In data parallel training (ddp, fsdp) each device has a batch of its"
    " own: ideally, a step takes the same time. Bars are 95 % intervals.",
    hover=("time",),
    is_fraction=True,
)
DEVICES = Plot(
    "devices",
    "Time against the number of devices",
    "lines",
    "time (ms)",
    ("time",),
    "Period of back-to-back calls, or latency if there is no period, on logarithmic axes.",
    hover=(scaling_data.EFFICIENCY,),
)
SCALING_PLOTS = (EFFICIENCY, DEVICES)


@dataclass
class Section:
    """A plot with its modes, and its models as numbers of files."""

    plot: Plot
    modes: list[str]
    models: dict[str, int]


@dataclass
class ScalingSection:
    """The drawings of SCALING_PLOTS, with the modes in them. `index`: path of what they share."""

    index: str
    modes: list[str]
    panels: list[scaling_data.Panel]


def context(folder: PageFolder) -> Context:
    rows = folder.subject.rows
    axis = axis_of(rows)
    rows = [row for row in rows if math.isfinite(row.number(axis))]
    models = grouped(rows, lambda row: row.curve(axis))
    metrics = {name: METRICS[name].title for plot in PLOTS for name in plot.metrics + plot.hover}
    for number, of_model in enumerate(models.values()):
        folder.data(str(number), [point(row, axis, metrics) for row in of_model])
    sections = sections_of(rows, axis, list(models))
    title = TITLES.get(axis, short_label(axis))
    index = {
        "axis": {"label": short_label(axis), "title": title},
        "figures": {section.plot.name: asdict(section.plot) for section in sections},
        "metrics": metrics,
        "modes": {name: asdict(style_of(name)) for name in modes_of(rows)},
    }
    return {
        "axis": title.partition(" (")[0],
        "index": folder.data("index", index),
        "sections": sections,
        "coldstart": coldstart.section_of(folder, rows, axis, list(models)),
        "scaling": scaling_of(folder, rows, axis, list(models)),
        "scaling_plots": SCALING_PLOTS,
        "models": list(models),
        "models_a_page": MODELS_A_PAGE,
    }


def sections_of(rows: LabelledResults, axis: str, models: list[str]) -> list[Section]:
    """Return the plots that these results have on this axis."""
    sections = []
    for plot in PLOTS:
        drawn = [row for row in rows if plot.draws(row)]
        if not drawn:
            continue
        shown = {row.curve(axis) for row in drawn}
        numbers = {model: number for number, model in enumerate(models) if model in shown}
        sections.append(Section(plot, modes_of(drawn), numbers))
    return sections


def scaling_of(
    folder: PageFolder, rows: LabelledResults, axis: str, models: list[str]
) -> ScalingSection | None:
    """Return the plots against the number of devices; None if no result on several devices has a
    counterpart on one."""
    scalings = scalings_of(rows)
    if not scalings:
        return None
    modes = modes_of([scaling.several for scaling in scalings])
    index = {
        "axis": {"label": "devices", "title": "number of devices"},
        "figures": {plot.name: asdict(plot) for plot in SCALING_PLOTS},
        "metrics": {"time": "time", scaling_data.EFFICIENCY: "efficiency"},
        "modes": {name: asdict(style_of(name)) for name in modes},
    }
    path = folder.data("scaling-index", index)
    panels = scaling_data.panels_of(folder, scalings, axis, models)
    return ScalingSection(path, modes, panels)


def point(row: LabelledResult, axis: str, metrics: Iterable[str]) -> Json:
    """Return what the plots need of a result."""
    return {
        "model": row.curve(axis),
        "mode": row.mode_label,
        "x": row.number(axis),
        "status": row.status,
        "trials": row.trials,
        "mark": row.disturbance,
        "figures": estimates_of(row, metrics),
    }


PAGE = Page("charts", "Charts", scripts=(*CHARTS, "figures.js", "models.js"))
