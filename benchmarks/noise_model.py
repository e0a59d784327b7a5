"""Sweeps of unchanged cells, drawn again from recorded ones: the recording's own noise at each of its levels.

A figure of a trial is its cell's level × the sweep's own shift × the trial's own deviation × what was injected. The
shift is that of a recorded sweep, shrunk by what its few trials explain; the deviation is that of a recorded trial from
its sweep (all figures of one trial together, tails and all), widened by what the sweep's mean took away. Nothing is
assumed of their distributions, but for `drift`: a normal shift that sweeps on other days or machines may have besides.

Shapes: S recorded sweeps, T recorded trials, M figures, n drawn trials, V values a trial.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

RECORDING = Path(__file__).resolve().parents[1] / "results" / "reference" / "noise-h200.jsonl"
#: Figures with noise, lower being better; the rest of a trial is the same in every recorded one.
FIGURES = ("latency_ms", "period_ms", "gpu_busy_ms", "energy_mj")
CONSTANT = ("peak_allocated_bytes", "kernels")
TIMES = FIGURES[:3]


@dataclass(frozen=True)
class Drawn:
    """Trials of one cell in one sweep. `figures` (n, M), NaN where not measured; `values_ms` (n, V) latencies."""

    figures: np.ndarray
    values_ms: np.ndarray

    def first(self, n: int) -> Drawn:
        return Drawn(self.figures[:n], self.values_ms[:n])

    def of(self, figure: str) -> list[float]:
        column = self.figures[:, FIGURES.index(figure)]
        return column[~np.isnan(column)].tolist()


@dataclass(frozen=True)
class Template:
    """A recorded cell. `shifts` (S, M) and `deviations` (T, M): logarithms; `levels` (M,); `values` (T, V): of a
    trial's latencies against their median."""

    name: str
    kind: str
    levels: np.ndarray
    shifts: np.ndarray
    deviations: np.ndarray
    values: np.ndarray
    constant: dict[str, float]

    def shift(self, rng: np.random.Generator, drift: float = 0.0) -> np.ndarray:
        """(M,) of one sweep."""
        drawn = self.shifts[rng.integers(len(self.shifts))].copy()
        if drift:
            drawn[: len(TIMES)] += rng.normal(0.0, drift)
        return drawn

    def trials(self, rng: np.random.Generator, n: int, shift: np.ndarray, injected: np.ndarray | float = 0.0) -> Drawn:
        """`n` trials of a sweep with this `shift`; `injected`: (M,) logarithms of the change of each figure."""
        chosen = rng.choice(len(self.deviations), size=n, replace=n > len(self.deviations))
        figures = np.exp(self.levels + shift + injected + self.deviations[chosen])
        return Drawn(figures, figures[:, :1] * self.values[chosen])

    def means(self, rng: np.random.Generator, sweeps: int, n: int, drift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Two of (sweeps, M): mean logarithms of `n` trials in each of so many sweeps, and their standard errors.

        NaN where too few trials of a sweep have the figure.
        """
        shifts = np.stack([self.shift(rng, drift) for _ in range(sweeps)])
        drawn = self.deviations[rng.integers(len(self.deviations), size=(sweeps, n))]
        measured = (~np.isnan(drawn)).sum(axis=1)
        mean = np.where(measured, np.nansum(drawn, axis=1) / np.maximum(measured, 1), math.nan)
        squares = np.nansum((drawn - mean[:, None]) ** 2, axis=1)
        errors = np.where(
            measured > 1, np.sqrt(squares / np.maximum(measured - 1, 1) / np.maximum(measured, 1)), math.nan
        )
        return self.levels + shifts + mean, errors

    def spread(self, figure: str) -> tuple[float, float]:
        """Standard deviation between the trials of a sweep, and of the sweeps' shifts (logarithms)."""
        index = FIGURES.index(figure)
        return float(np.nanstd(self.deviations[:, index])), float(self.shifts[:, index].std(ddof=1))

    def with_spread(self, spread: float, figures: tuple[str, ...] = TIMES) -> Template:
        """The same noise, of these figures wider or narrower: with this standard deviation between trials."""
        factors = np.array([spread / self.spread(f)[0] if f in figures else 1.0 for f in FIGURES])
        return replace(self, shifts=self.shifts * factors, deviations=self.deviations * factors)


def load(path: Path = RECORDING) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header of a recording, and its trials that count: `ok`, with nobody else on the GPU."""
    with path.open(encoding="utf-8") as file:
        header, *trials = map(json.loads, file)
    if header["format"] != 1:
        raise ValueError(f"{path}: a recording of format {header['format']}, not 1")
    return header, [trial for trial in trials if trial["status"] == "ok" and not trial["foreign"]]


def sweeps_of(trials: list[dict[str, Any]]) -> dict[tuple[str, str], dict[int, list[dict[str, Any]]]]:
    """(database, cell) -> sweep -> its trials; of cells that were recorded unchanged in several sweeps."""
    found: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if "delay_us" not in trial:
            found[trial["db"], trial["cell"]][trial["sweep"]].append(trial)
    return {key: dict(sweeps) for key, sweeps in found.items() if len(sweeps) > 1}


def delayed(trials: list[dict[str, Any]]) -> dict[str, dict[float, list[dict[str, Any]]]]:
    """kind -> injected delay in µs, shortest first -> its trials; all of one sweep, interleaved."""
    found: dict[str, dict[float, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if "delay_us" in trial:
            found[trial["kind"]][trial["delay_us"]].append(trial)
    return {kind: dict(sorted(levels.items())) for kind, levels in found.items()}


def figures_of(trials: list[dict[str, Any]]) -> Drawn:
    """Recorded trials as they are."""
    table = np.array([[trial.get(figure, math.nan) for figure in FIGURES] for trial in trials], float)
    return Drawn(table, np.array([trial["latencies_ms"] for trial in trials], float))


def templates(trials: list[dict[str, Any]]) -> list[Template]:
    """Every cell that was recorded unchanged, a template a database."""
    return [
        template(f"{cell} ({tag})", list(sweeps.values())) for (tag, cell), sweeps in sorted(sweeps_of(trials).items())
    ]


def template(name: str, sweeps: list[list[dict[str, Any]]]) -> Template:
    """`sweeps`: trials of one cell, by sweep."""
    first = sweeps[0][0]
    drawn = [figures_of(trials) for trials in sweeps]
    logs = [np.log(one.figures) for one in drawn]
    means = np.stack([np.nanmean(one, axis=0) for one in logs])
    counts = np.stack([(~np.isnan(one)).sum(axis=0) for one in logs])
    apart = [one - mean for one, mean in zip(logs, means, strict=True)]
    # a sweep's own mean takes 1 ÷ n of the variance out of its deviations
    widened = np.concatenate([one * np.sqrt(n / (n - 1)) for one, n in zip(apart, counts, strict=True)])
    within = np.nansum([np.nansum(one**2, axis=0) for one in apart], axis=0) / (counts - 1).sum(axis=0)
    level = means.mean(axis=0)
    observed = means.var(axis=0, ddof=1)
    between = np.maximum(observed - (within / counts).mean(axis=0), 0.0)
    return Template(
        name,
        first["kind"],
        level,
        (means - level) * np.sqrt(between / observed),
        widened,
        np.concatenate([one.values_ms / one.figures[:, :1] for one in drawn]),
        {key: first[key] for key in CONSTANT},
    )
