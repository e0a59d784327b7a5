"""The speedup of a result comes from pairs, if all of its trials have them."""

import math

import pytest
from test_store_summary import BUSY, summarise, trial

from effbench.cell import Status

OK, ERROR = Status.OK, Status.ERROR
EAGER = [trial(round, latency_ms=4.0) for round in range(3)]


def paired(round, speedup, within=0.01, **values):
    low, high = speedup * (1 - within), speedup * (1 + within)
    values = {
        "latency_ms": 2.0,
        "pair_speedup": speedup,
        "pair_speedup_low": low,
        "pair_speedup_high": high,
    } | values
    return trial(round, **values)


def of(*trials, baseline=EAGER):
    return summarise(list(trials), bs=1, baseline=baseline)


def test_the_speedup_is_the_mean_over_processes():
    found = of(paired(0, 1.5), paired(1, 1.6), paired(2, 1.7))
    assert found.speedup == pytest.approx((1.5 * 1.6 * 1.7) ** (1 / 3))
    assert found.speedup_ci_low < 1.5 < 1.7 < found.speedup_ci_high
    assert found.speedup_from == "pairs"
    assert found.separate_speedup == pytest.approx(2.0)
    assert found.speedup_disturbance is None


def test_one_trial_without_pairs_makes_all_separate():
    """Means over different trials would be mixed."""
    found = of(paired(0, 1.5), paired(1, 1.6), trial(2, latency_ms=2.0))
    assert (found.speedup, found.speedup_from) == (pytest.approx(2.0), "separate")
    assert found.separate_speedup == found.speedup
    failed = of(paired(0, 1.5), paired(1, 1.6), trial(2, ERROR))
    assert failed.speedup is None
    assert failed.speedup_from is None


def test_a_single_process_has_the_interval_of_its_pairs():
    found = of(paired(0, 1.5, within=0.02))
    bounds = found.speedup_ci_low, found.speedup_ci_high
    assert bounds == (pytest.approx(1.47), pytest.approx(1.53))
    few = of(paired(0, 1.5, pair_speedup_low=None, pair_speedup_high=None))
    assert few.speedup == pytest.approx(1.5)
    assert few.speedup_ci_low is None


def test_marked_times_do_not_mark_the_speedup():
    """Both sides of a pair meet the same host."""
    found = of(*(paired(round, 1.5, disturbance=BUSY) for round in range(3)))
    assert found.marked
    assert found.speedup_disturbance is None
    separate = of(*(trial(round, disturbance=BUSY) for round in range(3)))
    assert separate.speedup_disturbance == BUSY


def test_a_marked_baseline_marks_only_the_ratio_of_separate_processes():
    baseline = [trial(round, latency_ms=4.0, disturbance=BUSY) for round in range(3)]
    assert (
        of(*(trial(round) for round in range(3)), baseline=baseline).speedup_disturbance
        == f"the baseline's times: {BUSY}"
    )
    assert (
        of(*(paired(round, 1.5) for round in range(3)), baseline=baseline).speedup_disturbance
        is None
    )


def test_marked_pairs_widen_the_interval_and_do_not_count_if_three_others_are_ok():
    # so are the separate times
    quiet = [paired(round, 1.5, disturbance=BUSY) for round in range(3)]
    wide = {
        "pair_speedup_low": 1.0,
        "pair_speedup_high": 9.0,
        "pair_disturbance": BUSY,
        "disturbance": BUSY,
    }
    busy = paired(3, 4.0, **wide)
    assert of(*quiet, busy).speedup == pytest.approx(1.5)
    assert of(*quiet, busy).speedup_disturbance is None
    found = of(*quiet[:2], busy)
    assert found.speedup_disturbance == BUSY
    plain = of(*quiet[:2], paired(3, 4.0, disturbance=BUSY))
    assert math.log(plain.speedup_ci_low / found.speedup_ci_low) == pytest.approx(math.log(4.0) / 3)
    assert math.log(found.speedup_ci_high / plain.speedup_ci_high) == pytest.approx(
        math.log(9.0 / 4.0) / 3
    )


def test_marked_pairs_give_way_to_separate_times_that_are_not_marked():
    found = of(
        *(
            paired(round, 2.4, pair_disturbance=BUSY, pair_speedup_disturbed=2.4)
            for round in range(3)
        )
    )
    assert (found.speedup, found.speedup_from) == (pytest.approx(2.0), "separate")
    assert found.speedup_disturbance is None
    assert found.busy_speedup == pytest.approx(2.4)
    both = of(*(paired(round, 2.4, pair_disturbance=BUSY, disturbance=BUSY) for round in range(3)))
    assert (both.speedup, both.speedup_from) == (pytest.approx(2.4), "pairs")
    assert both.speedup_disturbance == BUSY


def test_a_busy_host_has_a_speedup_of_its_own():
    trials = [
        paired(0, 4.1, pair_speedup_disturbed=4.8),
        paired(1, 4.1),
        paired(2, 4.1, pair_speedup_disturbed=4.8),
    ]
    assert of(*trials).busy_speedup == pytest.approx(4.8)
    assert of(paired(0, 4.1), paired(1, 4.1)).busy_speedup is None


def test_pairs_give_a_speedup_although_the_baseline_failed():
    found = of(paired(0, 1.5), paired(1, 1.5), baseline=[trial(0, ERROR)])
    assert (found.speedup, found.separate_speedup) == (pytest.approx(1.5), None)


def test_the_baseline_is_1_by_definition():
    found = summarise(EAGER, bs=1, is_baseline=True)
    assert (found.speedup, found.speedup_ci_low, found.speedup_ci_high) == (1.0, 1.0, 1.0)
    assert found.speedup_from is None
    assert found.separate_speedup is None


def test_the_period_has_pairs_of_its_own():
    periods = {"period_ms": 1.0, "pair_period_speedup": 3.0, "pair_period_speedup_disturbed": 3.3}
    trials = [paired(round, 1.5, **periods) for round in range(3)]
    baseline = [trial(round, latency_ms=4.0, period_ms=2.0) for round in range(3)]
    found = of(*trials, baseline=baseline)
    assert (found.speedup, found.period_speedup) == (pytest.approx(1.5), pytest.approx(3.0))
    assert found.separate_period_speedup == pytest.approx(2.0)
    assert found.busy_period_speedup == pytest.approx(3.3)
