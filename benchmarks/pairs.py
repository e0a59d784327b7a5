"""Are speedups of pairs steadier than those of separate processes, and do pairs change what they
measure?

    python benchmarks/pairs.py [--device cpu] [--rounds 8] [--busy "at times"] [--db FILE]
        [SETTING ...]
    python benchmarks/pairs.py --bias [--device cpu] [--seconds 3]

The first form runs each cell in `--rounds` processes, and compares the standard deviation between
processes of both speedups: eager's latency ÷ the mode's latency in separate processes of the same
round, and the median ratio of pairs in one process. `--busy`: other programs work on every core, as
in `busy_host.py`.

The second form times a mode's batches in one process, after eager's batches and after its own ones,
for several numbers of calls that do not count at the start of a batch. The ratio of both is the
bias of pairs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from busy_host import LOOPS, busy

import effbench
from effbench.measure.pairs import LatencySide
from effbench.measure.timing import Rules, Timer, no_garbage_collection
from effbench.models.mlp import MLP
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import CompiledCudaGraph, CudaGraph
from effbench.store import Store

#: Overrides of each sweep, by device.
SWEEPS = {
    "cpu": (
        ("model=mlp", "bs=1", "mode=eager,default"),
        ("model=gpt2", "bs=1", "model.module.layers=2", "mode=eager,default"),
    ),
    "cuda": (
        ("model=mlp", "bs=8", "mode=eager,default,reduce-overhead,cuda-graph,default+graph"),
        ("model=gpt2", "bs=1", "mode=eager,default,reduce-overhead,cuda-graph,default+graph"),
        (
            "model=resnet50",
            "bs=1,64",
            "mode=eager,default,reduce-overhead,cuda-graph,default+graph",
        ),
    ),
}
#: Timers: the column of the time, and that of the speedup of pairs.
TIMERS = {"latency": ("latency_ms", "pair_speedup"), "period": ("period_ms", "pair_period_speedup")}
WARM_CALLS = (0, 1, 2, 5, 10, 20)
#: Width and number of layers of the modules whose bias is measured: bound by launches, by both, by
#: arithmetic.
SIZES = {"cpu": ((32, 6), (256, 6), (1024, 6)), "cuda": ((256, 12), (2048, 12), (8192, 12))}


# --- spread between processes ---


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms."""
    return statistics.stdev(math.log(value) for value in values)


def first_attempts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["attempt"] == 0 and row["status"] == "ok"]


def compare(
    rows: Sequence[dict[str, Any]], names: dict[str, tuple[str, str]], timer: str
) -> list[str]:
    """Return the lines of the table for one timer. `names`: cell key -> the point (model and bs)
    and the mode."""
    time_column, pair_column = TIMERS[timer]
    eager = {
        (names[row["cell_key"]][0], row["round"]): row[time_column]
        for row in rows
        if names[row["cell_key"]][1] == "eager"
    }
    lines = []
    for key, (point, mode) in names.items():
        of_cell = [row for row in rows if row["cell_key"] == key and row[pair_column] is not None]
        both = [row for row in of_cell if (point, row["round"]) in eager]
        if mode == "eager" or len(both) < 2:
            continue
        separate = [eager[point, row["round"]] / row[time_column] for row in both]
        paired = [row[pair_column] for row in both]
        ratio = statistics.geometric_mean(paired) / statistics.geometric_mean(separate)
        marked = sum(row["pair_disturbance"] is not None for row in both)
        busy_column = f"{pair_column}_disturbed"
        disturbed = [row[busy_column] for row in both if row[busy_column] is not None]
        values = (
            point,
            mode,
            timer,
            f"{len(both)}",
            f"{spread(separate):.1%}",
            f"{spread(paired):.1%}",
            f"{statistics.geometric_mean(paired):.3f}",
            f"{ratio:.3f}",
            f"{statistics.geometric_mean(disturbed):.3f}" if disturbed else "—",
            f"{marked}",
        )
        lines.append(f"| {' | '.join(values)} |")
    return lines


def spreads(args: argparse.Namespace) -> None:
    headings = (
        "cell",
        "mode",
        "timer",
        "processes",
        "SD separate",
        "SD paired",
        "paired speedup",
        "paired ÷ separate",
        "in disturbed moments",
        "marked",
    )
    print(f"| {' | '.join(headings)} |")
    print(f"| --- | --- | --- |{' ---: |' * (len(headings) - 3)}")
    with tempfile.TemporaryDirectory() as folder, busy(args.busy):
        db = args.db or str(Path(folder) / "pairs.db")
        chosen = [
            words
            for words in SWEEPS[args.device]
            if not args.model or words[0] == f"model={args.model}"
        ]
        for words in chosen:
            began = time.monotonic()
            rounds = f"protocol.rounds={args.rounds}"
            more = (f"db={db}", f"device={args.device}", *args.settings)
            sweep = effbench.sweep([*words, rounds, *more])
            results = sweep.results()
            names = {
                row.cell_key: (f"{row.model} bs={row.bs}", row.mode) for row in results.itertuples()
            }
            with Store.open(db, mode="read") as store:
                rows = first_attempts(store.trials(sweep.id))
            for timer, (column, _) in TIMERS.items():
                if any(row[column] is not None for row in rows):
                    print("\n".join(compare(rows, names, timer)), flush=True)
            for row in results[results["status"] != "ok"].itertuples():
                print(f"{row.model} {row.mode}: {row.status}: {row.reason}")
            print(f"(sweep of {words[0]}: {time.monotonic() - began:.0f} s)", flush=True)


# --- bias ---


@dataclass(frozen=True)
class Bias:
    """The time of a mode's batch after one of eager ÷ the time after one of its own, with the
    bounds of its median."""

    ratio: float
    low: float
    high: float


def steps(device: str, module: torch.nn.Module, x: torch.Tensor) -> dict[str, Callable[..., Any]]:
    modes = {"default": Compiled()}
    if device == "cuda":
        modes |= {"cuda-graph": CudaGraph(), "default+graph": CompiledCudaGraph()}
    return {"eager": module} | {
        name: mode.prepare(module, (x,), {}).step for name, mode in modes.items()
    }


def bias_of(own: Timer, eager: Timer, warm_calls: int, seconds: float) -> Bias:
    """Return the bias with this number of calls that do not count."""
    own_ms = statistics.median(own.warm_up().samples_ms[-20:])
    eager_ms = statistics.median(eager.warm_up().samples_ms[-20:])
    side = LatencySide(own, own_ms, warm_calls)
    others = {"eager": LatencySide(eager, eager_ms), "own": LatencySide(own, own_ms)}
    ratios = []
    until = time.perf_counter() + seconds
    for number in itertools.count():
        order = ("eager", "own") if number % 2 else ("own", "eager")
        after: dict[str, float] = {}
        for name in order:
            others[name].batch()
            after[name] = side.batch().ms
        ratios.append(after["eager"] / after["own"])
        if time.perf_counter() >= until and len(ratios) >= 20:
            break
    ratios.sort()
    half = 0.98 * math.sqrt(len(ratios))  # order statistics of a 95 % interval
    middle = (len(ratios) - 1) / 2
    low, high = max(0, math.floor(middle - half)), min(len(ratios) - 1, math.ceil(middle + half))
    return Bias(statistics.median(ratios), ratios[low], ratios[high])


def biases(args: argparse.Namespace) -> None:
    device = torch.device(args.device)
    rules = Rules(2.0, 0.5, 30, 0.005, 100_000, 10, 0.2, 5.0)
    print(
        "| width | mode | ms | " + " | ".join(f"{calls} warm calls" for calls in WARM_CALLS) + " |"
    )
    print(f"| ---: | --- |{' ---: |' * (1 + len(WARM_CALLS))}")
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    for width, layers in SIZES[args.device]:
        module = MLP(width=width, depth=layers).to(device, dtype).eval()
        x = torch.randn(8, width, device=device, dtype=dtype)
        with torch.inference_mode(), no_garbage_collection():
            made = steps(args.device, module, x)
            timers = {name: Timer(step, [((x,), {})], device, rules) for name, step in made.items()}
            for name, timer in timers.items():
                found = [
                    bias_of(timer, timers["eager"], calls, args.seconds) for calls in WARM_CALLS
                ]
                cells = [f"{it.ratio:.3f} ({it.low:.3f}–{it.high:.3f})" for it in found]
                ms = statistics.median(timer.warm_up().samples_ms[-20:])
                print(f"| {width} | {name} | {ms:.3g} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=list(SWEEPS)
    )
    parser.add_argument("--rounds", type=int, default=8, help="processes per cell")
    parser.add_argument("--busy", choices=list(LOOPS), help="other programs on every core")
    parser.add_argument("--db", help="database to keep; default: a temporary one")
    parser.add_argument("--model", help="only this model of the sweeps")
    parser.add_argument("--bias", action="store_true", help="measure the bias of pairs instead")
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure of --bias")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    if args.bias:
        biases(args)
    else:
        spreads(args)


if __name__ == "__main__":
    main()
