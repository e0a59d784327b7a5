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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import nnls

from effbench.analysis.predict import DATA, EagerProfile, ModeFit, Predictor, shipped
from effbench.core.cell import Result, Status
from effbench.core.errors import NothingFoundError
from effbench.core.labels import MODES, grouped
from effbench.core.table import Column, Table
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
#: What the predictor is compared with.
MEDIAN, GRAPH = "median of the mode", "latency ÷ GPU busy time"
CHOSEN, CONFIDENT = "effbench", "effbench, when sure"


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


Prediction = Callable[[Row], float]


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
    usable = [
        result
        for result in store.results(sweep_id)
        if result.status is Status.OK and not result.marked and "stream" not in result.params
    ]
    alike = grouped(usable, lambda result: (result.model, result.bs, result.environment_id))
    for results in alike.values():
        by_mode = {result.mode: result for result in results}
        eager = by_mode.pop("eager", None)
        if eager is None:
            continue
        with suppress(NothingFoundError):  # not profiled
            trials = store.read_trials(sweep_id, TRIAL.c.cell_key == eager.cell_key)
            profile = EagerProfile.of(eager, trials[-1])
            for result in by_mode.values():
                yield Row(profile, result)


# --- fits


def solve(columns: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """Return the non-negative factors of the columns whose sum deviates least, relatively."""
    matrix = np.column_stack(columns) / np.array(measured)[:, None]
    factors, _ = nnls(matrix, np.ones(len(measured)))
    return [float(factor) for factor in factors]


def fit(rows: Sequence[Row]) -> ModeFit:
    """Fit a mode on its rows, without the bounds of its speedup."""
    eager = [row.eager for row in rows]
    ones = [1.0] * len(rows)
    host_ms, host_kept, host_fused = solve(
        [ones, [it.host_kept_ms for it in eager], [it.host_fused_ms for it in eager]],
        [row.result.enqueue_ms for row in rows],
    )
    gpu_kept, gpu_fused = solve(
        [[it.gpu_kept_ms for it in eager], [it.gpu_fused_ms for it in eager]],
        [row.result.gpu_busy_ms for row in rows],
    )
    names = list(eager[0].traits)
    unscaled = ModeFit(
        constant_ms=0.0,
        host_ms=host_ms,
        host_kept=host_kept,
        host_fused=host_fused,
        gpu_kept=gpu_kept,
        gpu_fused=gpu_fused,
        low=1.0,
        high=1.0,
        least={name: min(it.traits[name] for it in eager) for name in names},
        most={name: max(it.traits[name] for it in eager) for name in names},
    )
    longer_ms = [unscaled.latency_ms(it) for it in eager]
    constant_ms, factor = solve([ones, longer_ms], [row.result.latency_ms for row in rows])
    scaled = {
        name: factor * getattr(unscaled, name)
        for name in ("host_ms", "host_kept", "host_fused", "gpu_kept", "gpu_fused")
    }
    return msgspec.structs.replace(unscaled, constant_ms=constant_ms, **scaled)


def left_out(rows: Sequence[Row]) -> list[tuple[Row, ModeFit]]:
    """Return each row with the fit on the rows of all other networks."""
    pairs = []
    for network, of_network in grouped(rows, lambda row: row.network).items():
        fitted = fit([row for row in rows if row.network != network])
        pairs += [(row, fitted) for row in of_network]
    return pairs


def by_mode(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each mode, in the order of MODES."""
    of_modes = grouped(rows, lambda row: row.result.mode)
    return {mode: of_modes[mode] for mode in MODES if mode in of_modes}


def fit_all(rows: Sequence[Row]) -> Predictor:
    """Fit the modes that can be predicted, with bounds from the networks that were left out."""
    modes = {}
    for mode, of_mode in by_mode(rows).items():
        ratios = np.array(
            [row.speedup / predicted(row, fitted) for row, fitted in left_out(of_mode)]
        )
        if np.median(np.abs(1 / ratios - 1)) <= LARGEST_ERROR:
            low, high = map(float, np.quantile(ratios, [0.1, 0.9]))
            modes[mode] = msgspec.structs.replace(fit(of_mode), low=low, high=high)
    gpus = sorted({row.result.gpu_name for row in rows})
    return Predictor(gpus, DTYPE, modes)


def predicted(row: Row, fitted: ModeFit) -> float:
    return row.eager.latency_ms / fitted.latency_ms(row.eager)


# --- tables


def errors_of(pairs: Sequence[tuple[Row, float]]) -> np.ndarray:
    return np.array([abs(speedup / row.speedup - 1) for row, speedup in pairs])


def median_of_others(rows: Sequence[Row], row: Row) -> float:
    return float(np.median([other.speedup for other in rows if other.network != row.network]))


def error_table(rows: Sequence[Row]) -> Table:
    """Return the errors of each mode for networks that were left out, by way of prediction."""
    lines = []
    for mode, of_mode in by_mode(rows).items():
        pairs = left_out(of_mode)
        ways = {
            MEDIAN: [(row, median_of_others(of_mode, row)) for row in of_mode],
            GRAPH: [(row, row.eager.latency_ms / busy_ms(row)) for row in of_mode],
            CHOSEN: [(row, predicted(row, fitted)) for row, fitted in pairs],
            CONFIDENT: [
                (row, predicted(row, fitted))
                for row, fitted in pairs
                if not fitted.why_unsure(row.eager)
            ],
        }
        for way, answers in ways.items():
            lines.append(line_of(mode, way, answers))
    return Table(COLUMNS, lines)


COLUMNS = [
    Column("mode"),
    Column("way", "predicted by"),
    Column("networks", numeric=True),
    Column("results", numeric=True),
    Column("median", "median error", numeric=True),
    Column("high", "90th percentile", numeric=True),
    Column("worst", "largest", numeric=True),
    Column("network", "worst network"),
]


def line_of(mode: str, way: str, answers: Sequence[tuple[Row, float]]) -> dict[str, str]:
    errors = errors_of(answers)
    networks = [row.network for row, _ in answers]
    by_network = {
        name: np.median(errors[[network == name for network in networks]]) for name in networks
    }
    worst = max(by_network, key=lambda name: by_network[name])
    return {
        "mode": mode,
        "way": way,
        "networks": str(len(by_network)),
        "results": str(len(answers)),
        "median": f"{np.median(errors):.1%}",
        "high": f"{np.quantile(errors, 0.9):.0%}",
        "worst": f"{errors.max():.0%}",
        "network": f"{worst} ({by_network[worst]:.0%})",
    }


def busy_ms(row: Row) -> float:
    return row.eager.gpu_kept_ms + row.eager.gpu_fused_ms


def fit_table(predictor: Predictor) -> Table:
    """Return the fitted factors of each mode."""
    names = ["constant_ms", "host_ms", "host_kept", "host_fused", "gpu_kept", "gpu_fused"]
    names += ["low", "high"]
    columns = [Column("mode"), *(Column(name, numeric=True) for name in names)]
    lines = [
        {"mode": mode} | {name: f"{getattr(fitted, name):.3f}" for name in names}
        for mode, fitted in predictor.modes.items()
    ]
    return Table(columns, lines)


CHOICES = [
    Column("modes", "measured together"),
    Column("points", numeric=True),
    Column("way", "chosen by"),
    Column("hits", "the fastest", numeric=True),
    Column("mean", "latency ÷ the fastest's, mean", numeric=True),
    Column("worst", "largest", numeric=True),
]
#: Fewer points at which the same modes were measured say nothing of choices.
LEAST_POINTS = 20


def choice_table(rows: Sequence[Row]) -> Table:
    """Return how good the mode with the highest predicted speedup is, and how good each mode is
    that is always chosen, where several modes were measured together."""
    pairs = [pair for of_mode in by_mode(rows).values() for pair in left_out(of_mode)]
    points = grouped(pairs, lambda pair: pair[0].point).values()
    by_modes = grouped(points, lambda point: tuple(row.result.mode for row, _ in point))
    lines = []
    for modes, alike in by_modes.items():
        if len(modes) == 1 or len(alike) < LEAST_POINTS:
            continue
        losses: dict[str, list[float]] = {name: [] for name in (CHOSEN, *modes)}
        for point in alike:
            speedups = {row.result.mode: row.speedup for row, _ in point} | {"eager": 1.0}
            guesses = {row.result.mode: predicted(row, fitted) for row, fitted in point}
            guesses["eager"] = 1.0
            best = max(speedups.values())
            losses[CHOSEN].append(best / speedups[max(guesses, key=lambda mode: guesses[mode])])
            for mode in modes:
                losses[mode].append(best / speedups[mode])
        for way, of_way in losses.items():
            line = {
                "modes": ", ".join(modes),
                "points": str(len(alike)),
                "way": way if way == CHOSEN else f"always {way}",
                "hits": str(sum(loss == 1 for loss in of_way)),
                "mean": f"{np.mean(of_way):.2f}",
                "worst": f"{max(of_way):.2f}",
            }
            lines.append(line)
    return Table(CHOICES, lines)


def report_on_other(rows: Sequence[Row], predictor: Predictor) -> Table:
    """Return the errors of the stored fit on other sweeps."""
    lines = []
    for mode, of_mode in by_mode(rows).items():
        fitted = predictor.modes.get(mode)
        if fitted is None:
            continue
        sure = [row for row in of_mode if not fitted.why_unsure(row.eager)]
        for way, chosen in ((CHOSEN, of_mode), (CONFIDENT, sure)):
            if chosen:
                lines.append(line_of(mode, way, [(row, predicted(row, fitted)) for row in chosen]))
    return Table(COLUMNS, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="store the fit")
    parser.add_argument("--db", type=Path, nargs="+", help="other databases to predict")
    args = parser.parse_args()
    if args.db:
        print(report_on_other(rows_of(args.db), shipped()).render("markdown"))
        return
    rows = rows_of(DATABASES)
    predictor = fit_all(rows)
    print(error_table(rows).render("markdown"))
    print(fit_table(predictor).render("markdown"))
    print(choice_table(rows).render("markdown"))
    if args.write:
        DATA.write_bytes(msgspec.json.format(msgspec.json.encode(rounded(predictor)), indent=1))


def rounded(predictor: Predictor) -> object:
    """Return the predictor as plain data with six significant digits."""
    return with_digits(msgspec.to_builtins(predictor))


def with_digits(data: object) -> object:
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        return {key: with_digits(value) for key, value in data.items()}
    return data


if __name__ == "__main__":
    main()
