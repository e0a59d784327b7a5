"""Scripts of others, taken from the Python packages that carry them, and our own."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from effbench.report.site.writer import Writer

STATIC = Path(__file__).parent / "static"
FOLDER = "assets"


def write_assets(writer: Writer) -> None:
    """plotly.js, DataTables and everything in `static/`, into the folder `assets`."""
    writer.text(f"{FOLDER}/plotly.min.js", get_plotlyjs())
    writer.text(f"{FOLDER}/datatables.js", datatables_js())
    for path in sorted(STATIC.iterdir()):
        if path.suffix in (".js", ".css"):
            writer.copy(f"{FOLDER}/{path.name}", path)


def datatables_js() -> str:
    """The bundle that itables carries (DataTables with jQuery) as a classic script that sets `window.DataTable`.

    It is an ES module, and browsers refuse to load those from disk. Raises RuntimeError where the installed itables
    has it in another form.
    """
    text = resources.files("itables").joinpath("html", "dt_bundle.js").read_text(encoding="utf-8")
    exports = list(re.finditer(r"export\{([^{}]*)\};?", text))
    named = {outer: inner for inner, outer in re.findall(r"([\w$]+) as ([\w$]+)", exports[-1][1])} if exports else {}
    if len(exports) != 1 or "default" not in named or re.search(r"(?:^|;)import[\s{*\"']", text):
        raise RuntimeError("this version of itables carries DataTables in a form that effbench does not know")
    start, end = exports[0].span()
    return f"(() => {{{text[:start]};window.DataTable={named['default']};{text[end:]}\n}})();\n"
