"""Which slowdowns do `compare`, `check --confirm`, `history` and rules of other projects find, with
what false alarms?

    python benchmarks/detection.py [--runs 200] [--seed 0] [--otava PYTHON] [--quick]

Nothing is measured: this replays real sweeps of unchanged cells on an H200, recorded with
`record_noise.py`.

1. Cells with a real delay compared with the same cells without it.
2. Two sweeps of 100 unchanged cells drawn from the recorded noise, plus one cell that is 1, 2, 3, 5
   or 10 % slower; also with other kernels in each compilation, whose times vary by TUNED_SD (5 to
   19 % between two were recorded).
3. Series of 60 sweeps of that noise with a step, with a step that is undone, and without a step.

effbench's rules are the functions that `effbench compare`, `check` and `history` call. The rules of
other projects are written after their sources and see only latencies: TorchBench's 7 % of one
median, pyperf's pooled t-test, asv's Mann–Whitney test (p < 0.002) with a factor of 1.1, Conbench's
z-score of 5 over its lookback, and Otava's change points from an interpreter with apache-otava
(`--otava`). Only slowdowns count.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from changepoints import otava
from scipy import stats

from effbench.analysis.confirm import may_be_slower, settle
from effbench.analysis.limits import read
from effbench.analysis.matching import LEAST_COMPILATIONS, ComparedCell
from effbench.analysis.verdicts import Change, Verdict, judge
from effbench.core.cell import Status, Trial
from effbench.core.table import Column, Table
from effbench.stats.changepoints import find_changes
from effbench.stats.intervals import FIRST_LOOK, TUNED, TUNED_SD, log_mean
from effbench.stats.significance import LEAST_PAIRS, MOST_PAIRS
from effbench.store.sides import ResultWithTrials
from effbench.store.summary import CountedTrials

RECORDING = Path(__file__).resolve().parents[1] / "results" / "reference" / "noise-h200.jsonl"
#: Figures with noise (lower is better), and figures that are constant over the trials of a cell.
FIGURES = ("latency_ms", "period_ms", "gpu_busy_ms", "energy_mj")
CONSTANT = ("peak_allocated_bytes", "kernels")
TIMES, HOST_TIMES = FIGURES[:3], FIGURES[:2]
TRIALS = 5
LEVELS = (0.01, 0.02, 0.03, 0.05, 0.10)
HISTORY = 20
#: What a comparison does not use of a result.
UNKNOWN = {
    **dict.fromkeys(("model", "mode", "dtype", "phase", "device", "cell_key"), ""),
    **dict.fromkeys(("sweep_name", "label")),
    "bs": 0,
    "params": {},
    "started_at": dt.datetime.now(dt.UTC),
}
SCREENED, CONFIRMED = (f"effbench, {how}" for how in ("screened", "alternating"))
PEERS = ("TorchBench 7 %", "pyperf t-test", "asv U test, × 1.1", "Conbench z = 5")
RULES = (SCREENED, CONFIRMED, *PEERS)
LIMITS = read(settings=[f"metrics=[{','.join((*FIGURES, *CONSTANT))}]"])
#: How cells are slowed -> kind of cell, spread of the figures that follow, and the figures that are
#: slowed.
SLOWED = {
    "GPU-bound, as recorded": ("GPU-bound", None, (), TIMES),
    "GPU-bound, 0.5 % spread": ("GPU-bound", 0.005, TIMES, TIMES),
    "launch-bound, on the host": ("launch-bound", None, (), HOST_TIMES),
    "launch-bound, 20 % spread, on the host": ("launch-bound", 0.2, HOST_TIMES, HOST_TIMES),
    "launch-bound, in the kernels": ("launch-bound", None, (), ("gpu_busy_ms",)),
}
#: Name -> drift between sessions on top of the recorded shifts, spread of launch-bound cells,
#: compilations of each cell that choose other kernels (0: none), whether cells are slowed.
SCENARIOS = {
    "as recorded": (0.0, None, 0, True),
    "0.5 % drift": (0.005, None, 0, False),
    "1 % drift": (0.01, None, 0, False),
    "launch-bound cells at 20 %": (0.0, 0.2, 0, False),
    "autotuned, 1 compilation": (0.0, None, 1, False),
    "autotuned, 2 compilations": (0.0, None, 2, False),
}


# --- the recorded noise ---


@dataclass(frozen=True)
class Drawn:
    """Trials of one cell in one sweep. `figures` (n, M), NaN if not measured; `values_ms` (n, V)
    latencies; `compiled`: round -> number of the compilation and its kernels."""

    figures: np.ndarray
    values_ms: np.ndarray
    compiled: dict[int, tuple[int, str]] = field(default_factory=dict)

    def trials(self, constant: dict[str, float]) -> list[Trial]:
        """The trials with these figures and constant ones."""
        trials = []
        for number, row in enumerate(self.figures.tolist()):
            compilation, kernels = self.compiled.get(number, (None, None))
            trial = Trial(
                "",
                number,
                Status.OK,
                compilation=compilation,
                kernel_fingerprint=kernels,
                **dict(zip(FIGURES, row, strict=True)),
                **constant,
            )
            trials.append(trial)
        return trials


@dataclass(frozen=True)
class Template:
    """A recorded cell, from which new sweeps are drawn with the recorded noise.

    A figure of a trial is the cell's level × the sweep's shift × the trial's deviation × the
    injected change. The shift is that of a recorded sweep, shrunk by the noise of its few trials.
    The deviation is that of a recorded trial from its sweep (all figures of one trial together),
    widened by what the sweep's mean absorbs. `shifts` (S, M) and `deviations` (T, M): logarithms;
    `levels` (M,); `values` (T, V): latencies of a trial ÷ their median.
    """

    kind: str
    levels: np.ndarray
    shifts: np.ndarray
    deviations: np.ndarray
    values: np.ndarray
    constant: dict[str, float]

    def shift(self, rng: np.random.Generator, drift: float = 0.0) -> np.ndarray:
        """Return the shift (M,) of one sweep."""
        drawn = self.shifts[rng.integers(len(self.shifts))].copy()
        drawn[: len(TIMES)] += rng.normal(0.0, drift) if drift else 0.0
        return drawn

    def trials(
        self,
        rng: np.random.Generator,
        shift: np.ndarray,
        injected: np.ndarray | float = 0.0,
        rounds: int = TRIALS,
        compilations: int = 0,
    ) -> Drawn:
        """Return the trials of a sweep with this `shift`; `injected`: (M,) logarithms of the change
        of each figure; `compilations`: number of compilations, each with other kernels, that the
        rounds use in turn."""
        chosen = rng.choice(
            len(self.deviations), size=rounds, replace=len(self.deviations) < rounds
        )
        figures = np.exp(self.levels + shift + injected + self.deviations[chosen])
        compiled = {}
        if compilations:
            used = np.arange(rounds) % compilations
            figures *= np.exp(rng.normal(0.0, TUNED_SD, compilations))[used, None]
            kernels = [f"{value:x}{TUNED}" for value in rng.integers(2**62, size=compilations)]
            compiled = {number: (int(name), kernels[name]) for number, name in enumerate(used)}
        return Drawn(figures, figures[:, :1] * self.values[chosen], compiled)

    def means(self, rng: np.random.Generator, sweeps: int, drift: float = 0.0) -> np.ndarray:
        """Return the mean logarithms (sweeps, M) of five trials in each of `sweeps`."""
        shifts = np.stack([self.shift(rng, drift) for _ in range(sweeps)])
        drawn = self.deviations[rng.integers(len(self.deviations), size=(sweeps, TRIALS))]
        measured = np.maximum((~np.isnan(drawn)).sum(axis=1), 1)
        mean = np.nansum(drawn, axis=1) / measured
        return self.levels + shifts + mean

    def with_spread(self, spread: float, figures: Sequence[str]) -> Template:
        """Return the same noise, scaled for these figures to this standard deviation between
        trials."""
        present = np.nanstd(self.deviations, axis=0)
        factors = np.array(
            [spread / present[i] if f in figures else 1.0 for i, f in enumerate(FIGURES)]
        )
        return replace(self, shifts=self.shifts * factors, deviations=self.deviations * factors)


def load(path: Path = RECORDING) -> list[dict[str, Any]]:
    """Return the trials of a recording that count: `ok`, without foreign processes on the GPU."""
    with path.open(encoding="utf-8") as file:
        header, *trials = map(json.loads, file)
    if header["format"] != 1:
        raise ValueError(f"{path}: expected a recording of format 1, got {header['format']}")
    return [
        trial
        for trial in trials
        if trial["status"] == "ok" and not trial["foreign"] and not trial.get("marked")
    ]


def sweeps_of(
    trials: Sequence[dict[str, Any]],
) -> dict[tuple[str, str], dict[int, list[dict[str, Any]]]]:
    """Return (database, cell) -> sweep -> its trials, for cells that were recorded unchanged in
    several sweeps."""
    cells: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for trial in trials:
        if "delay_us" not in trial:
            cells[trial["db"], trial["cell"]][trial["sweep"]].append(trial)
    return {key: dict(sweeps) for key, sweeps in sorted(cells.items()) if len(sweeps) > 1}


def drawn_of(trials: Sequence[dict[str, Any]]) -> Drawn:
    """Return recorded trials without changes."""
    table = np.array(
        [[trial.get(figure, math.nan) for figure in FIGURES] for trial in trials], float
    )
    return Drawn(table, np.array([trial["latencies_ms"] for trial in trials], float))


def templates_of(trials: Sequence[dict[str, Any]]) -> list[Template]:
    return [template(list(sweeps.values())) for sweeps in sweeps_of(trials).values()]


def template(sweeps: Sequence[list[dict[str, Any]]]) -> Template:
    """Return the template of a cell; `sweeps`: its trials, by sweep."""
    first, drawn = sweeps[0][0], [drawn_of(trials) for trials in sweeps]
    logs = [np.log(sweep.figures) for sweep in drawn]
    means = np.stack([np.nanmean(table, axis=0) for table in logs])
    counts = np.stack([(~np.isnan(table)).sum(axis=0) for table in logs])
    apart = [table - mean for table, mean in zip(logs, means, strict=True)]
    # deviations from the sweep's own mean lose 1 ÷ n of their variance
    widened = np.concatenate(
        [table * np.sqrt(n / (n - 1)) for table, n in zip(apart, counts, strict=True)]
    )
    within = np.nansum([np.nansum(table**2, axis=0) for table in apart], axis=0) / (counts - 1).sum(
        axis=0
    )
    level, observed = means.mean(axis=0), means.var(axis=0, ddof=1)
    between = np.maximum(observed - (within / counts).mean(axis=0), 0.0)
    values = np.concatenate([sweep.values_ms / sweep.figures[:, :1] for sweep in drawn])
    constant = {key: first[key] for key in CONSTANT}
    return Template(
        first["kind"],
        level,
        (means - level) * np.sqrt(between / observed),
        widened,
        values,
        constant,
    )


# --- rules ---


@dataclass(frozen=True)
class Case:
    """A cell before and after. `history` (S, M): geometric means of earlier sweeps, oldest
    first."""

    kind: str
    before: Drawn
    after: Drawn
    constant: dict[str, float]
    history: np.ndarray | None = None


def screened(cases: Sequence[Case]) -> list[Change]:
    """Return every verdict of a comparison of these cells; keys are their indices."""
    return judge([compared(index, case) for index, case in enumerate(cases)], LIMITS)


def compared(index: int, case: Case) -> ComparedCell:
    """Return both sides of a case, with its index as the key."""
    bound = "launch" if case.kind == "launch-bound" else "gpu"
    sides = []
    for side in (case.before, case.after):
        trials = side.trials(case.constant)
        result = ResultWithTrials(
            **UNKNOWN,
            status=Status.OK,
            reason=None,
            trials=len(trials),
            bound=bound,
            counted=CountedTrials.of(trials),
        )
        sides.append(result)
    return ComparedCell(str(index), str(index), "", *sides)


def slower(changes: Sequence[Change], suspects: bool = False) -> dict[int, list[Change]]:
    """Return index of a case -> its alarms; `suspects`: all rows that `--confirm` runs again."""
    alarms: dict[int, list[Change]] = defaultdict(list)
    for change in changes:
        if may_be_slower(change) if suspects else change.gates and change.verdict is Verdict.SLOWER:
            alarms[int(change.key)].append(change)
    return alarms


def confirmed(flagged: Mapping[int, Sequence[Change]], again: Mapping[int, Case]) -> set[int]:
    """Return the cases of which an alternating re-run (`again`) of all flagged cases confirms a
    row."""
    rounds = {
        index: min(map(rounds_of, (case.before, case.after))) for index, case in again.items()
    }
    cells = []
    for index, case in again.items():
        before, after = (
            replace(side, figures=side.figures[: rounds[index]])
            for side in (case.before, case.after)
        )
        cut = replace(case, before=before, after=after, constant={})
        cells.append(compared(index, cut))
    rows = {(row.key, row.metric): row for row in judge(cells, LIMITS, interleaved=True)}
    settled = {index: [replace(row) for row in flagged[index]] for index in again}
    for index, changes in settled.items():
        for change in changes:
            row = rows.get((change.key, change.metric))
            if row is not None:
                settle(change, row, rounds[index])
    return {
        index
        for index, changes in settled.items()
        if any(row.verdict is Verdict.SLOWER for row in changes)
    }


def rounds_of(drawn: Drawn) -> int:
    """Return the round after which a re-run stops, because it is known within ± 1 %."""
    for rounds in range(LEAST_PAIRS, len(drawn.figures)):
        medians = drawn.figures[:rounds, : len(HOST_TIMES)].T
        means = [
            log_mean(times.tolist()).interval() for times in medians if not np.isnan(times).any()
        ]
        if all(
            mean.high / mean.value - 1 <= (0.01 if rounds > LEAST_PAIRS else 0.01 * FIRST_LOOK)
            for mean in means
        ):
            return rounds
    return len(drawn.figures)


def peers(case: Case) -> set[str]:
    """Return the rules of other projects that call the cell slower."""
    old, new = case.before, case.after
    rules = set()
    if new.figures[0, 0] / old.figures[0, 0] - 1 > 0.07:  # one process per side
        rules.add(PEERS[0])
    first, second = pooled(old, 12), pooled(new, 12)
    if second.mean() > first.mean() and stats.ttest_ind(second, first).pvalue < 0.05:
        rules.add(PEERS[1])
    first, second = pooled(old, 4), pooled(new, 4)
    if (
        np.median(first) < np.median(second) / 1.1
        and stats.mannwhitneyu(first, second).pvalue < 0.002
    ):
        rules.add(PEERS[2])
    if case.history is not None and conbench(case.history[:, 0], float(new.figures[:, 0].mean())):
        rules.add(PEERS[3])
    return rules


def pooled(drawn: Drawn, each: int) -> np.ndarray:
    """Return (n × `each`,) means of consecutive values (n, V), as from a longer inner loop."""
    values = drawn.values_ms
    return (
        values[:, : values.shape[1] // each * each]
        .reshape(len(values), each, -1)
        .mean(axis=2)
        .ravel()
    )


def conbench(history: np.ndarray, after: float) -> bool:
    """Return whether Conbench alarms (conbench/entities/history.py): mean of the last 100 results,
    and the standard deviation of each result's distance from the mean of the earlier results."""
    last = history[-100:]
    if len(last) < 2:
        return False
    before = np.concatenate([last[:1], np.cumsum(last)[:-1] / np.arange(1, len(last))])
    deviation = float((last - before).std(ddof=1))
    return deviation > 0 and (after - float(last.mean())) / deviation > 5


# --- 1. real delays ---


def delayed_rows(
    trials: Sequence[dict[str, Any]], draws: int, seed: int
) -> tuple[list[str], list[list[str]]]:
    """Compare five trials of a cell with five of the same cell with a real delay, drawn from one
    interleaved sweep; five other rounds are the re-run."""
    rng = np.random.default_rng(seed)
    rules = (SCREENED, CONFIRMED, *PEERS[:3])
    kinds: dict[str, dict[float, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if "delay_us" in trial:
            kinds[trial["kind"]][trial["delay_us"]].append(trial)
    headings, columns = ["rule"], []
    for kind, levels in sorted(kinds.items()):
        base, *others = (
            {trial["round"]: trial for trial in delayed} for _, delayed in sorted(levels.items())
        )
        effects, shares = [], []
        for slowed in others:
            effects.append(mean_latency(slowed) / mean_latency(base) - 1)
            counts: Counter[str] = Counter()
            shared = sorted(base.keys() & slowed.keys())
            for _ in range(draws):
                order = [shared[i] for i in rng.permutation(len(shared))]
                again, rest = order[:TRIALS], order[TRIALS:]
                before, after = (
                    drawn_of([side[n] for n in rng.permutation(rest)[:TRIALS]])
                    for side in (base, slowed)
                )
                case = Case(kind, before, after, {})
                changes = screened([case])
                flagged = slower(changes, suspects=True).get(0, [])
                counts[SCREENED] += bool(slower(changes))
                old, new = (drawn_of([side[n] for n in again]) for side in (base, slowed))
                rerun = Case(kind, old, new, {})
                counts[CONFIRMED] += len(confirmed({0: flagged}, {0: rerun}))
                counts.update(peers(case))
            shares.append(counts)
        headings.append(
            f"{kind}, slower by {', '.join(f'{100 * effect:.1f}' for effect in effects)} %"
        )
        columns.append(
            [", ".join(f"{100 * counts[rule] / draws:.0f}" for counts in shares) for rule in rules]
        )
    return headings, [[rule, *cells] for rule, *cells in zip(rules, *columns, strict=True)]


def mean_latency(trials: dict[int, dict[str, Any]]) -> float:
    return math.exp(statistics.fmean(math.log(trial[FIGURES[0]]) for trial in trials.values()))


# --- 2. two sweeps of many cells ---


def case_of(
    rng: np.random.Generator,
    one: Template,
    drift: float,
    injected: np.ndarray | float = 0.0,
    compilations: int = 0,
) -> Case:
    """Return a cell in two sweeps, each with its own shift."""
    before = one.trials(rng, one.shift(rng, drift), compilations=compilations)
    after = one.trials(rng, one.shift(rng, drift), injected, compilations=compilations)
    return Case(one.kind, before, after, one.constant, np.exp(one.means(rng, HISTORY, drift)))


Ways = Sequence[tuple[Template, np.ndarray | float]]


def called_by(
    rng: np.random.Generator, ways: Ways, drift: float, cases: Sequence[Case]
) -> list[set[str]]:
    """Return the rules that call each cell slower. `ways`: of each cell, its template and what is
    injected after."""
    changes = screened(cases)
    found, flagged = slower(changes), slower(changes, suspects=True)
    reruns = {}
    for index in flagged:
        one, injected = ways[index]
        shift = one.shift(rng, drift)  # both sides share the shift of one session
        compilations = LEAST_COMPILATIONS if cases[index].before.compiled else 0
        sides = (
            one.trials(rng, shift, change, MOST_PAIRS, compilations) for change in (0.0, injected)
        )
        reruns[index] = replace(cases[index], **dict(zip(("before", "after"), sides, strict=True)))
    sure = confirmed(flagged, reruns)
    rules = []
    called = {SCREENED: found, CONFIRMED: sure}
    for index in range(len(cases)):
        rules.append({rule for rule, alarms in called.items() if index in alarms})
    return rules


def run(
    seed: int, recorded: Sequence[Template], scenario: str, cells: int
) -> tuple[Counter, Counter, Counter]:
    """Compare two sweeps of unchanged cells: return rule -> cells called slower, and rule -> 1 if
    any is. Then add slowed cells, one at a time: return (how, level, rule) -> 1 if found."""
    drift, spread, compilations, with_slowed = SCENARIOS[scenario]
    rng = np.random.default_rng(seed)
    used = [
        one.with_spread(spread, HOST_TIMES) if spread and one.kind == "launch-bound" else one
        for one in recorded
    ]
    chosen = [used[i] for i in rng.integers(len(used), size=cells)]
    slow = []
    if with_slowed:
        for (how, (kind, width, of, figures)), level in itertools.product(SLOWED.items(), LEVELS):
            fitting = [one for one in recorded if one.kind == kind]
            one = fitting[rng.integers(len(fitting))]
            injected = np.array([math.log1p(level) if name in figures else 0.0 for name in FIGURES])
            slow.append(
                (how, level, one if width is None else one.with_spread(width, of), injected)
            )
    cases = [case_of(rng, one, drift, compilations=compilations) for one in chosen]
    false: Counter[str] = Counter()
    hit: Counter[tuple] = Counter()
    ways = [(one, 0.0) for one in chosen]
    for case, rules in zip(cases, called_by(rng, ways, drift, cases), strict=True):
        false.update(rules | peers(case))
    for how, level, one, injected in slow:
        case = case_of(rng, one, drift, injected)
        rules = called_by(rng, [*ways, (one, injected)], drift, [*cases, case])[-1]
        hit.update((how, level, rule) for rule in rules | peers(case))
    return false, Counter(list(false)), hit


# --- 3. series ---


SWEEPS, FIRST, LAST, LATER = 60, 10, 45, 10
SERIES = {
    "GPU-bound latency": ("GPU-bound", "latency_ms", 0.0),
    "GPU-bound latency, 0.5 % drift": ("GPU-bound", "latency_ms", 0.005),
    "launch-bound busy time": ("launch-bound", "gpu_busy_ms", 0.0),
    "launch-bound latency": ("launch-bound", "latency_ms", 0.0),
}
SERIES_HEADINGS = [
    "series",
    "rule",
    "false in 100 unchanged",
    *(f"{level:.0%} located" for level in LEVELS[1:]),
    "5% undone",
]


def series_rows(
    what: str, recorded: Sequence[Template], many: int, seed: int, python: str | None
) -> list[list[str]]:
    """Return the rates of located steps (a change point within one sweep), and of false change
    points."""
    kind, figure, drift = SERIES[what]
    rng, index = np.random.default_rng(seed), FIGURES.index(figure)
    fitting = [one for one in recorded if one.kind == kind]
    sets: dict[tuple[float, bool], list[tuple[np.ndarray, tuple[int, ...]]]] = {}
    for level, undone in [(0.0, False), *((level, False) for level in LEVELS[1:]), (0.05, True)]:
        sets[level, undone] = []
        for _ in range(many):
            cell = fitting[rng.integers(len(fitting))]
            logs = cell.means(rng, SWEEPS, drift)[:, index]
            at = int(rng.integers(FIRST, LAST))
            until = at + LATER if undone else SWEEPS
            logs[at:until] += math.log1p(level)
            places = (at, until) if undone else (at,)
            sets[level, undone].append((logs, places if level else ()))

    def ours(series: list[np.ndarray]) -> list[list[int]]:
        found = [find_changes(logs.tolist()) for logs in series]
        return [[change.at for change in changes] for changes in found]

    rules: dict[str, Any] = {"effbench": ours}
    for name, p, magnitude in (
        (("Otava", 0.001, 0.0), ("Otava, p = 1e-5, 2 %", 1e-5, 0.02)) if python else ()
    ):
        judge_series = otava(python, p, magnitude)
        rules[name] = lambda series, judge_series=judge_series: judge_series(np.stack(series))
    rows = []
    for rule, detect in rules.items():
        located, false = {}, 0
        for key, planted in sets.items():
            points = detect([logs for logs, _ in planted])
            hits = [
                all(any(abs(p - at) <= 1 for p in own) for at in places)
                for (_, places), own in zip(planted, points, strict=True)
            ]
            located[key] = sum(hits) / many
            if not key[0]:
                false = sum(map(len, points))
        steps = [f"{located[level, False]:.0%}" for level in LEVELS[1:]]
        rows.append([what, rule, f"{100 * false / many:.1f}", *steps, f"{located[0.05, True]:.0%}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=200, help="runs of each kind (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--recording", type=Path, default=RECORDING)
    parser.add_argument("--otava", metavar="PYTHON", help="interpreter with apache-otava")
    parser.add_argument("--quick", action="store_true", help="3 runs of 30 cells, in seconds")
    args = parser.parse_args()
    runs, cells = (3, 30) if args.quick else (args.runs, 100)
    trials = load(args.recording)
    recorded = templates_of(trials)

    def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        print(
            f"{title}\n\n{Table.of([*map(Column, headings)], rows).render('markdown')}", flush=True
        )

    title = (
        f"Cells with a real delay, {10 * runs} draws of five and five trials: called slower, in %"
    )
    show(title, *delayed_rows(trials, 10 * runs, args.seed))
    with ProcessPoolExecutor(max_workers=args.jobs) as pool:
        columns, hits = [], Counter()
        for number, scenario in enumerate(SCENARIOS):
            seeds = [
                int(one) for one in np.random.SeedSequence(args.seed + number).generate_state(runs)
            ]
            done = list(
                pool.map(partial(run, recorded=recorded, scenario=scenario, cells=cells), seeds)
            )
            false, alarmed = (sum((one[i] for one in done), Counter()) for i in (0, 1))
            hits += sum((one[2] for one in done), Counter())
            columns.append(
                [
                    f"{1 - alarmed[rule] / runs:.1%}, {false[rule] / runs / cells:.3%}"
                    for rule in RULES
                ]
            )
        title = (
            f"Unchanged sweeps of {cells} cells, {runs} runs each: runs without a false alarm,"
            " cells called slower"
        )
        show(
            title,
            ["rule", *SCENARIOS],
            [[rule, *own] for rule, *own in zip(RULES, *columns, strict=True)],
        )
        levels = ", ".join(f"{100 * level:.0f}" for level in LEVELS)
        rows = [
            [
                rule,
                *(
                    ", ".join(f"{100 * hits[how, level, rule] / runs:.0f}" for level in LEVELS)
                    for how in SLOWED
                ),
            ]
            for rule in RULES
        ]
        title = (
            f"One slowed cell among {cells} unchanged cells, {runs} runs: found, in %, if slower by"
            f" {levels} %"
        )
        show(title, ["rule", *SLOWED], rows)
        rows = pool.map(
            partial(series_rows, recorded=recorded, many=runs, seed=args.seed, python=args.otava),
            SERIES,
        )
        show(
            f"Series of {SWEEPS} sweeps, {runs} of each",
            SERIES_HEADINGS,
            [row for own in rows for row in own],
        )


if __name__ == "__main__":
    main()
