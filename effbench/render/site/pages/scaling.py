"""Figures against the number of devices, a section of the page of charts: their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from effbench.analysis.scaling import Scaling
from effbench.core.labels import LabelledResult, grouped
from effbench.render.site.page import PageFolder, estimates_of
from effbench.render.site.writer import Json

EFFICIENCY = "scaling_efficiency"


@dataclass(frozen=True)
class Panel:
    """A drawing of one cell and kind of `parallel`, with a line per mode. `at`: the number of its
    model among those that readers choose from; `source`: path of its data."""

    title: str
    at: int
    source: str


def panels_of(
    folder: PageFolder, scalings: Sequence[Scaling], axis: str, models: Sequence[str]
) -> list[Panel]:
    """Write the data of each drawing and return the drawings. `models`: curves over `axis`."""
    panels: list[Panel] = []
    for title, of_panel in grouped(scalings, title_of).items():
        points: dict[tuple[str, int], Json] = {}
        for scaling in of_panel:
            single, several, size = scaling.single, scaling.several, scaling.parallel.size
            points[single.mode_label, 1] = point(single, 1, scaling)
            points[several.mode_label, size] = point(several, size, scaling)
        at = models.index(of_panel[0].several.curve(axis))
        source = folder.data(f"scaling-{len(panels)}", list(points.values()))
        panels.append(Panel(title, at, source))
    return panels


def title_of(scaling: Scaling) -> str:
    return f"{scaling.several.curve('parallel')} · {scaling.parallel.kind}"


def point(row: LabelledResult, devices: int, scaling: Scaling) -> Json:
    """Return what the figures need of a result on this number of devices. One device is ideal."""
    estimates = estimates_of(row, [scaling.metric, EFFICIENCY])
    return {
        "model": title_of(scaling),
        "mode": row.mode_label,
        "x": devices,
        "status": row.status,
        "trials": row.trials,
        "mark": row.scaling_disturbance or row.disturbance,
        "figures": {
            "time": estimates[scaling.metric],
            EFFICIENCY: estimates.get(EFFICIENCY, {"value": 1.0, "text": "1"}),
        },
    }
