"""The module as it is: the baseline of everything."""

from __future__ import annotations

from typing import Any

import torch

from effbench.modes.base import Mode, Prepared


class Eager(Mode):
    phases = ("inference", "training")

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        return Prepared(module)
