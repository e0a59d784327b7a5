"""Print the plan of a sweep and an estimate of its duration, without running or recording anything
(`--dry-run`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from effbench.core.cell import Cell, Trial
from effbench.core.printable import count
from effbench.core.table import Column, Table
from effbench.run.estimate import Durations, duration_text
from effbench.run.interpreters import Facts
from effbench.run.plan import CellRun, Settings, SweepPlan, trials_left
from effbench.run.pool import Pools
from effbench.run.progress import work_text
from effbench.run.resume import check_same_sweep, recorded_trials
from effbench.run.schedule import RoundsNeeded
from effbench.run.sweep import Command, planned_slots
from effbench.store.connect import EmptyError, NoDatabaseError
from effbench.store.store import Store

FLAG = "--dry-run"
#: Batch sizes that a row lists before it counts them.
MOST_SIZES = 8
#: Settings of a protocol that do not change how long a trial takes.
NOT_OF_DURATION = {"name", "rounds", "compilations", "enough_interval"}


def print_plan(
    settings: Settings,
    pools: Pools,
    plan: SweepPlan,
    command: Command,
) -> None:
    """Print what `OpenSweep.run` would run. Raises EffbenchError for what it would refuse before
    the first trial."""
    progress = command.progress
    runs, cells = plan.distinct_runs(), plan.cells()
    slots = planned_slots(settings, pools, cells)
    history: dict[CellRun, list[Trial]] = {}
    durations = Durations()
    # a sweep would create a missing database
    with suppress(EmptyError, NoDatabaseError), Store.open(settings.db, mode="read") as store:
        if settings.resume:
            facts: dict[str, Facts] = {}
            if settings.executor.name == "local":
                for interpreter, pool in pools.items():
                    facts[pool.environment_id] = interpreter.facts()
            info = store.find_sweep(settings.resume)
            check_same_sweep(
                store,
                info,
                settings,
                plan,
                facts,
                progress,
            )
            history = recorded_trials(store, info.id, runs, pools)
        durations = durations_of_alike(store, settings, pools)
    left = trials_left(runs, settings, history)
    trials = RoundsNeeded(settings, runs, history).needed(left)
    names = [slot.name for slot in slots]
    progress.note(f"plan: {work_text(settings, runs, trials, names)}")
    if settings.exclude:
        progress.note(f"exclude removes {count(plan.excluded, 'cell')}")
    if not progress.quiet:
        progress.console.print_table(plan_table(cells))
    progress.note(duration_text(trials, settings, slots, durations))
    progress.note("dry run: nothing was run or recorded")


def durations_of_alike(store: Store, settings: Settings, pools: Pools) -> Durations:
    """Return the durations of earlier trials on such hardware, of sweeps whose protocol makes
    trials take as long."""
    environments = [pool.machine.environment for pool in pools.values()]
    here = {(environment.gpu_name, environment.cpu_name) for environment in environments}
    ids = []
    for environment in store.environments():
        if (environment.gpu_name, environment.cpu_name) in here:
            ids.append(environment.id)
    wanted = timing_settings(vars(settings.protocol))
    sweeps = [sweep.id for sweep in store.sweeps() if timing_settings(sweep.protocol) == wanted]
    return Durations.of(store.durations(sweeps, ids))


def timing_settings(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that determine how long a trial takes."""
    return {name: protocol[name] for name in protocol.keys() - NOT_OF_DURATION}


def plan_table(cells: Iterable[Cell]) -> Table:
    """Return a row for each mode of a model, with its batch sizes and its number of cells."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        sizes[cell.model_name, cell.mode_name].append(cell.bs)
    columns = [Column("model"), Column("mode"), Column("bs"), Column("cells", numeric=True)]
    lines = []
    for (model, mode), all_sizes in sizes.items():
        lines.append((model, mode, sizes_text(sorted(set(all_sizes))), len(all_sizes)))
    return Table.of(columns, lines)


def sizes_text(sizes: Sequence[int]) -> str:
    if len(sizes) <= MOST_SIZES:
        return ", ".join(map(str, sizes))
    return f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
