"""The mode eager: the unmodified module, which is the baseline of all other modes."""

from __future__ import annotations

from torch import nn

from effbench.models.inputs import Args, Kwargs
from effbench.modes.base import Mode, Prepared


class Eager(Mode):
    phases = ("inference", "generate", "training")

    def prepare(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Prepared:
        return Prepared(module)
