"""How long trials take: as earlier ones of the same mode took; without any, by the protocol."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from effbench.core.cell import Cell, Trial
from effbench.core.printable import about, between
from effbench.run.devices import Slot
from effbench.run.plan import LOST, CellRun, PlannedTrial, Settings
from effbench.store.trials import TrialDuration

#: `Trial.compile_cache` of a trial that compiled with an empty cache.
COLD = "cold"
#: Likely seconds, besides warm-up and timing, to start a process, build the model and compare it.
LEAST_OVERHEAD_S, MOST_OVERHEAD_S = 0.3, 5.0
#: Most seconds that modes usually take to compile.
COMPILE_S = 60.0
#: Smallest assumed number of trials that run at the same time, on average; the rest is waiting.
LEAST_PARALLEL = 0.01


# --- from trials ---


@dataclass(frozen=True)
class TrialKind:
    """What trials that take about as long have in common. `model`: None for any. `is_cold`: whether
    they compile with an empty cache, if they compile."""

    device: str
    phase: str
    mode: str
    model: str | None
    is_cold: bool

    @classmethod
    def of(cls, cell: Cell, is_cold: bool) -> TrialKind:
        return cls(
            cell.device,
            cell.phase,
            cell.mode_name,
            cell.model_name,
            is_cold,
        )

    def similar(self) -> list[TrialKind]:
        """Return this kind and others, the most similar ones first."""
        other = replace(self, is_cold=not self.is_cold)
        return [self, other, replace(self, model=None), replace(other, model=None)]


class Durations:
    """The mean duration of each kind of trials."""

    def __init__(self) -> None:
        self.numbers: Counter[TrialKind] = Counter()
        self.seconds: defaultdict[TrialKind, float] = defaultdict(float)

    @classmethod
    def of(cls, trials: Iterable[TrialDuration]) -> Durations:
        """Return the durations of stored trials; see `Store.durations`."""
        durations = cls()
        for trial in trials:
            is_cold = trial.compile_cache == COLD
            kind = TrialKind(
                trial.device,
                trial.phase,
                trial.mode,
                trial.model,
                is_cold,
            )
            durations.add_kind(kind, trial.wall_s)
        return durations

    def add(self, cell: Cell, trial: Trial) -> None:
        """Add a trial of the cell, unless its duration is unknown."""
        if not trial.wall_s:
            return
        is_cold = trial.compile_cache == COLD
        self.add_kind(TrialKind.of(cell, is_cold), trial.wall_s)
        if is_cold and trial.compile_s:  # a guess, until there are trials with a filled cache
            warm_s = max(0.0, trial.wall_s - trial.compile_s)
            self.add_kind(TrialKind.of(cell, is_cold=False), warm_s)

    def add_kind(self, kind: TrialKind, seconds: float) -> None:
        for known in (kind, replace(kind, model=None)):
            self.numbers[known] += 1
            self.seconds[known] += seconds

    def expected_s(self, kind: TrialKind) -> float | None:
        """Return the mean seconds of the most similar trials; None without any."""
        for known in kind.similar():
            if self.numbers[known]:
                return self.seconds[known] / self.numbers[known]
        return None


# --- before a sweep ---


@dataclass(frozen=True)
class Span:
    """The shortest and the longest likely duration, in seconds."""

    low_s: float
    high_s: float


def protocol_span(trial: PlannedTrial, settings: Settings) -> Span:
    """Return how long a trial takes that nothing is known of."""
    protocol = settings.protocol
    low_s = LEAST_OVERHEAD_S + protocol.warmup_s + min(protocol.min_time_s, protocol.budget_s)
    high_s = MOST_OVERHEAD_S + max(protocol.warmup_s, protocol.max_warmup_s)
    high_s += protocol.budget_s + protocol.load_s
    if "modes.eager." not in trial.run.cell.mode.get("_target_", ""):
        high_s += COMPILE_S
    high_s = min(high_s, settings.timeout_s)
    if trial.round > 0 and protocol.enough_interval:
        low_s = 0.0  # rounds may end early
    return Span(min(low_s, high_s), high_s)


def duration_text(
    trials: Sequence[PlannedTrial],
    settings: Settings,
    slots: Sequence[Slot],
    durations: Durations,
) -> str:
    """Return how long these trials take on the slots, and how that is known."""
    if not trials:
        return "duration: none, because all trials are recorded"
    devices = Counter(slot.device for slot in slots)
    low_s = high_s = 0.0
    is_known = True
    for trial in trials:
        cell = trial.run.cell
        is_cold = trial.round < settings.protocol.compilations
        expected_s = durations.expected_s(TrialKind.of(cell, is_cold))
        if expected_s is None:
            is_known = False
            span = protocol_span(trial, settings)
        else:
            span = Span(expected_s, expected_s)
        parallel = max(1, devices[cell.device])
        low_s += span.low_s / parallel
        high_s += span.high_s / parallel
    if is_known:
        return f"duration: {about(low_s)}, as earlier trials took"
    return (
        f"duration: {between(low_s, high_s)}, from the protocol and usual compile times where no"
        " earlier trial with this protocol is known"
    )


# --- during a sweep ---


class TimeLeft:
    """Tracks the trials of a sweep and estimates its end whenever one ends. The caller serialises
    the calls.

    `trials`: those to run; `whole`: the number of trials of the whole sweep, including recorded
    ones, to which the percentage refers: a trial that is no longer needed counts as done.
    `compilations`: number of first rounds that compile with an empty cache. `clock`: returns
    seconds.
    """

    def __init__(
        self,
        trials: Sequence[PlannedTrial],
        whole: int,
        compilations: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.whole = max(whole, len(trials))
        self.clock = clock
        self.began_s = clock()
        #: The kinds of the trials that are left, by run and round.
        self.left = {
            (trial.run, trial.round): TrialKind.of(trial.run.cell, trial.round < compilations)
            for trial in trials
        }
        self.durations = Durations()
        self.ran_s = 0.0
        self.ends_s: float | None = None

    def ended(self, trial: PlannedTrial, record: Trial) -> None:
        self.ran_s += record.wall_s or 0.0
        if record.status.is_measured:
            self.durations.add(trial.run.cell, record)
            self.left.pop((trial.run, trial.round), None)
        elif LOST not in record.extra:  # another job repeats a lost one
            self.dropped(trial.run)
        if self.durations.numbers:
            self.ends_s = self.clock() + self.expected_s()

    def dropped(self, run: CellRun) -> None:
        """Note that the remaining rounds of this run are not needed."""
        for key in [key for key in self.left if key[0] == run]:
            del self.left[key]

    def percent(self) -> int:
        """Return the percentage of the sweep that is done; 100 only when nothing is left."""
        if not self.left:
            return 100
        return min(99, 100 * (self.whole - len(self.left)) // self.whole)

    def seconds(self) -> float | None:
        """Return the estimated seconds until the end; None before a trial has been measured."""
        if self.ends_s is None:
            return None
        return max(0.0, self.ends_s - self.clock())

    def expected_s(self) -> float:
        """Return the expected seconds for all trials that are left."""
        durations = self.durations
        mean_s = sum(durations.seconds.values()) / durations.numbers.total()
        work_s = 0.0
        for kind, number in Counter(self.left.values()).items():
            work_s += number * (durations.expected_s(kind) or mean_s)
        # trials run in parallel on several devices, and wait between each other
        parallel = self.ran_s / max(self.clock() - self.began_s, 1e-9)
        return work_s / max(parallel, LEAST_PARALLEL)
