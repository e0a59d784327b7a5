"""What bounds a call, and how near it is to the machine's best."""

from __future__ import annotations

import pytest

from effbench.analysis.bottleneck import Floors, bound, idle_fraction, roofline_fraction


@pytest.mark.parametrize(
    ("busy", "period", "idle"),
    [(0.2, 1.0, 0.8), (1.0, 1.0, 0.0), (1.01, 1.0, 0.0), (None, 1.0, None), (1.0, None, None), (0.0, 1.0, None)],
)
def test_idle(busy, period, idle):
    assert idle_fraction(busy, period) == (idle if idle is None else pytest.approx(idle))


@pytest.mark.parametrize(
    ("busy", "compute", "memory", "label"),
    [
        (0.2, 1.0, 0.1, "launch"),
        (0.79, None, None, "launch"),
        (0.9, 0.8, 0.1, "compute"),
        (0.9, 0.1, 0.8, "memory"),
        (0.9, None, 0.8, "memory"),
        (0.9, 0.8, None, "compute"),
        (0.9, 0.1, 0.2, "latency"),
        (0.9, 0.0, None, "latency"),
        (0.9, None, None, None),
        (None, 1.0, 0.1, None),
    ],
)
def test_bound(busy, compute, memory, label):
    assert bound(busy, 1.0, Floors(compute, memory)) == label


def test_fraction_of_the_roofline():
    assert roofline_fraction(2.0, Floors(0.5, 1.0)) == 0.5
    assert roofline_fraction(2.0, Floors(None, 4.0)) == 2.0, "out of a cache"
    assert roofline_fraction(None, Floors(1.0, 1.0)) is None
    assert roofline_fraction(2.0, Floors(None, None)) is None
