"""Check the correctness of outputs against eager's and, if they differ, against a float64
reference."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

#: Relative tolerance by dtype. The absolute tolerance is its product with the root mean square of
#: eager's values, masks aside.
TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.bfloat16: 2e-2,
    torch.float16: 5e-3,
    # rounding may give the neighbour of eager's value
    torch.float8_e4m3fn: torch.finfo(torch.float8_e4m3fn).eps,
    torch.float8_e5m2: torch.finfo(torch.float8_e5m2).eps,
}
#: If eager's own relative error against float64 exceeds this, the comparison with float64 is
#: inconclusive.
MAX_EAGER_ERROR = 0.25
#: Most elements that are compared on the host.
SMALL = 2**20
#: Elements that are compared at a time.
PIECE = 2**24
#: Least magnitude of a mask, such as -1e4 or -3.4e38 in logits that must not be chosen. It may be
#: added to logits.
MASK = 5e3
#: Least ratio of masks to all other values.
GAP = 10
#: Types of values that are compared with `==`.
PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.Size,
)

#: The tensors and plain values of an output, by names for messages.
Parts = dict[str, Any]


@dataclass
class AccuracyVerdict:
    """Result of a comparison. `error`: the largest ‖output - reference‖ ÷ ‖reference‖, None without
    a float output. `reason`: what is wrong, or None. `only_values`: structure, shapes and dtypes
    agree, so float64 can decide."""

    error: float | None = None
    reason: str | None = None
    only_values: bool = False


class Incomparable(TypeError):
    """An output contains an object of an unknown type, which may have tensors, or a tensor that is
    not dense."""


def clone(inputs: Any) -> Any:
    """Return the same structure with cloned tensors, which do not require gradients."""
    return tree_map_only(Tensor, lambda value: value.detach().clone(), inputs)


def parts(output: Any, name: str = "output", copy: bool = True) -> Parts:
    """Return the parts of an output by names like `output[0]['logits']`. `copy`: with tensors
    cloned, so that the next call cannot overwrite them, and without their gradients.

    Tuples equal lists, because compiled and exported modules may convert them. Raises Incomparable
    for unknown types and copies of tensors that are not dense.
    """
    if isinstance(output, Tensor):
        if not copy:
            return {name: output}
        if output.is_nested or output.layout is not torch.strided:
            raise Incomparable(
                "the output contains a nested or sparse tensor, which cannot be compared; return"
                " dense tensors"
            )
        return {name: output.detach().clone()}
    if isinstance(output, PLAIN) and not isinstance(output, torch.Size):  # a size is a tuple
        return {name: output}
    named: Parts = {}
    for key, value in items(output):
        named |= parts(value, f"{name}[{key!r}]", copy)
    return named


def items(output: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a container with their keys or positions. Raises Incomparable for an
    unknown type."""
    if isinstance(output, Mapping):  # transformers' outputs are mappings too
        return output.items()
    if isinstance(output, (tuple, list)):
        return enumerate(output)
    if dataclasses.is_dataclass(output):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    flat, _ = tree_flatten(output)
    if len(flat) != 1 or flat[0] is not output:  # a class that is registered with torch's pytree
        return enumerate(flat)
    raise Incomparable(
        f"the output contains the type {type(output).__name__}, which cannot be compared; return"
        " tensors, tuples, lists or dicts"
    )


def tensors(output: Parts) -> dict[str, Tensor]:
    return {name: part for name, part in output.items() if isinstance(part, Tensor)}


def place(output: Parts, device: torch.device | None) -> torch.device | None:
    """Return where to look at an output: on the device only if it is large, because a process needs
    0.2 s to load the GPU's kernels for it."""
    size = sum(tensor.numel() for tensor in tensors(output).values())
    return torch.device("cpu") if size <= SMALL else device


def not_finite(output: Parts, device: torch.device | None = None) -> str | None:
    """Return the name of the first tensor with NaN or infinity, or None. Large outputs are examined
    on `device`; None: where they are."""
    device = place(output, device)
    for name, tensor in tensors(output).items():
        if is_inexact(tensor) and not as_real(tensor.to(device)).isfinite().all():
            return name
    return None


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as pairs of real numbers, float8 as float32, and any other tensor
    unchanged."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    # torch has few operators for float8
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor.float()
    return tensor


def is_inexact(tensor: Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Return a - b of real tensors in float64, with 0 where both are the same non-finite value."""
    a = a.double()
    b = b.double()
    are_same = torch.isclose(a, b, 0.0, 0.0, equal_nan=True)
    return torch.where(are_same, 0.0, a - b)


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the values of tensors of the same shape in flat slices, so that their float64 copies
    stay small."""
    flat = [as_real(tensor).reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), PIECE):
        yield tuple(values[start : start + PIECE] for values in flat)


def rms(tensor: Tensor) -> float:
    """Return the root mean square of the finite values in float64, without masks; 0 if there are
    none."""
    total = 0.0
    count = 0
    for (values,) in pieces(tensor):
        counted = values[values.isfinite() & ~masks(values)].double()
        total += counted.square().sum().item()
        count += counted.numel()
    return math.sqrt(total / max(count, 1))


def masks(values: Tensor) -> Tensor:
    """Return which values are masks: finite ones far beyond all others. Compared with them, any
    error of the others would be small."""
    sizes = values.abs()
    are_large = values.isfinite() & (sizes >= MASK)
    if not are_large.any():
        return are_large
    others = sizes[values.isfinite() & ~are_large]
    if others.numel() and sizes[are_large].min() > GAP * others.max():
        return are_large
    return torch.zeros_like(are_large)


def rmse(a: Tensor, b: Tensor) -> float:
    """Return the root mean square error in float64; 0 for empty tensors. Equal non-finite values
    match."""
    total = 0.0
    count = 0
    for ours, theirs in pieces(a, b):
        total += difference(ours, theirs).square().sum().item()
        count += ours.numel()
    return math.sqrt(total / max(count, 1))


def ratio(difference: float, scale: float) -> float:
    """Return difference ÷ scale: 0 without a difference, and infinity instead of NaN."""
    if difference == 0:
        return 0.0
    if scale == 0 or math.isnan(difference / scale):
        return math.inf
    return difference / scale


def limit_of(dtype: torch.dtype, tolerance: float | None) -> float:
    """Return the relative tolerance: `tolerance` if it is set, else the default of the dtype."""
    if tolerance is not None:
        return tolerance
    return TOLERANCES.get(dtype.to_real(), 1e-4)


def alike(output: Any, wanted: Any) -> bool:
    """Return whether two tensors have the same shape and dtype, or two plain values agree (floats
    within 2 %)."""
    if isinstance(wanted, Tensor):
        is_tensor = isinstance(output, Tensor)
        return is_tensor and output.shape == wanted.shape and output.dtype == wanted.dtype
    if isinstance(output, Tensor):
        if output.dim():
            return False
        output = output.item()  # packages of AOTInductor return numbers as tensors
    if isinstance(wanted, float) and isinstance(output, float):
        are_nan = math.isnan(output) and math.isnan(wanted)
        return are_nan or math.isclose(output, wanted, rel_tol=0.02)
    return bool(output == wanted)


def described(part: Any) -> str:
    if isinstance(part, Tensor):
        return f"{tuple(part.shape)} {part.dtype}"
    return repr(part)


def factor_of(dtype: torch.dtype) -> int:
    """Return the allowed multiple of eager's error against float64, as in PyTorch's Dynamo
    benchmarks."""
    if dtype in (torch.bfloat16, torch.float16):
        return 3
    return 2


@dataclass(frozen=True)
class Comparison:
    """How outputs are compared. `tolerance`: relative; None: by the dtype of each output, or of the
    model (`dtype`) if that is coarser. `device`: for large outputs."""

    tolerance: float | None = None
    device: torch.device | None = None
    dtype: torch.dtype | None = None

    def coarser(self, dtype: torch.dtype) -> torch.dtype:
        """Return this or the model's dtype, whichever has the larger tolerance: a float32 output of
        a bfloat16 model has bfloat16's errors."""
        return max(dtype, self.dtype or dtype, key=lambda candidate: limit_of(candidate, None))

    def compare(self, output: Parts, eager: Parts) -> AccuracyVerdict:
        """Compare structure, shape, dtype and values with eager's."""
        device = place(eager, self.device)
        differing = sorted(output.keys() ^ eager.keys())
        if differing:
            names = ", ".join(differing[:4])
            return AccuracyVerdict(reason=f"the structure differs from eager's: {names}")
        for name, ref in eager.items():
            if not alike(output[name], ref):
                words = f"{name} is {described(output[name])}, but eager's is {described(ref)}"
                return AccuracyVerdict(reason=words)
        worst = reason = None
        for name, ref in tensors(eager).items():
            verdict = self.compare_values(output[name].to(device), ref.to(device))
            if verdict.error is not None:
                worst = max(verdict.error, worst or 0.0)
            if verdict.reason is not None and reason is None:
                reason = f"{name} differs from eager{verdict.reason}"
        return AccuracyVerdict(worst, reason, only_values=True)

    def compare_values(self, out: Tensor, ref: Tensor) -> AccuracyVerdict:
        """Compare tensors of the same shape and dtype. The reason is to be appended to a
        sentence."""
        error = None
        limit = scale = 0.0  # integers must be equal
        if is_inexact(ref):
            scale = rms(ref)
            error = ratio(rmse(out, ref), scale)
            limit = limit_of(self.coarser(ref.dtype), self.tolerance)
        far = 0
        for values, wanted in pieces(out, ref):
            near = torch.isclose(values, wanted, limit, limit * scale, equal_nan=True)
            far += int((~near).sum())
        if not far:
            return AccuracyVerdict(error)
        text = f" in {far:,} of {ref.numel():,} values"
        if error is not None:
            text += f": relative error {error:.2g}, tolerance {limit:g}"
        return AccuracyVerdict(error, text)

    def compare_with_float64(self, output: Parts, eager: Parts, exact: Parts) -> str | None:
        """Return None if `output` is about as close to the float64 result as eager's is, else what
        is wrong.

        The limit is rmse(output, exact) <= k × rmse(eager, exact) + tolerance ÷ 10 × rms(exact),
        with k = 2, or 3 for half types. Integers may differ in k times as many places as eager's.
        If eager itself is far off, the output fails.
        """
        device = place(eager, self.device)
        for name, ref in tensors(eager).items():
            judge = self.integer_difference
            if is_inexact(ref):
                judge = self.inexact_difference
            out = output[name].to(device)
            true = exact[name].to(device)
            reason = judge(out, ref.to(device), true)
            if reason is not None:
                return f"{name}: {reason}"
        return None

    def integer_difference(self, out: Tensor, ref: Tensor, true: Tensor) -> str | None:
        ours = int((out != true).sum())
        eagers = int((ref != true).sum())
        if ours <= factor_of(self.dtype or ref.dtype) * eagers:
            return None
        return f"{ours} values differ from the float64 result, but only {eagers} of eager's"

    def inexact_difference(self, out: Tensor, ref: Tensor, true: Tensor) -> str | None:
        dtype = self.coarser(ref.dtype)
        limit = limit_of(dtype, self.tolerance)
        out = as_real(out)
        ref = as_real(ref)
        true = as_real(true)
        # float64 may have another mask, such as the least of its numbers
        counts = ~(masks(ref) & torch.isclose(out, ref, limit, 0.0))
        out = out[counts]
        ref = ref[counts]
        true = true[counts]
        scale = rms(true)
        ours = rmse(out, true)
        eagers = rmse(ref, true)
        # written so that NaN fails
        if not eagers <= MAX_EAGER_ERROR * scale:
            return (
                f"eager itself is {eagers:.2g} off float64: it is random, keeps state in a list or"
                " an object, or is too sensitive to compare"
            )
        if not ours <= factor_of(dtype) * eagers + limit / 10 * scale:
            return f"error {ours:.2g} against float64, eager's is {eagers:.2g}"
        return None


def wide(inputs: Any) -> Any:
    """Return the same structure with float tensors cast to float64."""

    def widen(value: Tensor) -> Tensor:
        if value.is_floating_point():
            return value.double()
        return value

    return tree_map_only(Tensor, widen, inputs)
