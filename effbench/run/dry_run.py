"""Print the plan of a sweep and the bounds of its duration, without running or recording anything
(`--dry-run`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from effbench.core.cell import COLDSTART, Cell, Trial
from effbench.core.printable import between, count, listed
from effbench.core.table import Column, Table
from effbench.run.devices import Slot, device_count
from effbench.run.plan import CellRun, Settings, SweepPlan
from effbench.run.pool import Servers, environment_ids
from effbench.run.progress import work_text
from effbench.run.resume import facts_here, recorded_trials, same_sweep
from effbench.run.schedule import RoundsNeeded, TrialGroup
from effbench.run.sweep import Command, planned_slots
from effbench.store.store import Store

#: Batch sizes that a row lists before it counts them.
MOST_SIZES = 8
#: Likely seconds, besides warm-up and timing, to start a process, build the model and compare it.
LEAST_OVERHEAD_S, MOST_OVERHEAD_S = 0.3, 5.0
#: Most seconds that modes usually take to compile.
COMPILE_S = 60.0


def print_plan(
    settings: Settings,
    servers: Servers,
    plan: SweepPlan,
    command: Command,
) -> None:
    """Print what `OpenSweep.run` would run. Raises EffbenchError for what it would refuse before
    the first trial."""
    progress = command.progress
    runs, cells = plan.distinct_runs(), plan.cells()
    slots = planned_slots(settings, servers, cells)
    history: dict[CellRun, list[Trial]] = {}
    if settings.resume:
        facts = facts_here(settings, servers)
        with Store.open(settings.db, mode="read") as store:
            info = same_sweep(store, settings, plan, facts, progress)
            history = recorded_trials(store, info.id, environment_ids(servers), runs)
    groups = RoundsNeeded(settings, runs, history).groups()
    names = [slot.name for slot in slots]
    progress.note(f"plan: {work_text(settings, runs, groups, names)}")
    if settings.exclude:
        progress.note(f"exclude removes {count(plan.excluded, 'cell')}")
    if not progress.quiet:
        plan_table(cells).print(progress.console)
    if groups:
        progress.note(duration_text(groups, settings, slots))
    progress.note("dry run: nothing was run or recorded")


def plan_table(cells: Iterable[Cell]) -> Table:
    """Return a row for each mode of a model, with its batch sizes and its number of cells."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for cell in cells:
        sizes[cell.model_name, cell.mode_name].append(cell.bs)
    columns = [Column("model"), Column("mode"), Column("bs"), Column("cells", numeric=True)]
    lines = []
    for (model, mode), all_sizes in sizes.items():
        names = [str(size) for size in sorted(set(all_sizes))]
        lines.append((model, mode, listed(names, MOST_SIZES), len(all_sizes)))
    return Table.of(columns, lines)


# --- duration ---


def duration_text(
    groups: Iterable[TrialGroup],
    settings: Settings,
    slots: Iterable[Slot],
) -> str:
    """Return the bounds of how long these trials take on the slots."""
    protocol = settings.protocol
    shortest_s = LEAST_OVERHEAD_S + protocol.warmup_s + min(protocol.min_time_s, protocol.budget_s)
    longest_s = MOST_OVERHEAD_S + protocol.budget_s + protocol.load_s
    longest_s += max(protocol.warmup_s, protocol.max_warmup_s)
    devices = Counter(slot.device for slot in slots)
    low_s = high_s = 0.0
    for group in groups:
        for run in group.runs:
            trial_s = longest_s
            if "modes.eager." not in run.cell.mode.get("_target_", ""):
                trial_s += COMPILE_S
            if run.cell.phase == COLDSTART:  # another process fills the cache
                trial_s *= 2
            parallel = max(1, devices[run.cell.device] // device_count(run.cell))
            high_s += min(trial_s, settings.timeout_s) / parallel
            may_be_dropped = group.round > 0 and protocol.enough_interval
            if not may_be_dropped:
                low_s += min(shortest_s, settings.timeout_s) / parallel
    return f"duration: {between(low_s, high_s)}, from the protocol and usual compile times"
