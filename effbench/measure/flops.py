"""Count the floating-point operations of one eager call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from effbench.measure.gradients import outside_inference_mode
from effbench.models.inputs import Args, Kwargs

Shape = Sequence[int]


def count(module: nn.Module, args: Args, kwargs: Kwargs) -> int:
    """Run `module` once in eager mode and return its FLOPs. The module may change the inputs."""
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operators are unknown to the counter
    try:
        # in which some releases do not show what an operator consists of
        with outside_inference_mode():
            return count_call(lambda: module(*args, **kwargs))
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)


def count_call(call: Callable[[], Any]) -> int:
    """Return the FLOPs of a call: those of torch's FlopCounterMode; 0 if it knows none of the
    call's operators."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False, custom_mapping=attention_formulas())
    with counter:
        call()
    flops: int = counter.get_total_flops()
    return flops


def attention_formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's formulas of attention for any number of key and value heads: those of torch
    2.11 refuse fewer heads than the queries have, as in grouped-query attention."""
    formulas: dict[Any, Callable[..., int]] = {}
    for kind in ("efficient", "flash", "cudnn"):
        name = f"_scaled_dot_product_{kind}_attention"
        formulas[getattr(torch.ops.aten, name)] = attention_flops
        formulas[getattr(torch.ops.aten, f"{name}_backward")] = attention_backward_flops
    return formulas


def attention_flops(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Two matrix products: scores and output."""
    batch, heads, length, width = query
    scores = batch * heads * length * key[2]
    return 2 * scores * (width + value[3])


def attention_backward_flops(
    gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any
) -> int:
    """Five matrix products: scores again, and the gradients of scores, values, queries and keys."""
    batch, heads, length, width = query
    scores = batch * heads * length * key[2]
    return 2 * scores * (3 * width + 2 * value[3])
