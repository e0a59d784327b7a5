"""The speedup table: exact texts, what is best, rows that never merge, and a quick start."""

import csv
import io
import json
import subprocess
import sys

import pandas as pd
import pytest
import synthetic as make

from effbench.analysis.row_labels import MODES
from effbench.errors import UsageError
from effbench.report.speedup_table import speedup_table

PAIR = [
    make.row(latency_ms=0.123456),
    make.row(mode="cuda-graph", speedup=2.31, speedup_ci_low=2.25, speedup_ci_high=2.38),
    make.row(mode="default", speedup=1.02, speedup_ci_low=0.97, speedup_ci_high=1.08),
    make.failed("mlp", 1, "max-autotune", "oom", "out of memory"),
]


def test_texts_order_and_best():
    table = speedup_table(PAIR)
    assert table.modes == ["eager", "default", "max-autotune", "cuda-graph"]
    assert [row.labels for row in table.rows] == [{"model": "mlp", "bs": 1}]
    cells = table.rows[0].cells
    assert {mode: entry.text for mode, entry in cells.items()} == {
        "eager": "0.123 ms",
        "default": "1.02× (0.97–1.08) n.s.",
        "max-autotune": "oom",
        "cuda-graph": "2.31× (2.25–2.38)",
    }
    assert [mode for mode, entry in cells.items() if entry.best] == ["cuda-graph"]
    assert cells["max-autotune"].reason == "out of memory" and cells["max-autotune"].value is None
    assert [entry.tone for entry in cells.values()] == ["plain", "unsure", "status", "best"]
    assert cells["cuda-graph"].trials == 5 and cells["eager"].value == 1


def test_a_failure_is_never_best_and_the_baseline_can_be():
    slow = make.row(mode="default", latency_ms=0.16, speedup=0.8, speedup_ci_low=0.7, speedup_ci_high=0.9)
    broken = make.row(mode="cuda-graph", speedup=9.0, status="degraded", reason="fell back")
    cells = speedup_table([make.row(), slow, broken]).rows[0].cells
    assert cells["eager"].best and not cells["default"].best and not cells["cuda-graph"].best
    assert cells["cuda-graph"].text == "degraded"


@pytest.mark.parametrize(("low", "high", "significant"), [(1.0, 1.2, False), (0.9, 1.0, False), (1.01, 1.2, True)])
def test_an_interval_that_touches_1_is_not_significant(low, high, significant):
    entry = speedup_table([make.row(), make.row(mode="default", speedup=1.1, speedup_ci_low=low, speedup_ci_high=high)])
    assert entry.rows[0].cells["default"].significant is significant
    assert entry.rows[0].cells["default"].text.endswith("n.s.") is not significant


def test_one_trial_has_a_value_and_no_interval():
    entry = speedup_table(make.cpu_quick()).rows[0].cells["default"]
    assert (entry.text, entry.low, entry.significant, entry.trials) == ("1.30×", None, None, 1)


def test_no_baseline_and_not_run_are_said():
    rows = [make.failed("mlp", 1, "eager", "timeout", "late"), make.row(mode="default", speedup=None), make.row(bs=8)]
    first, second = speedup_table(rows).rows
    assert first.cells["default"].text == "no baseline" and "eager has no ok result" in first.cells["default"].reason
    assert second.cells["default"].text == "not run" and second.cells["default"].status is None


def test_another_baseline_shows_its_latency():
    rows = [make.row(speedup=0.5), make.row(mode="default", latency_ms=2.0, speedup=1.0)]
    cells = speedup_table(rows, baseline_mode="default").rows[0].cells
    assert (cells["default"].text, cells["default"].baseline, cells["eager"].baseline) == ("2.00 ms", True, False)


@pytest.mark.parametrize(
    ("metric", "text", "best"),
    [
        ("latency_ms", "0.500 ms (0.480–0.520)", "default"),
        ("peak_reserved_bytes", "42.5 MiB", None),  # equal: none is the best
        ("throughput_per_s", "2500 samples/s", "default"),
        ("flops", "1e+09", None),
        ("graph_breaks", "0", None),
    ],
)
def test_other_metrics(metric, text, best):
    cells = speedup_table([make.row(latency_ms=1.0), make.row(mode="default", latency_ms=0.5)], metric).rows[0].cells
    assert cells["default"].text == text
    assert next((mode for mode, entry in cells.items() if entry.best), None) == best


def test_unknown_metric_and_format_are_usage_errors():
    with pytest.raises(UsageError, match="latency_ms"):
        speedup_table([], "speed")
    with pytest.raises(UsageError, match="markdown"):
        speedup_table([]).render("yaml")


def test_models_in_order_of_first_appearance_bs_by_number():
    rows = [make.row("zebra", 64), make.row("zebra", 8), make.row("ant", 1), make.row("zebra", 128)]
    labels = [tuple(row.labels.values()) for row in speedup_table(rows).rows]
    assert labels == [("zebra", 8), ("zebra", 64), ("zebra", 128), ("ant", 1)]


def test_modes_canonical_then_alphabetical():
    rows = [make.row(mode=mode) for mode in ("zz", "compile+graph", "aa", *reversed(MODES))]
    assert speedup_table(rows[:1] + rows[2:]).modes == [*MODES, "aa", "zz"]


def with_params(change, **more):
    item = make.row(**more)
    params = json.loads(item["params"])
    change(params)
    return item | {"params": params}


@pytest.mark.parametrize("column", ["dtype", "phase", "torch_version", "python", "environment_id", "sweep_id"])
def test_a_swept_column_becomes_a_label(column):
    rows = [make.row(mode=mode) | {column: value} for value in ("a", "b") for mode in ("eager", "default")]
    table = speedup_table(rows)
    assert [row.labels for row in table.rows] == [{"model": "mlp", column: value, "bs": 1} for value in ("a", "b")]
    assert all(entry.status == "ok" for row in table.rows for entry in row.cells.values())


def test_a_swept_parameter_becomes_a_label():
    rows = [
        with_params(lambda params, width=width: params["model"]["module"].update(width=width), mode=mode)
        for width in (256, 512)
        for mode in ("eager", "default")
    ]
    table = speedup_table([*rows, make.row("resnet50")])
    assert [row.labels["model.module.width"] for row in table.rows] == ["256", "512", "512"]
    assert [row.cells["default"].status for row in table.rows] == ["ok", "ok", None]


def test_a_parameter_that_only_follows_the_mode_splits_no_row():
    plain = make.row()
    other = with_params(lambda params: params["env"].update(FLAG="1"), mode="default")
    assert len(speedup_table([plain, other]).rows) == 1


def test_a_swept_setting_of_a_mode_becomes_a_column():
    rows = [make.row()]
    rows += [
        with_params(lambda params, full=full: params["mode"].update(fullgraph=full), mode="default")
        for full in (False, True)
    ]
    table = speedup_table(rows)
    assert table.modes == ["eager", "default (fullgraph=False)", "default (fullgraph=True)"]
    assert len(table.rows) == 1


def test_rows_that_nothing_tells_apart_are_numbered():
    assert [row.labels["#"] for row in speedup_table([make.row(), make.row()]).rows] == ["1", "2"]


def test_a_frame_and_its_rows_give_the_same():
    rows = make.sample().to_dict("records")
    assert speedup_table(pd.DataFrame(rows)) == speedup_table(rows)


def test_markdown():
    lines = speedup_table([*PAIR, make.row("a|b<i>", 2)]).render("markdown").splitlines()
    assert lines[0] == "| model | bs | eager | default | max-autotune | cuda-graph |"
    assert lines[1] == "| --- | --- | ---: | ---: | ---: | ---: |"
    assert lines[2] == "| mlp | 1 | 0.123 ms | 1.02× (0.97–1.08) n.s. | oom | **2.31× (2.25–2.38)** |"
    assert lines[3].startswith("| a\\|b&lt;i> | 2 | ")
    assert "**" not in lines[3], "one alone is the best of nothing"


def test_csv_holds_one_line_an_entry_with_exact_numbers():
    read = list(csv.DictReader(io.StringIO(speedup_table(PAIR).render("csv"))))
    graph = next(line for line in read if line["mode"] == "cuda-graph")
    assert len(read) == 4
    assert (graph["value"], graph["low"], graph["high"], graph["best"]) == ("2.31", "2.25", "2.38", "true")
    assert next(line for line in read if line["mode"] == "max-autotune")["reason"] == "out of memory"


def test_json_is_the_structure():
    read = json.loads(speedup_table(make.sample()).render("json"))
    assert read["metric"] == "speedup" and read["modes"] == list(MODES)
    assert read["rows"][0]["labels"] == {"model": "mlp", "bs": 1}
    assert read["rows"][0]["cells"]["cuda-graph"]["value"] == pytest.approx(2.5)


def test_nothing_gives_an_empty_table():
    table = speedup_table([])
    assert (table.rows, table.modes) == ([], [])
    assert table.render("markdown") == "| model | bs |\n| --- | --- |\n"


def test_importing_the_table_loads_neither_pandas_nor_plotly():
    code = (
        "import sys, effbench.report.speedup_table as t; t.speedup_table([{'model': 'm', 'bs': 1, 'mode': 'eager'}]);"
    )
    code += "print([name for name in ('pandas', 'plotly', 'numpy', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_a_mode_that_is_significantly_faster_than_every_other_is_the_best():
    unsure = make.row(mode="default", latency_ms=0.0075, latency_ci_low_ms=0.0001, latency_ci_high_ms=0.5,
                      speedup=16.7, speedup_ci_low=0.2, speedup_ci_high=900.0)  # fmt: skip
    sure = make.row(mode="cuda-graph")
    table = speedup_table([make.row(), unsure, sure])
    assert not any(entry.best for entry in table.rows[0].cells.values())
    assert (table.rows[0].cells["default"].text, table.rows[0].cells["default"].value) == ("unclear", 16.7)
    assert any("no significant winner in 1 of 1" in text for text in table.legend("★"))
    assert speedup_table([make.row(), sure]).rows[0].cells["cuda-graph"].best


@pytest.mark.parametrize(
    ("more", "mark", "others"),
    [
        ({"speedup_ci_low": 0.9, "speedup_ci_high": 1.2}, "interval includes 1", ("no interval", "unclear")),
        ({"speedup_ci_low": None, "speedup_ci_high": None}, "no interval", ("includes 1", "unclear")),
        ({"speedup_ci_low": 0.01, "speedup_ci_high": 90.0}, "unclear", ("includes 1", "no interval")),
    ],
)
def test_the_legend_tells_an_interval_with_1_from_none_and_from_one_too_wide(more, mark, others):
    legend = " · ".join(speedup_table([make.row(), make.row(mode="default", **more)]).legend("★"))
    assert mark in legend and not any(other in legend for other in others)


def test_without_intervals_there_is_no_winner():
    table = speedup_table(make.cpu_quick())
    assert table.rows[0].no_winner and not any(entry.best for entry in table.rows[0].cells.values())
