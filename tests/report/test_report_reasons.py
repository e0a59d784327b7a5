"""Why a mode wins, in words."""

import synthetic as make

from effbench.labels import label_rows
from effbench.report import reasons
from effbench.report.tables import speedup_table

EAGER = {"bound": "launch", "kernels": 15, "gpu_busy_ms": 0.2, "latency_ms": 1.0, "graph_pool_bytes": None}


def row_of(base, mode="compile+graph", **more):
    rows = [make.row(**{**EAGER, **base}), make.row(mode=mode, **more)]
    return speedup_table(label_rows(rows)).rows[0]


def test_the_reason_names_the_bottleneck_and_what_the_mode_changes():
    graph = {"kernels": 16, "graph_pool_bytes": 1, "gpu_busy_ms": 0.2}
    for base, mode, more, text in [
        ({}, "cuda-graph", graph, "launch-bound: 15 launches become one graph"),
        ({}, "cuda-graph", graph | {"graph_breaks": 2}, "launch-bound: 15 launches become graphs"),
        ({}, "cuda-graph", graph | {"kernels": 9, "gpu_busy_ms": 0.1},
         "launch-bound: 15 launches become one graph of 9 kernels, GPU time −50 %"),
        ({"bound": "memory", "gpu_busy_ms": 0.6}, "cuda-graph", graph | {"gpu_busy_ms": 0.6},
         "the GPU is idle for 40 % of each call: 15 launches become one graph"),
        ({"bound": "compute", "gpu_busy_ms": 0.99}, "default",
         {"kernels": 5, "graph_pool_bytes": None, "gpu_busy_ms": 0.7},
         "compute-bound: 15 kernels become 5, GPU time −29 %"),
        ({"bound": None}, "cuda-graph", graph, ""),
        ({"gpu_busy_ms": None}, "cuda-graph", graph, ""),
    ]:  # fmt: skip
        assert reasons.reason(row_of(base, mode, latency_ms=0.4, latency_ci_low_ms=0.39, latency_ci_high_ms=0.41,
                                     **more)) == text  # fmt: skip


def test_where_no_mode_beats_the_baseline_the_reason_says_what_is_left_to_gain():
    base = {"bound": "compute", "gpu_busy_ms": 0.98}
    tied = {"latency_ms": 0.99, "latency_ci_low_ms": 0.8, "latency_ci_high_ms": 1.2}
    assert reasons.reason(row_of(base, **tied)) == "compute-bound: the GPU is busy for 98 % of each call"


def test_one_sentence_says_where_each_mode_wins():
    fast = {"latency_ms": 0.4, "latency_ci_low_ms": 0.39, "latency_ci_high_ms": 0.41, "kernels": 9}
    rows = [make.row(bs=bs, **EAGER) for bs in (1, 8, 64)]
    rows += [make.row(bs=bs, mode="cuda-graph", speedup=speedup, **fast) for bs, speedup in ((1, 2.5), (64, 2.0))]
    rows += [make.row(bs=8, mode="cuda-graph", latency_ms=1.0, kernels=15)]
    text = reasons.sentence(speedup_table(label_rows(rows)).rows)
    assert text.startswith(
        "at bs 1 and 64 cuda-graph wins latency (2.00–2.50×); at bs 8 eager and cuda-graph tie in latency. "
        "Launch-bound: 15 launches become one graph"
    )
    tied = {"bs": 4, "latency_ms": 0.5, "latency_ci_low_ms": 0.3, "latency_ci_high_ms": 0.8, "speedup": 2.0}
    rows = [make.row(**{**EAGER, "bs": 4}), *(make.row(mode=mode, **tied) for mode in ("cuda-graph", "default"))]
    text = reasons.sentence(speedup_table(label_rows(rows)).rows)
    assert text.startswith("default and cuda-graph tie in latency (2.00×). Launch-bound")
    period = {"period_speedup": 3.0, "period_ci_low_ms": 0.1, "period_ci_high_ms": 0.11}
    rows[2] |= period | {"period_ms": 0.105}
    text = reasons.sentence(speedup_table(label_rows(rows)).rows)
    assert text.startswith("default and cuda-graph tie in latency (2.00×), default wins period (3.00×). Launch-bound")
    rows[2] |= {"latency_ms": 0.1, "latency_ci_low_ms": 0.09, "latency_ci_high_ms": 0.11}
    text = reasons.sentence(speedup_table(label_rows(rows)).rows)
    assert text.startswith("default wins latency and period (2.00× / 3.00×). Launch-bound")
    once = [make.row(mode=mode, trials=1, **period) for mode in ("eager", "default")]
    assert reasons.sentence(speedup_table(label_rows(once)).rows) == "one round: no intervals, so no mode wins."
    assert "fewer than two modes" in reasons.sentence(speedup_table(label_rows([make.row()])).rows)
