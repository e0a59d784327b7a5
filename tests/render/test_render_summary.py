"""Scores of a mode over all cells, why a mode wins, and both in the report as Markdown."""

import math
from statistics import geometric_mean, median

import pytest
import synthetic as make
from synthetic import label_rows

from effbench.render import reasons
from effbench.render.summary import by_mode, headline, modes_table, over_cells
from effbench.render.tables import speedup_table
from effbench.stats.intervals import t_quantile


def summary_of(*speedups):
    """The mode `default` with these cells."""
    rows = [make.row(bs=number + 1, mode="default", **row) for number, row in enumerate(speedups)]
    (summary,) = by_mode(label_rows(rows))
    return summary


def speedup(value, low=None, high=None, **more):
    return {
        "speedup": value,
        "speedup_ci_low": low,
        "speedup_ci_high": high,
        **more,
    }


# --- each mode over its cells ---


@pytest.mark.parametrize(
    ("rows", "text", "details"),
    [
        ([speedup(2.0), speedup(8.0)], "4.00×", ""),
        ([speedup(None, status="error")], "", ""),
        ([speedup(2.0, 1.9, 2.1)] * 2 + [speedup(None)], "2.00×", "1.94–2.06"),
        ([speedup(0.00133, 0.0012, 0.00147)], "0.0013×", "0.0012–0.0015"),
    ],
)
def test_the_text_of_a_mean_speedup(rows, text, details):
    shown = summary_of(*rows).speedups["speedup"].shown
    assert shown.text == text
    assert shown.details == details


def test_cells_that_are_known_equally_well_have_half_the_error_and_a_smaller_quantile():
    half = math.log(1.1) / 2 * t_quantile(20) / t_quantile(5)
    mean = summary_of(*[speedup(2.0, 2.0 / 1.1, 2.0 * 1.1)] * 4).speedups["speedup"]
    expected = (2.0, 2 * math.exp(-half), 2 * math.exp(half))
    assert (mean.value, mean.low, mean.high) == pytest.approx(expected)


@pytest.mark.parametrize(("low", "high", "trials"), [(None, None, 5), (1.5, 2.5, 1), (0, 9, 5)])
def test_a_mean_has_no_interval_if_a_cell_has_none(low, high, trials):
    cells = speedup(2.0, 1.5, 2.5), speedup(2.0, low, high, trials=trials)
    mean = summary_of(*cells).speedups["speedup"]
    assert mean.value == pytest.approx(2.0)
    assert mean.low is None
    assert mean.high is None


@pytest.mark.parametrize(
    ("values", "middle", "text"),
    [
        ([0.5, 1.0, None], geometric_mean, "0.707 s"),
        ([2.0, 3.0, 9.0, 4.0, 1.0], median, "3.00 s"),
        ([None, 0.0], median, ""),
    ],
)
def test_figures_over_cells(values, middle, text):
    rows = make.results(make.row(compile_cold_s=value) for value in values)
    assert over_cells(rows, "compile_cold_s", middle).shown.text == text


def test_a_pass_rate_is_not_rounded_up():
    rows = [make.row(bs=bs, mode="default") for bs in range(1, 250)]
    rows.append(make.failed("mlp", 250, "default", "oom", "full"))
    table = modes_table(by_mode(label_rows(rows)))
    texts = {column.key: column.shown(table.rows[0]).line for column in table.used}
    assert texts["pass_rate"] == "99 % (249 of 250)"
    assert texts["not_ok"] == "1 oom"


# --- conclusions ---


def headline_of(rows):
    labelled = label_rows(rows)
    return headline(speedup_table(labelled), by_mode(labelled))


FAST = {"period_speedup": 3.0, "period_speedup_ci_low": 2.9, "period_speedup_ci_high": 3.1}
FAST |= {"period_ms": 0.03, "period_ci_low_ms": 0.029, "period_ci_high_ms": 0.031}


def test_latency_and_period_each_have_a_winner_and_a_mean():
    rows = [make.row(period_speedup=1.0), make.row(mode="default", latency_ms=0.2, **FAST)]
    assert headline_of(rows) == (
        "Latency at 1 point (model × batch size): eager wins 1; its mean speedup is 1.00×. "
        "Period at 1 point (model × batch size): default wins 1; its mean speedup is 3.00×."
    )


def test_a_winner_and_a_tie():
    tied = make.row(bs=64)
    rows = [
        *(make.row(bs=8), make.row(bs=8, mode="default", latency_ms=0.01)),
        *(tied, make.row(bs=64, mode="default", latency_ms=tied["latency_ms"])),
    ]
    start = "Latency at 2 points (model × batch size): default wins 1, with 1 tied"
    assert headline_of(rows).startswith(start)


FAILED = [make.failed("mlp", 1, "eager", "oom", "full"), make.row(mode="default")]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([make.row(trials=1), make.row(mode="default", trials=1)], "one trial"),
        (FAILED, "No mode wins: at each point"),
        ([make.row()], "fewer than two modes are ok"),
        (FAILED[:1], "fewer than two modes are ok"),
    ],
)
def test_why_no_mode_wins(rows, text):
    assert text in headline_of(rows)


EAGER = {
    "bound": "launch",
    "kernels": 15,
    "gpu_busy_ms": 0.2,
    "latency_ms": 1.0,
}
GRAPH = {"kernels": 16, "graph_pool_bytes": 1, "gpu_busy_ms": 0.2}
FASTER = {"latency_ms": 0.4, "latency_ci_low_ms": 0.39, "latency_ci_high_ms": 0.41}
TIED = {"latency_ms": 0.99, "latency_ci_low_ms": 0.8, "latency_ci_high_ms": 1.2}


@pytest.mark.parametrize(
    ("base", "other", "text"),
    [
        ({}, GRAPH, "launch-bound: 15 launches become CUDA graphs"),
        (
            {},
            {**GRAPH, "kernels": 1, "gpu_busy_ms": 0.1},
            "launch-bound: 15 launches become CUDA graphs, 15 kernels become 1, GPU time −50 %",
        ),
        (
            {"bound": "gpu", "gpu_busy_ms": 0.6},
            {**GRAPH, "gpu_busy_ms": 0.6},
            "the GPU is idle for 40 % of each call: 15 launches become CUDA graphs",
        ),
        (
            {"bound": "gpu", "gpu_busy_ms": 0.99},
            {"kernels": 5, "graph_pool_bytes": None, "gpu_busy_ms": 0.7},
            "GPU-bound: 15 kernels become 5, GPU time −29 %",
        ),
        ({"bound": "gpu", "gpu_busy_ms": 0.98}, TIED, "GPU-bound"),
        ({"bound": None}, GRAPH, ""),
        ({"gpu_busy_ms": None}, GRAPH, ""),
    ],
)
def test_the_reason_names_the_bottleneck_and_what_the_mode_changes(base, other, text):
    rows = [make.row(**{**EAGER, **base}), make.row(mode="cuda-graph", **{**FASTER, **other})]
    row, *_ = speedup_table(label_rows(rows)).rows
    assert reasons.reason(row) == text


def test_one_sentence_says_where_each_mode_wins_and_why():
    rows = [make.row(bs=bs, **EAGER) for bs in (1, 8, 64)]
    for bs, value in ((1, 2.5), (64, 2.0)):
        rows.append(
            make.row(
                bs=bs,
                mode="cuda-graph",
                speedup=value,
                **FASTER,
                kernels=16,
            )
        )
    rows.append(
        make.row(
            bs=8,
            mode="cuda-graph",
            latency_ms=1.0,
            kernels=15,
        )
    )
    assert reasons.sentence(speedup_table(label_rows(rows)).rows) == (
        "latency at bs 1, 64: cuda-graph; latency at bs 8: tie of eager, cuda-graph."
        " At bs 1, launch-bound: 15 launches become CUDA graphs."
    )


def test_three_modes_that_tie_are_listed():
    rows = [make.row(**{**EAGER, "bound": None})]
    rows += [make.row(mode=mode, latency_ms=1.0) for mode in ("default", "cuda-graph")]
    sentence = reasons.sentence(speedup_table(label_rows(rows)).rows)
    assert sentence == "latency at bs 1: tie of eager, default, cuda-graph."
