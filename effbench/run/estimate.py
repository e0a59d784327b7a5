"""How much of a sweep is done, and when it ends: those of its trials that are left take as long as
those that have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

from effbench.run.plan import CellRun, PlannedTrial


class TimeLeft:
    """Tracks the trials of a sweep and estimates its end whenever one ends. The caller serialises
    the calls.

    `trials`: those to run; `whole`: the number of trials of the whole sweep, including recorded
    ones, to which the percentage refers: a trial that is no longer needed counts as done.
    """

    def __init__(self, trials: Sequence[PlannedTrial], whole: int) -> None:
        self.left = set(trials)
        self.whole = whole
        self.began_s = time.monotonic()
        self.number_ended = 0
        self.ends_s: float | None = None

    def ended(self, trial: PlannedTrial) -> None:
        self.left.discard(trial)
        self.number_ended += 1
        mean_s = self.passed_s() / self.number_ended
        self.ends_s = time.monotonic() + mean_s * len(self.left)

    def dropped(self, run: CellRun) -> None:
        """Note that the remaining rounds of this run are not needed."""
        self.left = {trial for trial in self.left if trial.run != run}

    def passed_s(self) -> float:
        """Return the seconds since the first trial began."""
        return time.monotonic() - self.began_s

    def percent(self) -> int:
        """Return the percentage of the sweep that is done; 100 only when nothing is left."""
        if not self.left:
            return 100
        return 100 * (self.whole - len(self.left)) // self.whole

    def seconds(self) -> float | None:
        """Return the estimated seconds until the end; None before a trial has ended."""
        if self.ends_s is None:
            return None
        return max(0.0, self.ends_s - time.monotonic())
