"""The best capture list: the same as trying all of them; and what is reported about sizes that were not measured."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from effbench.report.advice import ABOVE, BELOW, BETWEEN, MEASURED, MIB, Costs, Curve, Memory, best_lists, evaluate

COSTS = Costs(
    Curve.of({1: 1.0, 8: 1.7, 64: 7.3}), Curve.of({1: 4.0, 64: 9.0}), Curve.of({1: 2.0 * MIB, 64: 64.0 * MIB})
)


def best(*args):
    return next(iter(best_lists(*args)), None)


def test_curve():
    curve = Curve.of({8: 2.0, 2: 1.0, 4: 3.0})
    assert [curve.at(size) for size in (2, 4, 8)] == [1.0, 3.0, 2.0]
    assert [curve.where(size) for size in (1, 2, 3, 9)] == [BELOW, MEASURED, BETWEEN, ABOVE]
    assert [curve.at(size) for size in (3, 5, 6, 7)] == pytest.approx([2.0, 2.75, 2.5, 2.25])
    assert (curve.at(1), curve.at(16)) == (1.0, 2.0), "a falling end is not extrapolated"
    assert Curve.of({1: 1.0, 3: 2.0}).at(5) == pytest.approx(3.0)
    assert Curve.of({4: 1.0}).at(100) == 1.0
    with pytest.raises(ValueError):
        Curve.of({})


def brute_force(trace, costs, memory, sizes):
    """(expected latency, memory or number of graphs) of all lists of these sizes."""
    lists = (list(chosen) for count in range(len(sizes) + 1) for chosen in itertools.combinations(sizes, count))
    found = [evaluate("", chosen, trace, costs, memory) for chosen in lists]
    return [
        (one.latency_ms, len(one.sizes) if one.memory_bytes is None else one.memory_bytes)
        for one in found
        if one.fits and one.latency_ms is not None
    ]


def random_case(number):
    """A small random matrix: latencies that may fall, sizes within and beyond the measured ones, any budget."""
    draw = random.Random(number)
    first = draw.choice([1, 1, 2, 3])
    last = first + draw.randint(1, 7)
    measured = sorted({first, last, *draw.sample(range(first, last + 1), k=draw.randint(0, last - first))})
    graph = Curve.of({size: draw.uniform(1, 3) if draw.random() < 0.3 else 1 + 0.1 * size for size in measured})
    grows = itertools.accumulate(draw.randint(0, 12) * MIB for _ in measured)
    pool = Curve.of(dict(zip(measured, grows, strict=True))) if draw.random() < 0.9 else None
    eager = Curve.of({size: draw.uniform(0.5, 6) for size in measured}) if draw.random() < 0.6 else None
    trace = Counter(draw.randint(1, last + (2 if draw.random() < 0.5 else 0)) for _ in range(draw.randint(1, 30)))
    budget = draw.choice([None, draw.randint(0, 60) * MIB]) if pool else None
    memory = Memory(budget, shared=draw.random() < 0.5, per_graph_bytes=draw.choice([0, MIB // 2, 3 * MIB]))
    return trace, Costs(graph, eager, pool), memory


def test_as_good_as_the_best_of_all_lists():
    kinds = Counter()
    for number in range(120):
        trace, costs, memory = random_case(number)
        slacks = (0.0, 0.1, 0.5)
        found = best_lists(trace, costs, memory, slacks)
        between = range(costs.graph_ms.sizes[0], costs.graph_ms.sizes[-1] + 1)
        tried = brute_force(trace, costs, memory, sorted({*costs.graph_ms.sizes, *trace} & {*between}))
        assert len(found) == (len(slacks) if tried else 0), number
        kinds.update(["none"] if not found else [])
        if found:  # no other whole number makes a faster list either
            every = brute_force(trace, costs, memory, between)
            assert found[0].latency_ms == pytest.approx(min(latency for latency, _ in every)), number
            kinds.update(
                name
                for name, true in (("empty", not found[0].sizes), ("long", len(found[0].sizes) > 2),
                                   ("fallbacks", found[0].fallbacks > 0)) if true
            )  # fmt: skip
        for one, slack in zip(found, slacks, strict=False):
            least = min(latency for latency, _ in tried)
            lightest = min(needed for latency, needed in tried if latency <= least * (1 + slack) * (1 + 1e-9))
            assert one.fits
            assert one.latency_ms <= least * (1 + slack) * (1 + 1e-9), number
            assert (len(one.sizes) if one.memory_bytes is None else one.memory_bytes) == pytest.approx(lightest)
    assert all(kinds[kind] > 2 for kind in ("none", "empty", "long", "fallbacks")), kinds


def test_memory_of_a_shared_pool_and_of_private_ones():
    pool = COSTS.pool_bytes
    assert Memory(per_graph_bytes=MIB).of([1, 64], pool) == 66 * MIB
    assert Memory(shared=False, per_graph_bytes=MIB).of([1, 64], pool) == 68 * MIB
    assert Memory().of([], pool) == 0
    assert Memory().of([1], None) is None
    assert not Memory(budget_bytes=5).fits(None), "a budget that cannot be checked is not kept"


def test_what_was_not_measured_is_reported():
    found = evaluate("x", [8, 16, 128], {2: 1, 10: 1, 100: 1, 200: 1}, COSTS, Memory())
    assert [doubt.split(" figures")[0] for doubt in found.doubts] == ["graph", "graph", "eager"]
    assert [("between" in doubt, "a guess" in doubt) for doubt in found.doubts] == [
        (True, False), (False, True), (False, True),
    ]  # fmt: skip
    assert found.guessed == [128, 200]
    beyond = Costs(Curve.of({4: 1.0, 8: 2.0}))
    (doubt,) = evaluate("x", [1, 4], {1: 1}, beyond, Memory()).doubts
    assert "below the smallest measured size, taken as at 4: 1" in doubt
    assert evaluate("x", [4], {9: 1}, beyond, Memory()).latency_ms is None


def test_a_size_whose_graph_failed_is_not_advised():
    trace = Counter({4: 10, 6: 50, 8: 10})
    curves = Curve.of({4: 1.0, 8: 2.0}), Curve.of({4: 5.0, 8: 5.0})
    assert best(trace, Costs(*curves), Memory()).sizes == [4, 6, 8]
    failed = Costs(*curves, failed=frozenset({6}))
    found = best(trace, failed, Memory())
    assert (found.sizes, found.doubts) == ([4, 8], [])
    assert "failed when it was measured: 6" in evaluate("exact", [4, 6, 8], trace, failed, Memory()).doubts[0]
