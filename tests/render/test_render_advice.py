"""The best capture list is the best of all lists; what was not measured is reported."""

import itertools
import math
import random
from collections import Counter

import pytest
import synthetic as make
from synthetic import label_rows

from effbench.analysis.advice import Question, recommend
from effbench.analysis.capture_lists import Costs, best_list, costs_of, evaluate, value_at
from effbench.core.errors import UsageError
from effbench.core.metrics import INTERVALS

MIB = 2**20
COSTS = Costs({1: 1.0, 8: 1.7, 64: 7.3}, {1: 4.0, 64: 9.0}, {1: 2.0 * MIB, 64: 64.0 * MIB})


def test_values_between_measured_sizes():
    curve = {8: 2.0, 2: 1.0, 4: 3.0}
    assert [value_at(curve, size) for size in (1, 2, 3, 4, 5, 7, 8)] == [
        1.0,
        1.0,
        2.0,
        3.0,
        2.75,
        2.25,
        2.0,
    ]
    assert value_at(curve, 9) == value_at({}, 1) == math.inf


def brute_force(trace, costs, budget, sizes):
    """Return (expected latency, number of graphs) of all lists of these sizes that fit."""
    lists = itertools.chain.from_iterable(
        itertools.combinations(sizes, count) for count in range(len(sizes) + 1)
    )
    evaluated = [evaluate("", list(chosen), trace, costs) for chosen in lists]
    return [
        (one.latency_ms, len(one.sizes))
        for one in evaluated
        if one.latency_ms is not None and (budget is None or one.memory_bytes <= budget)
    ]


def random_case(number):
    """A small random matrix: latencies that may fall, sizes within and beyond the measured ones,
    any budget."""
    draw = random.Random(number)
    measured = sorted(draw.sample(range(1, 10), k=draw.randint(1, 6)))
    graph = {size: draw.uniform(1, 3) for size in measured}
    pool = {size: size * MIB for size in measured}
    eager = {}
    if draw.random() < 0.6:
        eager = {size: draw.uniform(0.5, 6) for size in (1, 12)}
    trace = Counter(draw.randint(1, 10) for _ in range(draw.randint(1, 30)))
    budget = draw.choice([None, draw.randint(0, 20) * MIB])
    return trace, Costs(graph, eager, pool), budget


def test_as_good_as_the_best_of_all_lists():
    kinds = Counter()
    for number in range(120):
        trace, costs, budget = random_case(number)
        best = best_list(trace, costs, budget)
        between = range(min(costs.graph_ms), max(costs.graph_ms) + 1)
        # all whole numbers, not the candidates alone
        tried = brute_force(trace, costs, budget, between)
        if best is None:
            kinds["no list"] += 1
            assert not tried, number
            continue
        kinds[min(len(best.sizes), 2)] += 1
        least = min(latency for latency, _ in tried)
        fewest = min(graphs for latency, graphs in tried if latency <= least * (1 + 1e-9))
        assert best.latency_ms == pytest.approx(least), number
        assert len(best.sizes) == fewest, number
    assert kinds.keys() == {"no list", 0, 1, 2}
    assert min(kinds.values()) > 2, kinds


def test_more_sizes_than_can_be_tried_are_refused():
    with pytest.raises(
        UsageError, match="2,002 different sizes are more than 2,000; round those of the trace up"
    ):
        best_list(dict.fromkeys(range(1, 2002), 1), Costs({1: 1.0, 9999: 2.0}))


def test_what_was_not_measured_is_reported_or_unknown():
    found = evaluate("x", [8, 16], {2: 1, 10: 1, 50: 1}, COSTS)
    assert found.unmeasured == [16, 50]
    assert found.fallbacks == pytest.approx(1 / 3)
    for sizes, trace in (([8, 128], {2: 1, 100: 1}), ([8], {9: 1, 65: 1}), ([2, 4], {65: 1})):
        assert evaluate("x", sizes, trace, COSTS).latency_ms is None, (
            "above all measured sizes nothing is known"
        )


@pytest.mark.parametrize(("latency", "period"), [(0.9, 1.9), (1.9, 0.9)])
def test_calls_pay_back_if_the_time_that_counts_is_shorter(latency, period):
    lows = {"speedup_ci_low": latency, "period_speedup_ci_low": period}
    rows = label_rows([make.row(), make.row(mode="default", **lows)])
    for metric, low in (("latency", latency), ("period", period)):
        advice = recommend(rows, Question(metric))
        (default,) = [candidate for candidate in advice.ranked if candidate.mode == "default"]
        assert (advice.break_even(default) is None) is (low < 1), metric


@pytest.mark.parametrize(("calls", "ties"), [(None, ["default"]), (1, []), (2, ["default"])])
def test_a_preparation_that_alone_costs_more_than_the_best_mode_rules_a_mode_out(calls, ties):
    """Without intervals, as after one round, all other modes may be as fast."""
    times = {"latency_ms": 1.0, **dict.fromkeys(INTERVALS["latency_ms"]), "first_call_s": 0.0}
    compiled = make.row(mode="default", **times | {"compile_cold_s": 0.002})
    advice = recommend(label_rows([make.row(**times), compiled]), Question(calls=calls))
    assert [tie.mode for tie in advice.ties] == ties


def test_costs_are_those_of_the_ok_results_of_one_model_and_mode():
    rows = [make.row("mlp", bs, latency_ms=4.0) for bs in (1, 8)]
    for bs in (1, 8):
        for model in ("mlp", "gpt2"):
            pool = {"graph_pool_bytes": bs * MIB}
            rows.append(
                make.row(
                    model,
                    bs,
                    "cuda-graph",
                    latency_ms=float(bs),
                    **pool,
                )
            )
    marked = {"marked": True, "disturbance": "host busy", "graph_pool_bytes": 16 * MIB}
    rows += [
        make.row("mlp", 16, "cuda-graph", **marked),
        make.row("mlp", 32, "cuda-graph", status="degraded"),
        make.failed("mlp", 64, "cuda-graph", "oom", "full"),
        make.row("mlp", 16, "default"),
    ]
    results = make.results(rows)
    assert costs_of(results, "mlp", "cuda-graph", Question(), "eager") == Costs(
        graph_ms={1: 1.0, 8: 8.0},
        eager_ms={1: 4.0, 8: 4.0},
        pool_bytes={1: MIB, 8: 8 * MIB, 16: 16 * MIB},
        failed=frozenset({32, 64}),
        case="mlp",
        mode="cuda-graph",
        marked=frozenset({16}),
    )
    periods = costs_of(results, "mlp", "cuda-graph", Question("period"), "eager").graph_ms
    assert periods == pytest.approx({1: 0.8, 8: 6.4})
    with pytest.raises(UsageError, match="model: mlp, gpt2; choose one with --model"):
        costs_of(results, None, "cuda-graph", Question(), "eager")
