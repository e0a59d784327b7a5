"""Time the step of a trial, alone or in a duet, and record what was found."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from effbench.core.cell import Trial
from effbench.core.meeting import DUET
from effbench.core.printable import count
from effbench.measure import timing, watch
from effbench.measure.duet import DuetFigures, DuetResult, figures_of
from effbench.measure.host import HostFacts, HostWatch
from effbench.measure.pairs import Pairs
from effbench.measure.timing import (
    LATENCY,
    PERIOD,
    StepFigures,
    Timer,
    TimerSamples,
    Timing,
    TimingFigure,
)
from effbench.measure.watch import GpuFacts
from effbench.worker.context import TrialContext
from effbench.worker.duets import DuetMember
from effbench.workloads.base import Workload

#: Part of the timing budget that the trial's own timers may take if pairs follow.
OWN_PART = 0.6


def preemptions() -> int:
    """Return how often this process has lost its core so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True)
class StepTiming:
    """What timing a step found.

    `calls`: the single calls; the samples of a duet are batches. `host`: None if its speed does not
    show. `disturbance`: why the times are marked, or None. `discarded`: why series of samples were
    discarded; None unless the GPU was watched for it. `disturbed_ms`: samples that do not count, by
    timer.
    """

    figures: StepFigures
    calls: Timing
    host: HostFacts | None = None
    disturbance: str | None = None
    discarded: list[str] | None = None
    disturbed_ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def latency_ms(self) -> float:
        return self.figures.latency.median.value

    @property
    def period_ms(self) -> float | None:
        if self.figures.period is None:
            return None
        return self.figures.period.median.value

    @property
    def enqueue_ms(self) -> float:
        return statistics.median(self.calls.enqueue_ms)

    def busy_host(self) -> str | None:
        """Return why the two timers contradict each other, or None."""
        if self.period_ms is None:
            return None
        return watch.busy_host(self.latency_ms, self.enqueue_ms, self.period_ms)

    @property
    def waits_for_launches(self) -> bool:
        """Whether the host is about as slow as the GPU in back-to-back calls."""
        return self.period_ms is None or self.enqueue_ms >= watch.HOST_BOUND * self.period_ms

    def record(self, trial: Trial) -> None:
        """Set the trial's quantities of the timers and of the host."""
        trial.disturbance = self.disturbance
        if self.host is not None:
            trial.host_ms = self.host.low_ms
            trial.host_high_ms = self.host.high_ms
            trial.disturbed_fraction = self.host.disturbed_fraction
        if self.discarded is not None:
            trial.discarded_blocks = len(self.discarded)
        if self.discarded:
            trial.extra["discarded"] = self.discarded
        for name, samples in self.disturbed_ms.items():
            if samples:
                trial.samples[f"{name}_disturbed_ms"] = samples
        self.record_latency(trial)
        if self.figures.period is not None:
            trial.enqueue_ms = self.enqueue_ms
            record_period(self.figures.period, trial)

    def record_latency(self, trial: Trial) -> None:
        median, samples = self.figures.latency.median, self.figures.latency.timing.samples_ms
        calls_ms = self.calls.samples_ms
        trial.samples["latency_ms"] = samples
        trial.latency_ms = median.value
        trial.latency_median_low_ms = median.low
        trial.latency_median_high_ms = median.high
        trial.latency_samples = len(samples)
        trial.latency_min_ms = min(calls_ms)
        trial.latency_p95_ms = float(np.quantile(calls_ms, 0.95))
        trial.latency_p99_ms = float(np.quantile(calls_ms, 0.99))


def record_period(period: TimingFigure, trial: Trial) -> None:
    median = period.median
    trial.samples["period_ms"] = period.timing.samples_ms
    trial.period_ms = median.value
    trial.period_median_low_ms = median.low
    trial.period_median_high_ms = median.high
    trial.period_samples = len(period.timing.samples_ms)
    trial.calls_per_block = period.timing.calls_per_block


def record_gpu(facts: GpuFacts, trial: Trial) -> None:
    """Set what the GPU showed under load. A new quantity of NVML is assigned here."""
    trial.energy_mj = facts.energy_mj
    trial.sm_clock_mhz = facts.sm_clock_mhz
    trial.memory_clock_mhz = facts.memory_clock_mhz
    trial.temperature_c = facts.temperature_c
    trial.power_w = facts.power_w
    trial.clocks_event_reasons = facts.clocks_event_reasons


class Timings:
    """Times the step of a trial, alone or in a duet. `has_period`: whether back-to-back calls are
    timed, too."""

    def __init__(self, context: TrialContext, workload: Workload, timer: Timer) -> None:
        self.context = context
        self.workload = workload
        self.timer = timer
        self.trial = context.trial
        self.watcher = context.watcher
        self.rules = context.protocol.rules
        self.has_period = context.on_cuda and workload.has_period

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
            extra["gpu_before"] = before.to_json()
            extra["gpu_after"] = gpu.read().to_json()

    # --- alone

    def take(self) -> StepTiming:
        """Measure the latency and the period, if there is one, while watching the host and the
        GPU."""
        self.watcher.restart()
        depends_on_host = self.timer.waits_for_host(self.recent_ms)
        with self.context.host_watched(depends_on_host, moves=self.context.on_cuda) as host:
            self.timer.host = host
            with timing.no_garbage_collection(), self.gpu_read():
                samples = self.run_timers()
        discarded = None
        if self.context.on_cuda:
            self.watcher.end()
            discarded = self.watcher.discarded
        result = replace(self.result_of(samples, host), discarded=discarded)
        # the two medians of varied calls may come from calls of different sizes
        if result.disturbance is None and not self.workload.has_varied_calls:
            return replace(result, disturbance=result.busy_host())
        return result

    def run_timers(self) -> TimerSamples:
        budget_s = self.rules.budget_s
        if self.context.request.baseline:
            budget_s *= OWN_PART
        self.watcher.begin()
        if not self.has_period:
            return TimerSamples(self.workload.time_latency(self.timer, budget_s))
        latency = self.workload.time_latency(self.timer, budget_s / 2)
        self.watcher.begin()
        return TimerSamples(latency, self.timer.period(budget_s / 2))

    def result_of(self, samples: TimerSamples, host: HostWatch | None) -> StepTiming:
        """Return the figures of these samples, marked if too few of them count."""
        disturbance = self.watcher.disturbance
        slowdown = 1.0
        facts = None
        if host is not None:
            slowdown = host.slowdown
            facts = host.facts()
        figures = samples.figures(self.rules, slowdown, self.context.protocol.spread)
        if figures.are_marked:
            of_all = self.regardless_of_host(samples, host)
            if of_all is not None:
                return StepTiming(of_all, of_all.latency.timing, disturbance=disturbance)
            disturbance = disturbance or self.why_marked(host)
        else:
            if not self.workload.has_varied_calls:
                disturbance = disturbance or figures.variation()
            calls = len(samples.latency.all_samples().samples_ms)
            if self.context.protocol.is_too_few(calls):
                disturbance = disturbance or f"only {count(calls, 'call')} could be timed"
                figures = figures.down_to_fastest()
            if host is not None and host.crowding is not None:
                disturbance = host.crowding
                figures = figures.down_to_fastest()
        return StepTiming(
            figures,
            figures.latency.timing,
            facts,
            disturbance,
            disturbed_ms=samples.disturbed_ms(),
        )

    def regardless_of_host(
        self, samples: TimerSamples, host: HostWatch | None
    ) -> StepFigures | None:
        """Return the figures of all samples if the GPU is the bottleneck, so that a disturbed host
        does not show in them, else None."""
        if host is None or self.watcher.discarded or self.workload.has_varied_calls:
            return None
        of_all = samples.without_host()
        if of_all is None:
            return None
        return of_all.figures(self.rules, slowdown=1.0)

    def why_marked(self, host: HostWatch | None) -> str:
        discarded = self.watcher.discarded
        if host is None or (discarded and not host.disturbed_fraction):
            return discarded[-1]
        return host.reason()

    # --- in a duet

    def take_duet(self, duet: DuetMember) -> DuetResult:
        """Time both members of the duet in turn. Raises PartnerLostError."""
        self.watcher.restart()
        with self.gpu_read():
            return duet.take()

    def result_of_duet(self, result: DuetResult, duet: DuetMember) -> StepTiming:
        """Return this member's part of what both members have found."""
        disturbance = result.disturbance
        series: dict[str, DuetFigures] = {}
        disturbed_ms: dict[str, list[float]] = {}
        for name, pairs in result.pairs.items():
            both = figures_of(pairs, self.rules, self.context.protocol.spread, duet.is_alike)
            figure = duet.figure(both)
            if figure.is_marked:
                disturbance = disturbance or result.host_reason
            disturbance = disturbance or both.varies
            series[name] = both
            counts: dict[str, float] = {
                "pairs": len(pairs.undisturbed),
                "disturbed": len(pairs.disturbed),
            }
            if pairs.disturbed:
                slow = duet.figure(figures_of(Pairs(pairs.disturbed), self.rules))
                counts["disturbed_ms"] = slow.median.value
                disturbed_ms[name] = slow.timing.samples_ms
            self.trial.extra[DUET][name] = counts
        latency = duet.figure(series[LATENCY])
        calls = duet.step.latency.calls_of(series[LATENCY].pairs)
        period = None
        if duet.step.period is not None:
            period = duet.figure(series[PERIOD])
            period.timing.calls_per_block = duet.step.period.calls
        figures = StepFigures(latency, period)
        measured = StepTiming(figures, calls, result.host, disturbance, disturbed_ms=disturbed_ms)
        if disturbance is None:
            return replace(measured, disturbance=measured.busy_host())
        return measured
