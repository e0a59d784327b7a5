"""Are speedups of pairs steadier than those of separate processes, and do pairs change what they
measure?

    python benchmarks/pairs.py [--busy "at times"] [--model MODEL] [SETTING ...]
    python benchmarks/pairs.py --tables FILE.db
    python benchmarks/pairs.py --bias

The first form runs each cell in eight processes, and compares the standard deviation between
processes of both speedups: eager's latency ÷ the mode's latency in separate processes of the same
round, and the median ratio of pairs in one process. `--busy`: other programs work on every core, as
in `busy_host.py`. Settings replace those of the sweeps, such as `protocol.rounds=4 db=FILE.db`. The
second form prints the tables of all sweeps in a database.

The third form times a mode's batches in one process, after eager's batches and after its own ones,
for several numbers of calls that do not count at the start of a batch. The ratio of both is the
bias of pairs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, mean, median

import numpy as np
import torch
from busy_host import LOOPS, busy

import effbench
from effbench.core.cell import StoredTrial
from effbench.core.table import Column, Table
from effbench.measure.pairs import LatencySide
from effbench.measure.rules import Rules
from effbench.measure.timing import Timer, no_garbage_collection
from effbench.models.inputs import Step
from effbench.models.mlp import MLP
from effbench.modes.base import Example
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import CompiledCudaGraph, CudaGraph
from effbench.stats.intervals import Interval, median_interval
from effbench.store import Store
from effbench.store.summary import CountedTrials

GPU_MODES = "mode=eager,default,reduce-overhead,cuda-graph,default+graph"
CPU_MODES = "mode=eager,default"
#: The sweeps by device: model -> its settings.
SWEEPS: dict[str, dict[str, tuple[str, ...]]] = {
    "cpu": {
        "mlp": ("bs=1", CPU_MODES),
        "gpt2": ("bs=1", CPU_MODES, "model.module.layers=2"),
    },
    "cuda": {
        "mlp": ("bs=8", GPU_MODES),
        "gpt2": ("bs=1", GPU_MODES),
        "resnet50": ("bs=1,64", GPU_MODES),
    },
}
WARM_CALLS = (0, 1, 2, 5, 10, 20)
#: Seconds for each bias, and the least number of pairs.
BIAS_S, LEAST_PAIRS = 3.0, 20
#: Width and number of layers of the modules whose bias is measured: bound by launches, by both, by
#: arithmetic.
SIZES = {"cpu": ((32, 6), (256, 6), (1024, 6)), "cuda": ((256, 12), (2048, 12), (8192, 12))}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
CELL = [Column("cell"), Column("mode"), Column("timer")]
SPEEDUPS = [
    *CELL,
    Column("processes", numeric=True),
    Column("SD separate", numeric=True),
    Column("SD paired", numeric=True),
    Column("paired speedup", numeric=True),
    Column("paired ÷ separate", numeric=True),
    Column("in disturbed moments", numeric=True),
    Column("unmarked separate", numeric=True),
    Column("sd_unmarked_separate", "SD", numeric=True),
    Column("unmarked pairs", numeric=True),
    Column("sd_unmarked_pairs", "SD", numeric=True),
]
TIMES = [
    *CELL,
    Column("median ms", numeric=True),
    Column("processes", numeric=True),
    Column("sd", "SD", numeric=True),
    Column("that count", numeric=True),
    Column("sd_that_count", "SD", numeric=True),
    Column("host disturbed", numeric=True),
    Column("s per trial", numeric=True),
]


# --- spread between processes


@dataclass(frozen=True)
class Quantity:
    """A timer, and the fields of a trial that hold its time and the speedup of its pairs."""

    timer: str
    time: str
    speedup: str

    def time_of(self, trial: StoredTrial) -> float:
        return getattr(trial, self.time)

    def has_pairs(self, trial: StoredTrial) -> bool:
        return getattr(trial, self.speedup) is not None


QUANTITIES = (
    Quantity("latency", "latency_ms", "pair_speedup"),
    Quantity("period", "period_ms", "pair_period_speedup"),
)


@dataclass(frozen=True)
class Label:
    """What a table says about a cell. `point`: its model and batch size."""

    point: str
    mode: str


@dataclass(frozen=True)
class Round:
    """The trials of a mode and of eager in one round, and the quantity to compare."""

    quantity: Quantity
    mode: StoredTrial
    eager: StoredTrial

    @property
    def has_unmarked_pairs(self) -> bool:
        return self.mode.pair_disturbance is None

    @property
    def has_unmarked_times(self) -> bool:
        """Whether neither separate process was disturbed."""
        return self.mode.disturbance is None and self.eager.disturbance is None

    @property
    def separate(self) -> float:
        """The speedup of separate processes."""
        return self.quantity.time_of(self.eager) / self.quantity.time_of(self.mode)

    @property
    def paired(self) -> float:
        """The speedup of pairs in one process."""
        return getattr(self.mode, self.quantity.speedup)

    @property
    def disturbed(self) -> float | None:
        """The speedup of pairs in disturbed moments, if there were some."""
        return getattr(self.mode, f"{self.quantity.speedup}_disturbed")


@dataclass(frozen=True)
class MeasuredSweep:
    """The first attempts of a sweep that are ok, and the label of each cell by key."""

    trials: list[StoredTrial]
    labels: dict[str, Label]

    @classmethod
    def read(cls, db: str, sweep_id: str) -> MeasuredSweep:
        labels = {}
        for row in effbench.results(db, sweep_id).itertuples():
            labels[row.cell_key] = Label(f"{row.model} bs={row.bs}", row.mode)
        with Store.open(db, mode="read") as store:
            trials = store.trials(sweep_id)
        usable = [trial for trial in trials if trial.attempt == 0 and trial.status == "ok"]
        return cls(usable, labels)

    @property
    def quantities(self) -> list[Quantity]:
        """Those of which there are pairs."""
        return [quantity for quantity in QUANTITIES if any(map(quantity.has_pairs, self.trials))]

    def trials_of(self, label: Label) -> list[StoredTrial]:
        return [trial for trial in self.trials if self.labels[trial.cell_key] == label]

    def rounds_of(self, label: Label, quantity: Quantity) -> list[Round]:
        """Return the rounds in which this cell has pairs and eager has a time."""
        eager = {trial.round: trial for trial in self.trials_of(Label(label.point, "eager"))}
        rounds = []
        for trial in self.trials_of(label):
            if quantity.has_pairs(trial) and trial.round in eager:
                rounds.append(Round(quantity, trial, eager[trial.round]))
        return rounds

    def print_tables(self) -> None:
        """Print the table of speedups, and that of times."""
        speedups, times = [], []
        for quantity in self.quantities:
            for label in self.labels.values():
                names = [label.point, label.mode, quantity.timer]
                rounds = self.rounds_of(label, quantity)
                trials = self.trials_of(label)
                if rounds:
                    speedups.append([*names, *speedup_figures(rounds)])
                if trials:
                    times.append([*names, *time_figures(trials, quantity)])
        print()
        print(Table.of(SPEEDUPS, speedups).render("markdown"))
        print(Table.of(TIMES, times).render("markdown"), end="", flush=True)


def speedup_figures(rounds: Sequence[Round]) -> list[str]:
    """Return the figures of a row of the table of speedups."""
    separate = [round.separate for round in rounds]
    paired = [round.paired for round in rounds]
    disturbed = [round.disturbed for round in rounds]
    unmarked = [round.separate for round in rounds if round.has_unmarked_times]
    unmarked_pairs = [round.paired for round in rounds if round.has_unmarked_pairs]
    return [
        str(len(rounds)),
        spread(separate),
        spread(paired),
        average(paired),
        f"{geometric_mean(paired) / geometric_mean(separate):.3f}",
        average(speedup for speedup in disturbed if speedup is not None),
        str(len(unmarked)),
        spread(unmarked),
        str(len(unmarked_pairs)),
        spread(unmarked_pairs),
    ]


def time_figures(trials: Sequence[StoredTrial], quantity: Quantity) -> list[str]:
    """Return the figures of a row of the table of times. `trials`: the cell's."""
    times_ms = [quantity.time_of(trial) for trial in trials]
    counted_ms = [quantity.time_of(trial) for trial in CountedTrials.of(trials).kept]
    fractions = [trial.disturbed_fraction for trial in trials]
    disturbed = [fraction for fraction in fractions if fraction is not None]
    host = "—"
    if disturbed:
        host = f"{median(disturbed):.0%} ({min(disturbed):.0%}–{max(disturbed):.0%})"
    return [
        f"{median(times_ms):.4g}",
        str(len(times_ms)),
        spread(times_ms),
        str(len(counted_ms)),
        spread(counted_ms),
        host,
        f"{mean(trial.wall_s for trial in trials):.1f}",
    ]


def spread(values: Sequence[float]) -> str:
    """Return the standard deviation of the logarithms."""
    if len(values) < 2:
        return "—"
    return f"{np.std(np.log(values), ddof=1):.1%}"


def average(values: Iterable[float]) -> str:
    values = list(values)
    if not values:
        return "—"
    return f"{geometric_mean(values):.3f}"


def measure(device: str, model: str | None, kind: str | None, settings: Sequence[str]) -> None:
    """Run the sweeps of the device, or that of one model, while other programs work."""
    with tempfile.TemporaryDirectory() as folder, busy(kind):
        common = [f"device={device}", "protocol.rounds=8", f"db={folder}/pairs.db", *settings]
        for name, cells in SWEEPS[device].items():
            if model not in (None, name):
                continue
            began_s = time.monotonic()
            sweep = effbench.sweep([f"model={name}", *cells, *common])
            wall_s = time.monotonic() - began_s
            print_sweep(sweep.db, sweep.id)
            print(f"(sweep of {name}: {wall_s:.0f} s)", flush=True)


def print_sweep(db: str, sweep_id: str) -> None:
    MeasuredSweep.read(db, sweep_id).print_tables()
    results = effbench.results(db, sweep_id)
    failed = results[results["status"] != "ok"]
    for row in failed.itertuples():
        print(f"{row.model} {row.mode}: {row.status}: {row.reason}")


def print_sweeps(db: str) -> None:
    """Print the tables of all sweeps in a database, oldest first."""
    with Store.open(db, mode="read") as store:
        sweeps = store.sweeps()
    for sweep in reversed(sweeps):
        print_sweep(db, sweep.id)


# --- bias


def steps(module: MLP, x: torch.Tensor) -> dict[str, Step]:
    """Return mode -> its step."""
    modes = {"default": Compiled()}
    if x.is_cuda:
        modes |= {"cuda-graph": CudaGraph(), "default+graph": CompiledCudaGraph()}
    prepared: dict[str, Step] = {"eager": module}
    for name, mode in modes.items():
        prepared[name] = mode.prepare(module, Example((x,))).step
    return prepared


def bias_of(timer: Timer, eager: Timer, warm_calls: int) -> Interval:
    """Return the median time of a mode's batch after one of eager ÷ after one of its own, if this
    number of calls does not count."""
    mode_ms = warm_ms(timer)
    side = LatencySide(timer, mode_ms, warm_calls)
    mode_before = LatencySide(timer, mode_ms)
    eager_before = LatencySide(eager, warm_ms(eager))
    ratios: list[float] = []
    until_s = time.perf_counter() + BIAS_S
    while time.perf_counter() < until_s or len(ratios) < LEAST_PAIRS:
        if len(ratios) % 2:
            after_eager_ms = ms_after(eager_before, side)
            after_mode_ms = ms_after(mode_before, side)
        else:
            after_mode_ms = ms_after(mode_before, side)
            after_eager_ms = ms_after(eager_before, side)
        ratios.append(after_eager_ms / after_mode_ms)
    return median_interval(ratios)


def warm_ms(timer: Timer) -> float:
    """Return the latency at the end of a warm-up."""
    return median(timer.warm_up().samples_ms[-20:])


def ms_after(before: LatencySide, side: LatencySide) -> float:
    before.batch()
    return side.batch().ms


def print_biases(device: str) -> None:
    columns = [Column("width", numeric=True), Column("mode"), Column("ms", numeric=True)]
    for calls in WARM_CALLS:
        columns.append(Column(f"{calls} warm calls", numeric=True))
    rows = []
    for width, layers in SIZES[device]:
        with torch.inference_mode(), no_garbage_collection():
            timers = timers_of(device, width, layers)
            for mode, timer in timers.items():
                row = [str(width), mode, f"{warm_ms(timer):.3g}"]
                for calls in WARM_CALLS:
                    bias = bias_of(timer, timers["eager"], calls)
                    row.append(f"{bias.value:.3f} ({bias.low:.3f}–{bias.high:.3f})")
                rows.append(row)
    print(Table.of(columns, rows).render("markdown"))


def timers_of(device: str, width: int, layers: int) -> dict[str, Timer]:
    """Return mode -> timer of an MLP."""
    like = {"device": device, "dtype": DTYPES[device]}
    module = MLP(width=width, depth=layers).to(**like).eval()
    x = torch.randn(8, width, **like)
    timers = {}
    for mode, step in steps(module, x).items():
        timers[mode] = Timer(step, [((x,), {})], torch.device(device), Rules(budget_s=2.0))
    return timers


def main() -> None:
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", choices=list(LOOPS), help="other programs on every core")
    parser.add_argument("--model", help="only this model of the sweeps")
    parser.add_argument("--tables", metavar="FILE.db", help="only print the tables of its sweeps")
    parser.add_argument("--bias", action="store_true", help="measure the bias of pairs instead")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    if args.tables:
        print_sweeps(args.tables)
    elif args.bias:
        print_biases(device)
    else:
        measure(device, args.model, args.busy, args.settings)


if __name__ == "__main__":
    main()
