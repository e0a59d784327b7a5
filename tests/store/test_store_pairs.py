"""The speedup of a result comes from pairs, if all of its trials have them."""

import math

import pytest
from test_store_summary import BUSY, ERROR, summarise, trial

EAGER = [trial(round, latency_ms=4.0) for round in range(3)]
BUSY_EAGER = [trial(round, latency_ms=4.0, disturbance=BUSY) for round in range(3)]


def paired(round, speedup, within=0.01, **values):
    low, high = speedup * (1 - within), speedup * (1 + within)
    pairs = {"pair_speedup": speedup, "pair_speedup_low": low, "pair_speedup_high": high}
    return trial(round, **pairs | values)


def of(*trials, baseline=EAGER):
    return summarise(trials, baseline=baseline)


def test_the_speedup_is_the_mean_over_processes():
    found = of(paired(0, 1.5), paired(1, 1.6), paired(2, 1.7))
    assert found.speedup == pytest.approx((1.5 * 1.6 * 1.7) ** (1 / 3))
    assert found.speedup_ci_low < 1.5 < 1.7 < found.speedup_ci_high
    assert found.speedup_from == "pairs"
    assert found.separate_speedup == pytest.approx(2.0)


def test_one_trial_without_pairs_makes_all_separate():
    """Means over different trials would be mixed."""
    found = of(paired(0, 1.5), paired(1, 1.6), trial(2))
    assert found.speedup == pytest.approx(2.0)
    assert found.speedup_from == "separate"
    assert found.separate_speedup == found.speedup


def test_pairs_need_no_baseline():
    found = of(paired(0, 1.5), paired(1, 1.5), baseline=[trial(0, ERROR)])
    assert found.speedup == pytest.approx(1.5)
    assert found.separate_speedup is None


def test_a_single_process_has_the_interval_of_its_pairs():
    found = of(paired(0, 1.5, within=0.02))
    assert found.speedup_ci_low == pytest.approx(1.47)
    assert found.speedup_ci_high == pytest.approx(1.53)


@pytest.mark.parametrize(
    ("trials", "baseline", "disturbance"),
    [
        ([paired(0, 1.5, disturbance=BUSY)], EAGER, None),
        ([paired(0, 1.5)], BUSY_EAGER, None),
        ([trial(0, disturbance=BUSY)], EAGER, BUSY),
        ([trial(0)], BUSY_EAGER, f"the baseline's times: {BUSY}"),
    ],
)
def test_marked_times_only_mark_the_speedup_of_separate_processes(trials, baseline, disturbance):
    """Both sides of a pair meet the same host."""
    assert of(*trials, baseline=baseline).speedup_disturbance == disturbance


WIDE = {"pair_speedup_low": 1.0, "pair_speedup_high": 9.0, "pair_disturbance": BUSY}
DISTURBED = [paired(round, 1.5, disturbance=BUSY) for round in range(3)]


def test_marked_pairs_do_not_count_if_three_others_are_ok():
    found = of(
        *DISTURBED,
        paired(
            3,
            4.0,
            disturbance=BUSY,
            **WIDE,
        ),
    )
    assert found.speedup == pytest.approx(1.5)
    assert found.speedup_disturbance is None


def test_marked_pairs_widen_the_interval():
    found = of(
        *DISTURBED[:2],
        paired(
            3,
            4.0,
            disturbance=BUSY,
            **WIDE,
        ),
    )
    plain = of(*DISTURBED[:2], paired(3, 4.0, disturbance=BUSY))
    below = math.log(plain.speedup_ci_low / found.speedup_ci_low)
    above = math.log(found.speedup_ci_high / plain.speedup_ci_high)
    assert found.speedup_disturbance == BUSY
    assert (below, above) == pytest.approx((math.log(4.0) / 3, math.log(9.0 / 4.0) / 3))


MARKED = {"pair_disturbance": BUSY, "pair_speedup_disturbed": 2.4}


@pytest.mark.parametrize(
    ("values", "speedup", "origin", "disturbance"),
    [
        ({"gpu_uuid": "GPU-1"}, 2.0, "separate", None),
        ({"gpu_uuid": "GPU-1", "disturbance": BUSY}, 2.4, "pairs", BUSY),
        ({}, 2.4, "pairs", BUSY),
    ],
    ids=["unmarked times of a GPU", "marked times of a GPU", "the CPU"],
)
def test_marked_pairs_give_way_to_unmarked_separate_times_of_a_gpu(
    values, speedup, origin, disturbance
):
    """On the CPU, separate processes may meet different speeds of the host without a trace."""
    found = of(
        *(
            paired(
                round,
                2.4,
                **MARKED,
                **values,
            )
            for round in range(3)
        )
    )
    assert found.speedup == pytest.approx(speedup)
    assert found.speedup_from == origin
    assert found.speedup_disturbance == disturbance
    assert found.busy_speedup == pytest.approx(2.4)


def test_the_period_has_pairs_of_its_own():
    periods = {"period_ms": 1.0, "pair_period_speedup": 3.0}
    busy = {"pair_speedup_disturbed": 4.8, "pair_period_speedup_disturbed": 3.3}
    baseline = [trial(round, latency_ms=4.0, period_ms=2.0) for round in range(3)]
    trials = (
        paired(
            0,
            1.5,
            **periods,
            **busy,
        ),
        paired(1, 1.5, **periods),
    )
    found = of(*trials, baseline=baseline)
    assert found.period_speedup == pytest.approx(3.0)
    assert found.separate_period_speedup == pytest.approx(2.0)
    assert found.busy_speedup == pytest.approx(4.8)
    assert found.busy_period_speedup == pytest.approx(3.3)
