"""Scores of a mode over all cells: values of textbooks, and intervals that were computed in another way."""

import math

import pytest
import synthetic as make

from effbench.labels import label_rows
from effbench.report.summary import by_mode, headline, modes_table, over_cells, score_interval, score_text
from effbench.report.tables import speedup_table
from effbench.stats.intervals import geometric_mean, median_interval, mode_score


def default(*rows):
    """The summary of the mode `default`, of which the rows have these columns."""
    rows = [make.row(bs=number + 1, mode="default", **row) for number, row in enumerate(rows)]
    (found,) = by_mode(label_rows(rows))
    return found


def speedup(value, low=None, high=None, **more):
    return {"speedup": value, "speedup_ci_low": low, "speedup_ci_high": high, **more}


def test_scores_of_a_mode():
    found = default(speedup(2.0, 1.9, 2.1), speedup(0.5, 0.45, 0.55), speedup(None, status="oom", reason="full"))
    score = found.scores["speedup"]
    assert score.value == pytest.approx(1.0) and 0.9 < score.low < 1.0 < score.high < 1.1
    assert (score.passed, score.total, score.averaged, found.not_ok) == (2, 3, 2, "1 oom")
    for rows, text, interval in [
        ([speedup(2.0), speedup(8.0)], "4.00×", ""), ([speedup(math.nan)], "—", ""),
        ([speedup(None, status="error")], "—", ""), ([speedup(1.0, 1.0, 1.0)] * 2, "1.00×", ""),
        ([speedup(2.0, 1.9, 2.1)] * 2 + [speedup(None)], "2.00×", "1.94–2.06, of 2"),
        ([speedup(136.0, 0.6, 29_540.0, trials=2)], "unclear", "0.61–30,176"),
    ]:  # fmt: skip
        score = default(*rows).scores["speedup"]
        assert (score_text(score), score_interval(score)) == (text, interval)
    assert not mode_score([("ok", 2.0, 0.9, 3.7, 5)]).clear and mode_score([("ok", 2.0, 1.1, 4.3, 5)]).clear


def test_latency_and_period_each_have_a_mean_and_a_winner():
    fast = {"period_speedup": 3.0, "period_speedup_ci_low": 2.9, "period_speedup_ci_high": 3.1}
    fast |= {"period_ms": 0.03, "period_ci_low_ms": 0.029, "period_ci_high_ms": 0.031}
    rows = label_rows([make.row(period_speedup=1.0), make.row(mode="default", latency_ms=0.2, **fast)])
    modes = by_mode(rows)
    assert headline(speedup_table(rows), modes) == (
        "Latency: eager wins 1 of 1 points (model × batch size); its mean speedup is 1.00×. "
        "Period: default wins 1 of 1 points; its mean speedup is 3.00×."
    )
    assert [column.key for column in modes_table(modes).columns][1:3] == ["speedup", "period_speedup"]
    assert modes_table(modes).rows[1]["period_speedup"].text == "3.00×"
    assert "period_speedup" not in [column.key for column in modes_table(by_mode(label_rows(make.cpu_quick()))).columns]


def test_figures_over_cells_have_an_interval_or_say_why_not():
    for values, middle, value, note in [
        ([0.8], geometric_mean, 0.8, "one cell"), ([1.0] * 9, geometric_mean, 1.0, "the same in all 9"),
        ([0.8333333330, 0.8333333328, 0.8333333331], geometric_mean, 0.833333333, "the same in all 3"),  # rounded bytes
        # two ratios far apart: bounds from 0.009 to 57 are no news
        ([0.5, 1.0], geometric_mean, math.sqrt(0.5), "range 0.50 to 1.00"),
        ([2.0, 3.0, 9.0, 4.0, 1.0], median_interval, 3.0, "range 1.00 to 9.00"),
        # logs ±0.2231 and 0: standard error 0.2231 ÷ √3, t(2) = 4.3027
        ([0.8, 1.0, 1.25, None, math.nan], geometric_mean, 1.0, "0.57 to 1.74"),
        (list(range(1, 7)), median_interval, 3.5, "1.00 to 6.00"),
    ]:  # fmt: skip
        assert over_cells(values, middle, "{:.2f}".format) == (pytest.approx(value), note)
    for nothing in ([None, math.nan, math.inf, 0.0, -1.0], []):
        assert over_cells(nothing, geometric_mean, str) == (None, "")
