"""A synthetic view `results`: the figures of a made-up GPU with a known law, so that every number
can be foreseen."""

import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any

from made_sweeps import a_result, environment

from effbench.core import labels
from effbench.core.cell import Result, StoredEnvironment
from effbench.core.labels import LabelledResult
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


def row(model: str = "mlp", bs: int = 1, mode: str = "eager", **more: Any) -> dict[str, Any]:
    """One ok row with a 4 % interval on its latency; keyword arguments replace columns. Graphs take
    a fifth more memory than eager."""
    gain = 1 + (GAIN.get(mode, 1.5) - 1) / max(1, bs / 8)
    latency = more.get("latency_ms", (0.12 if model == "mlp" else 2.4) * (1 + bs / 24) / gain)
    speedup = more.get("speedup", gain)
    bounded = speedup if mode != "eager" else None
    compiled = COMPILE_S.get(mode, 5.0)
    dtype = more.get("dtype", "bfloat16")
    is_graph = mode in ("reduce-overhead", "max-autotune", "cuda-graph", "compile+graph")
    reserved = (40 if model == "mlp" else 420) * 2**20 * (1 + bs / 16)
    values = {
        "sweep_id": "1",
        "sweep_name": "h200 standard",
        "label": "4f2c9d1",
        "model": model,
        "bs": bs,
        "mode": mode,
        "dtype": dtype,
        "device": "cuda",
        "latency_ms": latency,
        "latency_ci_low_ms": latency * 0.96,
        "latency_ci_high_ms": latency * 1.04,
        "period_ms": latency * 0.8,
        "period_ci_low_ms": latency * 0.8 * 0.98,
        "period_ci_high_ms": latency * 0.8 * 1.02,
        "latency_p99_ms": latency * 1.5,
        "throughput_per_s": bs / latency * 1250,
        "is_baseline": mode == "eager",
        "speedup": speedup,
        "speedup_ci_low": bounded and bounded * 0.95,
        "speedup_ci_high": bounded and bounded * 1.05,
        "gpu_busy_ms": latency * 0.5,
        "kernels": 12,
        "gpu_idle_fraction": 0.375,
        "compile_cold_s": compiled,
        "compile_warm_s": compiled and compiled * 0.3,
        "first_call_s": (compiled or 0) + 0.2,
        "peak_reserved_bytes": int(reserved * (1.2 if is_graph else 1.0)),
        "graph_pool_bytes": int(reserved * 0.3) if is_graph else None,
        "relative_memory": 1.2 if is_graph else 1.0,
        "graph_breaks": 0,
        "flops": 1e9,
        "gpu_name": "NVIDIA H200",
        "torch_version": "2.13.0",
        "python": "3.12.4",
        "environment_id": "0123456789abcdef",
        "cell_key": f"{model}-{bs}-{mode}-{dtype}",
        "params": {
            "model": {"name": model, "module": {"width": 512}},
            "mode": {"name": mode},
            "bs": bs,
        },
    }
    return values | more


def failed(model: str, bs: int, mode: str, status: str, reason: str, **more: Any) -> dict[str, Any]:
    """A row without figures."""
    measured = row(
        model,
        bs,
        mode,
        status=status,
        reason=reason,
        **more,
    )
    return measured | dict.fromkeys(NUMBERS) | {"trials": 5} | more


def rows(
    models=("mlp", "resnet50", "transformer"), sizes=(1, 8, 64), modes=MODES
) -> list[dict[str, Any]]:
    """Every model × bs × mode, all ok."""
    return [row(model, bs, mode) for model in models for bs in sizes for mode in modes]


#: (model, bs, mode) -> (status, reason) of what is not ok in `sample`.
NOT_OK = {
    ("transformer", 64, "max-autotune"): ("oom", "CUDA out of memory: tried to allocate 12.5 GiB"),
    ("transformer", 64, "eager"): ("timeout", "no answer within 600 s in phase timing"),
    ("resnet50", 8, "max-autotune-no-cudagraphs"): ("incorrect", "rmse 3.1e-2 exceeds 8e-3"),
    ("transformer", 1, "cuda-graph"): ("unsupported", "the forward synchronises: .item()"),
    ("resnet50", 1, "reduce-overhead"): ("degraded", "CUDA graphs skipped: mutated inputs"),
}


def sample() -> list[dict[str, Any]]:
    """The rows of a plausible sweep in which a few results are not ok and one is slower than
    eager."""
    out = []
    for item in rows():
        key = (item["model"], item["bs"], item["mode"])
        if key in NOT_OK:
            item = failed(*key, *NOT_OK[key])
        elif key[:2] == ("transformer", 64):
            item |= dict.fromkeys(("speedup", "speedup_ci_low", "speedup_ci_high"))
        elif key == ("resnet50", 64, "default"):
            bounds = {"latency_ci_low_ms": 9.1, "latency_ci_high_ms": 16.9}
            item |= bounds | {"latency_ms": 12.4, "speedup": 0.71}
            item |= {"speedup_ci_low": 0.52, "speedup_ci_high": 0.97}
        out.append(item)
    return out


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


def label_rows(rows: Iterable[dict[str, Any]]) -> list[LabelledResult]:
    return labels.label_rows(results(rows))
