"""Do cells of several ranks take as long as a loop by hand, as `torchrun` users write it?

    python benchmarks/parallel.py [--parallel tp2] [--modes eager,default,cuda-graph] [--bs 1,8]
        [--layers 8] [--db parallel.db] [SETTING ...]

Decoding of a Llama, split by hand with `parallelize_module`, is timed by a plain loop in processes
of `torch.multiprocessing`: all ranks make the same number of synchronised calls, then the same
number back to back. effbench measures the same cells before and after it, in one run, so that both
meet the same machine. Prints effbench's figures ÷ those of the loop: latency of the slowest rank,
and period. NCCL on GPUs; without them gloo and a small network. Exits with 1 if a ratio is off by
more than 3 % on GPUs.

The loop's processes use several streams, so that their kernels follow each other more slowly until
a CUDA context begins or ends (`benchmarks/kernel_gaps.py`). effbench makes one before it times. The
loop is timed before and after it makes one; the ratios are those to its figures after that.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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
from effbench.core.parallel import Parallel
from effbench.measure.timing import shorten_gaps
from effbench.models.llama import LlamaDecoder
from effbench.store import Store

MODES = "eager,default,reduce-overhead,cuda-graph,default+graph"
CPU_MODES = "eager,default"
#: The network: that of conf/model/llama-1b-decode.yaml on GPUs.
LARGE = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256}
SMALL = {"layers": 4, "width": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024}
WARM_S, CALLS = 2.0, 200
#: Largest relative difference on GPUs.
CLOSE = 0.03

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loop:
    """What a process of the loop by hand does."""

    mode: str
    bs: int
    size: int
    network: dict[str, int]
    folder: str


@dataclass(frozen=True)
class Figures:
    """`period_ms` is NaN on CPUs."""

    latency_ms: float
    period_ms: float

    def __str__(self) -> str:
        return f"{self.latency_ms:.3f}, {self.period_ms:.3f}"


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
    for number in range(len(module.blocks)):
        block = f"blocks.{number}"
        for name in ("query", "key", "value"):
            plan[f"{block}.attention.{name}"] = ColwiseParallel()
        plan[f"{block}.attention.project"] = RowwiseParallel()
        for name, child in module.blocks[number].mlp.named_children():
            if isinstance(child, nn.Linear):
                is_last = child.out_features == module.tokens.embedding_dim
                plan[f"{block}.mlp.{name}"] = RowwiseParallel() if is_last else ColwiseParallel()
    return plan


def split_by_hand(module: LlamaDecoder, rank: int, size: int, device: str) -> None:
    module.head.weight = nn.Parameter(module.head.weight.detach().clone())  # no longer tied
    parallelize_module(module, init_device_mesh(device, (size,)), plan_of(module))
    for block in module.blocks:
        attention = block.attention
        attention.heads //= size
        attention.kv_heads //= size
        for name in ("keys", "values"):
            cache = getattr(attention.cache, name)
            setattr(attention.cache, name, cache.chunk(size, dim=1)[rank].contiguous())


def step_of(mode: str, module: nn.Module, args: tuple[Tensor, Tensor]) -> Step:
    if mode == "eager":
        return module
    if mode == "cuda-graph":
        return captured(module, args)
    if mode == "default+graph":
        return captured(torch.compile(module), args)
    return torch.compile(module, mode=mode)


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

    def replay(*given: Tensor) -> Tensor:
        for place, value in zip(static, given, strict=True):
            place.copy_(value)
        graph.replay()
        return output

    return replay


def run_rank(rank: int, loop: Loop) -> None:
    on_cuda = torch.cuda.is_available()
    device = "cuda" if on_cuda else "cpu"
    if on_cuda:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    store = dist.FileStore(f"{loop.folder}/store", loop.size)
    backend = "nccl" if on_cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=loop.size)
    torch.manual_seed(0)
    module = LlamaDecoder(max_batch=loop.bs, **loop.network)
    dtype = torch.bfloat16 if on_cuda else torch.float32
    module = module.to(device, dtype).eval()
    split_by_hand(module, rank, loop.size, device)
    token = torch.randint(0, loop.network["vocab"], (loop.bs, 1), device=device)
    position = torch.tensor([512], device=device)
    with torch.no_grad():  # torch gathers inputs of split layers in inference mode
        step = step_of(loop.mode, module, (token, position))
        for _ in range(5):
            step(token, position)
        # the same number of calls on all ranks: as many as the first one needs for two seconds
        synchronize(on_cuda)
        began = time.perf_counter()
        step(token, position)
        synchronize(on_cuda)
        calls = torch.tensor([max(1, int(WARM_S / (time.perf_counter() - began)))])
        calls = calls.to(device)
        dist.broadcast(calls, 0)
        for _ in range(min(5000, int(calls))):
            step(token, position)
        plain = time_calls(step, (token, position))
        short_gaps = plain
        if on_cuda:
            assert shorten_gaps() == 0
            short_gaps = time_calls(step, (token, position))
    if rank == 0:
        figures = [plain.latency_ms, plain.period_ms, short_gaps.latency_ms, short_gaps.period_ms]
        Path(loop.folder, "figures").write_text(" ".join(map(str, figures)))
    dist.all_reduce(torch.zeros(1, device=device))  # until rank 0 has written
    synchronize(on_cuda)
    os._exit(0)  # a communicator whose collectives a CUDA graph has captured may not end by itself


def time_calls(step: Step, args: tuple[Tensor, Tensor]) -> Figures:
    """Time calls, which all ranks make; the latency is that of the slowest rank."""
    on_cuda = torch.cuda.is_available()
    latencies = []
    for _ in range(CALLS):
        synchronize(on_cuda)
        began = time.perf_counter()
        step(*args)
        synchronize(on_cuda)
        latencies.append(1e3 * (time.perf_counter() - began))
    slowest = torch.tensor(latencies, device=args[0].device)
    period_ms = math.nan
    if on_cuda:
        period_ms = period_by_events(step, *args)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return Figures(statistics.median(slowest.tolist()), period_ms)


def period_by_events(step: Step, token: Tensor, position: Tensor) -> float:
    """Return ms per call, back to back."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    for _ in range(CALLS // 4):
        step(token, position)
    start.record()
    for _ in range(CALLS):
        step(token, position)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / CALLS


def synchronize(on_cuda: bool) -> None:
    if on_cuda:
        torch.cuda.synchronize()


def by_hand(mode: str, bs: int, size: int, network: dict[str, int]) -> LoopFigures:
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(mode, bs, size, network, folder)
        mp.spawn(run_rank, (loop,), nprocs=size)
        figures = [float(word) for word in Path(folder, "figures").read_text().split()]
    return LoopFigures(Figures(*figures[:2]), Figures(*figures[2:]))


# --- by effbench


def by_effbench(args: argparse.Namespace, network: dict[str, int], number: int) -> None:
    words = ["model=llama-1b-decode", f"bs={args.bs}", f"mode={args.modes}"]
    words += [f"model.module.{name}={value}" for name, value in network.items()]
    words += [f"parallel={args.parallel}", f"db={args.db}", f"sweep.name=parallel-{number}"]
    effbench.sweep([*words, "protocol=quick", "on_failure=ignore", *args.settings])


def figures_of(db: str, number: int) -> dict[tuple[str, int], Figures]:
    with Store.open(db, mode="read") as store:
        results = store.results(store.find_sweep(f"parallel-{number}").id)
    figures = {}
    for result in results:
        if result.latency_ms is None:
            print(f"{result.mode} bs={result.bs}: {result.status}: {result.reason}")
        else:
            period_ms = math.nan if result.period_ms is None else result.period_ms
            figures[result.mode, result.bs] = Figures(result.latency_ms, period_ms)
    return figures


def main() -> int:
    on_cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallel", default="tp2")
    parser.add_argument("--modes", default=MODES if on_cuda else CPU_MODES)
    parser.add_argument("--bs", default="1,8")
    parser.add_argument("--layers", type=int, help="of the network, instead of 16 or 4")
    parser.add_argument("--db", default="parallel.db")
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    parallel = Parallel.parse(args.parallel)
    assert parallel is not None
    network = dict(LARGE if on_cuda else SMALL)
    if args.layers:
        network["layers"] = args.layers
    by_effbench(args, network, 1)
    loops = {}
    for bs in map(int, args.bs.split(",")):
        for mode in args.modes.split(","):
            loops[mode, bs] = by_hand(mode, bs, parallel.size, network)
            print(f"by hand: {mode} bs={bs}: {loops[mode, bs].short_gaps}", flush=True)
    by_effbench(args, network, 2)
    sweeps = [figures_of(args.db, number) for number in (1, 2)]
    far = 0
    print("| cell | loop: latency, period ms | with short gaps | effbench ÷ it: latency | period |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for cell, loop in loops.items():
        measured = [figures[cell] for figures in sweeps if cell in figures]
        by_loop = loop.short_gaps
        latencies = [figures.latency_ms / by_loop.latency_ms for figures in measured]
        periods = [figures.period_ms / by_loop.period_ms for figures in measured]
        far += any(abs(ratio - 1) > CLOSE for ratio in latencies + periods)
        columns = [", ".join(f"{ratio:.3f}" for ratio in ratios) for ratios in (latencies, periods)]
        print(f"| {cell[0]} bs={cell[1]} | {loop.plain} | {by_loop} | {' | '.join(columns)} |")
    return int(on_cuda and far > 0)


if __name__ == "__main__":
    raise SystemExit(main())
