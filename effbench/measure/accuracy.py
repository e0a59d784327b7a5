"""Check the correctness of outputs against eager's and, if they differ, against a float64 reference."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

#: Relative tolerance by dtype. The absolute tolerance is the product with the reference's root mean square.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
#: If eager's own relative error against float64 exceeds this, the comparison with float64 is inconclusive.
MAX_EAGER_ERROR = 0.25
#: Types of values that are compared with `==`.
PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size)

#: The tensors and plain values of an output, by names for messages.
Parts = dict[str, Any]


@dataclass
class Verdict:
    """Result of a comparison. `error`: the largest ‖output - reference‖ ÷ ‖reference‖, None without a float output.
    `reason`: what is wrong, or None. `only_values`: structure, shapes and dtypes agree, so float64 can decide."""

    error: float | None = None
    reason: str | None = None
    only_values: bool = False


class Incomparable(TypeError):
    """An output contains an object of an unknown type, which may have tensors."""


def clone(inputs: Any) -> Any:
    """Return the same structure with cloned tensors."""
    return tree_map_only(torch.Tensor, torch.clone, inputs)


def parts(output: Any, name: str = "output") -> Parts:
    """Return the parts of an output, with tensors cloned so that the next call cannot overwrite them.

    Tuples equal lists, because compiled and exported modules may convert them. Raises Incomparable for unknown types.
    """
    if isinstance(output, torch.Tensor):
        return {name: output.clone()}
    if isinstance(output, PLAIN):
        return {name: output}
    prefix = "output " if name == "output" else f"{name}."
    inner = [parts(value, f"{prefix}{key}") for key, value in items(output)]
    return {name: part for some in inner for name, part in some.items()}


def items(output: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a container with their keys or positions. Raises Incomparable for an unknown type."""
    if isinstance(output, Mapping):  # transformers' outputs are mappings too
        return output.items()
    if isinstance(output, (tuple, list)):
        return enumerate(output)
    if dataclasses.is_dataclass(output):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    flat, _ = tree_flatten(output)
    if len(flat) != 1 or flat[0] is not output:  # a class that is registered with torch's pytree
        return enumerate(flat)
    advice = "which cannot be compared; return tensors, tuples, lists or dicts"
    raise Incomparable(f"the output contains a {type(output).__name__}, {advice}")


def tensors(output: Parts) -> dict[str, torch.Tensor]:
    return {name: part for name, part in output.items() if isinstance(part, torch.Tensor)}


def not_finite(output: Parts, device: torch.device | None = None) -> str | None:
    """Return the name of the first tensor with NaN or infinity, or None. `device`: where to look, by default where the
    tensors are."""
    for name, tensor in tensors(output).items():
        if is_inexact(tensor) and not bool(torch.isfinite(tensor.to(device)).all()):
            return name
    return None


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as pairs of real numbers, and any other tensor unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a - b in float64, with 0 where both are the same non-finite value."""
    a, b = as_real(a).double(), as_real(b).double()
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, a - b)


def rms(tensor: torch.Tensor) -> float:
    """Return the root mean square of the finite values in float64; 0 if there are none."""
    values = as_real(tensor).double()
    values = values[values.isfinite()]
    return values.square().mean().sqrt().item() if values.numel() else 0.0


def rmse(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the root mean square error in float64; 0 for empty tensors."""
    return difference(a, b).square().mean().sqrt().item() if a.numel() else 0.0


def relative_error(output: torch.Tensor, reference: torch.Tensor) -> float:
    """Return ‖output - reference‖ ÷ ‖reference‖ in float64; 0 if both are zero. Equal non-finite values match."""
    distance = difference(output, reference).norm().item()
    if distance == 0:
        return 0.0
    ref = as_real(reference).double()
    scale = torch.where(ref.isfinite(), ref, 0.0).norm().item()
    error = distance / scale if scale else math.inf
    return math.inf if math.isnan(error) else error  # NaN: the output is not finite, but eager's is


def limit_of(dtype: torch.dtype, tolerance: float | None) -> float:
    """Return the relative tolerance: `tolerance` if it is set, else the default of the dtype."""
    return TOLERANCES.get(dtype, 1e-4) if tolerance is None else tolerance


def compare(output: Parts, eager: Parts, tolerance: float | None = None, device: torch.device | None = None) -> Verdict:
    """Compare structure, shape, dtype and, on `device`, values with eager's. Relative `tolerance`; None: by dtype."""
    outs, refs = len(tensors(output)), len(tensors(eager))
    if outs != refs:
        return Verdict(reason=f"{outs} output tensors, but eager has {refs}")
    if differ := sorted(output.keys() ^ eager.keys()):
        return Verdict(reason=f"the structure differs from eager's: {', '.join(differ[:4])}")
    worst = reason = None
    for name, ref in eager.items():
        out = output[name]
        if not alike(out, ref):
            return Verdict(worst, f"{name} is {described(out)}, but eager's is {described(ref)}")
        if not isinstance(ref, torch.Tensor):
            continue
        out, ref = out.to(device), ref.to(device)
        if not is_inexact(ref):
            if not torch.equal(out, ref):
                reason = reason or f"{name} differs from eager in {int((out != ref).sum())} of {ref.numel()} values"
            continue
        error, limit = relative_error(out, ref), limit_of(ref.dtype, tolerance)
        worst = error if worst is None else max(worst, error)
        absolute = limit * rms(ref)
        if not torch.allclose(as_real(out), as_real(ref), rtol=limit, atol=absolute, equal_nan=True):
            reason = reason or f"{name} differs from eager: relative error {error:.2g}, tolerance {limit:g}"
    return Verdict(worst, reason, only_values=True)


def alike(output: Any, wanted: Any) -> bool:
    """Return whether two tensors have the same shape and dtype, or two plain values agree (floats within 2 %)."""
    if isinstance(wanted, torch.Tensor) and isinstance(output, torch.Tensor):
        return output.shape == wanted.shape and output.dtype == wanted.dtype
    if isinstance(wanted, torch.Tensor) or isinstance(output, torch.Tensor):
        return False
    if isinstance(wanted, float) and isinstance(output, float):
        return math.isclose(output, wanted, rel_tol=0.02) or (math.isnan(output) and math.isnan(wanted))
    return output == wanted


def described(part: Any) -> str:
    return f"{tuple(part.shape)} {part.dtype}" if isinstance(part, torch.Tensor) else repr(part)


def factor_of(dtype: torch.dtype) -> int:
    """Return the allowed multiple of eager's error against float64, as in PyTorch's Dynamo benchmarks."""
    return 3 if dtype in (torch.bfloat16, torch.float16) else 2


def compare_with_float64(
    output: Parts, eager: Parts, exact: Parts, tolerance: float | None = None, device: torch.device | None = None
) -> str | None:
    """Return None if `output` is, on `device`, about as close to the float64 result as eager's is, else what is wrong.

    The limit is rmse(output, exact) <= k × rmse(eager, exact) + tolerance ÷ 10 × rms(exact), with k = 2, or 3 for half
    types. Integers may differ in k times as many places as eager's. If eager itself is far off, the output fails.
    """
    for name, ref in tensors(eager).items():
        out, ref, true = (value.to(device) for value in (output[name], ref, exact[name]))
        factor = factor_of(ref.dtype)
        if not is_inexact(ref):
            ours, eagers = (int((tensor != true).sum()) for tensor in (out, ref))
            if ours > factor * eagers:
                return f"{name}: {ours} values differ from the float64 result, but only {eagers} of eager's"
            continue
        scale = rms(true)
        ours, eagers = rmse(out, true), rmse(ref, true)
        if not eagers <= MAX_EAGER_ERROR * scale:
            return f"{name}: eager itself is {eagers:.2g} off float64: it is random, or too sensitive to compare"
        if not ours <= factor * eagers + limit_of(ref.dtype, tolerance) / 10 * scale:
            return f"{name}: error {ours:.2g} against float64, eager's is {eagers:.2g}"
    return None


def wide(inputs: Any) -> Any:
    """Return the same structure with float tensors cast to float64."""
    return tree_map_only(torch.Tensor, lambda value: value.double() if value.is_floating_point() else value, inputs)
