import math

import pytest

from effbench.analysis.confirm import LEAST_PAIRS, confirms, paired
from effbench.analysis.statistics import t_quantile
from effbench.analysis.verdicts import Verdict, compare

#: A machine that drifts by half over the rounds, and meets both sides of a pair alike.
DRIFT = {number: 1.0 + 0.1 * number for number in range(6)}


def times(factor, wobble=0.001):
    return {number: value * factor * (1 + wobble * (-1) ** number) for number, value in DRIFT.items()}


def test_pairs_see_what_drift_hides_from_the_two_samples():
    before, after = DRIFT, times(1.05)
    assert paired(before, after).verdict is Verdict.SLOWER
    assert compare(list(before.values()), list(after.values())).verdict is Verdict.AMBIGUOUS


def test_the_interval_is_students_over_the_logarithms_of_the_pairs():
    found = paired({0: 1.0, 1: 2.0, 2: 4.0}, {0: 1.1, 1: 2.4, 2: 5.2})
    logs = [math.log(ratio) for ratio in (1.1, 1.2, 1.3)]
    mean = sum(logs) / 3
    error = math.sqrt(sum((one - mean) ** 2 for one in logs) / 2 / 3)
    assert found.ratio == pytest.approx(math.exp(mean))
    assert found.low == pytest.approx(math.exp(mean - t_quantile(2) * error))
    assert found.df == 2


def test_rounds_of_one_side_only_are_left_out():
    found = paired({0: 1.0, 1: 1.0, 2: 1.0, 3: 99.0}, {0: 1.1, 1: 1.1, 2: 1.1, 4: 0.01})
    assert found.ratio == pytest.approx(1.1)
    with pytest.raises(ValueError, match="no round has both"):
        paired({0: 1.0}, {1: 1.0})


def test_one_pair_tells_no_spread():
    found = paired({3: 1.0}, {3: 2.0})
    assert (found.ratio, found.low, found.p_value, found.verdict) == (2.0, None, None, Verdict.AMBIGUOUS)


def test_identical_pairs():
    found = paired(DRIFT, DRIFT)
    assert (found.ratio, found.low, found.high, found.p_value) == (1.0, 1.0, 1.0, 1.0)
    assert found.verdict is Verdict.SAME


def test_figures_whose_quotient_no_float_holds():
    found = paired(dict.fromkeys(range(5), 1e-300), dict.fromkeys(range(5), 1e300))
    assert found.ratio == math.inf
    assert found.verdict is Verdict.SLOWER
    assert paired({0: 1e300, 1: 1e300}, {0: 1e-300, 1: 1e-300}).verdict is Verdict.FASTER
    assert paired({0: 1e-300}, {0: 1e300}).ratio == math.inf


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_figures_that_cannot_be(value):
    with pytest.raises(ValueError, match="positive, finite"):
        paired({0: 1.0, 1: value}, {0: 1.0, 1: 1.0})


def test_confirmed_is_what_lies_beyond_the_floor_with_its_whole_interval():
    clear, near = paired(DRIFT, times(1.05)), paired(DRIFT, times(1.0205))
    assert confirms(clear, len(DRIFT))
    assert near.verdict is Verdict.SLOWER
    assert not confirms(near, len(DRIFT))  # its interval reaches below 2 %
    assert not confirms(clear, LEAST_PAIRS - 1)
    assert not confirms(clear, len(DRIFT), floor=0.06)
    assert not confirms(paired({3: 1.0}, {3: 2.0}), LEAST_PAIRS)
