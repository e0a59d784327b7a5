"""Writes the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from effbench.analysis.swept import ABSENT, plain
from effbench.metrics import METRICS
from effbench.report.colors import DIVERGING, THEMES, style_of
from effbench.report.site.assets import FOLDER, write_assets
from effbench.report.site.material import Material, Subject
from effbench.report.site.pages import all_pages
from effbench.report.site.pages.base import Page, PageFolder
from effbench.report.site.parts import uncollected
from effbench.report.site.writer import Writer
from effbench.store.secrets import masked_url

TEMPLATES = Path(__file__).parent / "templates"
HOME = "index"


def write_site(material: Material, out: Path, also: Sequence[Path] = ()) -> Writer:
    """Write all pages into the folder `out` (made if need be); returns what was written. `also`:
    files in it that belong to the site and are there already.

    Each file is replaced in one step, `index.html` last, so that a site which is being read stays whole.
    """
    writer = Writer(Path(out))
    writer.written |= {path.relative_to(out).as_posix(): path.stat().st_size for path in also}
    write_assets(writer)
    env = environment()
    pages = all_pages()
    writer.text(f"{FOLDER}/theme.css", theme_css())
    writer.data(f"{FOLDER}/looks.js", looks())
    # the overview comes last: what it leads to is there by then; what was begun ahead is waited for late
    pages_in_order = sorted(pages, key=lambda page: (page.name == HOME, page.ahead is not None))
    folders = {
        page.name: [
            PageFolder(page.name, material, writer, subject)
            for subject in (material.subjects if page.of_subject else [None])
        ]
        for page in pages
    }
    with uncollected(), ExitStack() as stack:
        for page in pages:
            if page.ahead:
                stack.enter_context(page.ahead(folders[page.name]))
        material.complete()
        for page in pages_in_order:
            for folder in folders[page.name]:
                write_page(env, page, pages, folder)
    writer.close()
    return writer


def write_page(env: jinja2.Environment, page: Page, pages: list[Page], folder: PageFolder) -> None:
    """One page with its data."""
    root = "../" if folder.subject else ""
    material = folder.material
    # a page that is not about a subject leads to those of the first one
    subject = folder.subject or (material.subjects[0] if material.subjects else None)
    context = {
        "page": page,
        "root": root,
        "assets": f"{root}{FOLDER}",
        "nav": [(other, address(other, subject, root)) for other in pages if not other.of_subject or subject],
        "subject": folder.subject,
        "others": [(one, f"{root}{one.slug}/{page.name}.html") for one in material.subjects] if folder.subject else [],
        "material": material,
        "database": masked_url(material.database),
        "address": partial(address, root=root),
    }
    html = env.get_template(f"{page.name}.html.j2").render(context | dict(page.context(folder)))
    folder.writer.text(f"{folder.folder}{page.name}.html", html)


def address(page: Page | str, subject: Subject | None = None, root: str = "") -> str:
    """Where a page lies, from a page whose way to the site's top is `root`."""
    name = page if isinstance(page, str) else page.name
    of_subject = subject is not None if isinstance(page, str) else page.of_subject
    return f"{root}{subject.slug}/{name}.html" if of_subject and subject else f"{root}{name}.html"


def environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["metric"] = lambda value, name: METRICS[name].format(plain(value))
    env.filters["when"] = when
    env.globals["style_of"] = style_of
    return env


def when(value: Any) -> str:
    """A UTC time for a reader, from text or a datetime; an em dash for none."""
    value = plain(value)
    if value is None:
        return ABSENT
    time = pd.to_datetime(str(value), utc=True, errors="coerce")
    return str(value) if pd.isna(time) else f"{time:%Y-%m-%d %H:%M} UTC"


def theme_css() -> str:
    """The colours of both themes as variables: the reader's choice, else what the system says."""

    def variables(name: str) -> str:
        return " ".join(f"--{key}: {color};" for key, color in THEMES[name].items())

    return (
        f":root {{ color-scheme: light; {variables('light')} }}\n"
        f"@media screen {{\n:root[data-theme=dark] {{ color-scheme: dark; {variables('dark')} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) "
        f"{{ color-scheme: dark; {variables('dark')} }} }}\n}}\n"
    )


def looks() -> Mapping[str, Any]:
    """Colours that scripts need."""
    return {"themes": THEMES, "diverging": {name: [list(stop) for stop in DIVERGING[name]] for name in DIVERGING}}
