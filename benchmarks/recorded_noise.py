"""Real noise of unchanged cells on an H200, recorded with `record_noise.py`, and sweeps drawn from
it; for `detection.py`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from effbench.core.cell import Status, Trial
from effbench.stats.intervals import TUNED, TUNED_SD

RECORDING = Path(__file__).resolve().parents[1] / "results" / "reference" / "noise-h200.jsonl"
#: Figures with noise; lower is better. Arrays have one column for each, in this order.
FIGURES = ("latency_ms", "period_ms", "gpu_busy_ms", "energy_mj")
#: Figures that are the same in all trials of a cell.
CONSTANT = ("peak_allocated_bytes", "kernels")
TIMES = ("latency_ms", "period_ms", "gpu_busy_ms")
HOST_TIMES = ("latency_ms", "period_ms")
#: The logarithm of the change of each figure, of a cell that does not change.
UNCHANGED = np.zeros(len(FIGURES))
#: Trials of a cell in a sweep.
TRIALS = 5
FORMAT = 1


# --- the recording ---


class Header(msgspec.Struct):
    """The first line of a recording."""

    format: int


class RecordedTrial(msgspec.Struct):
    """A line of a recording; see `record_noise.py`. NaN: not measured. `delay_us`: None for a cell
    without a delay."""

    db: str
    cell: str
    kind: str | None
    sweep: int
    round: int
    status: str
    foreign: int
    marked: bool = False
    delay_us: float | None = None
    latencies_ms: list[float] = []
    latency_ms: float = math.nan
    period_ms: float = math.nan
    gpu_busy_ms: float = math.nan
    energy_mj: float = math.nan
    peak_allocated_bytes: float = math.nan
    kernels: float = math.nan

    @property
    def counts(self) -> bool:
        """Whether the trial is measured, without foreign processes on the GPU."""
        return self.status == "ok" and not self.foreign and not self.marked


def load(path: Path = RECORDING) -> list[RecordedTrial]:
    """Return the trials of a recording that count."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    found = msgspec.json.decode(header, type=Header).format
    if found != FORMAT:
        raise ValueError(f"{path}: expected a recording of format {FORMAT}, got {found}")
    decoder = msgspec.json.Decoder(RecordedTrial)
    trials = map(decoder.decode, lines)
    return [trial for trial in trials if trial.counts]


# --- trials that were drawn ---


@dataclass(frozen=True)
class Compilation:
    """One compilation of a cell: its number and its kernels."""

    number: int
    kernels: str


@dataclass(frozen=True)
class DrawnTrials:
    """Trials of one cell in one sweep. `figures` (n, M), NaN if not measured; `values_ms` (n, V)
    latencies; `compiled`: round -> compilation."""

    figures: np.ndarray
    values_ms: np.ndarray
    compiled: dict[int, Compilation] = field(default_factory=dict)

    @classmethod
    def of(cls, trials: Sequence[RecordedTrial]) -> DrawnTrials:
        """Return recorded trials as they are."""
        figures = [[getattr(trial, name) for name in FIGURES] for trial in trials]
        values_ms = [trial.latencies_ms for trial in trials]
        return cls(np.array(figures), np.array(values_ms))

    def first(self, rounds: int) -> DrawnTrials:
        """Return the trials of the first rounds."""
        return replace(self, figures=self.figures[:rounds])

    def trials(self, constant: dict[str, float]) -> list[Trial]:
        """Return the trials with these figures and constant ones."""
        trials = []
        for number, figures in enumerate(self.figures.tolist()):
            measured = dict(zip(FIGURES, figures, strict=True))
            trial = Trial("", number, Status.OK, **measured, **constant)
            compilation = self.compiled.get(number)
            if compilation is not None:
                trial.compilation = compilation.number
                trial.kernel_fingerprint = compilation.kernels
            trials.append(trial)
        return trials


@dataclass(frozen=True)
class CellNoise:
    """The noise of a recorded cell, from which new sweeps are drawn.

    A figure of a trial is the cell's level × the sweep's shift × the trial's deviation × the
    injected change. The shift is that of a recorded sweep, shrunk by the noise of its few trials.
    The deviation is that of a recorded trial from its sweep (all figures of one trial together),
    widened by what the sweep's mean absorbs. `shifts` (S, M) and `deviations` (T, M): logarithms;
    `levels` (M,): logarithms; `values` (T, V): latencies of a trial ÷ their median.
    """

    kind: str | None
    levels: np.ndarray
    shifts: np.ndarray
    deviations: np.ndarray
    values: np.ndarray
    constant: dict[str, float]

    @classmethod
    def of(cls, sweeps: Sequence[list[RecordedTrial]]) -> CellNoise:
        """Return the noise of a cell. `sweeps`: its trials, by sweep."""
        drawn = list(map(DrawnTrials.of, sweeps))
        logs = [np.log(sweep.figures) for sweep in drawn]
        means = np.stack([np.nanmean(table, axis=0) for table in logs])
        counts = np.stack([(~np.isnan(table)).sum(axis=0) for table in logs])
        apart = [table - mean for table, mean in zip(logs, means, strict=True)]
        # deviations from the sweep's own mean lose 1 ÷ n of their variance
        widened = [
            table * np.sqrt(count / (count - 1)) for table, count in zip(apart, counts, strict=True)
        ]
        squares = [np.nansum(table**2, axis=0) for table in apart]
        within = np.nansum(squares, axis=0) / (counts - 1).sum(axis=0)
        levels = means.mean(axis=0)
        observed = means.var(axis=0, ddof=1)
        between = np.maximum(observed - (within / counts).mean(axis=0), 0.0)
        values = [sweep.values_ms / sweep.figures[:, :1] for sweep in drawn]
        first = sweeps[0][0]
        return cls(
            kind=first.kind,
            levels=levels,
            shifts=(means - levels) * np.sqrt(between / observed),
            deviations=np.concatenate(widened),
            values=np.concatenate(values),
            constant={name: getattr(first, name) for name in CONSTANT},
        )

    def shift(self, rng: np.random.Generator, drift: float = 0.0) -> np.ndarray:
        """Return the shift (M,) of one sweep. `drift`: standard deviation of what is added to its
        times."""
        shift: np.ndarray = self.shifts[rng.integers(len(self.shifts))].copy()
        if drift:
            shift[: len(TIMES)] += rng.normal(0.0, drift)
        return shift

    def draw(
        self,
        rng: np.random.Generator,
        shift: np.ndarray,
        change: np.ndarray = UNCHANGED,
        rounds: int = TRIALS,
        compilations: int = 0,
    ) -> DrawnTrials:
        """Return the trials of a sweep with this `shift`. `change` (M,): the logarithm of the
        change of each figure; `compilations`: how many, each with other kernels, the rounds use in
        turn."""
        recorded = len(self.deviations)
        chosen = rng.choice(recorded, size=rounds, replace=recorded < rounds)
        figures = np.exp(self.levels + shift + change + self.deviations[chosen])
        compiled = {}
        if compilations:
            used = np.arange(rounds) % compilations
            factors = np.exp(rng.normal(0.0, TUNED_SD, compilations))
            figures *= factors[used, None]
            names = rng.integers(2**62, size=compilations)
            for number, compilation in enumerate(used.tolist()):
                compiled[number] = Compilation(compilation, f"{names[compilation]:x}{TUNED}")
        return DrawnTrials(figures, figures[:, :1] * self.values[chosen], compiled)

    def means(self, rng: np.random.Generator, sweeps: int, drift: float = 0.0) -> np.ndarray:
        """Return the mean logarithms (sweeps, M) of the trials in each of `sweeps`."""
        shifts = np.stack([self.shift(rng, drift) for _ in range(sweeps)])
        chosen = rng.integers(len(self.deviations), size=(sweeps, TRIALS))
        drawn = self.deviations[chosen]
        measured = np.maximum((~np.isnan(drawn)).sum(axis=1), 1)
        mean = np.nansum(drawn, axis=1) / measured
        means: np.ndarray = self.levels + shifts + mean
        return means

    def with_spread(self, spread: float, figures: Sequence[str]) -> CellNoise:
        """Return the same noise, scaled for these figures to this standard deviation between
        trials."""
        factors = np.ones(len(FIGURES))
        present = np.nanstd(self.deviations, axis=0)
        for index, name in enumerate(FIGURES):
            if name in figures:
                factors[index] = spread / present[index]
        return replace(self, shifts=self.shifts * factors, deviations=self.deviations * factors)


def noise_of(trials: Sequence[RecordedTrial]) -> list[CellNoise]:
    """Return the noise of each cell that was recorded unchanged in several sweeps."""
    cells: dict[tuple[str, str], dict[int, list[RecordedTrial]]] = {}
    for trial in trials:
        if trial.delay_us is None:
            sweeps = cells.setdefault((trial.db, trial.cell), defaultdict(list))
            sweeps[trial.sweep].append(trial)
    return [
        CellNoise.of(list(sweeps.values()))
        for _, sweeps in sorted(cells.items())
        if len(sweeps) > 1
    ]
