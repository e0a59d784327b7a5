"""Colour, marker and dash of each mode, the same in all figures.

A mode with swept settings, such as `default (fullgraph=True)`, has those of its label in charts and
tables over cells, and those of the mode on the pages Cell and History.

The colours of eager, of torch.compile's modes, of `cuda-graph` and of `compile+graph` keep a CIELAB
distance of at least 26 from each other in normal vision and under simulated protanopia,
deuteranopia and tritanopia, and a contrast of about 3:1 or more with both page backgrounds. Marker
and dash distinguish the modes without colour where a figure has points or lines. After a change run
`python docs/pictures.py`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from effbench.core.table import Glyph


@dataclass(frozen=True)
class ModeStyle:
    """`symbol` and `dash` are Plotly's names; `glyph` is the most similar character, for HTML."""

    color: str
    symbol: str
    dash: str
    glyph: str


STYLES: dict[str, ModeStyle] = {
    "eager": ModeStyle("#5f6061", "circle", "solid", "●"),
    "default": ModeStyle("#0b60bf", "square", "solid", "■"),
    "reduce-overhead": ModeStyle("#900ffe", "diamond", "dash", "◆"),
    "max-autotune": ModeStyle("#24a766", "triangle-up", "solid", "▲"),
    "max-autotune-no-cudagraphs": ModeStyle("#d872b9", "triangle-down", "dot", "▼"),
    "cuda-graph": ModeStyle("#ec720d", "cross", "dash", "✚"),
    "default+graph": ModeStyle("#a3145c", "hexagon", "dash", "⬢"),
    "compile+graph": ModeStyle("#c60a1e", "hexagon", "solid", "⬢"),
    "regional": ModeStyle("#7a6fd0", "triangle-right", "longdash", "▶"),
    "cpp-wrapper": ModeStyle("#4d7c8a", "triangle-left", "dashdot", "◀"),
    "aot-inductor": ModeStyle("#0a8f9a", "star-diamond", "dashdot", "✦"),
    "bucketed-graph": ModeStyle("#8a5a2b", "pentagon", "longdash", "⬟"),
    "cudagraphs": ModeStyle("#a58a00", "triangle-left", "longdashdot", "◀"),
}

#: Styles of other modes.
OTHERS = (
    ModeStyle("#6b7f3a", "star", "dashdot", "★"),
    ModeStyle("#b0563c", "triangle-left", "longdash", "◀"),
    ModeStyle("#4f78a8", "triangle-right", "longdashdot", "▶"),
    ModeStyle("#94538f", "pentagon", "dot", "⬟"),
)


def style_of(mode: str) -> ModeStyle:
    """Return the style of `mode`; of a mode that STYLES lacks, one of OTHERS by its name."""
    number = zlib.crc32(mode.encode("utf-8", "replace"))
    return STYLES.get(mode, OTHERS[number % len(OTHERS)])


def glyph_of(mode: str) -> Glyph:
    """Return the colour and the character of a mode."""
    style = style_of(mode)
    return Glyph(color=style.color, character=style.glyph)
