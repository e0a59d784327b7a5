"""Compares two sweeps of a database, or two halves of one, cell by cell and metric by metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.analysis import interpreters
from effbench.analysis.halves import (
    ABOUT,
    Half,
    accepted,
    differences,
    hardware_of,
    meant,
    pairs_of,
    said,
    seat_of,
    seated,
    without,
)
from effbench.analysis.limits import Limits
from effbench.analysis.row_labels import flatten, mode_order, row_names
from effbench.analysis.screen import NOT_BEFORE, NOT_NOW, ORDER, Change, Pair, screen
from effbench.analysis.statistics import LogDifference, half_width
from effbench.analysis.verdicts import Verdict
from effbench.errors import NothingFoundError, UsageError
from effbench.regression import fences
from effbench.store.baselines import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: What `--by` takes besides the parameters of cells.
BY_ENVIRONMENT = ("python", "folder", "torch_version", "triton_version", "driver_version", "cuda_version", "gpu_name")

#: Cells that a note names.
MOST_NAMES = 3


@dataclass(frozen=True)
class ModeChange:
    """A mode over all cells that both sides have: geometric mean of after ÷ before (None of no cell), with its 95 %
    bounds (None where some cell has no interval). `cells`: so many, `of` so many of this mode that either side has."""

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
    `unchecked`: hardware and interpreters of the later sweep that took no part, where a check asked."""

    before: Half
    after: Half
    hardware: str
    differences: list[str]
    changes: list[Change]
    modes: list[ModeChange]
    limits: Limits
    in_turns: bool = False
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[Verdict, int]:
        """Rows by verdict, what matters most first; only those that occur."""
        found = Counter(change.verdict for change in self.changes)
        return {verdict: found[verdict] for verdict in ORDER if found[verdict]}


def compare_sweeps(
    store: Store,
    before: SweepInfo,
    after: SweepInfo,
    limits: Limits,
    across: Collection[str] = (),
    on: str | None = None,
    only: Callable[[Pair], bool] | None = None,
) -> Compared:
    """Compare two sweeps. `on`: name of the hardware or interpreter to look at, or part of it, on a side that has it;
    `only`: of which cells the changes are told; all are tested, so that a verdict does not depend on it. What passes
    for noise is told by the sweeps of the same name as `before`.

    Raises NothingFoundError where nothing can be compared and UsageError where it is not clear what with what.
    """
    if before.id == after.id:
        raise UsageError(f"both sides are sweep {before.id}: there is nothing to compare it with")
    old, new = chosen_on([load(store, info) for info in (before, after)], on, across)
    old, new = seated(old, new, across)
    fence = fences.of(store, before, after, (old, new), limits.metrics)
    compared = finish(old, new, limits, across, fence, only=only)
    compared.notes += [*unfinished(old, new), *fences.notes(compared.changes, before)]
    return compared


def unfinished(*halves: Half) -> list[str]:
    """Which of these sweeps may yet have more trials, or will never have them."""
    return [
        f"{half.title} is {half.state}, not completed: only what it has measured is compared"
        for half in halves
        if half.state != "completed"
    ]


def compare_halves(
    store: Store,
    sweep: SweepInfo,
    by: str,
    limits: Limits,
    values: Sequence[str] = (),
    on: str | None = None,
    only: Callable[[Pair], bool] | None = None,
) -> Compared:
    """Compare the cells of one sweep under one value of `by` with those under the other.

    `by`: one of BY_ENVIRONMENT, or a parameter of cells (`dtype`, `numerics.tf32`, `mode.options.x`). `values`: which
    two, before and after, where there are more. Both sides were measured in the same rounds: pairs are compared.
    Raises as `compare_sweeps`.
    """
    by = {"mode.name": "mode", "model.name": "model"}.get(by, by)  # a name alone is never all that differs
    (whole,) = chosen_on([load(store, sweep)], on)
    split = by_environment(whole, by) if by in BY_ENVIRONMENT else by_parameter(whole, by)
    old_name, new_name = two_of(by, list(split), values, whole.title)
    old, new = split[old_name], split[new_name]
    old.title, new.title = f"{by}={old_name}", f"{by}={new_name}"
    across = ("hardware",) if by == "gpu_name" else ()
    compared = finish(old, new, limits, across, lambda key, metric: 0.0, in_turns=True, only=only, by=by)
    if by not in BY_ENVIRONMENT:
        leave_lopsided(compared)
    if by == "mode":
        # cells of one side alone are of its mode: no line of their own beside that of both
        lines = [line for line in compared.modes if line.cells] or compared.modes[:1]
        compared.modes = [replace(line, mode=f"{old_name} → {new_name}") for line in lines]
    compared.notes += unfinished(whole)
    compared.notes += left_out(whole, by, [name for name in split if name not in (old_name, new_name)])
    return compared


def leave_lopsided(compared: Compared) -> None:
    """Where the work itself differs, a metric that one side lacks (eager compiles nothing) does not apply: a note names
    it, in the place of its rows."""
    lopsided = [change for change in compared.changes if change.reason in (NOT_BEFORE, NOT_NOW)]
    if lopsided:
        compared.changes = [change for change in compared.changes if change not in lopsided]
        told = ", ".join(dict.fromkeys(change.metric for change in lopsided))
        compared.notes.append(f"measured on one side only, and not compared: {told}")


def left_out(whole: Half, by: str, others: Sequence[str]) -> list[str]:
    """What of a sweep takes no part: values of `by` that were not chosen, and cells that have no such parameter."""
    told = [f"not compared here: {by}={', '.join(others)}"] if others else []
    if by in BY_ENVIRONMENT:
        return told
    known = value_names(whole.cells, by)
    lacking = [name for key, name in names_of(whole, whole).items() if key not in known]
    if lacking:
        few = ", ".join(lacking[:MOST_NAMES]) + (", …" if len(lacking) > MOST_NAMES else "")
        told.append(f"{len(lacking)} cell{'s have' if len(lacking) > 1 else ' has'} no {by}, so that "
                    f"{'they are' if len(lacking) > 1 else 'it is'} left out: {few}")  # fmt: skip
    return told


def find(store: Store, reference: str, on: str | None = None) -> SweepInfo:
    """A sweep by id or name, or the one that a baseline of this name means."""
    named = [one for one in store.baselines() if one.name == reference]
    if on is not None:
        wanted = meant(on, (one.hardware for one in named))
        named = [one for one in named if one.hardware in wanted] or named  # it may name an interpreter
    if len(named) > 1:
        there = ", ".join(one.hardware for one in named)
        raise UsageError(f"baseline {reference!r} is set on {there}: choose one with --on, or give the sweep's id")
    return store.find_sweep(still_there(named[0]).sweep_id if named else reference)


def still_there(baseline: BaselineInfo) -> BaselineInfo:
    """Raises NothingFoundError where its sweep has been deleted."""
    if baseline.started_at is None:
        raise NothingFoundError(
            f"baseline {baseline.name!r} is sweep {baseline.sweep_id}, which is gone from this database; set another: "
            f"effbench baseline set {baseline.name} SWEEP"
        )
    return baseline


def finish(
    old: Half, new: Half, limits: Limits, across: Collection[str], fence: Callable[[str, str], float],
    in_turns: bool = False, only: Callable[[Pair], bool] | None = None, by: str | None = None,
) -> Compared:  # fmt: skip
    """Every verdict on two sides; `by`: the parameter in which they differ. Raises as `compare_sweeps`."""
    old, new = seated(old, new, across)
    pairs = pairs_of(old, new, names_of(old, new, by), across)
    told = {pair.key for pair in pairs if only is None or only(pair)}
    if not told:
        raise NothingFoundError(f"no cell of {old.title} or {new.title} is among those asked for")
    # all are tested: the correction for many, and so a verdict, does not depend on which of them are looked at
    changes = [change for change in screen(pairs, limits, fence, in_turns) if change.key in told]
    hardware = pairs[0].about["hardware"]
    told = [*accepted(old, new, across), *differences(old, new)]
    compared = Compared(old, new, hardware, told, changes, mode_changes(changes, limits), limits, in_turns)
    compared.notes += [f"exception for {rule} ended on {rule.until}: {rule.reason}" for rule in limits.expired]
    compared.notes += [f"exception for {rule} fits no cell here: {rule.reason}" for rule in limits.unused]
    return compared


def load(store: Store, info: SweepInfo) -> Half:
    """A sweep as one side of a comparison."""
    cells = {cell.key: cell._asdict() for cell in store.planned_cells(info.id)}
    # as the user gave them, where the sweep says so
    order = list(info.host.get("environments") or ())
    rows = sorted(store.environments_of(info.id), key=lambda row: order.index(row["id"]) if row["id"] in order else -1)
    environments = {row["id"]: row for row in rows}
    sides = {(one.cell_key, one.environment_id): one.side for one in store.sides(info.id)}
    name = f" ({info.name})" if info.name else ""
    return Half(f"{info.id}{name}", info.label, cells, sides, environments, info.protocol, info.state, info.host)


def chosen_on(halves: Sequence[Half], on: str | None, across: Collection[str] = ()) -> list[Half]:
    """The halves, those that ran on what `on` names without their other environments. Raises NothingFoundError where
    it names nothing, or hardware of one side that the other did not run on (unless the user compares `across` it)."""
    if on is None:
        return list(halves)
    rows = [row for half in halves for row in half.environments.values()]
    there = {hardware_of(row) for row in rows}
    wanted = meant(on, (name for row in rows for name in names_for(row)))
    fitting = [[k for k, row in half.environments.items() if not names_for(row).isdisjoint(wanted)] for half in halves]
    if not any(fitting):
        titles = " nor ".join(half.title for half in halves)
        seats = said(dict.fromkeys(seat_of(row) for row in rows))
        raise NothingFoundError(f"{titles}: no trial on {on!r}; there is {seats or 'none at all'}")
    lacking = [half for half, ids in zip(halves, fitting, strict=True) if not ids]
    if lacking and "hardware" not in across and not there.isdisjoint(wanted):
        own = ", ".join(dict.fromkeys(hardware_of(row) for row in lacking[0].environments.values()))
        raise NothingFoundError(f"{lacking[0].title} has no trial on {on!r}; it ran on {own or 'nothing yet'}")
    return [half.within(ids) if ids else half for half, ids in zip(halves, fitting, strict=True)]


def names_for(environment: Mapping[str, Any]) -> set[str]:
    """What `on` may call it."""
    flags = environment["flags"] or {}
    chosen = {flags.get(flag) or interpreters.OWN[by] for by, flag in interpreters.FLAGS.items()}
    return {hardware_of(environment), environment["torch_version"], *chosen} - {None}


def by_environment(whole: Half, by: str) -> dict[str, Half]:
    """Value -> the half of the sweep that ran under it, in the order of `environments`."""
    found: dict[str, Half] = {}
    named = interpreters.halves(whole.environments.values())
    for key, row in whole.environments.items():
        value = value_in(named, row, by)
        half = found.setdefault(value, part(whole, {}, {}))
        half.environments[key] = row
        if by == "folder":  # the sweep's label is that of one folder
            facts = (whole.host.get("environments") or {}).get(key) or {}
            half.label = facts.get("git_description") or half.label
    for half in found.values():
        half.cells = whole.cells
        half.sides = {key: side for key, side in whole.sides.items() if key[1] in half.environments}
    return found


def value_in(named: Mapping[str, interpreters.Half], row: Mapping[str, Any], by: str) -> str:
    """Of an environment. Where no interpreter was chosen at all, its Python's version tells it."""
    if by == "folder" or (by == "python" and any(half.python for half in named.values())):
        return named[row["id"]].name(by)
    return str(row[by])


def by_parameter(whole: Half, by: str) -> dict[str, Half]:
    """Value -> the cells that have it, under keys that leave it out, in the order of the plan."""
    found: dict[str, Half] = {}
    new_keys: dict[str, tuple[str, str]] = {}
    names = value_names(whole.cells, by)
    for key, row in whole.cells.items():
        if key not in names:
            continue
        value = names[key]
        half = found.setdefault(value, part(whole, {}, whole.environments))
        shared = without(row["params"], [by])
        half.cells[shared] = row
        new_keys[key] = (value, shared)
    if not found:
        raise UsageError(f"no cell of {whole.title} has a parameter {by!r}; environments differ in "
                         f"{', '.join(BY_ENVIRONMENT)}")  # fmt: skip
    for (key, environment), side in whole.sides.items():
        if key in new_keys:
            value, shared = new_keys[key]
            found[value].sides[shared, environment] = side
    return found


def value_names(cells: Mapping[str, Mapping[str, Any]], by: str) -> dict[str, str]:
    """Cell key -> its value of a parameter as text, of those that have it: what has a name (a mode) is called by that,
    with all else of it where two share the name."""
    values = {}
    for key, row in cells.items():
        params = row["params"]
        value = params[by] if by in params else flatten(params).get(by, params)
        if value is not params:
            values[key] = value
    told: dict[str, set[str]] = {}
    for value in values.values():
        if isinstance(value, Mapping) and "name" in value:
            told.setdefault(str(value["name"]), set()).add(str(value))

    def text(value: Any) -> str:
        if not (isinstance(value, Mapping) and "name" in value):
            return str(value)
        rest = {name: item for name, item in value.items() if name not in ("name", "description", "_target_")}
        return str(value["name"]) if len(told[str(value["name"])]) == 1 else f"{value['name']} {rest}"

    return {key: text(value) for key, value in values.items()}


def part(whole: Half, cells: dict[str, Any], environments: Mapping[str, Any]) -> Half:
    return Half(whole.title, whole.label, dict(cells), {}, dict(environments), whole.protocol, whole.state, whole.host)


def two_of(by: str, known: list[str], values: Sequence[str], title: str) -> tuple[str, str]:
    """The values to compare. Raises UsageError that names those there are."""
    chosen = []
    for value in values:
        fitting = [name for name in known if name == value] or [name for name in known if value in name]
        if len(fitting) != 1:
            raise UsageError(f"{by}={value} means {len(fitting)} of the values in {title}: {', '.join(known)}")
        chosen += fitting
    known = chosen or known
    if len(chosen) == 2 and chosen[0] == chosen[1]:
        raise UsageError(f"both values are {by}={chosen[0]}: there is nothing to compare it with")
    if len(known) != 2:
        raise UsageError(f"{title} has {len(known)} value{'s' * (len(known) != 1)} of {by}, not two: {', '.join(known)}"
                         + ("; choose with --values BEFORE AFTER" if len(known) > 2 else ""))  # fmt: skip
    return known[0], known[1]


def names_of(old: Half, new: Half, by: str | None = None) -> dict[str, str]:
    """What tells each cell from all others of the two halves, without the parameter that tells the halves apart."""
    cells = {**new.cells, **old.cells}
    rows = [dict(row) if by is None else without_parameter(row, by) for row in cells.values()]
    return dict(zip(cells, row_names(rows), strict=True))


def without_parameter(row: Mapping[str, Any], by: str) -> dict[str, Any]:
    """A cell's row as if it did not have this parameter."""
    params = {name: v for name, v in flatten(row["params"]).items() if name != by and not name.startswith(f"{by}.")}
    return {**row, "params": params, **({by: None} if by in ABOUT else {})}


def mode_changes(changes: Sequence[Change], limits: Limits) -> list[ModeChange]:
    """A line for each phase and mode and each of latency and period that some cell has on both sides; where none has,
    one without a ratio. Empty where neither is compared."""
    timed = [name for name in ("latency_ms", "period_ms") if name in limits.metrics]
    groups: dict[tuple[str, str], dict[str, list[Change]]] = {}
    for change in changes:
        if change.metric in timed and change.ratio and math.isfinite(change.ratio):
            own = groups.setdefault((change.about["phase"], change.about["mode"]), {})
            own.setdefault(change.metric, []).append(change)
    every = Counter((about["phase"], about["mode"]) for about in {one.key: one.about for one in changes}.values())
    found = []
    order = mode_order((mode, mode) for _, mode in every)
    for phase, mode in sorted(every, key=lambda group: (group[0], order.index(group[1]))) if timed else ():
        metrics = groups.get((phase, mode), {})
        if not metrics:  # all of it broke, say
            found.append(ModeChange(phase, mode, timed[0], None, None, None, 0, every[phase, mode]))
        for metric, own in sorted(metrics.items()):
            mean = math.fsum(math.log(change.ratio) for change in own) / len(own)
            half = half_width([None if c.error is None else (c.error, c.df) for c in own])
            ratio = LogDifference(mean, None, None).ratio().value
            low = None if half is None else LogDifference(mean - half, None, None).ratio().value
            high = None if half is None else LogDifference(mean + half, None, None).ratio().value
            found.append(ModeChange(phase, mode, metric, ratio, low, high, len(own), every[phase, mode]))
    return found
