"""The phase `pairs` of a trial: the baseline's and the mode's calls in turn, which give the paired
speedups.

They come after the trial's own series, counters and memory figures, which thus do not see the
baseline's calls.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from effbench.cell import Cell, Trial, mode_settings
from effbench.measure import timing
from effbench.measure.host import HostWatch
from effbench.measure.pairs import LatencySide, Pairs, PeriodSide, Side, take_pairs
from effbench.measure.timing import Inputs, Rules, Timer
from effbench.measure.watch import GpuWatch
from effbench.metrics import significant
from effbench.models.build import resolve_target
from effbench.models.inputs import Batch
from effbench.modes.base import Mode, required
from effbench.modes.eager import Eager
from effbench.modes.selective import shared_weight_copy
from effbench.worker.workload import Inference, copies

#: Key in `Trial.extra`: why a trial has no pairs.
NO_PAIRS = "no_pairs"
#: Parts of the timing budget that the pairs and the trial's own timers may take. Together they are
#: less than 1, because the baseline warms up, too: a sweep takes no longer than without pairs.
PART, OWN_PART = 0.25, 0.6
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

    @property
    def low(self) -> str:
        return f"{self.speedup}_low"

    @property
    def high(self) -> str:
        return f"{self.speedup}_high"

    @property
    def disturbed(self) -> str:
        return f"{self.speedup}_disturbed"


LATENCY = PairColumns("pair_speedup", "pair", "pairs")
PERIOD = PairColumns("pair_period_speedup", "period_pair", "period_pairs")


def unpaired(cell: Cell, workload: Inference) -> str | None:
    """Return why the baseline's and the mode's calls cannot alternate in one process, or None."""
    if cell.phase == "training":
        return "each side's training steps change the other side's weights"
    if cell.phase == "generate" or cell.stream:
        return "requests and streams are timed as a whole"
    for name in workload.initial:
        kind = name.split(" ")[0]
        if (
            kind == "attribute"
            # compiled code may depend on a plain value, and recompile when the other side changes
            # it
        ):
            return f"each call changes the module's {name}"
    return None


def forget_pairs(trial: Trial, reason: str) -> None:
    """Remove what the pairs have found so far, and record why the trial has none."""
    trial.extra[NO_PAIRS] = reason
    trial.pair_disturbance = None
    for columns in (LATENCY, PERIOD):
        for name in (columns.speedup, columns.low, columns.high, columns.disturbed, columns.count):
            setattr(trial, name, None)
        for series in [name for name in trial.samples if name.startswith(f"{columns.samples}_")]:
            del trial.samples[series]


@dataclass
class BaselineStep:
    """The step of the baseline's mode in the process of another mode. Eager's is the module itself,
    which the trial holds anyway; other modes prepare a copy that shares its weights.

    `missing`: why the mode cannot run here, or None.
    """

    mode: Mode
    module: nn.Module
    example: Sequence[Inputs]
    missing: str | None
    step: Callable[..., Any]

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        module: nn.Module,
        example: Sequence[Inputs],
        device: torch.device,
    ) -> BaselineStep:
        """Return the step, not prepared yet. `settings`: the mode's; `example`: inputs of settling
        calls."""
        mode: Mode = resolve_target(settings["_target_"])(**mode_settings(dict(settings)))
        if isinstance(mode, Eager):
            return cls(mode, module, example, None, module)
        own = with_own_code(shared_weight_copy(module))
        return cls(mode, own, example, mode.missing(device), own)

    def prepare(self, batch: Batch, cache_dir: str | None) -> None:
        """Prepare the mode and make its settling calls. Raises what the mode raises."""
        if isinstance(self.mode, Eager):
            return
        self.mode.batch = batch
        self.mode.cache_dir = cache_dir
        args, kwargs = copies(self.example[0])
        self.step = required(self.mode.prepare(self.module, args, kwargs), self.mode.prepare).step
        for number in range(max(1, self.mode.settling_calls)):
            args, kwargs = copies(self.example[number % len(self.example)])
            self.step(*args, **kwargs)


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
    """Times the baseline and the mode in turn. `baseline`: its step; `own`: the timer of the mode's
    step; `watch_host`: makes a watch of the host; `spread`: ratio of the bounds of the median
    speedup from which pairs are unsteady."""

    def __init__(
        self,
        trial: Trial,
        baseline: Callable[..., Any],
        own: Timer,
        watcher: GpuWatch,
        watch_host: Callable[[], HostWatch],
        spread: float = timing.SPREAD,
    ) -> None:
        self.trial = trial
        self.own = own
        self.watcher = watcher
        self.watch_host = watch_host
        self.spread = spread
        self.rules: Rules = own.rules
        short = dataclasses.replace(self.rules, warmup_s=min(WARMUP_S, self.rules.warmup_s))
        self.reference = Timer(baseline, own.inputs, own.device, short, renew=own.renew)

    def take(self, has_period: bool) -> None:
        """Take the pairs of both timers, and set the columns of the trial."""
        budget_s = PART * self.rules.budget_s / (2 if has_period else 1)
        reference_ms = self.reference.warm_up().samples_ms[-1]
        own_ms = self.trial.latency_ms
        depends_on_host = self.own.waits_for_host(own_ms) or self.reference.waits_for_host(
            reference_ms
        )
        host = self.watch_host() if depends_on_host else None
        watching: AbstractContextManager[None] = host.watching() if host else nullcontext()
        self.watcher.begin()
        with watching, timing.no_garbage_collection():
            sides: list[Side] = [
                LatencySide(self.reference, reference_ms),
                LatencySide(self.own, own_ms),
            ]
            found = {LATENCY: take_pairs(*sides, self.rules, budget_s, host)}
            if has_period:
                sides = [
                    PeriodSide(timer, timer.choose_block(budget_s))
                    for timer in (self.reference, self.own)
                ]
                timing.load(self.own.step, sides[1].rotation, sides[1].calls, self.rules.load_s / 3)
                found[PERIOD] = take_pairs(*sides, self.rules, budget_s, host)
        disturbance = self.watcher.newest_disturbance() if has_period else None
        for columns, pairs in found.items():
            reason = self.set_columns(columns, pairs, host)
            disturbance = disturbance or reason
        self.trial.pair_disturbance = disturbance

    def set_columns(self, columns: PairColumns, pairs: Pairs, host: HostWatch | None) -> str | None:
        """Set the columns of a timer's pairs. Return why its speedup is marked, or None."""
        figure = pairs.figure(self.rules, self.spread)
        setattr(self.trial, columns.speedup, figure.median.value)
        setattr(self.trial, columns.low, figure.median.low)
        setattr(self.trial, columns.high, figure.median.high)
        setattr(self.trial, columns.count, len(pairs.undisturbed) + len(pairs.disturbed))
        if pairs.disturbed:
            setattr(self.trial, columns.disturbed, statistics.median(pairs.disturbed_ratios))
        self.trial.samples |= pairs.samples(columns.samples)
        if figure.is_marked:
            return host.reason() if host else "host busy"
        if host is not None and host.theft is not None:
            return host.theft
        if figure.varies:
            low, high = significant(figure.median.low, 3), significant(figure.median.high, 3)
            return f"unsteady: the speedup of pairs is anywhere from {low} to {high}"
        return None
