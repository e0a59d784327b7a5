"""From a Plotly figure to text that is safe inside a page, and other small preparations of foreign strings."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from effbench.report.figures.drawing import Drawing

_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def figure_json(figure: Drawing | go.Figure) -> Markup:
    """The figure as JSON in which nothing can end a script element; equal to the original when parsed."""
    text = figure.to_json()
    for character, escaped in _UNSAFE.items():
        text = text.replace(character, escaped)
    return Markup(text)


def plotly_js() -> Markup:
    """plotly.js as installed, safe inside a script element."""
    return Markup(get_plotlyjs().replace("</script", "<\\/script"))


def without_password(text: str) -> str:
    """`text` with the password of any URL in it replaced by `***`."""
    return re.sub(r"(://[^\s/:@]*):[^\s/]*@", r"\1:***@", text)


def command_line(arguments: list[str]) -> str:
    """Arguments as one line for a shell; the program's path becomes its bare name."""
    words = [str(word) for word in arguments]
    if words and (PurePath(words[0]).name == "effbench" or words[0].endswith("effbench/__main__.py")):
        words = words[1:]
    return without_password(shlex.join(["effbench", *words]))
