"""Do the holes that imports leave in the heap slow training steps down?

    python benchmarks/heap_holes.py [--device cuda] [--pairs 100]

Processes fork in pairs, in alternating order, from one that has imported what the fork server
imports: one from the heap as it is, the other after `fill_heap`. Each times steps of four linear
layers of width 32 that wait for the host. The faster half of the processes counts, because other
work on the machine slows whole processes down.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import struct
import time
from statistics import median

import torch

from effbench.sweeping.client import SERVER_ENVIRONMENT
from effbench.worker import server

SECONDS = 0.4
STEPS = 20  # per measurement
WIDTH, DEPTH, BATCH = 32, 4, 8


def steps_ms(device: str) -> float:
    """Return the median time of a training step."""
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
    module = torch.nn.Sequential(
        *(part for layer in layers for part in (layer, torch.nn.ReLU()))
    ).to(device)
    inputs = torch.randn(BATCH, WIDTH, device=device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            module(inputs).square().mean().backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / STEPS * 1e3

    for _ in range(10):
        measure()
    end = time.monotonic() + SECONDS
    times = [measure()]
    while time.monotonic() < end:
        times.append(measure())
    return median(times)


def in_fork(is_filled: bool, device: str) -> float:
    """Return steps_ms of a grandchild: as in a sweep, the heap is filled by the process that it
    forks from."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        if is_filled:
            server.fill_heap()
        if grandchild := os.fork():
            os.waitpid(grandchild, 0)
        else:
            os.write(writer, struct.pack("d", steps_ms(device)))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        return struct.unpack("d", stream.read())[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=100)
    arguments = parser.parse_args()
    os.environ |= SERVER_ENVIRONMENT  # imports that ask for CUDA would otherwise break it in forks
    for name in server.PRELOAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    found: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(arguments.pairs):
        for is_filled in (False, True) if pair % 2 else (True, False):
            found[is_filled].append(in_fork(is_filled, arguments.device))
    levels = {is_filled: sorted(times)[: -(-len(times) // 2)] for is_filled, times in found.items()}
    for is_filled, times in levels.items():
        what = "filled" if is_filled else "with holes"
        print(f"{what}: median {median(times):.4f} ms, minimum {times[0]:.4f} ms")
    print(f"filled / with holes: {median(levels[True]) / median(levels[False]):.3f}")


if __name__ == "__main__":
    main()
