"""Quantize the linear layers of a module with torchao: `numerics.quantize`."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import torch
from torch import nn

from effbench.cell import Status
from effbench.measure import accuracy
from effbench.measure.timing import Inputs
from effbench.modes.selective import results_in
from effbench.worker.failures import Ended
from effbench.worker.first_call import first_success
from effbench.worker.state import is_dense

#: Kind -> torchao's configuration and its arguments. The tiled format of int4 needs no further
#: package.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "int8-weight-only": ("Int8WeightOnlyConfig", {}),
    "int4-weight-only": (
        "Int4WeightOnlyConfig",
        {"group_size": 128, "int4_packing_format": "tile_packed_to_4d"},
    ),
    "float8-weight-only": ("Float8WeightOnlyConfig", {}),
    "float8": ("Float8DynamicActivationFloat8WeightConfig", {}),
}
#: Kind -> least compute capability of a CUDA device; the others also run on the CPU.
CAPABILITY = {"int4-weight-only": (8, 0), "float8": (8, 9)}


def quantize(module: nn.Module, kind: str, inputs: Inputs) -> dict[str, Any]:
    """Quantize the module's linear layers in place.

    Return `error`: ‖output - output before‖ ÷ ‖output before‖ of an eager call with `inputs`;
    `layers` and `of`: how many linear layers are quantized, and how many there are. Raises Ended if
    the kind or the module is unsupported.
    """
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if reason := unsupported(kind, linear):
        raise Ended(Status.UNSUPPORTED, f"numerics.quantize={kind} {reason}")
    from torchao import quantization

    before = outputs(module, inputs)
    name, arguments = CONFIGS[kind]
    quantization.quantize_(module, getattr(quantization, name)(**arguments))
    layers = sum(is_quantized(part.weight) for part in linear)
    if not layers:
        raise Ended(
            Status.UNSUPPORTED,
            f"numerics.quantize={kind}: torchao can quantize none of the linear layers",
        )
    error = accuracy.compare(outputs(module, inputs), before, None, linear[0].weight.device).error
    return {"kind": kind, "error": error, "layers": layers, "of": len(linear)}


def unsupported(kind: str, linear: list[nn.Linear]) -> str | None:
    """Return why these layers cannot be quantized in this way, or None."""
    if importlib.util.find_spec("torchao") is None:
        return "needs torchao: pip install torchao"
    if not linear:
        return "needs linear layers, and the model has none"
    weight, least = linear[0].weight, CAPABILITY.get(kind)
    if least and (not weight.is_cuda or torch.cuda.get_device_capability(weight.device) < least):
        return f"needs a CUDA device of compute capability {least[0]}.{least[1]} or higher"
    if kind == "int4-weight-only" and weight.dtype is not torch.bfloat16:
        return "needs dtype=bfloat16"
    if kind == "int8-weight-only" and weight.dtype is torch.float64:
        return "does not support dtype=float64"
    return None


def is_quantized(weight: torch.Tensor) -> bool:
    return type(weight.data) is not torch.Tensor


def outputs(module: nn.Module, inputs: Inputs) -> accuracy.Parts:
    """Return the outputs of an eager call that leaves the module and the inputs unchanged."""

    def call() -> accuracy.Parts:
        args, kwargs = accuracy.clone(inputs)
        return accuracy.parts(copy.deepcopy(module, results_in(module))(*args, **kwargs))

    return first_success(call).result


def double(module: nn.Module) -> nn.Module:
    """Return a copy of the module in float64, with the values of its quantized weights and of
    tensors in attributes."""
    wide = copy.deepcopy(module, results_in(module))
    for part in wide.modules():
        for name, value in vars(part).items():
            if is_dense(value) and value.is_floating_point():
                vars(part)[name] = value.detach().double()
        if isinstance(part, nn.Linear) and is_quantized(part.weight):
            part.weight = nn.Parameter(part.weight.dequantize(), requires_grad=False)
    return wide.double()
