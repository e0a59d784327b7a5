"""FLOPs and kernels that are known by hand; the profiled pass itself needs a GPU
(tests/gpu)."""

import pytest
import torch
from torch import nn

from effbench.measure import flops
from effbench.measure.profile import Activity, fingerprint, summarise, union_ns


def test_a_layer_is_counted_without_its_fused_operator():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    weights = 4 * 16 * 16 + 2 * 16 * 32
    with torch.inference_mode():
        counted = flops.count(layer, (torch.randn(1, 10, 16),), {})
    assert counted >= 2 * 10 * weights
    assert torch.backends.mha.get_fastpath_enabled()


def run(*spans, name="k", correlation=1):
    return [Activity(name, start, end - start, correlation) for start, end in spans]


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([(0, 10), (5, 15)], 15),  # two streams
        ([(0, 100), (10, 20), (30, 40)], 100),  # inside a longer one
        ([(20, 25), (0, 10), (9, 21)], 25),  # in any order
    ],
)
def test_time_in_which_anything_ran(spans, busy):
    assert union_ns(run(*spans)) == busy


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
        return Activity(name, stream, 5, stream, metadata)

    copy = Activity("Memcpy HtoD (Pageable -> Device)", 0, 5, 1, '"bytes": 64')
    gemm = kernel("gemm 0x7f3a")
    known = fingerprint([kernel(), gemm])
    again = kernel(stream=9)
    assert fingerprint([copy, kernel("gemm 0x8e11", stream=8), again, again]) == known
    changed = [kernel("triton_poi_fused_add_1"), kernel(grid="[8, 1, 1]"), kernel(shared=1024)]
    assert len({known, *(fingerprint([other, gemm]) for other in changed)}) == 4
    assert fingerprint([copy]) is None
    assert len(known) == 16
    assert fingerprint([kernel("triton_tem_fused_mm_0")]).endswith("-tuned")
