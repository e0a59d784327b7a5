"""What the CUDA kernels of the micro-workloads are given, followed on the host; the kernels run in
tests/gpu/."""

import contextlib
import ctypes

import pytest
import torch

from effbench.errors import UnsupportedError
from effbench.experiments import _workloads, memory_levels

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def word(address):
    return ctypes.c_int64.from_address(address).value


def chase_on_the_host(place, lines, hops):
    """What `chase_memory` does, on addresses of this process."""
    start = at = word(place.data_ptr())
    for _ in range(hops):
        at = word(at)
    place[0] = at
    return (word(at + 8) - word(start + 8) + lines) % lines


def test_a_walk_has_its_length_and_goes_on_where_the_last_stopped():
    """Through one cycle of all lines: 16 hops at a time, which is no divisor of 63."""
    buffer = memory_levels.lines_of(*memory_levels.cycle(63, seed=3), CPU)
    assert buffer.stride(0) * buffer.element_size() == memory_levels.LINE_BYTES
    place, places = torch.tensor([buffer.data_ptr()]), set()
    for _ in range(63):
        places.add(int(place))
        assert chase_on_the_host(place, 63, 16) == 16
    assert len(places) == 63, "every line is a beginning before one comes again"
    assert [chase_on_the_host(place, 63, hops) for hops in (1, 62, 64, 1024)] == [
        1,
        62,
        1,
        1024 % 63,
    ]


def test_compiling_without_nvrtc_or_a_toolkit(monkeypatch):
    """PyTorch looks for headers below CUDA_HOME and gives up without one; it is put back
    afterwards."""
    from torch.utils import cpp_extension

    def without_library(source, name):
        raise OSError("Could not find any NVRTC library")

    def compiler(source, name):
        return source, name, cpp_extension.include_paths("cuda")[-1]

    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", compiler)
    assert _workloads.compile_kernel("text", "add", CUDA, "it")[:2] == ("text", "add")
    assert cpp_extension.CUDA_HOME is None
    monkeypatch.setattr(torch.cuda, "_compile_kernel", without_library)
    with pytest.raises(
        UnsupportedError, match="pointer-chase needs NVRTC: Could not find any NVRTC library"
    ):
        _workloads.compile_kernel("", "add", CUDA, "pointer-chase")
    monkeypatch.delattr(torch.cuda, "_compile_kernel")
    with pytest.raises(UnsupportedError, match=r"variant=cuda needs torch\.cuda\._compile_kernel"):
        _workloads.compile_kernel("", "add", CUDA, "variant=cuda")
