"""Compare two sweeps of a database, or two parts of one, cell by cell and metric by metric.

`matching.compared_cells` decides which cells are compared; `verdicts.judge` gives their verdicts.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from effbench.analysis import matching
from effbench.analysis.limits import Limits
from effbench.analysis.matching import BY_ENVIRONMENT, Side
from effbench.analysis.verdicts import Change, Verdict, judge
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import grouped, mode_order
from effbench.stats.intervals import (
    mean_of_estimates,
    mean_of_related_estimates,
)
from effbench.store.decisions import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: Ratio of two sweeps' fixed host work from which they ran at different speeds of the host.
OTHER_SPEED = 1.1


@dataclass(frozen=True)
class ModeChange:
    """The change of a mode: geometric mean of after ÷ before over the `cells`, of all `of`, with
    figures on both sides, with its 95 % bounds (None if a cell has no interval)."""

    phase: str
    mode: str
    metric: str
    ratio: float
    low: float | None
    high: float | None
    cells: int
    of: int


@dataclass
class Compared:
    """A comparison. `differences`: in software, flags and protocol, as text; `changes`: the most
    important first. `interrupted`: why the re-run of a check ended early, None if it did not."""

    before: Side
    after: Side
    differences: list[str]
    changes: list[Change]
    modes: list[ModeChange]
    limits: Limits
    interleaved: bool = False
    notes: list[str] = field(default_factory=list)
    interrupted: str | None = None

    @property
    def passed(self) -> bool:
        """Whether a check passes."""
        return bool(self.judged) and not self.failing and not self.interrupted

    @property
    def failing(self) -> list[Change]:
        """The rows that make a check fail, the most important first."""
        return [change for change in self.changes if change.gates]

    @property
    def counts(self) -> Counter[Verdict]:
        """Verdict -> number of rows, the most important first."""
        return Counter(change.verdict for change in self.changes)

    @property
    def cells(self) -> set[str]:
        """The keys of the cells."""
        return {change.key for change in self.changes}

    @property
    def measured(self) -> set[str]:
        """The keys of the cells that have a figure on both sides."""
        return {change.key for change in self.changes if change.has_both}

    @property
    def unjudged(self) -> dict[str, Change]:
        """The key of each cell that has no verdict on a time because a side is marked -> its first
        such row."""
        rows: dict[str, Change] = {}
        for change in self.changes:
            if change.is_unjudged and not change.ignored:
                rows.setdefault(change.key, change)
        return rows

    @property
    def judged(self) -> set[str]:
        """The keys of the cells that have figures on both sides, none of which is marked."""
        return self.measured - self.unjudged.keys()


def compare_sweeps(
    store: Store,
    before: SweepInfo,
    after: SweepInfo,
    limits: Limits,
    across: Sequence[str] = (),
    on: str | None = None,
) -> Compared:
    """Compare two sweeps. `across`: what may differ, of ACROSS; `on`: name of the hardware or
    interpreter, or part of it. Raises NothingFoundError if nothing can be compared, UsageError if
    the sides are ambiguous."""
    if before.id == after.id:
        raise UsageError(
            f"both sides are sweep {before.id}; run a new sweep first, or name two different ones"
        )
    whole = [matching.load(store, info) for info in (before, after)]
    old, new = matching.chosen_on(whole, on)
    compared = compare_sides(old, new, limits, across)
    compared.notes += [unfinished(side) for side in (old, new) if side.sweep.state != "completed"]
    speed = other_host_speed(old, new)
    if speed is not None:
        compared.notes.append(speed)
    return compared


def compare_parts(
    store: Store,
    sweep: SweepInfo,
    by: str,
    limits: Limits,
    values: Sequence[str] = (),
    on: str | None = None,
) -> Compared:
    """Compare the cells of one sweep that have one value of `by` with those that have another.
    `by`: one of BY_ENVIRONMENT, or a parameter such as `dtype`; `values`: the two values. Raises
    like `compare_sweeps`."""
    (whole,) = matching.chosen_on([matching.load(store, sweep)], on)
    parts = matching.split(whole, by)
    names = [matching.part_named(value, parts, by) for value in values] or list(parts)
    if len(names) != 2 or len(parts.keys() & {*names}) != 2:
        raise UsageError(
            f"{whole.title} has {by}={', '.join(parts)}; choose two of them with --values BEFORE"
            " AFTER, or compare two sweeps"
        )
    before, after = names
    old = replace(parts[before], title=f"{by}={before}")
    new = replace(parts[after], title=f"{by}={after}")
    across = []
    if by == "gpu_name":
        across.append("hardware")
    compared = compare_sides(old, new, limits, across, by)
    if by == "mode":
        compared.modes = [replace(line, mode=f"{before} → {after}") for line in compared.modes]
    if sweep.state != "completed":
        compared.notes.append(unfinished(whole))
    if by not in BY_ENVIRONMENT:
        omit_one_sided(compared)
    return compared


def omit_one_sided(compared: Compared) -> None:
    """Omit the metrics that only one side has: the work itself differs, so they do not apply (eager
    compiles nothing)."""
    one_sided = [change for change in compared.changes if change.is_one_sided]
    compared.changes = [change for change in compared.changes if not change.is_one_sided]
    if one_sided:
        metrics = ", ".join(dict.fromkeys(change.metric for change in one_sided))
        compared.notes.append(f"not compared, because only one side has them: {metrics}")


def compare_sides(
    old: Side,
    new: Side,
    limits: Limits,
    across: Sequence[str],
    by: str | None = None,
) -> Compared:
    """Compare two sides. `by`: the parameter in which the parts of one sweep differ, which were
    measured in the same rounds. Raises like `compare_sweeps`."""
    old, new = matching.at_one_place(old, new, across)
    interleaved = by is not None
    changes = judge(matching.compared_cells(old, new, across, by), limits, interleaved)
    return Compared(
        before=old,
        after=new,
        differences=matching.differences(old, new, across),
        changes=changes,
        modes=mode_changes(changes, old, new),
        limits=limits,
        interleaved=interleaved,
    )


def find(store: Store, reference: str, on: str | None = None) -> SweepInfo:
    """Return the sweep of the baseline with this name, of several of them that on the hardware that
    `on` selects; else the sweep with this id, name or label."""
    named = [baseline for baseline in store.baselines() if baseline.name == reference]
    if named:
        reference = one_baseline(named, on).sweep_id
    return store.find_sweep(reference)


def one_baseline(
    known: Sequence[BaselineInfo], on: str | None, hardware: Sequence[str] = ()
) -> BaselineInfo:
    """Return which of these baselines with one name is set on the `hardware` (empty: any) that `on`
    selects. Raises NothingFoundError if none is, UsageError if several are."""
    name = known[0].name
    places = [baseline.hardware for baseline in known]
    wanted = hardware
    if on is not None:
        # match all known hardware, so that L4 never selects an L40S; `on` may also name an
        # interpreter
        asked = matching.names_matching(on, [*hardware, *places])
        wanted = [place for place in asked if place in hardware] or asked or hardware
    fitting = [baseline for baseline in known if not wanted or baseline.hardware in wanted]
    if not fitting:
        raise NothingFoundError(
            f"baseline {name!r} is set on {', '.join(places)}, not on {', '.join(wanted)};"
            f" effbench baseline set {name} SWEEP sets another"
        )
    if len(fitting) > 1:
        raise UsageError(f"baseline {name!r} is set on {', '.join(places)}; choose one with --on")
    return fitting[0]


def other_host_speed(before: Side, after: Side) -> str | None:
    """Return that the host was faster or slower in one of the sweeps, as another machine with the
    same GPU is; None if its speed was about the same, or is unknown."""
    old_ms = host_ms(before)
    new_ms = host_ms(after)
    if old_ms is None or new_ms is None or 1 / OTHER_SPEED <= new_ms / old_ms <= OTHER_SPEED:
        return None
    return (
        f"the host's speed differs: fixed work took {1000 * old_ms:.3g} µs, and now"
        f" {1000 * new_ms:.3g} µs ({new_ms / old_ms:.2f}×); launch-bound times follow it,"
        " gpu_busy_ms does not"
    )


def host_ms(side: Side) -> float | None:
    """Return the time of the fixed host work in ms in a sweep's quieter moments: the median over
    its trials; None if no trial has measured it."""
    times = []
    for result in side.results.values():
        times += [trial.host_ms for trial in result.counted.measured if trial.host_ms]
    return statistics.median(times) if times else None


def unfinished(side: Side) -> str:
    return (
        f"{side.title} is {side.sweep.state}, not completed: only its measured cells are compared"
    )


def mode_changes(changes: Sequence[Change], old: Side, new: Side) -> list[ModeChange]:
    """Return a change for each phase and mode in latency and period, if a cell has figures on both
    sides."""
    mean_of = mean_of_estimates
    if old.sweep.joined or new.sweep.joined:
        mean_of = mean_of_related_estimates  # the cells share the errors of the hosts
    cells = new.cells | old.cells

    def group(change: Change) -> tuple[str, str]:
        cell = cells[change.key]
        return cell.phase, cell.mode_name

    groups = grouped(changes, group)
    order = mode_order((mode, mode) for _, mode in groups)
    lines = []
    for phase, mode in sorted(groups, key=lambda group: (group[0], order.index(group[1]))):
        rows = groups[phase, mode]
        for metric in ("latency_ms", "period_ms"):
            ratios = [
                row.test.difference
                for row in rows
                if row.metric == metric and row.test is not None  # marked rows have no test
            ]
            if not ratios:
                continue
            whole = mean_of(ratios).interval()
            lines.append(
                ModeChange(
                    phase,
                    mode,
                    metric,
                    whole.value,
                    whole.low,
                    whole.high,
                    cells=len(ratios),
                    of=len({row.key for row in rows}),
                )
            )
    return lines
