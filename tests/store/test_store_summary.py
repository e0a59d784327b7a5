"""What the trials of a cell say together."""

import itertools
import math

import pytest

from effbench.core.cell import SEVERITY, Status, Trial
from effbench.store import summary
from effbench.store.summary import CountedTrials, break_even_calls

OK, ERROR = Status.OK, Status.ERROR
BUSY = "host busy for 83 % of the timing"


def summarise(trials, *, bs=1, baseline=(), is_baseline=False):
    of_cell = CountedTrials.of(trials)
    compared = CountedTrials.of(baseline) if baseline else None
    return summary.summarise(
        of_cell,
        bs=bs,
        of_baseline=of_cell if is_baseline else compared,
    )


def trial(round=0, status=OK, **values):
    if status.is_measured:
        values.setdefault("latency_ms", 2.0)
    return Trial(
        "k",
        round,
        status,
        **values,
    )


def marked(round=0, status=OK, disturbance=BUSY, **values):
    return trial(
        round,
        status,
        disturbance=disturbance,
        **values,
    )


def trials_of(*latencies, **values):
    return [trial(round, latency_ms=ms, **values) for round, ms in enumerate(latencies)]


def test_the_last_attempt_of_a_round_counts():
    trials = [trial(0, attempt=1), trial(0, ERROR), trial(1, ERROR, attempt=2), trial(1, attempt=1)]
    assert summarise(trials[:2]).status is OK
    assert summarise(trials).status is ERROR


@pytest.mark.parametrize(("worse", "milder"), list(itertools.pairwise(SEVERITY)))
def test_the_worst_status_wins(worse, milder):
    found = summarise([trial(0, milder, reason="milder"), trial(1, worse, reason="worst")])
    assert found.status == worse
    assert found.reason == "worst"
    assert found.trials == 2


def test_the_first_reason_of_the_worst_status_counts():
    trials = [trial(0, ERROR), trial(1, ERROR, reason="b"), trial(2, ERROR, reason="c")]
    assert summarise(trials).reason == "b"


# --- marks ---


def test_marked_trials_do_not_count_if_three_others_are_ok():
    found = summarise([*trials_of(2.0, 2.0, 2.0), marked(3, latency_ms=50.0)])
    assert found.trials == 3
    assert found.marked is False
    assert found.latency_ms == pytest.approx(2.0)


def test_all_trials_count_and_the_result_is_marked_if_fewer_than_three_are_undisturbed():
    slow = [marked(round, latency_ms=50.0) for round in (2, 3)]
    found = summarise([*trials_of(2.0, 2.0), *slow])
    assert found.status == OK
    assert found.trials == 4
    assert found.marked is True
    assert found.disturbance == BUSY
    assert found.latency_ms == pytest.approx(10.0)


@pytest.mark.parametrize("status", [Status.DEGRADED, Status.OOM, Status.CRASHED])
def test_a_marked_trial_that_is_not_ok_always_counts(status):
    found = summarise([*trials_of(2.0, 2.0, 2.0), marked(3, status)])
    assert found.status == status
    assert found.trials == 4


def test_degraded_trials_are_not_among_the_three_that_are_enough():
    trials = [trial(0), trial(1), trial(2, Status.DEGRADED), marked(3)]
    assert len(CountedTrials.of(trials).kept) == 4


def test_a_marked_attempt_that_was_repeated_leaves_no_mark():
    found = summarise([marked(0, latency_ms=50.0), trial(0, attempt=1)])
    assert found.marked is False
    assert found.latency_ms == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("gpu_uuid", "host_us", "rounds"),
    [
        ("GPU-1", [25.0, 23.0, 21.0, 21.0, 20.0], [2, 3, 4]),
        ("GPU-1", [25.0, 23.0, 25.0, 21.0, 20.0], [0, 1, 2, 3, 4]),
        ("GPU-1", [25.0, None, 21.0, 21.0, 20.0], [1, 2, 3, 4]),
        (None, [40.0, 40.0, 21.0, 21.0, 20.0], [0, 1, 2, 3, 4]),
    ],
    ids=["slower", "too few others", "the GPU was the bottleneck", "the CPU"],
)
def test_trials_on_a_slower_host_do_not_count_if_three_others_are_ok(gpu_uuid, host_us, rounds):
    """A shared host changes its speed for minutes, and launch-bound times with it."""
    trials = [
        trial(round, gpu_uuid=gpu_uuid, host_ms=us and us / 1000)
        for round, us in enumerate(host_us)
    ]
    assert [trial.round for trial in CountedTrials.of(trials).kept] == rounds


def test_a_failure_on_a_slower_host_counts():
    speeds = {"gpu_uuid": "GPU-1", "host_ms": 0.02}
    slower = trial(
        3,
        ERROR,
        gpu_uuid="GPU-1",
        host_ms=0.03,
    )
    assert (
        summarise(
            [
                *trials_of(
                    2.0,
                    2.0,
                    2.0,
                    **speeds,
                ),
                slower,
            ]
        ).status
        is ERROR
    )


OF_LATENCY = {"latency_median_low_ms": 1.0, "latency_median_high_ms": 3.0}
OF_PERIOD = {"period_median_low_ms": 0.4, "period_median_high_ms": 0.6}


@pytest.mark.parametrize(
    ("trials", "time", "low", "high"),
    [
        ([marked(0, **OF_LATENCY)], "latency", 1.0, 3.0),
        ([trial(0, **OF_LATENCY)], "latency", None, None),
        ([marked(0)], "latency", None, None),
        (
            [
                marked(
                    0,
                    period_ms=0.5,
                    **OF_LATENCY,
                    **OF_PERIOD,
                )
            ],
            "period",
            0.4,
            0.6,
        ),
        ([marked(0, ttft_ms=0.5, **OF_LATENCY)], "ttft", 0.25, 0.75),
        ([marked(0, gpu_busy_ms=0.5, **OF_LATENCY)], "gpu_busy", None, None),
    ],
)
def test_the_interval_of_a_marked_time_holds_the_medians_of_both_states_of_the_host(
    trials, time, low, high
):
    """Times of requests are as uncertain as their latency; the GPU's do not depend on the host."""
    found = summarise(trials)
    bounds = found.value(f"{time}_ci_low_ms"), found.value(f"{time}_ci_high_ms")
    assert bounds == ((None, None) if low is None else pytest.approx((low, high)))


def test_unmarked_trials_narrow_what_a_marked_one_adds():
    found = summarise([marked(0, **OF_LATENCY), trial(1)])
    assert found.latency_ci_low_ms == pytest.approx(2.0 / math.sqrt(2))
    assert found.latency_ci_high_ms == pytest.approx(2.0 * math.sqrt(1.5))


# --- figures ---


def test_times_are_geometric_means_and_counts_the_largest():
    first = trial(
        0,
        latency_ms=1.0,
        latency_min_ms=0.9,
        energy_mj=4.0,
        graph_breaks=1,
    )
    second = trial(
        1,
        latency_ms=4.0,
        latency_min_ms=0.8,
        energy_mj=9.0,
        graph_breaks=0,
    )
    found = summarise([first, second], bs=8)
    assert found.latency_ms == pytest.approx(2.0)
    assert found.energy_mj == pytest.approx(6.0)
    assert found.latency_min_ms == 0.8
    assert found.graph_breaks == 1
    assert found.throughput_per_s == pytest.approx(4000.0)
    assert found.speedup is None


def test_the_throughput_follows_the_period():
    assert summarise([trial(0, period_ms=0.5)], bs=8).throughput_per_s == pytest.approx(16_000)


def test_a_median_counts_a_time_of_zero():
    """All collectives of a trial may run behind other kernels."""
    trials = [trial(number, exposed_collective_ms=ms) for number, ms in enumerate((0.0, 0.0, 0.3))]
    assert summarise(trials).exposed_collective_ms == 0.0
    assert summarise([trial()]).exposed_collective_ms is None


COLD = marked(
    0,
    compile_cache="cold",
    compile_s=40.0,
    peak_reserved_bytes=118,
)
WARM = [
    trial(
        round,
        compile_cache="warm",
        compile_s=3.0,
        peak_reserved_bytes=58,
    )
    for round in (1, 2, 3)
]


def test_a_cold_compilation_counts_although_its_trial_is_marked_and_was_repeated():
    found = summarise([COLD, trial(0, attempt=1), *WARM])
    assert found.compile_cold_s == pytest.approx(40)
    assert found.compile_warm_s == pytest.approx(3)


@pytest.mark.parametrize(
    ("trials", "reserved", "cold"),
    [
        ([COLD, *WARM], 58, 118),
        ([COLD, *WARM[:2]], 58, 118),
        ([COLD], 118, 118),
        (WARM, 58, None),
    ],
)
def test_memory_of_cold_and_warm_processes_is_never_mixed(trials, reserved, cold):
    found = summarise(trials, baseline=[trial(peak_reserved_bytes=29)])
    assert found.peak_reserved_bytes == reserved
    assert found.peak_reserved_cold_bytes == cold
    assert found.relative_memory == pytest.approx(reserved / 29)


PLAIN = (1.21**0.6, 1.276)


@pytest.mark.parametrize(
    ("kernels", "used", "mean", "high"),
    [
        ("ab", (0, 1), 1.1, 1.33),
        ("aa", (0, 1), *PLAIN),
        ("ab", (None, None), *PLAIN),
    ],
)
def test_compilations_that_differ_widen_every_interval(kernels, used, mean, high):
    trials = []
    for round, at in enumerate((0, 1, 0, 1, 0)):
        compiled = {"compilation": used[at], "kernel_fingerprint": f"{kernels[at]}-tuned"}
        ms = (1.21, 1.0)[at]
        trials.append(
            trial(
                round,
                latency_ms=ms,
                period_ms=ms,
                **compiled,
            )
        )
    found = summarise(trials, baseline=trials_of(*[4.0] * 5))
    assert found.compilations == (None if None in used else 2)
    assert found.latency_ms == found.period_ms == pytest.approx(mean)
    assert found.latency_ci_high_ms == found.period_ci_high_ms == pytest.approx(high, 1e-3)
    assert found.speedup_ci_low == pytest.approx(4 / high, 1e-3)


def test_what_explains_the_time_comes_from_the_trial_that_was_profiled():
    profiled = trial(
        0,
        period_ms=0.5,
        steady=True,
        gpu_busy_ms=0.3,
    )
    others = [trial(1, period_ms=0.5, steady=False), trial(2, period_ms=0.5)]
    found = summarise([profiled, *others])
    assert found.bound == "launch"
    assert found.unsteady_trials == 1
    assert found.gpu_idle_fraction == pytest.approx(0.4)


@pytest.mark.parametrize("status", [status for status in Status if not status.is_measured])
def test_a_failure_has_no_figures_but_those_that_explain_it(status):
    failed = trial(
        1,
        status,
        rel_error=0.5,
        recompiles=9,
        reason="r",
    )
    found = summarise([trial(0, peak_reserved_bytes=4, compile_s=2.0), failed], baseline=[trial()])
    known = {name: value for name, value in vars(found).items() if value is not None}
    explains = {"rel_error": 0.5, "recompiles": 9, "is_baseline": False}
    assert known == {
        "status": status,
        "reason": "r",
        "trials": 2,
        **explains,
    }


def test_values_that_are_no_times_do_not_count():
    bad = trial(
        0,
        latency_ms=math.nan,
        period_ms=math.inf,
        energy_mj=0.0,
    )
    found = summarise([bad], baseline=[trial()])
    assert {found.latency_ms, found.period_ms, found.energy_mj, found.speedup} == {None}
    assert summarise([bad, trial(1)], baseline=[bad]).latency_ms == pytest.approx(2.0)


# --- the baseline ---


def test_the_baseline_is_1_by_definition():
    found = summarise(
        trials_of(
            4.0,
            4.2,
            3.8,
            prepare_s=3.0,
        ),
        is_baseline=True,
    )
    assert found.speedup == 1.0
    assert found.speedup_ci_low == 1.0
    assert found.speedup_ci_high == 1.0
    assert (found.speedup_from, found.separate_speedup, found.break_even_calls) == (None,) * 3


def test_a_degraded_result_has_no_speedup():
    baseline = [trial(latency_ms=4.0, peak_reserved_bytes=10)]
    found = summarise([trial(0, Status.DEGRADED, peak_reserved_bytes=5)], baseline=baseline)
    assert found.speedup is None
    assert found.relative_memory == 0.5
    assert found.latency_ms == pytest.approx(2.0)


# --- break-even ---


OF_EAGER = [trial(latency_ms=4.0)]


def calls_of(*trials, bs=1, baseline=OF_EAGER):
    return summarise(trials, bs=bs, baseline=baseline).break_even_calls


FAST = {"latency_ms": 1.0, "compile_s": 6.0, "compile_cache": "cold"}


@pytest.mark.parametrize(
    ("values", "calls"),
    [
        (FAST | {"prepare_s": 100.0}, 2000),
        ({"latency_ms": 1.0, "prepare_s": 0.0031}, 2),  # 1.03 calls: the second one pays
        ({"latency_ms": 1.0}, None),
        (FAST | {"latency_ms": 4.0}, None),
        (FAST | {"compile_cache": "warm", "prepare_s": 1.0}, None),
        (FAST | {"disturbance": BUSY}, None),
        (FAST | {"latency_ms": None}, None),
    ],
)
def test_a_preparation_pays_for_itself(values, calls):
    assert calls_of(trial(**values)) == calls


def test_the_latency_decides_whether_a_preparation_pays():
    assert calls_of(trial(period_ms=9.0, **FAST), baseline=[trial(latency_ms=4.0, period_ms=1.0)])


def test_the_latency_of_arrivals_is_no_time_per_call():
    assert calls_of(trial(**FAST), bs=None) is None


@pytest.mark.parametrize(("latencies", "calls"), [((3.9, 4.9), None), ((1.0, 1.1), 1)])
def test_a_gain_that_is_not_significant_pays_nothing_back(latencies, calls):
    own = trials_of(*latencies, prepare_s=1e-3)
    assert calls_of(*own, baseline=trials_of(4.0, 5.0)) == calls


def test_a_number_of_calls_that_fits_no_column_is_unknown():
    assert break_even_calls(1e9, 1.0 + 1e-15, 1.0) is None
