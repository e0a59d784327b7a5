"""Rows of the view `results` as claims see them."""

from __future__ import annotations

from effbench.experiments.frames import frame_of


def row(mode="cuda-graph", speedup=2.0, bs=1, model="mlp", status="ok", spread=0.05, settings=(), **more):
    """`settings`: of the mode. `spread`: half the width of the speedup's interval; None: a single trial."""
    alone = spread is None or mode == "eager"
    is_ok = status == "ok"
    return {
        "sweep_id": "s", "environment_id": "here", "model": model, "bs": bs, "mode": mode, "status": status,
        "reason": None if is_ok else "why", "trials": 3, "latency_ms": 1.0 / speedup if is_ok else None,
        "latency_ci_low_ms": 0.9 / speedup, "latency_ci_high_ms": 1.1 / speedup, "speedup": speedup if is_ok else None,
        "speedup_ci_low": None if alone else speedup - spread, "speedup_ci_high": None if alone else speedup + spread,
        "graph_pool_bytes": 5, "cell_key": f"{model}{bs}{mode}{dict(settings)}",
        "params": {"model": {"name": model}, "mode": {"name": mode, **dict(settings)}, "bs": bs}, **more,
    }  # fmt: skip


def eager(**more):
    return row("eager", 1.0, **more)


def frame(*rows, paths=None):
    return frame_of(rows, paths)
