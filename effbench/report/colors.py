"""How a mode looks, everywhere and always the same: a colour, a marker and a dash.

The seven fixed colours keep a CIELAB distance of at least 27 from each other in normal vision and under simulated
protanopia, deuteranopia and tritanopia, and a contrast of about 3:1 or more with both page backgrounds, so one colour
serves both themes. Marker and dash say the same again without colour.
"""

from __future__ import annotations

import colorsys
import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class ModeStyle:
    """`symbol` and `dash` are Plotly's names; `glyph` is the nearest character, for HTML."""

    color: str
    symbol: str
    dash: str
    glyph: str


STYLES: dict[str, ModeStyle] = {
    "eager": ModeStyle("#7d8590", "circle", "solid", "●"),
    "default": ModeStyle("#009fff", "square", "solid", "■"),
    "reduce-overhead": ModeStyle("#7f00ff", "diamond", "dash", "◆"),
    "max-autotune": ModeStyle("#bf8969", "triangle-up", "solid", "▲"),
    "max-autotune-no-cudagraphs": ModeStyle("#983aa5", "triangle-down", "dot", "▼"),
    "cuda-graph": ModeStyle("#f27900", "cross", "dash", "✚"),
    "compile+graph": ModeStyle("#bf1700", "hexagon", "solid", "⬢"),
}

_SYMBOLS = (("star", "★"), ("pentagon", "⬟"), ("triangle-left", "◀"), ("triangle-right", "▶"))
_DASHES = ("dashdot", "longdash", "longdashdot")


def style_of(mode: str) -> ModeStyle:
    """Return the style of `mode`; one that is not among the fixed ones gets its own from a hash of its name."""
    if mode in STYLES:
        return STYLES[mode]
    seed = hashlib.sha256(mode.encode("utf-8", "replace")).digest()
    red, green, blue = colorsys.hls_to_rgb(seed[0] / 256, 0.46, 0.35 + seed[1] / 256 * 0.3)
    symbol, glyph = _SYMBOLS[seed[2] % len(_SYMBOLS)]
    color = f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
    return ModeStyle(color, symbol, _DASHES[seed[3] % len(_DASHES)], glyph)


def glyph_of(mode: str) -> tuple[str, str]:
    """Return the colour and the character of a mode."""
    style = style_of(mode)
    return style.color, style.glyph
