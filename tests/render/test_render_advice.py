"""When a mode pays back, and which modes tie."""

import pytest
import synthetic as make
from synthetic import label_rows

from effbench.analysis.advice import Question, recommend
from effbench.core.metrics import INTERVALS
from effbench.render.advice import because


@pytest.mark.parametrize(("latency", "period"), [(0.9, 1.9), (1.9, 0.9)])
def test_calls_pay_back_if_the_time_that_counts_is_shorter(latency, period):
    lows = {"speedup_ci_low": latency, "period_speedup_ci_low": period}
    rows = label_rows([make.row(), make.row(mode="default", **lows)])
    for metric, low in (("latency", latency), ("period", period)):
        advice = recommend(rows, Question(metric))
        (default,) = [candidate for candidate in advice.ranked if candidate.mode == "default"]
        assert (advice.break_even(default) is None) is (low < 1), metric


@pytest.mark.parametrize(("cold_s", "calls"), [(3.5, 1000), (2.0, 0)])
def test_a_longer_cold_start_is_what_pays_back(cold_s, calls):
    eager = make.row(latency_ms=3.5, cold_s=2.5)
    default = make.row(mode="default", latency_ms=2.5, cold_s=cold_s)
    advice = recommend(label_rows([eager, default]), Question())
    (candidate,) = [one for one in advice.ranked if one.mode == "default"]
    assert candidate.prepare_s == cold_s
    assert advice.break_even(candidate) == calls


@pytest.mark.parametrize(("calls", "ties"), [(None, ["default"]), (1, []), (2, ["default"])])
def test_a_preparation_that_alone_costs_more_than_the_best_mode_rules_a_mode_out(calls, ties):
    """Without intervals, as after one round, all other modes may be as fast."""
    times = {"latency_ms": 1.0, **dict.fromkeys(INTERVALS["latency_ms"]), "first_call_s": 0.0}
    compiled = make.row(mode="default", **times | {"compile_cold_s": 0.002})
    advice = recommend(label_rows([make.row(**times), compiled]), Question(calls=calls))
    assert [tie.mode for tie in advice.ties] == ties
    assert ("too few rounds to rule out default" in because(advice)) is bool(ties)
