"""What the trials of a cell say together."""

import itertools
import math

import pytest

from effbench.cell import SEVERITY, Status, Trial
from effbench.store import summary
from effbench.store.summary import break_even_calls, counted, last_attempts, offsets

OK, ERROR = Status.OK, Status.ERROR
BUSY = "host busy for 83 % of the timing"


def summarise(trials, *, baseline=(), is_baseline=False, **facts):
    compared = summary.Baseline.of(trials if is_baseline else baseline)
    return summary.summarise(trials, baseline=compared, is_baseline=is_baseline, **facts)


def trial(round=0, status=OK, **values):
    if status.is_measured:
        values.setdefault("latency_ms", 2.0)
    return Trial("k", round, status, **values)


def marked(round=0, status=OK, disturbance=BUSY, **values):
    return trial(round, status, disturbance=disturbance, **values)


def test_the_last_attempt_of_a_round_counts():
    trials = [
        trial(0, attempt=1),
        trial(0, ERROR, attempt=0),
        trial(1, ERROR, attempt=2),
        trial(1, attempt=1),
    ]
    assert [(t.round, t.attempt) for t in last_attempts(trials)] == [(0, 1), (1, 2)]
    assert summarise(trials[:2], bs=1).status is OK
    assert summarise(trials, bs=1).status is ERROR
    with pytest.raises(ValueError, match="at least one"):
        summarise([], bs=1)


def test_the_worst_status_wins_with_its_first_reason():
    for worse, milder in itertools.pairwise(SEVERITY):
        found = summarise(
            [trial(0, milder, reason="milder"), trial(1, worse, reason="worst")], bs=1
        )
        assert (found.status, found.reason, found.trials) == (worse, "worst", 2)
    trials = [
        trial(0, ERROR),
        trial(1, ERROR, reason="b"),
        trial(2, ERROR, reason="c"),
        trial(3, reason="fine"),
    ]
    assert summarise(trials, bs=1).reason == "b"


def test_a_cold_compilation_counts_although_its_trial_is_marked():
    disturbed = marked(0, compile_s=40.0, compile_cache="cold", first_call_s=41.0)
    again = trial(0, attempt=1, compile_s=3.0, compile_cache="warm", first_call_s=3.5)
    found = summarise([disturbed, again, *(trial(r) for r in (1, 2, 3))], bs=1)
    assert (found.status, found.trials) == (OK, 4)
    assert found.compile_cold_s == pytest.approx(40)
    assert found.compile_warm_s == pytest.approx(3)
    assert found.first_call_s == 41.0


def test_marked_trials_do_not_count_if_three_others_are_ok():
    three = [trial(round) for round in range(3)]
    slow = [marked(round, latency_ms=50.0) for round in (3, 4)]
    found = summarise(three + slow, bs=1)
    assert (found.status, found.trials, found.marked, found.disturbance) == (OK, 3, False, None)
    assert found.latency_ms == pytest.approx(2.0)
    assert counted(three + slow) == three


def test_all_trials_count_and_the_result_is_marked_if_fewer_than_three_are_undisturbed():
    two = [trial(round) for round in range(2)]
    slow = [marked(round, latency_ms=50.0) for round in (2, 3)]
    found = summarise(two + slow, bs=1)
    assert (found.status, found.reason, found.trials) == (OK, None, 4)
    assert (found.marked, found.disturbance) == (True, BUSY)
    assert found.latency_ms == pytest.approx(10.0)


@pytest.mark.parametrize("status", [Status.DEGRADED, Status.OOM, Status.CRASHED])
def test_a_marked_trial_that_is_not_ok_always_counts(status):
    three = [trial(round) for round in range(3)]
    found = summarise([*three, marked(3, status)], bs=1)
    assert (found.status, found.trials) == (status, 4)


def test_degraded_trials_are_not_among_the_three_that_are_enough():
    others = [trial(0), trial(1), trial(2, Status.DEGRADED)]
    assert len(counted([*others, marked(3)])) == 4


def test_the_disturbance_of_a_result_is_that_of_its_first_marked_trial():
    trials = [trial(0), marked(1, disturbance="throttled"), marked(2, disturbance="host busy")]
    assert summarise(trials, bs=1).disturbance == "throttled"


def test_a_marked_attempt_that_was_repeated_leaves_no_mark():
    found = summarise([marked(0, latency_ms=50.0), trial(0, attempt=1)], bs=1)
    assert (found.marked, found.disturbance, found.latency_ms) == (False, None, pytest.approx(2.0))


def test_a_failed_result_is_neither_marked_nor_unmarked():
    found = summarise([marked(0), trial(1, ERROR, reason="broke")], bs=1)
    assert (found.marked, found.disturbance) == (None, None)


def bounds_of(low, high, timer="latency"):
    return {f"{timer}_median_low_ms": low, f"{timer}_median_high_ms": high}


def test_the_interval_of_a_marked_trial_holds_the_medians_of_both_states_of_the_host():
    found = summarise([marked(0, latency_ms=2.0, **bounds_of(1.0, 3.0))], bs=1)
    assert (found.latency_ci_low_ms, found.latency_ci_high_ms) == pytest.approx((1.0, 3.0))


def test_an_unmarked_trial_alone_has_no_interval_although_its_median_has_one():
    found = summarise([trial(0, latency_ms=2.0, **bounds_of(1.0, 3.0))], bs=1)
    assert (found.latency_ci_low_ms, found.latency_ci_high_ms) == (None, None)


def test_the_period_has_bounds_of_its_own():
    own = bounds_of(1.0, 3.0) | bounds_of(0.4, 0.6, "period")
    found = summarise([marked(0, latency_ms=2.0, period_ms=0.5, **own)], bs=1)
    assert (found.period_ci_low_ms, found.period_ci_high_ms) == pytest.approx((0.4, 0.6))


def test_times_of_requests_are_as_uncertain_as_their_latency():
    found = summarise(
        [marked(0, latency_ms=2.0, ttft_ms=0.5, tpot_ms=0.1, **bounds_of(1.0, 3.0))], bs=1
    )
    assert (found.ttft_ci_low_ms, found.ttft_ci_high_ms) == pytest.approx((0.25, 0.75))
    assert (found.tpot_ci_low_ms, found.tpot_ci_high_ms) == pytest.approx((0.05, 0.15))


def test_the_busy_time_of_the_gpu_does_not_depend_on_the_host():
    found = summarise([marked(0, gpu_busy_ms=0.5, **bounds_of(1.0, 3.0))], bs=1)
    assert (found.gpu_busy_ci_low_ms, found.gpu_busy_ci_high_ms) == (None, None)


def test_a_speedup_is_as_uncertain_as_the_marked_times_that_it_compares():
    baseline = [marked(0, latency_ms=4.0, **bounds_of(2.0, 4.0))]
    found = summarise([marked(0, latency_ms=2.0, **bounds_of(1.0, 3.0))], bs=1, baseline=baseline)
    assert found.speedup == pytest.approx(2.0)
    assert found.speedup_ci_low == pytest.approx(2.0 / 3.0)
    assert found.speedup_ci_high == pytest.approx(4.0)


def test_marked_results_have_a_speedup_whichever_side_is_marked():
    slow = [marked(0, latency_ms=4.0, **bounds_of(2.0, 4.0))]
    assert summarise([trial(0)], bs=1, baseline=slow).speedup == pytest.approx(2.0)
    assert summarise(slow, bs=1, baseline=[trial(0)]).speedup == pytest.approx(0.5)


OFFSETS = {
    "unmarked": ([trial(0, **bounds_of(1.0, 4.0))], (0.0, 0.0)),
    "one": ([marked(0, **bounds_of(1.0, 4.0))], (math.log(2), math.log(2))),
    "half of the trials": (
        [marked(0, **bounds_of(1.0, 4.0)), trial(1)],
        (math.log(2) / 2, math.log(2) / 2),
    ),
    "only below": ([marked(0, **bounds_of(1.0, 2.0))], (math.log(2), 0.0)),
    "the value is outside its bounds": ([marked(0, **bounds_of(3.0, 4.0))], (0.0, math.log(2))),
    "no bounds, as in an older database": ([marked(0)], (0.0, 0.0)),
    "no time": ([marked(0, latency_ms=None, **bounds_of(1.0, 4.0))], (0.0, 0.0)),
}


@pytest.mark.parametrize(("trials", "expected"), OFFSETS.values(), ids=OFFSETS)
def test_offsets_are_means_over_all_trials_of_what_marked_ones_add(trials, expected):
    assert offsets(trials, "latency_ms") == pytest.approx(expected)


def test_memory_of_cold_and_warm_processes_is_never_mixed():
    cold = marked(0, compile_cache="cold", peak_reserved_bytes=118)
    warm = [trial(r, compile_cache="warm", peak_reserved_bytes=58) for r in (1, 2, 3)]
    mixed, few = [cold, *warm], [cold, *warm[:2]]
    for trials, *expected in (mixed, 58, 118), (few, 58, 118), ([cold], 118, 118), (warm, 58, None):
        found = summarise(trials, bs=1, baseline=[trial(peak_reserved_bytes=29)])
        assert [found.peak_reserved_bytes, found.peak_reserved_cold_bytes] == expected
        assert found.relative_memory == pytest.approx(expected[0] / 29)


@pytest.mark.parametrize(
    ("kernels", "used"), [("aa", (0, 1)), ("ab", (0, 1)), ("ab", (None, None)), ("ab", (0, 0))]
)
def test_compilations_that_differ_widen_every_interval(kernels, used):
    trials, baseline = [], [trial(r, latency_ms=4.0, period_ms=4.0) for r in range(5)]
    for r, at in enumerate((0, 1, 0, 1, 0)):
        times = dict.fromkeys(("latency_ms", "period_ms", "gpu_busy_ms"), (1.21, 1.0)[at])
        trials.append(
            trial(r, compilation=used[at], kernel_fingerprint=f"{kernels[at]}-tuned", **times)
        )
    found = summarise(trials, bs=1, baseline=baseline)
    is_nested = kernels == "ab" and used == (0, 1)
    value, high = (1.1, 1.33) if is_nested else (1.21**0.6, 1.276)
    assert found.compilations == (None if None in used else len(set(used))), (
        "NULL in an older database"
    )
    for name in ("latency", "period", "gpu_busy"):
        assert getattr(found, f"{name}_ms") == pytest.approx(value)
        assert getattr(found, f"{name}_ci_high_ms") == pytest.approx(high, 1e-3)
    assert found.speedup == found.period_speedup == pytest.approx(4 / value)
    assert found.speedup_ci_low == found.period_speedup_ci_low == pytest.approx(4 / high, 1e-3)


def test_figures():
    trials = [
        trial(
            0,
            latency_ms=1.0,
            latency_min_ms=0.9,
            latency_p95_ms=2.0,
            period_ms=1.0,
            compile_s=40.0,
            compile_cache="cold",
            first_call_s=41.0,
            peak_allocated_bytes=100,
            peak_reserved_bytes=200,
            prepare_peak_allocated_bytes=40,
            graph_pool_bytes=50,
            process_gpu_bytes=500,
            energy_mj=4.0,
            rel_error=1e-3,
            graph_breaks=1,
            recompiles=0,
            cudagraph_skips=2,
        ),
        trial(
            1,
            latency_ms=4.0,
            latency_min_ms=0.8,
            latency_p95_ms=8.0,
            period_ms=4.0,
            compile_s=3.0,
            compile_cache="warm",
            first_call_s=3.5,
            peak_allocated_bytes=12,
            peak_reserved_bytes=18,
            prepare_peak_allocated_bytes=45,
            graph_pool_bytes=4,
            process_gpu_bytes=60,
            energy_mj=9.0,
            rel_error=2e-3,
            graph_breaks=0,
            recompiles=3,
        ),
        trial(2, latency_ms=2.0, compile_s=12.0, compile_cache="warm"),
    ]
    expected = {
        "latency_ms": 2.0,
        "latency_min_ms": 0.8,
        "latency_p95_ms": 4.0,
        "period_ms": 2.0,
        "throughput_per_s": 4000.0,
        "compile_cold_s": 40.0,
        "compile_warm_s": 6.0,
        "first_call_s": 41.0,
        "peak_allocated_bytes": 12,
        "peak_reserved_bytes": 18,
        "peak_reserved_cold_bytes": 200,
        "graph_pool_bytes": 4,
        "process_gpu_bytes": 60,
        "prepare_peak_allocated_bytes": 40,
        "energy_mj": 6.0,
        "rel_error": 2e-3,
        "graph_breaks": 1,
        "recompiles": 3,
        "cudagraph_skips": 2,
    }
    found = summarise(trials, bs=8)
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)
    assert found.latency_ci_low_ms < 2.0 < found.latency_ci_high_ms
    assert (found.speedup, found.relative_memory, found.break_even_calls) == (None,) * 3, (
        "without a baseline"
    )
    assert found.unsteady_trials is None, "no warm-up was judged"


def test_speedup_with_an_interval_and_that_of_the_baseline():
    baseline = [
        trial(r, latency_ms=value, prepare_s=3.0) for r, value in enumerate((4.0, 4.2, 3.8))
    ]
    own = [trial(r, latency_ms=value) for r, value in enumerate((2.0, 2.1, 1.9))]
    found = summarise(own, bs=1, baseline=baseline)
    assert found.speedup == pytest.approx(2.0)
    assert found.speedup_ci_low < 2.0 < found.speedup_ci_high
    assert summarise(own[:1], bs=1, baseline=baseline).speedup_ci_low is None
    found = summarise(baseline, bs=1, is_baseline=True)
    assert (found.speedup, found.speedup_ci_low, found.speedup_ci_high, found.break_even_calls) == (
        1.0,
        1.0,
        1.0,
        None,
    )


def test_only_ok_has_a_speedup():
    baseline = [trial(latency_ms=4.0, peak_reserved_bytes=10)]
    own = trial(0, Status.DEGRADED, peak_reserved_bytes=5, compile_s=1.0, compile_cache="cold")
    found = summarise([own], bs=1, baseline=baseline)
    assert (found.latency_ms, found.relative_memory) == (pytest.approx(2.0), 0.5)
    assert (found.speedup, found.break_even_calls) == (None, None)
    for status in set(Status) - {OK}:
        old = trial(0, status, latency_ms=4.0, peak_reserved_bytes=10)
        found = summarise([trial(peak_reserved_bytes=5)], bs=1, baseline=[old])
        assert (found.speedup, found.relative_memory) == (None, 0.5 if status.is_measured else None)


def test_a_failure_has_no_figures_but_those_that_explain_it():
    for status in (status for status in Status if not status.is_measured):
        failed = trial(1, status, rel_error=0.5, recompiles=9, reason="r")
        found = summarise(
            [trial(0, peak_reserved_bytes=4, compile_s=2.0), failed], bs=1, baseline=[trial()]
        )
        assert (found.status, found.reason, found.trials, found.latency_ms) == (
            status,
            "r",
            2,
            None,
        )
        known = {name for name, value in vars(found).items() if value is not None}
        assert known == {"status", "reason", "trials", "rel_error", "recompiles"}
        assert (found.rel_error, found.recompiles) == (0.5, 9)


def test_break_even():
    baseline = [trial(latency_ms=4.0)]

    def calls(*trials):
        return summarise(trials, bs=1, baseline=baseline).break_even_calls

    assert (
        calls(trial(latency_ms=1.0, compile_s=6.0, compile_cache="cold", prepare_s=100.0)) == 2000
    )
    assert calls(trial(latency_ms=1.0, prepare_s=0.0031)) == 2  # 1.03 calls: the second one pays
    slow = trial(latency_ms=1.0, compile_s=6.0, compile_cache="cold")
    assert summarise([slow], bs=None, baseline=baseline).break_even_calls is None, (
        "a latency of arrivals is no call's"
    )
    assert calls(trial(latency_ms=4.0, compile_s=6.0, compile_cache="cold")) is None
    assert calls(trial(latency_ms=5.0, compile_s=6.0, compile_cache="cold")) is None
    assert calls(trial(latency_ms=1.0, compile_s=6.0, compile_cache="warm", prepare_s=1.0)) is None
    assert calls(trial(latency_ms=1.0)) is None
    baseline = [trial(r, latency_ms=value) for r, value in enumerate((4.0, 5.0))]
    for own, expected in (((3.9, 4.9), None), ((1.0, 1.1), 1)):
        assert (
            calls(*(trial(r, latency_ms=value, prepare_s=1e-3) for r, value in enumerate(own)))
            == expected
        )
    assert break_even_calls(1e9, 1.0 + 1e-15, 1.0) is None


def test_values_that_are_no_numbers_never_crash():
    bad = trial(
        0,
        latency_ms=math.nan,
        latency_min_ms=math.inf,
        latency_p95_ms=0.0,
        period_ms=math.inf,
        energy_mj=0.0,
        gpu_busy_ms=0.0,
        compile_s=math.nan,
        compile_cache="cold",
    )
    found = summarise([bad], bs=1, baseline=[trial()])
    assert {found.latency_ms, found.latency_min_ms, found.period_ms, found.gpu_busy_ms} == {None}
    assert (found.energy_mj, found.speedup) == (None, None)
    assert summarise([bad, trial(1)], bs=1, baseline=[bad]).latency_ms == pytest.approx(2.0)
    known, unknown = trial(peak_reserved_bytes=4), trial()
    for own, old in ((known, unknown), (unknown, known)):
        assert summarise([own], bs=1, baseline=[old]).relative_memory is None


def test_what_explains_the_time_comes_from_the_trial_that_was_profiled():
    profile = {"gpu_busy_ms": 0.3, "kernels": 8, "flops": 1e9, "min_bytes": 1e6}
    profile |= {"compute_floor_ms": 0.1, "memory_floor_ms": 0.3}
    common = {"latency_ms": 1.2, "period_ms": 0.5, "enqueue_ms": 0.1}
    others = [trial(r, steady={1: False, 2: None}[r], **common) for r in (1, 2)]
    found = summarise([trial(0, steady=True, **common, **profile), *others], bs=1)
    assert (found.gpu_busy_ms, found.kernels, found.flops, found.min_bytes) == (0.3, 8, 1e9, 1e6)
    assert (found.gpu_idle_fraction, found.roofline_fraction) == (
        pytest.approx(0.4),
        pytest.approx(0.6),
    )
    assert (found.enqueue_ms, found.unsteady_trials, found.bound) == (
        pytest.approx(0.1),
        1,
        "launch",
    )
    found = summarise(others, bs=1)
    assert (found.gpu_busy_ms, found.gpu_idle_fraction, found.bound, found.roofline_fraction) == (
        None,
    ) * 4
