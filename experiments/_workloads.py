"""Helpers of the micro-workloads: validated settings, and CUDA C++ compiled at run time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from effbench.core.errors import UnsupportedError


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """Return `value` if it is allowed; raise a ValueError that lists the allowed values
    otherwise."""
    allowed = list(allowed)
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(str, allowed))}")
    return value


def whole(name: str, value: Any, low: int = 1, high: int | None = None) -> int:
    """Return `value` if it is an integer from `low` to `high`; raise ValueError otherwise."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < low
        or (high is not None and value > high)
    ):
        upto = "" if high is None else f" to {high}"
        raise ValueError(f"{name} is {value!r}; allowed: whole numbers from {low}{upto}")
    return value


def power_of_two(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` if it is a power of two from `low` to `high`; raise ValueError otherwise."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not low <= value <= high
        or value & (value - 1)
    ):
        raise ValueError(f"{name} is {value!r}; allowed: powers of two from {low} to {high}")
    return value


def compile_kernel(source: str, name: str, device: torch.device, who: str) -> Callable[..., Any]:
    """Return the kernel `name` of `source`, which includes no header; launch it as `kernel(grid,
    block, args)`.

    Raises UnsupportedError, which names `who` needs the kernel and what is missing, and NVRTC's
    errors about the source.
    """
    if device.type != "cuda":
        raise UnsupportedError(f"{who} is a CUDA kernel, but this cell runs on {device.type}")
    compiler = getattr(torch.cuda, "_compile_kernel", None)
    if compiler is None:
        raise UnsupportedError(
            f"{who} needs torch.cuda._compile_kernel, which PyTorch {torch.__version__} does not"
            " have"
        )
    load_library()
    try:
        from torch.utils import cpp_extension
    except ImportError as error:
        raise UnsupportedError(
            f"{who}: torch.utils.cpp_extension needs {error.name}: pip install {error.name}"
        ) from error
    home = cpp_extension.CUDA_HOME
    try:
        # PyTorch wants a CUDA toolkit for its headers, which these kernels do not need
        cpp_extension.CUDA_HOME = home or str(Path(torch.__file__).parent)
        with torch.cuda.device(device):
            return compiler(source, name)
    except OSError as error:
        raise UnsupportedError(f"{who} needs NVRTC: {error}") from error
    finally:
        cpp_extension.CUDA_HOME = home


def load_library() -> None:
    """Load the NVRTC of PyTorch's wheels, which is in a folder that the dynamic loader does not
    search."""
    packages = Path(torch.__file__).parents[1] / "nvidia"
    major = (torch.version.cuda or "").partition(".")[0]
    for path in sorted(packages.glob(f"*/lib/libnvrtc.so.{major}*")):
        with suppress(OSError):  # PyTorch then tries the system's NVRTC
            ctypes.CDLL(str(path))
