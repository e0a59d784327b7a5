"""The rule that ends the duets of a cell: rare false alarms, and slowdowns are found."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from effbench.stats.significance import LEAST_DUETS, MOST_PAIRS, is_decided

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by their plain names
duets = importlib.import_module("duets")


@pytest.mark.parametrize("spread", [0.015, 0.02])
def test_unchanged_cells_rarely_look_slower_and_5_percent_are_found(spread):
    rng = np.random.default_rng(7)
    unchanged = duets.simulate(rng, 600, 0.0, spread)
    slower = duets.simulate(rng, 300, 0.05, spread)
    assert unchanged.slower_fraction <= 0.01
    assert unchanged.same_fraction >= 0.9, "the interval excludes a change in nearly all"
    assert slower.slower_fraction >= 0.9
    assert slower.same_fraction <= 0.01
    assert LEAST_DUETS <= slower.mean_duets <= unchanged.mean_duets < MOST_PAIRS, "they end early"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.99, 1.01, True),
        (1.03, 1.06, True),
        (0.90, 0.95, True),
        (0.99, 1.03, False),
        (1.01, 1.05, False),
        (None, None, False),
    ],
)
def test_an_interval_is_decided_inside_the_floor_or_beyond_it(low, high, expected):
    assert is_decided(low, high, 0.02) is expected
