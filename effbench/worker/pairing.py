"""The phase `pairs` of a trial: the baseline's and the mode's calls in turn, which give the paired
speedups.

They come after the trial's own series, counters and memory figures, which thus do not see the
baseline's calls.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from effbench.cell import Trial, mode_settings
from effbench.errors import UnsupportedError
from effbench.measure import timing
from effbench.measure.host import HostWatch
from effbench.measure.pairs import LatencySide, Pairs, PeriodSide, take_pairs
from effbench.measure.timing import Timer
from effbench.models.build import resolve_target
from effbench.models.inputs import Step
from effbench.modes.base import Mode, required
from effbench.modes.eager import Eager
from effbench.modes.selective import shared_weight_copy
from effbench.printable import describe
from effbench.stats.intervals import Interval
from effbench.worker.context import CompilationWatch
from effbench.worker.timings import Timings, describe_range
from effbench.workloads.base import Workload, copies

#: Key in `Trial.extra`: why a trial has no pairs.
NO_PAIRS = "no_pairs"
#: Part of the timing budget that the pairs may take. With that of the trial's own timers it is less
#: than 1, because the baseline warms up, too: a sweep takes no longer than without pairs.
PART = 0.25
#: Seconds of the baseline's warm-up, which has made some calls before.
WARMUP_S = 0.1


@dataclass(frozen=True)
class PairColumns:
    """The columns of a trial that the pairs of one timer set.

    `samples`: what the names of its raw series begin with.
    """

    speedup: str
    samples: str
    count: str

    def set(
        self,
        trial: Trial,
        median: Interval,
        disturbed: float | None,
        count: int,
    ) -> None:
        """Set the speedup with its interval, that of disturbed pairs, and the number of pairs."""
        setattr(trial, self.speedup, median.value)
        setattr(trial, f"{self.speedup}_low", median.low)
        setattr(trial, f"{self.speedup}_high", median.high)
        setattr(trial, f"{self.speedup}_disturbed", disturbed)
        setattr(trial, self.count, count)

    def clear(self, trial: Trial) -> None:
        """Remove the columns and the series from the trial."""
        for end in ("", "_low", "_high", "_disturbed"):
            setattr(trial, f"{self.speedup}{end}", None)
        setattr(trial, self.count, None)
        for series in list(trial.samples):
            if series.startswith(f"{self.samples}_"):
                del trial.samples[series]


LATENCY = PairColumns("pair_speedup", "pair", "pairs")
PERIOD = PairColumns("pair_period_speedup", "period_pair", "period_pairs")


@dataclass(frozen=True)
class Baseline:
    """The step of the baseline's mode, and its module."""

    module: nn.Module
    step: Step


def prepare_baseline(settings: Mapping[str, Any], workload: Workload) -> Baseline:
    """Prepare the baseline's mode in the process of another mode.

    Eager's step is the module itself, which the trial holds anyway; other modes prepare a copy that
    shares its weights. `settings`: the mode's. Raises UnsupportedError, and what the mode raises.
    """
    mode: Mode = resolve_target(settings["_target_"])(**mode_settings(dict(settings)))
    if isinstance(mode, Eager):
        return Baseline(workload.module, workload.module)
    missing = mode.missing(workload.device)
    if missing is not None:
        raise UnsupportedError(missing)
    module = with_own_code(shared_weight_copy(workload.module))
    mode.batch = workload.mode.batch
    mode.cache_dir = workload.mode.cache_dir
    inputs = workload.inputs.checked
    args, kwargs = copies(inputs[0])
    step = required(mode.prepare(module, args, kwargs), mode.prepare).step
    for number in range(max(1, mode.settling_calls)):
        args, kwargs = copies(inputs[number % len(inputs)])
        step(*args, **kwargs)
    return Baseline(module, step)


def with_own_code(module: nn.Module) -> nn.Module:
    """Give the module's forward a code object of its own. Dynamo keeps what it compiles by code
    object, and each call checks what it has compiled for others."""
    forward = module.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name="baseline_forward")
    module.forward = call  # type: ignore[method-assign]
    return module


class Pairing:
    """Times the baseline and the mode in turn. `timings`: those of the mode's step alone."""

    def __init__(self, timings: Timings) -> None:
        self.timings = timings
        self.context = timings.context
        self.trial = timings.trial
        self.workload = timings.workload
        self.rules = timings.rules

    def run(self, settings: Mapping[str, Any]) -> None:
        """Take the pairs, if possible. A failure affects only the paired speedups. `settings`: of
        the baseline's mode."""
        reason = self.workload.unpaired()
        if reason is None:
            try:
                reason = self.take_with(settings)
            except UnsupportedError as error:
                reason = str(error)
            # the baseline may lack memory, or meet a state that it does not expect
            except Exception as error:
                reason = describe(error)
        if reason is not None:
            self.trial.extra[NO_PAIRS] = reason
            self.trial.pair_disturbance = None
            LATENCY.clear(self.trial)
            PERIOD.clear(self.trial)

    def take_with(self, settings: Mapping[str, Any]) -> str | None:
        """Prepare the baseline and take the pairs. Return why they do not count, or None."""
        workload = self.workload
        baseline = prepare_baseline(settings, workload)
        compilation = CompilationWatch()
        workload.restore_state([workload.module, workload.ran, baseline.module])
        self.take(baseline.step)
        return compilation.compiled()

    def take(self, baseline: Step) -> None:
        """Take the pairs of both timers, and set the columns of the trial."""
        watcher, rules = self.context.watcher, self.rules
        timer, has_period = self.timings.timer, self.timings.has_period
        short = dataclasses.replace(rules, warmup_s=min(WARMUP_S, rules.warmup_s))
        reference = Timer(baseline, timer.inputs, timer.device, short, renew=timer.renew)
        budget_s = PART * rules.budget_s / (2 if has_period else 1)
        reference_ms = reference.warm_up().samples_ms[-1]
        mode_ms = self.timings.latency_ms
        depends_on_host = timer.waits_for_host(mode_ms) or reference.waits_for_host(reference_ms)
        watching = self.context.host_watched(depends_on_host, moves=self.context.on_cuda)
        watcher.begin()
        with watching as host, timing.no_garbage_collection():
            reference_side = LatencySide(reference, reference_ms)
            mode_side = LatencySide(timer, mode_ms)
            series = {LATENCY: take_pairs(reference_side, mode_side, rules, budget_s, host)}
            if has_period:
                reference_blocks = PeriodSide(reference, reference.choose_block(budget_s))
                blocks = PeriodSide(timer, timer.choose_block(budget_s))
                timing.load(timer.step, blocks.rotation, blocks.calls, rules.load_s / 3)
                series[PERIOD] = take_pairs(reference_blocks, blocks, rules, budget_s, host)
        disturbance = watcher.newest_disturbance() if has_period else None
        for columns, pairs in series.items():
            reason = self.set_columns(columns, pairs, host)
            disturbance = disturbance or reason
        self.trial.pair_disturbance = disturbance

    def set_columns(self, columns: PairColumns, pairs: Pairs, host: HostWatch | None) -> str | None:
        """Set the columns of a timer's pairs. Return why its speedup is marked, or None."""
        figure = pairs.figure(self.rules, self.context.protocol.spread)
        disturbed = statistics.median(pairs.disturbed_ratios) if pairs.disturbed else None
        count = len(pairs.undisturbed) + len(pairs.disturbed)
        columns.set(self.trial, figure.median, disturbed, count)
        self.trial.samples |= pairs.samples(columns.samples)
        if figure.is_marked:
            return host.reason() if host else "host busy"
        if host is not None and host.theft is not None:
            return host.theft
        if figure.varies:
            return f"unsteady: the speedup of pairs is {describe_range(figure)}"
        return None
