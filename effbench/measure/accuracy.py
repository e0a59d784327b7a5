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
from torch.utils._pytree import tree_flatten

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


def parts(output: Any, name: str = "output", copy: bool = True) -> Parts:
    """Return the parts of an output by names like `output[0]['logits']`. `copy`: with tensors
    cloned, so that the next call cannot overwrite them, and without their gradients.

    Tuples equal lists, because compiled and exported modules may convert them. Raises TypeError for
    unknown types, which may have tensors, and copies of tensors that are not dense.
    """
    if isinstance(output, Tensor):
        if not copy:
            return {name: output}
        if output.is_nested or output.layout is not torch.strided:
            raise TypeError(
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
    """Return the items of a container with their keys or positions. Raises TypeError for an unknown
    type."""
    if isinstance(output, Mapping):  # transformers' outputs are mappings too
        return output.items()
    if isinstance(output, (tuple, list)):
        return enumerate(output)
    if dataclasses.is_dataclass(output):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    flat, _ = tree_flatten(output)
    if len(flat) != 1 or flat[0] is not output:  # a class that is registered with torch's pytree
        return enumerate(flat)
    raise TypeError(
        f"the output contains the type {type(output).__name__}, which cannot be compared; return"
        " tensors, tuples, lists or dicts"
    )


def tensors(output: Parts) -> dict[str, Tensor]:
    return {name: part for name, part in output.items() if isinstance(part, Tensor)}


def place(output: Parts, device: torch.device | None) -> torch.device | None:
    """Return where to look at an output: on the device (None: where it is) only if it is large,
    because a process needs 0.2 s to load the GPU's kernels for it."""
    size = sum(tensor.numel() for tensor in tensors(output).values())
    return torch.device("cpu") if size <= SMALL else device


def not_finite(output: Parts) -> str | None:
    """Return the name of the first tensor with NaN or infinity, or None."""
    device = place(output, None)
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


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the values of tensors of the same shape in flat slices, so that their float64 copies
    stay small."""
    flat = [as_real(tensor).reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), PIECE):
        yield tuple(values[start : start + PIECE] for values in flat)


def root_mean_square(tensors: Iterable[Tensor]) -> float:
    """Return the root mean square of all values in float64; 0 if there are none."""
    total = 0.0
    count = 0
    for values in tensors:
        total += values.double().square().sum().item()
        count += values.numel()
    return math.sqrt(total / max(count, 1))


def rms(tensor: Tensor) -> float:
    """Return the root mean square of the finite values, without masks."""
    return root_mean_square(
        values[values.isfinite() & ~masks(values)] for (values,) in pieces(tensor)
    )


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
    """Return the root mean square error. Equal non-finite values match."""
    return root_mean_square(difference(ours, theirs) for ours, theirs in pieces(a, b))


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Return a - b of real tensors in float64, with 0 where both are the same non-finite value."""
    a = a.double()
    b = b.double()
    are_same = torch.isclose(a, b, 0.0, 0.0, equal_nan=True)
    return torch.where(are_same, 0.0, a - b)


def ratio(difference: float, scale: float) -> float:
    """Return difference ÷ scale: 0 without a difference, and infinity instead of NaN."""
    if difference == 0:
        return 0.0
    if scale == 0 or math.isnan(difference / scale):
        return math.inf
    return difference / scale


def limit_of(dtype: torch.dtype) -> float:
    """Return the relative tolerance of the dtype."""
    return TOLERANCES.get(dtype.to_real(), 1e-4)


def alike(output: Any, wanted: Any) -> bool:
    """Return whether two tensors have the same shape and dtype, or two plain values agree (floats
    within 2 %)."""
    if isinstance(wanted, Tensor):
        return described(output) == described(wanted)
    if isinstance(output, Tensor):
        output = output.tolist()  # packages of AOTInductor return numbers as tensors
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
    return 3 if dtype in (torch.bfloat16, torch.float16) else 2


@dataclass(frozen=True)
class Comparison:
    """How outputs are compared. `dtype`: the model's. `tolerance`: relative; None: by the dtype of
    each output, or of the model if that is coarser. `device`: for large outputs."""

    dtype: torch.dtype = torch.float64
    tolerance: float | None = None
    device: torch.device | None = None

    def coarser(self, dtype: torch.dtype) -> torch.dtype:
        """Return this or the model's dtype, whichever has the larger tolerance: a float32 output of
        a bfloat16 model has bfloat16's errors."""
        return max(dtype, self.dtype, key=limit_of)

    def limit(self, dtype: torch.dtype) -> float:
        """Return the relative tolerance of an output of this dtype."""
        if self.tolerance is not None:
            return self.tolerance
        return limit_of(self.coarser(dtype))

    def compare(self, output: Parts, eager: Parts) -> AccuracyVerdict:
        """Compare structure, shape, dtype and values with eager's."""
        differing = sorted(output.keys() ^ eager.keys())
        if differing:
            names = ", ".join(differing[:4])
            return AccuracyVerdict(reason=f"the structure differs from eager's: {names}")
        for name, ref in eager.items():
            if not alike(output[name], ref):
                return AccuracyVerdict(
                    reason=f"{name} is {described(output[name])}, but eager's is {described(ref)}"
                )
        device = place(eager, self.device)
        verdict = AccuracyVerdict(only_values=True)
        for name, ref in tensors(eager).items():
            self.compare_values(name, output[name].to(device), ref.to(device), verdict)
        return verdict

    def compare_values(self, name: str, out: Tensor, ref: Tensor, verdict: AccuracyVerdict) -> None:
        """Add the comparison of tensors of the same shape and dtype to the verdict."""
        limit = scale = 0.0  # integers must be equal
        errors = ""
        if is_inexact(ref):
            scale = rms(ref)
            limit = self.limit(ref.dtype)
            error = ratio(rmse(out, ref), scale)
            errors = f": relative error {error:.2g}, tolerance {limit:g}"
            verdict.error = max(error, verdict.error or 0.0)
        far = 0
        for values, wanted in pieces(out, ref):
            near = torch.isclose(values, wanted, limit, limit * scale, equal_nan=True)
            far += int((~near).sum())
        if far and verdict.reason is None:
            verdict.reason = (
                f"{name} differs from eager in {far:,} of {ref.numel():,} values{errors}"
            )

    def compare_with_float64(self, output: Parts, eager: Parts, exact: Parts) -> str | None:
        """Return None if `output` is about as close to the float64 result as eager's is, else what
        is wrong.

        The limit is rmse(output, exact) <= k × rmse(eager, exact) + tolerance ÷ 10 × rms(exact),
        with k = 2, or 3 for half types. Integers may differ in k times as many places as eager's.
        If eager itself is far off, the output fails.
        """
        device = place(eager, self.device)
        for name, ref in tensors(eager).items():
            judge = self.inexact_difference if is_inexact(ref) else self.integer_difference
            reason = judge(output[name].to(device), ref.to(device), exact[name].to(device))
            if reason is not None:
                return f"{name}: {reason}"
        return None

    def integer_difference(self, out: Tensor, ref: Tensor, true: Tensor) -> str | None:
        ours = int((out != true).sum())
        eagers = int((ref != true).sum())
        if ours <= factor_of(self.dtype) * eagers:
            return None
        return f"{ours} values differ from the float64 result, but only {eagers} of eager's"

    def inexact_difference(self, out: Tensor, ref: Tensor, true: Tensor) -> str | None:
        limit = self.limit(ref.dtype)
        factor = factor_of(self.coarser(ref.dtype))
        out, ref, true = map(as_real, (out, ref, true))
        # float64 may have another mask, such as the least of its numbers
        counts = ~(masks(ref) & torch.isclose(out, ref, limit, 0.0))
        out, ref, true = (values[counts] for values in (out, ref, true))
        scale = rms(true)
        ours = rmse(out, true)
        eagers = rmse(ref, true)
        # written so that NaN fails
        if not eagers <= MAX_EAGER_ERROR * scale:
            return (
                f"eager itself is {eagers:.2g} off float64: it is random, keeps state in a list or"
                " an object, or is too sensitive to compare"
            )
        if not ours <= factor * eagers + limit / 10 * scale:
            return f"error {ours:.2g} against float64, eager's is {eagers:.2g}"
        return None
