"""The module as it is: the baseline of everything."""

from __future__ import annotations

from typing import Any

import torch

from effbench.modes.base import Prepared


class Eager:
    compiles = False
    settling_calls = 1
    phases = ("inference", "training")

    def missing(self, device: torch.device) -> str | None:
        return None

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        return Prepared(module)
