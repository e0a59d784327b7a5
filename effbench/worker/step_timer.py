"""Time the step of a trial, alone or in a duet."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from effbench.core.meeting import ALONE, DUET, Partner, PartnerLostError
from effbench.core.message import DUET_PHASE, DuetRequest
from effbench.measure import timing
from effbench.measure.duet import DuetResult, DuetStep, figure_of_member
from effbench.measure.host import HostWatch
from effbench.measure.rules import Rules
from effbench.measure.samples import Timing, TimingFigure
from effbench.measure.timing import LATENCY, PERIOD, Timer
from effbench.measure.watch import GpuWatch
from effbench.worker import why_marked
from effbench.worker.context import CompilationWatch, TrialContext
from effbench.worker.duet_member import DuetMember
from effbench.worker.ranks import Task
from effbench.worker.step_times import StepTimes
from effbench.workloads.base import Workload

#: Part of the timing budget that the trial's own timers may take if pairs follow.
OWN_PART = 0.6


@dataclass(frozen=True)
class StepTimer:
    """Times the step of a trial, alone or in a duet."""

    context: TrialContext
    workload: Workload
    timer: Timer
    watcher: GpuWatch

    @property
    def rules(self) -> Rules:
        return self.context.rules

    @property
    def has_period(self) -> bool:
        """Whether back-to-back calls are timed, too."""
        return self.context.on_cuda and self.workload.has_period

    @property
    def recent_ms(self) -> float:
        """About how long a call takes: the median of the newest ones of the warm-up."""
        return statistics.median(self.context.trial.samples["warmup_ms"][-10:])

    def warm_up(self) -> None:
        """Warm up and record it."""
        with self.context.phase("warmup"):
            warmup = self.timer.warm_up()
        trial = self.context.trial
        trial.warmup_calls = warmup.count
        trial.steady = warmup.steady
        trial.samples["warmup_ms"] = warmup.samples_ms

    def time(self) -> StepTimes:
        """Time the step, in turn with another trial if it is a member of a duet. If a graph was
        compiled meanwhile, warm up and time it once more."""
        duet = self.context.request.duet
        if duet is not None:
            times = self.time_duet(duet)
            if times is not None:
                return times
            self.warm_up()  # it has waited, or a graph was compiled
        times = self.time_alone()
        if times.compiled is not None:
            self.context.trial.extra["timed_again"] = times.compiled
            self.warm_up()
            times = self.time_alone()
        return times

    # --- alone

    def time_alone(self) -> StepTimes:
        """Time the step, and notice whether a graph is compiled meanwhile."""
        compilation = CompilationWatch(self.context.ranks)
        with self.context.phase("timing"):
            times = self.take()
        return replace(times, compiled=compilation.compiled())

    def take(self) -> StepTimes:
        """Measure the latency and the period, if there is one, while watching the host and the
        GPU."""
        self.watcher.restart()
        ranks = self.context.ranks
        ranks.ask(Task.WATCH)
        depends_on_host = self.timer.waits_for_host()
        with self.context.host_watched(depends_on_host, moves=self.context.on_cuda) as host:
            timer = replace(self.timer, host=host)
            with timing.no_garbage_collection():
                samples = self.run_timers(timer)
        self.watcher.end()
        self.watcher.disturbance = self.watcher.disturbance or ranks.newest_disturbance()
        times = self.times_of(samples, host)
        evidence = why_marked.Evidence(
            times=times,
            calls=samples[LATENCY].count,
            has_short_calls=self.recent_ms < why_marked.SHORT_MS,
            has_varied_calls=self.workload.has_varied_calls,
            rules=self.rules,
            gpu=self.watcher,
        )
        figures = times.figures
        discarded = None
        if self.context.on_cuda:
            discarded = self.watcher.discarded
        if why_marked.has_doubtful_samples(evidence):
            figures = {name: figure.down_to_fastest() for name, figure in figures.items()}
        return replace(
            times,
            figures=figures,
            disturbance=why_marked.of_times(evidence),
            discarded=discarded,
        )

    def run_timers(self, timer: Timer) -> dict[str, Timing]:
        """Return the samples of the latency, and of the period if there is one."""
        budget_s = self.rules.budget_s
        if self.context.request.baseline:
            budget_s *= OWN_PART
        if self.has_period:
            budget_s /= 2
        self.watcher.begin()
        samples = {LATENCY: self.workload.time_latency(timer, budget_s)}
        if self.has_period:
            self.watcher.begin()
            samples[PERIOD] = timer.period(budget_s)
        return samples

    def times_of(self, samples: dict[str, Timing], host: HostWatch | None) -> StepTimes:
        """Return the figures that these samples give."""
        slowdown, facts = 1.0, None
        if host is not None:
            slowdown, facts = host.slowdown, host.facts()
        figures = {name: taken.figure(self.rules, slowdown) for name, taken in samples.items()}
        times = StepTimes(figures, figures[LATENCY].timing, facts)
        if host is not None and times.is_marked:
            of_all = self.regardless_of_host(samples, host)
            if of_all is not None:
                return of_all
        return times

    def regardless_of_host(self, samples: dict[str, Timing], host: HostWatch) -> StepTimes | None:
        """Return the figures of all samples if the GPU is the bottleneck, so that a disturbed host
        does not show in them, else None. The warm-up may have been too short to tell, for example
        because the clocks were still higher."""
        if PERIOD not in samples or self.watcher.discarded or self.workload.has_varied_calls:
            return None
        figures = {name: taken.all_samples().figure(self.rules) for name, taken in samples.items()}
        times = StepTimes(figures, figures[LATENCY].timing, ignores_host=True)
        disturbed = [taken.disturbed_ms for taken in samples.values() if taken.disturbed_ms]
        if times.shows_host and not all(map(host.is_ignored_by, disturbed)):
            return None
        return times

    # --- in a duet

    def time_duet(self, request: DuetRequest) -> StepTimes | None:
        """Time the step in turn with the other member of the duet. Return None if it has to be
        timed alone."""
        context = self.context
        compilation = CompilationWatch(context.ranks)
        with context.phase("warmup"):
            step = DuetStep(self.timer, self.recent_ms, self.has_period)
        duet = DuetMember(context, self.watcher, request, step, compilation)
        partner: Partner | None = None
        try:
            listener = duet.listen()
            with context.phase(DUET_PHASE):
                partner = duet.meet(listener)
            with context.phase("timing"):
                result = duet.take(partner)
            why_alone = result.void
        except PartnerLostError as lost:
            why_alone = str(lost)
        if not request.leads:
            with context.phase(DUET_PHASE):
                if partner is not None:
                    partner.wait_for_end()
        context.trial.extra[DUET] = {"leads": request.leads}
        if why_alone is not None:
            context.trial.extra[DUET][ALONE] = why_alone
            return None
        return self.times_in_duet(result, step, request.leads)

    def times_in_duet(self, result: DuetResult, step: DuetStep, leads: bool) -> StepTimes:
        """Return this member's part of what both members have found. `step`: after its calls;
        `leads`: whether this member is the leader."""
        figures: dict[str, TimingFigure] = {}
        ratios: list[TimingFigure] = []
        calls = Timing()
        for name, pairs in result.pairs.items():
            member = figure_of_member(pairs, self.rules, leads, step.sides[name].calls)
            figures[name] = member.figure
            ratios.append(member.ratio)
            if name == LATENCY:
                calls = step.latency.calls_of(pairs, member.has_all_pairs)
        times = StepTimes(figures, calls, result.host)
        return replace(
            times,
            disturbance=why_marked.of_duet(times, ratios, self.rules, result.disturbance),
        )
