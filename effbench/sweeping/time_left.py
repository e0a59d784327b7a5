"""Estimate how much of a sweep is done and how long the rest takes, from the trials that have
ended."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from effbench.cell import Trial
from effbench.sweeping.durations import Durations
from effbench.sweeping.plan import CellRun, PlannedTrial

#: Multiple of the time that an estimate takes, until the next one is made.
COST_SHARE = 100
#: Smallest assumed fraction of the time in which trials run; the rest is waiting.
LEAST_PARALLEL = 0.01


class TimeLeft:
    """Tracks the trials of a sweep and estimates its end. The caller serialises the calls.

    `trials`: those to run; `whole`: the number of trials of the whole sweep, including recorded
    ones. The percentage refers to `whole`, which never changes: a trial that is no longer needed
    counts as done, and a further attempt at a trial does not count. `compilations`: number of first
    rounds that compile with an empty cache. `clock`: returns seconds.
    """

    def __init__(
        self,
        trials: Sequence[PlannedTrial],
        whole: int,
        compilations: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.whole = max(whole, len(trials))
        self.left = len(trials)
        self.compilations = compilations
        self.clock = clock
        self.pending: dict[CellRun, set[int]] = defaultdict(set)
        for trial in trials:
            self.pending[trial.run].add(trial.round)
        self.running: dict[PlannedTrial, float] = {}
        self.began_s: float | None = None
        self.ended_s: list[float] = []  # seconds of each trial
        self.durations = Durations()
        self.shown_percent = 0
        self.estimate_s = 0.0
        self.estimated_at_s = 0.0
        self.next_estimate_s = 0.0

    def started(self, trial: PlannedTrial) -> None:
        now = self.clock()
        if self.began_s is None:
            self.began_s = now
        self.running[trial] = now

    def resized(self, change: int) -> None:
        """Change the number of remaining trials: negative for trials that are no longer needed,
        positive for further attempts."""
        self.left += change

    def ended(self, trial: PlannedTrial, record: Trial) -> None:
        self.left -= 1
        now = self.clock()
        started_s = self.running.pop(trial, now)
        if record.status.is_measured:
            self.pending[trial.run].discard(trial.round)
        else:  # the cell's remaining rounds are not run
            self.pending.pop(trial.run, None)
        seconds = record.wall_s
        if seconds is None:
            seconds = now - started_s
        self.ended_s.append(seconds)
        self.durations.add(trial.run.cell, record, seconds)

    def percent(self) -> int:
        """Return the percentage of the sweep that is done. It never decreases, and is 100 only when
        nothing is left."""
        percent = 100 * (self.whole - self.left) // self.whole if self.whole else 100
        if self.left > 0:
            percent = min(percent, 99)
        self.shown_percent = max(self.shown_percent, percent)
        return self.shown_percent

    def seconds(self) -> float | None:
        """Return the estimated seconds until the end; None before the first trial has ended."""
        if self.left <= 0:
            return 0.0
        if not self.ended_s or self.began_s is None:
            return None
        now = self.clock()
        if now >= self.next_estimate_s:
            self.estimate_s = self.estimate(now, now - self.began_s)
            self.estimated_at_s = now
            ended_s = self.clock()
            # for 100,000 cells it takes a while, and must not disturb what is being timed
            self.next_estimate_s = ended_s + COST_SHARE * (ended_s - now)
        return max(0.0, self.estimate_s - (now - self.estimated_at_s))

    def estimate(self, now: float, elapsed_s: float) -> float:
        """Return the estimated seconds from `now` until the end."""
        expected_s = []
        for run, rounds in self.pending.items():
            for round in rounds:
                expected_s.append(self.expected_s(run, round))
        # trials that are no longer needed are pending too, because it is unknown which ones they
        # are
        work_s = self.left * fmean(expected_s or self.ended_s)
        ran_s = sum(self.ended_s)
        for trial, started_s in self.running.items():
            running_s = now - started_s
            ran_s += running_s
            work_s -= min(running_s, self.expected_s(trial.run, trial.round))
        work_s = max(0.0, work_s)
        if elapsed_s <= 0:
            return work_s
        # trials run in parallel on several devices, and wait between each other
        parallel = ran_s / elapsed_s
        return work_s / max(parallel, LEAST_PARALLEL)

    def expected_s(self, run: CellRun, round: int) -> float:
        """Return the expected seconds of a trial of this cell run, from the most similar trials, or
        from all."""
        expected = self.durations.expected_s(run.cell, is_cold=round < self.compilations)
        return fmean(self.ended_s) if expected is None else expected
