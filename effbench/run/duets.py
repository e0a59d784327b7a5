"""Duets: how two trials meet that are timed in turn, what they show, and when there are enough of
them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from effbench.core.cell import Cell, Trial
from effbench.core.meeting import ALONE, DUET, call_off
from effbench.core.message import DUET_PHASE
from effbench.stats.significance import (
    LEAST_DUETS,
    Compilations,
    RatioTest,
    compare_pairs,
    is_decided,
)


def allows_duet(cell: Cell) -> bool:
    """Return whether the cell's calls can alternate with those of another process: a training step,
    a request and a stream are timed as a whole, and those of several ranks are led by one."""
    if cell.parallel is not None or cell.phase != "inference":
        return False
    return cell.stream is None and cell.generate is None


class Meeting:
    """Brings the two trials of a duet together: the follower starts when the leader waits for it,
    so that neither disturbs the other's preparation. Thread-safe. `folder`: of the socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        #: Set once the leader waits for the follower, or has ended.
        self.can_follow = threading.Event()
        self.leader_waits = False
        self.leader_has_ended = False
        self.follower_has_ended = False

    @property
    def takes_place(self) -> bool:
        """Whether the follower meets the leader; otherwise that one has ended, and the follower
        runs alone."""
        return self.leader_waits and not self.leader_has_ended

    def begins(self, phase: str) -> None:
        """Note a phase of the leader: the follower may start when the leader waits for it."""
        if phase != DUET_PHASE:
            return
        with self.lock:
            self.leader_waits = True
            if self.follower_has_ended:  # this is another attempt of the leader
                self.call_off()
            self.can_follow.set()

    def end(self, leads: bool) -> None:
        """Note that a member has ended."""
        with self.lock:
            if leads:
                self.leader_has_ended = True
                self.can_follow.set()
            else:
                self.follower_has_ended = True
                self.call_off()

    def call_off(self) -> None:
        call_off(self.folder, "the other member of the duet ended before they met")


@dataclass(frozen=True)
class Duets:
    """The trials of both sides of a cell, one per round, and what their duets show. Undisturbed
    rounds count if there are any."""

    before: Sequence[Trial]
    after: Sequence[Trial]

    @property
    def trials(self) -> list[Trial]:
        return [*self.before, *self.after]

    @cached_property
    def rounds(self) -> set[int]:
        """The rounds in which both sides have figures."""
        return measured_rounds(self.before) & measured_rounds(self.after)

    @cached_property
    def quiet(self) -> set[int]:
        """Those of these rounds in which neither side was disturbed."""
        return self.rounds - {trial.round for trial in self.trials if trial.disturbance}

    @property
    def counted(self) -> set[int]:
        return self.quiet or self.rounds

    @cached_property
    def sides(self) -> list[list[Trial]]:
        """The trials of each side in the counted rounds."""
        return [in_rounds(side, self.counted) for side in (self.before, self.after)]

    @property
    def reasons_alone(self) -> list[str]:
        """Why trials were not timed in turn, each reason once."""
        trials = in_rounds(self.trials, self.rounds)
        reasons = [(trial.extra.get(DUET) or {}).get(ALONE) for trial in trials]
        return list(dict.fromkeys(filter(None, reasons)))

    def test(self, metric: str, floor: float) -> RatioTest | None:
        """Return the test of the ratio after ÷ before over the counted rounds; None if a side lacks
        the metric. `before` and `after` of the test are the means of both sides."""
        before, after = (values_of(side, metric) for side in self.sides)
        if not before or not all([*before.values(), *after.values()]):
            return None
        old_caches, new_caches = (values_of(side, "compilation") for side in self.sides)
        compiled = Compilations(old_caches, new_caches, self.kernels_by_chance)
        test = compare_pairs(before, after, floor, compiled)
        old, new = (geometric_mean(side.values()) for side in (before, after))
        return replace(test, before=old, after=new)

    @property
    def kernels_by_chance(self) -> set[str]:
        """The kernels among which the compiler chose; none if it always chose the same ones on each
        side."""
        sides = [set(values_of(side, "kernel_fingerprint").values()) for side in self.sides]
        if all(len(kernels) <= 1 for kernels in sides):
            return set()
        return set.union(*sides) - {None}


def measured_rounds(trials: Iterable[Trial]) -> set[int]:
    return {trial.round for trial in trials if trial.status.is_measured}


def in_rounds(trials: Iterable[Trial], rounds: Collection[int]) -> list[Trial]:
    return [trial for trial in trials if trial.round in rounds]


def values_of(trials: Iterable[Trial], name: str) -> dict[int, Any]:
    """Return round -> this field of its trial."""
    return {trial.round: getattr(trial, name) for trial in trials}


def misses_compilations(trials: Iterable[Trial], number: int) -> bool:
    """Return whether the trials use fewer compile caches than this number. The cache of a trial of
    an older version is unknown."""
    caches = {trial.compilation for trial in trials}
    return None not in caches and len(caches) < number


@dataclass(frozen=True)
class StoppingRule:
    """When there are enough duets of a cell: each ratio is shown to be inside its floor, or beyond
    it.

    `floors`: cell key -> metric -> the relative change that counts. `is_gate`: only slowdowns
    matter, so a ratio is known as soon as one beyond the floor is shown or excluded.
    `benchmarks/duets.py` simulates how often a rule errs.
    """

    floors: Mapping[str, Mapping[str, float]]
    is_gate: bool = False

    def is_settled(self, duets: Duets, compilations: int) -> bool:
        """Return whether these duets are enough. `compilations`: compile caches that each side
        uses."""
        if len(duets.quiet) < LEAST_DUETS:
            return False
        if any(misses_compilations(side, compilations) for side in duets.sides):
            return False
        for metric, floor in self.floors.get(duets.after[0].cell_key, {}).items():
            test = duets.test(metric, floor)
            if test is not None and not is_decided(test.low, test.high, floor, self.is_gate):
                return False
        return True
