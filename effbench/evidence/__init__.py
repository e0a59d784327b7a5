"""Behaviours, not speeds: one function a behaviour, one file a theme. A function shows what torch does and returns
plain facts; it never judges a claim. All are found by themselves (docs/evidence.md says how to write one)."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from effbench.evidence.base import Piece


def pieces() -> list[Piece]:
    """Every function of this package that `shows` a claim, in the order of the ledger."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if (piece := getattr(value, "piece", None)) and piece.target.startswith(module.__name__):
                found[piece.target] = piece
    return sorted(found.values(), key=lambda piece: [(claim[0], int(claim[1:])) for claim in piece.claims])
