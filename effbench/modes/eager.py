"""The mode eager: the unmodified module, which is the baseline of all other modes."""

from __future__ import annotations

from torch import nn

from effbench.modes.base import Example, Mode, Prepared


class Eager(Mode):
    phases = ("inference", "generate", "training")

    def prepare(self, module: nn.Module, example: Example) -> Prepared:
        return Prepared(module)
