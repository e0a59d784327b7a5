"""The task `ceilings`: what the GPU of this process can do at best: copy bandwidth, matrix rate by dtype, the cost of
a launch and of an empty replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from effbench.measure import timing

#: A quarter of a second each: enough for the clocks to settle under load.
RULES = timing.Rules(
    budget_s=1.0,
    min_time_s=0.25,
    min_samples=10,
    target_interval=0.01,
    max_samples=10_000,
    warmup_calls=3,
    warmup_s=0.1,
    max_warmup_calls=1000,
    min_block_ms=5.0,
    load_s=0.2,
)
COPY_BYTES = 2**30
MATRIX = 8192
DTYPES = ("bfloat16", "float16", "float32", "tf32", "float64")


def run(payload: dict[str, Any], say_phase: Callable[[str], None]) -> dict[str, Any]:
    """Return {"ceilings": {...}}, or {"ceilings": None, "reason": ...} if they cannot be measured."""
    say_phase("ceilings")
    if not torch.cuda.is_available():
        return {"ceilings": None, "reason": "torch sees no CUDA device"}
    try:
        return {"ceilings": measure(torch.device("cuda"))}
    except torch.OutOfMemoryError:
        return {"ceilings": None, "reason": "too little free device memory"}


def measure(device: torch.device) -> dict[str, Any]:
    """Return the ceilings of a CUDA device: `copy_bytes_per_s` (read and written), `flops_per_s` by dtype (dense square
    products of side 8192), `launch_ms` (period of back-to-back launches of a tiny kernel), `graph_replay_ms` (of a
    graph that holds one). Rates are those of the fastest block; needs 2.5 GiB of free device memory."""
    with torch.inference_mode():
        return {
            "copy_bytes_per_s": copy_rate(device),
            "flops_per_s": {name: matrix_rate(device, name) for name in DTYPES},
            **launch_costs(device),
        }


def period_ms(step, best: bool) -> float:
    inputs = [((), {})]
    timing.warm_up(step, inputs, torch.device("cuda"), RULES)
    samples = timing.time_period(step, inputs, RULES, RULES.budget_s).samples_ms
    return min(samples) if best else sorted(samples)[len(samples) // 2]


def copy_rate(device: torch.device) -> float:
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * COPY_BYTES / (period_ms(lambda: target.copy_(source), best=True) / 1e3)


def matrix_rate(device: torch.device, name: str) -> float:
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        # values change a GPU's clocks: models have normal ones
        a, b = (torch.randn(MATRIX, MATRIX, device=device, dtype=dtype) for _ in range(2))
        return 2 * MATRIX**3 / (period_ms(lambda: torch.mm(a, b), best=True) / 1e3)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def launch_costs(device: torch.device) -> dict[str, float]:
    tiny = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    tiny.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        tiny.add_(1)
    return {
        "launch_ms": period_ms(lambda: tiny.add_(1), best=False),
        "graph_replay_ms": period_ms(graph.replay, best=False),
    }


def floors(ceilings: dict[str, Any], dtype: str, flops: float, min_bytes: float) -> tuple[float | None, float | None]:
    """Return the least milliseconds of a call, by arithmetic and by memory; None if unknown."""
    rate, bandwidth = ceilings["flops_per_s"].get(dtype), ceilings["copy_bytes_per_s"]
    return (1e3 * flops / rate if rate and flops else None, 1e3 * min_bytes / bandwidth if bandwidth else None)
