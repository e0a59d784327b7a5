"""Figures as PNG or SVG files, rendered by kaleido and Chromium."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from effbench.errors import UsageError
from effbench.report.data import DeviceSweep
from effbench.report.figures import all_figures
from effbench.report.figures.base import safe
from effbench.report.site.writer import claim

WIDTH = 900  # pixels; a PNG has twice as many
NO_KALEIDO = "static images need kaleido: pip install 'effbench[export]'"
NO_BROWSER = (
    "static images need Chrome or Chromium, and kaleido found neither: install one (Debian: apt-get install chromium; "
    "elsewhere: plotly_get_chrome), or set BROWSER_PATH to its path"
)


def write_images(device_sweeps: Sequence[DeviceSweep], out: Path, form: str) -> list[Path]:
    """Write every figure as `out/images/SLUG/FIGURE-N.FORM` and return the paths.

    Raises UsageError if kaleido or its browser is missing.
    """
    try:
        import kaleido  # noqa: F401 - plotly's own error for its absence is a long traceback
        import plotly.io
    except ImportError as error:
        raise UsageError(NO_KALEIDO) from error
    images: dict[Path, go.Figure] = {}
    for device_sweep in device_sweeps:
        folder = out / "images" / device_sweep.slug
        for figure in all_figures():
            for number, (case, part) in enumerate(figure.parts(figure.data(device_sweep.frame))):
                title = f"{figure.title} · {case}" if case else figure.title
                images[folder / f"{figure.name}-{number}.{form}"] = alone(figure.draw(part).validated(), title)
    if not images:
        return []
    claim(out)
    for path in images:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        scale = 2 if form == "png" else 1
        plotly.io.write_images(list(images.values()), list(images), format=form, width=WIDTH, scale=scale)
    except Exception as error:  # kaleido's exception types differ between versions
        if re.search(r"chrome|browser", f"{type(error).__name__} {error}", re.IGNORECASE):
            raise UsageError(NO_BROWSER) from error
        raise
    return list(images)


def alone(figure: go.Figure, title: str) -> go.Figure:
    """Return the figure with title, legend and white background, which on the site the page provides."""
    named: set[str] = set()
    for trace in figure.data:
        trace.showlegend = trace.name is not None and trace.name not in named
        named.add(trace.name)
    figure.update_layout(
        template="plotly_white",
        paper_bgcolor="white",
        title={"text": safe(title), "x": 0.01, "font": {"size": 15}},
        margin={"t": 46},
        height=int(figure.layout.height) + 46,
        showlegend=True,
        legend={"orientation": "h", "y": -0.25},
    )
    return figure
