"""The sentence that says why, from rows of the view."""

from __future__ import annotations

import pytest

from effbench.analysis.bottleneck import percent, why

LAUNCH = {
    "gpu_busy_ms": 0.068, "period_ms": 0.143, "gpu_idle_fraction": 0.5245, "kernels": 15, "bound": "launch",
    "enqueue_ms": 0.137, "roofline_fraction": 0.0275, "flops": 16777216.0, "min_bytes": 16797696.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {},
            "the GPU is idle 52 % of the time: 15 kernels take 0.0680 of 0.143 ms; "
            "the host needs 0.137 ms to enqueue them",
        ),
        (
            {"enqueue_ms": 0.01, "kernels": 1},
            "the GPU is idle 52 % of the time: 1 kernel takes 0.0680 of 0.143 ms; the rest is gaps between kernels",
        ),
        (
            {"bound": "memory", "gpu_idle_fraction": 0.04, "roofline_fraction": 0.81, "kernels": 3},
            "81 % of the copy bandwidth (16.0 MiB at least) in 0.143 ms; 3 kernels, the GPU is idle 4.0 %",
        ),
        (
            {"bound": "compute", "gpu_idle_fraction": 0.04, "roofline_fraction": 0.613, "flops": 3.43597e11},
            "61 % of the matrix rate (344 GFLOP) in 0.143 ms; 15 kernels, the GPU is idle 4.0 %",
        ),
        (
            {"bound": "latency", "gpu_idle_fraction": 0.1, "gpu_busy_ms": 0.13, "roofline_fraction": 0.052},
            "the GPU is busy 90 % of the time, but at 5.2 % of its nearest ceiling: "
            "15 kernels of 8.7 µs on average",
        ),
        (
            {"bound": None, "gpu_idle_fraction": 0.1, "gpu_busy_ms": 0.129},
            "the GPU is idle 10 % of the time: 15 kernels take 0.129 of 0.143 ms",
        ),
    ],
)  # fmt: skip
def test_sentences(changed, sentence):
    assert why({**LAUNCH, **changed}) == sentence


@pytest.mark.parametrize("name", ["gpu_busy_ms", "period_ms"])
def test_without_a_profile_or_a_period_there_is_none(name):
    assert why({**LAUNCH, name: None, "gpu_idle_fraction": None, "bound": None}) is None


@pytest.mark.parametrize("bound", ["memory", "compute", "latency", "launch"])
def test_a_row_that_lacks_the_ceilings_is_told_without_them(bound):
    lacking = {"bound": bound, "roofline_fraction": None, "flops": None, "min_bytes": None}
    assert "15 kernels" in why({**LAUNCH, **lacking})


def test_percent():
    assert [percent(value) for value in (0.0, 0.0523, 0.0996, 0.5, 1.0)] == ["0.0 %", "5.2 %", "10 %", "50 %", "100 %"]
