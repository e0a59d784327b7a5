"""The trials of a sweep that are still to be run: in which order, which are tried again, and where they may run.

Where a cell runs under several interpreters, its trials of one round are compared with each other. So they run on one
slot, one after the other, and are tried again together.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from effbench.cell import Cell, Status, Trial
from effbench.sweeping.interpreters import HERE, Interpreter, Unit, UnitKey
from effbench.sweeping.plan import round_order

#: A cell (its key) in a round: what the interpreters of a cell share.
Turn = tuple[str, int]


@dataclass(frozen=True)
class Job:
    """A trial to be run."""

    cell: Cell
    round: int
    attempt: int = 0
    interpreter: Interpreter = HERE

    @property
    def key(self) -> UnitKey:
        """Of what it is a trial: the cell under its interpreter."""
        return self.cell.key, self.interpreter

    @property
    def turn(self) -> Turn:
        return self.cell.key, self.round


def jobs_of(
    units: Sequence[Unit],
    rounds: int,
    seed: int,
    recorded: Mapping[tuple[UnitKey, int], Status],
    first_round: int = 0,
) -> list[Job]:
    """All trials still to be run: rounds one after the other, without those recorded and without what failed (a cell
    under an interpreter)."""
    given_up = {key for (key, _), status in recorded.items() if not status.is_measured}
    return [
        Job(unit.cell, round, interpreter=unit.interpreter)
        for round in range(first_round, rounds)
        for unit in round_order(units, seed, round)
        if (unit.key, round) not in recorded and unit.key not in given_up
    ]


def with_retries(
    jobs: list[Job], units: Sequence[Unit], history: Mapping[UnitKey, list[Trial]], attempts: int
) -> list[Job]:
    """With the further tries of recorded rounds that were noisy, each after the jobs of its round.

    The other interpreters of the cell come again beside it, or now if they have not had their trial of that round.
    """
    failed = {key for key, trials in history.items() if not all(trial.status.is_measured for trial in trials)}
    last = {
        (unit.key, trial.round): trial
        for unit in units
        if unit.key not in failed
        for trial in history.get(unit.key, ())
    }
    noisy = {
        (key[0], round)
        for (key, round), trial in last.items()
        if trial.status is Status.NOISY and trial.attempt + 1 < attempts
    }
    left = {(job.key, job.round): job for job in jobs}
    retries = []
    for turn in sorted(noisy, key=lambda turn: turn[1]):
        for unit in round_order([unit for unit in units if unit.cell.key == turn[0]], 0, turn[1]):
            known, pending = last.get((unit.key, turn[1])), left.get((unit.key, turn[1]))
            if known is not None and known.attempt + 1 < attempts:
                retries.append(Job(unit.cell, turn[1], known.attempt + 1, unit.interpreter))
            elif pending is not None:
                retries.append(pending)
    return sorted([*(job for job in jobs if job not in retries), *retries], key=lambda job: job.round)


@dataclass
class Queue:
    """The jobs that are left. A cell never runs twice at once: its compile cache has one writer, and its interpreters
    are compared with each other.

    `history`: what is recorded of each cell and interpreter. `slots`: by GPU UUID, the names of those there are.
    """

    jobs: list[Job]
    history: Mapping[UnitKey, Sequence[Trial]] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.running: dict[str, str] = {}  # cell key -> device of its slot
        self.last: dict[tuple[UnitKey, int], Job] = {}  # what has been run here
        interpreters: dict[str, set[Interpreter]] = {}
        for key, interpreter in [*(job.key for job in self.jobs), *self.history]:
            interpreters.setdefault(key, set()).add(interpreter)
        self.pairs = {key for key, found in interpreters.items() if len(found) > 1}
        #: where the interpreters of a cell run in a round; where one has been, before an interruption, too
        self.places: dict[Turn, str] = {
            (key, trial.round): self.slots[trial.gpu_uuid]
            for (key, _), trials in self.history.items()
            if key in self.pairs
            for trial in trials
            if trial.gpu_uuid in self.slots
        }

    def take(self, slot: str, device: str, devices: Collection[str]) -> Job | None:
        """The next job for the slot of this name and device. `devices`: those that have slots; a job for another goes
        to any slot, where its trial says what is missing."""
        with self.lock:
            for index, job in enumerate(self.jobs):
                fits = job.cell.device == device or job.cell.device not in devices
                fits &= self.places.get(job.turn, slot) == slot
                if fits and job.cell.key not in self.running:
                    # a trial on the CPU may use every core, and so those of trials on GPUs
                    if any((other == "cpu") != (device == "cpu") for other in self.running.values()):
                        return None
                    self.running[job.cell.key] = device
                    self.last[job.key, job.round] = job
                    if job.cell.key in self.pairs:
                        self.places[job.turn] = slot
                    return self.jobs.pop(index)
            return None

    def finished(self, job: Job, drop_rest: bool) -> list[Job]:
        """Free the cell; the jobs that are dropped because it needs no further rounds under this interpreter."""
        with self.lock:
            self.running.pop(job.cell.key, None)
            if not drop_rest:
                return []
            self.last = {(key, round): other for (key, round), other in self.last.items() if key != job.key}
            dropped = [other for other in self.jobs if other.key == job.key]
            self.jobs = [other for other in self.jobs if other not in dropped]
            return dropped

    def again(self, job: Job, attempts: int) -> list[Job]:
        """Another try, after the jobs of its round that are left: what disturbed it may have passed by then. The
        cell's other interpreters come beside it: again, if they had their trial of this round and may have one more,
        else now. Returns the jobs that are more than there were."""
        with self.lock:
            added = [replace(job, attempt=job.attempt + 1)]
            pending = [other for other in self.jobs if other.turn == job.turn]
            for (key, round), other in self.last.items():
                known = (key[0], round) == job.turn and key != job.key and key not in {one.key for one in pending}
                if known and other.attempt + 1 < attempts:
                    added.append(replace(other, attempt=other.attempt + 1))
            # in the order in which they had their turn
            order = [key for key, round in self.last if round == job.round]
            added.sort(key=lambda one: order.index(one.key))
            self.jobs = [other for other in self.jobs if other not in pending]
            place = sum(other.round <= job.round for other in self.jobs)
            self.jobs[place:place] = [*added, *pending]
            return added

    def is_empty(self) -> bool:
        with self.lock:
            return not self.jobs and not self.running
