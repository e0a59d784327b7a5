"""Figures with intervals: bounds are never too narrow, and overlapping ones decide nothing."""

import math
import operator
import random
from itertools import product

import pandas as pd
import pytest

from effbench.experiments import fraction, geomean, highest, interval, lowest, mean
from effbench.experiments.facts import facts_of
from effbench.experiments.figures import (
    NO_INTERVAL,
    OPEN,
    UNDEFINED,
    ClaimError,
    Figure,
    Gap,
    NotMeasuredError,
    missing,
)

INF = math.inf
GAP = missing("no CUDA here")
X = Figure(1.4, 1.3, 1.5)


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


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (1 / Figure(4, 2, 8), (0.25, 0.125, 0.5)),
        (1 - Figure(4, 2, 8), (-3, -7, -1)),
        (2 * Figure(4, 2, 8) + 1, (9, 5, 17)),
        (Figure(2, 1, INF) * 0, (0, 0, 0)),
        (1 / Figure(1, -1, 2), (1, -INF, INF)),  # a divisor that may be 0 has no bounds
        (fraction(Figure(2, 2, 4), 16), (0.25, 0.25, 0.5)),
        (lowest([Figure(2, 1, 9), Figure(3, 0, 4)]), (2, 0, 4)),
        (highest([Figure(2, 1, 9), Figure(3, 0, 4)]), (3, 1, 9)),
        (geomean([Figure(2, 2, 2), Figure(8, 8, 8)]), (4, 4, 4)),
        (geomean([Figure(2, 0, INF)]), (2, 0, INF)),
        (mean([Figure(1, 1, 1), Figure(3, 2, 5)]), (2, 1.5, 3)),
    ],
)
def test_arithmetic(figure, expected):
    assert bounds(figure) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("outcome", "holds", "why"),
    [
        (X.above(1.2), True, ""),
        (X.above(1.45), None, OPEN),
        (X.above(1.5), False, ""),
        (X.above(Figure(1.2, 1.1, 1.31)), None, OPEN),
        (X.below(1.6), True, ""),
        (X.below(1.3), False, ""),
        (X.within(1.3, 1.5), True, ""),
        (X.within(2, 3), False, ""),
        (X.within(1.35, 2), None, OPEN),
        (Figure(9, 0, INF).above(1), None, NO_INTERVAL),
        (interval(4).above(4), False, ""),
        (GAP.above(1), None, "no CUDA here"),
        (X.below(GAP), None, "no CUDA here"),
        (GAP.within(0, 1), None, "no CUDA here"),
        ((X / 0).above(1), None, UNDEFINED),
    ],
)
def test_comparisons_are_open_where_intervals_overlap(outcome, holds, why):
    assert (outcome.holds, outcome.why) == (holds, why)
    assert outcome.is_measured is (why not in (GAP.why, UNDEFINED))
    with pytest.raises(ClaimError, match="neither true nor false"):
        bool(outcome)


@pytest.mark.parametrize(
    "figure",
    [
        GAP + 1,
        1 / GAP,
        mean([GAP]),
        fraction(GAP, 2),
        highest([GAP]) - 1,
        interval(GAP),
    ],
)
def test_what_is_missing_stays_missing(figure):
    assert figure.is_missing and figure.why == "no CUDA here"
    with pytest.raises(NotMeasuredError, match="no CUDA here"):
        bool(figure)


def test_rows_without_a_figure_are_left_out_and_named():
    gap = Gap("mlp", "error", "why")
    column = pd.Series(
        [Figure(2, 2, 2), missing("no measured row has speedup", [gap]), 4.0, None], name="speedup"
    )
    assert (mean(column).value, mean(column).gaps) == (3, (gap,))
    assert bounds(mean(1 / column)) == pytest.approx((0.375, 0.375, 0.375))
    assert (2 / fraction(geomean(1 + 1 / column), 3)).above(1).figure.gaps == (gap,)
    for empty in (mean(column[:0]), geomean(column[1:2])):
        assert empty.why == "no measured row has speedup"
    assert interval(column[:2]).value == 2 and interval([]).is_missing
    assert geomean([1, -1]).why == UNDEFINED


def test_mistakes():
    with pytest.raises(ClaimError, match="expected a number, got 'a'"):
        X + "a"
    with pytest.raises(ClaimError, match="but 2 are left"):
        interval([1, 2])
    with pytest.raises(ClaimError, match=r"compare the figure: above\(\)"):
        bool(X)


def test_facts():
    facts = facts_of(
        {
            "count": 3,
            "works": True,
            "none": None,
            "list": [1, {"x": 2}],
            "ms": {"value": 2.0, "low": 1.0, "high": 3.0},
            "if": {"a": {"x": 1}},
            "gpu": {"unsupported": "no CUDA"},
            "late": {"succeeded": False, "error_type": "timeout", "error": "180 s"},
        }
    )
    assert facts.count == 3 and facts.works is True and facts.none is None
    assert facts.ms == Figure(2.0, 1.0, 3.0)
    assert facts["list"][1].x == 2 and facts["if"].a.x == 1
    assert facts.gpu.speed.why == "unsupported: no CUDA" and facts.late.x.why == "timeout: 180 s"
    with pytest.raises(ClaimError, match="returned no 'cuont'; it has count, works"):
        facts.cuont  # noqa: B018
