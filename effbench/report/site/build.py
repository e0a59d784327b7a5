"""Write the site."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import jinja2

from effbench.cell import digest
from effbench.printable import one_line
from effbench.report.colors import style_of
from effbench.report.data import DeviceSweep, ReportData
from effbench.report.marks import note
from effbench.report.site.page import HeldSweep, Page, PageFolder
from effbench.report.site.pages import (
    cell,
    charts,
    claims,
    history,
    index,
    speedups,
)
from effbench.report.site.writer import Writer
from effbench.report.summary import environment_facts, environment_line
from effbench.report.tables import IS_UNCLEAR
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
    site. Older sweeps are read, written and forgotten one by one, so that a large database needs
    little memory; pages of those that have not changed since the site was last written are kept.
    """
    writer = Writer(Path(out))
    for path in [plotly_script(), *sorted(STATIC.iterdir())]:
        writer.copy(f"{ASSETS}/{path.name}", path)
    site = Site(data, writer, environment())
    for device_sweep in data.device_sweeps:
        site.write_pages_of(device_sweep)
    site.write_older()
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

    def write_older(self) -> None:
        """Write the pages of each older sweep, or keep those that the site has."""
        code = fingerprint()
        for sweep in self.data.older:
            facts = [sweep.stamp, code, masked_url(self.data.database), self.data.axis]
            stamp = digest(facts)
            kept = self.writer.kept(sweep.info.id, stamp)
            if kept is not None:
                self.held += [HeldSweep(**held) for held in kept]
                continue
            written = set(self.writer.written)
            number = len(self.held)
            for device_sweep in self.data.load(sweep.info):
                self.write_pages_of(device_sweep)
            added = list(map(dataclasses.asdict, self.held[number:]))
            self.writer.remember(sweep.info.id, stamp, self.writer.written.keys() - written, added)

    def write_page(self, page: Page, device_sweep: DeviceSweep | None = None) -> None:
        folder = PageFolder(page.name, self.data, self.writer, device_sweep, self.held)
        if page.name == index.PAGE.name:
            newest_first = sorted(self.held, key=attrgetter("started_at"), reverse=True)
            self.writer.data(PICKER, [sweep.facts() for sweep in newest_first])
        self.writer.text(f"{folder.folder}{page.name}.html", self.html_of(page, folder))

    def html_of(self, page: Page, folder: PageFolder) -> str:
        """Write the data of a page, and return its HTML."""
        device_sweep = folder.device_sweep
        root = "../" if device_sweep else ""
        has_several = len(self.data.device_sweeps) + len(self.data.older) > 1
        has_picker = has_several and (device_sweep is not None or page is index.PAGE)
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
        return template.render(context | dict(page.context(folder)))

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


def fingerprint() -> str:
    """Return a hash of the code that writes pages, so that another version of effbench writes them
    anew."""
    package = Path(__file__).parents[2]
    hashed = hashlib.sha256()
    for path in sorted([*package.glob("*.py"), *(package / "report").rglob("*.*")]):
        if path.suffix in (".py", ".j2", ".js", ".css"):
            hashed.update(path.read_bytes())
    return hashed.hexdigest()


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
        "environment_facts": environment_facts,
        "environment_line": environment_line,
        "is_unclear": IS_UNCLEAR,
        "note": note,
        "style_of": style_of,
    }
    return env


def sentence(text: str) -> str:
    """Return a note as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def when(time: dt.datetime) -> str:
    """Return `2026-03-01 12:00 UTC`."""
    return f"{time:%Y-%m-%d %H:%M} UTC"
