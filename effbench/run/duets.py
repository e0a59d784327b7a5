"""Duets: two trials that are both alive on one device and are timed in turn, and when there are
enough of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from effbench.core.cell import Cell, Status, Trial
from effbench.core.meeting import call_off
from effbench.core.message import DUET_PHASE, DuetRequest
from effbench.run.client import ServerRequest
from effbench.run.plan import is_of_duet
from effbench.stats.significance import LEAST_DUETS, Compilations, compare_pairs, is_decided

#: Part of a trial's timeout after which a partner that does not answer counts as lost.
ANSWER_PART = 0.25


def allows_duet(cell: Cell) -> bool:
    """Return whether the cell's calls can alternate with those of another process: a training step,
    a request and a stream are timed as a whole."""
    return cell.phase == "inference" and cell.stream is None and cell.generate is None


class Meeting:
    """Brings the two trials of a duet together: the follower starts when the leader waits for it,
    so that neither disturbs the other's preparation. Thread-safe. `folder`: of the socket;
    `timeout_s`: of a trial; `is_alike`: whether both wait for the host in the same way."""

    def __init__(self, folder: Path, timeout_s: float, is_alike: bool = False) -> None:
        self.folder = folder
        self.timeout_s = timeout_s
        self.is_alike = is_alike
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

    def wait(self) -> None:
        """Note that the leader waits for the follower."""
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
class Member:
    """A trial's part in a duet."""

    meeting: Meeting
    leads: bool

    def request(self) -> DuetRequest:
        answer_s = ANSWER_PART * self.meeting.timeout_s
        return DuetRequest(str(self.meeting.folder), self.leads, answer_s, self.meeting.is_alike)

    def phase(self, request: ServerRequest, phase: str) -> None:
        """Note a phase of the trial. The time for which it waits for its partner does not count."""
        request.wait(phase == DUET_PHASE)
        if phase == DUET_PHASE and self.leads:
            self.meeting.wait()


@dataclass(frozen=True)
class StoppingRule:
    """When there are enough duets of a cell: each ratio is shown to be inside its floor, or beyond
    it.

    `floors`: cell key -> metric -> the relative change that counts. `needs_both`: whether the
    rounds of one side end if the other one cannot run. `benchmarks/duets.py` simulates how often a
    rule errs.
    """

    floors: Mapping[str, Mapping[str, float]]
    needs_both: bool = False

    def is_settled(
        self, before: Sequence[Trial], after: Sequence[Trial], compilations: int
    ) -> bool:
        """Return whether these trials of both sides are enough. `compilations`: compile caches that
        each side uses."""
        sides = usable_pairs(before, after)
        if len(sides[0]) < LEAST_DUETS:
            return False
        if any(misses_compilations(side, compilations) for side in sides):
            return False
        floors = self.floors.get(before[0].cell_key) or self.floors.get(after[0].cell_key) or {}
        return all(is_known(*sides, metric, floor) for metric, floor in floors.items())


def usable_pairs(
    before: Sequence[Trial], after: Sequence[Trial]
) -> tuple[list[Trial], list[Trial]]:
    """Return the trials of both sides in the rounds in which both are usable."""
    old = {trial.round: trial for trial in before if is_usable(trial)}
    new = {trial.round: trial for trial in after if is_usable(trial)}
    rounds = sorted(old.keys() & new.keys())
    return [old[number] for number in rounds], [new[number] for number in rounds]


def misses_compilations(trials: Iterable[Trial], number: int) -> bool:
    """Return whether the trials use fewer compile caches than this number. The cache of a trial of
    an older version is unknown."""
    caches = {trial.compilation for trial in trials}
    return None not in caches and len(caches) < number


def is_usable(trial: Trial) -> bool:
    return trial.status is Status.OK and trial.disturbance is None and is_of_duet(trial)


def is_known(before: Sequence[Trial], after: Sequence[Trial], metric: str, floor: float) -> bool:
    """Return whether the ratio of these duets is decided, or the metric has none. Both sides have
    the same rounds."""
    old = {trial.round: getattr(trial, metric) for trial in before}
    new = {trial.round: getattr(trial, metric) for trial in after}
    if not all(old.values()) or not all(new.values()):
        return True
    kernels = kernels_by_chance(before, after)
    compiled = Compilations(caches_of(before), caches_of(after), kernels)
    ratio = compare_pairs(old, new, floor, compiled)
    return is_decided(ratio.low, ratio.high, floor)


def caches_of(trials: Iterable[Trial]) -> dict[int, int | None]:
    """Return the compile cache of each round."""
    return {trial.round: trial.compilation for trial in trials}


def kernels_of(trials: Iterable[Trial]) -> set[str]:
    return {trial.kernel_fingerprint for trial in trials if trial.kernel_fingerprint}


def kernels_by_chance(before: Sequence[Trial], after: Sequence[Trial]) -> set[str]:
    """Return the kernels among which the compiler chose; none if it always chose the same ones on
    each side."""
    old, new = kernels_of(before), kernels_of(after)
    if len(old) <= 1 and len(new) <= 1:
        return set()
    return old | new
