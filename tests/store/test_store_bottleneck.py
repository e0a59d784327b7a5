"""What bounds a call, and the sentence with the reason."""

import pytest
from made_sweeps import a_result

from effbench.store.bottleneck import bound, idle_fraction, why

LAUNCH = {
    "gpu_busy_ms": 0.068,
    "period_ms": 0.143,
    "gpu_idle_fraction": 0.5245,
    "kernels": 15,
    "bound": "launch",
    "enqueue_ms": 0.137,
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
    ("idle", "label"),
    [
        (None, None),
        (0.0, "gpu"),
        (0.19, "gpu"),
        (0.2, "launch"),
    ],
)
def test_bound(idle, label):
    assert bound(idle) == label


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({}, ["idle 52 %", "15 kernels take 0.0680 of 0.143 ms", "0.137 ms to enqueue"]),
        ({"enqueue_ms": 0.01, "kernels": 1}, ["1 kernel takes 0.0680 of 0.143 ms"]),
        ({"bound": "gpu", "gpu_idle_fraction": 0.03}, ["the GPU is busy 97 % of the time"]),
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
