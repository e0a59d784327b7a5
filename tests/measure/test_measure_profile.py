"""The arithmetic of the profiled pass; the tracing itself needs a GPU (tests/gpu)."""

import pytest

from effbench.measure.profile import Activity, fingerprint, summarise, union_ns


def run(*spans, name="k", correlation=1):
    return [Activity(name, start, end - start, correlation) for start, end in spans]


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([], 0),
        ([(0, 10)], 10),
        ([(0, 10), (20, 25)], 15),
        ([(0, 10), (5, 15)], 15),  # two streams
        ([(0, 100), (10, 20), (30, 40)], 100),  # inside a longer one
        ([(20, 25), (0, 10), (9, 21)], 25),  # in any order
        ([(0, 10), (10, 20)], 20),
    ],
)
def test_time_in_which_anything_ran(spans, busy):
    assert union_ns(run(*spans)) == busy


def test_figures_are_of_one_call():
    activities = [
        *run((0, 3_000_000), (10_000_000, 13_000_000), name="gemm", correlation=1),
        *run((3_000_000, 4_000_000), (13_000_000, 14_000_000), name="add", correlation=2),
    ]
    found = summarise(activities, {1}, calls=2)
    assert (found.busy_ms, found.kernels) == (4.0, 2)
    gemm = {"name": "gemm", "count": 1.0, "ms": 3.0, "share": 0.75}
    add = {"name": "add", "count": 1.0, "ms": 1.0, "share": 0.25}
    assert found.facts == {"calls": 2, "kernels_in_graphs": 1, "top": [gemm, add]}


def test_the_fingerprint_is_of_the_different_kernels_and_their_launches():
    def kernel(name="triton_poi_fused_add_0", grid="[4, 1, 1]", shared=0, stream=7):
        metadata = f'"stream": {stream}, "shared memory": {shared}, "warps per SM": 0.{stream}, "grid": {grid}, '
        metadata += '"block": [128, 1, 1], "est. achieved occupancy %": 3'
        return Activity(name, stream, 5, stream, metadata)

    copy, gemm = Activity("Memcpy HtoD (Pageable -> Device)", 0, 5, 1, '"bytes": 64'), kernel("gemm 0x7f3a")
    known = fingerprint([kernel(), gemm])
    assert fingerprint([copy, kernel("gemm 0x8e11", stream=8), *[kernel(stream=9)] * 3]) == known
    changed = kernel("triton_poi_fused_add_1"), kernel(grid="[8, 1, 1]"), kernel(shared=1024), gemm
    assert len({known, *(fingerprint([other, gemm]) for other in changed)}) == 5
    assert fingerprint([copy]) is fingerprint([]) is None and len(known) == 16
