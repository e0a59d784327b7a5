"""Print the plan of a sweep and an estimate of its duration, without running or recording anything
(`--dry-run`)."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import product
from typing import Any

from effbench.cell import Cell, Trial
from effbench.labels import mode_order
from effbench.printable import about, between, count
from effbench.store.connect import EmptyError, NoDatabaseError
from effbench.store.store import Store
from effbench.sweeping import resume
from effbench.sweeping.bounds import Bounds, total_bounds
from effbench.sweeping.devices import Slot, slots_of
from effbench.sweeping.plan import CellRun, PlannedTrial, Settings, cells_of, trials_left
from effbench.sweeping.run import Asked, Command, Plan, open_pools, recorded_trials
from effbench.sweeping.schedule import Schedule
from effbench.table import Column, Table

FLAG = "--dry-run"
#: Batch sizes that a row lists before it counts them.
MOST_SIZES = 8
#: Settings of a protocol that do not change how long a trial takes.
NOT_OF_DURATION = ("name", "rounds", "compilations", "attempts", "enough_interval", "eliminate")
#: Kind of cell, and whether it compiled with an empty cache -> median seconds of its earlier
#: trials.
Medians = Mapping[tuple[tuple[str, ...], bool], float]


def print_plan(settings: Settings, asked: Asked, plan: Plan, command: Command) -> None:
    """Print what `run_sweep` would run. Raises EffbenchError for what it would refuse before the
    first trial."""
    progress = command.progress
    with ExitStack() as stack:
        pools = stack.enter_context(open_pools(asked, settings, command))
        runs = list(dict.fromkeys(filter(None, plan(pools))))
        store = None
        with suppress(EmptyError, NoDatabaseError):  # a sweep would create it
            store = stack.enter_context(Store.open(settings.db, mode="read"))
        cells = cells_of(runs)
        is_local = settings.executor["name"] == "local"
        gpus = max((pool.gpus for pool in pools.values()), key=len)
        slots = slots_of(gpus, cells, settings.executor) if is_local else [Slot("SLURM", "")]
        history: dict[CellRun, list[Trial]] = {}
        medians: Medians = {}
        if store and settings.resume:
            info = store.find_sweep(settings.resume)
            resume.check_same_plan(info, store.planned(info.id), cells, command.matrix, settings)
            ids = {interpreter: pool.environment.id for interpreter, pool in pools.items()}
            if is_local:
                resume.check_same_interpreters(info, ids.keys())
                facts = {
                    environment_id: interpreter.facts()
                    for interpreter, environment_id in ids.items()
                }
                for change in resume.changes(info, facts):
                    progress.note(change)
            history = recorded_trials(store, info.id, cells, ids)
        if store:
            here = {
                (pool.environment.gpu_name, pool.environment.cpu_name) for pool in pools.values()
            }
            ids = [
                row["id"]
                for row in store.environments()
                if (row["gpu_name"], row["cpu_name"]) in here
            ]
            alike = [
                sweep.id
                for sweep in store.sweeps()
                if lasts(sweep.protocol) == lasts(settings.protocol)
            ]
            medians = by_kind(store.durations(alike, ids))
        protocol = settings.protocol
        trials = trials_left(runs, protocol["rounds"], settings.sweep["seed"], history)
        trials = Schedule(
            pools, slots, settings, lambda *_: None, progress, history=history
        ).needed(trials)
    removed, others = len(command.excluded), len(command.matrix) - len(cells)
    where = ", ".join(slot.name for slot in slots)
    progress.note(
        f"plan: {count(len(cells), 'cell')} ×"
        f" {count(protocol['rounds'], 'round')} ({protocol['name']}) on {where}:"
        f" {count(len(trials), 'trial')} to run"
    )
    if settings.exclude:
        progress.note(f"exclude removes {count(removed, 'cell')}")
    if settings.shard:
        progress.note(f"shard {settings.shard}: {count(others, 'cell')} in other shards")
    if not progress.quiet:
        progress.console.print_table(plan_table(cells))
    progress.note(estimate(trials, settings, slots, medians))
    progress.note("dry run: nothing was run or recorded")


def plan_table(cells: Iterable[Cell]) -> Table:
    """Return a row for all modes of a model that have the same batch sizes and number of cells."""
    sizes: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for cell in cells:
        sizes[cell.model_name, cell.mode_name][cell.bs] += 1
    rows: dict[tuple[str, tuple[int, ...], int], list[str]] = defaultdict(list)
    for (model, mode), counts in sizes.items():
        rows[model, tuple(sorted(counts)), counts.total()].append(mode)
    columns = [Column("model"), Column("bs"), Column("mode"), Column("cells", numeric=True)]
    return Table.of(
        columns,
        [
            (
                model,
                sizes_text(bs),
                ", ".join(mode_order((mode, mode) for mode in modes)),
                number * len(modes),
            )
            for (model, bs, number), modes in rows.items()
        ],
    )


def sizes_text(sizes: Sequence[int]) -> str:
    if len(sizes) <= MOST_SIZES:
        return ", ".join(map(str, sizes))
    return f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"


def lasts(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that determine how long a trial takes."""
    return {name: value for name, value in protocol.items() if name not in NOT_OF_DURATION}


def by_kind(trials: Iterable[Sequence[Any]]) -> Medians:
    """Return the median durations of (cell key, phase, model, mode, device, compile_cache, seconds)
    by cell, by model and mode, and by mode."""
    found: dict[tuple[tuple[str, ...], bool], list[float]] = defaultdict(list)
    for key, phase, model, mode, device, cache, seconds in trials:
        for kind in ((key,), (device, phase, model, mode), (device, phase, mode)):
            found[kind, cache == "cold"].append(seconds)
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}


def known_seconds(trial: PlannedTrial, compilations: int, medians: Medians) -> float | None:
    """Return the median seconds of the earlier trials that are most similar to this one; None
    without any."""
    cell = trial.run.cell
    of_phase = (cell.device, cell.phase)  # a training step is longer than a call
    kinds = ((cell.key,), (*of_phase, cell.model_name, cell.mode_name), (*of_phase, cell.mode_name))
    is_cold = trial.round < compilations  # the first trial of each compile cache
    for kind, is_like_it in product(kinds, (is_cold, not is_cold)):
        if (kind, is_like_it) in medians:
            return medians[kind, is_like_it]
    return None


def estimate(
    trials: Sequence[PlannedTrial], settings: Settings, slots: Sequence[Slot], medians: Medians
) -> str:
    """Return a sentence on how long these trials take on the slots: from the medians of earlier
    trials and, for cells without any, from the protocol."""
    if not trials:
        return "duration: none, because all trials are recorded"
    seconds: Counter[str] = Counter()
    unknown: list[PlannedTrial] = []
    for trial in trials:
        known_s = known_seconds(trial, settings.protocol["compilations"], medians)
        if known_s is None:
            unknown.append(trial)
        else:
            seconds[trial.run.cell.device] += known_s
    slots_of_device = Counter(slot.device for slot in slots)
    total = Bounds()
    for device, value in seconds.items():
        total += Bounds(value, value).divided(max(1, slots_of_device[device]))
    for device, bounds in total_bounds(unknown, settings).items():
        total += bounds.divided(max(1, slots_of_device[device]))
    if not unknown:
        return f"duration: {about(total.low_s)}, from the medians of earlier trials"
    text = f"duration: {between(total.low_s, total.high_s)}"
    if not seconds:
        return (
            f"{text}, from the protocol and usual compile times: nothing like it has run here with"
            " this protocol"
        )
    cells = len({trial.run.cell for trial in unknown})
    return (
        f"{text}, from the medians of earlier trials and, for {count(cells, 'cell')} without any,"
        " the protocol"
    )
