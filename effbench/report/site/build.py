"""Write the site."""

from __future__ import annotations

import datetime as dt
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import jinja2
from markupsafe import Markup

from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.data import DeviceSweep, ReportData
from effbench.report.site.page import Page, PageFolder
from effbench.report.site.pages import cell, claims, environments, failures, history, index, scaling, speedups
from effbench.report.site.writer import Writer
from effbench.store.secrets import masked_url
from effbench.table import Table

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
ASSETS = "assets"
#: In the order of the navigation.
PAGES = (
    index.PAGE, speedups.PAGE, *scaling.PAGES, cell.PAGE, history.PAGE, claims.PAGE, failures.PAGE, environments.PAGE,
)  # fmt: skip


def write_site(data: ReportData, out: Path) -> Writer:
    """Write all pages into the folder `out`, creating it, and return the writer.

    Files are replaced atomically and `index.html` comes last, so that readers always see a complete site.
    """
    writer = Writer(Path(out))
    # without importing Plotly, which is slow
    plotly = Path(find_spec("plotly").origin).parent / "package_data" / "plotly.min.js"
    writer.copy(f"{ASSETS}/{plotly.name}", plotly)
    for path in sorted(STATIC.iterdir()):
        writer.copy(f"{ASSETS}/{path.name}", path)
    env = environment()
    for page in reversed(PAGES):  # the overview comes last, when its link targets exist
        for device_sweep in data.device_sweeps if page.of_device_sweep else [None]:
            folder = PageFolder(page.name, data, writer, device_sweep)
            writer.text(f"{folder.folder}{page.name}.html", html_of(env, page, folder))
    writer.close()
    return writer


def html_of(env: jinja2.Environment, page: Page, folder: PageFolder) -> str:
    """Write the data of a page, and return its HTML."""
    device_sweep, data = folder.device_sweep, folder.report
    root = "../" if device_sweep else ""
    # pages without a device sweep link to the pages of the first one
    current = device_sweep or next(iter(data.device_sweeps), None)
    context = {
        "page": page,
        "root": root,
        "assets": f"{root}{ASSETS}",
        "nav": [
            (other, address(other.name, current if other.of_device_sweep else None, root))
            for other in PAGES
            if current or not other.of_device_sweep
        ],
        "device_sweep": device_sweep,
        "others": [(it, address(page.name, it, root)) for it in data.device_sweeps] if device_sweep else [],
        "database": masked_url(data.database),
        "address": partial(address, root=root),
        "lead": "",
        "notes": [],
        "models": [],
    }
    template = env.select_template([f"{page.name}.html.j2", "page.html.j2"])
    return template.render(context | dict(page.context(folder)))


def address(page: str, device_sweep: DeviceSweep | None = None, root: str = "") -> str:
    """Return the relative URL of a page. `root`: path from the linking page to the top of the site."""
    return f"{root}{device_sweep.slug}/{page}.html" if device_sweep else f"{root}{page}.html"


def environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"metric": lambda value, name: METRICS[name].format(value), "when": when, "table": html_table}
    env.globals["style_of"] = style_of
    return env


def html_table(table: Table, pinned: bool = False) -> Markup:
    """Return a static HTML table in a box that scrolls; `Table` escapes all text. `pinned`: keep the first column
    visible on a phone."""
    box = Markup('<div class="scroll{}" tabindex="0" role="region" aria-label="{}">\n{}</div>')
    return box.format(" pinned" if pinned else "", table.caption, Markup(table.render("html")))


def when(time: dt.datetime) -> str:
    """Return `2026-03-01 12:00 UTC`."""
    return f"{time:%Y-%m-%d %H:%M} UTC"
