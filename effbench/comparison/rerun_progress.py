"""Print how long a re-run takes: the expected duration at its start, and the time left after each
round."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from effbench.cell import Cell
from effbench.store.store import Store
from effbench.sweeping.durations import COLD, WARM
from effbench.sweeping.forecast import known_durations
from effbench.sweeping.plan import PlannedTrial
from effbench.sweeping.progress import Progress

#: (cell key, whether the trial compiles with an empty cache) -> median seconds of the cell's
#: earlier trials.
TrialSeconds = Mapping[tuple[str, bool], float]


def seconds_of_trials(
    store: Store, sweep_ids: Sequence[str], cells: Sequence[Cell]
) -> dict[tuple[str, bool], float]:
    """Return the median duration of the trials of these cells in these sweeps, by cell key and
    whether they compiled with an empty cache. A kind without trials has the duration of the other
    one; unknown cells are omitted."""
    environments = {row["id"] for sweep_id in sweep_ids for row in store.environments_of(sweep_id)}
    durations = known_durations(store.durations([*sweep_ids], sorted(environments)))
    seconds: dict[tuple[str, bool], float] = {}
    for cell in cells:
        for is_cold in (True, False):
            for cache in (COLD, WARM) if is_cold else (WARM, COLD):
                if ((cell.key,), cache) in durations.seconds:
                    seconds[cell.key, is_cold] = durations.median((cell.key,), cache)
                    break
    return seconds


def expected_s(
    seconds: TrialSeconds,
    cells: Sequence[Cell],
    sides: int,
    rounds: int,
    compilations: int,
    slots: int = 1,
) -> float | None:
    """Return how long this many rounds of the cells take on each side; None if a cell's trials are
    unknown."""
    total = 0.0
    for cell in cells:
        if (cell.key, True) not in seconds:
            return None
        cold = min(rounds, compilations)
        total += sides * (
            cold * seconds[cell.key, True] + (rounds - cold) * seconds[cell.key, False]
        )
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
    """The progress of a re-run. If it is quiet, because standard output gets a document, its
    expected duration and the time left after each round go to standard error."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.round = 0

    def announce(self, text: str) -> None:
        if self.quiet:
            print(f"effbench: {text}", file=sys.stderr, flush=True)
        else:
            self.note(text)

    def started(self, slot: str, trial: PlannedTrial) -> None:
        """Announce the time left at the start of each further round, if no line of a trial says
        it."""
        super().started(slot, trial)
        with self.lock:
            is_next_round = trial.round > self.round
            self.round = max(self.round, trial.round)
            left = self.left()
        if self.quiet and is_next_round and left:
            self.announce(f"round {trial.round + 1} of {self.rounds}: {left[0]}")
