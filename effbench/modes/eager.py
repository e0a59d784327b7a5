"""The mode eager: the unmodified module, which is the baseline of all other modes."""

from __future__ import annotations

from typing import Any

import torch

from effbench.modes.base import Mode, Prepared


class Eager(Mode):
    phases = ("inference", "generate", "training")

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        return Prepared(module)
