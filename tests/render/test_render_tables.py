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

from effbench.cli.show import about
from effbench.core.labels import mode_order, row_names
from effbench.core.terminal import Console
from effbench.render import tables
from effbench.render.bottlenecks import NOT_PROFILED, bottleneck_table
from effbench.render.tables import ONE_COMPILATION


def speedup_table(rows, *settings, **more):
    return tables.speedup_table(label_rows(rows), *settings, **more)


def lines_of(table):
    """The texts that people see, by row."""
    return [[column.shown(row).line for column in table.used] for row in table.rows]


def default(low, high, value=1.1, mode="default", **more):
    bounds = {"speedup_ci_low": low, "speedup_ci_high": high}
    return make.row(mode=mode, speedup=value, **bounds, **more)


def period_speedup(value, low, high):
    return {"period_speedup": value, "period_speedup_ci_low": low, "period_speedup_ci_high": high}


EAGER = make.row(latency_ms=0.123456)
GRAPH = make.row(
    mode="cuda-graph",
    speedup=2.31,
    speedup_ci_low=2.25,
    speedup_ci_high=2.38,
)
OOM = make.failed("mlp", 1, "max-autotune", "oom", "out of memory")
FOUR = [EAGER, GRAPH, default(0.97, 1.08, 1.02), OOM]


# --- figures ---


def test_modes_are_in_canonical_order_with_figures_times_and_the_winner():
    assert lines_of(speedup_table(FOUR).wide()) == [
        [
            "mlp",
            "1",
            "0.123 ms",
            "1.02× n.s. (0.97–1.08, 0.0962 ms)",
            "oom",
            "2.31× (2.25–2.38, 0.0500 ms)",
            "cuda-graph",
        ]
    ]


@pytest.mark.parametrize(
    ("low", "high", "significant", "sign"),
    [
        (1.0, 1.2, False, "includes 1"),
        (0.9, 1.0, False, "includes 1"),
        (1.01, 1.2, True, "low–high"),
        (None, None, None, ""),
    ],
)
def test_significance_and_the_legend(low, high, significant, sign):
    table = speedup_table([make.row(), default(low, high)])
    assert table.rows[0].cells["default"].significant is significant
    assert sign in " · ".join(table.legend())


@pytest.mark.parametrize(
    ("modes", "text"),
    [
        (("eager", "default"), "× against eager, whose column shows its times"),
        (("default",), "× against eager"),
    ],
)
def test_the_reference_mode_may_have_no_column(modes, text):
    """Pairs give speedups before a trial of eager."""
    rows = [make.row(mode=mode, speedup=2.0) for mode in modes]
    assert about(speedup_table(rows)) == [text]


def test_without_a_baseline_times_are_shown():
    eager = make.failed("mlp", 1, "eager", "timeout", "late")
    table = speedup_table([eager, make.row(mode="default", speedup=None)])
    assert lines_of(table.wide(best=False))[0][-2:] == ["timeout", "0.0962 ms"]
    assert "no ok baseline" in table.rows[0].cells["default"].reason


def test_a_mode_that_was_not_run_at_a_point():
    table = speedup_table([make.row(), make.row(mode="default"), make.row(bs=8)])
    assert lines_of(table.wide(best=False))[1] == ["mlp", "8", "0.160 ms", "not run"]


@pytest.mark.parametrize(
    ("metric", "text", "best"),
    [
        ("latency_ms", "0.500 ms", ["default"]),
        ("peak_reserved_bytes", "42.5 MiB", []),
        ("graph_breaks", "0", []),
    ],
)
def test_other_metrics(metric, text, best):
    rows = [make.row(latency_ms=1.0), make.row(mode="default", latency_ms=0.5)]
    (row,) = speedup_table(rows, metric).rows
    assert row.cells["default"].text == text
    assert [mode for mode, figure in row.cells.items() if figure.wins] == best


# --- winners ---


def test_modes_that_are_far_apart_do_not_tie_however_wide_an_interval_is():
    times = {"latency_ms": 0.0075, "latency_ci_low_ms": 0.0001, "latency_ci_high_ms": 0.5}
    unsure = default(0.2, 900.0, 16.7, **times)
    (row,) = speedup_table([make.row(), unsure, make.row(mode="cuda-graph")]).rows
    assert row.winners == []
    assert not any(figure.wins for figure in row.cells.values())
    assert row.cells["default"].text == "16.70× n.s."


@pytest.mark.parametrize(("latency_ms", "ties"), [(0.19, True), (0.21, False)])
def test_a_mode_that_is_not_significantly_faster_ties_up_to_a_factor(latency_ms, ties):
    bounds = {"latency_ci_low_ms": 0.01, "latency_ci_high_ms": 4.0}
    slower = make.row(mode="eager", latency_ms=latency_ms, **bounds)
    rows = [slower, make.row(mode="default", latency_ms=0.1)]
    (row,) = speedup_table(rows, "latency_ms").rows
    assert row.winners == (["default", "eager"] if ties else [])


def test_a_mode_whose_speedup_is_not_significant_does_not_win_by_its_time():
    unsure = default(0.99, 1.5, 1.25, latency_ms=0.08)
    (row,) = speedup_table([make.row(latency_ms=0.1), unsure]).rows
    assert row.winners == ["default", "eager"]


@pytest.mark.parametrize(
    ("trials", "winners"),
    [((3, 3), ["default"]), ((1, 3), ["default", "eager"]), ((3, 1), []), ((1, 1), [])],
)
def test_a_mode_with_a_single_trial_does_not_win(trials, winners):
    """Trials of eager, and of the faster mode."""
    intervals = [(0.089, 0.091), (0.049, 0.051)]
    rows = []
    for count, mode, (low, high) in zip(trials, ("eager", "default"), intervals, strict=True):
        bounds = {"latency_ci_low_ms": low, "latency_ci_high_ms": high}
        if count == 1:
            bounds = dict.fromkeys(bounds)
        rows.append(make.row(mode=mode, latency_ms=(low + high) / 2, trials=count, **bounds))
    (row,) = speedup_table(rows, "latency_ms").rows
    assert row.winners == winners


PERIOD = {"period_ms": 0.04, "period_ci_low_ms": 0.038, "period_ci_high_ms": 0.042}
TWICE = {**PERIOD, **period_speedup(2.0, 1.9, 2.1)}


def test_latency_and_period_have_their_own_rows_winners_and_ties():
    """One mode wins latency and two tie in period, which bs 8 does not have."""
    base = {"period_ms": 0.08, "period_ci_low_ms": 0.079, "period_ci_high_ms": 0.081}
    rows = [
        make.row(latency_ms=0.1, **base, **period_speedup(1.0, 1.0, 1.0)),
        make.row(mode="cuda-graph", latency_ms=0.05, speedup=2.0, **TWICE),
        make.row(mode="default", latency_ms=0.08, speedup=1.25, compilations=1, **TWICE),
        make.row(bs=8),
        make.row(bs=8, mode="default"),
    ]
    both = speedup_table(rows, None)
    assert [(row.labels["bs"], row.quantity, row.best_text) for row in both.rows] == [
        (1, "latency", "cuda-graph"),
        (1, "period", "tie: default, cuda-graph"),
        (8, "latency", "default"),
    ]
    texts = [figure.text for figure in both.rows[1].cells.values()]
    assert texts == ["0.0800 ms", "2.00×", "2.00×"]
    assert ONE_COMPILATION in both.legend()


def test_a_row_names_some_of_many_tied_modes():
    modes = [default(1.0, 1.2, mode=f"mode-{number}") for number in range(9)]
    (row,) = speedup_table([make.row(), *modes]).rows
    assert row.best_text == f"tie: {', '.join(row.winners[:6])} and 4 more"


def test_both_speedups_of_seven_modes_fit_a_terminal_of_100_columns():
    period = period_speedup(14.5, 12.3, 15.6)
    rows = [make.row("attention", 64, mode, **period) for mode in make.MODES]
    console = Console(file=io.StringIO(), width=100)
    speedup_table(rows).wide(best=False).print(console, lines=True)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert any(re.match(r"[│ ]*attention[│ ]+64[│ ]+latency", line) for line in lines)


# --- rows and their labels ---


def with_params(changes, **more):
    params = OmegaConf.create(make.row(**more)["params"])
    for path, value in changes.items():
        OmegaConf.update(params, path, value, force_add=True)
    return make.row(**more, params=OmegaConf.to_container(params))


def labels_of(rows):
    return [row.labels for row in speedup_table(rows).rows]


def test_rows_are_in_the_order_of_models_then_sizes():
    rows = [make.row("zebra", 64), make.row("zebra", 8), make.row("ant", 1), make.row("zebra", 128)]
    labels = [tuple(labels.values()) for labels in labels_of(rows)]
    assert labels == [("zebra", 8), ("zebra", 64), ("zebra", 128), ("ant", 1)]


def test_modes_are_in_canonical_order_then_by_the_numbers_in_their_names():
    names = [f"own {value}" for value in ("0", "1e-05", "0.01", "2", "16")]
    modes = [*((name, "own") for name in reversed(names)), ("zz", "zz"), ("eager", "eager")]
    assert mode_order(modes) == ["eager", *names, "zz"]


@pytest.mark.parametrize("column", ["dtype", "phase", "torch_version", "environment_id"])
def test_a_column_that_varies_becomes_a_label(column):
    rows = []
    for value in ("a", "b"):
        rows += [make.row(mode=mode, **{column: value}) for mode in ("eager", "default")]
    assert labels_of(rows) == [{"model": "mlp", column: value, "bs": 1} for value in ("a", "b")]


@pytest.mark.parametrize(
    ("changes", "widths"),
    [
        # swept for all modes, and of one mode only
        ([{"model.module.width": 256}, {"model.module.width": 512}], ["256", "512"]),
        ([{}, {"model.module.width": 1024}], ["512", "1024"]),
        # a variable that follows the mode splits no row
        ([{}, {"env.FLAG": "1"}], [None]),
    ],
)
def test_a_parameter_that_was_swept_becomes_a_label(changes, widths):
    modes = ("eager", "default")
    rows = [with_params(change, mode=mode) for change, mode in zip(changes, modes, strict=True)]
    assert [labels.get("model.module.width") for labels in labels_of(rows)] == widths


def test_a_swept_setting_of_a_mode_is_in_its_name():
    full = [with_params({"mode.full": full}, mode="default") for full in (False, True)]
    table = speedup_table([make.row(), *full])
    assert table.modes == ["eager", "default (full=false)", "default (full=true)"]


def test_another_phase_than_inference_is_always_a_label():
    assert labels_of([make.row(phase="training")]) == [
        {"model": "mlp", "phase": "training", "bs": 1}
    ]


def test_cells_without_parallel_are_labelled_none():
    rows = [make.row(), with_params({"parallel": "tp2"})]
    assert [labels["parallel"] for labels in labels_of(rows)] == ["none", "tp2"]


def test_parallel_is_always_a_label_if_several_devices_are_used():
    assert labels_of([with_params({"parallel": "tp2"})]) == [
        {"model": "mlp", "parallel": "tp2", "bs": 1}
    ]


def test_the_cache_of_a_cold_start_is_always_a_label():
    assert labels_of([with_params({"cache": "folder"}, phase="coldstart")]) == [
        {"model": "mlp", "phase": "coldstart", "cache": "folder", "bs": 1}
    ]


def test_a_generation_is_labelled_with_its_request_and_not_with_the_cache():
    request = {"generate.prompt": 8, "generate.new_tokens": 16}
    cache = {"generate.prompt": 4, "model.module.seq": 20}  # as long as prompt and new tokens
    rows = [
        with_params(request, phase="generate"),
        with_params({**request, **cache}, phase="generate"),
    ]
    assert [sorted(labels) for labels in labels_of(rows)] == [
        ["bs", "generate.new_tokens", "generate.prompt", "model", "phase"]
    ] * 2
    assert (
        row_names(make.results(rows))[0]
        == "mlp phase=generate prompt=8 new_tokens=16 bs=1 eager bfloat16"
    )


# --- formats ---


def test_markdown_is_escaped_and_a_mode_alone_is_best_of_nothing():
    *_, evil = speedup_table([*FOUR, make.row("a|b<i>", 2)]).render("markdown").splitlines()
    assert "<i>" not in evil
    assert evil.count("|") == 8
    assert "**" not in evil


def test_csv_and_json_have_exact_numbers():
    table = speedup_table(FOUR)
    *_, failed, graph = csv.DictReader(io.StringIO(table.render("csv")))
    assert failed["reason"] == "out of memory"
    assert failed["value"] == ""
    numbers = [graph[name] for name in ("value", "low", "high", "best")]
    assert numbers == ["2.31", "2.25", "2.38", "true"]
    *_, graph = json.loads(table.render("json"))
    assert graph["value"] == 2.31


# --- bottlenecks ---


def test_every_cell_has_a_bottleneck_or_a_reason_why_it_is_unknown():
    times = {"latency_ms": 0.15, "period_ms": 0.143, "gpu_busy_ms": 0.068}
    profile = {
        "gpu_idle_fraction": 0.524,
        "kernels": 15,
        "enqueue_ms": 0.137,
        "bound": "launch",
    }
    none = dict.fromkeys(("gpu_busy_ms", "gpu_idle_fraction", "period_ms"))
    rows = [
        make.row(bs=8, **times, **profile, **period_speedup(1.9, 0.9, 4.1)),
        make.failed("mlp", 8, "default", "error", "it broke"),
        make.row(bs=8, mode="cuda-graph", **none),
    ]
    table = bottleneck_table(label_rows(rows), {})
    known, failed, unknown = lines_of(table)
    assert known[3:7] == ["0.150 ms", "0.143 ms", "0.0680 ms", "launch"]
    assert known[-1].startswith("the GPU is idle 52 % of the time: 15 kernels")
    assert failed[3:] == ["—", "—", "—", "—", "error: it broke"], "no figure of what failed"
    assert unknown[-2:] == ["—", NOT_PROFILED]
    first, second, _ = json.loads(table.render("json"))
    assert first["kernels"] == 15
    assert second["status"] == "error"
