"""What timing a step found, and how a trial records it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from effbench.core.cell import Trial
from effbench.core.disturbances import Disturbance
from effbench.measure import timing
from effbench.measure.host import HostFacts
from effbench.measure.samples import Timing, TimingFigure
from effbench.measure.timing import LATENCY, PERIOD


@dataclass(frozen=True)
class StepTimes:
    """What timing a step found.

    `figures`: by timer; no period without back-to-back calls on a GPU. `calls`: the single calls;
    the samples of a duet are batches. `host`: None if its speed does not show. `ignores_host`:
    whether the GPU is the bottleneck, so that all samples of a disturbed host give the times.
    `disturbance`: why the times are marked, or None. `discarded`: why series of samples were
    discarded; None unless the GPU was watched for it. `compiled`: that a graph was compiled
    meanwhile, or None.
    """

    figures: dict[str, TimingFigure]
    calls: Timing
    host: HostFacts | None = None
    ignores_host: bool = False
    disturbance: Disturbance | None = None
    discarded: list[Disturbance] | None = None
    compiled: str | None = None

    @property
    def is_marked(self) -> bool:
        """Whether too few samples of a timer are undisturbed."""
        return any(figure.is_marked for figure in self.figures.values())

    @property
    def latency_ms(self) -> float:
        return self.figures[LATENCY].median.value

    @property
    def period_ms(self) -> float | None:
        if PERIOD not in self.figures:
            return None
        return self.figures[PERIOD].median.value

    @property
    def enqueue_ms(self) -> float:
        return statistics.median(self.calls.enqueue_ms)

    @property
    def waits_for_launches(self) -> bool:
        """Whether the host is about as slow as the GPU in back-to-back calls."""
        return self.period_ms is None or self.enqueue_ms >= timing.HOST_BOUND * self.period_ms

    @property
    def shows_host(self) -> bool:
        """Whether the host's speed shows in these times."""
        if self.period_ms is None:
            return True
        return timing.shows_host(self.latency_ms, self.enqueue_ms, self.period_ms)

    def record(self, trial: Trial) -> None:
        """Set the trial's quantities of the timers and of the host."""
        if self.disturbance is not None:
            trial.disturbance = self.disturbance.text
            trial.disturbance_kind = self.disturbance.kind
        if self.host is not None:
            trial.host_ms = self.host.low_ms
            trial.host_high_ms = self.host.high_ms
            trial.disturbed_fraction = self.host.disturbed_fraction
        if self.discarded is not None:
            trial.discarded_blocks = len(self.discarded)
        if self.discarded:
            trial.extra["discarded"] = [reason.text for reason in self.discarded]
        for name, figure in self.figures.items():
            trial.samples[f"{name}_ms"] = figure.timing.samples_ms
            if figure.disturbed_ms:
                trial.samples[f"{name}_disturbed_ms"] = figure.disturbed_ms
        self.record_latency(trial)
        if PERIOD in self.figures:
            self.record_period(trial)

    def record_latency(self, trial: Trial) -> None:
        figure, calls_ms = self.figures[LATENCY], self.calls.samples_ms
        trial.latency_ms = figure.median.value
        trial.latency_median_low_ms = figure.median.low
        trial.latency_median_high_ms = figure.median.high
        trial.latency_samples = len(figure.timing.samples_ms)
        trial.latency_min_ms = min(calls_ms)
        trial.latency_p95_ms = float(np.quantile(calls_ms, 0.95))
        trial.latency_p99_ms = float(np.quantile(calls_ms, 0.99))

    def record_period(self, trial: Trial) -> None:
        figure = self.figures[PERIOD]
        trial.enqueue_ms = self.enqueue_ms
        trial.period_ms = figure.median.value
        trial.period_median_low_ms = figure.median.low
        trial.period_median_high_ms = figure.median.high
        trial.period_samples = len(figure.timing.samples_ms)
        trial.calls_per_block = figure.timing.calls_per_block
