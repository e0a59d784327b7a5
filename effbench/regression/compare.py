"""Compares two sweeps of a database, or two halves of one, cell by cell and metric by metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.analysis import interpreters
from effbench.analysis.fence import noise_fence
from effbench.analysis.halves import Half, differences, hardware_of, pairs_of, without
from effbench.analysis.limits import Limits
from effbench.analysis.screen import ORDER, Change, screen
from effbench.analysis.statistics import half_width
from effbench.analysis.swept import flatten, mode_order, row_names
from effbench.analysis.verdicts import Verdict
from effbench.errors import NothingFoundError, UsageError
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: What `--by` takes besides the parameters of cells.
BY_ENVIRONMENT = ("python", "folder", "torch_version", "triton_version", "driver_version", "cuda_version", "gpu_name")


@dataclass(frozen=True)
class ModeChange:
    """A mode over all cells that both sides have: geometric mean of after ÷ before, with its 95 % bounds (None where
    some cell has no interval)."""

    phase: str
    mode: str
    metric: str
    ratio: float
    low: float | None
    high: float | None
    cells: int


@dataclass
class Compared:
    """A comparison. `differences`: in software, flags and protocol, as text; `changes`: what matters most first."""

    before: Half
    after: Half
    hardware: str
    differences: list[str]
    changes: list[Change]
    modes: list[ModeChange]
    limits: Limits
    in_turns: bool = False
    notes: list[str] = field(default_factory=list)

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
    only: Callable[[Mapping[str, Any]], bool] = lambda cell: True,
) -> Compared:
    """Compare two sweeps. `on`: part of the name of the hardware or interpreter to look at; `only`: which cells.

    Raises NothingFoundError where nothing can be compared and UsageError where it is not clear what with what.
    """
    old, new = (load(store, info, on, only) for info in (before, after))
    environments = [*old.environments, *new.environments]
    keys = set(old.cells)
    known = store.levels(keys, environments, after.started_at, limits.metrics)
    return finish(old, new, limits, across, lambda key, metric: noise_fence(known.get((key, metric), ())))


def compare_halves(
    store: Store,
    sweep: SweepInfo,
    by: str,
    limits: Limits,
    values: Sequence[str] = (),
    only: Callable[[Mapping[str, Any]], bool] = lambda cell: True,
) -> Compared:
    """Compare the cells of one sweep under one value of `by` with those under the other.

    `by`: one of BY_ENVIRONMENT, or a parameter of cells (`dtype`, `numerics.tf32`, `mode.options.x`). `values`: which
    two, before and after, where there are more. Both sides were measured in the same rounds: pairs are compared.
    Raises as `compare_sweeps`.
    """
    whole = load(store, sweep, None, only)
    split = by_environment(whole, by) if by in BY_ENVIRONMENT else by_parameter(whole, by)
    old_name, new_name = two_of(by, list(split), values, whole.title)
    old, new = split[old_name], split[new_name]
    old.title, new.title = f"{by}={old_name}", f"{by}={new_name}"
    across = ("hardware",) if by == "gpu_name" else ()
    return finish(old, new, limits, across, lambda key, metric: 0.0, in_turns=True)


def find(store: Store, reference: str, on: str | None = None) -> SweepInfo:
    """A sweep by id or name, or the one that a baseline of this name means."""
    named = [one for one in store.baselines() if one.name == reference]
    if on is not None:
        named = [one for one in named if on.lower() in one.hardware.lower()] or named
    if len(named) > 1:
        there = ", ".join(one.hardware for one in named)
        raise UsageError(f"baseline {reference!r} is set on {there}: choose one with --on, or give the sweep's id")
    return store.find_sweep(named[0].sweep_id if named else reference)


def finish(
    old: Half, new: Half, limits: Limits, across: Collection[str], fence: Callable[[str, str], float],
    in_turns: bool = False,
) -> Compared:  # fmt: skip
    pairs = pairs_of(old, new, names_of(old, new), across)
    changes = screen(pairs, limits, fence, in_turns)
    hardware = hardware_of(next(iter(new.environments.values())))
    compared = Compared(old, new, hardware, differences(old, new), changes, mode_changes(changes), limits, in_turns)
    compared.notes += [f"exception for {rule} ended on {rule.until}: {rule.reason}" for rule in limits.expired]
    compared.notes += [f"exception for {rule} fits no cell here: {rule.reason}" for rule in limits.unused]
    return compared


def load(
    store: Store, info: SweepInfo, on: str | None, only: Callable[[Mapping[str, Any]], bool] = lambda cell: True
) -> Half:
    """A sweep as one side of a comparison."""
    cells = {cell.key: cell._asdict() for cell in store.planned_cells(info.id) if only(cell._asdict())}
    # as the user gave them, where the sweep says so
    order = list(info.host.get("environments") or ())
    rows = sorted(store.environments_of(info.id), key=lambda row: order.index(row["id"]) if row["id"] in order else -1)
    environments = {row["id"]: row for row in rows}
    if on is not None:
        environments = {key: row for key, row in environments.items() if on.lower() in text_of(row).lower()}
        if not environments:
            raise NothingFoundError(f"sweep {info.id} has no trial on {on!r}")
    sides = {
        (one.cell_key, one.environment_id): one.side
        for one in store.sides(info.id)
        if one.cell_key in cells and one.environment_id in environments
    }
    name = f" ({info.name})" if info.name else ""
    return Half(f"{info.id}{name}", info.label, cells, sides, environments, info.protocol, info.state)


def text_of(environment: Mapping[str, Any]) -> str:
    flags = environment["flags"] or {}
    parts = [hardware_of(environment), flags.get("interpreter"), flags.get("folder"), environment["torch_version"]]
    return " ".join(part for part in parts if part)


def by_environment(whole: Half, by: str) -> dict[str, Half]:
    """Value -> the half of the sweep that ran under it, in the order of `environments`."""
    found: dict[str, Half] = {}
    named = interpreters.halves(whole.environments.values())
    for key, row in whole.environments.items():
        value = value_in(named[key], row, by)
        half = found.setdefault(value, part(whole, {}, {}))
        half.environments[key] = row
    for half in found.values():
        half.cells = whole.cells
        half.sides = {key: side for key, side in whole.sides.items() if key[1] in half.environments}
    return found


def value_in(half: interpreters.Half, row: Mapping[str, Any], by: str) -> str:
    """Of an environment. Where no interpreter was chosen, its Python's version tells it."""
    if by == "python":
        return half.name("python") if half.python else str(row["python"])
    return half.name("folder") if by == "folder" else str(row[by])


def by_parameter(whole: Half, by: str) -> dict[str, Half]:
    """Value -> the cells that have it, under keys that leave it out, in the order of the plan."""
    found: dict[str, Half] = {}
    new_keys: dict[str, tuple[str, str]] = {}
    for key, row in whole.cells.items():
        flat = flatten(row["params"])
        if by not in flat and by not in row["params"]:
            continue
        value = str(flat.get(by, row["params"].get(by)))
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


def part(whole: Half, cells: dict[str, Any], environments: Mapping[str, Any]) -> Half:
    return Half(whole.title, whole.label, dict(cells), {}, dict(environments), whole.protocol, whole.state)


def two_of(by: str, known: list[str], values: Sequence[str], title: str) -> tuple[str, str]:
    """The values to compare. Raises UsageError that names those there are."""
    chosen = []
    for value in values:
        fitting = [name for name in known if name == value] or [name for name in known if value in name]
        if len(fitting) != 1:
            raise UsageError(f"{by}={value} means {len(fitting)} of the values in {title}: {', '.join(known)}")
        chosen += fitting
    known = chosen or known
    if len(known) != 2:
        raise UsageError(f"{title} has {len(known)} value{'s' * (len(known) != 1)} of {by}, not two: {', '.join(known)}"
                         + ("; choose with --values BEFORE AFTER" if len(known) > 2 else ""))  # fmt: skip
    return known[0], known[1]


def names_of(old: Half, new: Half) -> dict[str, str]:
    """What tells each cell from all others of the two halves."""
    cells = {**new.cells, **old.cells}
    return dict(zip(cells, row_names([dict(row) for row in cells.values()]), strict=True))


def mode_changes(changes: Sequence[Change]) -> list[ModeChange]:
    """A line for each phase and mode: by the period where all of its cells have one, else by the latency."""
    groups: dict[tuple[str, str], dict[str, list[Change]]] = {}
    for change in changes:
        if change.metric in ("latency_ms", "period_ms") and change.ratio:
            own = groups.setdefault((change.about["phase"], change.about["mode"]), {})
            own.setdefault(change.metric, []).append(change)
    found = []
    order = mode_order((mode, mode) for _, mode in groups)
    for (phase, mode), metrics in sorted(groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]))):
        for metric, own in sorted(metrics.items()):
            mean = math.fsum(math.log(change.ratio) for change in own) / len(own)
            half = half_width([None if c.error is None else (c.error, c.df) for c in own])
            bounds = (None, None) if half is None else (math.exp(mean - half), math.exp(mean + half))
            found.append(ModeChange(phase, mode, metric, math.exp(mean), *bounds, len(own)))
    return found
