"""What calls of a denoiser make: images or videos."""

from __future__ import annotations

import math

from effbench.core.cell import Identity
from effbench.core.printable import count


def in_images(row: Identity, calls: int | None) -> str:
    """Return what these calls of a cell make, as ` (43 images)` or ` (2 videos)`; empty for other
    models and for None."""
    module = row.params.get("model", {}).get("module", {})
    if calls is None or module.get("library") != "diffusers":
        return ""
    made = math.ceil(calls * row.bs / module["steps"])
    noun = "video" if module["frames"] > 1 else "image"
    return f" ({count(made, noun)})"
