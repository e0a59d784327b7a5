"""How much longer do calls take when other virtual machines take time from the cores?

    python benchmarks/stolen_time.py [--seconds 120]

Run this on a virtual machine. An MLP runs on all cores, a second at a time. For each second the
kernel's count of stolen time (`steal` in /proc/stat) stands next to the median latency; the table
groups the seconds by the stolen fraction.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from bisect import bisect_right
from dataclasses import dataclass

import torch

from effbench.measure.host import core_times
from effbench.models.mlp import MLP

#: Bounds of the groups, as fractions of the cores' time.
BOUNDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


@dataclass(frozen=True)
class Second:
    stolen: float
    median_ms: float


def measure(module: torch.nn.Module, x: torch.Tensor, cores: set[int]) -> Second:
    """Call the module for a second."""
    before, began = core_times(cores), time.perf_counter()
    samples = []
    while time.perf_counter() - began < 1.0:
        start = time.perf_counter()
        module(x)
        samples.append(1000 * (time.perf_counter() - start))
    after = core_times(cores)
    possible_s = (time.perf_counter() - began) * len(cores)
    return Second((after.stolen_s - before.stolen_s) / possible_s, statistics.median(samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=120)
    args = parser.parse_args()
    cores = os.sched_getaffinity(0)
    module, x = MLP().eval(), torch.randn(1, 1024)
    with torch.inference_mode():
        for _ in range(20):
            module(x)
        seconds = [measure(module, x, cores) for _ in range(args.seconds)]
    groups: dict[int, list[float]] = {}
    for second in seconds:
        groups.setdefault(bisect_right(BOUNDS, second.stolen) - 1, []).append(second.median_ms)
    print("| stolen | seconds | median latency (ms) | from | to |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for place in sorted(groups):
        times = groups[place]
        high = f"{BOUNDS[place + 1]:.0%}" if place + 1 < len(BOUNDS) else "100%"
        name = f"{BOUNDS[place]:.0%} to {high}"
        print(
            f"| {name} | {len(times)} | {statistics.median(times):.2f} | {min(times):.2f} |"
            f" {max(times):.2f} |"
        )


if __name__ == "__main__":
    main()
