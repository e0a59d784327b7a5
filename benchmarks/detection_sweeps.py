"""Simulated comparisons of two sweeps of 300 cells: false alarms, and one slowed cell found among them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from detection_rules import (
    AGAIN,
    CONFIRMED,
    FENCED,
    MOST,
    RULES,
    SCREENED,
    TRIALS,
    Case,
    confirmed,
    p_values,
    peers,
    screened,
    screened_among,
    shown_again,
    slower,
)
from noise_model import FIGURES, TIMES, Drawn, Template

from effbench.comparison.verdicts import Change
from effbench.stats.significance import LEAST_PAIRS, compare_pairs

LEVELS = (0.01, 0.02, 0.03, 0.05, 0.10)
HISTORY = 20
STEPS = ("two sweeps", "in turns")
#: Spread between processes that the goal for GPU-bound cells speaks of, and that of the noisiest hosts seen.
GOAL_SPREAD, HOST_SPREAD = 0.005, 0.20
HOST_TIMES = ("latency_ms", "period_ms")
#: How a slowed cell is made: of which templates, with which spread of which figures, what is slowed.
SLOWED = {
    "GPU-bound, as recorded": ("GPU-bound", None, (), TIMES),
    "GPU-bound, 0.5 % spread": ("GPU-bound", GOAL_SPREAD, TIMES, TIMES),
    "launch-bound, on the host": ("launch-bound", None, (), HOST_TIMES),
    "launch-bound, 20 % spread, on the host": ("launch-bound", HOST_SPREAD, HOST_TIMES, HOST_TIMES),
    "launch-bound, in the kernels": ("launch-bound", None, (), ("gpu_busy_ms",)),
}


@dataclass(frozen=True)
class Settings:
    """`drift`: standard deviation of a shift of all times of a cell from sweep to sweep, besides the recorded one.
    `host_spread`: that of launch-bound cells between processes, None as recorded. `slow`: slowed cells too."""

    cells: int = 300
    drift: float = 0.0
    host_spread: float | None = None
    slow: bool = True


@dataclass
class Counts:
    """Over runs. `alarmed`: rule -> runs with a false alarm; `false`: rule -> cells called slower; `found`: (how
    slowed, level, rule) -> times; `errors`: (how, level, step) -> |log reported - log true| of the main figure;
    `held`: same key -> whether the 95 % interval held the truth."""

    runs: int = 0
    cells: int = 0
    alarmed: Counter = field(default_factory=Counter)
    false: Counter = field(default_factory=Counter)
    by_metric: Counter = field(default_factory=Counter)
    found: Counter = field(default_factory=Counter)
    errors: dict = field(default_factory=lambda: defaultdict(list))
    held: dict = field(default_factory=lambda: defaultdict(list))

    def add(self, other: Counts) -> None:
        self.runs += other.runs
        self.cells += other.cells
        for name in ("alarmed", "false", "by_metric", "found"):
            getattr(self, name).update(getattr(other, name))
        for name in ("errors", "held"):
            for key, values in getattr(other, name).items():
                getattr(self, name)[key] += values


def drawn_case(rng: np.random.Generator, template: Template, drift: float, injected: np.ndarray | float = 0.0) -> Case:
    """A cell in two sweeps, each with its own shift."""
    before = template.trials(rng, MOST, template.shift(rng, drift))
    after = template.trials(rng, MOST, template.shift(rng, drift), injected)
    history = np.exp(template.means(rng, HISTORY, TRIALS, drift)[0])
    return Case(template.kind, before, after, template.constant, history)


def rerun(
    rng: np.random.Generator, template: Template, drift: float, injected: np.ndarray | float
) -> tuple[Drawn, Drawn]:
    """Old and new in turns, in one session: its shift is the same for both."""
    shift = template.shift(rng, drift)
    return template.trials(rng, LEAST_PAIRS, shift), template.trials(rng, LEAST_PAIRS, shift, injected)


def logs_of(level: float, slowed: Sequence[str]) -> np.ndarray:
    """(M,): which figures grow by `level`."""
    return np.array([math.log1p(level) if name in slowed else 0.0 for name in FIGURES])


def run(seed: int, recorded: Sequence[Template], settings: Settings) -> Counts:
    """One comparison of unchanged cells; then, one at a time, a slowed cell among them."""
    rng = np.random.default_rng(seed)
    counts = Counts(runs=1, cells=settings.cells)
    used = [hosted(template, settings.host_spread) for template in recorded]
    chosen = [used[i] for i in rng.integers(len(used), size=settings.cells)]
    cases = [drawn_case(rng, template, settings.drift) for template in chosen]
    verdicts = screened(cases)
    flagged: dict[int, list[Change]] = defaultdict(list)
    for change in slower(verdicts):
        flagged[int(change.key)].append(change)
        counts.by_metric[cases[int(change.key)].kind, change.metric] += 1
    alarms: dict[str, set[int]] = {rule: set() for rule in RULES}
    for index, found in flagged.items():
        # a fence only raises floors: it calls nothing slower that is not so without it
        fenced = slower(screened_among(cases[index], p_values(verdicts, but=str(index)), fenced=True))
        for rule in run_again(rng, chosen[index], settings.drift, 0.0, cases[index], found, fenced):
            alarms[rule].add(index)
    for index, case in enumerate(cases):
        for rule, alarm in peers(case).items():
            if alarm:
                alarms[rule].add(index)
    for rule, cells in alarms.items():
        counts.false[rule] += len(cells)
        counts.alarmed[rule] += bool(cells)
    if settings.slow:
        for how, made in SLOWED.items():
            for level in LEVELS:
                slowed_cell(rng, recorded, settings.drift, how, made, level, p_values(verdicts), counts)
    return counts


def run_again(rng, template, drift, injected, case, found, fenced) -> list[str]:
    """Which of effbench's ways call a cell slower of which a comparison said `found` (with its history `fenced`)."""
    if not found:
        return []
    old, new = rerun(rng, template, drift, injected)
    ways = {
        SCREENED: found,
        AGAIN: shown_again(found, case.before, new, case),
        CONFIRMED: confirmed(found, old, new),
        FENCED: confirmed(fenced, old, new),
    }
    return [rule for rule, shown in ways.items() if shown]


def hosted(template: Template, spread: float | None) -> Template:
    wide = spread is not None and template.kind == "launch-bound"
    return template.with_spread(spread, HOST_TIMES) if wide else template


def slowed_cell(rng, recorded, drift, how, made, level, others, counts) -> None:
    """Is a cell that is slower by `level` found, alone among unchanged ones, and how large is it said to be?"""
    kind, spread, spread_of, slowed = made
    fitting = [one for one in recorded if one.kind == kind]
    template = fitting[rng.integers(len(fitting))]
    if spread is not None:
        template = template.with_spread(spread, spread_of)
    injected = logs_of(level, slowed)
    case = drawn_case(rng, template, drift, injected)
    changes = screened_among(case, others)
    found = slower(changes)
    fenced = slower(screened_among(case, others, fenced=True))
    for rule in run_again(rng, template, drift, injected, case, found, fenced):
        counts.found[how, level, rule] += 1
    main = slowed[0]
    told(counts, (how, level, STEPS[0]), next(change for change in changes if change.metric == main), level)
    old, new = (dict(enumerate(one.of(main))) for one in rerun(rng, template, drift, injected))
    told(counts, (how, level, STEPS[1]), compare_pairs(old, new), level)
    for rule, alarm in peers(case).items():
        counts.found[how, level, rule] += alarm


def told(counts: Counts, key: tuple, comparison, level: float) -> None:
    counts.errors[key].append(abs(math.log(comparison.ratio) - math.log1p(level)))
    counts.held[key].append(comparison.low <= 1 + level <= comparison.high)


def simulate(recorded: Sequence[Template], settings: Settings, runs: int, seed: int, mapped: Callable = map) -> Counts:
    """`runs` comparisons; `mapped` is `map`, or that of a pool of processes."""
    total = Counts()
    seeds = [int(one) for one in np.random.SeedSequence(seed).generate_state(runs)]
    for counts in mapped(partial(run, recorded=recorded, settings=settings), seeds):
        total.add(counts)
    return total


def false_alarm_rows(scenarios: Sequence[Counts]) -> list[list[str]]:
    """Rule, and of every scenario: runs without a false alarm, and cells called slower."""
    return [
        [rule, *(f"{1 - one.alarmed[rule] / one.runs:.1%}, {one.false[rule] / one.cells:.3%}" for one in scenarios)]
        for rule in RULES
    ]


def what_alarmed(counts: Counts) -> str:
    """Kind and metric of effbench's false alarms before any re-run, with how many cells of all."""
    told = [f"{kind} {metric} {number}" for (kind, metric), number in counts.by_metric.most_common()]
    return f"{SCREENED}, as recorded, of {counts.cells} cells: {', '.join(told) or 'none'}"


def power_rows(counts: Counts) -> list[list[str]]:
    """Rule, and for every way to slow a cell the shares found in %, by level."""
    return [
        [rule, *(", ".join(f"{100 * counts.found[how, level, rule] / counts.runs:.0f}" for level in LEVELS)
                 for how in SLOWED)]
        for rule in RULES
    ]  # fmt: skip


def magnitude_rows(counts: Counts) -> list[list[str]]:
    """How slowed, and for both steps, over all levels: median error of the ratio, share of intervals that hold it."""
    rows = []
    for how in SLOWED:
        cells = []
        for step in STEPS:
            keys = [(how, level, step) for level in LEVELS]
            errors = np.concatenate([counts.errors[key] for key in keys])
            cells.append(f"{math.expm1(float(np.median(errors))):.2%}")
            cells.append(f"{np.mean(np.concatenate([counts.held[key] for key in keys])):.1%}")
        rows.append([how, *cells])
    return rows
