"""Time the step of a trial, alone or in a duet, and record what was found."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from effbench.core.cell import Trial
from effbench.core.disturbances import Disturbance, too_few
from effbench.core.printable import count
from effbench.measure import timing, watch
from effbench.measure.duet import DuetResult, figure_of_member
from effbench.measure.host import SHORT_MS, HostFacts, HostWatch
from effbench.measure.timing import (
    LATENCY,
    PERIOD,
    Timer,
    Timing,
    TimingFigure,
)
from effbench.worker.context import TrialContext
from effbench.worker.duet_member import DuetMember
from effbench.workloads.base import Workload

#: Part of the timing budget that the trial's own timers may take if pairs follow.
OWN_PART = 0.6


#: The medians of both timers by name; no period without back-to-back calls on a GPU.
Figures = dict[str, TimingFigure]


@dataclass
class StepTiming:
    """What timing a step found.

    `calls`: the single calls; the samples of a duet are batches. `host`: None if its speed does not
    show. `disturbance`: why the times are marked, or None. `discarded`: why series of samples were
    discarded; None unless the GPU was watched for it.
    """

    figures: Figures
    calls: Timing
    host: HostFacts | None = None
    disturbance: Disturbance | None = None
    discarded: list[Disturbance] | None = None

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
        return self.period_ms is None or self.enqueue_ms >= watch.HOST_BOUND * self.period_ms

    @property
    def shows_host(self) -> bool:
        """Whether the host's speed shows in these times."""
        if self.period_ms is None:
            return True
        return timing.shows_host(self.latency_ms, self.enqueue_ms, self.period_ms)

    def mark(self, reason: Disturbance | None) -> None:
        """Mark the times for this reason, unless there is another one already."""
        self.disturbance = self.disturbance or reason

    def compare_timers(self) -> None:
        """Mark times of which the two timers contradict each other."""
        if self.period_ms is not None:
            self.mark(watch.contradiction(self.latency_ms, self.enqueue_ms, self.period_ms))

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


class Timings:
    """Times the step of a trial, alone or in a duet. `has_period`: whether back-to-back calls are
    timed, too."""

    def __init__(self, context: TrialContext, workload: Workload, timer: Timer) -> None:
        self.context = context
        self.workload = workload
        self.timer = timer
        self.trial = context.trial
        self.watcher = context.watcher
        self.rules = context.rules
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

    # --- alone

    def take(self) -> StepTiming:
        """Measure the latency and the period, if there is one, while watching the host and the
        GPU."""
        self.watcher.restart()
        depends_on_host = self.timer.waits_for_host()
        with self.context.host_watched(depends_on_host, moves=self.context.on_cuda) as host:
            self.timer.host = host
            if host is not None:
                host.has_short_calls = self.recent_ms < SHORT_MS
            with timing.no_garbage_collection():
                samples = self.run_timers()
        self.watcher.end()
        measured = self.result_of(samples, host)
        if self.context.on_cuda:
            measured.discarded = self.watcher.discarded
        # the two medians of varied calls may come from calls of different sizes
        if not self.workload.has_varied_calls:
            measured.compare_timers()
        return measured

    def run_timers(self) -> dict[str, Timing]:
        budget_s = self.rules.budget_s
        if self.context.request.baseline:
            budget_s *= OWN_PART
        if self.has_period:
            budget_s /= 2
        self.watcher.begin()
        samples = {LATENCY: self.workload.time_latency(self.timer, budget_s)}
        if self.has_period:
            self.watcher.begin()
            samples[PERIOD] = self.timer.period(budget_s)
        return samples

    def result_of(self, samples: dict[str, Timing], host: HostWatch | None) -> StepTiming:
        """Return the figures of these samples, marked if too few of them count."""
        slowdown = 1.0
        if host is not None:
            slowdown = host.slowdown
        figures = {name: taken.figure(self.rules, slowdown) for name, taken in samples.items()}
        measured = self.timing_of(figures)
        if host is not None:
            measured.host = host.facts()
        if not measured.is_marked:
            self.add_doubts(measured, samples[LATENCY], host)
            return measured
        if host is not None:
            of_all = self.regardless_of_host(samples, host)
            if of_all is not None:
                return of_all
        measured.mark(self.why_marked(host))
        return measured

    def timing_of(self, figures: Figures) -> StepTiming:
        """Return the figures of a step that was timed alone."""
        calls = figures[LATENCY].timing
        return StepTiming(figures, calls, disturbance=self.watcher.disturbance)

    def regardless_of_host(self, samples: dict[str, Timing], host: HostWatch) -> StepTiming | None:
        """Return the figures of all samples if the GPU is the bottleneck, so that a disturbed host
        does not show in them, else None. The warm-up may have been too short to tell, for example
        because the clocks were still higher."""
        if self.watcher.discarded or self.workload.has_varied_calls:
            return None
        if PERIOD not in samples:
            return None
        of_all = {name: taken.all_samples().figure(self.rules) for name, taken in samples.items()}
        measured = self.timing_of(of_all)
        disturbed = [taken.disturbed_ms for taken in samples.values() if taken.disturbed_ms]
        if measured.shows_host and not all(map(host.is_ignored_by, disturbed)):
            return None
        return measured

    def why_marked(self, host: HostWatch | None) -> Disturbance:
        discarded = self.watcher.discarded
        if host is None or (discarded and not host.disturbed_fraction):
            return discarded[-1]
        return host.facts().reason

    def add_doubts(self, measured: StepTiming, latency: Timing, host: HostWatch | None) -> None:
        """Mark times whose undisturbed samples may be wrong, too, or are few.

        Calls of the same size that had several speeds are one sign of that: not every hypervisor
        tells how much of the CPU other virtual machines take.
        """
        crowding = few = None
        if host is not None:
            crowding = host.crowding
        if self.rules.is_too_few(latency.count):  # no other trial of the cell supports them
            few = too_few(count(latency.count, "call"))
        measured.disturbance = crowding or measured.disturbance
        figures = measured.figures
        if not self.workload.has_varied_calls:
            for name, figure in figures.items():
                measured.mark(figure.variation(f"the median of the {name}", " ms"))
        measured.mark(few)
        if crowding or few:
            measured.figures = {name: figure.down_to_fastest() for name, figure in figures.items()}

    # --- in a duet

    def result_of_duet(self, result: DuetResult, duet: DuetMember) -> StepTiming:
        """Return this member's part of what both members have found."""
        figures: Figures = {}
        measured = StepTiming(figures, Timing(), result.host, result.disturbance)
        for name, pairs in result.pairs.items():
            own = figure_of_member(pairs, self.rules, duet.leads)
            figures[name] = own.figure
            own.figure.timing.calls_per_block = duet.step.sides[name].calls
            if result.host is not None and own.figure.is_marked:
                measured.mark(result.host.reason)
            measured.mark(own.ratio.variation("the ratio of the two sides"))
            if name == LATENCY:
                measured.calls = duet.step.latency.calls_of(own.pairs)
        measured.compare_timers()
        return measured
