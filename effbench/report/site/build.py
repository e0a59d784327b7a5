"""Writes the site."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from effbench.labels import ABSENT
from effbench.metrics import METRICS
from effbench.report.colors import DIVERGING, THEMES, style_of
from effbench.report.data import DeviceSweep, ReportData
from effbench.report.site.page import Page, PageFolder
from effbench.report.site.pages import all_pages
from effbench.report.site.pages.cell import cells_of_all
from effbench.report.site.writer import Writer
from effbench.store.secrets import masked_url
from effbench.table import Table

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
ASSETS = "assets"
HOME = "index"


def write_site(data: ReportData, out: Path, also: Sequence[Path] = ()) -> Writer:
    """Write all pages into the folder `out`, which is made, and return what was written. `also`: files in it that
    belong to the site and exist already.

    Each file is replaced in one step, `index.html` last, so that a site which is being read stays whole.
    """
    writer = Writer(Path(out))
    writer.written |= {path.relative_to(out).as_posix(): path.stat().st_size for path in also}
    writer.text(f"{ASSETS}/plotly.min.js", get_plotlyjs())
    for path in sorted(STATIC.iterdir()):
        writer.copy(f"{ASSETS}/{path.name}", path)
    writer.text(f"{ASSETS}/theme.css", theme_css())
    writer.data(f"{ASSETS}/looks.js", {"themes": THEMES, "diverging": DIVERGING})
    env, pages = environment(), all_pages()
    with uncollected(), cells_of_all(data.device_sweeps, writer) as chunks:
        # the overview comes last: what it leads to exists by then; the cells, which other processes write, before it
        for page in sorted(pages, key=lambda page: (page.name == HOME, page.name == "cell")):
            for device_sweep in data.device_sweeps if page.of_device_sweep else [None]:
                write_page(env, page, pages, PageFolder(page.name, data, writer, device_sweep, chunks))
    writer.close()
    return writer


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: with some million values in memory each search takes long and finds next to nothing,
    an eighth of the time of a large site."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def write_page(env: jinja2.Environment, page: Page, pages: list[Page], folder: PageFolder) -> None:
    """Write one page with its data."""
    own, data = folder.device_sweep, folder.report
    root = "../" if own else ""
    # a page that is not about a device sweep leads to those of the first one
    current = own or next(iter(data.device_sweeps), None)
    context = {
        "page": page,
        "root": root,
        "assets": f"{root}{ASSETS}",
        "nav": [(other, address(other, current, root)) for other in pages if not other.of_device_sweep or current],
        "device_sweep": own,
        "others": [(one, f"{root}{one.slug}/{page.name}.html") for one in data.device_sweeps] if own else [],
        "database": masked_url(data.database),
        "address": partial(address, root=root),
    }
    html = env.get_template(f"{page.name}.html.j2").render(context | dict(page.context(folder)))
    folder.writer.text(f"{folder.folder}{page.name}.html", html)


def address(page: Page | str, device_sweep: DeviceSweep | None = None, root: str = "") -> str:
    """Return where a page is, from a page whose way to the site's top is `root`."""
    name = page if isinstance(page, str) else page.name
    is_below = device_sweep is not None and (isinstance(page, str) or page.of_device_sweep)
    return f"{root}{device_sweep.slug}/{name}.html" if is_below else f"{root}{name}.html"


def environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable] = {"metric": lambda value, name: METRICS[name].format(value), "when": when}
    env.filters |= filters | {"table": html_table}
    env.globals["style_of"] = style_of
    return env


def html_table(table: Table, pinned: bool = False) -> Markup:
    """Return a table that the page shows as it is, in a box that scrolls; `Table` escapes all text. `pinned`: the first
    column stays in sight on a phone."""
    box = Markup('<div class="scroll{}" tabindex="0" role="region" aria-label="{}">\n{}</div>')
    return box.format(" pinned" if pinned else "", table.caption, Markup(table.render("html")))


def when(value: Any) -> str:
    """Return a UTC time for a reader, from text or a datetime; an em dash for none."""
    if value is None:
        return ABSENT
    time = pd.to_datetime(str(value), utc=True, errors="coerce")
    return str(value) if pd.isna(time) else f"{time:%Y-%m-%d %H:%M} UTC"


def theme_css() -> str:
    """Return the colours of both themes as variables: the reader's choice, or else the system's."""

    def variables(name: str) -> str:
        return " ".join(f"--{key}: {color};" for key, color in THEMES[name].items())

    return (
        f":root {{ color-scheme: light; {variables('light')} }}\n"
        f"@media screen {{\n:root[data-theme=dark] {{ color-scheme: dark; {variables('dark')} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) "
        f"{{ color-scheme: dark; {variables('dark')} }} }}\n}}\n"
    )
