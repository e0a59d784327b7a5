"""Series of sweeps, made of the recorded noise: unchanged, with a step, with a step that is undone.

What is reported near a planted change counts as it: *located* within one sweep, *noticed* within five. All else is a
false change point.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec

import numpy as np
import peers_rules
from noise_model import FIGURES, Template

SWEEPS, TRIALS = 60, 5
LEVELS = (0.02, 0.03, 0.05, 0.10)
UNDONE = 0.05
LOCATED, NOTICED = 1, 5
#: A step lies between these, and is undone so many sweeps later.
FIRST, LAST, LATER = 10, 45, 10
OURS, CONBENCH = "effbench", "Conbench z = 5"
#: As its command line does by default, and at effbench's thresholds.
OTAVA = {
    "Otava": {"window_len": 50, "max_pvalue": 0.001, "min_magnitude": 0.0},
    "Otava, p = 1e-5, 2 %": {"window_len": 50, "max_pvalue": 1e-5, "min_magnitude": 0.02},
}
#: What is followed: kind of cell, figure, drift of sweeps besides the recorded shifts.
SERIES = {
    "GPU-bound latency": ("GPU-bound", "latency_ms", 0.0),
    "GPU-bound latency, 0.5 % drift": ("GPU-bound", "latency_ms", 0.005),
    "launch-bound busy time": ("launch-bound", "gpu_busy_ms", 0.0),
    "launch-bound latency": ("launch-bound", "latency_ms", 0.0),
}


@dataclass(frozen=True)
class Planted:
    """`logs` and `errors` (N,): one mean a sweep; `at`: where the level changes; twice where it is undone."""

    logs: np.ndarray
    errors: np.ndarray
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reported:
    """Indices of change points, and the pairs (change, its undoing) that a rule sees as one story; None if it has no
    such notion: then two change points are taken for it."""

    points: list[int]
    undone: list[tuple[int, int]] | None = None


@dataclass
class Tally:
    series: int = 0
    planted: int = 0
    located: int = 0
    stories: int = 0
    undone: int = 0
    false: int = 0
    errors: list[int] = field(default_factory=list)

    def add(self, planted: Planted, reported: Reported) -> None:
        self.series += 1
        self.planted += len(planted.at)
        near = [min((abs(point - at) for point in reported.points), default=SWEEPS) for at in planted.at]
        self.located += sum(distance <= LOCATED for distance in near)
        self.errors += [distance for distance in near if distance <= NOTICED]
        self.false += sum(all(abs(point - at) > NOTICED for at in planted.at) for point in reported.points)
        if len(planted.at) == 2:
            self.stories += 1
            if reported.undone is None:
                self.undone += all(distance <= LOCATED for distance in near)
            else:
                self.undone += any(
                    abs(start - planted.at[0]) <= LOCATED and abs(end - planted.at[1]) <= LOCATED
                    for start, end in reported.undone
                )


def series_of(
    rng: np.random.Generator, template: Template, figure: str, drift: float, level: float = 0.0, undone: bool = False
) -> Planted:
    index = FIGURES.index(figure)
    logs, errors = (table[:, index] for table in template.means(rng, SWEEPS, TRIALS, drift))
    if not level:
        return Planted(logs, errors)
    at = int(rng.integers(FIRST, LAST))
    until = at + LATER if undone else SWEEPS
    logs[at:until] += math.log1p(level)
    return Planted(logs, errors, (at, until) if undone else (at,))


def ours(many: Sequence[Planted]) -> list[Reported]:
    from effbench.analysis.changepoints import find_all

    found = find_all([one.logs for one in many], [one.errors for one in many])
    return [
        Reported(
            [change.at for change in one.changes],
            [(change.at, change.undone_at) for change in one.changes if change.undone_at is not None],
        )
        for one in found
    ]


def conbench(many: Sequence[Planted]) -> list[Reported]:
    return [Reported(peers_rules.conbench_alarms(np.exp(one.logs).tolist()), []) for one in many]


def otava(many: Sequence[Planted], python: str, options: dict[str, float]) -> list[Reported]:
    return [Reported(points) for points in peers_rules.otava([np.exp(one.logs) for one in many], python, **options)]


def rules_of(python: str | None) -> dict[str, Callable[[Sequence[Planted]], list[Reported]]]:
    """`python`: an interpreter with apache-otava, or None to go without."""
    rules = {CONBENCH: conbench}
    if find_spec("effbench.analysis.changepoints"):
        rules = {OURS: ours, **rules}
    if python:
        for name, options in OTAVA.items():
            rules[name] = lambda many, options=options: otava(many, python, options)
    return rules


def rows_of(
    recorded: Sequence[Template], many: int, seed: int, python: str | None, mapped: Callable = map
) -> list[list[str]]:
    """Rows: what is followed, rule, false change points in 100 unchanged series, located by level, mean distance of
    what was noticed, undoings recognised (of 5 %). `mapped` is `map`, or that of a pool of processes."""
    one = partial(rows_of_kind, recorded=recorded, many=many, seed=seed, python=python)
    return [row for rows in mapped(one, SERIES) for row in rows]


def rows_of_kind(what: str, recorded: Sequence[Template], many: int, seed: int, python: str | None) -> list[list[str]]:
    kind, figure, drift = SERIES[what]
    rng = np.random.default_rng(seed)
    fitting = [template for template in recorded if template.kind == kind]

    def draw(level: float = 0.0, undone: bool = False) -> list[Planted]:
        chosen = rng.integers(len(fitting), size=many)
        return [series_of(rng, fitting[i], figure, drift, level, undone) for i in chosen]

    sets = {("unchanged", 0.0): draw(), **{("step", level): draw(level) for level in LEVELS}}
    sets["undone", UNDONE] = draw(UNDONE, undone=True)
    rows = []
    for rule, detect in rules_of(python).items():
        tallies = {key: tally(planted, detect(planted)) for key, planted in sets.items()}
        rows.append([what, rule, *cells_of(tallies)])
    return rows


def tally(planted: Sequence[Planted], reported: Sequence[Reported]) -> Tally:
    total = Tally()
    for one, answer in zip(planted, reported, strict=True):
        total.add(one, answer)
    return total


def cells_of(tallies: dict[tuple[str, float], Tally]) -> list[str]:
    steps = [tallies["step", level] for level in LEVELS]
    errors = [error for step in steps for error in step.errors]
    undone = tallies["undone", UNDONE]
    return [
        f"{100 * tallies['unchanged', 0.0].false / tallies['unchanged', 0.0].series:.1f}",
        *(f"{step.located / step.planted:.0%}" for step in steps),
        f"{statistics.fmean(errors):.2f}" if errors else "—",
        f"{undone.undone / undone.stories:.0%}",
    ]


HEADINGS = [
    "series",
    "rule",
    "false in 100 unchanged",
    *(f"{level:.0%} located" for level in LEVELS),
    "sweeps off",
    f"{UNDONE:.0%} undone",
]
