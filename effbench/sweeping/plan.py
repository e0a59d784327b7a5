"""The plan of a sweep: its settings, its cells under their interpreters, and the trials that are left, in order.

If a cell runs under several interpreters, its trials of one round are compared with each other. So they run on one
slot, one after the other, and are retried together.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        """Return the given settings, all others with their defaults: for a sweep without a command line.

        `sweep`, `protocol` and `executor` may be given in part.
        """
        values = dataclasses.asdict(Config())
        names = [field.name for field in dataclasses.fields(cls)]
        nested = {name: values[name] | value for name, value in given.items() if isinstance(value, dict)}
        return cls(**{name: values[name] for name in names} | given | nested)


@dataclass(frozen=True, eq=False)
class CellRun:
    """A cell under an interpreter: it has one trial per round. Its identity is the cell's key and the interpreter."""

    cell: Cell
    interpreter: Interpreter = HERE

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, CellRun) and self.cell.key == other.cell.key
        return same and self.interpreter == other.interpreter

    def __hash__(self) -> int:
        return hash((self.cell.key, self.interpreter))


@dataclass(frozen=True)
class PlannedTrial:
    """A trial that is to be run. `attempt` counts from 0."""

    run: CellRun
    round: int
    attempt: int = 0


def cells_of(runs: Iterable[CellRun]) -> list[Cell]:
    """Return their cells, each once."""
    return list({run.cell.key: run.cell for run in runs}.values())


def interpreters_of(runs: Iterable[CellRun]) -> list[Interpreter]:
    """Return their interpreters, each once."""
    return list(dict.fromkeys(run.interpreter for run in runs))


def round_order(runs: Sequence[CellRun], seed: int, round: int) -> list[CellRun]:
    """Return all cells in this round's random order, so that drift of the machine affects every mode alike.

    The interpreters of a cell stand next to each other and alternate from round to round (A-B, B-A, A-B …): trials of
    one round are pairs, and drift within a pair favours neither.
    """
    groups: dict[str, list[CellRun]] = {}
    for run in runs:
        groups.setdefault(run.cell.key, []).append(run)
    order = list(groups.values())
    random.Random(f"{seed}/{round}").shuffle(order)
    return [run for group in order for run in (group[::-1] if round % 2 else group)]


def trials_left(
    runs: Sequence[CellRun], rounds: int, seed: int, attempts: int, history: Mapping[CellRun, Sequence[Trial]]
) -> list[PlannedTrial]:
    """Return the trials that are not recorded, rounds one after the other; none of a cell run that has failed.

    `history`: the last attempt of each recorded round. A noisy round is retried after the trials of its round, next to
    the cell's other interpreters: they run again, or now if their trial of that round is missing.
    """
    failed = {run for run, trials in history.items() if not all(trial.status.is_measured for trial in trials)}
    recorded = {(run, trial.round): trial for run, trials in history.items() for trial in trials}
    order = [(run, round) for round in range(rounds) for run in round_order(runs, seed, round) if run not in failed]
    left = [PlannedTrial(run, round) for run, round in order if (run, round) not in recorded]
    noisy = {
        (run.cell.key, round)
        for (run, round), trial in recorded.items()
        if run not in failed and trial.status is Status.NOISY and trial.attempt + 1 < attempts
    }
    last = []
    for run, round in order:
        if (run.cell.key, round) in noisy:
            before = recorded.get((run, round))
            if before is None or before.attempt + 1 < attempts:
                last.append(PlannedTrial(run, round, 0 if before is None else before.attempt + 1))
    moved = set(last)
    return sorted([*(trial for trial in left if trial not in moved), *last], key=lambda trial: trial.round)


@dataclass
class Queue:
    """The trials that are left. A cell never runs twice at once: its compile cache has one writer, and its interpreters
    are compared with each other.

    `history`: the recorded trials of each cell run. `slots`: names of the slots by GPU UUID.
    """

    trials: list[PlannedTrial]
    history: Mapping[CellRun, Sequence[Trial]] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.running: dict[str, str] = {}  # cell key -> device of its slot
        self.done: dict[tuple[CellRun, int], PlannedTrial] = {}  # what has run here, by round
        interpreters: dict[str, set[Interpreter]] = {}
        for run in [*(trial.run for trial in self.trials), *self.history]:
            interpreters.setdefault(run.cell.key, set()).add(run.interpreter)
        self.pairs = {key for key, under in interpreters.items() if len(under) > 1}
        #: slot of a cell's interpreters in a round; if one ran before an interruption, its slot
        self.places: dict[tuple[str, int], str] = {
            (run.cell.key, trial.round): self.slots[trial.gpu_uuid]
            for run, trials in self.history.items()
            if run.cell.key in self.pairs
            for trial in trials
            if trial.gpu_uuid in self.slots
        }

    def take(self, slot: str, device: str, devices: Collection[str]) -> PlannedTrial | None:
        """Return the next trial for the slot of this name and device, None if there is none now.

        `devices`: those of all slots. A trial for another device goes to any slot and reports what is missing.
        """
        with self.lock:
            for index, trial in enumerate(self.trials):
                cell, key = trial.run.cell, trial.run.cell.key
                fits = cell.device == device or cell.device not in devices
                fits &= self.places.get((key, trial.round), slot) == slot
                if fits and key not in self.running:
                    # a trial on the CPU may use every core, including those of trials on GPUs
                    if any((other == "cpu") != (device == "cpu") for other in self.running.values()):
                        return None
                    self.running[key] = device
                    self.done[trial.run, trial.round] = trial
                    if key in self.pairs:
                        self.places[key, trial.round] = slot
                    return self.trials.pop(index)
            return None

    def finished(self, trial: PlannedTrial, drop_rest: bool) -> list[PlannedTrial]:
        """Free the cell. With `drop_rest`, drop and return the further trials of this cell run."""
        with self.lock:
            self.running.pop(trial.run.cell.key, None)
            if not drop_rest:
                return []
            self.done = {key: other for key, other in self.done.items() if other.run != trial.run}
            dropped = [other for other in self.trials if other.run == trial.run]
            self.trials = [other for other in self.trials if other.run != trial.run]
            return dropped

    def retry(self, trial: PlannedTrial, attempts: int) -> list[PlannedTrial]:
        """Add another attempt after the trials that are left of its round: the disturbance may have passed by then.

        The cell's other interpreters come with it: again if they had their trial of this round and have attempts left,
        else now. Return the trials that were added.
        """
        with self.lock:
            added = [replace(trial, attempt=trial.attempt + 1)]
            same_round = (trial.run.cell.key, trial.round)
            pending = [other for other in self.trials if (other.run.cell.key, other.round) == same_round]
            waiting = {trial.run, *(other.run for other in pending)}
            for (run, round), other in self.done.items():
                if (run.cell.key, round) == same_round and run not in waiting and other.attempt + 1 < attempts:
                    added.append(replace(other, attempt=other.attempt + 1))
            # in the order in which they ran before
            order = [run for run, round in self.done if round == trial.round]
            added.sort(key=lambda one: order.index(one.run))
            self.trials = [other for other in self.trials if other not in pending]
            place = sum(other.round <= trial.round for other in self.trials)
            self.trials[place:place] = [*added, *pending]
            return added

    def is_empty(self) -> bool:
        with self.lock:
            return not self.trials and not self.running
