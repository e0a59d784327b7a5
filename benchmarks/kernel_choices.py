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
import math
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

from effbench.core.printable import one_line
from effbench.core.table import Column, Table
from effbench.models.build import build_module
from effbench.models.inputs import make_inputs
from effbench.models.spec import parse_inputs

NETWORKS = [
    "torchvision:resnet50::64",
    "torchvision:convnext_tiny::8",
    "transformers:t5-small:logits:1",
    "transformers:bert-base:encode:8",
    "transformers:llama-1b:decode:64",
    "transformers:qwen2-0.5b:decode:64",
]
#: Way of timing -> TORCHINDUCTOR_USE_EXPERIMENTAL_BENCHMARKER.
WAYS = {"Inductor": "1", "do_bench": "0"}
LAUNCHES = 60
#: About 15 ms, in which the host launches all of them.
SLEEP_CYCLES = 30_000_000
#: A choice is slow if it takes this many times as long as the best candidate.
SLOWER = 1.05
COLUMNS = [
    Column("network"),
    Column("timed by"),
    Column("processes"),
    Column("host, µs per launch"),
    Column("error"),
    Column("5 % slower"),
    Column("all kernels"),
]


@dataclass(frozen=True)
class Candidate:
    """A kernel with some block size: its time as Inductor saw it and queued, and the host's time
    for a launch."""

    seen_ms: float
    queued_ms: float
    host_us: float

    @property
    def error(self) -> float:
        return abs(self.seen_ms / self.queued_ms - 1)


@dataclass(frozen=True)
class Kernel:
    """A kernel of a network, its launches per call, and its candidates."""

    launches: int
    candidates: list[Candidate]

    @property
    def chosen_ms(self) -> float:
        """The queued time of the candidate that Inductor chooses."""
        return min(self.candidates, key=lambda candidate: candidate.seen_ms).queued_ms

    @property
    def best_ms(self) -> float:
        return min(candidate.queued_ms for candidate in self.candidates)

    @property
    def is_slow(self) -> bool:
        return self.chosen_ms >= SLOWER * self.best_ms


class Recorder:
    """Times the candidates of all kernels that Inductor tunes, and counts launches by kernel."""

    def __init__(self) -> None:
        self.candidates: dict[Any, list[Candidate]] = {}
        self.launches: Counter[Any] = Counter()

    def attach(self) -> None:
        """Record what Inductor does from now on in this process."""
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        plain_benchmark = CachingAutotuner.benchmark_all_configs
        plain_run = CachingAutotuner.run

        def benchmark_all_configs(kernel: Any, *args: Any, **kwargs: Any) -> dict[Any, float]:
            seen = plain_benchmark(kernel, *args, **kwargs)
            cloned, words = kernel.clone_args(*args, **kwargs)
            words["stream"] = torch.cuda.current_stream().cuda_stream
            self.candidates[kernel] = []
            for launcher, seen_ms in seen.items():
                if math.isfinite(seen_ms):
                    candidate = time_queued(partial(launcher, *cloned, **words), seen_ms)
                    self.candidates[kernel].append(candidate)
            return seen

        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            self.launches[kernel] += 1
            return plain_run(kernel, *args, **kwargs)

        CachingAutotuner.benchmark_all_configs = benchmark_all_configs
        CachingAutotuner.run = run

    def kernels(self) -> list[Kernel]:
        """Return the kernels that have several candidates."""
        kernels = []
        for kernel, candidates in self.candidates.items():
            if len(candidates) > 1:
                kernels.append(Kernel(self.launches[kernel], candidates))
        return kernels


def time_queued(launch: Callable[[], Any], seen_ms: float) -> Candidate:
    """Time a kernel with a cold L2 cache, as Inductor does, but while the host is ahead."""
    cache_bytes = torch.cuda.get_device_properties().L2_cache_size
    cache = torch.empty(cache_bytes, dtype=torch.uint8, device="cuda")
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(LAUNCHES)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(LAUNCHES)]
    launch()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    for start, end in zip(starts, ends, strict=True):
        cache.zero_()
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(LAUNCHES):
        launch()
    host_s = (time.perf_counter() - began_s) / LAUNCHES
    torch.cuda.synchronize()
    times_ms = [start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]
    return Candidate(seen_ms, median(times_ms), 1e6 * host_s)


def measure(network: str) -> list[Kernel]:
    """Compile the network, and return its kernels with several candidates."""
    recorder = Recorder()
    recorder.attach()
    library, arch, task, bs = network.split(":")
    target = {"_target_": "effbench.models.libraries.network", "library": library, "arch": arch}
    if library == "transformers":
        target |= {"task": task, "seq": 128, "max_batch": int(bs)}
    module = build_module(target, torch.bfloat16, "cuda", seed=0)
    args, kwargs = make_inputs(parse_inputs(module.inputs), int(bs), torch.bfloat16, "cuda", seed=1)
    compiled = torch.compile(module, dynamic=False)
    with torch.inference_mode():
        compiled(*args, **kwargs)
        recorder.launches.clear()
        compiled(*args, **kwargs)
    torch.cuda.synchronize()
    return recorder.kernels()


def measure_in_process(network: str, way: str) -> list[Kernel]:
    """Measure in a process of its own, in which Inductor times this way. Raises what it raises."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # it remembers choices
        os.environ["TORCHINDUCTOR_USE_EXPERIMENTAL_BENCHMARKER"] = WAYS[way]
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(measure, network).result()


def summary(processes: Sequence[Sequence[Kernel]]) -> list[str]:
    """Return the figures of a row of the table. `processes`: the kernels of each."""
    kernels: list[Kernel] = []
    candidates: list[Candidate] = []
    for of_process in processes:
        kernels += of_process
    for kernel in kernels:
        candidates += kernel.candidates
    slow = sum(kernel.is_slow for kernel in kernels)
    chosen_ms = sum(kernel.chosen_ms * kernel.launches for kernel in kernels)
    best_ms = sum(kernel.best_ms * kernel.launches for kernel in kernels)
    return [
        str(len(processes)),
        f"{median(candidate.host_us for candidate in candidates):.1f}",
        f"{median(candidate.error for candidate in candidates):.0%}",
        f"{slow} of {len(kernels)}",
        f"{chosen_ms / best_ms - 1:+.1%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="LIBRARY:ARCH:TASK:BS")
    parser.add_argument("--processes", type=int, default=3, help="per network and way of timing")
    args = parser.parse_args()
    rows = []
    for network in args.networks:
        measured: dict[str, list[list[Kernel]]] = defaultdict(list)
        for way in [*WAYS] * args.processes:
            try:
                measured[way].append(measure_in_process(network, way))
            except Exception as failure:  # the other processes may succeed
                print(f"{network}, {way}: {one_line(failure, 200)}", file=sys.stderr, flush=True)
                continue
            print(network, way, *summary(measured[way]), sep=" · ", file=sys.stderr, flush=True)
        for way, processes in measured.items():
            rows.append([network, way, *summary(processes)])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(Table.of(COLUMNS, rows).render("markdown"))


if __name__ == "__main__":
    main()
