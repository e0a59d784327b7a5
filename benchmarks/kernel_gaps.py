"""Measure the time per kernel of a CUDA graph and of queued eager kernels, before and after
contexts begin and end.

    python benchmarks/kernel_gaps.py [--processes 5]

Each process runs 300 small kernels, eagerly and as a CUDA graph, after each of these steps: it uses
a second stream, as every capture does; it waits; another process creates and destroys a CUDA
context on the same GPU; a new stream is used and the graph captured again; this process creates and
destroys a second context. The output lists the median and the range over the processes. Nothing
else should use the GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue

import torch

from effbench.core.table import Column, Table
from effbench.measure.timing import shorten_gaps

KERNELS = 300
BLOCKS = 7


def median_us(play: Callable[[], None], calls: int) -> float:
    """Return the median µs per kernel over blocks of calls, which wait in the GPU's queue until all
    are there."""
    found = []
    for _ in range(BLOCKS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(20_000_000)
        start.record()
        for _ in range(calls):
            play()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1000 / calls / KERNELS)
    return statistics.median(found)


def touch_gpu() -> None:
    torch.zeros(1, device="cuda")


def measure(results: SimpleQueue) -> None:
    tensors = [torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(8)]

    def eager() -> None:
        value = tensors[0]
        for number in range(KERNELS):
            value = torch.addcmul(tensors[number % 8], value, tensors[(number + 1) % 8], value=1e-3)

    def capture() -> torch.cuda.CUDAGraph:
        with torch.cuda.stream(torch.cuda.Stream()):
            eager()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            eager()
        return graph

    def other_process() -> None:
        process = multiprocessing.get_context("spawn").Process(target=touch_gpu)
        process.start()
        process.join()

    eager()
    rows = [("one stream", median_us(eager, 1), None)]
    graph = capture()

    def add(step: str) -> None:
        rows.append((step, median_us(eager, 1), median_us(graph.replay, 20)))

    add("second stream, graph captured")
    time.sleep(1)
    add("1 s later")
    other_process()
    add("context of another process came and went")
    graph = capture()
    add("new stream, captured again")
    if error := shorten_gaps():
        raise RuntimeError(f"the driver cannot create a second context: error {error}")
    add("own second context came and went")
    results.put(rows)


def text(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.3f} ({min(known):.3f}–{max(known):.3f})" if known else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=5)
    context, found = multiprocessing.get_context("spawn"), []
    for _ in range(parser.parse_args().processes):
        results = context.SimpleQueue()
        process = context.Process(target=measure, args=[results])
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)
        found.append(results.get())
    rows = []
    for steps in zip(*found, strict=True):
        names, eager, graph = zip(*steps, strict=True)
        rows.append([names[0], text(eager), text(graph)])
    print(
        f"µs per kernel on {torch.cuda.get_device_name()}: median and range over"
        f" {len(found)} processes"
    )
    headings = ("after", "queued eager kernels", "CUDA graph")
    print(Table.of([*map(Column, headings)], rows).render("markdown"))


if __name__ == "__main__":
    main()
