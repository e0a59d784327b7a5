"""Write the site."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from importlib.metadata import distribution
from operator import itemgetter
from pathlib import Path

import jinja2

from effbench.core.labels import flatten
from effbench.core.printable import one_line
from effbench.render import templating
from effbench.render.colors import style_of
from effbench.render.comparison import summary_lines
from effbench.render.data import DeviceSweep, ReportData
from effbench.render.marks import explain_marks
from effbench.render.site.page import Page, PageFolder
from effbench.render.site.pages import (
    cell,
    charts,
    claims,
    history,
    index,
    speedups,
)
from effbench.render.site.writer import Json, Writer
from effbench.render.summary import environment_line
from effbench.store.secrets import masked_url

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
ASSETS = "assets"
#: The sweeps that readers can choose, with their folders.
PICKER = "data/sweeps.js"
#: Page -> what returns the values of its template, in the order of the navigation.
PAGES = {
    index.PAGE: index.context,
    speedups.PAGE: speedups.context,
    charts.PAGE: charts.context,
    cell.PAGE: cell.context,
    history.PAGE: history.context,
    claims.PAGE: claims.context,
}


def write_site(data: ReportData, out: Path) -> Writer:
    """Write all pages into the folder `out`, creating it, and return the writer.

    Files are replaced atomically and `index.html` comes last, so that readers always see a complete
    site. Sweeps that are not on the overview are read, written and forgotten one by one, so that a
    large database needs little memory.
    """
    writer = Writer(Path(out))
    for path in [plotly_script(), *sorted(STATIC.iterdir())]:
        writer.text(f"{ASSETS}/{path.name}", path.read_text(encoding="utf-8"))
    site = Site(data, writer, environment())
    for device_sweep in data.device_sweeps:
        site.write_pages_of(device_sweep)
    for info in data.sweeps:
        for device_sweep in data.load(info):
            site.write_pages_of(device_sweep)
    writer.data(PICKER, sorted(site.held, key=itemgetter("started"), reverse=True))
    for page in reversed(PAGES):  # the overview comes last, when its link targets exist
        if not page.of_device_sweep:
            site.write_page(page)
    writer.close()
    return writer


def choice_of(device_sweep: DeviceSweep) -> Json:
    """Return what links to the pages of a device sweep need, and the picker shows."""
    sweep = device_sweep.sweep
    return {
        "folder": device_sweep.slug,
        "sweep": sweep.id,
        "name": device_sweep.name,
        "label": sweep.label,
        "started": when(sweep.started_at),
        "hardware": device_sweep.hardware,
        "environments": len(device_sweep.environments),
    }


@dataclass
class Site:
    """A site that is being written. `held`: the device sweeps whose pages it has so far, as
    `choice_of` returns them."""

    data: ReportData
    writer: Writer
    templates: jinja2.Environment
    held: list[Json] = field(default_factory=list)

    def write_pages_of(self, device_sweep: DeviceSweep) -> None:
        for page in PAGES:
            if page.of_device_sweep:
                self.write_page(page, device_sweep)
        self.held.append(choice_of(device_sweep))

    def write_page(self, page: Page, device_sweep: DeviceSweep | None = None) -> None:
        """Write the data of a page and its HTML."""
        folder = PageFolder(page.name, self.data, self.writer, device_sweep, self.held)
        values = {
            "page": page,
            "pages": PAGES,
            "device_sweep": device_sweep,
            "newest": self.data.device_sweeps[:1],
            "held": self.held,
            "database": masked_url(self.data.database),
        }
        template = self.templates.get_template(f"{page.name}.html.j2")
        html = template.render(values | dict(PAGES[page](folder)))
        self.writer.text(f"{folder.folder}{page.name}.html", html)


def plotly_script() -> Path:
    """Return Plotly's script, without importing Plotly, which is slow."""
    file = distribution("plotly").locate_file("plotly/package_data/plotly.min.js")
    return Path(str(file))


def environment() -> jinja2.Environment:
    env = templating.environment(TEMPLATES, autoescape=True)
    env.filters |= {
        "one_line": one_line,
        "sentence": sentence,
        "when": when,
    }
    env.globals |= {
        "assets": ASSETS,
        "picker": PICKER,
        "flatten": flatten,
        "vars": vars,
        "environment_line": environment_line,
        "explain_marks": explain_marks,
        "style_of": style_of,
        "summary_lines": summary_lines,
    }
    return env


def sentence(text: str) -> str:
    """Return a note as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def when(time: dt.datetime) -> str:
    """Return `2026-03-01 12:00 UTC`."""
    return f"{time:%Y-%m-%d %H:%M} UTC"
