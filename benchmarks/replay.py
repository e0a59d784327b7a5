"""Is a replay in the mode `cuda-graph` as fast as the same graph written by hand with torch alone?

    python benchmarks/replay.py [--bs 8] [--pairs 40]

Both run in one process over the same module, timed in turns (A-B-B-A), so that the machine's drift meets both. Prints
latency (synchronised calls) and period (back-to-back calls) of each and their ratio with its 95 % interval over pairs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from effbench.models.mlp import MLP
from effbench.modes.graphs import CudaGraph
from effbench.stats.intervals import geometric_mean

CALLS = 2000


def by_hand(module: torch.nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a user writes after torch's own documentation."""
    static = x.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            module(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(static)

    def replay(value: torch.Tensor) -> torch.Tensor:
        static.copy_(value)
        graph.replay()
        return out

    return replay


def latency_us(step: Callable, x: torch.Tensor) -> float:
    samples = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        step(x)
        torch.cuda.synchronize()
        samples.append(time.perf_counter_ns() - start)
    return median(samples) / 1e3


def period_us(step: Callable, x: torch.Tensor) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(CALLS):
        step(x)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=40)
    args = parser.parse_args()
    module = MLP().to("cuda", torch.bfloat16).eval()
    x = torch.randn(args.bs, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        ours, theirs = CudaGraph().prepare(module, (x,), {}).step, by_hand(module, x)
        assert torch.equal(ours(x), theirs(x))
        print(
            f"mlp bs {args.bs} bfloat16, {torch.cuda.get_device_name()}, torch {torch.__version__}, {args.pairs} pairs"
        )
        for name, measure in (("latency", latency_us), ("period", period_us)):
            measure(ours, x), measure(theirs, x)
            figures: dict[str, list[float]] = {"ours": [], "by hand": []}
            for pair in range(args.pairs):
                order = [("ours", ours), ("by hand", theirs)]
                for who, step in order if pair % 2 == 0 else reversed(order):
                    figures[who].append(measure(step, x))
            ratio = geometric_mean([a / b for a, b in zip(figures["ours"], figures["by hand"], strict=True)])
            print(
                f"{name}: ours {median(figures['ours']):.2f} µs, by hand {median(figures['by hand']):.2f} µs, "
                f"ratio {ratio.value:.4f} ({ratio.low:.4f}–{ratio.high:.4f})"
            )


if __name__ == "__main__":
    main()
