"""The task `ceilings`: what the GPU of this process can do at best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from effbench.measure import ceilings


def run(payload: dict[str, Any], say_phase: Callable[[str], None]) -> dict[str, Any]:
    """Answers {"ceilings": {...}}, or {"ceilings": None, "reason": ...} where they cannot be measured."""
    say_phase("ceilings")
    if not torch.cuda.is_available():
        return {"ceilings": None, "reason": "torch sees no CUDA device"}
    try:
        return {"ceilings": ceilings.measure(torch.device("cuda"))}
    except torch.OutOfMemoryError:
        return {"ceilings": None, "reason": "too little free device memory"}
