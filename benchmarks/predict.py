"""How well do figures of one trial in eager predict the speedups of other modes?

    python benchmarks/predict.py [--write]
    python benchmarks/predict.py --db FILE.db [FILE.db ...]

The first form fits `effbench/analysis/predict.py` on the reference sweeps and prints the errors for
networks that were left out of the fit, all their batch sizes, tasks and GPUs at once, next to those
of simpler predictions. `--write` stores the fit in `effbench/analysis/predictor.json`. The second
form prints the errors of the stored fit on other sweeps.

Error: |predicted ÷ measured speedup − 1| in latency. Times are fitted by non-negative least squares
of relative deviations: first a mode's host and GPU times, then its latency on the longer of both.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import nnls

from effbench.analysis.predict import DATA, EagerProfile, ModeFit, Predictor, shipped
from effbench.core.cell import Result, Status
from effbench.core.errors import NothingFoundError
from effbench.core.labels import MODES, grouped
from effbench.core.table import Column, Record, Table
from effbench.store import Store
from effbench.store.maintenance import upgrade
from effbench.store.schema import TRIAL

REFERENCE = Path(__file__).resolve().parents[1] / "results" / "reference"
DATABASES = [REFERENCE / "h100-sweeps.db", REFERENCE / "h200-sweeps.db"]
DTYPE = "bfloat16"
#: Ends of names that are tasks of one network.
TASKS = re.compile("-(decode|prefill|encode|logits)$")
#: A mode whose median error is larger is left out.
LARGEST_ERROR = 0.25
#: Fewer points at which the same modes were measured say nothing of choices.
LEAST_POINTS = 20
#: What the predictor is compared with.
MEDIAN, GRAPH = "median of the mode", "latency ÷ GPU busy time"
CHOSEN, CONFIDENT = "effbench", "effbench, when sure"
ERRORS = [
    Column("mode"),
    Column("way", "predicted by"),
    Column("networks", numeric=True),
    Column("results", numeric=True),
    Column("median", "median error", numeric=True),
    Column("high", "90th percentile", numeric=True),
    Column("worst", "largest", numeric=True),
    Column("network", "worst network"),
]
FACTORS = ["constant_ms", "host_ms", "host_kept", "host_fused", "gpu_kept", "gpu_fused"]
CHOICES = [
    Column("modes", "measured together"),
    Column("points", numeric=True),
    Column("way", "chosen by"),
    Column("hits", "the fastest", numeric=True),
    Column("mean", "latency ÷ the fastest's, mean", numeric=True),
    Column("worst", "largest", numeric=True),
]


@dataclass(frozen=True)
class Row:
    """A mode's result, and the profile of the same model in eager in the same sweep."""

    eager: EagerProfile
    result: Result

    @property
    def network(self) -> str:
        return TASKS.sub("", self.result.model)

    @property
    def point(self) -> tuple[str, str, int]:
        """The sweep, model and batch size that it shares with other modes."""
        return self.result.sweep_id, self.result.model, self.result.bs

    @property
    def speedup(self) -> float:
        return self.eager.latency_ms / self.result.latency_ms


@dataclass(frozen=True)
class Guess:
    """A row, and its speedup as predicted. `is_sure`: whether the fitted networks are alike."""

    row: Row
    speedup: float
    is_sure: bool = True

    @classmethod
    def by_fit(cls, row: Row, fitted: ModeFit) -> Guess:
        speedup = row.eager.latency_ms / fitted.latency_ms(row.eager)
        return cls(row, speedup, fitted.why_unsure(row.eager) is None)

    @property
    def error(self) -> float:
        return abs(self.speedup / self.row.speedup - 1)


@dataclass(frozen=True)
class Point:
    """Modes of a model that were measured together: mode -> speedup. Eager has 1."""

    measured: Mapping[str, float]
    predicted: Mapping[str, float]

    @classmethod
    def of(cls, guesses: Sequence[Guess]) -> Point:
        measured = {guess.row.result.mode: guess.row.speedup for guess in guesses}
        predicted = {guess.row.result.mode: guess.speedup for guess in guesses}
        return cls(measured | {"eager": 1.0}, predicted | {"eager": 1.0})

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(mode for mode in self.measured if mode != "eager")

    @property
    def chosen(self) -> str:
        """The mode with the highest predicted speedup."""
        return max(self.predicted, key=lambda mode: self.predicted[mode])

    def loss(self, mode: str) -> float:
        """Return the mode's latency ÷ that of the fastest."""
        return max(self.measured.values()) / self.measured[mode]


# --- rows


def rows_of(databases: Sequence[Path]) -> list[Row]:
    """Return the rows of all modes, of results that are ok and not marked."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        for number, database in enumerate(databases):
            copy = shutil.copy(database, Path(folder) / f"{number}.db")
            upgrade(str(copy))
            with Store.open(str(copy)) as store:
                for sweep in store.sweeps():
                    rows += rows_in(store, sweep.id)
    return rows


def rows_in(store: Store, sweep_id: str) -> Iterator[Row]:
    usable = [result for result in store.results(sweep_id) if is_usable(result)]
    alike = grouped(usable, lambda result: (result.model, result.bs, result.environment_id))
    for results in alike.values():
        of_modes = {result.mode: result for result in results}
        eager = of_modes.pop("eager", None)
        if eager is None:
            continue
        with suppress(NothingFoundError):  # not profiled
            trials = store.read_trials(sweep_id, TRIAL.c.cell_key == eager.cell_key)
            profile = EagerProfile.of(eager, trials[-1])
            for result in of_modes.values():
                yield Row(profile, result)


def is_usable(result: Result) -> bool:
    if result.status is not Status.OK or result.marked:
        return False
    return "stream" not in result.params


def by_mode(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each mode, in the order of MODES."""
    of_modes = grouped(rows, lambda row: row.result.mode)
    return {mode: of_modes[mode] for mode in MODES if mode in of_modes}


# --- fits


def solve(columns: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """Return the non-negative factors of the columns whose sum deviates least, relatively."""
    values = np.array(measured)
    relative = np.array(columns) / values
    factors, _ = nnls(relative.T, np.ones(len(values)))
    return factors.tolist()


def fit(rows: Sequence[Row]) -> ModeFit:
    """Fit a mode on its rows, without the bounds of its speedup."""
    eager = pd.DataFrame([row.eager for row in rows])
    measured = pd.DataFrame([row.result for row in rows])
    traits = pd.DataFrame([row.eager.traits for row in rows])
    ones = [1.0] * len(rows)
    host = [ones, eager.host_kept_ms, eager.host_fused_ms]
    gpu = [eager.gpu_kept_ms, eager.gpu_fused_ms]
    host_ms, host_kept, host_fused = solve(host, measured.enqueue_ms)
    gpu_kept, gpu_fused = solve(gpu, measured.gpu_busy_ms)
    unscaled = ModeFit(
        constant_ms=0.0,
        host_ms=host_ms,
        host_kept=host_kept,
        host_fused=host_fused,
        gpu_kept=gpu_kept,
        gpu_fused=gpu_fused,
        low=1.0,
        high=1.0,
        least=traits.min().to_dict(),
        most=traits.max().to_dict(),
    )
    longer_ms = [unscaled.latency_ms(row.eager) for row in rows]
    constant_ms, factor = solve([ones, longer_ms], measured.latency_ms)
    return msgspec.structs.replace(
        unscaled,
        constant_ms=constant_ms,
        host_ms=factor * host_ms,
        host_kept=factor * host_kept,
        host_fused=factor * host_fused,
        gpu_kept=factor * gpu_kept,
        gpu_fused=factor * gpu_fused,
    )


def left_out(rows: Sequence[Row]) -> list[Guess]:
    """Predict each row by the fit on the rows of all other networks."""
    guesses = []
    for network, of_network in grouped(rows, lambda row: row.network).items():
        fitted = fit([row for row in rows if row.network != network])
        guesses += [Guess.by_fit(row, fitted) for row in of_network]
    return guesses


def fit_all(rows: Sequence[Row]) -> Predictor:
    """Fit the modes that can be predicted, with bounds from the networks that were left out."""
    modes = {}
    for mode, of_mode in by_mode(rows).items():
        guesses = left_out(of_mode)
        if median(guess.error for guess in guesses) <= LARGEST_ERROR:
            ratios = [guess.row.speedup / guess.speedup for guess in guesses]
            low, high = np.quantile(ratios, [0.1, 0.9]).tolist()
            modes[mode] = msgspec.structs.replace(fit(of_mode), low=low, high=high)
    gpus = sorted({row.result.gpu_name for row in rows})
    return Predictor(gpus, DTYPE, modes)


# --- simpler predictions


def by_median(rows: Sequence[Row]) -> list[Guess]:
    """Predict each row by the median speedup of all other networks."""
    guesses = []
    for row in rows:
        others = [other.speedup for other in rows if other.network != row.network]
        guesses.append(Guess(row, median(others)))
    return guesses


def by_graph(rows: Sequence[Row]) -> list[Guess]:
    """Predict each row by eager's latency ÷ GPU busy time."""
    guesses = []
    for row in rows:
        busy_ms = row.eager.gpu_kept_ms + row.eager.gpu_fused_ms
        guesses.append(Guess(row, row.eager.latency_ms / busy_ms))
    return guesses


# --- tables


def error_table(rows: Sequence[Row]) -> Table:
    """Return the errors of each mode for networks that were left out, by way of prediction."""
    lines = []
    for mode, of_mode in by_mode(rows).items():
        lines.append(error_line(mode, MEDIAN, by_median(of_mode)))
        lines.append(error_line(mode, GRAPH, by_graph(of_mode)))
        lines += fit_lines(mode, left_out(of_mode))
    return Table(ERRORS, lines)


def other_table(rows: Sequence[Row], predictor: Predictor) -> Table:
    """Return the errors of the stored fit on other sweeps."""
    lines = []
    for mode, of_mode in by_mode(rows).items():
        fitted = predictor.modes.get(mode)
        if fitted is not None:
            lines += fit_lines(mode, [Guess.by_fit(row, fitted) for row in of_mode])
    return Table(ERRORS, lines)


def fit_lines(mode: str, guesses: Sequence[Guess]) -> list[Record]:
    """Return a line for all predictions of a fit, and one for the sure ones, if there are any."""
    lines = [error_line(mode, CHOSEN, guesses)]
    sure = [guess for guess in guesses if guess.is_sure]
    if sure:
        lines.append(error_line(mode, CONFIDENT, sure))
    return lines


def error_line(mode: str, way: str, guesses: Sequence[Guess]) -> Record:
    networks = [guess.row.network for guess in guesses]
    errors = pd.Series([guess.error for guess in guesses], index=networks)
    of_networks = errors.groupby(level=0).median()
    worst = of_networks.idxmax()
    return {
        "mode": mode,
        "way": way,
        "networks": str(len(of_networks)),
        "results": str(len(errors)),
        "median": f"{errors.median():.1%}",
        "high": f"{errors.quantile(0.9):.0%}",
        "worst": f"{errors.max():.0%}",
        "network": f"{worst} ({of_networks[worst]:.0%})",
    }


def fit_table(predictor: Predictor) -> Table:
    """Return the fitted factors of each mode, and the bounds of its speedup."""
    names = [*FACTORS, "low", "high"]
    columns = [Column("mode"), *(Column(name, numeric=True) for name in names)]
    lines = []
    for mode, fitted in predictor.modes.items():
        factors = {name: f"{getattr(fitted, name):.3f}" for name in names}
        lines.append({"mode": mode} | factors)
    return Table(columns, lines)


def choice_table(rows: Sequence[Row]) -> Table:
    """Return how good the mode with the highest predicted speedup is, and how good each mode is
    that is always chosen, where several modes were measured together."""
    guesses: list[Guess] = []
    for of_mode in by_mode(rows).values():
        guesses += left_out(of_mode)
    measured_together = grouped(guesses, lambda guess: guess.row.point)
    points = [Point.of(together) for together in measured_together.values()]
    lines = []
    for modes, alike in grouped(points, lambda point: point.modes).items():
        if len(modes) > 1 and len(alike) >= LEAST_POINTS:
            lines += choice_lines(modes, alike)
    return Table(CHOICES, lines)


def choice_lines(modes: Sequence[str], points: Sequence[Point]) -> list[Record]:
    losses = {CHOSEN: [point.loss(point.chosen) for point in points]}
    for mode in modes:
        losses[f"always {mode}"] = [point.loss(mode) for point in points]
    lines = []
    for way, of_way in losses.items():
        line = {
            "modes": ", ".join(modes),
            "points": str(len(points)),
            "way": way,
            "hits": str(of_way.count(1.0)),
            "mean": f"{np.mean(of_way):.2f}",
            "worst": f"{max(of_way):.2f}",
        }
        lines.append(line)
    return lines


# --- command line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="store the fit")
    parser.add_argument("--db", type=Path, nargs="+", help="other databases to predict")
    args = parser.parse_args()
    if args.db:
        print(other_table(rows_of(args.db), shipped()).render("markdown"))
        return
    rows = rows_of(DATABASES)
    predictor = fit_all(rows)
    print(error_table(rows).render("markdown"))
    print(fit_table(predictor).render("markdown"))
    print(choice_table(rows).render("markdown"))
    if args.write:
        store(predictor)


def store(predictor: Predictor) -> None:
    data = rounded(msgspec.to_builtins(predictor))
    text = msgspec.json.encode(data)
    DATA.write_bytes(msgspec.json.format(text, indent=1))


def rounded(data: object) -> object:
    """Return plain data with six significant digits."""
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    return data


if __name__ == "__main__":
    main()
