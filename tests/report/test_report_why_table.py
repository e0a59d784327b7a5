"""What bounds each cell, as the terminal, the page and files show it."""

from __future__ import annotations

import csv
import io
import json

from effbench.report.why_table import NOT_PROFILED, why_table


def row(mode, status="ok", **figures):
    given = {
        "model": "m|x", "bs": 8, "mode": mode, "dtype": "bfloat16", "phase": "inference", "device": "cuda",
        "status": status, "reason": None if status == "ok" else "it broke", "sweep_id": "s", "environment_id": "e",
        "params": {"mode": {"name": mode}}, "latency_ms": 0.15, "period_ms": 0.143, "gpu_busy_ms": 0.068,
        "gpu_idle_fraction": 0.524, "kernels": 15, "enqueue_ms": 0.137, "bound": "launch", "roofline_fraction": 0.03,
        "flops": 1.0, "min_bytes": 1.0,
    }  # fmt: skip
    return {**given, **figures}


NOT_KNOWN = {"gpu_busy_ms": None, "gpu_idle_fraction": None, "bound": None, "period_ms": None}
ROWS = [row("eager"), row("default", status="error"), row("cuda-graph", **NOT_KNOWN)]


def test_every_cell_says_why_it_is_as_it_is_or_why_that_is_not_known():
    table = why_table(ROWS)
    assert table.headings == ["model", "bs", "mode", "latency", "period", "bound", "why"]
    assert [cells[-2] for cells in table.rows] == ["launch", "—", "—"]
    assert table.rows[0][-1].startswith("the GPU is idle 52 % of the time: 15 kernels")
    assert [cells[-1] for cells in table.rows[1:]] == ["error: it broke", NOT_PROFILED]
    assert table.rows[1][3:5] == ["—", "—"], "no figure of what failed"


def test_as_files():
    table = why_table(ROWS)
    data = json.loads(table.render("json"))
    assert (data[0]["gpu_busy_ms"], data[0]["kernels"], data[0]["bound"]) == (0.068, 15, "launch")
    assert data[1]["status"] == "error"
    lines = list(csv.DictReader(io.StringIO(table.render("csv"))))
    assert [line["mode"] for line in lines] == ["eager", "default", "cuda-graph"]
    markdown = table.render("markdown").splitlines()
    assert markdown[1].count("---:") == 3
    assert "m\\|x" in markdown[2]


def test_an_export_of_before_there_was_a_profile_can_be_read():
    old = {name: value for name, value in ROWS[0].items() if name not in ("enqueue_ms", "bound", "gpu_busy_ms")}
    assert why_table([old]).rows[0][-1] == NOT_PROFILED
