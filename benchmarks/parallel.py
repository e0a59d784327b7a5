"""Do cells of several ranks take as long as a loop by hand, as `torchrun` users write it?

    python benchmarks/parallel.py [SETTING ...]

Decoding of a Llama with four layers, split by hand over two ranks with `parallelize_module`, is
timed by a plain loop in processes of `torch.multiprocessing`: all ranks make the same number of
synchronised calls, then the same number back to back. effbench measures the same cells before and
after it, in one run, so that both meet the same machine. Prints effbench's figures ÷ those of the
loop: latency of the slowest rank, and period. NCCL on GPUs; without them gloo and a small network.
Exits with 1 if a ratio is off by more than 3 % on GPUs.

The loop's processes use several streams, so that their kernels follow each other more slowly until
a CUDA context begins or ends (`benchmarks/kernel_gaps.py`). effbench makes one before it times. The
loop is timed before and after it makes one; the ratios are those to its figures after that.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import effbench
from effbench.core.table import Column, Table
from effbench.measure.timing import shorten_gaps
from effbench.models.llama import LlamaDecoder
from effbench.store import Store

RANKS = 2
ON_CUDA = torch.cuda.device_count() > 0
DEVICE = "cpu"
DTYPE = torch.float32
MODES = ["eager", "default"]
NETWORK = {"layers": 4, "width": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024}
if ON_CUDA:
    DEVICE = "cuda"
    DTYPE = torch.bfloat16
    MODES = ["eager", "cuda-graph", "default+graph"]
    # but for its layers that of conf/model/llama-1b-decode.yaml
    NETWORK = {"layers": 4, "width": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256}
SETTINGS = [
    "model=llama-1b-decode",
    "bs=1",
    f"mode={','.join(MODES)}",
    f"parallel=tp{RANKS}",
    "protocol=quick",
    "on_failure=ignore",
    "db=parallel.db",
]
WARM_S, MOST_WARM_CALLS, CALLS = 2.0, 5000, 200
#: Largest relative difference on GPUs.
CLOSE = 0.03
COLUMNS = [
    Column("cell"),
    Column("loop: latency, period ms", numeric=True),
    Column("with short gaps", numeric=True),
    Column("effbench ÷ it: latency", numeric=True),
    Column("period", numeric=True),
]

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Figures:
    """`period_ms` is NaN on CPUs."""

    latency_ms: float
    period_ms: float

    def __str__(self) -> str:
        return f"{self.latency_ms:.3f}, {self.period_ms:.3f}"

    def over(self, other: Figures) -> Figures:
        """Return these figures ÷ others."""
        latency = self.latency_ms / other.latency_ms
        return Figures(latency, self.period_ms / other.period_ms)

    @property
    def is_close(self) -> bool:
        """Whether both ratios are near 1."""
        return max(abs(self.latency_ms - 1), abs(self.period_ms - 1)) <= CLOSE


@dataclass(frozen=True)
class LoopFigures:
    """`plain`: in a process as it is; `short_gaps`: after a CUDA context has ended."""

    plain: Figures
    short_gaps: Figures


# --- by hand


def plan_of(module: LlamaDecoder) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    for number, block in enumerate(module.blocks):
        for name in ("query", "key", "value"):
            plan[f"blocks.{number}.attention.{name}"] = ColwiseParallel()
        plan[f"blocks.{number}.attention.project"] = RowwiseParallel()
        for name, child in block.mlp.named_children():
            if not isinstance(child, nn.Linear):
                continue
            style = ColwiseParallel()
            if child.out_features == module.tokens.embedding_dim:  # the last layer
                style = RowwiseParallel()
            plan[f"blocks.{number}.mlp.{name}"] = style
    return plan


def split_by_hand(module: LlamaDecoder, rank: int) -> None:
    module.head.weight = nn.Parameter(module.head.weight.detach().clone())  # no longer tied
    parallelize_module(module, init_device_mesh(DEVICE, (RANKS,)), plan_of(module))
    for block in module.blocks:
        attention = block.attention
        attention.heads //= RANKS
        attention.kv_heads //= RANKS
        cache = attention.cache
        cache.keys = cache.keys.chunk(RANKS, dim=1)[rank].contiguous()
        cache.values = cache.values.chunk(RANKS, dim=1)[rank].contiguous()


def step_of(mode: str, module: nn.Module, args: tuple[Tensor, Tensor]) -> Step:
    if mode == "eager":
        return module
    if mode == "default":
        return torch.compile(module)
    if mode == "cuda-graph":
        return captured(module, args)
    return captured(torch.compile(module), args)


def captured(step: Step, args: tuple[Tensor, Tensor]) -> Step:
    static = [value.clone() for value in args]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step(*static)

    def replay(token: Tensor, position: Tensor) -> Tensor:
        static[0].copy_(token)
        static[1].copy_(position)
        graph.replay()
        return output

    return replay


def run_rank(rank: int, mode: str, folder: str) -> None:
    """Time a mode in this rank; the first one writes the figures."""
    join_group(rank, folder)
    module = build(rank)
    args = (
        torch.randint(0, NETWORK["vocab"], (1, 1), device=DEVICE),
        torch.tensor([512], device=DEVICE),
    )
    with torch.no_grad():  # torch gathers inputs of split layers in inference mode
        step = step_of(mode, module, args)
        warm_up(step, args)
        plain = time_calls(step, args)
        short_gaps = plain
        if ON_CUDA:
            assert shorten_gaps() == 0
            short_gaps = time_calls(step, args)
    if rank == 0:
        figures = {"plain": asdict(plain), "short_gaps": asdict(short_gaps)}
        Path(folder, "figures").write_text(json.dumps(figures))
    dist.all_reduce(torch.zeros(1, device=DEVICE))  # until rank 0 has written
    synchronize()
    os._exit(0)  # a communicator whose collectives a CUDA graph has captured may not end by itself


def join_group(rank: int, folder: str) -> None:
    """Give this rank its device, and connect it with the others."""
    backend = "nccl"
    if ON_CUDA:
        torch.cuda.set_device(rank)
    else:
        backend = "gloo"
        torch.set_num_threads(1)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS)


def build(rank: int) -> LlamaDecoder:
    torch.manual_seed(0)
    module = LlamaDecoder(max_batch=1, **NETWORK).to(DEVICE, DTYPE).eval()
    split_by_hand(module, rank)
    return module


def warm_up(step: Step, args: tuple[Tensor, Tensor]) -> None:
    """Make the same number of calls on all ranks: as many as the first one needs for two
    seconds."""
    for _ in range(5):
        step(*args)
    synchronize()
    began_s = time.perf_counter()
    step(*args)
    synchronize()
    calls = int(WARM_S / (time.perf_counter() - began_s))
    shared = torch.tensor([max(1, min(MOST_WARM_CALLS, calls))], device=DEVICE)
    dist.broadcast(shared, 0)
    for _ in range(int(shared)):
        step(*args)


def time_calls(step: Step, args: tuple[Tensor, Tensor]) -> Figures:
    """Time calls, which all ranks make; the latency is that of the slowest rank."""
    latencies_ms = []
    for _ in range(CALLS):
        synchronize()
        began_s = time.perf_counter()
        step(*args)
        synchronize()
        latencies_ms.append(1e3 * (time.perf_counter() - began_s))
    period_ms = math.nan
    if ON_CUDA:
        period_ms = period_by_events(step, args)
    slowest_ms = torch.tensor(latencies_ms, device=DEVICE)
    dist.all_reduce(slowest_ms, dist.ReduceOp.MAX)
    return Figures(median(slowest_ms.tolist()), period_ms)


def period_by_events(step: Step, args: tuple[Tensor, Tensor]) -> float:
    """Return ms per call, back to back."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    for _ in range(CALLS // 4):
        step(*args)
    start.record()
    for _ in range(CALLS):
        step(*args)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / CALLS


def synchronize() -> None:
    if ON_CUDA:
        torch.cuda.synchronize()


def by_hand(mode: str) -> LoopFigures:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (mode, folder), nprocs=RANKS)
        figures = json.loads(Path(folder, "figures").read_text())
    return LoopFigures(Figures(**figures["plain"]), Figures(**figures["short_gaps"]))


# --- by effbench


def by_effbench(settings: Sequence[str]) -> dict[str, Figures]:
    """Measure the cells and return mode -> figures; print why others have none."""
    words = [f"model.module.{name}={value}" for name, value in NETWORK.items()]
    sweep = effbench.sweep([*SETTINGS, *words, *settings])
    with Store.open(sweep.db, mode="read") as store:
        results = store.results(sweep.id)
    figures = {}
    for result in results:
        if result.latency_ms is None:
            print(f"{result.mode}: {result.status}: {result.reason}")
            continue
        period_ms = result.period_ms
        if period_ms is None:
            period_ms = math.nan
        figures[result.mode] = Figures(result.latency_ms, period_ms)
    return figures


# --- both


def row_of(mode: str, loop: LoopFigures, ratios: Sequence[Figures]) -> list[str]:
    latencies = [f"{ratio.latency_ms:.3f}" for ratio in ratios]
    periods = [f"{ratio.period_ms:.3f}" for ratio in ratios]
    return [
        mode,
        str(loop.plain),
        str(loop.short_gaps),
        ", ".join(latencies),
        ", ".join(periods),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    sweeps = [by_effbench(args.settings)]
    loops = {}
    for mode in MODES:
        loops[mode] = by_hand(mode)
        print(f"by hand: {mode}: {loops[mode].short_gaps}", flush=True)
    sweeps.append(by_effbench(args.settings))
    rows = []
    is_close = True
    for mode, loop in loops.items():
        measured = [figures[mode] for figures in sweeps if mode in figures]
        ratios = [figures.over(loop.short_gaps) for figures in measured]
        rows.append(row_of(mode, loop, ratios))
        is_close = is_close and all(ratio.is_close for ratio in ratios)
    print(Table.of(COLUMNS, rows).render("markdown"))
    return int(ON_CUDA and not is_close)


if __name__ == "__main__":
    raise SystemExit(main())
