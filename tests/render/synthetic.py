"""A synthetic view `results`: the figures of a made-up GPU with a known law, so that every number
can be foreseen."""

import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any

from made_sweeps import a_result, environment

from effbench.core import labels
from effbench.core.cell import Result, StoredEnvironment
from effbench.core.labels import LabelledRow
from effbench.core.metrics import INTERVALS, METRICS
from effbench.store.sweeps import SweepInfo

#: Columns with figures.
NUMBERS = [*METRICS, *(bound for bounds in INTERVALS.values() for bound in bounds), "trials"]

#: Speedup of a mode over eager at bs 1; it halves towards 1 with every eightfold batch size.
GAIN = {
    "eager": 1.0,
    "default": 1.3,
    "reduce-overhead": 2.4,
    "max-autotune": 1.35,
    "max-autotune-no-cudagraphs": 1.6,
    "cuda-graph": 2.5,
    "compile+graph": 2.8,
}
MODES = tuple(GAIN)
COMPILE_S = dict(zip(MODES, (None, 2.1, 2.6, 48.0, 41.0, None, 3.0), strict=True))


def memory(model: str, bs: int, is_graph: bool) -> dict[str, Any]:
    """Graphs take a fifth more than eager."""
    reserved = (40 if model == "mlp" else 420) * 2**20 * (1 + bs / 16)
    relative = 1.2 if is_graph else 1.0
    return {
        "peak_allocated_bytes": int(reserved * 0.8),
        "peak_reserved_bytes": int(reserved * relative),
        "graph_pool_bytes": int(reserved * 0.3) if is_graph else None,
        "process_gpu_bytes": int(reserved * 1.5),
        "relative_memory": relative,
    }


def row(model: str = "mlp", bs: int = 1, mode: str = "eager", **more: Any) -> dict[str, Any]:
    """One ok row with a 4 % interval on its latency; keyword arguments replace columns."""
    gain = 1 + (GAIN.get(mode, 1.5) - 1) / max(1, bs / 8)
    latency = more.get("latency_ms", (0.12 if model == "mlp" else 2.4) * (1 + bs / 24) / gain)
    speedup = more.get("speedup", gain)
    graph = mode in ("reduce-overhead", "max-autotune", "cuda-graph", "compile+graph")
    compiled = COMPILE_S.get(mode, 5.0)
    dtype = more.get("dtype", "bfloat16")
    module = {"_target_": f"nets.{model}", "width": 512}
    params = {
        "model": {"name": model, "module": module, "inputs": {"x": {"shape": [64]}}},
        "mode": {"name": mode, "_target_": "modes.Any"},
        "bs": bs,
        "dtype": dtype,
        "phase": "inference",
        "device": "cuda",
        "numerics": {"tf32": True},
        "env": {},
    }
    values = {
        "sweep_id": "1",
        "sweep_name": "h200 standard",
        "label": "4f2c9d1",
        "started_at": dt.datetime(2026, 3, 1, 9, 30, tzinfo=dt.UTC),
        "model": model,
        "bs": bs,
        "mode": mode,
        "dtype": dtype,
        "phase": "inference",
        "device": "cuda",
        "status": "ok",
        "reason": None,
        "trials": 5,
        "latency_ms": latency,
        "latency_ci_low_ms": latency * 0.96,
        "latency_ci_high_ms": latency * 1.04,
        "latency_min_ms": latency * 0.9,
        "latency_p95_ms": latency * 1.3,
        "period_ms": latency * 0.8,
        "latency_p99_ms": latency * 1.5,
        "period_ci_low_ms": latency * 0.8 * 0.98,
        "period_ci_high_ms": latency * 0.8 * 1.02,
        "enqueue_ms": latency * (0.1 if graph else 0.9 if bs < 8 else 0.3),
        "throughput_per_s": bs / latency * 1250,
        "is_baseline": mode == "eager",
        "speedup": speedup,
        "speedup_ci_low": None if mode == "eager" or not speedup else speedup * 0.95,
        "speedup_ci_high": None if mode == "eager" or not speedup else speedup * 1.05,
        "gpu_busy_ms": latency * 0.5,
        "kernels": 12,
        "gpu_idle_fraction": 0.375,
        "compile_cold_s": compiled,
        "compile_warm_s": compiled and compiled * 0.3,
        "first_call_s": (compiled or 0) + 0.2,
        "break_even_calls": None if mode == "eager" else 9000,
        **memory(model, bs, graph),
        "energy_mj": 30.0,
        "rel_error": 1e-3,
        "graph_breaks": 0,
        "recompiles": 0,
        "cudagraph_skips": 0,
        "flops": 1e9,
        "min_bytes": 1e6,
        "roofline_fraction": 0.4,
        "gpu_name": "NVIDIA H200",
        "torch_version": "2.13.0",
        "python": "3.12.4",
        "environment_id": "0123456789abcdef",
        "cell_key": f"{model}-{bs}-{mode}-{dtype}",
        "params": params,
        "unsteady_trials": 0,
    }
    return values | more


def failed(model: str, bs: int, mode: str, status: str, reason: str, **more: Any) -> dict[str, Any]:
    """A row without figures."""
    measured = row(model, bs, mode, status=status, reason=reason, **more)
    return measured | dict.fromkeys(NUMBERS) | {"trials": 5} | more


def rows(
    models=("mlp", "resnet50", "transformer"), sizes=(1, 8, 64), modes=MODES
) -> list[dict[str, Any]]:
    """Every model × bs × mode, all ok."""
    return [row(model, bs, mode) for model in models for bs in sizes for mode in modes]


def sample(**more: Any) -> list[dict[str, Any]]:
    """The rows of a plausible sweep in which a few results are not ok and one is slower than
    eager."""
    bad = {
        ("transformer", 64, "max-autotune"): (
            "oom",
            "CUDA out of memory: tried to allocate 12.5 GiB",
        ),
        ("transformer", 64, "eager"): ("timeout", "no answer within 600 s in phase timing"),
        ("resnet50", 8, "max-autotune-no-cudagraphs"): (
            "incorrect",
            "rmse 3.1e-2 against fp64 exceeds 2 × 4.0e-3",
        ),
        ("transformer", 1, "cuda-graph"): (
            "unsupported",
            "the forward synchronises: .item() at model.py:41",
        ),
        ("resnet50", 1, "reduce-overhead"): (
            "degraded",
            "CUDA graphs skipped: mutated inputs (1 of 2 graphs)",
        ),
    }
    out = []
    for item in rows(**more):
        key = (item["model"], item["bs"], item["mode"])
        if key in bad:
            item = failed(*key, *bad[key]) | ({"kernels": 14} if bad[key][0] == "degraded" else {})
        elif key[:2] == ("transformer", 64):
            item |= {"speedup": None, "speedup_ci_low": None, "speedup_ci_high": None}
        elif key == ("resnet50", 64, "default"):
            item |= {
                "speedup": 0.71,
                "speedup_ci_low": 0.52,
                "speedup_ci_high": 0.97,
                "latency_ms": 12.4,
            }
            item |= {"latency_ci_low_ms": 9.1, "latency_ci_high_ms": 16.9}
        out.append(item)
    return out


def cpu_quick() -> list[dict[str, Any]]:
    """One trial each on a CPU: no interval, no period, no device memory."""
    kept = {"latency_ms", "speedup", "throughput_per_s", "compile_cold_s", "trials"}
    out = [
        row("mlp", 1, mode, device="cpu", dtype="float32", trials=1)
        for mode in ("eager", "default")
    ]
    out += [
        failed("mlp", 1, "cuda-graph", "unsupported", "needs CUDA", device="cpu", dtype="float32")
    ]
    return [item | dict.fromkeys([*set(NUMBERS) - kept, "gpu_name"]) for item in out]


SWEEP = SweepInfo(
    id="1",
    name="h200 standard",
    label="4f2c9d1",
    state="completed",
    started_at=dt.datetime(2026, 3, 1, 9, 30, tzinfo=dt.UTC),
    finished_at=dt.datetime(2026, 3, 1, 11, 2, tzinfo=dt.UTC),
    command=["-m", "model=mlp,resnet50"],
    overrides=[],
    protocol={"name": "standard", "rounds": 5},
    baseline_mode="eager",
    seed=0,
    rounds=5,
    git_revision="4f2c9d1",
    host={},
    trials=5,
)
ENVIRONMENT = StoredEnvironment(
    **dataclasses.asdict(environment(flags={"TORCH_WARM_POOL": "0"})),
    id="0123456789abcdef",
    details={"persistence": True},
)


def results(rows: Iterable[dict[str, Any]]) -> list[Result]:
    return [a_result(**item) for item in rows]


def label_rows(rows: Iterable[dict[str, Any]]) -> list[LabelledRow]:
    return labels.label_rows(results(rows))
