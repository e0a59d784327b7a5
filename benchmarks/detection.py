"""Which slowdowns do `compare`, `check --confirm`, `history` and rules of other projects find, with
what false alarms?

    python benchmarks/detection.py [--runs 200] [--seed 0] [--otava PYTHON] [--quick]

Nothing is measured: this replays real sweeps of unchanged cells on an H200 (`recorded_noise.py`).

1. Cells with a real delay compared with the same cells without it.
2. Two sweeps of 100 unchanged cells drawn from the recorded noise, plus one cell that is 1, 2, 3, 5
   or 10 % slower; also with other kernels in each compilation, whose times vary by TUNED_SD (5 to
   19 % between two were recorded).
3. Series of 60 sweeps of that noise with a step, with a step that is undone, and without a step.

effbench's rules are the functions that `effbench compare`, `check` and `history` call. The rules of
other projects are in `other_rules.py`, and Otava's change points come from an interpreter with
apache-otava (`--otava`). Only slowdowns count.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from changepoints import by_effbench
from other_rules import RULES as OTHER_RULES
from other_rules import Detector, Latencies, otava
from recorded_noise import (
    CONSTANT,
    FIGURES,
    HOST_TIMES,
    TIMES,
    TRIALS,
    UNCHANGED,
    CellNoise,
    DrawnTrials,
    RecordedTrial,
    load,
    noise_of,
)

from effbench.analysis.confirm import may_be_slower, settle
from effbench.analysis.limits import read
from effbench.analysis.matching import LEAST_COMPILATIONS, ComparedCell
from effbench.analysis.verdicts import Change, Verdict, judge
from effbench.core.cell import Status
from effbench.core.table import Column, Table
from effbench.stats.intervals import FIRST_LOOK, log_mean
from effbench.stats.significance import LEAST_PAIRS, MOST_PAIRS
from effbench.store.sides import ResultWithTrials
from effbench.store.summary import CountedTrials

#: Slowdowns: 0.02 is 2 % slower.
LEVELS = (0.01, 0.02, 0.03, 0.05, 0.10)
#: effbench's rules: `compare`, and `check --confirm` without duets.
SCREENED = "effbench, screened"
CONFIRMED = "effbench, alternating"
RULES = (SCREENED, CONFIRMED, *OTHER_RULES)
LIMITS = read(settings=[f"metrics=[{','.join((*FIGURES, *CONSTANT))}]"])
#: Sweeps before the compared ones, for rules with a history.
HISTORY = 20
#: A re-run ends once its means are known within this.
ENOUGH = 0.01


@dataclass(frozen=True)
class Slowdown:
    """What becomes slower. `kind`: of the cells; `slowed`: the figures. `spread`: the standard
    deviation of `spread_figures` between trials, None as recorded."""

    name: str
    kind: str
    slowed: Sequence[str]
    spread: float | None = None
    spread_figures: Sequence[str] = ()

    def noise(self, rng: np.random.Generator, recorded: Sequence[CellNoise]) -> CellNoise:
        """Return the noise of a random cell of this kind."""
        fitting = [noise for noise in recorded if noise.kind == self.kind]
        noise = fitting[rng.integers(len(fitting))]
        if self.spread is None:
            return noise
        return noise.with_spread(self.spread, self.spread_figures)

    def change(self, level: float) -> np.ndarray:
        """Return the logarithm of the change of each figure."""
        change = UNCHANGED.copy()
        for index, name in enumerate(FIGURES):
            if name in self.slowed:
                change[index] = math.log1p(level)
        return change


SLOWDOWNS = (
    Slowdown("GPU-bound, as recorded", "GPU-bound", TIMES),
    Slowdown("GPU-bound, 0.5 % spread", "GPU-bound", TIMES, 0.005, TIMES),
    Slowdown("launch-bound, on the host", "launch-bound", HOST_TIMES),
    Slowdown("launch-bound, 20 % spread, on the host", "launch-bound", HOST_TIMES, 0.2, HOST_TIMES),
    Slowdown("launch-bound, in the kernels", "launch-bound", ("gpu_busy_ms",)),
)


@dataclass(frozen=True)
class Scenario:
    """What differs between two sweeps of unchanged cells. `drift`: between sessions, on top of the
    recorded shifts; `launch_bound_spread`: of launch-bound cells between trials, None as recorded;
    `compilations`: of each cell, which choose other kernels (0: none)."""

    name: str
    drift: float = 0.0
    launch_bound_spread: float | None = None
    compilations: int = 0
    has_slowdowns: bool = False

    def noise(self, recorded: CellNoise) -> CellNoise:
        """Return the noise of a cell in this scenario."""
        if self.launch_bound_spread is None or recorded.kind != "launch-bound":
            return recorded
        return recorded.with_spread(self.launch_bound_spread, HOST_TIMES)


SCENARIOS = (
    Scenario("as recorded", has_slowdowns=True),
    Scenario("0.5 % drift", drift=0.005),
    Scenario("1 % drift", drift=0.01),
    Scenario("launch-bound cells at 20 %", launch_bound_spread=0.2),
    Scenario("autotuned, 1 compilation", compilations=1),
    Scenario("autotuned, 2 compilations", compilations=2),
)


# --- effbench's rules ---


@dataclass(frozen=True)
class Case:
    """A cell before and after. `history_ms` (S,): geometric means of the latency in earlier sweeps,
    oldest first."""

    kind: str | None
    before: DrawnTrials
    after: DrawnTrials
    constant: dict[str, float]
    history_ms: np.ndarray | None = None

    def other_rules(self) -> set[str]:
        """Return the rules of other projects that call the cell slower."""
        latencies = Latencies(self.before, self.after, self.history_ms)
        return {name for name, is_slower in OTHER_RULES.items() if is_slower(latencies)}

    def compared(self, index: int) -> ComparedCell:
        """Return both sides as effbench compares them, with the index as the key."""
        before, after = (self.result(side) for side in (self.before, self.after))
        return ComparedCell(str(index), str(index), "", before, after)

    def result(self, side: DrawnTrials) -> ResultWithTrials:
        """Return the result of a side. A comparison does not use its names."""
        trials = side.trials(self.constant)
        return ResultWithTrials(
            model="",
            bs=0,
            mode="",
            dtype="",
            phase="",
            device="",
            cell_key="",
            sweep_name="",
            label="",
            params={},
            started_at=dt.datetime.now(dt.UTC),
            status=Status.OK,
            reason=None,
            trials=len(trials),
            bound="launch" if self.kind == "launch-bound" else "gpu",
            counted=CountedTrials.of(trials),
        )


def screened(cases: Sequence[Case]) -> list[Change]:
    """Return every verdict of a comparison of these cells; keys are their indices."""
    return judge([case.compared(index) for index, case in enumerate(cases)], LIMITS)


def is_alarm(change: Change) -> bool:
    return change.gates and change.verdict is Verdict.SLOWER


def suspects(changes: Iterable[Change]) -> dict[int, list[Change]]:
    """Return index of a case -> its rows that `--confirm` runs again."""
    rows: dict[int, list[Change]] = defaultdict(list)
    for change in changes:
        if may_be_slower(change):
            rows[int(change.key)].append(change)
    return rows


def confirmed(flagged: Mapping[int, Sequence[Change]], again: Mapping[int, Case]) -> set[int]:
    """Return the cases of which an alternating re-run (`again`) of all flagged cases confirms a
    row."""
    rounds = {}
    cells = []
    for index, case in again.items():
        needed = min(rounds_of(case.before), rounds_of(case.after))
        before, after = case.before.first(needed), case.after.first(needed)
        cut = replace(case, before=before, after=after, constant={})
        rounds[index] = needed
        cells.append(cut.compared(index))
    rows = {(row.key, row.metric): row for row in judge(cells, LIMITS, interleaved=True)}
    slower = set()
    for index, needed in rounds.items():
        for change in map(replace, flagged[index]):
            row = rows.get((change.key, change.metric))
            if row is not None:
                settle(change, row, needed)
            if change.verdict is Verdict.SLOWER:
                slower.add(index)
    return slower


def rounds_of(drawn: DrawnTrials) -> int:
    """Return the round after which a re-run stops, because its times are known well enough."""
    most = len(drawn.figures)
    for rounds in range(LEAST_PAIRS, most):
        limit = ENOUGH
        if rounds == LEAST_PAIRS:
            limit *= FIRST_LOOK
        times = drawn.figures[:rounds, : len(HOST_TIMES)]
        if all(relative_error(column) <= limit for column in times.T):
            return rounds
    return most


def relative_error(times_ms: np.ndarray) -> float:
    """Return how far the interval of the mean extends above it; 0 if not all were measured."""
    if np.isnan(times_ms).any():
        return 0.0
    mean = log_mean(times_ms.tolist()).interval()
    assert mean.high is not None
    return mean.high / mean.value - 1


# --- 1. real delays ---


@dataclass(frozen=True)
class DelayedCell:
    """A cell without and with a delay in the same rounds of one sweep. `base`, `slowed`: round ->
    trial."""

    kind: str
    base: dict[int, RecordedTrial]
    slowed: dict[int, RecordedTrial]

    @property
    def change(self) -> float:
        """How much slower the cell is: 0.02 is 2 %."""
        return mean_latency(self.slowed.values()) / mean_latency(self.base.values()) - 1

    def called_by(self, rng: np.random.Generator) -> set[str]:
        """Return the rules that call it slower by five trials of each side, drawn from rounds in
        which the re-run is not."""
        shared = sorted(self.base.keys() & self.slowed.keys())
        order = [shared[index] for index in rng.permutation(len(shared))]
        again, rest = order[:TRIALS], order[TRIALS:]
        before, after = (
            DrawnTrials.of([side[number] for number in rng.permutation(rest)[:TRIALS]])
            for side in (self.base, self.slowed)
        )
        case = Case(self.kind, before, after, {})
        rules = case.other_rules()
        changes = screened([case])
        if any(map(is_alarm, changes)):
            rules.add(SCREENED)
        before, after = (
            DrawnTrials.of([side[number] for number in again]) for side in (self.base, self.slowed)
        )
        rerun = Case(self.kind, before, after, {})
        if confirmed({0: suspects(changes).get(0, [])}, {0: rerun}):
            rules.add(CONFIRMED)
        return rules


def mean_latency(trials: Iterable[RecordedTrial]) -> float:
    return math.exp(statistics.fmean(math.log(trial.latency_ms) for trial in trials))


def delayed_cells(trials: Sequence[RecordedTrial]) -> dict[str, list[DelayedCell]]:
    """Return kind -> the cells with a delay, from the shortest delay."""
    recorded: dict[str, dict[float, dict[int, RecordedTrial]]] = {}
    for trial in trials:
        if trial.delay_us is not None and trial.kind is not None:
            delays = recorded.setdefault(trial.kind, defaultdict(dict))
            delays[trial.delay_us][trial.round] = trial
    cells = {}
    for kind, delays in sorted(recorded.items()):
        base, *others = (delays[us] for us in sorted(delays))
        cells[kind] = [DelayedCell(kind, base, slowed) for slowed in others]
    return cells


def print_delayed(trials: Sequence[RecordedTrial], draws: int, seed: int) -> None:
    """Print which rules call cells with a real delay slower."""
    rng = np.random.default_rng(seed)
    rules = [rule for rule in RULES if rule != "Conbench z = 5"]  # it needs a history
    headings = ["rule"]
    columns = []
    for kind, cells in delayed_cells(trials).items():
        found = []
        for cell in cells:
            counts: Counter[str] = Counter()
            for _ in range(draws):
                counts.update(cell.called_by(rng))
            found.append(counts)
        changes = ", ".join(f"{100 * cell.change:.1f}" for cell in cells)
        headings.append(f"{kind}, slower by {changes} %")
        columns.append([percents([counts[rule] / draws for counts in found]) for rule in rules])
    print_table(
        f"Cells with a real delay, {draws} draws of five and five trials: called slower, in %",
        headings,
        zip(rules, *columns, strict=True),
    )


# --- 2. two sweeps of many cells ---


@dataclass(frozen=True)
class Cell:
    """A cell that is drawn. `change`: what happens to it between the sweeps."""

    noise: CellNoise
    change: np.ndarray

    def case(self, rng: np.random.Generator, drift: float, compilations: int = 0) -> Case:
        """Return the cell in two sweeps, each with its own shift."""
        noise = self.noise
        before = noise.draw(rng, noise.shift(rng, drift), compilations=compilations)
        shift = noise.shift(rng, drift)
        after = noise.draw(rng, shift, self.change, compilations=compilations)
        history_ms = np.exp(noise.means(rng, HISTORY, drift))[:, 0]
        return Case(noise.kind, before, after, noise.constant, history_ms)

    def rerun(self, rng: np.random.Generator, drift: float, case: Case) -> Case:
        """Return both sides alternating in one session, whose shift they share."""
        shift = self.noise.shift(rng, drift)
        compilations = LEAST_COMPILATIONS if case.before.compiled else 0
        before = self.noise.draw(rng, shift, UNCHANGED, MOST_PAIRS, compilations)
        after = self.noise.draw(rng, shift, self.change, MOST_PAIRS, compilations)
        return replace(case, before=before, after=after)


@dataclass(frozen=True)
class SlowedCell:
    """A cell that becomes slower by a level."""

    slowdown: str
    level: float
    cell: Cell


@dataclass(frozen=True)
class Found:
    """A slowdown, and a rule that found it."""

    slowdown: str
    level: float
    rule: str


@dataclass(frozen=True)
class Calls:
    """What the rules call slower in two sweeps. `false`: rule -> unchanged cells."""

    false: Counter[str]
    found: Counter[Found]


def called_by(
    rng: np.random.Generator, drift: float, cells: Sequence[Cell], cases: Sequence[Case]
) -> list[set[str]]:
    """Return the rules that call each cell slower."""
    changes = screened(cases)
    alarms = {int(change.key) for change in changes if is_alarm(change)}
    flagged = suspects(changes)
    reruns = {index: cells[index].rerun(rng, drift, cases[index]) for index in flagged}
    sure = confirmed(flagged, reruns)
    rules = [case.other_rules() for case in cases]
    for index in alarms:
        rules[index].add(SCREENED)
    for index in sure:
        rules[index].add(CONFIRMED)
    return rules


def compare_twice(
    seed: int, recorded: Sequence[CellNoise], scenario: Scenario, count: int
) -> Calls:
    """Compare two sweeps of `count` unchanged cells. Then add slowed cells, one at a time."""
    rng = np.random.default_rng(seed)
    used = list(map(scenario.noise, recorded))
    cells = [Cell(used[index], UNCHANGED) for index in rng.integers(len(used), size=count)]
    slowed = slowed_cells(rng, recorded) if scenario.has_slowdowns else []
    cases = [cell.case(rng, scenario.drift, scenario.compilations) for cell in cells]
    false: Counter[str] = Counter()
    for rules in called_by(rng, scenario.drift, cells, cases):
        false.update(rules)
    found: Counter[Found] = Counter()
    for slow in slowed:
        case = slow.cell.case(rng, scenario.drift)
        *_, rules = called_by(rng, scenario.drift, [*cells, slow.cell], [*cases, case])
        found.update(Found(slow.slowdown, slow.level, rule) for rule in rules)
    return Calls(false, found)


def slowed_cells(rng: np.random.Generator, recorded: Sequence[CellNoise]) -> list[SlowedCell]:
    """Return a cell for each way to become slower and each level."""
    cells = []
    for slowdown in SLOWDOWNS:
        for level in LEVELS:
            cell = Cell(slowdown.noise(rng, recorded), slowdown.change(level))
            cells.append(SlowedCell(slowdown.name, level, cell))
    return cells


def print_two_sweeps(
    pool: ProcessPoolExecutor, recorded: Sequence[CellNoise], runs: int, count: int, seed: int
) -> None:
    """Print the false alarms of all scenarios, and which slowdowns are found."""
    columns = []
    found: Counter[Found] = Counter()
    for number, scenario in enumerate(SCENARIOS):
        seeds = np.random.SeedSequence(seed + number).generate_state(runs).tolist()
        one_run = partial(compare_twice, recorded=recorded, scenario=scenario, count=count)
        calls = list(pool.map(one_run, seeds))
        columns.append([false_alarms(calls, rule, count) for rule in RULES])
        for call in calls:
            found += call.found
    print_table(
        f"Unchanged sweeps of {count} cells, {runs} runs each: runs without a false alarm, cells"
        " called slower",
        ["rule", *(scenario.name for scenario in SCENARIOS)],
        zip(RULES, *columns, strict=True),
    )
    rows = []
    for rule in RULES:
        row = [rule]
        for slowdown in SLOWDOWNS:
            counts = [found[Found(slowdown.name, level, rule)] for level in LEVELS]
            row.append(percents([number / runs for number in counts]))
        rows.append(row)
    levels = ", ".join(f"{100 * level:.0f}" for level in LEVELS)
    print_table(
        f"One slowed cell among {count} unchanged cells, {runs} runs: found, in %, if slower by"
        f" {levels} %",
        ["rule", *(slowdown.name for slowdown in SLOWDOWNS)],
        rows,
    )


def false_alarms(calls: Sequence[Calls], rule: str, count: int) -> str:
    """Return the fraction of runs without a false alarm of the rule, and that of all cells that it
    calls slower."""
    runs = len(calls)
    alarmed = sum(rule in call.false for call in calls)
    cells = sum(call.false[rule] for call in calls)
    return f"{1 - alarmed / runs:.1%}, {cells / runs / count:.3%}"


# --- 3. series ---

#: Sweeps in a series; a step begins between `FIRST` and `LAST`, and may be undone `LATER` sweeps
#: later.
SWEEPS, FIRST, LAST, LATER = 60, 10, 45, 10
STEPS = LEVELS[1:]
UNDONE = 0.05


@dataclass(frozen=True)
class Series:
    """A figure over many sweeps of a cell of this kind."""

    name: str
    kind: str
    figure: str
    drift: float = 0.0


SERIES = (
    Series("GPU-bound latency", "GPU-bound", "latency_ms"),
    Series("GPU-bound latency, 0.5 % drift", "GPU-bound", "latency_ms", 0.005),
    Series("launch-bound busy time", "launch-bound", "gpu_busy_ms"),
    Series("launch-bound latency", "launch-bound", "latency_ms"),
)


@dataclass(frozen=True)
class Planted:
    """Series (S, N) as logarithms. `places`: of the changes in each; all are of this size."""

    logs: np.ndarray
    places: list[tuple[int, ...]]

    def located(self, detect: Detector) -> float:
        """Return the fraction of series in which each change is found within one sweep."""
        hits = 0
        for places, found in zip(self.places, detect(self.logs), strict=True):
            hits += all(is_near(place, found) for place in places)
        return hits / len(self.places)


def is_near(place: int, found: Sequence[int]) -> bool:
    return any(abs(other - place) <= 1 for other in found)


def plant(
    rng: np.random.Generator,
    series: Series,
    recorded: Sequence[CellNoise],
    count: int,
    step: float = 0.0,
    is_undone: bool = False,
) -> Planted:
    """Draw series with a step: 0.05 is 5 % slower."""
    fitting = [noise for noise in recorded if noise.kind == series.kind]
    rows = []
    places: list[tuple[int, ...]] = []
    for _ in range(count):
        noise = fitting[rng.integers(len(fitting))]
        logs = noise.means(rng, SWEEPS, series.drift)[:, FIGURES.index(series.figure)]
        begin = int(rng.integers(FIRST, LAST))
        end = begin + LATER if is_undone else SWEEPS
        logs[begin:end] += math.log1p(step)
        rows.append(logs)
        places.append((begin, end) if is_undone else (begin,))
    return Planted(np.stack(rows), places)


def series_rows(
    series: Series, recorded: Sequence[CellNoise], count: int, seed: int, python: str | None
) -> list[list[str]]:
    """Return a row for each detector. `python`: an interpreter with Otava, or None."""
    rng = np.random.default_rng(seed)
    unchanged = plant(rng, series, recorded, count)
    stepped = [plant(rng, series, recorded, count, step) for step in STEPS]
    undone = plant(rng, series, recorded, count, UNDONE, is_undone=True)
    detectors = {"effbench": by_effbench}
    if python:
        detectors["Otava"] = otava(python, 0.001, 0.0)
        detectors["Otava, p = 1e-5, 2 %"] = otava(python, 1e-5, 0.02)
    rows = []
    for name, detect in detectors.items():
        false = sum(map(len, detect(unchanged.logs)))
        located = [f"{planted.located(detect):.0%}" for planted in (*stepped, undone)]
        rows.append([series.name, name, f"{100 * false / count:.1f}", *located])
    return rows


def print_series(
    pool: ProcessPoolExecutor,
    recorded: Sequence[CellNoise],
    count: int,
    seed: int,
    python: str | None,
) -> None:
    """Print which steps in series are located, and the false alarms."""
    of_series = partial(series_rows, recorded=recorded, count=count, seed=seed, python=python)
    rows = []
    for own in pool.map(of_series, SERIES):
        rows += own
    steps = [f"{step:.0%} located" for step in STEPS]
    print_table(
        f"Series of {SWEEPS} sweeps, {count} of each",
        ["series", "rule", "false in 100 unchanged", *steps, f"{UNDONE:.0%} undone"],
        rows,
    )


# --- output ---


def percents(fractions: Iterable[float]) -> str:
    return ", ".join(f"{100 * fraction:.0f}" for fraction in fractions)


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table.of([*map(Column, headings)], list(rows))
    print(f"{title}\n\n{table.render('markdown')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=200, help="runs of each kind (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--otava", metavar="PYTHON", help="interpreter with apache-otava")
    parser.add_argument("--quick", action="store_true", help="3 runs of 30 cells, in seconds")
    args = parser.parse_args()
    runs, count = args.runs, 100
    if args.quick:
        runs, count = 3, 30
    trials = load()
    recorded = noise_of(trials)
    print_delayed(trials, 10 * runs, args.seed)
    with ProcessPoolExecutor(max_workers=args.jobs) as pool:
        print_two_sweeps(pool, recorded, runs, count, args.seed)
        print_series(pool, recorded, runs, args.seed, args.otava)


if __name__ == "__main__":
    main()
