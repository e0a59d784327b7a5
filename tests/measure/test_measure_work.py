"""FLOPs and kernels that are known by hand; the profiled pass itself needs a GPU
(tests/gpu)."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.autograd import DeviceType

from effbench.measure import flops, profile
from effbench.measure.profile import fingerprint, summarise
from effbench.measure.trace import Event, running_ns


def test_a_layer_is_counted_without_its_fused_operator():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    weights = 4 * 16 * 16 + 2 * 16 * 32
    with torch.inference_mode():
        counted = flops.count(layer, (torch.randn(1, 10, 16),), {})
    assert counted >= 2 * 10 * weights
    assert torch.backends.mha.get_fastpath_enabled()


def run(*spans, name="k", correlation=1):
    return [Event(name, start, end, correlation) for start, end in spans]


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([(0, 10), (5, 15)], 15),  # two streams
        ([(0, 100), (10, 20), (30, 40)], 100),  # inside a longer one
        ([(20, 25), (0, 10), (9, 21)], 25),  # in any order
    ],
)
def test_time_in_which_anything_ran(spans, busy):
    assert running_ns(run(*spans)) == busy


def test_figures_are_of_one_call():
    activities = [
        *run((0, 3_000_000), (10_000_000, 13_000_000), name="gemm", correlation=1),
        *run((3_000_000, 4_000_000), (13_000_000, 14_000_000), name="add", correlation=2),
    ]
    counted = summarise(activities, {1}, calls=2)
    assert (counted.busy_ms, counted.kernels) == (4.0, 2)
    assert counted.facts["kernels_in_graphs"] == 1
    gemm = {
        "name": "gemm",
        "count": 1.0,
        "ms": 3.0,
        "share": 0.75,
    }
    add = {
        "name": "add",
        "count": 1.0,
        "ms": 1.0,
        "share": 0.25,
    }
    assert counted.facts["top"] == [gemm, add]


def test_the_fingerprint_is_of_the_different_kernels_and_their_launches():
    def kernel(name="triton_poi_fused_add_0", grid="[4, 1, 1]", shared=0, stream=7):
        metadata = f'"stream": {stream}, "shared memory": {shared}, "grid": {grid}, "warps": 0.3'
        return Event(name, stream, stream + 5, stream, metadata)

    copy = Event("Memcpy HtoD (Pageable -> Device)", 0, 5, 1, '"bytes": 64')
    gemm = kernel("gemm 0x7f3a")
    known = fingerprint([kernel(), gemm])
    again = kernel(stream=9)
    assert fingerprint([copy, kernel("gemm 0x8e11", stream=8), again, again]) == known
    changed = [kernel("triton_poi_fused_add_1"), kernel(grid="[8, 1, 1]"), kernel(shared=1024)]
    assert len({known, *(fingerprint([other, gemm]) for other in changed)}) == 4
    assert fingerprint([copy]) is None
    assert len(known) == 16
    assert fingerprint([kernel("triton_tem_fused_mm_0")]).endswith("-tuned")


def recorded(name, device, start, duration, correlation):
    """What kineto recorded."""
    values = {
        "name": name,
        "device_type": device,
        "start_ns": start,
        "duration_ns": duration,
        "correlation_id": correlation,
        "metadata_json": '"grid": [4, 1, 1]',
    }
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def test_the_profile_of_recorded_events(monkeypatch):
    events = [
        recorded("cudaGraphLaunch", DeviceType.CPU, 0, 9_000_000, 1),
        recorded("gemm", DeviceType.CUDA, 1_000_000, 2_000_000, 1),
        recorded("cudaLaunchKernel", DeviceType.CPU, 3_000_000, 9_000_000, 2),
        recorded("relu", DeviceType.CUDA, 4_000_000, 1_000_000, 2),
    ]
    tracer = MagicMock()
    tracer.profiler.kineto_results.events.return_value = events
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: tracer)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(profile, "load", lambda *_: None)
    found = profile.profile(lambda: None, [((), {})], calls=1)
    assert found.busy_ms == 3.0
    assert found.kernels == 2
    assert found.facts["kernels_in_graphs"] == 1
    assert [kernel["ms"] for kernel in found.facts["top"]] == [2.0, 1.0]
    kernels = [Event(name, 0, 1, 0, '"grid": [4, 1, 1]') for name in ("gemm", "relu")]
    assert found.fingerprint == fingerprint(kernels)
