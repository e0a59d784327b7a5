import math
import random

import pytest
from made_pairs import ABOUT, only, pair, side
from made_sweeps import MIB, spread, steps

from effbench.analysis.limits import limits_of
from effbench.analysis.screen import STATUS, Change, Pair, Side, screen, screen_order
from effbench.analysis.verdicts import Verdict

# --- ratios ---


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.05, "slower"), (0.95, "faster"), (1.0, "same"), (1.005, "same"), (1.019, "ambiguous"), (1.021, "slower")],
)
def test_a_time_against_a_floor_of_two_percent(factor, verdict):
    change = only(steps(1.0, 0.001), steps(factor, 0.001), "latency_ms")
    assert change.verdict == verdict
    assert change.ratio == pytest.approx(factor)
    assert change.low < factor < change.high
    assert change.gates is (verdict == "slower")
    assert change.limit == 0.02
    assert change.before == pytest.approx(1.0)


def test_noise_is_ambiguous_and_says_what_it_could_have_shown():
    change = only(steps(1.0, 0.1), steps(1.05, 0.1), "period_ms")
    assert change.verdict is Verdict.AMBIGUOUS
    assert change.smallest_slowdown > 0.2
    assert not change.gates


def test_the_floor_is_the_users():
    before, after = steps(1.0, 0.001), steps(1.05, 0.001)
    assert only(before, after, "latency_ms", {"floor": "6%"}).verdict is Verdict.SAME
    by_metric = {"limits": {"latency_ms": {"floor": 0.06}}}
    assert only(before, after, "latency_ms", by_metric).verdict is Verdict.SAME
    assert only(before, after, "period_ms", by_metric).verdict is Verdict.SLOWER


def test_the_noise_of_the_past_raises_the_floor_of_its_own_cell_and_metric():
    cells = [pair(side(latency_ms=steps(1, 0.001)), side(latency_ms=steps(1.05, 0.001)), key) for key in "ab"]
    found = screen(cells, limits_of({}), lambda key, metric: 0.1 if (key, metric) == ("a", "latency_ms") else 0.0)
    assert {one.key: (one.verdict, one.limit, one.floor) for one in found} == {
        "a": ("ambiguous", 0.1, 0.02),
        "b": ("slower", 0.02, 0.02),
    }


@pytest.mark.parametrize(
    ("factor", "spread_of", "verdict", "said"),
    [
        (1.0, 0.001, "same", False),
        (1.01, 0.001, "same", False),  # within the floor
        (1.05, 0.001, "ambiguous", True),
        (1 / 1.05, 0.001, "ambiguous", True),
        (1.09, 0.02, "ambiguous", True),  # sure to be beyond the floor, and perhaps beyond the fence
        (1.03, 0.02, "same", False),  # not sure to be any change: the floor alone would say nothing, either
        (1.2, 0.001, "slower", False),
        (1 / 1.2, 0.001, "faster", False),
    ],
)
def test_a_change_beyond_the_floor_is_not_the_same_for_its_fence(factor, spread_of, verdict, said):
    change = only(steps(1, spread_of), steps(factor, spread_of), "latency_ms", fence=lambda key, metric: 0.1)
    assert (change.verdict, change.gates) == (verdict, verdict == "slower")
    reason = "beyond the floor of 2.0 %, but inside the noise fence of 10 % that earlier sweeps give"
    assert change.reason == (reason if said else None)


def test_a_fence_below_the_floor_says_nothing():
    change = only(steps(1, 0.001), steps(1.05, 0.001), "latency_ms", {"floor": "8%"}, fence=lambda key, metric: 0.03)
    assert (change.verdict, change.limit, change.reason) == ("same", 0.08, None)


def test_inside_the_fence_an_exception_still_speaks():
    rules = {"exceptions": [{"model": "mlp", "floor": 0.03, "reason": "known"}]}
    change = only(steps(1, 0.001), steps(1.05, 0.001), "latency_ms", rules, fence=lambda key, metric: 0.1)
    assert change.verdict is Verdict.AMBIGUOUS
    assert change.reason.startswith("beyond the floor of 3.0 %") and change.reason.endswith("by exception: known")


def test_without_spread_there_is_no_doubt():
    same = only([2.0] * 5, [2.0] * 5, "latency_ms")
    assert (same.ratio, same.low, same.high, same.p_value, same.verdict) == (1.0, 1.0, 1.0, 1.0, Verdict.SAME)
    assert only([2.0] * 5, [2.1] * 5, "latency_ms").verdict is Verdict.SLOWER
    assert only([2.0] * 5, [2.01] * 5, "latency_ms").verdict is Verdict.SAME  # beyond doubt, and below the floor


def test_one_trial_tells_nothing():
    change = only([1.0], [9.0] * 5, "latency_ms")
    assert (change.verdict, change.low, change.p_value) == (Verdict.AMBIGUOUS, None, None)
    assert change.reason == "one trial on a side tells nothing of the spread"
    assert change.ratio == pytest.approx(9.0)


def test_three_hundred_unchanged_cells():
    """0.5 % of noise between processes: under Benjamini–Hochberg and the floor none of 300 is called changed."""
    draw = random.Random(20261121)
    cells = [
        pair(*(side(latency_ms=[1 + draw.gauss(0, 0.005) for _ in range(5)]) for _ in "ab"), str(n)) for n in range(300)
    ]
    counts = dict.fromkeys(Verdict, 0)
    for change in screen(cells, limits_of({})):
        counts[change.verdict] += 1
    assert counts[Verdict.SLOWER] + counts[Verdict.FASTER] == 0
    assert counts[Verdict.SAME] > 290
    # the same without a floor: the correction alone
    found = screen(cells, limits_of({"floor": 0}))
    assert sum(one.verdict in (Verdict.SLOWER, Verdict.FASTER) for one in found) <= 2


def test_the_correction_is_over_all_cells():
    """One p of about 0.01 is significant alone, and not as the least of a hundred."""
    odd = pair(side(latency_ms=steps(1, 0.02)), side(latency_ms=steps(1.075, 0.02)), "odd")
    quiet = [pair(*(side(latency_ms=steps(1, 0.02)) for _ in "ab"), str(n)) for n in range(99)]
    (alone,) = screen([odd], limits_of({}))
    assert 0.005 < alone.p_value < 0.02
    assert alone.verdict is Verdict.SLOWER
    (among,) = [one for one in screen([odd, *quiet], limits_of({})) if one.key == "odd"]
    assert (among.verdict, among.p_value) == (Verdict.AMBIGUOUS, alone.p_value)


def test_a_slowdown_of_five_percent_is_found_among_three_hundred():
    cells = [
        pair(side(latency_ms=spread(1, 0.005, seed=n)), side(latency_ms=spread(1.05, 0.005, seed=n + 999)), str(n))
        for n in range(20)
    ] + [pair(*(side(latency_ms=spread(1, 0.005, seed=n + m)) for m in (2000, 4000)), f"q{n}") for n in range(280)]
    found = {one.key: one.verdict for one in screen(cells, limits_of({}))}
    assert sum(found[str(n)] is Verdict.SLOWER for n in range(20)) == 20


# --- launch-bound ---


@pytest.mark.parametrize("metric", ["latency_ms", "period_ms", "energy_mj"])
def test_of_a_launch_bound_cell_the_hosts_figures_alarm_beyond_what_they_can_show(metric):
    def judged(factor):
        before = side(bound="launch", **{metric: steps(1, 0.1)})
        after = side(bound="launch", **{metric: steps(factor, 0.1)})
        return screen([pair(before, after)], limits_of({}))[0]

    below, beyond = judged(1.3), judged(1.9)
    assert below.p_value < 0.05
    assert (below.verdict, below.gates) == (Verdict.AMBIGUOUS, False)
    assert 0.3 < below.smallest_slowdown < 0.6
    assert "launch-bound: less than the" in below.reason
    assert beyond.verdict is Verdict.SLOWER
    assert judged(1 / 1.3).verdict is Verdict.AMBIGUOUS
    assert judged(1 / 1.9).verdict is Verdict.FASTER
    # where launches do not decide, the same figures are slower
    cell = pair(side(bound="memory", **{metric: steps(1, 0.1)}), side(bound="memory", **{metric: steps(1.3, 0.1)}))
    assert screen([cell], limits_of({}))[0].verdict is Verdict.SLOWER


def test_a_launch_bound_cell_is_gated_on_what_the_gpu_does():
    before = side(bound="launch", latency_ms=steps(1, 0.1), gpu_busy_ms=steps(0.2, 0.001), kernels=[12] * 5)
    after = side(bound="launch", latency_ms=steps(1.2, 0.1), gpu_busy_ms=steps(0.21, 0.001), kernels=[13] * 5)
    found = {one.metric: one.verdict for one in screen([pair(before, after)], limits_of({}))}
    assert found == {"latency_ms": "ambiguous", "gpu_busy_ms": "slower", "kernels": "slower"}


def test_bound_by_launches_on_one_side_is_enough():
    cell = pair(side(bound="memory", latency_ms=steps(1, 0.1)), side(bound="launch", latency_ms=steps(1.3, 0.1)))
    assert screen([cell], limits_of({}))[0].verdict is Verdict.AMBIGUOUS


# --- counts ---


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([0] * 5, [0] * 5, "same"),
        ([0] * 5, [1] * 5, "slower"),
        ([3] * 5, [2] * 5, "faster"),
        ([10, 12, 11, 10, 12], [12, 10, 11, 11, 10], "same"),  # the same range
        ([10, 12, 11, 10, 12], [13] * 5, "slower"),
        ([10, 12, 11, 10, 12], [11] * 5, "ambiguous"),
        ([10] * 5, [10, 10, 11, 10, 10], "ambiguous"),
        ([10] * 5, [9, 8, 9, 9, 9], "faster"),
        ([1], [2], "slower"),  # a count needs no second trial
    ],
)
def test_counts(before, after, verdict):
    change = only(before, after, "kernels")
    assert change.verdict == verdict
    assert ("its trials differ" in (change.reason or "")) is (verdict == "ambiguous")
    assert (change.before, change.after) == (max(before), max(after))


def test_an_exception_lets_a_count_move():
    rule = {"metric": "kernels", "least": 2, "reason": "cuBLAS chooses"}
    assert only([10] * 5, [12] * 5, "kernels", {"exceptions": [rule]}).verdict is Verdict.SAME
    assert only([10] * 5, [13] * 5, "kernels", {"exceptions": [rule]}).verdict is Verdict.SLOWER


def test_a_count_of_one_side_only():
    change = only([None] * 5, [3] * 5, "graph_breaks")
    assert (change.verdict, change.reason) == (Verdict.AMBIGUOUS, "not measured before")


# --- one value a sweep ---


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (10.0, 10.0, "same"),
        (10.0, 12.5, "same"),  # 1.25 × is not beyond it
        (10.0, 12.6, "slower"),
        (12.6, 10.0, "faster"),
        (2.0, 2.9, "same"),  # not a second
        (2.0, 3.1, "slower"),
        (100.0, 110.0, "same"),
    ],
)
def test_compile_seconds_need_a_factor_and_a_second(before, after, verdict):
    settings = {"limits": {"compile_cold_s": {"factor": 1.25, "least": 1.0}}}
    change = only([before], [after], "compile_cold_s", settings)
    assert (change.verdict, change.p_value, change.limit) == (verdict, None, 0.25)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([1.0], [None], "not measured now"),
        ([None], [1.0], "not measured before"),
        ([1.0], [math.nan], "not measured now; 1 of 1 figures now cannot be: left out"),
        ([math.nan], [math.inf], "1 of 1 figures before cannot be: left out; 1 of 1 figures now cannot be: left out"),
    ],
)
@pytest.mark.parametrize("metric", ["compile_cold_s", "graph_breaks", "latency_ms"])
def test_a_metric_of_one_side_only_has_a_row(metric, before, after, reason):
    change = only(before, after, metric)
    assert (change.verdict, change.reason, change.ratio) == (Verdict.AMBIGUOUS, reason, None)
    assert (change.before, change.after) == tuple(1.0 if side == [1.0] else None for side in (before, after))
    assert not change.gates


def test_one_value_of_neither_side_has_no_row():
    assert screen([pair(side(compile_cold_s=[None]), side(compile_cold_s=[None]))], limits_of({})) == []


def test_an_error_from_nothing_to_something():
    settings = {"limits": {"rel_error": {"factor": 4, "least": 1e-4}}}
    assert only([0.0], [5e-5], "rel_error", settings).verdict is Verdict.SAME
    change = only([0.0], [1e-2], "rel_error", settings)
    assert (change.verdict, change.ratio) == (Verdict.SLOWER, None)


# --- memory: zeros and least differences ---

POOLS = {"limits": {"graph_pool_bytes": {"least": 2 * MIB}, "peak_allocated_bytes": {"least": MIB}}}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([0] * 5, [0] * 5, "same"),
        ([0] * 5, [2 * MIB] * 5, "same"),
        ([0] * 5, [3 * MIB] * 5, "slower"),
        ([3 * MIB] * 5, [0] * 5, "faster"),
        ([0, 64 * MIB, 64 * MIB, 64 * MIB, 64 * MIB], [65 * MIB] * 5, "ambiguous"),  # one trial without a pool
        ([0, 64 * MIB, 64 * MIB, 64 * MIB, 64 * MIB], [0, 64 * MIB, 64 * MIB, 64 * MIB, 64 * MIB], "same"),
        ([0, 64 * MIB, 64 * MIB, 64 * MIB, 64 * MIB], [99 * MIB] * 5, "slower"),
    ],
)
def test_pools_of_nothing(before, after, verdict):
    change = only(before, after, "graph_pool_bytes", POOLS)
    assert (change.verdict, change.ratio) == (verdict, None)
    assert ("its trials differ" in (change.reason or "")) is (verdict == "ambiguous")


def test_a_mebibyte_is_nothing_however_many_percent_it_is():
    change = only([4 * MIB] * 5, [5 * MIB] * 5, "peak_allocated_bytes", POOLS)
    assert (change.verdict, change.reason) == (Verdict.SAME, "too small a difference to matter")
    assert only([4 * MIB] * 5, [6 * MIB] * 5, "peak_allocated_bytes", POOLS).verdict is Verdict.SLOWER


# --- exceptions ---


def test_exceptions_ignore_metrics_and_cells():
    slow = pair(side(latency_ms=steps(1, 0.001), period_ms=steps(1, 0.001)),
                side(latency_ms=steps(2, 0.001), period_ms=steps(2, 0.001)), model="gpt2")  # fmt: skip
    broken = pair(side("ok"), side("error", "boom"), "b", model="llama")
    rules = [{"model": "gpt2", "metric": "latency_ms", "ignore": True, "reason": "shared runner"},
             {"model": "llama", "metric": "status", "ignore": True, "reason": "kernel is rewritten"}]  # fmt: skip
    found = {(one.key, one.metric): one for one in screen([slow, broken], limits_of({"exceptions": rules}))}
    assert found["a", "latency_ms"].verdict is Verdict.SLOWER
    assert found["a", "latency_ms"].reason == "ignored: shared runner"
    assert not found["a", "latency_ms"].gates
    assert found["a", "period_ms"].gates
    assert found["b", STATUS].reason == "error: boom (ok before); ignored: kernel is rewritten"
    assert not found["b", STATUS].gates


def test_what_is_ignored_is_no_test_of_the_correction():
    """Ninety-nine quiet rows that do not count must not hide one that does; nor do they lose their own verdict."""
    odd = pair(side(latency_ms=steps(1, 0.02)), side(latency_ms=steps(1.075, 0.02)), "odd")
    quiet = [pair(*(side(latency_ms=steps(1, 0.02)) for _ in "ab"), str(n), model="old") for n in range(99)]
    rule = {"exceptions": [{"model": "old", "ignore": True, "reason": "retired"}]}
    found = {one.key: one for one in screen([odd, *quiet], limits_of(rule))}
    assert (found["odd"].verdict, found["odd"].gates) == (Verdict.SLOWER, True)
    assert found["7"].ignored
    # and the other way round: many clear changes that are ignored lend no significance to what is not clear
    loud = [pair(side(latency_ms=[1.0] * 5), side(latency_ms=[2.0] * 5), str(n), model="old") for n in range(99)]
    faint = pair(side(latency_ms=steps(1, 0.03)), side(latency_ms=steps(1.075, 0.03)), "faint")
    plain = [pair(*(side(latency_ms=steps(1, 0.02)) for _ in "ab"), f"p{n}") for n in range(3)]
    (row,) = [one for one in screen([faint, *plain, *loud], limits_of(rule)) if one.key == "faint"]
    assert 0.0125 < row.p_value < 0.05
    assert row.verdict is Verdict.AMBIGUOUS
    (lent,) = [one for one in screen([faint, *plain, *loud], limits_of({})) if one.key == "faint"]
    assert lent.verdict is Verdict.SLOWER
    assert {one.verdict for one in screen(loud, limits_of(rule))} == {Verdict.SLOWER}


def test_a_floor_by_exception_says_so():
    rules = [{"model": "m*", "floor": 0.2, "reason": "shared runner"}]
    change = only(steps(1, 0.001), steps(1.1, 0.001), "latency_ms", {"exceptions": rules})
    assert (change.verdict, change.limit, change.reason) == ("same", 0.2, "by exception: shared runner")


# --- pairs in turns, order ---


def test_in_turns_pairs_decide():
    drift = [1.0, 1.2, 1.4, 1.6, 1.8]
    slow = [value * factor for value, factor in zip(drift, (1.05, 1.051, 1.049, 1.05, 1.05), strict=True)]
    assert only(drift, slow, "latency_ms", in_turns=True).verdict is Verdict.SLOWER
    assert only(drift, slow, "latency_ms").verdict is Verdict.AMBIGUOUS


def test_with_one_shared_round_the_samples_decide():
    cell = Pair("a", "a", ABOUT, Side("ok", figures={"latency_ms": {0: 1.0, 1: 1.001, 2: 1.0}}),
                Side("ok", figures={"latency_ms": {2: 1.1, 3: 1.101, 4: 1.1}}))  # fmt: skip
    (change,) = screen([cell], limits_of({}), in_turns=True)
    assert change.verdict is Verdict.SLOWER


def test_what_matters_most_comes_first():
    changes = [
        Change("a", "a", "latency_ms", Verdict.SAME, ratio=1.0),
        Change("b", "b", "latency_ms", Verdict.SLOWER, ratio=1.1),
        Change("c", "c", "latency_ms", Verdict.SLOWER, ratio=1.5),
        Change("d", "d", STATUS, Verdict.MISSING),
        Change("e", "e", STATUS, Verdict.BROKEN),
        Change("f", "f", "latency_ms", Verdict.FASTER, ratio=0.5),
        Change("g", "g", "latency_ms", Verdict.AMBIGUOUS),
        Change("h", "h", STATUS, Verdict.NEW),
        Change("i", "i", STATUS, Verdict.FIXED),
    ]
    assert [one.key for one in screen_order(changes)] == list("ecbdgifha")


def test_only_the_metrics_asked_for():
    cell = pair(side(latency_ms=[1.0] * 5, period_ms=[1.0] * 5), side(latency_ms=[2.0] * 5, period_ms=[2.0] * 5))
    assert [one.metric for one in screen([cell], limits_of({"metrics": ["period_ms"]}))] == ["period_ms"]


def test_nothing_in_nothing_out():
    assert screen([], limits_of({})) == []
