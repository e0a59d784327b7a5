"""Compares two sweeps of a database, or two parts of one, cell by cell and metric by metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from effbench.comparison import sides
from effbench.comparison.limits import Limits
from effbench.comparison.sides import BY_ENVIRONMENT, Side
from effbench.comparison.verdicts import NOT_BEFORE, NOT_NOW, Change, Pair, Thresholds, Verdict, judge
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import mode_order
from effbench.metrics import METRICS
from effbench.stats.intervals import LogEstimate, mean_of_estimates
from effbench.stats.significance import noise_threshold
from effbench.store.decisions import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo


@dataclass(frozen=True)
class ModeChange:
    """A mode over the `cells`, of all `of` cells, that both sides have: geometric mean of after ÷ before (None without
    a cell) with its 95 % bounds (None if a cell has no interval)."""

    phase: str
    mode: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    cells: int
    of: int | None = None


@dataclass
class Compared:
    """A comparison. `differences`: in software, flags and protocol, as text; `changes`: what matters most first.
    `unchecked`: hardware and interpreters of the later sweep that a check did not look at."""

    before: Side
    after: Side
    hardware: str
    differences: list[str]
    changes: list[Change]
    modes: list[ModeChange]
    limits: Limits
    interleaved: bool = False
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[Verdict, int]:
        """Rows by verdict, what matters most first; only those that occur."""
        found = Counter(change.verdict for change in self.changes)
        return {verdict: found[verdict] for verdict in Verdict if found[verdict]}

    @property
    def failing(self) -> list[Change]:
        """The rows that make a check fail, what matters most first."""
        return [change for change in self.changes if change.gates]


def compare_sweeps(
    store: Store,
    before: SweepInfo,
    after: SweepInfo,
    limits: Limits,
    across: Collection[str] = (),
    on: str | None = None,
    only: Callable[[Pair], bool] | None = None,
) -> Compared:
    """Compare two sweeps. `on`: name of the hardware or interpreter, or part of it; `only`: which cells are reported.
    Raises NothingFoundError if nothing can be compared and UsageError if it is ambiguous what with what."""
    if before.id == after.id:
        raise UsageError(f"both sides are sweep {before.id}: run another one, then compare that")
    old, new = sides.on_one_machine(*sides.chosen_on([sides.load(store, info) for info in (before, after)], on), across)
    thresholds = noise_thresholds(store, before, after, (old, new), limits.metrics)
    compared = finish(old, new, limits, across, thresholds, only=only)
    compared.notes += [unfinished(side) for side in (old, new) if side.state != "completed"]
    return compared


def compare_parts(
    store: Store,
    sweep: SweepInfo,
    by: str,
    limits: Limits,
    values: Sequence[str] = (),
    on: str | None = None,
    only: Callable[[Pair], bool] | None = None,
) -> Compared:
    """Compare the cells of one sweep under one value of `by` (of BY_ENVIRONMENT, or a parameter such as `dtype` or
    `numerics.tf32`) with those under the other; `values`: which two. Raises as `compare_sweeps`."""
    by = {"mode.name": "mode", "model.name": "model"}.get(by, by)  # a name alone is never all that differs
    (whole,) = sides.chosen_on([sides.load(store, sweep)], on)
    parts = sides.split(whole, by)
    old_name, new_name = two_of(by, list(parts), values, whole.title)
    old, new = replace(parts[old_name], title=f"{by}={old_name}"), replace(parts[new_name], title=f"{by}={new_name}")
    across = ("hardware",) if by == "gpu_name" else ()
    compared = finish(old, new, limits, across, interleaved=True, only=only, by=by)  # both in the same rounds
    if by == "mode":
        # cells of one side alone are of its mode, and get no line of their own
        lines = [line for line in compared.modes if line.cells] or compared.modes[:1]
        compared.modes = [replace(line, mode=f"{old_name} → {new_name}") for line in lines]
    compared.notes += [unfinished(whole)] if whole.state != "completed" else []
    if others := [name for name in parts if name not in (old_name, new_name)]:
        compared.notes.append(f"not compared here: {by}={', '.join(others)}")
    if by not in BY_ENVIRONMENT:
        # if the work itself differs, metrics of one side do not apply (eager compiles nothing)
        one_sided = {change.metric: None for change in compared.changes if change.reason in (NOT_BEFORE, NOT_NOW)}
        compared.changes = [change for change in compared.changes if change.reason not in (NOT_BEFORE, NOT_NOW)]
        if one_sided:
            compared.notes.append(f"measured on one side only, and not compared: {', '.join(one_sided)}")
        known = sides.parameter_names(whole.cells, by)
        if lacking := [name for key, name in sides.names_of(whole.cells).items() if key not in known]:
            compared.notes.append(f"omitted, as they have no {by}: {', '.join(lacking)}")
    return compared


def find(store: Store, reference: str, on: str | None = None) -> SweepInfo:
    """Return a sweep by id or name, or the sweep of a baseline with this name."""
    named = [one for one in store.baselines() if one.name == reference]
    return store.find_sweep(one_baseline(named, on).sweep_id if named else reference)


def one_baseline(known: Sequence[BaselineInfo], on: str | None, hardware: Collection[str] = ()) -> BaselineInfo:
    """Return the one of these baselines of one name that is set on the `hardware` (empty: any) that `on` means. Raises
    NothingFoundError if there is none, UsageError if there are several."""
    name = known[0].name
    # among all known hardware: an L4 without a baseline is no L40S; `on` may also name an interpreter
    asked = sides.matching(on, [*hardware, *(one.hardware for one in known)]) if on is not None else []
    fitting = [one for one in known if one.hardware in (hardware or [one.hardware])]
    fitting = [one for one in fitting if one.hardware in (asked or [one.hardware])]
    there = ", ".join(one.hardware for one in fitting or known)
    another = f"effbench baseline set {name} SWEEP sets another"
    if not fitting:
        raise NothingFoundError(
            f"baseline {name!r} is set on {there}, not on {', '.join(asked or hardware)}; {another}"
        )
    if len(fitting) > 1:
        raise UsageError(f"baseline {name!r} is set on {there}: choose one with --on")
    if fitting[0].started_at is None:
        gone = f"{fitting[0].sweep_id}, which is gone from this database"
        raise NothingFoundError(f"baseline {name!r} is sweep {gone}; {another}")
    return fitting[0]


def finish(
    old: Side, new: Side, limits: Limits, across: Collection[str] = (), thresholds: Thresholds | None = None,
    interleaved: bool = False, only: Callable[[Pair], bool] | None = None, by: str | None = None,
) -> Compared:  # fmt: skip
    """Return every verdict on two sides; `by`: the parameter in which they differ. Raises as `compare_sweeps`."""
    old, new = sides.on_one_machine(old, new, across)
    pairs = sides.pairs_of(old, new, across, by)
    wanted = {pair.key for pair in pairs if only is None or only(pair)}
    if not wanted:
        raise NothingFoundError(f"no cell of {old.title} or {new.title} is among those asked for")
    # all are tested: the correction for many tests must not depend on which cells are reported
    changes = [change for change in judge(pairs, limits, thresholds, interleaved) if change.key in wanted]
    hardware = pairs[0].about["hardware"]
    modes = mode_changes(changes, limits)
    compared = Compared(old, new, hardware, sides.differences(old, new, across), changes, modes, limits, interleaved)
    compared.notes += [f"exception for {rule} ended on {rule.until}: {rule.reason}" for rule in limits.expired]
    unused = [rule for rule in limits.exceptions if not rule.used]
    compared.notes += [f"exception for {rule} fits no cell here: {rule.reason}" for rule in unused]
    return compared


def noise_thresholds(
    store: Store, before: SweepInfo, after: SweepInfo, both: tuple[Side, Side], metrics: Collection[str]
) -> Thresholds:
    """Return (cell key, metric) -> its noise threshold, if it is known: from earlier sweeps named as `before`, in the
    environments of both sides; if both ran on one host, from those of that host if there are enough."""
    environments = dict.fromkeys(key for side in both for key in side.environments)
    ratios = [name for name in metrics if METRICS[name].compare == "ratio"]
    old, new = (side.host.get("hostname") for side in both)
    found: dict[tuple[str, str], float] = {}
    for host in (old, None) if old is not None and old == new else (None,):
        for key, levels in store.levels(before.id, environments, after.started_at, ratios, host).items():
            if key not in found and (threshold := noise_threshold(levels.values())) is not None:
                found[key] = threshold
    return found


def unfinished(side: Side) -> str:
    return f"{side.title} is {side.state}, not completed: only what it has measured is compared"


def two_of(by: str, known: list[str], values: Sequence[str], title: str) -> tuple[str, str]:
    """Return the values to compare. Raises UsageError that lists the known ones."""
    chosen = list(known)
    if values:
        fitting = [[name for name in known if name == value] or [n for n in known if value in n] for value in values]
        if any(len(names) != 1 for names in fitting):
            raise UsageError(f"--values {' '.join(values)}: each must name one of {', '.join(known)}")
        chosen = list(dict.fromkeys(name for names in fitting for name in names))
    if len(chosen) != 2:
        raise UsageError(f"{title} has {len(chosen)} value{'s' * (len(chosen) != 1)} of {by}, not two: "
                         f"{', '.join(chosen)}; choose with --values BEFORE AFTER")  # fmt: skip
    return chosen[0], chosen[1]


def mode_changes(changes: Sequence[Change], limits: Limits) -> list[ModeChange]:
    """Return a line for each phase and mode and each of latency and period that is compared; one without a ratio if no
    cell has any on both sides."""
    timed = [name for name in ("latency_ms", "period_ms") if name in limits.metrics]
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes if timed else ():
        groups.setdefault((change.about["phase"], change.about["mode"]), []).append(change)
    order = mode_order((mode, mode) for _, mode in groups)
    found = []
    for (phase, mode), own in sorted(groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]))):
        cells = len({change.key for change in own})
        lines = []
        for metric in timed:
            rated = [one for one in own if one.metric == metric and one.ratio and math.isfinite(one.ratio)]
            if rated:
                means = [LogEstimate(math.log(one.ratio), one.error, one.df) for one in rated]
                mean = mean_of_estimates(means).interval()
                lines.append(ModeChange(phase, mode, metric, mean.value, mean.low, mean.high, len(rated), cells))
        # all of it broke, say
        found += lines or [ModeChange(phase, mode, timed[0], None, None, None, 0, cells)]
    return found
