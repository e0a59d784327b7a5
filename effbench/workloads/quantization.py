"""Quantize the linear layers of a module with torchao: `numerics.quantize`."""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from effbench.core.cell import Status
from effbench.measure.accuracy import Comparison, Parts, parts
from effbench.models import attentions
from effbench.models.inputs import Inputs
from effbench.modes.selective import results_in
from effbench.workloads.base import copies
from effbench.workloads.endings import Ended, GradientAttempts
from effbench.workloads.state import is_dense


@dataclass(frozen=True)
class Quantization:
    """A kind of quantization: torchao's configuration, its arguments, and the least compute
    capability of a CUDA device, (0, 0) if it also runs on the CPU."""

    configuration: str
    arguments: dict[str, Any] = field(default_factory=dict)
    capability: tuple[int, int] = (0, 0)


#: The tiled format of int4 needs no further package.
TILED = {"group_size": 128, "int4_packing_format": "tile_packed_to_4d"}
KINDS = {
    "int8-weight-only": Quantization("Int8WeightOnlyConfig"),
    "int4-weight-only": Quantization("Int4WeightOnlyConfig", TILED, capability=(8, 0)),
    "float8-weight-only": Quantization("Float8WeightOnlyConfig"),
    "float8": Quantization("Float8DynamicActivationFloat8WeightConfig", capability=(8, 9)),
}


def quantize(module: nn.Module, kind: str, inputs: Inputs) -> float | None:
    """Quantize the module's linear layers in place, and return ‖output - output before‖ ÷ ‖output
    before‖ of an eager call. `inputs`: those of this call. Raises Ended if the kind or the module
    is unsupported."""
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    reason = unsupported(kind, linear)
    if reason is not None:
        raise Ended(Status.UNSUPPORTED, f"numerics.quantize={kind} {reason}")
    from torchao import quantization

    before = outputs(module, inputs)
    configuration = getattr(quantization, KINDS[kind].configuration)
    quantization.quantize_(module, configuration(**KINDS[kind].arguments))
    if not any(is_quantized(part.weight) for part in linear):
        raise Ended(
            Status.UNSUPPORTED,
            f"numerics.quantize={kind}: torchao can quantize none of the linear layers",
        )
    comparison = Comparison(device=linear[0].weight.device)
    return comparison.compare(outputs(module, inputs), before).error


def unsupported(kind: str, linear: list[nn.Linear]) -> str | None:
    """Return why these layers cannot be quantized in this way, or None."""
    if importlib.util.find_spec("torchao") is None:
        return "needs torchao: pip install torchao"
    if not linear:
        return "needs linear layers, and the model has none"
    weight = linear[0].weight
    least = KINDS[kind].capability
    capability = (0, 0)
    if weight.is_cuda:
        capability = torch.cuda.get_device_capability(weight.device)
    if capability < least:
        return f"needs a CUDA device of compute capability {least[0]}.{least[1]} or higher"
    if kind == "int4-weight-only" and weight.dtype is not torch.bfloat16:
        return "needs dtype=bfloat16"
    return None


def is_quantized(weight: torch.Tensor) -> bool:
    return type(weight.data) is not torch.Tensor


def outputs(module: nn.Module, inputs: Inputs) -> Parts:
    """Return the outputs of an eager call that leaves the module and the inputs unchanged."""
    for attempt in GradientAttempts():
        with attempt:
            made = outputs_of_copy(module, inputs)
    return made


def outputs_of_copy(module: nn.Module, inputs: Inputs) -> Parts:
    args, kwargs = copies(inputs)
    copied = copy.deepcopy(module, results_in(module))
    return parts(copied(*args, **kwargs))


def double(module: nn.Module) -> nn.Module:
    """Return a copy of the module in float64, with the values of its quantized weights and of
    tensors in attributes, and with attentions that compute in float64."""
    wide = copy.deepcopy(module, results_in(module))
    attentions.use_products(wide)
    for part in wide.modules():
        for name, value in vars(part).items():
            if is_dense(value) and value.is_floating_point():
                vars(part)[name] = value.detach().double()
        if isinstance(part, nn.Linear) and is_quantized(part.weight):
            part.weight = nn.Parameter(part.weight.dequantize(), requires_grad=False)
    return wide.double()
