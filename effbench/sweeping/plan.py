"""The plan of a sweep: its settings, its cells under their interpreters, and the trials that are left, in order.

If a cell runs under several interpreters, its trials of one round are compared with each other. So they form a group
that runs on one slot, one after the other, and is retried together.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from effbench.cell import Cell, Status, Trial
from effbench.config import Config
from effbench.sweeping.interpreters import HERE, Interpreter


@dataclass(frozen=True)
class Settings:
    """Settings of the whole sweep, as plain values of the configuration."""

    sweep: dict[str, Any]
    protocol: dict[str, Any]
    executor: dict[str, Any]
    isolation: str
    timeout_s: float
    baseline_mode: str
    resume: str | None
    artifacts: list[str]
    on_failure: str
    db: str

    @classmethod
    def with_defaults(cls, **given: Any) -> Settings:
        """Return these settings, others with their defaults; those that are mappings may be given in part."""
        values = dataclasses.asdict(Config())
        names = [field.name for field in dataclasses.fields(cls)]
        nested = {name: values[name] | value for name, value in given.items() if isinstance(value, dict)}
        return cls(**{name: values[name] for name in names} | given | nested)


@dataclass(frozen=True)
class CellRun:
    """A cell under an interpreter: it has one trial per round."""

    cell: Cell
    interpreter: Interpreter = HERE


@dataclass(frozen=True)
class PlannedTrial:
    """A trial that is to be run. `attempt` counts from 0."""

    run: CellRun
    round: int
    attempt: int = 0


def cells_of(runs: Iterable[CellRun]) -> list[Cell]:
    """Return their cells, each once."""
    return list(dict.fromkeys(run.cell for run in runs))


def interpreters_of(runs: Iterable[CellRun]) -> list[Interpreter]:
    """Return their interpreters, each once."""
    return list(dict.fromkeys(run.interpreter for run in runs))


def round_order(runs: Sequence[CellRun], seed: int, round: int) -> list[list[CellRun]]:
    """Return the runs of each cell in this round's random order, so that drift of the machine affects every mode alike.

    The interpreters of a cell alternate from round to round (A-B, B-A, A-B …): drift within a round favours neither.
    """
    groups: dict[Cell, list[CellRun]] = {}
    for run in runs:
        groups.setdefault(run.cell, []).append(run)
    order = list(groups.values())
    random.Random(f"{seed}/{round}").shuffle(order)
    return [group[::-1] if round % 2 else group for group in order]


def trials_left(
    runs: Sequence[CellRun], rounds: int, seed: int, attempts: int, history: Mapping[CellRun, Sequence[Trial]]
) -> list[PlannedTrial]:
    """Return the trials that are not recorded, rounds one after the other; none of a cell run that has failed.

    `history`: the last attempt of each recorded round. A noisy round is retried after the trials of its round, together
    with the cell's other interpreters: they run again, or now if their trial of that round is missing.
    """
    failed = {run for run, trials in history.items() if not all(trial.status.is_measured for trial in trials)}
    recorded = {(run, trial.round): trial for run, trials in history.items() for trial in trials}
    left: list[PlannedTrial] = []
    for round in range(rounds):
        retried: list[PlannedTrial] = []
        for group in round_order(runs, seed, round):
            known = {run: recorded.get((run, round)) for run in group if run not in failed}
            can_retry = {run for run, trial in known.items() if trial and trial.attempt + 1 < attempts}
            is_noisy = any(known[run].status is Status.NOISY for run in can_retry)
            planned = retried if is_noisy else left
            for run, trial in known.items():
                if trial is None:
                    planned.append(PlannedTrial(run, round))
                elif is_noisy and run in can_retry:
                    planned.append(PlannedTrial(run, round, trial.attempt + 1))
        left += retried
    return left


@dataclass
class Group:
    """The trials of a cell in a round, one per interpreter. `slot`: the name of the only slot that may run them."""

    cell: Cell
    round: int
    trials: list[PlannedTrial]
    slot: str | None


class Queue:
    """The trials that are left, in groups. A cell never runs twice at once: its compile cache has one writer.

    `history` (recorded trials) and `slots` (names by GPU UUID) tell where an interrupted group continues.
    """

    def __init__(
        self, trials: Iterable[PlannedTrial], history: Mapping[CellRun, Sequence[Trial]], slots: Mapping[str, str]
    ) -> None:
        self.lock = threading.Lock()
        self.running: dict[Cell, str] = {}  # -> device of its slot
        self.dropped: set[CellRun] = set()
        ran_on: dict[tuple[Cell, int], dict[CellRun, str]] = {}
        for run, recorded in history.items():
            for trial in recorded:
                if trial.gpu_uuid in slots:
                    ran_on.setdefault((run.cell, trial.round), {})[run] = slots[trial.gpu_uuid]
        self.groups: list[Group] = []
        for key, grouped in groupby(trials, key=lambda trial: (trial.run.cell, trial.round)):
            planned = {trial.run: trial for trial in grouped}
            slot = next((slot for run, slot in ran_on.get(key, {}).items() if run not in planned), None)
            self.groups.append(Group(*key, list(planned.values()), slot))

    def take(self, slot: str, device: str, devices: Collection[str]) -> Group | None:
        """Return the next group for the slot of this name and device, None if there is none now.

        `devices`: those of all slots. A trial for another device goes to any slot and reports what is missing.
        """
        with self.lock:
            for index, group in enumerate(self.groups):
                fits = group.cell.device == device or group.cell.device not in devices
                if fits and group.slot in (None, slot) and group.cell not in self.running:
                    # a trial on the CPU may use every core, including those of trials on GPUs
                    if any((other == "cpu") != (device == "cpu") for other in self.running.values()):
                        return None
                    self.running[group.cell] = device
                    return self.groups.pop(index)
            return None

    def finished(self, group: Group) -> None:
        with self.lock:
            del self.running[group.cell]

    def drop(self, run: CellRun) -> int:
        """Remove all further trials of this cell run; return how many."""
        with self.lock:
            self.dropped.add(run)
            before = sum(len(group.trials) for group in self.groups)
            for group in self.groups:
                group.trials = [trial for trial in group.trials if trial.run != run]
            self.groups = [group for group in self.groups if group.trials]
            return before - sum(len(group.trials) for group in self.groups)

    def retry(self, group: Group, ended: int, attempts: int, slot: str) -> int:
        """Add the group again at the end of its round: the disturbance may have passed by then. Return how many of its
        first `ended` trials run again, as they have attempts left; the others run for the first time."""
        with self.lock:
            again = [
                replace(trial, attempt=trial.attempt + 1)
                for trial in group.trials[:ended]
                if trial.attempt + 1 < attempts and trial.run not in self.dropped
            ]
            place = sum(other.round <= group.round for other in self.groups)
            only = slot if len(group.trials) > 1 else group.slot
            self.groups.insert(place, replace(group, trials=[*again, *group.trials[ended:]], slot=only))
            return len(again)

    def is_empty(self) -> bool:
        with self.lock:
            return not self.groups and not self.running
