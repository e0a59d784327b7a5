"""Figures with intervals: bounds are never too narrow, and what overlaps stays undecided."""

from __future__ import annotations

import math
import operator
import random
from itertools import product

import pytest

from effbench.analysis import estimate
from effbench.analysis.estimate import ABSENT, UNKNOWN, Estimate, Vector, combine, each, equal, less

INF = math.inf
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow}


def exact(value):
    return Estimate.exact(float(value))


def bounds(found):
    return found.value, found.low, found.high


@pytest.mark.parametrize("name", OPERATIONS)
def test_bounds_hold_whatever_lies_within(name):
    function, draw = OPERATIONS[name], random.Random(7)
    for _ in range(300):
        a, b = (sorted(draw.uniform(-3, 3) for _ in range(3)) for _ in "ab")
        if name == "**":
            b = [float(draw.randint(-2, 3))] * 3
        made = combine(function, Estimate(a[1], a[0], a[2]), Estimate(b[1], b[0], b[2]))
        for x, y in product((*a, 0.3 * a[0] + 0.7 * a[2], 0.0 if a[0] < 0 < a[2] else a[1]), b):
            try:
                inner = function(x, y)
            except ZeroDivisionError:
                continue
            assert made.low - 1e-9 <= inner <= made.high + 1e-9, (name, a, b, x, y)


def test_exact_figures_stay_exact():
    assert bounds(combine(operator.pow, exact(-2), exact(-1))) == (-0.5, -0.5, -0.5)
    assert combine(operator.truediv, exact(1), exact(4)).is_exact


def test_a_square_turns_at_zero():
    assert bounds(combine(operator.pow, Estimate(1, -1, 2), 2)) == (1, 0, 4)


def test_what_is_not_defined_has_no_value_and_decides_nothing():
    for made in (
        combine(operator.truediv, exact(1), exact(0)),
        combine(operator.pow, exact(0), exact(-1)),
        combine(operator.pow, exact(-1), exact(0.5)),
        combine(operator.sub, exact(INF), exact(INF)),
        exact(-1).map(estimate.log),
        exact(-1).map(estimate.sqrt),
    ):
        assert math.isnan(made.value)
        assert (made.low, made.high) == (-INF, INF)
        assert less(made, exact(1), True) is None
        assert less(exact(1), made, False) is None
        assert equal(made, made) is None


def test_a_division_by_what_may_be_zero_has_no_bounds():
    assert bounds(combine(operator.truediv, exact(1), Estimate(0.5, -0.5, 1))) == (2, -INF, INF)


def test_what_grows_beyond_floats_is_infinite():
    assert combine(operator.pow, exact(9), combine(operator.pow, exact(9), exact(9))).value == INF
    assert combine(operator.pow, exact(-10), exact(309)).value == -INF
    assert exact(1e6).map(estimate.exp).value == INF


def test_an_open_bound_stays_open():
    """A single trial: [0, infinity]."""
    alone = Estimate(2.0, 0.0, INF)
    assert bounds(combine(operator.mul, alone, 0)) == (0, 0, 0)
    assert bounds(combine(operator.truediv, alone, Estimate(1, 1, INF))) == (2, 0, INF)
    assert bounds(combine(operator.sub, alone, alone)) == (0, -INF, INF)
    assert bounds(estimate.geometric_mean([alone, exact(2)])) == pytest.approx((2, 0, INF))
    assert bounds(estimate.quantile([alone, alone], 0.5)) == (2, 0, INF)
    assert bounds(estimate.mean([alone, exact(4)])) == (3, pytest.approx(2), INF)


@pytest.mark.parametrize(
    "a, b, smaller, at_most",
    [
        (exact(1), exact(2), True, True),
        (exact(2), exact(2), False, True),
        (exact(3), exact(2), False, False),
        (Estimate(1, 0.5, 1.5), exact(2), True, True),
        (Estimate(1, 0.5, 2), exact(2), None, True),  # they touch
        (Estimate(3, 2, 4), exact(2), False, None),
        (Estimate(2, 1, 3), exact(2), None, None),
        (Estimate(3, 2.5, 4), exact(2), False, False),
    ],
)
def test_order_as_far_as_the_intervals_tell(a, b, smaller, at_most):
    assert less(a, b, False) is smaller
    assert less(a, b, True) is at_most


def test_equality():
    assert equal(exact(2), 2) is True
    assert equal(Estimate(2, 1, 3), 2) is None
    assert equal(Estimate(2, 1, 3), 4) is False
    assert equal("eager", "eager") is True
    assert equal("eager", 1) is False
    assert equal(None, None) is True


KLEENE = [True, False, None, ABSENT]


@pytest.mark.parametrize("a, b", list(product(KLEENE, KLEENE)))
def test_three_values_and_absence(a, b):
    both, either = estimate.both([a, b]), estimate.either([a, b])
    if a is False or b is False:
        assert both is False
    elif a is ABSENT or b is ABSENT:
        assert both is ABSENT
    else:
        assert both is (None if a is None or b is None else True)
    # the law of De Morgan
    assert either is estimate.negate(estimate.both([estimate.negate(a), estimate.negate(b)]))


def test_no_truths_at_all():
    assert estimate.both([]) is True
    assert estimate.either([]) is False


def test_row_by_row_and_what_is_absent():
    column = Vector((exact(1), ABSENT, exact(3)))
    assert each(lambda a, b: combine(operator.add, a, b), column, 1).values == (exact(2), ABSENT, exact(4))
    assert each(lambda a: less(a, 2, False), column).values == (True, ABSENT, False)


def test_columns_of_other_rows_do_not_mix():
    with pytest.raises(TypeError, match="different numbers of rows"):
        each(operator.add, Vector((1, 2)), Vector((1,)))
    with pytest.raises(TypeError, match="different numbers of rows"):
        Vector((1, 2)).where(Vector((True,)))
    with pytest.raises(TypeError, match="takes a condition"):
        Vector((1, 2)).where(Vector((exact(1), exact(2))))


def test_selecting_takes_what_is_surely_true():
    assert Vector((1, 2, 3, 4)).where(Vector((True, None, ABSENT, False))).values == (1,)


class TestManyIntoOne:
    def test_geometric_mean(self):
        made = estimate.geometric_mean([Estimate(2, 1, 4), Estimate(8, 4, 16)])
        assert made.value == pytest.approx(4)
        # two factors of 2, as independent ones: 2 ** (sqrt(2) / 2)
        assert made.high / made.value == pytest.approx(2 ** (2**0.5 / 2)) == made.value / made.low
        assert estimate.geometric_mean([exact(0), exact(1)]) == UNKNOWN

    def test_mean_and_sum(self):
        values = [Estimate(1, 0, 2), Estimate(3, 2, 4)]
        assert bounds(estimate.mean(values)) == pytest.approx((2, 2 - 2**0.5 / 2, 2 + 2**0.5 / 2))
        assert bounds(estimate.total(values)) == pytest.approx((4, 4 - 2**0.5, 4 + 2**0.5))
        assert estimate.mean([exact(1), UNKNOWN]) == UNKNOWN
        assert estimate.mean([Estimate(1e200, -1e200, 1e300)]).high == pytest.approx(1e300)

    def test_quantiles(self):
        values = [Estimate(3, 2, 9), Estimate(1, 0, 2), Estimate(2, 1, 3)]
        assert bounds(estimate.quantile(values, 0.0)) == (1, 0, 2)
        assert bounds(estimate.quantile(values, 1.0)) == (3, 2, 9)
        assert bounds(estimate.quantile(values, 0.25)) == (1.5, 0.5, 2.5)
        assert estimate.quantile([*values, UNKNOWN], 0.5) == UNKNOWN
        with pytest.raises(ValueError, match="between 0 and 1"):
            estimate.quantile(values, 1.5)

    def test_share(self):
        assert bounds(estimate.share([True, True, False, None])) == (0.625, 0.5, 0.75)
        assert less(0.5, estimate.share([True, True, False, None]), True) is True


@pytest.mark.parametrize("value, low, high", [(-2, -3, 1), (2, 1, 3), (-2, -3, -1), (0, 0, 0)])
def test_absolute(value, low, high):
    made = estimate.absolute(Estimate(value, low, high))
    inside = [abs(low + (high - low) * step / 50) for step in range(51)]
    assert made.value == abs(value)
    assert made.low <= min(inside)
    assert made.high == max(inside)
