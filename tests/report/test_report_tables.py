"""The tables of `show`: exact texts, what is best, rows that never merge, and why a cell takes its
time."""

import csv
import io
import json
import re

import pytest
import synthetic as make
from omegaconf import OmegaConf
from synthetic import label_rows

from effbench.errors import UsageError
from effbench.labels import mode_order, row_names
from effbench.metrics import METRICS, ratio_text
from effbench.report import tables
from effbench.report.bottlenecks import NOT_PROFILED, bottleneck_table
from effbench.report.tables import (
    NO_INTERVAL,
    ONE_COMPILATION,
    SOME_INTERVALS,
    SPEEDUPS,
)
from effbench.terminal import Console


def speedup_table(rows, *settings, **more):
    return tables.speedup_table(label_rows(rows), *settings, **more)


def with_interval(low, high, **more):
    return make.row(
        mode="default", speedup_ci_low=low, speedup_ci_high=high, **{"speedup": 1.1, **more}
    )


def period_speedup(value, low, high):
    return {"period_speedup": value, "period_speedup_ci_low": low, "period_speedup_ci_high": high}


PAIR = [
    make.row(latency_ms=0.123456),
    make.row(mode="cuda-graph", speedup=2.31, speedup_ci_low=2.25, speedup_ci_high=2.38),
    with_interval(0.97, 1.08, speedup=1.02),
    make.failed("mlp", 1, "max-autotune", "oom", "out of memory"),
]


def test_texts_order_and_best():
    table = speedup_table(PAIR)
    assert table.modes == ["eager", "default", "max-autotune", "cuda-graph"]
    (row,) = table.rows
    cells = row.cells
    texts = [("0.123 ms", ""), ("1.02× n.s.", "0.97–1.08"), ("oom", ""), ("2.31×", "2.25–2.38")]
    assert [(it.text, it.interval) for it in cells.values()] == texts and row.labels == {
        "model": "mlp",
        "bs": 1,
    }
    assert [mode for mode, entry in cells.items() if entry.best] == [row.winner] == ["cuda-graph"]
    assert [entry.tone for entry in cells.values()] == ["", "unsure", "status", "best"]


def test_a_failure_is_never_best_and_the_baseline_can_be():
    broken = make.row(mode="cuda-graph", speedup=9.0, status="degraded", reason="fell back")
    cells = (
        speedup_table([make.row(), with_interval(0.7, 0.9, latency_ms=0.16, speedup=0.8), broken])
        .rows[0]
        .cells
    )
    assert cells["eager"].best and not cells["default"].best and not cells["cuda-graph"].best
    assert cells["cuda-graph"].text == "degraded"


MARKS = {"includes 1", "one trial: no interval", "unclear"}


@pytest.mark.parametrize(
    ("low", "high", "significant", "mark"),
    [
        (1.0, 1.2, False, "includes 1"),
        (0.9, 1.0, False, "includes 1"),
        (1.01, 1.2, True, "low–high"),
        (None, None, None, "one trial: no interval"),
        (0.01, 90.0, False, "unclear"),
    ],
)
def test_significance_and_the_legend(low, high, significant, mark):
    table = speedup_table([make.row(), with_interval(low, high)])
    entry = table.rows[0].cells["default"]
    legend = " · ".join(table.legend())
    assert entry.significant is significant and mark in legend
    assert entry.text.endswith("n.s.") is (mark == "includes 1")
    assert not any(other in legend for other in MARKS - {mark})


def test_the_legend_omits_what_stands_above():
    table = speedup_table([make.row(), with_interval(None, None)])
    assert NO_INTERVAL in table.legend()
    assert NO_INTERVAL not in table.legend(above=f"All: {NO_INTERVAL.upper()}.")


def test_modes_without_a_throughput_do_not_win_it():
    arrivals = [make.row(mode=mode, throughput_per_s=None) for mode in ("eager", "cuda-graph")]
    assert [row.best for row in speedup_table(arrivals, "throughput_per_s").rows] == [[]]
    measured = [arrivals[0], make.row(mode="cuda-graph"), make.row(mode="default")]
    assert [row.best for row in speedup_table(measured, "throughput_per_s").rows] == [
        ["cuda-graph"]
    ]


STOPPED = make.row(mode="cuda-graph", speedup_ci_low=None, speedup_ci_high=None)


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([make.row(), with_interval(1.0, 1.2), STOPPED], SOME_INTERVALS),
        ([make.row(), STOPPED], NO_INTERVAL),
    ],
)
def test_modes_that_stopped_after_one_round(rows, note):
    assert speedup_table(rows).notes() == [note]


def test_only_a_mode_that_is_significantly_faster_than_every_other_is_the_best():
    (one_trial, *_) = speedup_table(make.cpu_quick()).rows
    entry = one_trial.cells["default"]
    assert (entry.text, entry.low, entry.significant, one_trial.winner) == (
        "1.30×",
        None,
        None,
        None,
    )
    wide = {
        "latency_ms": 0.0075,
        "latency_ci_low_ms": 0.0001,
        "latency_ci_high_ms": 0.5,
        "speedup": 16.7,
    }
    unsure, sure = with_interval(0.2, 900.0, **wide), make.row(mode="cuda-graph")
    table = speedup_table([make.row(), unsure, sure])
    assert table.rows[0].winner is None and not any(entry.best for entry in table.entries)
    assert (table.rows[0].leader, table.rows[0].tied) == ("default", ["eager", "cuda-graph"])
    assert (table.rows[0].cells["default"].text, table.rows[0].cells["default"].value) == (
        "unclear",
        16.7,
    )
    assert any("1 of 1 rows have no ★" in text for text in table.legend())
    assert speedup_table([make.row(), sure]).rows[0].cells["cuda-graph"].best


def test_latency_and_period_have_their_own_rows_winners_and_ties():
    def graph(mode, latency_ms, **more):
        return make.row(mode=mode, latency_ms=latency_ms, speedup=0.1 / latency_ms, **more)

    base = {
        "latency_ms": 0.1,
        "period_ms": 0.08,
        "period_ci_low_ms": 0.079,
        "period_ci_high_ms": 0.081,
    }
    tied = {
        "period_ms": 0.04,
        "period_ci_low_ms": 0.038,
        "period_ci_high_ms": 0.042,
    } | period_speedup(2.0, 1.9, 2.1)
    rows = [
        make.row(**base, **period_speedup(1.0, 1.0, 1.0)),
        graph("cuda-graph", 0.05, **tied),
        graph("default", 0.08, compilations=1, **tied),
        make.row(bs=8),
        make.row(bs=8, mode="default"),
    ]
    table = speedup_table(rows, None)
    assert [(row.labels["bs"], row.quantity, ", ".join(row.best)) for row in table.rows] == [
        (1, "latency", "cuda-graph"),
        (1, "period", "default, cuda-graph"),
        (8, "latency", "default"),
    ]
    assert [entry.text for entry in table.rows[1].cells.values()] == ["0.0800 ms", "2.00×", "2.00×"]
    assert table.notes() == [ONE_COMPILATION]
    assert (
        table.long().rows[2]["period_speedup"].text == "2.00×" and table.long().rows[3]["bs"] == 8
    )
    assert [line["metric"] for line in csv.DictReader(io.StringIO(table.render("csv")))][2:4] == [
        *SPEEDUPS
    ]
    assert speedup_table(rows[:2], "period_speedup").metrics == ["period_speedup"]
    # a mode whose speedup is not significant cannot win, even if its latency differs from the
    # baseline's
    unsure = graph("default", 0.08) | {"speedup_ci_low": 0.99}
    (row,) = speedup_table([make.row(latency_ms=0.1), unsure]).rows
    assert (row.winner, row.best) == (None, ["default", "eager"])


def test_a_row_names_some_of_many_tied_modes_and_its_record_all():
    modes = [with_interval(1.0, 1.2) | {"mode": f"mode-{n:02d}"} for n in range(60)]
    table = speedup_table([make.row(), *modes])
    (row,) = table.rows
    assert (
        table.wide().rows[0]["its best"]
        == f"tie: {', '.join(row.best[:6])} and {len(row.best) - 6} more"
    )
    assert len(row.best) >= 60 and json.loads(table.render("json"))["rows"][0]["best"] == row.best


@pytest.mark.parametrize("modes", [make.MODES, make.MODES[:3]])
def test_both_speedups_of_seven_modes_fit_a_terminal_of_100_columns(modes):
    slower, faster = period_speedup(0.84, 0.7, 1.0), period_speedup(14.5, 12.3, 15.6)
    rows = []
    for mode in modes:
        period = slower if mode == "default" else faster
        rows += [make.row(model, 64, mode) | period for model in ("attention", "mlp")]
    console = Console(file=io.StringIO(), width=100)
    console.print(console.fitted(speedup_table(rows).wide(best=False)))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    words = [re.sub("[│ ]+", " ", line).split() for line in lines]
    latency = [row[:2] for row in words if "latency" in row]
    period = [row for row in words if "period" in row]
    assert latency == [["attention", "64"], ["mlp", "64"]]
    assert [row[0] for row in period] == ["period"] * 2 and "14.50×" in period[0]


def test_no_baseline_not_run_and_another_baseline():
    rows = [
        make.failed("mlp", 1, "eager", "timeout", "late"),
        make.row(mode="default", speedup=None),
        make.row(bs=8),
    ]
    first, period, second = speedup_table(rows).rows
    assert (
        first.cells["default"].text == "0.0962 ms"
        and "eager has no ok result" in first.cells["default"].reason
    )
    assert (period.quantity, period.cells["eager"].text, period.cells["default"].text) == (
        "period",
        "timeout",
        "0.0769 ms",
    )
    assert second.cells["default"].text == "not run" and second.cells["default"].status is None
    rows = [make.row(speedup=0.5), make.row(mode="default", latency_ms=2.0, speedup=1.0)]
    cells = speedup_table(rows, baseline_mode="default").rows[0].cells
    assert (cells["default"].text, cells["default"].baseline, cells["eager"].baseline) == (
        "2.00 ms",
        True,
        False,
    )


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("latency_ms", 0.99996, "1.00 ms"),
        ("latency_ms", 9.996, "10.0 ms"),
        ("latency_ms", 99.96, "100 ms"),
        ("latency_ms", 0.1, "0.100 ms"),
        ("latency_ms", 0.12345, "0.123 ms"),
        ("speedup", 0.00133, "0.0013×"),
        ("speedup", 0.0899, "0.090×"),
        ("speedup", 0.0994, "0.099×"),
        ("speedup", 0.0999, "0.10×"),
        ("speedup", 0.894, "0.89×"),
    ],
)
def test_numbers_that_round_up_have_three_digits_too_and_small_speedups_two(metric, value, text):
    assert METRICS[metric].format(value) == text


def test_ratios_have_three_decimals_unless_a_bound_is_large():
    assert ratio_text(77.61, 4.456, 999) == "77.610 (4.456–999.000)"
    assert ratio_text(77.61, 4.456, 1350.2) == "77.6 (4.46–1350)"


@pytest.mark.parametrize(
    ("metric", "text", "best"),
    [
        ("latency_ms", "0.500 ms", "default"),
        ("peak_reserved_bytes", "42.5 MiB", None),
        ("throughput_per_s", "2500 samples/s", "default"),
        ("flops", "1e+09", None),
        ("graph_breaks", "0", None),
    ],
)
def test_other_metrics(metric, text, best):
    rows = [make.row(latency_ms=1.0), make.row(mode="default", latency_ms=0.5)]
    (row,) = speedup_table(rows, metric).rows
    assert (row.cells["default"].text, row.winner) == (text, best)


def test_a_count_explains_a_status():
    degraded = make.failed("mlp", 1, "default", "degraded", "limit", recompiles=8)
    (row,) = speedup_table([degraded], "recompiles").rows
    assert (row.cells["default"].text, row.cells["default"].value) == ("8 (degraded)", None)


def test_an_unknown_metric_is_refused():
    with pytest.raises(UsageError, match="latency_ms"):
        speedup_table([], "speed")


def with_params(change, **more):
    item = make.row(**more)
    params = OmegaConf.create(item["params"])
    for path, value in change.items():
        OmegaConf.update(params, path, value, force_add=True)
    return item | {"params": OmegaConf.to_container(params)}


def test_order_of_rows_and_modes():
    rows = [make.row("zebra", 64), make.row("zebra", 8), make.row("ant", 1), make.row("zebra", 128)]
    labels = [tuple(row.labels.values()) for row in speedup_table(rows).rows]
    assert labels == [("zebra", 8), ("zebra", 64), ("zebra", 128), ("ant", 1)]
    rows = [make.row(mode=mode) for mode in ("compile+graph", "zz", "aa", *make.MODES[:-1])]
    assert speedup_table(rows).modes == [*make.MODES, "aa", "zz"]


@pytest.mark.parametrize(
    "column",
    ["dtype", "phase", "torch_version", "python", "environment_id", "sweep_id", "cell_key"],
)
def test_a_column_that_varies_becomes_a_label(column):
    rows = []
    for value in ("a", "b"):
        rows += [make.row(mode=mode) | {column: value} for mode in ("eager", "default")]
    table = speedup_table(rows)
    labels = [row.labels for row in table.rows]
    assert labels == [{"model": "mlp", column: value, "bs": 1} for value in ("a", "b")]
    assert all(entry.is_ok for entry in table.entries)


def test_a_parameter_that_was_swept_becomes_a_label():
    rows = [
        with_params({"model.module.width": width}, mode=mode)
        for width in (256, 512)
        for mode in ("eager", "default")
    ]
    table = speedup_table([*rows, make.row("resnet50")])
    assert [row.labels["model.module.width"] for row in table.rows] == ["256", "512", "512"]
    assert [row.cells["default"].status for row in table.rows] == ["ok", "ok", None]
    other = with_params({"env.FLAG": "1"}, mode="default")
    assert len(speedup_table([make.row(), other]).rows) == 1, (
        "a variable that follows the mode splits no row"
    )
    wide = with_params({"model.module.width": 1024}, mode="default")
    assert [row.labels["model.module.width"] for row in speedup_table([make.row(), wide]).rows] == [
        "512",
        "1024",
    ]
    table = speedup_table(
        [make.row(), *(with_params({"mode.full": full}, mode="default") for full in (False, True))]
    )
    assert (table.modes, len(table.rows)) == (
        ["eager", "default (full=false)", "default (full=true)"],
        1,
    )


def test_another_phase_than_inference_is_always_a_label():
    training = speedup_table(
        [make.row(phase="training"), make.row(mode="default", phase="training")]
    )
    assert [row.labels for row in training.rows] == [{"model": "mlp", "phase": "training", "bs": 1}]
    request = {"generate.prompt": 8, "generate.new_tokens": 16}
    rows = [with_params(request, bs=bs, phase="generate") for bs in (1, 2)]
    labels = {
        "model": "mlp",
        "phase": "generate",
        **{name: str(number) for name, number in request.items()},
    }
    assert [row.labels for row in speedup_table(rows).rows] == [
        labels | {"bs": bs} for bs in (1, 2)
    ]
    assert (
        row_names(make.results(rows))[0]
        == "mlp phase=generate prompt=8 new_tokens=16 bs=1 eager bfloat16"
    )
    cache = {"generate.prompt": 4, "model.module.seq": 20}  # as long as prompt and new tokens
    swept = speedup_table([rows[0], with_params({**request, **cache}, phase="generate")]).rows
    assert [sorted(row.labels) for row in swept] == [sorted([*labels, "bs"])] * 2


def test_formats():
    heads, _, first, second = (
        speedup_table([*PAIR, make.row("a|b<i>", 2)]).render("markdown").splitlines()
    )
    assert heads == "| model | bs | eager | default | max-autotune | cuda-graph | best |"
    default, best = "1.02× n.s. (0.97–1.08, 0.0962 ms)", "**2.31× (2.25–2.38, 0.0500 ms)**"
    assert first == f"| mlp | 1 | 0.123 ms | {default} | oom | {best} | cuda-graph |"
    assert "<i>" not in second and second.count("|") == 8 and "**" not in second, (
        "one alone is the best of nothing"
    )
    *_, failed, graph = csv.DictReader(io.StringIO(speedup_table(PAIR).render("csv")))
    assert (failed["reason"], failed["value"]) == ("out of memory", "")
    assert [graph[name] for name in ("value", "low", "high", "best")] == [
        "2.31",
        "2.25",
        "2.38",
        "true",
    ]
    (row,) = json.loads(speedup_table(PAIR).render("json"))["rows"]
    assert (
        row["labels"] == {"model": "mlp", "bs": 1} and row["cells"]["cuda-graph"]["value"] == 2.31
    )


def test_every_cell_has_a_bottleneck_or_a_reason_why_it_is_unknown():
    profiled = {
        "latency_ms": 0.15,
        "period_ms": 0.143,
        "gpu_busy_ms": 0.068,
        "gpu_idle_fraction": 0.524,
        "kernels": 15,
    }
    ratio = period_speedup(1.9, 0.9, 4.1)
    known = make.row(bs=8, enqueue_ms=0.137, bound="launch", **profiled, **ratio)
    unknown = make.row(
        bs=8, mode="cuda-graph", gpu_busy_ms=None, gpu_idle_fraction=None, period_ms=None
    )
    table = bottleneck_table(
        label_rows([known, make.failed("mlp", 8, "default", "error", "it broke"), unknown])
    )
    assert [row["bound"].text for row in table.rows] == ["launch", "—", "—"]
    assert table.rows[0]["why"].startswith("the GPU is idle 52 % of the time: 15 kernels")
    assert [row["why"] for row in table.rows[1:]] == ["error: it broke", NOT_PROFILED]
    texts = [
        [row[name].line for name in ("latency_ms", "period_ms", "gpu_busy_ms")]
        for row in table.rows[:2]
    ]
    assert texts == [
        ["0.150 ms (1.00×)", "0.143 ms (1.90× n.s.)", "0.0680 ms"],
        ["—"] * 3,
    ], "no figure of what failed"
    data = json.loads(table.render("json"))
    assert (data[0]["gpu_busy_ms"], data[0]["kernels"], data[1]["status"]) == (0.068, 15, "error")


def test_modes_with_swept_numbers_are_in_the_order_of_the_numbers():
    names = [f"own {value}" for value in ("0", "1e-05", "0.01", "2", "16")]
    own = [(name, "own") for name in reversed(names)]
    assert mode_order([*own, ("cuda-graph", "cuda-graph"), ("eager", "eager")]) == [
        "eager",
        "cuda-graph",
        *names,
    ]
    assert mode_order((name, name) for name in ("p10", "p2", "p02")) == ["p02", "p2", "p10"]
