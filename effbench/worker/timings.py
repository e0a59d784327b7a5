"""Time the step of a trial, and set the trial's figures of it."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from effbench.measure import timing, watch
from effbench.measure.duet import LATENCY, PERIOD, DuetFigures, DuetResult, figures_of
from effbench.measure.pairs import Pairs
from effbench.measure.timing import Figure, Timer, Timing
from effbench.meeting import DUET
from effbench.metrics import significant
from effbench.worker.context import TrialContext
from effbench.worker.duets import Duet
from effbench.workloads.base import Workload

#: Part of the timing budget that the trial's own timers may take if pairs follow.
OWN_PART = 0.6


def preemptions() -> int:
    """Return how often this process has lost its core so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def describe_range(figure: Figure) -> str:
    """Return the bounds of a median that varies as text."""
    low, high = significant(figure.median.low, 3), significant(figure.median.high, 3)
    return f"anywhere from {low} to {high}"


class Timings:
    """Times the step of a trial, alone or in a duet. `has_period`: whether back-to-back calls are
    timed, too. `latency_ms`, `enqueue_ms`, `period_ms`: the medians, once they are known."""

    def __init__(self, context: TrialContext, workload: Workload, timer: Timer) -> None:
        self.context = context
        self.workload = workload
        self.timer = timer
        self.trial = context.trial
        self.watcher = context.watcher
        self.rules = context.protocol.rules
        self.has_period = context.on_cuda and workload.has_period
        self.latency_ms = 0.0
        self.enqueue_ms = 0.0
        self.period_ms = 0.0

    @property
    def recent_ms(self) -> float:
        """About how long a call takes: the median of the newest ones of the warm-up."""
        return statistics.median(self.trial.samples["warmup_ms"][-10:])

    def warm_up(self) -> None:
        """Warm up and record it."""
        warmup = self.timer.warm_up()
        self.trial.warmup_calls = len(warmup.samples_ms)
        self.trial.steady = warmup.steady
        self.trial.samples["warmup_ms"] = warmup.samples_ms

    def forget(self) -> None:
        """Remove what an earlier timing found and the next one may not find."""
        self.watcher.restart()
        for name in (LATENCY, PERIOD):
            self.trial.samples.pop(f"{name}_disturbed_ms", None)
        self.trial.extra.pop("discarded", None)
        self.set_host(None, None, None)

    def set_host(
        self, low_ms: float | None, high_ms: float | None, disturbed_fraction: float | None
    ) -> None:
        self.trial.host_ms = low_ms
        self.trial.host_high_ms = high_ms
        self.trial.disturbed_fraction = disturbed_fraction

    # --- alone

    def take(self) -> None:
        """Measure the latency and the period, if there is one, while watching the host and the
        GPU."""
        trial, watcher = self.trial, self.watcher
        self.forget()
        depends_on_host = self.timer.waits_for_host(self.recent_ms)
        with self.context.host_watched(depends_on_host, moves=self.context.on_cuda) as host:
            self.timer.host = host
            with timing.no_garbage_collection(), self.gpu_read():
                timings = self.run_timers()
        if host is not None:
            self.set_host(host.low_ms, host.high_ms, host.disturbed_fraction)
        if self.context.on_cuda:
            watcher.end()
            trial.discarded_blocks = len(watcher.discarded)
            if watcher.discarded:
                trial.extra["discarded"] = watcher.discarded
        figures = self.figures(timings)
        self.set_latency(figures[LATENCY])
        if self.has_period:
            self.set_period(figures[PERIOD])
            # the two medians of varied calls may come from calls of different sizes
            if not self.workload.has_varied_calls and watcher.disturbance is None:
                watcher.disturbance = self.busy_host()
        trial.disturbance = watcher.disturbance

    @contextmanager
    def gpu_read(self) -> Iterator[None]:
        """Record the state of the GPU before and after this context, and how often the process was
        preempted meanwhile."""
        gpu, extra = self.context.gpu, self.trial.extra
        preempted = preemptions()
        before = gpu.read()
        yield
        extra["preempted"] = preemptions() - preempted
        if self.context.on_cuda:
            extra["gpu_before"] = before
            extra["gpu_after"] = gpu.read()

    def run_timers(self) -> dict[str, Timing]:
        """Run the timers and return their samples by name."""
        budget_s = self.rules.budget_s
        if self.context.request.baseline:
            budget_s *= OWN_PART
        self.watcher.begin()
        if not self.has_period:
            return {LATENCY: self.workload.time_latency(self.timer, budget_s)}
        latency = self.workload.time_latency(self.timer, budget_s / 2)
        self.watcher.begin()
        return {LATENCY: latency, PERIOD: self.timer.period(budget_s / 2)}

    def figures(self, timings: Mapping[str, Timing]) -> dict[str, Figure]:
        """Return what the timers found, record the samples that do not count, and mark the trial if
        too few do."""
        host, watcher = self.timer.host, self.watcher
        slowdown = 1.0
        if host is not None:
            slowdown = host.slowdown
        figures = self.medians(timings, slowdown, self.context.protocol.spread)
        is_marked = any(figure.is_marked for figure in figures.values())
        of_all = self.regardless_of_host(timings) if is_marked else None
        if of_all is not None:
            return of_all
        self.record_disturbed(timings)
        if is_marked:
            watcher.disturbance = watcher.disturbance or self.why_marked()
            return figures
        watcher.disturbance = watcher.disturbance or self.variation(figures)
        if host is None or host.crowding is None:
            return figures
        watcher.disturbance = host.crowding
        return {name: figure.down_to_fastest() for name, figure in figures.items()}

    def medians(
        self, timings: Mapping[str, Timing], slowdown: float, spread: float = timing.SPREAD
    ) -> dict[str, Figure]:
        least, discards = self.rules.min_samples, self.rules.discards
        figures = {}
        for name, measured in timings.items():
            figures[name] = measured.figure(least, discards, slowdown, spread)
        return figures

    def record_disturbed(self, timings: Mapping[str, Timing]) -> None:
        for name, measured in timings.items():
            if measured.disturbed_ms:
                self.trial.samples[f"{name}_disturbed_ms"] = measured.disturbed_ms

    def regardless_of_host(self, timings: Mapping[str, Timing]) -> dict[str, Figure] | None:
        """Return the figures of all samples if the GPU is the bottleneck, so that a disturbed host
        does not show in them, else None."""
        has_two = self.has_period and not self.workload.has_varied_calls
        if self.timer.host is None or not has_two or self.watcher.discarded:
            return None
        of_all = timing.without_host(timings[LATENCY], timings[PERIOD])
        if of_all is None:
            return None
        self.set_host(None, None, None)
        latency, period = of_all
        return self.medians({LATENCY: latency, PERIOD: period}, slowdown=1.0)

    def why_marked(self) -> str:
        host, discarded = self.timer.host, self.watcher.discarded
        if host is None or (discarded and not host.disturbed_fraction):
            return discarded[-1]
        return host.reason()

    def variation(self, figures: Mapping[str, Figure]) -> str | None:
        """Return that calls of the same size had several speeds, or None.

        Not every hypervisor tells how much of the CPU other virtual machines take.
        """
        if self.workload.has_varied_calls:
            return None
        for name, figure in figures.items():
            if figure.varies:
                return f"unsteady: the median of the {name} is {describe_range(figure)} ms"
        return None

    def busy_host(self) -> str | None:
        return watch.busy_host(self.latency_ms, self.enqueue_ms, self.period_ms)

    # --- in a duet

    def take_duet(self, duet: Duet) -> DuetResult:
        """Time both members of the duet in turn. Raises PartnerLostError."""
        with self.gpu_read():
            return duet.take()

    def set_duet(self, result: DuetResult, duet: Duet) -> None:
        """Set what the series of the duet show, which is the same data in both members."""
        trial = self.trial
        spread = self.context.protocol.spread
        self.set_host(result.host_ms, result.host_high_ms, result.disturbed_fraction)
        disturbance = result.disturbance
        figures: dict[str, DuetFigures] = {}
        for name, pairs in result.pairs.items():
            figures[name] = both = figures_of(pairs, self.rules, spread, duet.is_alike)
            self.record_series(name, pairs, duet)
            if duet.figure(both).is_marked:
                disturbance = disturbance or result.host_reason
            disturbance = disturbance or both.varies
        latency = duet.figure(figures[LATENCY])
        calls = duet.step.latency.calls_of(figures[LATENCY].pairs)
        latency.timing.enqueue_ms = calls.enqueue_ms
        self.set_latency(latency, calls.samples_ms)
        if duet.step.period is not None:
            period = duet.figure(figures[PERIOD])
            period.timing.calls_per_block = duet.step.period.calls
            self.set_period(period)
            disturbance = disturbance or self.busy_host()
        self.watcher.disturbance = disturbance
        trial.disturbance = disturbance

    def record_series(self, name: str, pairs: Pairs, duet: Duet) -> None:
        """Record how many pairs a series has, and its disturbed samples."""
        counts: dict[str, float] = {
            "pairs": len(pairs.undisturbed),
            "disturbed": len(pairs.disturbed),
        }
        self.trial.extra[DUET][name] = counts
        if pairs.disturbed:
            slow = duet.figure(figures_of(Pairs(pairs.disturbed), self.rules))
            counts["disturbed_ms"] = slow.median.value
            self.trial.samples[f"{name}_disturbed_ms"] = slow.timing.samples_ms

    # --- figures of the trial

    def set_latency(self, figure: Figure, calls_ms: list[float] | None = None) -> None:
        """Set the latency. `calls_ms`: the times of single calls, if the samples are not."""
        trial, median = self.trial, figure.median
        samples = figure.timing.samples_ms
        calls = samples if calls_ms is None else calls_ms
        trial.samples["latency_ms"] = samples
        trial.latency_ms = self.latency_ms = median.value
        trial.latency_median_low_ms = median.low
        trial.latency_median_high_ms = median.high
        trial.latency_samples = len(samples)
        trial.latency_min_ms = min(calls)
        trial.latency_p95_ms = float(np.quantile(calls, 0.95))
        trial.latency_p99_ms = float(np.quantile(calls, 0.99))
        if self.has_period:
            trial.enqueue_ms = self.enqueue_ms = statistics.median(figure.timing.enqueue_ms)

    def set_period(self, figure: Figure) -> None:
        """Set the period, and what the GPU showed meanwhile."""
        trial, median = self.trial, figure.median
        trial.samples["period_ms"] = figure.timing.samples_ms
        trial.period_ms = self.period_ms = median.value
        trial.period_median_low_ms = median.low
        trial.period_median_high_ms = median.high
        trial.period_samples = len(figure.timing.samples_ms)
        trial.calls_per_block = figure.timing.calls_per_block
        for name, value in self.watcher.facts().items():
            setattr(trial, name, value)
