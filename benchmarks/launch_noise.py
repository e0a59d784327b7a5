"""What makes a launch-bound cell differ from process to process, and what helps: pinning, priority, cores of its own.

    python benchmarks/launch_noise.py [--processes 12] [--seconds 0.6] [--out noise.json]

Forks fresh processes from one with torch preloaded (as a sweep's fork server does), conditions in random order within
each round, so that drift meets all alike. Each times an eager `mlp` (bs 8) and an eager attention block (bs 1): the
latency and the period, medians of a process. Prints, a condition and workload: the geometric mean, the standard
deviation between processes (of logarithms), and the mean of the within-process spreads. Needs CUDA.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from effbench.measure import timing

RULES = timing.Rules(
    budget_s=10.0,
    min_time_s=0.6,
    min_samples=30,
    target_interval=1.0,
    max_samples=100_000,
    warmup_calls=10,
    warmup_s=0.3,
    max_warmup_calls=100_000,
    min_block_ms=5.0,
)


SPIN = "while True: pass"


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def raise_priority() -> None:
    with contextlib.suppress(PermissionError):
        os.nice(-10)


def pin(wanted: set[int]) -> None:
    """This process and the threads that it has (torch's own were started before)."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), wanted)


CONDITIONS: dict[str, Callable[[int], None]] = {
    "as it is": lambda number: None,
    "one core, the last": lambda number: pin({cores()[-1]}),
    "one core, another each process": lambda number: pin({cores()[number % len(cores())]}),
    "two cores, the last": lambda number: pin(set(cores()[-2:])),
    "four cores, the last": lambda number: pin(set(cores()[-4:])),
    "priority": lambda number: raise_priority(),
    "two cores and priority": lambda number: (pin(set(cores()[-2:])), raise_priority()),
    "beside a load": lambda number: None,
    "beside a load, priority": lambda number: raise_priority(),
    "beside a load on other cores": lambda number: pin(upper_half()),
}
#: Where so many busy processes as there are cores run meanwhile: what a neighbour's compilation looks like.
LOADS: dict[str, Callable[[], set[int]]] = {
    "beside a load": lambda: set(cores()),
    "beside a load, priority": lambda: set(cores()),
    "beside a load on other cores": lambda: set(cores()) - upper_half(),
}


def upper_half() -> set[int]:
    return set(cores()[len(cores()) // 2 :])


@contextlib.contextmanager
def load(condition: str) -> Iterator[None]:
    """Busy processes while it is entered, where the condition has them."""
    where = LOADS[condition]() if condition in LOADS else set()
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(len(cores()) if where else 0)]
    try:
        for process in busy:
            os.sched_setaffinity(process.pid, where)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def workloads() -> dict[str, tuple[Callable, torch.Tensor]]:
    from effbench.models.attention import AttentionBlock
    from effbench.models.mlp import MLP

    options = {"device": "cuda", "dtype": torch.bfloat16}
    return {
        "mlp bs 8": (MLP().to(**options).eval(), torch.randn(8, 1024, **options)),
        "attention bs 1": (AttentionBlock(seq=128).to(**options).eval(), torch.randn(1, 128, 1024, **options)),
    }


def measure(condition: str, number: int, seconds: float) -> dict[str, dict[str, float]]:
    found = {}
    device = torch.device("cuda")
    torch.empty(1, device=device)
    CONDITIONS[condition](number)
    rules = timing.Rules(**{**RULES.__dict__, "min_time_s": seconds})
    with torch.inference_mode(), timing.no_garbage_collection():
        for name, (module, x) in workloads().items():
            inputs = [((x,), {})]
            timing.warm_up(module, inputs, device, rules)
            latency = timing.time_latency(module, inputs, device, rules, 5.0).samples_ms
            period = timing.time_period(module, inputs, rules, 5.0).samples_ms
            found[name] = {
                "latency_ms": statistics.median(latency),
                "latency_iqr": iqr(latency),
                "period_ms": statistics.median(period),
                "period_iqr": iqr(period),
            }
    return found


def iqr(samples: list[float]) -> float:
    """Interquartile range, relative to the median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / middle


def in_a_child(work: Callable[[], dict]) -> dict:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(write, json.dumps(work()).encode())
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("a process failed")
    return json.loads(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=12, help="of each condition (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each timer (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=CONDITIONS, help="these conditions (default: all)")
    parser.add_argument("--out", help="write all medians there as JSON")
    args = parser.parse_args()
    if not os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"):  # else the check below starts CUDA, and forks are broken
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    chosen = args.only or list(CONDITIONS)
    found: dict[str, list[dict]] = defaultdict(list)
    order = random.Random(0)
    began = time.monotonic()
    for number in range(args.processes):
        for condition in order.sample(chosen, len(chosen)):
            with load(condition):
                found[condition].append(in_a_child(lambda c=condition, n=number: measure(c, n, args.seconds)))
    print(f"{args.processes} processes a condition, {time.monotonic() - began:.0f} s")
    print(f"{'workload':16} {'timer':8} {'condition':32} {'ms':>8} {'SD between':>11} {'IQR within':>11}")
    for workload in next(iter(found.values()))[0]:
        for timer in ("latency", "period"):
            for condition in chosen:
                values = [math.log(item[workload][f"{timer}_ms"]) for item in found[condition]]
                within = statistics.fmean(item[workload][f"{timer}_iqr"] for item in found[condition])
                print(
                    f"{workload:16} {timer:8} {condition:32} {math.exp(statistics.fmean(values)):8.4f} "
                    f"{statistics.stdev(values):11.1%} {within:11.1%}"
                )
    if args.out:
        Path(args.out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
