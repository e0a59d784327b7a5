"""Correctness of outputs: compared with eager and, if that is too strict for the dtype, with a float64 reference."""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

#: Relative tolerance by dtype; the absolute one is this times the reference's root mean square.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
HALF = (torch.bfloat16, torch.float16)
#: Beyond this relative error of eager itself the float64 result proves nothing.
MAX_EAGER_ERROR = 0.25


@dataclass
class Verdict:
    """`error`: ‖output - reference‖ ÷ ‖reference‖, the worst of all outputs; None without a float output.

    `only_values`: structure, shapes and dtypes agree, so that a float64 reference may decide.
    """

    correct: bool
    error: float | None = None
    reason: str | None = None
    only_values: bool = False


#: Types of values that are compared as they are.
PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size)


class Incomparable(TypeError):
    """An output holds an object that may contain tensors."""


def clone(output: Any) -> Any:
    """Return a copy of tensors in tuples, lists and dicts (inputs), which nothing else can write to."""
    if isinstance(output, torch.Tensor):
        return output.clone()
    if isinstance(output, Mapping):
        return {key: clone(value) for key, value in output.items()}
    if isinstance(output, (tuple, list)):
        return tuple(map(clone, output)) if isinstance(output, tuple) else [clone(value) for value in output]
    return output


def kept(output: Any) -> Any:
    """Return the comparable parts of an output as lists and dicts, tensors cloned, so that the next call cannot
    overwrite them. Raises Incomparable for an object that is neither plain nor made of named parts."""
    if isinstance(output, torch.Tensor):
        return output.clone()
    if isinstance(output, PLAIN):
        return output
    if isinstance(output, Mapping):  # transformers' outputs are mappings too
        return {str(key): kept(value) for key, value in output.items()}
    if isinstance(output, (tuple, list)):
        return [kept(value) for value in output]
    if dataclasses.is_dataclass(output):
        return {field.name: kept(getattr(output, field.name)) for field in dataclasses.fields(output)}
    if hasattr(output, "to_tuple"):
        return kept(output.to_tuple())
    if type(output).__module__ == "types" and hasattr(output, "__dict__"):  # SimpleNamespace
        return {str(key): kept(value) for key, value in vars(output).items()}
    flat, _ = tree_flatten(output)
    if len(flat) != 1 or flat[0] is not output:  # a class that is registered with torch's pytree
        return [kept(value) for value in flat]
    kind = type(output).__name__
    raise Incomparable(f"the output holds a {kind}, which cannot be compared: return tensors, tuples, lists, dicts")


def parts(output: Any, name: str = "output") -> list[tuple[str, Any]]:
    """Return every tensor and plain value of an output in order, each with a name for messages."""
    if isinstance(output, torch.Tensor):
        return [(name, output)]
    plain = kept(output)
    if isinstance(plain, dict):
        items = [(f"{name} {key}" if name == "output" else f"{name}.{key}", value) for key, value in plain.items()]
    elif isinstance(plain, list):
        items = [(f"{name} {index}" if name == "output" else f"{name}.{index}", v) for index, v in enumerate(plain)]
    else:
        return [(name, plain)]
    return [part for inner, value in items for part in parts(value, inner)]


def leaves(output: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors among the parts."""
    return [(name, part) for name, part in parts(output) if isinstance(part, torch.Tensor)]


def not_finite(output: Any) -> str | None:
    """Return which output of eager is not finite, or None."""
    for name, leaf in leaves(output):
        if is_inexact(leaf) and not bool(torch.isfinite(leaf).all()):
            return f"eager {name} not finite"
    return None


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as pairs of real numbers, any other as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def relative_error(output: torch.Tensor, reference: torch.Tensor) -> float:
    """Return ‖output - reference‖ ÷ ‖reference‖ in float64; 0 if both are zero. Equal non-finite values are right."""
    out, ref = as_real(output).double(), as_real(reference).double()
    same = (out == ref) | (out.isnan() & ref.isnan())
    difference = torch.where(same, 0.0, out - ref).norm().item()
    scale = torch.where(ref.isfinite(), ref, 0.0).norm().item()
    if difference == 0:
        return 0.0
    error = difference / scale if scale else math.inf
    return math.inf if math.isnan(error) else error  # not finite, but eager is


def compare(output: Any, reference: Any, tolerance: float | None = None) -> Verdict:
    """Compare structure, shape, dtype and values with eager. `tolerance` is relative, None: by dtype.

    A tuple equals a list: compiled and exported modules may turn one into the other.
    """
    mine, eagers = parts(output), parts(reference)
    outs, refs = leaves(output), leaves(reference)
    if len(outs) != len(refs):
        return Verdict(False, reason=f"{len(outs)} output tensors where eager has {len(refs)}")
    if differ := sorted({name for name, _ in mine} ^ {name for name, _ in eagers}):
        return Verdict(False, reason=f"the structure differs from eager's: {', '.join(differ[:4])}")
    for (name, found), (_, wanted) in zip(mine, eagers, strict=True):
        if isinstance(found, torch.Tensor) != isinstance(wanted, torch.Tensor):
            return Verdict(
                False, reason=f"{name} is a {type(found).__name__} where eager's is a {type(wanted).__name__}"
            )
        if not isinstance(wanted, torch.Tensor) and not same_plain(found, wanted):
            return Verdict(False, reason=f"{name} is {found!r} where eager's is {wanted!r}")
    worst: float | None = None
    reason = None
    for (name, out), (_, ref) in zip(outs, refs, strict=True):
        if out.shape != ref.shape or out.dtype != ref.dtype:
            found, wanted = f"{tuple(out.shape)} {out.dtype}", f"{tuple(ref.shape)} {ref.dtype}"
            return Verdict(False, worst, f"{name} is {found} where eager's is {wanted}")
        if not is_inexact(ref):
            if not torch.equal(out, ref):
                reason = reason or f"{name} differs from eager in {int((out != ref).sum())} of {ref.numel()} values"
            continue
        error = relative_error(out, ref)
        worst = error if worst is None else max(worst, error)
        limit = tolerance if tolerance is not None else TOLERANCES.get(ref.dtype, 1e-4)
        out, ref = as_real(out), as_real(ref)
        finite = ref[ref.isfinite()].double()
        scale = finite.square().mean().sqrt().item() if finite.numel() else 0.0
        if not torch.allclose(out, ref, rtol=limit, atol=limit * scale, equal_nan=True):
            reason = reason or f"{name} differs from eager: relative error {error:.2g}, tolerance {limit:g}"
    return Verdict(reason is None, worst, reason, only_values=True)


def same_plain(found: Any, wanted: Any) -> bool:
    """Return whether two plain values agree; floats may differ in their last digits, as they may come from tensors."""
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, rel_tol=0.02) or (math.isnan(found) and math.isnan(wanted))
    return found == wanted


def rmse(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the root mean square error in float64; 0 for empty tensors. Equal non-finite values do not count."""
    a, b = as_real(a).double(), as_real(b).double()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, a - b).square().mean().sqrt().item() if a.numel() else 0.0


def compare_with_float64(output: Any, reference: Any, exact: Any, tolerance: float | None = None) -> str | None:
    """Return None if `output` is as near to the float64 result as eager is, else what is wrong.

    rmse(output, exact) <= k × rmse(eager, exact) + tolerance ÷ 10 × rms(exact), with k = 2, or 3 for half types:
    the rule of PyTorch's own Dynamo benchmarks, with the tolerance taken relative. Integer outputs may differ from the
    float64 result in k times as many places as eager's do. If eager itself is far off, nothing is proven.
    """
    for (name, out), (_, ref), (_, true) in zip(leaves(output), leaves(reference), leaves(exact), strict=True):
        factor = 3 if ref.dtype in HALF else 2
        if not is_inexact(ref):
            ours, eagers = (int((tensor != true).sum()) for tensor in (out, ref))
            if ours > factor * eagers:
                return f"{name}: {ours} values differ from the float64 result, {eagers} of eager's"
            continue
        limit = tolerance if tolerance is not None else TOLERANCES.get(ref.dtype, 1e-4)
        exact_values = as_real(true).double()
        finite = exact_values[exact_values.isfinite()]
        scale = finite.square().mean().sqrt().item() if finite.numel() else 0.0
        ours, eagers = rmse(out, true), rmse(ref, true)
        if not eagers <= MAX_EAGER_ERROR * scale:
            return f"{name}: eager itself is {eagers:.2g} off float64: random, or too sensitive to be compared"
        if not ours <= factor * eagers + limit / 10 * scale:
            return f"{name}: error {ours:.2g} against float64, eager's is {eagers:.2g}"
    return None


def in_float64(module: torch.nn.Module) -> Callable[..., Any]:
    """Return the module with the same (rounded) weights, computing in float64; float inputs are cast."""
    twin = copy.deepcopy(module).double()
    return lambda *args, **kwargs: twin(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()})


def wide(value: Any) -> Any:
    """Return a float tensor in float64, anything else as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
