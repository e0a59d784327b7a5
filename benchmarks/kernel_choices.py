"""Measure how well torch.compile chooses among the Triton kernels that it times when it compiles a
network.

    python benchmarks/kernel_choices.py [transformers:llama-1b:decode:64
        torchvision:resnet50::64 ...]         [--processes 3]

For a fused kernel Inductor times a few block sizes with CUDA events around single launches, and
clears the L2 cache before each. With TORCHINDUCTOR_USE_EXPERIMENTAL_BENCHMARKER=0 it uses Triton's
`do_bench`, which clears 256 MB. Between the events it also copies the tensors that the kernel
overwrites. If clearing ends before the host has launched all of this, the events measure the host.

Each process compiles a network in bfloat16 with one of the two, in turn, and times all candidates
again with launches that queue behind a sleeping kernel, so that the host is never late. The output
has, for each network and way of timing: the host's time for a launch, by how much the times that
Inductor saw differ from the queued ones (median), how many choices take at least 5 % longer than
the best candidate, and how much longer all chosen kernels take, weighted by their launches per
call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from effbench.core.printable import one_line
from effbench.core.table import Column, Table
from effbench.models.build import build_module
from effbench.models.inputs import make_inputs
from effbench.models.spec import parse_inputs

NETWORKS = [
    *("torchvision:resnet50::64", "torchvision:convnext_tiny::8", "transformers:t5-small:logits:1"),
    *(
        "transformers:bert-base:encode:8",
        "transformers:llama-1b:decode:64",
        "transformers:qwen2-0.5b:decode:64",
    ),
]
WAYS = {"Inductor": "1", "do_bench": "0"}
LAUNCHES = 60
SLOWER = 1.05


def queued(launch: Callable[[], Any]) -> tuple[float, float]:
    """Return a kernel's time in ms, with a cold L2 cache as Inductor measures it, and the host's µs
    per launch."""
    cache = torch.empty(
        torch.cuda.get_device_properties().L2_cache_size, dtype=torch.uint8, device="cuda"
    )
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(LAUNCHES)]
    launch()
    torch.cuda.synchronize()
    torch.cuda._sleep(30_000_000)  # about 15 ms
    for start, end in pairs:
        cache.zero_()
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        launch()
    host = (time.perf_counter() - began) / LAUNCHES
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs), host * 1e6


def measure(name: str) -> list[dict[str, Any]]:
    """Compile the network, and return its kernels with several candidates: launches per call, and
    the candidates' times as seen by Inductor (`seen`, ms) and queued (`queued`, ms)."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    found: dict[Any, list[dict[str, float]]] = {}
    launches: Counter[Any] = Counter()
    plain_benchmark, plain_run = CachingAutotuner.benchmark_all_configs, CachingAutotuner.run

    def benchmark_all_configs(kernel: Any, *args: Any, **kwargs: Any) -> dict[Any, float]:
        seen = plain_benchmark(kernel, *args, **kwargs)
        cloned, words = kernel.clone_args(*args, **kwargs)
        words["stream"] = torch.cuda.current_stream().cuda_stream
        found[kernel] = []
        for launcher, ms in seen.items():
            if math.isfinite(ms):
                known, host = queued(lambda launcher=launcher: launcher(*cloned, **words))
                found[kernel].append({"seen": ms, "queued": known, "host_us": host})
        return seen

    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        launches[kernel] += 1
        return plain_run(kernel, *args, **kwargs)

    CachingAutotuner.benchmark_all_configs, CachingAutotuner.run = benchmark_all_configs, run
    library, arch, task, bs = name.split(":")
    target = {"_target_": "effbench.models.libraries.network", "library": library, "arch": arch}
    if library == "transformers":
        target |= {"task": task, "seq": 128, "max_batch": int(bs)}
    module = build_module(target, torch.bfloat16, "cuda", seed=0)
    args, kwargs = make_inputs(parse_inputs(module.inputs), int(bs), torch.bfloat16, "cuda", seed=1)
    compiled = torch.compile(module, dynamic=False)
    with torch.inference_mode():
        compiled(*args, **kwargs)
        launches.clear()
        compiled(*args, **kwargs)
    torch.cuda.synchronize()
    names = {kernel: kernel.inductor_meta.get("kernel_name") for kernel in found}
    several = {kernel: rows for kernel, rows in found.items() if len(rows) > 1}
    return [
        {"name": names[it], "launches": launches[it], "candidates": rows}
        for it, rows in several.items()
    ]


def summary(processes: list[list[dict[str, Any]]]) -> list[str]:
    """Return the cells of a row of the table."""
    slow = kernels = best_ms = chosen_ms = 0
    errors, hosts = [], []
    for kernel in itertools.chain.from_iterable(processes):
        rows = kernel["candidates"]
        chosen = min(rows, key=lambda row: row["seen"])["queued"]
        best = min(row["queued"] for row in rows)
        kernels += 1
        slow += chosen >= SLOWER * best
        best_ms += best * kernel["launches"]
        chosen_ms += chosen * kernel["launches"]
        errors += [abs(row["seen"] / row["queued"] - 1) for row in rows]
        hosts += [row["host_us"] for row in rows]
    cells = [
        str(len(processes)),
        f"{statistics.median(hosts):.1f}",
        f"{statistics.median(errors):.0%}",
    ]
    return [*cells, f"{slow} of {kernels}", f"{chosen_ms / best_ms - 1:+.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="LIBRARY:ARCH:TASK:BS")
    parser.add_argument("--processes", type=int, default=3, help="per network and way of timing")
    parser.add_argument("--json", type=Path, help="also write every candidate's times to this file")
    given = parser.parse_args()
    results = defaultdict(list)
    for name, _, (way, value) in itertools.product(
        given.networks, range(given.processes), WAYS.items()
    ):
        with (
            tempfile.TemporaryDirectory() as cache,
            ProcessPoolExecutor(1, get_context("spawn")) as process,
        ):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # it remembers choices
            os.environ["TORCHINDUCTOR_USE_EXPERIMENTAL_BENCHMARKER"] = value
            done = process.submit(measure, name)
        if failure := done.exception():
            print(f"{name}, {way}: {one_line(failure, 200)}", file=sys.stderr, flush=True)
            continue
        results[name, way].append(done.result())
        print(name, way, *summary(results[name, way]), sep=" · ", file=sys.stderr, flush=True)
        if given.json:
            given.json.write_text(json.dumps([[*key, found] for key, found in results.items()]))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    headings = [
        "network",
        "timed by",
        "processes",
        "host, µs per launch",
        "error",
        "5 % slower",
        "all kernels",
    ]
    rows = [[*key, *summary(found)] for key, found in results.items()]
    print(Table.of([*map(Column, headings)], rows).render("markdown"))


if __name__ == "__main__":
    main()
