"""The task `ceilings`: measure this GPU's copy bandwidth, matrix rates, launch time and graph
replay time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from effbench.measure import timing
from effbench.worker.tasks import Json, SayPhase

#: A quarter of a second per measurement: the clocks settle under load, then blocks are timed.
RULES = timing.Rules(
    budget_s=0.15,
    min_time_s=0.15,
    min_samples=10,
    target_interval=0.01,
    max_samples=10_000,
    warmup_calls=3,
    warmup_s=0.1,
    min_block_ms=5.0,
    load_s=0.1,
)
COPY_BYTES = 2**30
MATRIX = 8192
DTYPES = ("bfloat16", "float16", "float32", "tf32", "float64")


def run_task(payload: Json, say_phase: SayPhase) -> Json:
    """Measure the ceilings. Return {"ceilings": {...}}, or {"ceilings": None, "reason": ...} if
    that is impossible."""
    say_phase("ceilings")
    if not torch.cuda.is_available():
        return {"ceilings": None, "reason": "torch sees no CUDA device"}
    try:
        with torch.inference_mode():
            return {"ceilings": measure(torch.device("cuda"))}
    except torch.OutOfMemoryError:
        return {"ceilings": None, "reason": "not enough free device memory; 2.5 GiB are required"}


def measure(device: torch.device) -> dict[str, Any]:
    """Return the ceilings of a CUDA device: `copy_bytes_per_s` (read and written), `flops_per_s` by
    dtype (dense square products of size 8192), `launch_ms` (period of back-to-back launches of a
    tiny kernel), `graph_replay_ms` (period of replays of a graph with that kernel). Rates are those
    of the fastest block. Requires 2.5 GiB of device memory."""
    rates = {
        "copy_bytes_per_s": copy_rate(device),
        "flops_per_s": {name: matrix_rate(device, name) for name in DTYPES},
    }
    tiny = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    tiny.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        tiny.add_(1)
    launch_ms = statistics.median_high(periods_ms(lambda: tiny.add_(1), device))
    return {
        **rates,
        "launch_ms": launch_ms,
        "graph_replay_ms": statistics.median_high(periods_ms(graph.replay, device)),
    }


def periods_ms(step: Callable[[], Any], device: torch.device) -> list[float]:
    timer = timing.Timer(step, [((), {})], device, RULES)
    timer.warm_up()
    return timer.period(RULES.budget_s).samples_ms


def copy_rate(device: torch.device) -> float:
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * COPY_BYTES / (min(periods_ms(lambda: target.copy_(source), device)) / 1e3)


def matrix_rate(device: torch.device, name: str) -> float:
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    # normal values as in models, because the values affect a GPU's clocks
    a, b = (torch.randn(MATRIX, MATRIX, device=device, dtype=dtype) for _ in range(2))
    return 2 * MATRIX**3 / (min(periods_ms(lambda: torch.mm(a, b), device)) / 1e3)
