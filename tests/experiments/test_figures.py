"""Figures with intervals: bounds are never too narrow, and overlapping ones decide nothing."""

import math
import operator
import random
import re
from itertools import product

import pandas as pd
import pytest

from effbench.experiments import (
    all_of,
    any_of,
    between,
    exp,
    figures,
    geomean,
    highest,
    log,
    mean,
    only,
)
from effbench.experiments.figures import (
    NO_INTERVAL,
    OPEN,
    UNDEFINED,
    ClaimError,
    Facts,
    Figure,
    Missing,
    Truth,
    truth,
)

INF, NAN = math.inf, math.nan
YES, NO, MAYBE = Truth(True), Truth(False), Truth(None, OPEN)
GAP = Missing("no CUDA here")


def bounds(figure):
    return figure.value, figure.low, figure.high


@pytest.mark.parametrize("function", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_bounds_hold_for_all_values_within(function):
    draw = random.Random(7)
    for _ in range(200):
        a, b = (sorted(draw.uniform(-3, 3) for _ in range(3)) for _ in "ab")
        made = function(Figure(a[1], a[0], a[2]), Figure(b[1], b[0], b[2]))
        for x, y in product(a, b):
            inner = function(x, y)
            assert made.low - 1e-9 <= inner <= made.high + 1e-9, (function, a, b)


def test_arithmetic():
    x = Figure(4, 2, 8)
    assert bounds(1 / x) == (0.25, 0.125, 0.5)
    assert (
        bounds(1 - x) == (-3, -7, -1)
        and bounds(-x) == (-4, -8, -2)
        and bounds(2 * x + 1) == (9, 5, 17)
    )
    assert (1 / Figure(1, -1, 2)).high == INF, "a divisor that may be 0 has no bounds"
    assert math.isnan((x / 0).value) and math.isnan(log(-1).value)
    assert bounds(exp(log(x))) == pytest.approx((4, 2, 8)) and log(Figure(1, 0, 2)).low == -INF
    assert bounds(Figure(2, 1, INF) * Figure(0)) == (0, 0, 0)
    assert math.isnan(x + NAN) and isinstance(x + NAN, float), (
        "a row that lacks a figure still lacks it"
    )
    with pytest.raises(ClaimError, match="expected a number, got 'a'"):
        x + "a"


def test_comparisons_are_open_where_intervals_overlap():
    x = Figure(1.4, 1.3, 1.5)
    assert [(x > limit).holds for limit in (1.2, 1.45, 1.6)] == [True, None, False]
    assert [(x <= limit).holds for limit in (1.2, 1.5, 1.6)] == [False, True, True]
    assert [(x >= limit).holds for limit in (1.3, 1.55)] == [True, False] and (
        x < 1.3
    ).holds is False
    assert ((x == 1.4).holds, (x == 2).holds, (Figure(3) == 3).holds) == (None, False, True)
    assert (x > 1.45).why == OPEN
    assert (Figure(9, 0, INF) > 1).why == NO_INTERVAL and (Figure(1) / 0 > 1).why == UNDEFINED
    assert [between(x, *limits).holds for limits in ((1, 2), (2, 3), (1.35, 2))] == [
        True,
        False,
        None,
    ]


def test_three_values():
    for a, b in product((YES, NO, MAYBE), repeat=2):
        held = (a.holds, b.holds)
        assert (a & b).holds is (False if False in held else None if None in held else True)
        assert (a | b).holds is (True if True in held else None if None in held else False)
    assert (~MAYBE).holds is None and (~YES).holds is False
    assert (True & MAYBE).holds is None and (YES & (1 > 2)).holds is False, (
        "plain conditions mix with them"
    )
    assert (MAYBE & GAP).missing, "what is missing is the reason"
    for empty in (all_of([]), any_of([]), all_of(GAP), any_of(GAP)):
        assert empty.holds is None and empty.missing
    with pytest.raises(ClaimError, match="combine conditions with &"):
        bool(YES)
    column = pd.Series([Figure(1.0), Figure(3.0)])
    with pytest.raises(
        ClaimError, match=re.escape("of a column: all_of(x > 1 for x in figures(column))")
    ):
        all_of(column > 2)
    assert all_of(x > 2 for x in figures(column)).holds is False
    with pytest.raises(ClaimError, match="expected a condition"):
        truth(3)


def test_columns_without_figures_are_left_out():
    column = pd.Series([Figure(2), NAN, Figure(4), None], name="speedup")
    assert mean(column).value == 3 and len(figures(column)) == 2
    assert bounds(mean(1 / column)) == pytest.approx((0.375, 0.375, 0.375))
    for empty in (mean(column[:0]), geomean(column[1:2]), only([])):
        assert isinstance(empty, Missing)


def test_what_is_missing_stays_missing():
    for made in (
        GAP + 1,
        1 / GAP,
        GAP.part["x"].other,
        mean(GAP),
        log(GAP),
        GAP.each("x"),
        highest(GAP) - 1,
    ):
        assert isinstance(made, Missing) and made.why == "no CUDA here"
    for held in (
        GAP > 1,
        GAP < 1,
        GAP == "text",
        ~GAP,
        GAP & True,
        GAP | False,
        between(GAP, 0, 1),
    ):
        assert held.holds is None and held.missing and held.why == "no CUDA here"
    assert list(GAP) == []


def test_facts():
    inner = {"a": {"x": 1}, "b": {"x": 2}, "c": {"y": 3}}
    facts = Facts(
        {
            "count": 3,
            "works": True,
            "none": None,
            "name": "native",
            "list": [1, {"x": 2}],
            "if": inner,
        }
    )
    assert repr(Facts(ms={"value": 2.0, "low": 1.0, "high": 3.0}).ms) == "2 [1, 3]"
    assert facts.count.value == 3 and facts.works.holds and facts.name == "native"
    assert facts["list"][1].x.value == 2 and [one.value for one in facts["if"].each("x")] == [1, 2]
    with pytest.raises(ClaimError, match="returned no 'cuont'; it has count, works"):
        facts.cuont  # noqa: B018
