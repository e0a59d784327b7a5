"""Write the site."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import jinja2

from effbench.analysis.verdicts import counts
from effbench.core.printable import one_line
from effbench.render.colors import style_of
from effbench.render.comparison import summary_lines
from effbench.render.data import DeviceSweep, ReportData
from effbench.render.marks import note
from effbench.render.site.page import HeldSweep, Page, PageFolder
from effbench.render.site.pages import (
    cell,
    charts,
    claims,
    history,
    index,
    speedups,
)
from effbench.render.site.writer import Writer
from effbench.render.summary import environment_facts, environment_line
from effbench.store.secrets import masked_url

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
ASSETS = "assets"
#: The sweeps that readers can choose: every page loads this file.
PICKER = "data/sweeps.js"
#: In the order of the navigation.
PAGES = (
    index.PAGE,
    speedups.PAGE,
    charts.PAGE,
    cell.PAGE,
    history.PAGE,
    claims.PAGE,
)


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
    newest_first = sorted(site.held, key=attrgetter("started_at"), reverse=True)
    writer.data(PICKER, [sweep.facts() for sweep in newest_first])
    for page in reversed(PAGES):  # the overview comes last, when its link targets exist
        if not page.of_device_sweep:
            site.write_page(page)
    writer.close()
    return writer


@dataclass
class Site:
    """A site that is being written. `held`: the device sweeps whose pages it has so far."""

    data: ReportData
    writer: Writer
    templates: jinja2.Environment
    held: list[HeldSweep] = field(default_factory=list)

    def write_pages_of(self, device_sweep: DeviceSweep) -> None:
        for page in PAGES:
            if page.of_device_sweep:
                self.write_page(page, device_sweep)
        self.held.append(HeldSweep.of(device_sweep))

    def write_page(self, page: Page, device_sweep: DeviceSweep | None = None) -> None:
        """Write the data of a page and its HTML."""
        folder = PageFolder(page.name, self.data, self.writer, device_sweep, self.held)
        root = "../" if device_sweep else ""
        has_picker = device_sweep is not None
        if page is index.PAGE:
            has_picker = bool(self.held)
        context = {
            "page": page,
            "root": root,
            "assets": f"{root}{ASSETS}",
            "nav": self.links(device_sweep, root),
            "device_sweep": device_sweep,
            "picker": f"{root}{PICKER}" if has_picker else "",
            "database": masked_url(self.data.database),
            "address": partial(address, root=root),
        }
        template = self.templates.get_template(f"{page.name}.html.j2")
        html = template.render(context | dict(page.context(folder)))
        self.writer.text(f"{folder.folder}{page.name}.html", html)

    def links(self, device_sweep: DeviceSweep | None, root: str) -> list[tuple[Page, str]]:
        """Return the pages of the navigation with their URLs. Pages without a device sweep link to
        the pages of the first one."""
        current = device_sweep
        if current is None and self.data.device_sweeps:
            current = self.data.device_sweeps[0]
        links = []
        for page in PAGES:
            if not page.of_device_sweep:
                links.append((page, address(page.name, root=root)))
            elif current is not None:
                links.append((page, address(page.name, current, root)))
        return links


def plotly_script() -> Path:
    """Return Plotly's script, without importing Plotly, which is slow."""
    package = find_spec("plotly")
    assert package is not None and package.origin is not None, "effbench depends on Plotly"
    return Path(package.origin).parent / "package_data" / "plotly.min.js"


def address(page: str, device_sweep: DeviceSweep | None = None, root: str = "") -> str:
    """Return the relative URL of a page. `root`: path from the linking page to the top of the
    site."""
    if device_sweep:
        return f"{root}{device_sweep.slug}/{page}.html"
    return f"{root}{page}.html"


def environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "one_line": one_line,
        "sentence": sentence,
        "when": when,
    }
    env.globals |= {
        "counts": counts,
        "environment_facts": environment_facts,
        "environment_line": environment_line,
        "note": note,
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
