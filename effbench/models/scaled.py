"""A module whose outputs are multiplied by a constant, as a user's code may contain one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from effbench.models.build import KEY, resolve_target


class Scaled(nn.Module):
    """The module `module` (its target and arguments) with float outputs multiplied by `scale`."""

    def __init__(self, module: dict[str, Any], scale: float) -> None:
        super().__init__()
        arguments = dict(module)
        make = resolve_target(arguments.pop(KEY))
        self.module = make(**arguments)
        self.scale = scale
        self.inputs = getattr(self.module, "inputs", None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return tree_map_only(Tensor, self.scaled, self.module(*args, **kwargs))

    def scaled(self, output: Tensor) -> Tensor:
        return output * self.scale if output.is_floating_point() else output
