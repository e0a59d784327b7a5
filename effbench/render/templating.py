"""How do values become harmless text in the documents that are Jinja templates?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from effbench.core.table import Table, markdown_text

TEMPLATES = Path(__file__).parent / "templates"


def environment(folder: Path, **settings: Any) -> jinja2.Environment:
    """Return an environment for the templates in a folder."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **settings,
    )


def markdown(name: str, **values: Any) -> str:
    """Return a document in Markdown. No value can begin anything, except a table."""
    template = environment(TEMPLATES, finalize=as_markdown).get_template(name)
    return re.sub(r"\n{3,}", "\n\n", template.render(values)).strip() + "\n"


def as_markdown(value: object) -> object:
    if isinstance(value, Table):
        return value.render("markdown")
    if isinstance(value, Markup):
        return value
    return markdown_text(value)
