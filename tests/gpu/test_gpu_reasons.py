"""Known kernels, known bytes, a known bottleneck: through real sweeps on a GPU."""

from __future__ import annotations

import pytest

MIB = 2**20
alone = pytest.mark.alone


@pytest.fixture(scope="module")
def two_steps(run):
    """Trials and rows."""
    return run(
        "model=custom",
        "model.module._target_=modules.TwoSteps",
        f"model.inputs.x.shape=[{16 * MIB}]",
        "mode=eager,default,cuda-graph",
        "dtype=float32",
    )


def test_the_pool_of_a_graph_holds_what_its_kernels_need(two_steps):
    rows = two_steps[1]
    by_mode = {row["mode"]: row for row in rows}
    assert by_mode["cuda-graph"]["graph_pool_bytes"] == 2 * 64 * MIB
    assert by_mode["eager"]["graph_pool_bytes"] is None
    # eager: three inputs and two tensors; the graph: three inputs, its static one, and its pool
    assert by_mode["eager"]["peak_allocated_bytes"] == 5 * 64 * MIB
    # and one smallest segment, for the state of the random numbers that every graph has
    assert by_mode["cuda-graph"]["peak_reserved_bytes"] == 6 * 64 * MIB + 2 * MIB
    assert by_mode["cuda-graph"]["relative_memory"] == pytest.approx((6 * 64 + 2) / (5 * 64))


def test_kernels_are_counted_and_those_of_a_graph_are_known(two_steps):
    kernels = {
        trial["mode"]: (trial["kernels"], trial["extra"]["profile"]["kernels_in_graphs"])
        for trial in two_steps[0]
    }
    # fused by Inductor; a copy goes before the graph
    assert kernels == {"eager": (2, 0), "default": (1, 0), "cuda-graph": (3, 2)}


@alone
def test_what_bounds_a_cell(custom):
    timing = ("protocol.budget_s=0.8", "protocol.load_s=0.3")  # the GPU's clocks adapt to the load
    small, large = custom(
        "Products", "cuda-graph", "[4096]", "dtype=bfloat16", "bs=1,4096", *timing
    )
    assert large["bound"] == "gpu"
    assert large["flops"] == 4 * 2 * 4096**3
    assert large["gpu_idle_fraction"] < 0.1
    assert large["gpu_busy_ms"] == pytest.approx(large["period_ms"], rel=0.2)
    assert small["kernels"] >= 4, "products of one row may be split in two"
    assert small["enqueue_ms"] > 0
