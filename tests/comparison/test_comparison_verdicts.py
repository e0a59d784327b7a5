"""Verdicts on pairs of results: statuses, ratios, counts, values per sweep, exceptions."""

import itertools
import math
from statistics import geometric_mean

import pytest
from made_pairs import only, pair, side
from made_sweeps import MIB, steps

from effbench.cell import Status
from effbench.comparison.limits import limits_of
from effbench.comparison.verdicts import (
    FAILING,
    ONE_TIME,
    STATUS,
    Verdict,
    judge,
    record,
    verdict_of_statuses,
)


def test_lost_figures_are_broken_and_new_ones_fixed():
    for before, now in itertools.product(Status, repeat=2):
        verdict = verdict_of_statuses(before, now)
        if before.is_measured is not now.is_measured:
            assert verdict == ("broken" if before.is_measured else "fixed")
        if before is now:
            assert verdict == (None if now.is_measured else "same")
        if verdict == "broken" and before.is_measured:
            assert verdict_of_statuses(now, before) == "fixed"
    for status in Status:
        assert (verdict_of_statuses(None, status), verdict_of_statuses(status, None)) == (
            "new",
            "missing",
        )


def test_a_changed_status_gives_one_row():
    for before, after, verdict, reason in (
        (side("ok"), side("error", "boom"), "broken", "error: boom (before ok)"),
        (side("crashed", "signal 11"), side("ok"), "fixed", "ok (before crashed: signal 11)"),
        (side("oom", "20 GiB"), side("oom", "21 GiB"), "same", "oom: 21 GiB (before oom: 20 GiB)"),
        (side("oom", "20 GiB"), side("oom", "20 GiB"), "same", "oom: 20 GiB (as before)"),
        (side("error"), side("unsupported"), "same", "unsupported (before error)"),
        (side("oom"), side("error", "x"), "broken", "error: x (before oom)"),
        (
            side("error", "x"),
            side("degraded", "skipped"),
            "fixed",
            "degraded: skipped (before error: x)",
        ),
        (side("ok"), None, "missing", None),
        (None, side("ok"), "new", None),
        (None, side("error", "boom"), "new", "error: boom"),
    ):
        (change,) = judge([pair(before, after)], limits_of({}))
        assert (change.metric, change.verdict, change.reason) == (STATUS, verdict, reason)
        assert change.gates is (change.verdict in FAILING)
    degraded = [side("degraded", latency_ms=steps(factor, 0.001)) for factor in (1, 1.1)]
    assert [(one.metric, one.verdict) for one in judge([pair(*degraded)], limits_of({}))] == [
        ("latency_ms", "slower")
    ]


def test_missing_cells():
    for status, gates in (("ok", True), ("degraded", True), ("oom", False), ("error", False)):
        for on_missing in ("fail", "ignore"):
            (change,) = judge(
                [pair(side(status, "x"), None, why="gone")], limits_of({"on_missing": on_missing})
            )
            assert (change.verdict, change.gates) == (
                Verdict.MISSING,
                gates and on_missing == "fail",
            )
            assert (f"it gave no figures before: {status}: x" in change.reason) is not gates


def test_a_time_against_a_floor_of_two_percent():
    for factor, verdict in (
        (1.05, "slower"),
        (0.95, "faster"),
        (1.0, "same"),
        (1.005, "same"),
        (1.019, "ambiguous"),
        (1.021, "slower"),
        (1 / 1.019, "ambiguous"),
    ):
        change = only(steps(1.0, 0.001), steps(factor, 0.001), "latency_ms")
        assert (change.verdict, change.gates, change.limit) == (verdict, verdict == "slower", 0.02)
        assert change.ratio == pytest.approx(factor) and change.low < factor < change.high
        assert change.before == pytest.approx(1.0)
    noisy = only(steps(1.0, 0.1), steps(1.05, 0.1), "period_ms")
    assert (noisy.verdict, noisy.gates) == (
        Verdict.AMBIGUOUS,
        False,
    ) and noisy.smallest_slowdown > 0.2
    assert only(steps(1.05, 0.1), steps(1.0, 0.1), "period_ms").verdict is Verdict.AMBIGUOUS
    one = only([1.0], [9.0] * 5, "latency_ms")  # without a second trial no time is judged
    assert (one.verdict, one.low, one.p_value, one.ratio) == (
        Verdict.AMBIGUOUS,
        None,
        None,
        pytest.approx(9.0),
    )
    assert one.reason == "a side has only one trial, so the spread is unknown"


def test_a_change_beyond_the_floor_but_inside_the_threshold_is_ambiguous():
    for factor, noise, verdict, said in (
        (1.01, 0.001, "same", False),  # within the floor
        (1.05, 0.001, "ambiguous", True),
        (1 / 1.05, 0.001, "ambiguous", True),
        # surely beyond the floor, and perhaps beyond the threshold
        (1.09, 0.02, "ambiguous", True),
        (1.03, 0.02, "same", False),  # perhaps no change at all
        (1.2, 0.001, "slower", False),
        (1 / 1.2, 0.001, "faster", False),
    ):
        change = only(steps(1, noise), steps(factor, noise), "latency_ms", threshold=0.1)
        assert (change.verdict, change.gates) == (verdict, verdict == "slower")
        assert ("floor of 2.0 %" in (change.reason or "") and "10 %" in change.reason) is said
    low = {"floor": "8%"}
    change = only(steps(1, 0.001), steps(1.05, 0.001), "latency_ms", low, threshold=0.03)
    assert (change.verdict, change.limit, change.reason) == ("same", 0.08, None)
    rules = {"exceptions": [{"model": "mlp", "floor": 0.03, "reason": "known"}]}
    change = only(steps(1, 0.001), steps(1.05, 0.001), "latency_ms", rules, threshold=0.1)
    assert "floor of 3.0 %" in change.reason and change.reason.endswith("by exception: known")


def test_the_correction_is_over_all_cells_that_are_not_ignored():
    odd = pair(side(latency_ms=steps(1, 0.02)), side(latency_ms=steps(1.075, 0.02)), "odd")
    quiet = [
        pair(*(side(latency_ms=steps(1, 0.02)) for _ in "ab"), str(n), model="old")
        for n in range(99)
    ]
    rule = limits_of({"exceptions": [{"model": "old", "ignore": True, "reason": "retired"}]})

    def row(cells, limits):
        return next(one for one in judge(cells, limits) if one.key == "odd")

    alone, among = row([odd], limits_of({})), row([odd, *quiet], limits_of({}))
    assert (alone.verdict, among.verdict, among.p_value) == (
        Verdict.SLOWER,
        Verdict.AMBIGUOUS,
        alone.p_value,
    )
    assert among.low > 1.02 and (alone.reason, among.reason) == (
        None,
        "not significant among all rows",
    )
    vague = pair(side(latency_ms=steps(1, 0.03)), side(latency_ms=steps(1.075, 0.03)), "odd")
    for cells, why in (([vague, *quiet], "not significant among all rows"), ([vague], None)):
        unsure = row(cells, limits_of({}))  # although the interval excludes 1, if not the floor
        assert 1.0 < unsure.low < 1.02 and (unsure.verdict, unsure.reason) == (
            "ambiguous" if why else "slower",
            why,
        )
    inside = next(
        one
        for one in judge([odd, *quiet], limits_of({}), {("odd", "latency_ms"): 0.2})
        if one.key == "odd"
    )
    assert inside.low > 1.02 and (inside.verdict, inside.reason) == (
        "same",
        None,
    ), "within the noise threshold"
    assert row([odd, *quiet], rule).gates, "what is ignored is no test of the correction"
    # nor do clear changes that are ignored lend significance to one that is not clear
    loud = [
        pair(side(latency_ms=[1.0] * 5), side(latency_ms=[2.0] * 5), str(n), model="old")
        for n in range(99)
    ]
    faint = pair(side(latency_ms=steps(1, 0.03)), side(latency_ms=steps(1.075, 0.03)), "odd")
    plain = [pair(*(side(latency_ms=steps(1, 0.02)) for _ in "ab"), f"p{n}") for n in range(3)]
    assert row([faint, *plain, *loud], rule).verdict is Verdict.AMBIGUOUS
    assert row([faint, *plain, *loud], limits_of({})).verdict is Verdict.SLOWER
    assert {one.verdict for one in judge(loud, rule)} == {Verdict.SLOWER}


def test_host_metrics_of_a_launch_bound_cell_alarm_beyond_what_the_trials_can_show():
    launch, memory = ("launch", "launch"), ("memory", "memory")
    metrics = ("latency_ms", "latency_p95_ms", "period_ms", "energy_mj", "gpu_busy_ms")
    cases = (
        (1.3, launch),
        (1.9, launch),
        (1.3, ("memory", "launch")),
        (1 / 1.3, launch),
        (1.3, memory),
    )
    for metric, (factor, bounds) in itertools.product(metrics, cases):
        change = only(steps(1, 0.1), steps(factor, 0.1), metric, bounds=bounds)
        held = metric != "gpu_busy_ms" and factor < 1.5 and "launch" in bounds
        assert change.verdict == ("ambiguous" if held else "slower" if factor > 1 else "faster")
        assert ("launch-bound" in (change.reason or "")) is held


def test_interleaved_sides_with_one_shared_round_are_compared_by_their_trials():
    old, new = (
        side(latency_ms=[1.0, 1.001, 1.0, None, None]),
        side(latency_ms=[None, None, 1.1, 1.101, 1.1]),
    )
    assert judge([pair(old, new)], limits_of({}), interleaved=True)[0].verdict is Verdict.SLOWER


def test_parts_of_a_launch_bound_cell_in_different_rounds_may_differ_by_the_hosts_drift():
    """As in a sweep that was resumed after an update."""
    halves = [[*steps(1, 0.001), *[None] * 5], [*[None] * 5, *steps(1.03, 0.001)]]
    noise = "launch-bound: up to 5.0 % may be noise of the host"
    for parts, verdict, why in (
        (halves, "ambiguous", noise),
        ([steps(1, 0.001), steps(1.03, 0.001)], "slower", ""),
    ):
        sides = [side(bound="launch", latency_ms=values) for values in parts]
        (change,) = judge([pair(*sides)], limits_of({}), interleaved=True)
        assert (change.metric, change.verdict) == ("latency_ms", verdict)
        assert (change.reason or "").startswith(why)


def test_counts_sizes_and_values_per_sweep():
    least = {
        "graph_pool_bytes": 2 * MIB,
        "peak_allocated_bytes": MIB,
        "compile_cold_s": 1.0,
        "rel_error": 1e-4,
    }
    limits = {
        "limits": {name: {"least": value} for name, value in least.items()},
        "exceptions": [{"metric": "recompiles", "least": 2, "reason": "known"}],
    }
    wide = [10, 12, 11, 10, 12]
    some, large = ([0, *[size * MIB] * 4] for size in (64, 1000))  # one trial without a pool
    cases = {
        "kernels": (
            ([0] * 5, [0] * 5, "same"),
            ([0] * 5, [1] * 5, "slower"),
            ([3] * 5, [2] * 5, "faster"),
            (wide, wide[::-1], "same"),
            (wide, [13] * 5, "slower"),
            (wide, [11] * 5, "ambiguous"),
            # a count needs no second trial
            ([10] * 5, [10, 10, 11, 10, 10], "ambiguous"),
            ([1], [2], "slower"),
        ),
        "recompiles": (
            ([10] * 5, [12] * 5, "same"),
            ([10] * 5, [13] * 5, "slower"),
            ([9, 10], [12, 12], "ambiguous"),
            ([12, 12], [9, 10], "ambiguous"),
            ([12, 12], [8, 9], "faster"),
        ),
        "compile_cold_s": (
            ([10.0], [10.0], "same"),
            ([10.0], [12.5], "same"),
            ([2.0], [2.9], "same"),
            ([100.0], [110.0], "same"),
            ([10.0] * 2, [12.5] * 2, "same"),
            ([10.0] * 2, [12.6] * 2, "slower"),
            ([12.6] * 2, [10.0] * 2, "faster"),
            ([2.0] * 2, [3.1] * 2, "slower"),
            # one compilation on a busy machine may take several times as long
            ([2.0], [7.4], "ambiguous"),
            ([2.0] * 3, [7.4], "ambiguous"),
            ([7.4], [2.0] * 3, "ambiguous"),
            ([4.0, 5.0], [4.5, 7.0], "ambiguous"),
            ([4.0, 5.0], [6.1, 7.0], "ambiguous"),
            ([4.0, 4.8], [6.0, 7.0], "ambiguous"),
            ([6.0, 7.0], [4.0, 4.8], "ambiguous"),
            ([4.0, 5.0], [6.3, 7.0], "slower"),
            ([6.1, 7.0], [4.0, 5.0], "ambiguous"),
            ([6.3, 7.0], [4.0, 5.0], "faster"),
        ),
        "rel_error": (([0.0], [5e-5], "same"), ([0.0], [1e-2], "slower")),
        "peak_reserved_cold_bytes": (([0], [0], "same"),),
        "graph_pool_bytes": (
            ([0] * 5, [0] * 5, "same"),
            ([0] * 5, [2 * MIB] * 5, "same"),
            ([0] * 5, [3 * MIB] * 5, "slower"),
            ([3 * MIB] * 5, [0] * 5, "faster"),
            (some, [65 * MIB] * 5, "ambiguous"),
            (some, some, "same"),
            (some, [99 * MIB] * 5, "slower"),
            # the floor also holds for sizes that are 0 in a trial
            (large, [1003 * MIB] * 5, "ambiguous"),
            (large, [1021 * MIB] * 5, "slower"),
        ),
    }
    for metric, (before, after, verdict) in (
        (metric, case) for metric, given in cases.items() for case in given
    ):
        change = only(before, after, metric, limits)
        assert change.verdict == verdict, (metric, before, after)
        why = ONE_TIME if 1 in (len(before), len(after)) else "its trials differ"
        assert (why in (change.reason or "")) is (verdict == "ambiguous")
        combine = geometric_mean if metric == "compile_cold_s" else max
        expected = pytest.approx([combine(before), combine(after)])
        assert ([change.before, change.after], change.p_value) == (expected, None)
        assert (change.ratio is None) is (metric == "graph_pool_bytes" or max(before) == 0)
        assert metric != "compile_cold_s" or change.limit == 0.25
    for size, verdict in ((5, "same"), (6, "slower"), (3.5, "same"), (2, "faster")):
        assert (
            only([4 * MIB] * 5, [size * MIB] * 5, "peak_allocated_bytes", limits).verdict == verdict
        )


def test_a_metric_of_one_side_only_has_a_row():
    nan = math.nan
    for before, after, reason in (
        ([1.0], [None], "not measured now"),
        ([None], [1.0], "not measured before"),
        ([1.0], [nan], "not measured now; 1 of 1 trials now have no valid figure"),
        ([nan], [math.inf], "1 of 1 trials before have no valid figure"),
    ):
        for metric in ("compile_cold_s", "graph_breaks", "latency_ms"):
            change = only(before, after, metric)
            assert (change.verdict, change.ratio, change.gates) == (Verdict.AMBIGUOUS, None, False)
            assert reason in change.reason
            assert (change.before, change.after) == tuple(
                1.0 if one == [1.0] else None for one in (before, after)
            )
    for empty in (side(compile_cold_s=[None]), side(energy_mj=[None]), side()):
        assert judge([pair(empty, empty)], limits_of({})) == []


def test_impossible_figures_are_omitted_and_reported():
    quiet = [1.0, 1.001, 1.0, 1.001, 1.002]
    for bad in (math.nan, math.inf, 0.0, -1.0, "1.0", None):
        change = only([bad, *quiet[:4]], quiet, "gpu_busy_ms")
        assert (change.verdict, "1 of 5 trials before" in change.reason) == (Verdict.SAME, True)
    assert (
        only([12] * 5, [12, None, 12, 12, 12], "kernels").reason
        == "1 of 5 trials now have no valid figure"
    )
    assert only([0.0] * 5, [0.0] * 5, "latency_ms").verdict is Verdict.AMBIGUOUS


def test_figures_at_the_ends_of_the_floats():
    ends = ((1e-300, 1e300), (1e300, 1e-300), (5e-324, 5e-324))
    for (before, after), bound, interleaved in itertools.product(
        ends, (None, "launch"), (False, True)
    ):
        sides = (
            side(bound=bound, latency_ms=[value] * 5, compile_cold_s=[value])
            for value in (before, after)
        )
        found = judge([pair(*sides)], limits_of({}), interleaved=interleaved)
        expected = "same" if before == after else "slower" if after > before else "faster"
        assert next(one for one in found if one.metric == "latency_ms").verdict == expected
        values = [
            value for one in found for value in record(one).values() if isinstance(value, float)
        ]
        assert all(map(math.isfinite, values))


def test_the_most_important_change_comes_first():
    factors = {"a": 1.1, "b": 1.3, "c": 1 / 1.3, "d": 1 / 1.1, "e": 1.0}
    cells = [
        pair(*(side(latency_ms=steps(level, 0.001)) for level in (1, by)), key)
        for key, by in factors.items()
    ]
    vague = pair(*(side(latency_ms=[1.0, 1.3, 0.8]) for _ in "ab"), "g")
    counts = [pair(side(kernels=[3]), side(kernels=[0]), "f"), vague]
    found = judge(
        [*cells, *counts, pair(side(latency_ms=[1.0]), side(latency_ms=[9.0]), "h")], limits_of({})
    )
    assert [change.key for change in found] == [*"ba", *"hg", *"fcd", "e"]


def test_a_status_can_be_ignored_by_an_exception():
    rule = {"metric": "status", "ignore": True, "reason": "rewritten"}
    for model, gates, said in (
        ("m*", False, "error: boom (before ok); ignored: rewritten"),
        ("gpt2", True, ""),
    ):
        limits = limits_of({"exceptions": [{**rule, "model": model}]})
        (change,) = judge([pair(side("ok"), side("error", "boom"))], limits)
        assert (change.verdict, change.gates, said in change.reason) == ("broken", gates, True)
