"""Scores of a mode over all cells, why a mode wins, and both in the report as Markdown."""

import math
from statistics import geometric_mean, median

import pytest
import synthetic as make
from browsing import EVIL, device_sweep, site
from made_sweeps import a_result
from synthetic import label_rows

from effbench.report import markdown, reasons
from effbench.report.summary import (
    by_mode,
    headline,
    modes_table,
    over_cells,
    score_interval,
    score_text,
)
from effbench.report.tables import speedup_table
from effbench.stats.intervals import t_quantile


def default(*rows):
    """The summary of the mode `default`, of which the rows have these columns."""
    rows = [make.row(bs=number + 1, mode="default", **row) for number, row in enumerate(rows)]
    (found,) = by_mode(label_rows(rows))
    return found


def speedup(value, low=None, high=None, **more):
    return {"speedup": value, "speedup_ci_low": low, "speedup_ci_high": high, **more}


def test_scores_of_a_mode():
    found = default(
        speedup(2.0, 1.9, 2.1), speedup(0.5, 0.45, 0.55), speedup(None, status="oom", reason="full")
    )
    score = found.scores["speedup"]
    assert score.value == pytest.approx(1.0) and 0.9 < score.low < 1.0 < score.high < 1.1
    assert (score.passed, score.total, score.averaged, found.not_ok) == (2, 3, 2, "1 oom")


@pytest.mark.parametrize(
    ("rows", "text", "interval"),
    [
        ([speedup(2.0), speedup(8.0)], "4.00×", ""),
        ([speedup(None, status="error")], "—", ""),
        ([speedup(1.0, 1.0, 1.0)] * 2, "1.00×", ""),
        ([speedup(2.0, 1.9, 2.1)] * 2 + [speedup(None)], "2.00×", "1.94–2.06, of 2"),
        ([speedup(0.00133, 0.0012, 0.00147)], "0.0013×", "0.0012–0.0015"),
        ([speedup(136.0, 0.6, 29_540.0, trials=2)], "unclear", "0.61–30,176"),
    ],
)
def test_the_text_of_a_score(rows, text, interval):
    score = default(*rows).scores["speedup"]
    assert (score_text(score), score_interval(score)) == (text, interval)


@pytest.mark.parametrize(("low", "high", "clear"), [(0.9, 3.7, False), (1.1, 4.3, True)])
def test_a_wide_interval_is_not_clear(low, high, clear):
    assert default(speedup(2.0, low, high)).scores["speedup"].clear is clear


def test_the_interval_of_a_score_is_that_of_cells_which_are_known_equally_well_or_not():
    def bounds(*rows):
        score = default(*rows).scores["speedup"]
        return pytest.approx((score.value, score.low, score.high))

    # four cells known equally well: half the standard error, and a smaller quantile
    half = math.log(1.1) / 2 * t_quantile(20) / t_quantile(5)
    assert bounds(*[speedup(2.0, 2.0 / 1.1, 2.0 * 1.1)] * 4) == (
        2.0,
        2 * math.exp(-half),
        2 * math.exp(half),
    )
    assert bounds(speedup(1.0, 1.0, 1.0), speedup(4.0, 3.0, 16 / 3)) == (
        2.0,
        math.sqrt(3),
        math.sqrt(16 / 3),
    )


@pytest.mark.parametrize(
    ("low", "high", "trials"),
    [(None, None, 5), (1.5, 2.5, 1), (0, 9, 5)],
)
def test_a_score_has_no_interval_if_a_cell_has_none(low, high, trials):
    score = default(speedup(2.0, 1.5, 2.5), speedup(2.0, low, high, trials=trials)).scores[
        "speedup"
    ]
    assert (score.value, score.low, score.high) == (pytest.approx(2.0), None, None)


def test_latency_and_period_each_have_a_mean_and_a_winner():
    fast = {"period_speedup": 3.0, "period_speedup_ci_low": 2.9, "period_speedup_ci_high": 3.1}
    fast |= {"period_ms": 0.03, "period_ci_low_ms": 0.029, "period_ci_high_ms": 0.031}
    rows = label_rows(
        [make.row(period_speedup=1.0), make.row(mode="default", latency_ms=0.2, **fast)]
    )
    modes = by_mode(rows)
    assert (
        headline(speedup_table(rows), modes)
        == "Latency: eager wins 1 of 1 points (model × batch size); its mean speedup is 1.00×. "
        "Period: default wins 1 of 1 points; its mean speedup is 3.00×."
    )
    rows = label_rows(
        [
            make.row(),
            make.row(mode="default", latency_ms=0.2),
            make.row(bs=8),
            make.row(bs=8, mode="default", latency_ms=0.01),
        ]
    )
    assert headline(speedup_table(rows), by_mode(rows)).startswith(
        "Latency: default wins 1 of 2 points (model × batch size), as many as eager;"
    )
    rows += label_rows(
        [make.row(bs=64), make.row(bs=64, mode="default", latency_ms=make.row(bs=64)["latency_ms"])]
    )
    assert "wins 1 of 3 points (model × batch size), as many as eager, 1 is a tie;" in headline(
        speedup_table(rows), by_mode(rows)
    )
    assert [column.key for column in modes_table(modes).columns][1:3] == [
        "speedup",
        "period_speedup",
    ]
    assert modes_table(modes).rows[1]["period_speedup"].text == "3.00×"
    assert "period_speedup" not in [
        column.key for column in modes_table(by_mode(label_rows(make.cpu_quick()))).columns
    ]


@pytest.mark.parametrize(
    ("values", "middle", "value", "note"),
    [
        ([0.8], geometric_mean, 0.8, "one cell"),
        ([1.0] * 9, geometric_mean, 1.0, "the same in all 9"),
        # rounded bytes
        ([0.8333333330, 0.8333333328], geometric_mean, 0.833333333, "the same in all 2"),
        ([0.5, 1.0, None, math.nan], geometric_mean, math.sqrt(0.5), "range 0.50 to 1.00"),
        ([2.0, 3.0, 9.0, 4.0, 1.0], median, 3.0, "range 1.00 to 9.00"),
    ],
)
def test_figures_over_cells_have_their_range(values, middle, value, note):
    shown = over_cells(values, middle, "{:.2f}".format)
    assert (shown.value, shown.range) == (pytest.approx(value), note)


@pytest.mark.parametrize("values", [[None, math.nan, math.inf, 0.0, -1.0], []])
def test_no_figure_over_cells(values):
    assert over_cells(values, geometric_mean, str).value is None


EAGER = {
    "bound": "launch",
    "kernels": 15,
    "gpu_busy_ms": 0.2,
    "latency_ms": 1.0,
    "graph_pool_bytes": None,
}


def row_of(base, mode="compile+graph", **more):
    rows = [make.row(**{**EAGER, **base}), make.row(mode=mode, **more)]
    return speedup_table(label_rows(rows)).rows[0]


GRAPH = {"kernels": 16, "graph_pool_bytes": 1, "gpu_busy_ms": 0.2}
FASTER = {"latency_ms": 0.4, "latency_ci_low_ms": 0.39, "latency_ci_high_ms": 0.41}


@pytest.mark.parametrize(
    ("base", "mode", "more", "text"),
    [
        ({}, "cuda-graph", GRAPH, "launch-bound: 15 launches become one graph"),
        ({}, "cuda-graph", GRAPH | {"graph_breaks": 2}, "launch-bound: 15 launches become graphs"),
        (
            {},
            "cuda-graph",
            GRAPH | {"kernels": 9, "gpu_busy_ms": 0.1},
            "launch-bound: 15 launches become one graph of 9 kernels, GPU time −50 %",
        ),
        (
            {"bound": "memory", "gpu_busy_ms": 0.6},
            "cuda-graph",
            GRAPH | {"gpu_busy_ms": 0.6},
            "the GPU is idle for 40 % of each call: 15 launches become one graph",
        ),
        (
            {"bound": "compute", "gpu_busy_ms": 0.99},
            "default",
            {"kernels": 5, "graph_pool_bytes": None, "gpu_busy_ms": 0.7},
            "compute-bound: 15 kernels become 5, GPU time −29 %",
        ),
        ({"bound": None}, "cuda-graph", GRAPH, ""),
        ({"gpu_busy_ms": None}, "cuda-graph", GRAPH, ""),
    ],
)
def test_the_reason_names_the_bottleneck_and_what_the_mode_changes(base, mode, more, text):
    assert reasons.reason(row_of(base, mode, **FASTER, **more)) == text


def test_where_no_mode_beats_the_baseline_the_reason_says_what_is_left_to_gain():
    base = {"bound": "compute", "gpu_busy_ms": 0.98}
    tied = {"latency_ms": 0.99, "latency_ci_low_ms": 0.8, "latency_ci_high_ms": 1.2}
    assert (
        reasons.reason(row_of(base, **tied))
        == "compute-bound: the GPU is busy for 98 % of each call"
    )


def sentence(rows):
    return reasons.sentence(speedup_table(label_rows(rows)).rows)


def test_one_sentence_says_where_each_mode_wins():
    fast = {"latency_ms": 0.4, "latency_ci_low_ms": 0.39, "latency_ci_high_ms": 0.41, "kernels": 9}
    rows = [make.row(bs=bs, **EAGER) for bs in (1, 8, 64)]
    rows += [
        make.row(bs=bs, mode="cuda-graph", speedup=speedup, **fast)
        for bs, speedup in ((1, 2.5), (64, 2.0))
    ]
    rows += [make.row(bs=8, mode="cuda-graph", latency_ms=1.0, kernels=15)]
    assert sentence(rows).startswith(
        "at bs 1 and 64 cuda-graph wins latency (2.00–2.50×); at bs 8 eager and cuda-graph tie in"
        " latency. At bs 1, launch-bound: 15 launches become one graph"
    )
    tied = {
        "bs": 4,
        "latency_ms": 0.5,
        "latency_ci_low_ms": 0.3,
        "latency_ci_high_ms": 0.8,
        "speedup": 2.0,
    }
    rows = [
        make.row(**{**EAGER, "bs": 4}),
        *(make.row(mode=mode, **tied) for mode in ("cuda-graph", "default")),
    ]
    assert sentence(rows).startswith("default and cuda-graph tie in latency (2.00×). Launch-bound")
    period = {"period_speedup": 3.0, "period_ci_low_ms": 0.1, "period_ci_high_ms": 0.11}
    rows[2] |= period | {"period_ms": 0.105}
    tied_and_won = (
        "default and cuda-graph tie in latency (2.00×), default wins period (3.00×). Launch-bound"
    )
    assert sentence(rows).startswith(tied_and_won)
    rows[2] |= {"latency_ms": 0.1, "latency_ci_low_ms": 0.09, "latency_ci_high_ms": 0.11}
    assert sentence(rows).startswith(
        "default wins latency and period (2.00× / 3.00×). Launch-bound"
    )
    rows = [make.failed("mlp", 1, "eager", "oom", "full"), make.row(**{**EAGER, "bs": 8})]
    for bs, speedup in ((1, None), (8, 2.0)):
        rows += [
            make.row(
                bs=bs,
                mode="default",
                latency_ms=0.9,
                latency_ci_low_ms=0.88,
                latency_ci_high_ms=0.92,
            ),
            make.row(bs=bs, mode="cuda-graph", speedup=speedup, **fast),
        ]
    assert sentence(rows).startswith(
        "cuda-graph wins latency (2.00× at bs 8). At bs 8, launch-bound"
    )
    once = [make.row(mode=mode, trials=1, **period) for mode in ("eager", "default")]
    assert sentence(once) == "one trial: no interval over processes, so no mode wins."
    assert "fewer than two modes" in sentence([make.row()])


def test_one_of_many_and_a_part_are_named_as_they_are():
    many = [speedup(2.0)] * 249 + [speedup(None, status="oom", reason="full")]
    (row,) = modes_table([default(*many)]).rows
    assert (row["pass_rate"].text, row["pass_rate"].sub) == ("99 %", "249 of 250")
    fused = {"kernels": 1, "graph_pool_bytes": 8, "phase": "inference", "graph_breaks": 0}
    assert reasons.effects(a_result(kernels=15), a_result(**fused)) == [
        "15 launches become one graph of 1 kernel"
    ]
    text = markdown.report(
        [device_sweep([make.row(mode=mode) for mode in ("default", "cuda-graph")])]
    )
    assert "Speedups over eager, which was not run: all columns show times" in text
    apart = [
        make.row(),
        make.failed("mlp", 1, "default", "oom", "full"),
        make.failed("mlp", 8, "eager", "oom", "full"),
        make.row(bs=8, mode="default"),
    ]
    assert sentence(apart) == "fewer than two modes are ok at each point, so no mode wins."


def test_the_answer_modes_speedups_and_failures():
    text = markdown.report([device_sweep(make.sample())])
    assert text.startswith("## h200 standard on NVIDIA H200\n")
    assert "Latency: compile+graph wins 6 of 9 points (model × batch size), 3 are ties" in text
    assert "Brackets hold the 95 % interval" in text
    assert "58 of 63 results ok; 1 incorrect, 1 timeout, 1 oom, 1 unsupported, 1 degraded." in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    (line,) = [line for line in rows if line.startswith("| max-autotune | 1.")]
    assert (
        "| 89 % (8 of 9) | 1 oom | +20 % (the same in all 8) | 48.0 s (the same in all 8) |" in line
    )
    assert (
        "- oom: transformer bs 64 max-autotune: CUDA out of memory: tried to allocate 12.5 GiB"
        in text
    )
    assert "nan" not in text.lower().split() and "None" not in text


def test_means_over_other_points_are_named(tmp_path):
    rows = [
        make.row(bs=bs, mode=mode)
        for bs in (1, 8, 64)
        for mode in ("eager", "default", "cuda-graph")
    ]
    assert "do not compare" not in markdown.report([device_sweep(rows)]).lower()
    some = device_sweep([row for row in rows if (row["mode"], row["bs"]) != ("cuda-graph", 64)])
    note = "Do not compare the mean of a mode that was not run at every point: cuda-graph (2 of 3)."
    assert note in markdown.report([some]) and note in (
        site(tmp_path, some) / "index.html"
    ).read_text(encoding="utf-8")
    without_eager = [row for row in rows if (row["mode"], row["bs"]) != ("eager", 64)]
    assert "Do not" not in markdown.report([device_sweep(without_eager)]), (
        "eager's mean is 1 at any points"
    )


def test_nothing_measured():
    assert "no result" in markdown.report([])
    text = markdown.report([device_sweep([make.row("mlp", 1, "eager")])])
    assert "whose column shows its times.\n" in text, "one mode needs no legend"
    assert "Brackets" not in text, "a single cell has no bounds"
    text = markdown.report([device_sweep([make.failed("mlp", 1, "eager", "error", "boom")])])
    assert "0 of 1 results ok; 1 error." in text and "- error: mlp bs 1 eager: boom" in text


def test_names_begin_no_markdown():
    rows = [make.row(name, 1, mode) for name in EVIL for mode in ("eager", "default")]
    rows.append(make.failed(EVIL[0], 8, "default", "error", f"{EVIL[1]}\n# heading\n| cell"))
    text = markdown.report(
        [device_sweep(rows, {"name": EVIL[0], "label": EVIL[1]}, hardware=EVIL[2])]
    )
    assert not any(tag in text for tag in ("<img", "<script", "<svg", "\n# heading"))
    assert {line.count(" | ") for line in text.splitlines() if line.startswith("|")} <= {3, 4, 5}
