"""The plan of a sweep: its settings, its cells with their interpreters, and the remaining trials in
order.

If a cell runs under several interpreters, its trials of a round are compared with each other. They
form a group that runs on one slot and is retried together: two of them as a duet, if the cell
allows it, else sequentially. So do the two cells of a duet.
"""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from effbench.cell import Cell, Trial
from effbench.config import Config
from effbench.meeting import ALONE, DUET
from effbench.sweeping.interpreters import HERE, Interpreter

#: Key in `Trial.extra` of a trial whose cluster job ended before it.
LOST = "lost_job"
#: Groups per GPU at the end of a sweep that start longest first.
TAIL = 2


@dataclass(frozen=True)
class Settings:
    """Settings of the whole sweep, as plain values of the configuration."""

    sweep: dict[str, Any]
    protocol: dict[str, Any]
    executor: dict[str, Any]
    isolation: str
    timeout_s: float
    baseline_mode: str
    exclude: list[dict[str, Any]] | None
    shard: str | None
    resume: str | None
    artifacts: list[str]
    on_failure: str
    db: str

    @classmethod
    def with_defaults(cls, **given: Any) -> Settings:
        """Return settings with these values and defaults for all others, also within a mapping that
        is given."""
        values = dataclasses.asdict(Config())
        names = [field.name for field in dataclasses.fields(cls)]
        nested = {
            name: values[name] | value for name, value in given.items() if isinstance(value, dict)
        }
        return cls(**{name: values[name] for name in names} | given | nested)


@dataclass(frozen=True)
class CellRun:
    """A cell under an interpreter, with one trial per round. `partner`: the other cell of a duet of
    two cells."""

    cell: Cell
    interpreter: Interpreter = HERE
    partner: Cell | None = field(default=None, compare=False)

    @property
    def group(self) -> Hashable:
        """What all runs share whose trials of a round run together."""
        return frozenset(self.cells)

    @property
    def cells(self) -> list[Cell]:
        """The cells that it is compared with under all interpreters."""
        return [self.cell] if self.partner is None else [self.cell, self.partner]


@dataclass(frozen=True)
class PlannedTrial:
    """A trial to run. `round` and `attempt` count from 0."""

    run: CellRun
    round: int
    attempt: int = 0


def cells_of(runs: Iterable[CellRun]) -> list[Cell]:
    """Return the distinct cells of these runs, in order."""
    return list(dict.fromkeys(run.cell for run in runs))


def interpreters_of(runs: Iterable[CellRun]) -> list[Interpreter]:
    """Return the distinct interpreters of these runs, in order."""
    return list(dict.fromkeys(run.interpreter for run in runs))


def round_order(runs: Sequence[CellRun], seed: int, round: int) -> list[list[CellRun]]:
    """Return the runs in their groups, in this round's random order, so that drift affects all
    modes equally.

    The interpreters of a cell alternate (A-B, B-A, B-A, A-B …), so that drift within a round
    favours none, also in the rounds of each of two compile caches.
    """
    groups: dict[Hashable, list[CellRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    order = list(groups.values())
    random.Random(f"{seed}/{round}").shuffle(order)
    return [group[::-1] if (round + round // 2) % 2 else group for group in order]


def trials_left(
    runs: Sequence[CellRun], rounds: int, seed: int, history: Mapping[CellRun, Sequence[Trial]]
) -> list[PlannedTrial]:
    """Return the remaining trials, round by round, without those of failed cell runs.

    `history`: the last attempt of each recorded round. A lost trial gets another attempt, and so
    does a member of a duet whose other member is missing.
    """
    # a lost trial does not end its cell's rounds: its job ended, perhaps for another reason
    ended = {
        run: [trial for trial in trials if LOST not in trial.extra]
        for run, trials in history.items()
    }
    failed = {
        run
        for run, trials in ended.items()
        if not all(trial.status.is_measured for trial in trials)
    }
    recorded = {(run, trial.round): trial for run, trials in history.items() for trial in trials}
    left: list[PlannedTrial] = []
    for round in range(rounds):
        for group in round_order(runs, seed, round):
            known = {run: recorded.get((run, round)) for run in group if run not in failed}
            is_half = None in known.values() and any(
                trial and is_of_duet(trial) for trial in known.values()
            )
            for run, trial in known.items():
                if trial is None:
                    left.append(PlannedTrial(run, round))
                elif LOST in trial.extra or is_half:
                    left.append(PlannedTrial(run, round, trial.attempt + 1))
    return left


def is_of_duet(trial: Trial) -> bool:
    """Return whether the trial was timed in turn with the other member of a duet."""
    duet = trial.extra.get(DUET)
    return isinstance(duet, dict) and ALONE not in duet


@dataclass
class Group:
    """The trials of a round that run together: of a cell, one per interpreter, or of the two cells
    of a duet. `cell`: that of the first. `slot`: the only slot that may run them; None: any."""

    cell: Cell
    round: int
    trials: list[PlannedTrial]
    slot: str | None

    @property
    def key(self) -> Hashable:
        """What all groups share that run one after the other."""
        return self.trials[0].run.group


class Queue:
    """The remaining trials in groups. Only one group of a cell runs at a time, since its compile
    cache has one writer.

    `history` (recorded trials) and `slots` (names by GPU UUID) determine where an interrupted group
    continues. If there are several GPUs, the last TAIL groups of each start in the order of their
    expected duration, longest first, so that no GPU is idle for long at the end. Which groups these
    are is random.
    """

    def __init__(
        self,
        trials: Iterable[PlannedTrial],
        history: Mapping[CellRun, Sequence[Trial]],
        slots: Mapping[str, str],
    ) -> None:
        self.lock = threading.Lock()
        self.history, self.slots = history, slots
        self.running: dict[Hashable, str] = {}  # key of a group -> device of its slot
        self.groups: list[Group] = []
        self.add(trials)

    def add(self, trials: Iterable[PlannedTrial]) -> None:
        """Append these trials. The caller holds the lock."""
        ran_on: dict[tuple[Hashable, int], dict[CellRun, str]] = {}
        for run, recorded in self.history.items():
            for trial in recorded:
                if trial.gpu_uuid in self.slots:
                    ran_on.setdefault((run.group, trial.round), {})[run] = self.slots[
                        trial.gpu_uuid
                    ]
        for key, grouped in groupby(trials, key=lambda trial: (trial.run.group, trial.round)):
            planned = {trial.run: trial for trial in grouped}
            slot = next(
                (slot for run, slot in ran_on.get(key, {}).items() if run not in planned), None
            )
            first = next(iter(planned))
            self.groups.append(Group(first.cell, key[1], list(planned.values()), slot))

    def take(self, slot: str, device: str, devices: Collection[str]) -> Group | None:
        """Return the next group for the slot with this name and device, or None if no group is
        available at the moment.

        `devices`: the devices of all slots. A trial for any other device runs on any slot and
        reports it as missing.
        """
        with self.lock:
            latest = self.first_round_elsewhere(device, devices)
            ready = (
                group
                for group in self.groups
                if (group.cell.device == device or group.cell.device not in devices)
                and group.slot in (None, slot)
                and group.key not in self.running
                and group.round <= latest
            )
            is_tail = len(self.slots) > 1 and len(self.groups) <= TAIL * len(self.slots)
            group = max(ready, key=self.expected_s, default=None) if is_tail else next(ready, None)
            # a trial on the CPU may use every core, including those of trials on GPUs
            if group is None or any(
                (other == "cpu") != (device == "cpu") for other in self.running.values()
            ):
                return None
            self.running[group.key] = device
            self.groups.remove(group)
            return group

    def first_round_elsewhere(self, device: str, devices: Collection[str]) -> float:
        """Return the earliest round that still waits for the CPU if `device` is a GPU, or for a GPU
        if it is the CPU.

        Trials of both never run at the same time. If one kind ran all its rounds first, a
        comparison of devices would compare different times.
        """
        rounds = [
            group.round
            for group in self.groups
            if group.cell.device in devices and (group.cell.device == "cpu") != (device == "cpu")
        ]
        return min(rounds, default=math.inf)

    def expected_s(self, group: Group) -> float:
        """Return the longest wall time of a recorded trial of the group's cell, or else of its
        mode."""
        seconds: dict[bool, list[float]] = {True: [], False: []}  # whether it is the same cell
        for run, recorded in list(self.history.items()):
            if run.cell.mode == group.cell.mode:
                seconds[run.cell == group.cell] += [
                    trial.wall_s for trial in recorded if trial.wall_s
                ]
        return max(seconds[True] or seconds[False], default=math.inf)

    def finished(self, group: Group) -> None:
        """End the group, so that another one of its cell may run."""
        with self.lock:
            del self.running[group.key]

    def drop(self, run: CellRun) -> int:
        """Remove all remaining trials of this cell run and return their number."""
        with self.lock:
            before = sum(len(group.trials) for group in self.groups)
            for group in self.groups:
                group.trials = [trial for trial in group.trials if trial.run != run]
            self.groups = [group for group in self.groups if group.trials]
            return before - sum(len(group.trials) for group in self.groups)

    def is_empty(self) -> bool:
        with self.lock:
            return not self.groups and not self.running
