"""Count the floating-point operations of one eager call."""

from __future__ import annotations

import torch
from torch import nn

from effbench.measure.gradients import outside_inference_mode
from effbench.models.inputs import Args, Kwargs, Step


def count(module: nn.Module, args: Args, kwargs: Kwargs) -> int:
    """Run `module` once in eager mode and return its FLOPs. The module may change the inputs."""
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operators are unknown to the counter
    try:
        # in which some releases do not show what an operator consists of
        with outside_inference_mode():
            return count_call(module, args, kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)


def count_call(step: Step, args: Args, kwargs: Kwargs) -> int:
    """Return the FLOPs of a call of the step: those of torch's FlopCounterMode; 0 if it knows none
    of the call's operators."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        step(*args, **kwargs)
    flops: int = counter.get_total_flops()
    return flops
