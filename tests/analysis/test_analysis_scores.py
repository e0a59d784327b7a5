"""A mode over all models: from rows of the view to a line."""

from __future__ import annotations

import math

import pytest

from effbench.analysis.mode_scores import describe, score


def row(speedup, low=None, high=None, status="ok", trials=5):
    return {"status": status, "speedup": speedup, "speedup_ci_low": low, "speedup_ci_high": high, "trials": trials}


def test_the_geometric_mean_with_interval_and_pass_rate():
    found = score([row(2.0, 1.9, 2.1), row(0.5, 0.45, 0.55), row(None, status="oom")])
    assert found.value == pytest.approx(1.0)
    assert (found.passed, found.total, found.averaged) == (2, 3, 2)
    assert 0.9 < found.low < 1.0 < found.high < 1.1
    assert describe(found) == f"1.00× ({found.low:.2f}–{found.high:.2f}), 2 of 3 ok"


def test_without_intervals_or_without_speedups():
    assert describe(score([row(2.0), row(8.0)])) == "4.00×, 2 of 2 ok"
    assert describe(score([row(math.nan, math.nan, math.nan)])) == "1 of 1 ok"
    assert describe(score([row(None, status="error")])) == "0 of 1 ok"


def test_a_baseline_has_no_interval_to_speak_of():
    assert describe(score([row(1.0, 1.0, 1.0), row(1.0, 1.0, 1.0)])) == "1.00×, 2 of 2 ok"
