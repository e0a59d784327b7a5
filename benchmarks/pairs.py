"""Are speedups of pairs steadier than those of separate processes, and do pairs change what they
measure?

    python benchmarks/pairs.py [--device cpu] [--rounds 8] [--busy "at times"] [--db FILE]
        [--model MODEL] [--bs SIZES] [--modes MODES] [SETTING ...]
    python benchmarks/pairs.py --tables --db FILE
    python benchmarks/pairs.py --bias [--device cpu] [--seconds 3]

The first form runs each cell in `--rounds` processes, and compares the standard deviation between
processes of both speedups: eager's latency ÷ the mode's latency in separate processes of the same
round, and the median ratio of pairs in one process. `--busy`: other programs work on every core, as
in `busy_host.py`. The second form prints the tables of all sweeps in a database.

The third form times a mode's batches in one process, after eager's batches and after its own ones,
for several numbers of calls that do not count at the start of a batch. The ratio of both is the
bias of pairs.
"""

from __future__ import annotations

import argparse
import dataclasses
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
from effbench.core.cell import StoredTrial
from effbench.measure.pairs import LatencySide
from effbench.measure.rules import Rules
from effbench.measure.timing import Timer, no_garbage_collection
from effbench.models.mlp import MLP
from effbench.modes.base import Example
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import CompiledCudaGraph, CudaGraph
from effbench.store import Store
from effbench.store.summary import CountedTrials

#: The modes that are compared on a GPU.
GPU_MODES = "eager,default,reduce-overhead,cuda-graph,default+graph"


@dataclass(frozen=True)
class Cells:
    """The cells of a sweep: a model, and sizes and modes with commas between them."""

    model: str
    bs: str
    modes: str
    more: tuple[str, ...] = ()

    @property
    def overrides(self) -> list[str]:
        return [f"model={self.model}", f"bs={self.bs}", f"mode={self.modes}", *self.more]


#: The sweeps, by device.
SWEEPS = {
    "cpu": (
        Cells("mlp", "1", "eager,default"),
        Cells("gpt2", "1", "eager,default", ("model.module.layers=2",)),
    ),
    "cuda": (
        Cells("mlp", "8", GPU_MODES),
        Cells("gpt2", "1", GPU_MODES),
        Cells("resnet50", "1,64", GPU_MODES),
    ),
}
#: Timers: the column of the time, and that of the speedup of pairs.
TIMERS = {"latency": ("latency_ms", "pair_speedup"), "period": ("period_ms", "pair_period_speedup")}
WARM_CALLS = (0, 1, 2, 5, 10, 20)
#: Width and number of layers of the modules whose bias is measured: bound by launches, by both, by
#: arithmetic.
SIZES = {"cpu": ((32, 6), (256, 6), (1024, 6)), "cuda": ((256, 12), (2048, 12), (8192, 12))}


# --- spread between processes ---


@dataclass(frozen=True)
class Cell:
    """What a table says about a cell. `point`: its model and batch size."""

    point: str
    mode: str


@dataclass(frozen=True)
class Round:
    """The trials of a mode and of eager in one round, rows of `trial`."""

    own: StoredTrial
    eager: StoredTrial

    @property
    def has_unmarked_pairs(self) -> bool:
        return self.own.pair_disturbance is None

    @property
    def has_unmarked_times(self) -> bool:
        """Whether neither separate process was disturbed."""
        return self.own.disturbance is None and self.eager.disturbance is None


def spread(values: Sequence[float]) -> str:
    """Return the standard deviation of the logarithms."""
    if len(values) < 2:
        return "—"
    return f"{statistics.stdev(math.log(value) for value in values):.1%}"


def average(values: Sequence[float]) -> str:
    if not values:
        return "—"
    return f"{statistics.geometric_mean(values):.3f}"


def first_attempts(rows: Sequence[StoredTrial]) -> list[StoredTrial]:
    return [row for row in rows if row.attempt == 0 and row.status == "ok"]


def rounds_of(
    cell: Cell, rows: Sequence[StoredTrial], cells: dict[str, Cell], pair_column: str
) -> list[Round]:
    """Return the rounds in which this cell has pairs and eager has a time. `cells`: by key."""
    baseline = Cell(cell.point, "eager")
    eager = {row.round: row for row in rows if cells[row.cell_key] == baseline}
    return [
        Round(row, eager[row.round])
        for row in rows
        if cells[row.cell_key] == cell
        and getattr(row, pair_column) is not None
        and row.round in eager
    ]


def compare(cell: Cell, rounds: Sequence[Round], timer: str) -> str:
    """Return the line of the table of speedups."""
    time_column, pair_column = TIMERS[timer]

    def separate(chosen: Sequence[Round]) -> list[float]:
        return [getattr(it.eager, time_column) / getattr(it.own, time_column) for it in chosen]

    def paired(chosen: Sequence[Round]) -> list[float]:
        return [getattr(it.own, pair_column) for it in chosen]

    unmarked_times = [it for it in rounds if it.has_unmarked_times]
    unmarked_pairs = [it for it in rounds if it.has_unmarked_pairs]
    busy_ratios = [getattr(it.own, f"{pair_column}_disturbed") for it in rounds]
    ratio = statistics.geometric_mean(paired(rounds)) / statistics.geometric_mean(separate(rounds))
    values = (
        cell.point,
        cell.mode,
        timer,
        f"{len(rounds)}",
        spread(separate(rounds)),
        spread(paired(rounds)),
        average(paired(rounds)),
        f"{ratio:.3f}",
        average([value for value in busy_ratios if value is not None]),
        f"{len(unmarked_times)}",
        spread(separate(unmarked_times)),
        f"{len(unmarked_pairs)}",
        spread(paired(unmarked_pairs)),
    )
    return f"| {' | '.join(values)} |"


def describe_times(cell: Cell, rows: Sequence[StoredTrial], timer: str) -> str:
    """Return the line of the table of times. `rows`: the cell's trials."""
    column, _ = TIMERS[timer]
    that_count = CountedTrials.of(rows).kept
    disturbed = [row.disturbed_fraction for row in rows if row.disturbed_fraction is not None]
    host = "—"
    if disturbed:
        host = f"{statistics.median(disturbed):.0%} ({min(disturbed):.0%}–{max(disturbed):.0%})"
    values = (
        cell.point,
        cell.mode,
        timer,
        f"{statistics.median(getattr(row, column) for row in rows):.4g}",
        f"{len(rows)}",
        spread([getattr(row, column) for row in rows]),
        f"{len(that_count)}",
        spread([getattr(trial, column) for trial in that_count]),
        host,
        f"{statistics.mean(row.wall_s for row in rows):.1f}",
    )
    return f"| {' | '.join(values)} |"


def print_head(texts: Sequence[str], numbers: Sequence[str]) -> None:
    print(f"\n| {' | '.join([*texts, *numbers])} |")
    print(f"|{' --- |' * len(texts)}{' ---: |' * len(numbers)}")


def print_tables(db: str, sweep_id: str) -> None:
    """Print the tables of a sweep: speedups, then times."""
    results = effbench.results(db, sweep_id)
    cells = {
        row.cell_key: Cell(f"{row.model} bs={row.bs}", row.mode) for row in results.itertuples()
    }
    with Store.open(db, mode="read") as store:
        rows = first_attempts(store.trials(sweep_id))
    timers = [
        timer for timer, (_, column) in TIMERS.items() if any(getattr(row, column) for row in rows)
    ]
    texts = ("cell", "mode", "timer")
    speedups = ("processes", "SD separate", "SD paired", "paired speedup", "paired ÷ separate")
    parts = ("in disturbed moments", "unmarked separate", "SD", "unmarked pairs", "SD")
    print_head(texts, (*speedups, *parts))
    for timer, cell in itertools.product(timers, cells.values()):
        rounds = rounds_of(cell, rows, cells, TIMERS[timer][1])
        if rounds:
            print(compare(cell, rounds, timer), flush=True)
    times = ("median ms", "processes", "SD", "that count", "SD", "host disturbed", "s per trial")
    print_head(texts, times)
    for timer, cell in itertools.product(timers, cells.values()):
        of_cell = [row for row in rows if cells[row.cell_key] == cell]
        if of_cell:
            print(describe_times(cell, of_cell, timer), flush=True)
    for row in results[results["status"] != "ok"].itertuples():
        print(f"{row.model} {row.mode}: {row.status}: {row.reason}")


def chosen_cells(args: argparse.Namespace) -> list[Cells]:
    """Return the sweeps of the device, with the model, sizes and modes of the command."""
    changes = {}
    if args.bs:
        changes["bs"] = args.bs
    if args.modes:
        changes["modes"] = args.modes
    return [
        dataclasses.replace(cells, **changes)
        for cells in SWEEPS[args.device]
        if args.model in (None, cells.model)
    ]


def spreads(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, busy(args.busy):
        db = args.db or str(Path(folder) / "pairs.db")
        for cells in chosen_cells(args):
            began = time.monotonic()
            more = (f"db={db}", f"device={args.device}", f"protocol.rounds={args.rounds}")
            sweep = effbench.sweep([*cells.overrides, *more, *args.settings])
            print_tables(db, sweep.id)
            print(f"(sweep of {cells.model}: {time.monotonic() - began:.0f} s)", flush=True)


def stored_tables(db: str) -> None:
    """Print the tables of all sweeps in a database, oldest first."""
    with Store.open(db, mode="read") as store:
        sweeps = store.sweeps()
    for info in reversed(sweeps):
        print_tables(db, info.id)


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
        name: mode.prepare(module, Example((x,))).step for name, mode in modes.items()
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
    rules = Rules(budget_s=2.0)
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
    parser.add_argument("--bs", help="other batch sizes, with commas between them")
    parser.add_argument("--modes", help="other modes, with commas between them; `eager` among them")
    parser.add_argument(
        "--tables", action="store_true", help="only print the tables of the sweeps in --db"
    )
    parser.add_argument("--bias", action="store_true", help="measure the bias of pairs instead")
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure of --bias")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    if args.tables and not args.db:
        parser.error("--tables needs --db")
    if args.tables:
        stored_tables(args.db)
    elif args.bias:
        biases(args)
    else:
        spreads(args)


if __name__ == "__main__":
    main()
