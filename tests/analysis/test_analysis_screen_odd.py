"""Figures that cannot be, and those that one side alone has."""

import math

import pytest
from made_pairs import only, pair, side

from effbench.analysis.limits import limits_of
from effbench.analysis.screen import record, screen
from effbench.analysis.verdicts import Verdict


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, "1.0"])
def test_a_time_that_cannot_be_is_left_out_and_told(bad):
    change = only([bad, 1.0, 1.001, 1.0, 1.001], [1.0, 1.001, 1.0, 1.001, 1.002], "gpu_busy_ms")
    assert change.verdict is Verdict.SAME
    assert change.reason == "1 of 5 figures before cannot be: left out"


def test_a_trial_without_a_figure_that_others_have_is_told():
    change = only([1.0, 1.001, 1.0, 1.001, 1.002], [None, 1.0, 1.001, 1.0, 0.0], "gpu_busy_ms")
    assert change.verdict is Verdict.SAME
    assert change.reason == "1 of 5 trials now without this figure; 1 of 4 figures now cannot be: left out"
    assert only([12] * 5, [12, None, 12, 12, 12], "kernels").reason == "1 of 5 trials now without this figure"


def test_no_figure_that_can_be():
    change = only([math.nan] * 5, [1.0] * 5, "latency_ms")
    assert change.verdict is Verdict.AMBIGUOUS
    assert change.reason == "not measured before; 5 of 5 figures before cannot be: left out"
    assert only([0.0] * 5, [0.0] * 5, "latency_ms").verdict is Verdict.AMBIGUOUS


def test_a_figure_of_one_side_only():
    change = only([1.0] * 5, [None] * 5, "energy_mj")
    assert (change.verdict, change.reason, change.before, change.after) == ("ambiguous", "not measured now", 1.0, None)
    assert screen([pair(side(energy_mj=[None]), side(energy_mj=[None]))], limits_of({})) == []
    assert screen([pair(side(), side())], limits_of({})) == []


@pytest.mark.parametrize("bound", [None, "launch"])
@pytest.mark.parametrize(("before", "after"), [(1e-300, 1e300), (1e300, 1e-300), (1e300, 1e300), (5e-324, 5e-324)])
@pytest.mark.parametrize("in_turns", [False, True])
def test_figures_at_the_ends_of_the_floats(before, after, bound, in_turns):
    cell = pair(
        *(side(bound=bound, latency_ms=[value] * 5, compile_cold_s=[value]) for value in (before, after)),
    )
    found = {one.metric: one for one in screen([cell], limits_of({}), in_turns=in_turns)}
    expected = "same" if before == after else "slower" if after > before else "faster"
    assert found["latency_ms"].verdict == expected
    assert all(value is None or isinstance(value, str | bool) or math.isfinite(value)
               for one in found.values() for value in record(one).values())  # fmt: skip
