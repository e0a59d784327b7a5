"""Figures with intervals: bounds are never too narrow, and overlapping ones decide nothing."""

import math
import operator
from itertools import product

import pandas as pd
import pytest

from effbench.claims import fraction, geomean, highest, interval, mean
from effbench.claims.facts import facts_of
from effbench.claims.figures import (
    NO_INTERVAL,
    OPEN,
    UNDEFINED,
    Figure,
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
    a, b = (-2.0, -0.5, 3.0), (0.25, 1.0, 2.0)
    made = function(Figure(a[1], a[0], a[2]), Figure(b[1], b[0], b[2]))
    inner = [function(x, y) for x, y in product(a, b)]
    assert made.low == min(inner)
    assert made.high == max(inner)


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (1 / Figure(4, 2, 8), (0.25, 0.125, 0.5)),
        (Figure(2, 1, INF) * 0, (0, 0, 0)),
        (1 / Figure(1, -1, 2), (1, -INF, INF)),  # a divisor that may be 0 has no bounds
        (fraction(Figure(2, 2, 4), 16), (0.25, 0.25, 0.5)),
        (highest([Figure(2, 1, 9), Figure(3, 0, 4)]), (3, 1, 9)),
        (geomean([Figure(2, 0, INF)]), (2, 0, INF)),
        (mean([Figure(1, 1, 1), Figure(3, 2, 5)]), (2, 1.5, 3)),
    ],
)
def test_arithmetic(figure, expected):
    assert bounds(figure) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("statement", "holds", "why"),
    [
        (X.above(1.2), True, ""),
        (X.above(1.45), None, OPEN),
        (X.above(1.5), False, ""),
        (X.above(Figure(1.2, 1.1, 1.31)), None, OPEN),
        (X.below(1.6), True, ""),
        (X.within(1.3, 1.5), True, ""),
        (X.within(1.35, 2), None, OPEN),
        (Figure(9, 0, INF).above(1), None, NO_INTERVAL),
        (interval(4).above(4), False, ""),
        (GAP.above(1), None, "no CUDA here"),
        (GAP.within(0, 1), None, "no CUDA here"),
        ((X / 0).above(1), None, UNDEFINED),
    ],
)
def test_comparisons_are_open_where_intervals_overlap(statement, holds, why):
    assert statement.holds == holds
    assert statement.why == why


@pytest.mark.parametrize("figure", [GAP + 1, 1 / GAP, mean([GAP]), fraction(GAP, 2), interval(GAP)])
def test_what_is_missing_stays_missing(figure):
    assert figure.is_missing
    assert figure.gaps == ("no CUDA here",)
    with pytest.raises(NotMeasuredError, match="no CUDA here"):
        bool(figure)


def test_rows_without_a_figure_are_left_out_and_named():
    column = pd.Series([Figure(2, 2, 2), missing("error: mlp"), Figure(4, 4, 4), None])
    assert mean(column).value == 3
    assert mean(column).gaps == ("error: mlp",)
    assert (2 / fraction(geomean(1 + 1 / column), 3)).above(1).figure.gaps == ("error: mlp",)
    assert interval(column[:2]).value == 2
    assert interval([]).is_missing
    assert mean([]).is_missing


def test_facts():
    facts = facts_of(
        {
            "list": [1, {"x": 2}],
            "ms": {"value": 2.0, "low": 1.0, "high": 3.0},
            "if": {"a": {"x": 1}},
            "gpu": {"unsupported": "no CUDA"},
            "late": {"succeeded": False, "error_type": "timeout", "error": "180 s"},
        }
    )
    assert facts.ms == Figure(2.0, 1.0, 3.0)
    assert facts["list"][1].x == 2
    assert facts["if"].a.x == 1
    assert facts.gpu.speed.gaps == ("unsupported: no CUDA",)
    assert facts.late.x.gaps == ("timeout: 180 s",)
    with pytest.raises(AttributeError, match="returned no 'cuont'; it has list"):
        facts.cuont  # noqa: B018
