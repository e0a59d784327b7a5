"""What bounds a call, how near it is to the machine's best, and the sentence with the reason."""

import pytest
from made_sweeps import a_cell, a_result

from effbench.core.cell import Status, Trial
from effbench.store.bottleneck import (
    Floors,
    bound,
    idle_fraction,
    roofline_fraction,
    set_floors,
    why,
)

LAUNCH = {
    "gpu_busy_ms": 0.068,
    "period_ms": 0.143,
    "gpu_idle_fraction": 0.5245,
    "kernels": 15,
    "bound": "launch",
    "enqueue_ms": 0.137,
    "roofline_fraction": 0.0275,
}


@pytest.mark.parametrize(
    ("busy", "period", "idle"),
    [
        (0.2, 1, 0.8),
        (1.01, 1, 0),
        (None, 1, None),
        (0, 1, None),
    ],
)
def test_idle_fraction(busy, period, idle):
    assert idle_fraction(busy, period) == (idle if idle is None else pytest.approx(idle))


@pytest.mark.parametrize(
    ("period", "compute", "memory", "fraction"),
    [
        (2.0, 0.5, 1.0, 0.5),
        (2.0, None, 4.0, 2.0),  # out of a cache
        (None, 1.0, 1.0, None),
        (2.0, None, None, None),
    ],
)
def test_fraction_of_the_roofline(period, compute, memory, fraction):
    assert roofline_fraction(period, Floors(compute, memory)) == fraction


@pytest.mark.parametrize(
    ("busy", "compute", "memory", "label"),
    [
        (0.2, 1.0, 0.1, "launch"),
        (0.79, None, None, "launch"),
        (0.9, 0.8, 0.1, "compute"),
        (0.9, None, 0.8, "memory"),
        (0.9, 0.1, 0.22, "latency"),
        (0.9, 0.23, 0.1, "compute"),
        (0.9, None, None, None),
        (None, 1.0, 0.1, None),
    ],
)
def test_bound(busy, compute, memory, label):
    assert bound(busy, 1.0, Floors(compute, memory)) == label


@pytest.mark.parametrize(
    ("dtype", "numerics", "flops", "compute_ms"),
    [
        ("float32", {}, 8e9, 8.0),
        ("float32", {"matmul_precision": "high"}, 8e9, 2.0),
        ("float32", {"tf32": True}, 8e9, 2.0),
        ("bfloat16", {"tf32": True}, 8e9, 1.0),
        ("float16", {}, 8e9, None),
        ("float32", {}, None, None),
    ],
)
def test_floors_are_those_of_the_matrix_rate_that_the_numerics_allow(
    dtype, numerics, flops, compute_ms
):
    rates = {"float32": 1e12, "tf32": 4e12, "bfloat16": 8e12}
    trial = Trial(
        "k",
        0,
        Status.OK,
        flops=flops,
        min_bytes=flops,
    )
    cell = a_cell(dtype=dtype, numerics=numerics)
    set_floors(trial, cell, {"flops_per_s": rates, "copy_bytes_per_s": 2e12})
    assert trial.compute_floor_ms == compute_ms
    assert trial.memory_floor_ms == (flops and 4.0)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({}, ["idle 52 %", "15 kernels take 0.0680 of 0.143 ms", "0.137 ms to enqueue"]),
        ({"enqueue_ms": 0.01, "kernels": 1}, ["1 kernel takes 0.0680 of 0.143 ms"]),
        (
            {"bound": "memory", "roofline_fraction": 0.81, "gpu_idle_fraction": 0.03},
            ["the GPU is busy 97 % of the time", "81 % of the copy bandwidth"],
        ),
        ({"bound": "compute", "roofline_fraction": 0.613}, ["61 % of the matrix rate"]),
        ({"bound": "latency", "roofline_fraction": 0.1}, ["10 % of the nearest ceiling"]),
        (
            {"latency_ms": 0.17, "period_ms": None, "gpu_idle_fraction": None},
            ["busy 40 % of the latency"],
        ),
    ],
)
def test_sentences_hold_their_figures(changed, parts):
    sentence = why(a_result(**LAUNCH | changed))
    assert all(part in sentence for part in parts), sentence


@pytest.mark.parametrize("name", ["gpu_busy_ms", "period_ms"])
def test_without_a_profile_nothing_is_known(name):
    assert why(a_result(**LAUNCH | {name: None, "gpu_idle_fraction": None, "bound": None})) is None
