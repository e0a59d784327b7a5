"""Colour, marker and dash of each mode, the same on all pages and in all figures.

The first seven colours are grey, blue, violet, green, pink, orange and red. They keep a CIELAB
distance of at least 26 from each other in normal vision and under simulated protanopia,
deuteranopia and tritanopia, and a contrast of about 3:1 or more with both page backgrounds. Marker
and dash distinguish the modes without colour.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class ModeStyle:
    """`symbol` and `dash` are Plotly's names; `glyph` is the most similar character, for HTML."""

    color: str
    symbol: str
    dash: str
    glyph: str


class Glyph(NamedTuple):
    """The colour and the character of a mode, for HTML."""

    color: str
    character: str


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

_SYMBOLS = (
    ("star-diamond", "✦"),
    ("pentagon", "⬟"),
    ("triangle-left", "◀"),
    ("triangle-right", "▶"),
)
_DASHES = ("dashdot", "longdash", "longdashdot")


def style_of(mode: str) -> ModeStyle:
    """Return the style of `mode`, derived from a hash of its name if STYLES lacks it."""
    if mode in STYLES:
        return STYLES[mode]
    hue, saturation, shape, line, *_ = hashlib.sha256(mode.encode("utf-8", "replace")).digest()
    symbol, glyph = _SYMBOLS[shape % len(_SYMBOLS)]
    color = f"hsl({hue * 360 // 256}, {35 + saturation * 30 // 256}%, 46%)"
    return ModeStyle(color, symbol, _DASHES[line % len(_DASHES)], glyph)


def glyph_of(mode: str) -> Glyph:
    """Return the colour and the character of a mode."""
    style = style_of(mode)
    return Glyph(style.color, style.glyph)
