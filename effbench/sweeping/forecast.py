"""Print the plan of a sweep and an estimate of its duration, without running or recording anything
(`--dry-run`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from effbench.cell import Cell, Trial
from effbench.labels import mode_order
from effbench.printable import about, between, count
from effbench.store.connect import EmptyError, NoDatabaseError
from effbench.store.store import Store
from effbench.sweeping.bounds import Bounds, planned_bounds
from effbench.sweeping.devices import Slot, slots_of
from effbench.sweeping.durations import COLD, WARM, Durations, kinds
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, PlannedTrial, Settings, cells_of, trials_left
from effbench.sweeping.pool import Pools, gpus_of
from effbench.sweeping.record import recorded_trials
from effbench.sweeping.rounds import RoundsNeeded
from effbench.sweeping.run import Command, check_same_sweep
from effbench.table import Column, Table

FLAG = "--dry-run"
#: Batch sizes that a row lists before it counts them.
MOST_SIZES = 8
#: Settings of a protocol that do not change how long a trial takes.
NOT_OF_DURATION = ("name", "rounds", "compilations", "attempts", "enough_interval", "eliminate")


def print_plan(
    settings: Settings, pools: Pools, planned: Sequence[CellRun | None], command: Command
) -> None:
    """Print what `OpenSweep.run` would run. Raises EffbenchError for what it would refuse before
    the first trial."""
    progress, protocol = command.progress, settings.protocol
    runs = list(dict.fromkeys(run for run in planned if run is not None))
    cells = cells_of(runs)
    slots = planned_slots(settings, pools, cells)
    history: dict[CellRun, list[Trial]] = {}
    durations = Durations()
    # a sweep would create a missing database
    with suppress(EmptyError, NoDatabaseError), Store.open(settings.db, mode="read") as store:
        if settings.resume:
            ids = {interpreter: pool.environment.id for interpreter, pool in pools.items()}
            info = store.find_sweep(settings.resume)
            check_same_sweep(store, info, settings, command, cells, facts_here(settings, ids))
            history = recorded_trials(store, info.id, runs, ids)
        durations = durations_of_alike(store, settings, pools)
    left = trials_left(runs, settings, history)
    trials = RoundsNeeded(settings, history, list(pools)).needed(left)
    number = count(len(cells), "cell")
    rounds = f"{count(protocol.rounds, 'round')} ({protocol.name})"
    where = ", ".join(slot.name for slot in slots)
    progress.note(f"plan: {number} × {rounds} on {where}: {count(len(trials), 'trial')} to run")
    if settings.exclude:
        progress.note(f"exclude removes {count(len(command.excluded), 'cell')}")
    if settings.shard:
        others = count(len(command.matrix) - len(cells), "cell")
        progress.note(f"shard {settings.shard}: {others} in other shards")
    if not progress.quiet:
        progress.console.print_table(plan_table(cells))
    progress.note(estimate(trials, settings, slots, durations))
    progress.note("dry run: nothing was run or recorded")


def planned_slots(settings: Settings, pools: Pools, cells: Sequence[Cell]) -> list[Slot]:
    """Return the slots on which the sweep would run; one that stands for all of a cluster."""
    if settings.executor.name == "slurm":
        return [Slot("SLURM", "")]
    return slots_of(gpus_of(pools), cells, settings.executor)


def facts_here(settings: Settings, ids: Mapping[Interpreter, str]) -> dict[str, dict[str, Any]]:
    """Return the facts of the interpreters by environment; none if trials run elsewhere."""
    if settings.executor.name == "slurm":
        return {}
    return {environment_id: interpreter.facts() for interpreter, environment_id in ids.items()}


def durations_of_alike(store: Store, settings: Settings, pools: Pools) -> Durations:
    """Return the durations of earlier trials on such hardware, of sweeps whose protocol makes
    trials take as long."""
    environments = [pool.environment for pool in pools.values()]
    here = {(environment.gpu_name, environment.cpu_name) for environment in environments}
    ids = []
    for row in store.environments():
        if (row["gpu_name"], row["cpu_name"]) in here:
            ids.append(row["id"])
    wanted = lasts(vars(settings.protocol))
    sweeps = [sweep.id for sweep in store.sweeps() if lasts(sweep.protocol) == wanted]
    return known_durations(store.durations(sweeps, ids))


def plan_table(cells: Iterable[Cell]) -> Table:
    """Return a row for all modes of a model that have the same batch sizes and number of cells."""
    sizes: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for cell in cells:
        sizes[cell.model_name, cell.mode_name][cell.bs] += 1
    rows: dict[tuple[str, tuple[int, ...], int], list[str]] = defaultdict(list)
    for (model, mode), counts in sizes.items():
        rows[model, tuple(sorted(counts)), counts.total()].append(mode)
    lines = []
    for (model, bs, number), modes in rows.items():
        names = ", ".join(mode_order((mode, mode) for mode in modes))
        lines.append((model, sizes_text(bs), names, number * len(modes)))
    columns = [Column("model"), Column("bs"), Column("mode"), Column("cells", numeric=True)]
    return Table.of(columns, lines)


def sizes_text(sizes: Sequence[int]) -> str:
    if len(sizes) <= MOST_SIZES:
        return ", ".join(map(str, sizes))
    return f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"


def lasts(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that determine how long a trial takes."""
    return {name: value for name, value in protocol.items() if name not in NOT_OF_DURATION}


def known_durations(trials: Iterable[Sequence[Any]]) -> Durations:
    """Return the durations of (cell key, phase, model, mode, device, compile_cache, seconds)."""
    durations = Durations()
    for *facts, cache, seconds in trials:
        kind = COLD if cache == COLD else WARM
        durations.add_seconds(kinds(*facts), kind, seconds)
    return durations


def estimate(
    trials: Sequence[PlannedTrial],
    settings: Settings,
    slots: Sequence[Slot],
    durations: Durations,
) -> str:
    """Return a sentence on how long these trials take on the slots: from the medians of earlier
    trials and, for cells without any, from the protocol."""
    if not trials:
        return "duration: none, because all trials are recorded"
    devices = Counter(slot.device for slot in slots)
    total = Bounds()
    unknown = []
    for trial in trials:
        cell = trial.run.cell
        # the first trial of each compile cache
        is_cold = trial.round < settings.protocol.compilations
        expected_s = durations.expected_s(cell, is_cold)
        if expected_s is None:
            unknown.append(cell)
            bounds = planned_bounds(trial, settings)
        else:
            bounds = Bounds(expected_s, expected_s)
        total += bounds.divided(max(1, devices[cell.device]))
    if not unknown:
        return f"duration: {about(total.low_s)}, from the medians of earlier trials"
    text = f"duration: {between(total.low_s, total.high_s)}"
    if len(unknown) == len(trials):
        return (
            f"{text}, from the protocol and usual compile times: nothing like it has run here with"
            " this protocol"
        )
    cells = len(set(unknown))
    return (
        f"{text}, from the medians of earlier trials and, for {count(cells, 'cell')} without any,"
        " the protocol"
    )
