"""Print how long a re-run takes: the expected duration at its start, and the time left after each round."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.text import Text

from effbench.cell import Cell, Trial
from effbench.store.store import Store
from effbench.sweeping.forecast import by_kind
from effbench.sweeping.plan import CellRun, PlannedTrial, cells_of
from effbench.sweeping.progress import Progress

#: (cell key, whether the trial compiles with an empty cache) -> median seconds of the cell's earlier trials.
TrialSeconds = Mapping[tuple[str, bool], float]


def seconds_of_trials(store: Store, sweep_ids: Sequence[str], cells: Sequence[Cell]) -> dict[tuple[str, bool], float]:
    """Return the median duration of the trials of these cells in these sweeps, by cell key and whether they compiled
    with an empty cache. A kind without trials has the duration of the other one; unknown cells are omitted."""
    environments = {row["id"] for sweep_id in sweep_ids for row in store.environments_of(sweep_id)}
    medians = by_kind(store.durations([*sweep_ids], sorted(environments)))
    seconds: dict[tuple[str, bool], float] = {}
    for cell in cells:
        for is_cold in (True, False):
            for kind in (is_cold, not is_cold):
                if ((cell.key,), kind) in medians:
                    seconds[cell.key, is_cold] = medians[(cell.key,), kind]
                    break
    return seconds


def expected_s(
    seconds: TrialSeconds, cells: Sequence[Cell], sides: int, rounds: int, compilations: int, slots: int = 1
) -> float | None:
    """Return how long this many rounds of the cells take on each side; None if a cell's trials are unknown."""
    total = 0.0
    for cell in cells:
        if (cell.key, True) not in seconds:
            return None
        cold = min(rounds, compilations)
        total += sides * (cold * seconds[cell.key, True] + (rounds - cold) * seconds[cell.key, False])
    return total / slots


def duration_text(seconds: float) -> str:
    """Return `40 s`, `4 min` or `1 h 20 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


class RerunProgress(Progress):
    """The progress of a re-run, with the time left. If it is quiet, because standard output gets a document, durations
    go to standard error."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.slots = 1
        self.round = 0
        #: durations of the trials that ended since the current round began
        self.seconds: list[float] = []
        #: when the trials that are left will have ended, by the trials of the previous round
        self.end_s: float | None = None

    @contextmanager
    def showing(
        self, sweep_id: str, settings: Any, runs: Sequence[CellRun], trials: int, slots: Sequence[str]
    ) -> Iterator[None]:
        self.slots = max(1, min(len(slots), len(cells_of(runs))))
        with super().showing(sweep_id, settings, runs, trials, slots):
            yield

    def announce(self, text: str) -> None:
        if self.quiet:
            print(f"effbench: {text}", file=sys.stderr, flush=True)
        else:
            self.note(text)

    def started(self, slot: str, trial: PlannedTrial) -> None:
        """Announce the time left at the start of each further round."""
        super().started(slot, trial)
        with self.lock:
            is_next_round = trial.round > self.round
            if is_next_round:
                self.round = trial.round
                self.forecast()
        if is_next_round and self.end_s is not None:
            self.announce(f"round {trial.round + 1} of {self.rounds}: {self.left_text()}")

    def ended(self, trial: PlannedTrial, record: Trial) -> None:
        super().ended(trial, record)
        with self.lock:
            self.seconds.append(record.wall_s or 0.0)

    def forecast(self) -> None:
        """Forecast the end from the round that has just ended. The caller holds the lock."""
        if self.seconds:
            seconds_per_trial = sum(self.seconds) / len(self.seconds)
            self.end_s = time.monotonic() + seconds_per_trial * (self.total - self.done) / self.slots
        self.seconds = []

    def left_text(self) -> str:
        """Return `at most 4 min left`, because cells that are known well enough end early."""
        left_s = 0.0 if self.end_s is None else max(0.0, self.end_s - time.monotonic())
        return f"at most {duration_text(left_s)} left"

    def status(self) -> Text:
        """Return the live status with the time left in its first line."""
        text = super().status()
        if self.end_s is None:
            return text
        first, between, others = text.plain.partition("\n")
        return Text(f"{first}, {self.left_text()}{between}{others}", no_wrap=True, overflow="ellipsis")
