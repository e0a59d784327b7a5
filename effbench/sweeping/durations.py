"""How long trials take, by the trials that have ended: the most similar ones count."""

from __future__ import annotations

import statistics
from collections import defaultdict

from effbench.cell import Cell, Trial

#: Kinds of times of a trial: with an empty compile cache, with a filled one, and a guess of the
#: latter.
COLD, WARM, GUESSED_WARM = "cold", "warm", "guessed warm"
#: What trials have in common: the cell; or device, phase, model and mode; or all but the model.
Kind = tuple[str, ...]


def kinds(key: str, phase: str, model: str, mode: str, device: str) -> tuple[Kind, ...]:
    """Return what a trial has in common with others, the most similar ones first. A training step
    is longer than a call."""
    return (key,), (device, phase, model, mode), (device, phase, mode)


def kinds_of(cell: Cell) -> tuple[Kind, ...]:
    return kinds(cell.key, cell.phase, cell.model_name, cell.mode_name, cell.device)


class Durations:
    """The seconds that trials took."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[Kind, str], list[float]] = defaultdict(list)
        self.medians: dict[tuple[Kind, str], float] = {}

    def add(self, cell: Cell, trial: Trial, seconds: float | None = None) -> None:
        """Add a trial of the cell. `seconds`: replaces its wall time, which may be unknown."""
        if seconds is None:
            seconds = trial.wall_s
        if not seconds:
            return
        kinds = kinds_of(cell)
        if trial.compile_cache == COLD:
            compile_s = trial.compile_s or 0.0
            self.add_seconds(kinds, COLD, seconds)
            self.add_seconds(kinds, GUESSED_WARM, max(0.0, seconds - compile_s))
        else:
            self.add_seconds(kinds, WARM, seconds)

    def add_seconds(self, kinds: tuple[Kind, ...], cache: str, seconds: float) -> None:
        for kind in kinds:
            self.seconds[kind, cache].append(seconds)
            self.medians.pop((kind, cache), None)

    def expected_s(self, cell: Cell, is_cold: bool) -> float | None:
        """Return the median seconds of the trials that are most similar to one of this cell; None
        without any. `is_cold`: it compiles with an empty cache, if it compiles."""
        caches = [COLD, WARM]
        if not is_cold:
            caches = [WARM, GUESSED_WARM, COLD]
        for kind in kinds_of(cell):
            for cache in caches:
                if (kind, cache) in self.seconds:
                    return self.median(kind, cache)
        return None

    def median(self, kind: Kind, cache: str) -> float:
        """Return the median seconds of a kind of trials that has some."""
        if (kind, cache) not in self.medians:
            self.medians[kind, cache] = statistics.median(self.seconds[kind, cache])
        return self.medians[kind, cache]
