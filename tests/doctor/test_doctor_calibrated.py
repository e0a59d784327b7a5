"""How a calibration is told."""

from __future__ import annotations

import copy
import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from effbench.doctor import calibrated


def cell(name, metric, sd, low=0.95, high=1.06):
    return {"cell": name, "metric": metric, "sweep_id": "s", "statuses": {"ok": 10}, "trials": 10, "median_ms": 0.25,
            "sd": sd, "ratio": 1.004, "ratio_low": low, "ratio_high": high, "reason": None}  # fmt: skip


NOISE = {
    "protocol": "standard",
    "trials": 5,
    "rounds": 10,
    "device": "cuda",
    "sweep_id": "s",
    "sweep_ids": ["s", "t", "u"],
    "launch_bound": {"sd": 0.19, "smallest_slowdown": 0.44, "cells": [cell("mlp bs=1 eager", "latency_ms", 0.19)]},
    "gpu_bound": {
        "sd": 0.002,
        "smallest_slowdown": 0.0208,
        "cells": [cell("lin3 bs=512 cuda-graph", "period_ms", 0.002)],
    },
}
CEILINGS = {
    "copy_bytes_per_s": 4.02e12,
    "flops_per_s": {"bfloat16": 7.45e14, "float32": 5.1e13, "float64": None},
    "launch_ms": 0.0041,
    "graph_replay_ms": 0.0062,
}
SENTENCE = (
    "a standard sweep (5 trials a cell) shows a slowdown of launch-bound cells from 44 % on, of GPU-bound cells from "
    "2.1 % on"
)


def stored(noise=NOISE, ceilings=CEILINGS, days=0):
    return {
        "measured_at": datetime.now(UTC) - timedelta(days=days, minutes=1),
        "gpu_uuid": None,
        "ceilings": copy.deepcopy(ceilings),
        "noise": copy.deepcopy(noise),
    }


def told(found, has_gpu=True):
    return list(calibrated.findings(found, has_gpu))


def test_never_calibrated():
    (finding,) = told(None)
    assert (finding.level, finding.what) == ("note", "this machine has not been calibrated")
    assert "effbench doctor --calibrate" in finding.mend


def test_calibrated():
    found = told(stored())
    assert [finding.level for finding in found] == ["good", "note"]
    assert found[0].what.endswith(f"UTC: {SENTENCE}")
    assert found[1].what == (
        "ceilings: copies 4.02 TB/s, bfloat16 745 TFLOP/s, float32 51.0 TFLOP/s, a launch 4.1 µs, a graph replay 6.2 µs"
    )


def test_on_the_cpu():
    noise = {**NOISE, "device": "cpu", "gpu_bound": None}
    (finding,) = told(stored(noise, None), has_gpu=False)
    assert finding.what.endswith(
        "shows a slowdown of small cells on the CPU from 44 % on; without a GPU no cell is GPU-bound"
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (stored(noise=None), "its noise has not been measured"),
        (stored(ceilings=None), "its ceilings have not been measured"),
        (stored(days=45), "the calibration is 45 days old"),
        (stored({**NOISE, "protocol": "quick", "rounds": 4}), "its noise comes from a quick look (4 rounds)"),
    ],
)
def test_what_is_missing_or_rough(found, words):
    assert [finding.what for finding in told(found) if finding.mend] == [words]


def test_drift_and_useless_spread():
    noise = copy.deepcopy(NOISE)
    noise["gpu_bound"]["cells"][0] |= {"ratio": 1.01, "ratio_low": 1.004, "ratio_high": 1.016}
    (finding,) = [finding for finding in told(stored(noise)) if finding.needs_attention]
    assert finding.what == (
        "lin3 bs=512 cuda-graph: odd and even rounds of the same cell differ (1.010 [1.004, 1.016])"
    )
    noise = copy.deepcopy(NOISE)
    noise["launch_bound"]["smallest_slowdown"] = 1.5
    (finding,) = [finding for finding in told(stored(noise)) if finding.needs_attention]
    assert "launch-bound cells from 2.5× on" in finding.what


def test_the_table():
    noise = copy.deepcopy(NOISE)
    noise["gpu_bound"]["cells"] += [
        cell("wild", "period_ms", 1.2, 1e-7, 2e8),
        {**cell("gone", "period_ms", None, None, None), "statuses": {"oom": 1}, "trials": 0},
    ]
    text = io.StringIO()
    Console(file=text, width=200).print(calibrated.table(noise))
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert lines == [
        "cell kind trials median spread between processes odd ÷ even rounds",
        "mlp bs=1 eager launch-bound 10 latency 0.250 ms 19 % 1.004 [0.950, 1.060]",
        "lin3 bs=512 cuda-graph GPU-bound 10 period 0.250 ms 0.20 % 1.004 [0.950, 1.060]",
        "wild GPU-bound 10 period 0.250 ms × or ÷ 3.3 1.004 [1e-07, 2e+08]",
        "gone GPU-bound 0 — 1 oom —",
    ]


def test_a_database_that_is_not_there(tmp_path):
    assert calibrated.load(str(tmp_path / "none.db"), "environment") is None
