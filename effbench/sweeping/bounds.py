"""Bounds of how long trials take, from the protocol alone: for a plan on a machine that has
measured nothing yet."""

from __future__ import annotations

from dataclasses import dataclass

from effbench.cell import Cell
from effbench.config import Protocol
from effbench.stats.intervals import LEAST_TRIALS
from effbench.sweeping.plan import PlannedTrial, Settings


@dataclass(frozen=True)
class Bounds:
    """The shortest and the longest likely duration, in seconds."""

    low_s: float = 0.0
    high_s: float = 0.0

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.low_s + other.low_s, self.high_s + other.high_s)

    def divided(self, number: int) -> Bounds:
        return Bounds(self.low_s / number, self.high_s / number)


#: Forking the process, importing, building the model and comparing its output with eager's.
OVERHEAD = Bounds(0.3, 3.0)
#: Profiling and reading memory, on CUDA.
PROFILE = Bounds(0.2, 2.0)
#: Preparing a mode with an empty compile cache: tracing, or capturing a graph.
LIGHT = Bounds(0.0, 10.0)


@dataclass(frozen=True)
class Compilation:
    """How long modes compile whose settings contain the text `part`: with an empty and with a
    filled cache."""

    part: str
    cold: Bounds
    warm: Bounds


#: The first match counts.
COMPILATIONS = (
    Compilation("autotune", cold=Bounds(10.0, 300.0), warm=Bounds(1.0, 30.0)),
    Compilation("AotInductor", cold=Bounds(5.0, 120.0), warm=Bounds(5.0, 120.0)),
    Compilation("modes.compiled.", cold=Bounds(2.0, 60.0), warm=Bounds(0.5, 15.0)),
    Compilation("CompiledCudaGraph", cold=Bounds(2.0, 60.0), warm=Bounds(0.5, 15.0)),
    Compilation("modes.eager.", cold=Bounds(), warm=Bounds()),
)


def compilation(cell: Cell, is_cold: bool) -> Bounds:
    """Return how long the cell's mode takes to prepare, with an empty compile cache (`is_cold`) or
    a filled one."""
    # the bucketed graph names a mode that it does not use then
    if cell.mode.get("torch_compile_max_bs") == 0:
        return LIGHT
    mode = " ".join(map(str, cell.mode.values()))
    for kind in COMPILATIONS:
        if kind.part in mode:
            if is_cold:
                return kind.cold
            return kind.warm
    return LIGHT


def trial_bounds(cell: Cell, protocol: Protocol, is_cold: bool) -> Bounds:
    """Return the bounds of a trial of this cell. Calls that take a large part of a second last
    longer."""
    budget_s = protocol.budget_s
    shortest_s = min(protocol.warmup_s, protocol.max_warmup_s)
    longest_s = max(protocol.warmup_s, protocol.max_warmup_s) + budget_s
    bounds = OVERHEAD + compilation(cell, is_cold)
    if cell.device != "cuda":
        return bounds + Bounds(shortest_s + min(protocol.min_time_s, budget_s), longest_s)
    two_timers_s = min(2 * protocol.min_time_s, budget_s)
    bounds += Bounds(shortest_s + two_timers_s, longest_s)
    bounds += Bounds(protocol.load_s, protocol.load_s)
    if protocol.profile:
        bounds += PROFILE
    return bounds


def planned_bounds(trial: PlannedTrial, settings: Settings) -> Bounds:
    """Return the bounds of a planned trial, which may turn out not to be needed."""
    protocol = settings.protocol
    bounds = trial_bounds(trial.run.cell, protocol, trial.round < protocol.compilations)
    high_s = min(bounds.high_s, settings.timeout_s)
    if trial.round >= least_rounds(protocol):
        return Bounds(0.0, high_s)
    return Bounds(min(bounds.low_s, high_s), high_s)


def least_rounds(protocol: Protocol) -> int:
    """Return the number of rounds that a cell surely has: rounds may end early."""
    if protocol.eliminate is not None:
        return 1
    if protocol.enough_interval is not None:
        return min(LEAST_TRIALS, protocol.rounds)
    return protocol.rounds
