"""The phase `pairs` of a trial: the baseline's and the mode's calls in turn, which give the paired
speedups.

They come after the trial's own series, counters and memory figures, which thus do not see the
baseline's calls.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from effbench.core.cell import Trial, mode_settings
from effbench.core.disturbances import Disturbance
from effbench.core.errors import UnsupportedError
from effbench.measure import timing
from effbench.measure.led_step import OrderKind
from effbench.measure.pairs import LatencySide, Pairs, PeriodSide, ratios, take_pairs
from effbench.measure.timing import LATENCY, PERIOD
from effbench.models.build import resolve_target
from effbench.models.inputs import Step
from effbench.modes.base import Example, Mode
from effbench.modes.eager import Eager
from effbench.modes.selective import separately_compiled_copy
from effbench.stats.intervals import Interval
from effbench.worker import failures, why_marked
from effbench.worker.context import CompilationWatch
from effbench.worker.ranks import Task
from effbench.worker.step_timer import StepTimer
from effbench.workloads.base import Workload, copies
from effbench.workloads.endings import Ended

#: Part of the timing budget that the pairs may take. With that of the trial's own timers it is less
#: than 1, because the baseline warms up, too: a sweep takes no longer than without pairs.
PART = 0.25
#: Seconds of the baseline's warm-up, which has made some calls before.
WARMUP_S = 0.1


@dataclass(frozen=True)
class PairedSpeedup:
    """The speedup of one timer: the median ratio of its pairs. `disturbance`: why it is marked, or
    None."""

    median: Interval
    pairs: Pairs
    disturbance: Disturbance | None

    @property
    def disturbed(self) -> float | None:
        """The median ratio of disturbed pairs; None without them."""
        if not self.pairs.disturbed:
            return None
        return statistics.median(ratios(self.pairs.disturbed))


def prepare_baseline(
    settings: Mapping[str, Any], workload: Workload, cache_dir: str | None
) -> Step:
    """Prepare the baseline's mode in the process of another mode, and return its step.

    Eager's step is the module itself, which the trial holds anyway; other modes prepare a copy that
    shares its weights. `settings`: the mode's; `cache_dir`: that of `Example`. Raises
    UnsupportedError, and what the mode raises.
    """
    mode: Mode = resolve_target(settings["_target_"])(**mode_settings(dict(settings)))
    if isinstance(mode, Eager):
        eager: Step = workload.module
        return eager
    missing = mode.missing(workload.device)
    if missing is not None:
        raise UnsupportedError(missing)
    module = separately_compiled_copy(workload.module, "baseline_forward")
    inputs = workload.inputs.checked
    args, kwargs = copies(inputs[0])
    step = mode.prepare(module, Example(args, kwargs, workload.batch(), cache_dir)).step
    for number in range(max(1, mode.settling_calls)):
        args, kwargs = copies(inputs[number % len(inputs)])
        step(*args, **kwargs)
    workload.restore_state(module)
    return step


def add_pairs(settings: Mapping[str, Any], step_timer: StepTimer, latency_ms: float) -> None:
    """Take pairs and record the paired speedups, if possible. A failure affects only these.
    `settings`: of the baseline's mode; `latency_ms`: of the trial."""
    trial = step_timer.context.trial
    with step_timer.context.optional("no_pairs"):
        speedups = paired_speedups(settings, step_timer, latency_ms)
        record_latency(speedups[LATENCY], trial)
        if PERIOD in speedups:
            record_period(speedups[PERIOD], trial)
        reason = why_marked.first(speedup.disturbance for speedup in speedups.values())
        if reason is not None:
            trial.pair_disturbance = reason.text


def record_latency(speedup: PairedSpeedup, trial: Trial) -> None:
    trial.pair_speedup = speedup.median.value
    trial.pair_speedup_low = speedup.median.low
    trial.pair_speedup_high = speedup.median.high
    trial.pair_speedup_disturbed = speedup.disturbed
    trial.pairs = len(speedup.pairs.in_order)
    trial.samples |= speedup.pairs.samples("pair")


def record_period(speedup: PairedSpeedup, trial: Trial) -> None:
    trial.pair_period_speedup = speedup.median.value
    trial.pair_period_speedup_low = speedup.median.low
    trial.pair_period_speedup_high = speedup.median.high
    trial.pair_period_speedup_disturbed = speedup.disturbed
    trial.period_pairs = len(speedup.pairs.in_order)
    trial.samples |= speedup.pairs.samples("period_pair")


def paired_speedups(
    settings: Mapping[str, Any], step_timer: StepTimer, latency_ms: float
) -> dict[str, PairedSpeedup]:
    """Time the baseline and the mode in turn, and return the speedups by timer. Raises
    UnsupportedError."""
    workload = step_timer.workload
    reason = workload.unpaired()
    if reason is not None:
        raise UnsupportedError(reason)
    baseline = baseline_of_all_ranks(settings, step_timer)
    compilation = CompilationWatch(step_timer.context.ranks)
    workload.restore_state(workload.module)
    workload.restore_state(workload.ran)
    speedups = time_pairs(step_timer, baseline, latency_ms)
    compiled = compilation.compiled()
    if compiled is not None:
        raise UnsupportedError(compiled)
    return speedups


def baseline_of_all_ranks(settings: Mapping[str, Any], step_timer: StepTimer) -> Step:
    """Prepare the baseline in all ranks of the trial, and return its step. Raises UnsupportedError
    if another rank could not, Ended if this one alone could not, and what the mode raises."""
    context, workload = step_timer.context, step_timer.workload
    failure: Exception | None = None
    with context.ranks.together(Task.BASELINE) as answers:
        try:
            step = prepare_baseline(settings, workload, context.request.cache_dir)
        except Exception as error:
            if context.ranks.is_awaited():
                raise Ended(*failures.classify(error, context.trial.phase)) from error
            failure = error
    if failure is not None:
        raise failure
    reason = context.ranks.first_reason(answers)
    if reason is not None:
        raise UnsupportedError(reason)
    return context.ranks.led(step, workload.inputs.timed, OrderKind.BASELINE)


def time_pairs(step_timer: StepTimer, baseline: Step, mode_ms: float) -> dict[str, PairedSpeedup]:
    """Take the pairs of both timers. `mode_ms`: latency of the mode."""
    context, timer, watcher = step_timer.context, step_timer.timer, step_timer.watcher
    rules = context.rules
    other = replace(
        timer,
        step=baseline,
        rules=replace(rules, warmup_s=min(WARMUP_S, rules.warmup_s)),
    )
    budget_s = PART * rules.budget_s
    if step_timer.has_period:
        budget_s /= 2
    other_calls = LatencySide(other, latency_ms=other.warm_up().samples_ms[-1])
    own_calls = LatencySide(timer, mode_ms)
    depends_on_host = other_calls.depends_on_host or own_calls.depends_on_host
    watcher.begin()
    context.ranks.ask(Task.WATCH)
    watching = context.host_watched(depends_on_host, moves=context.on_cuda)
    taken: dict[str, Pairs] = {}
    with watching as host, timing.no_garbage_collection():
        taken[LATENCY] = take_pairs(other_calls, own_calls, rules, budget_s, host)
        if step_timer.has_period:
            other_blocks = PeriodSide(other, budget_s)
            own_blocks = PeriodSide(timer, budget_s)
            own_blocks.load()
            taken[PERIOD] = take_pairs(other_blocks, own_blocks, rules, budget_s, host)
    gpu = watcher.newest_disturbance() or context.ranks.newest_disturbance()
    facts = None
    if host is not None:
        facts = host.facts()
    speedups = {}
    for name, pairs in taken.items():
        figure = pairs.figure(rules, host)
        reason = why_marked.of_speedup(figure, len(pairs.in_order), rules, gpu, facts)
        speedups[name] = PairedSpeedup(figure.median, pairs, reason)
    return speedups
