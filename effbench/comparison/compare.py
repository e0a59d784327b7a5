"""Compare two sweeps of a database, or two parts of one, cell by cell and metric by metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from effbench.comparison import sides
from effbench.comparison.limits import Limits
from effbench.comparison.sides import BY_ENVIRONMENT, Side
from effbench.comparison.verdicts import (
    NOT_BEFORE,
    NOT_NOW,
    Change,
    Pair,
    Thresholds,
    judge,
    ordered,
)
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import grouped, mode_order
from effbench.metrics import METRICS
from effbench.stats.intervals import (
    LogEstimate,
    mean_of_estimates,
    mean_of_related_estimates,
)
from effbench.stats.significance import noise_threshold
from effbench.store.decisions import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo


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


#: Ratio of two sweeps' fixed host work from which they ran at different speeds of the host.
OTHER_SPEED = 1.1


@dataclass
class Compared:
    """A comparison. `differences`: in software, flags and protocol, as text; `changes`: the most
    important first. `unchecked`: hardware and interpreters of the later sweep that a check did not
    compare; `interrupted`: why the re-run of a check ended early, None if it did not."""

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
    def measured(self) -> set[str]:
        """The keys of the cells that have a figure on both sides."""
        return {change.key for change in self.changes if None not in (change.before, change.after)}

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


@dataclass
class Confirmation:
    """A re-run: its sweep (None: nothing ran), the keys of the cells that failed in it and of those
    that it confirmed, and in what its two sides differ (None: only the new side ran)."""

    sweep_id: str | None = None
    failed: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    by: str | None = None


def compare_sweeps(
    store: Store,
    before: SweepInfo,
    after: SweepInfo,
    limits: Limits,
    across: Collection[str] = (),
    on: str | None = None,
    only: Callable[[Pair], bool] | None = None,
) -> Compared:
    """Compare two sweeps. `on`: name of the hardware or interpreter, or part of it; `only`: which
    cells are reported. Raises NothingFoundError if nothing can be compared, UsageError if the sides
    are ambiguous."""
    if before.id == after.id:
        raise UsageError(
            f"both sides are sweep {before.id}; run a new sweep first, or name two different ones"
        )
    old, new = sides.on_one_machine(
        *sides.chosen_on([sides.load(store, info) for info in (before, after)], on), across
    )
    thresholds = noise_thresholds(store, before, after, (old, new), limits.metrics)
    compared = finish(old, new, limits, across, thresholds, only=only)
    compared.notes += [unfinished(side) for side in (old, new) if side.state != "completed"]
    host_note = other_host_speed(store, before, after)
    if host_note is not None:
        compared.notes.append(host_note)
        compared.changes = ordered(compared.changes, first="gpu_busy_ms")
    results = list(
        filter(None, (old.result(key) for key in {change.key for change in compared.changes}))
    )
    # marked cells have rows of their own
    disturbed = sum(
        (result.disturbed or 0.0) > 0.5 for result in results if result.disturbance is None
    )
    if disturbed:
        compared.notes.append(
            f"{old.title}: the host was mostly disturbed in {disturbed} of {len(results)} cells"
        )
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
    """Compare the cells of one sweep that have one value of `by` with those that have another.
    `by`: one of BY_ENVIRONMENT, or a parameter such as `dtype`; `values`: the two values. Raises
    like `compare_sweeps`."""
    # modes and models differ in more than their names
    by = {"mode.name": "mode", "model.name": "model"}.get(by, by)
    (whole,) = sides.chosen_on([sides.load(store, sweep)], on)
    by = sides.full_name(whole.cells, by)
    parts = sides.split(whole, by)
    names = [sides.part_named(value, parts, by) or value for value in values]
    old_name, new_name = two_of(by, list(parts), names, whole.title)
    old, new = (
        replace(parts[old_name], title=f"{by}={old_name}"),
        replace(parts[new_name], title=f"{by}={new_name}"),
    )
    across = ("hardware",) if by == "gpu_name" else ()
    # both ran in the same rounds
    compared = finish(old, new, limits, across, interleaved=True, only=only, by=by)
    if by == "mode":
        compared.modes = [replace(line, mode=f"{old_name} → {new_name}") for line in compared.modes]
    compared.notes += [unfinished(whole)] if whole.state != "completed" else []
    if others := [name for name in parts if name not in (old_name, new_name)]:
        compared.notes.append(f"not compared: {by}={', '.join(others)}")
    if by not in BY_ENVIRONMENT:
        # the work itself differs, so metrics that one side lacks do not apply (eager compiles
        # nothing)
        one_sided = {
            change.metric: None
            for change in compared.changes
            if change.reason in (NOT_BEFORE, NOT_NOW)
        }
        compared.changes = [
            change for change in compared.changes if change.reason not in (NOT_BEFORE, NOT_NOW)
        ]
        if one_sided:
            compared.notes.append(
                f"not compared, because only one side has them: {', '.join(one_sided)}"
            )
        known = sides.parameter_names(whole.cells, by)
        if lacking := [
            name for key, name in sides.names_of(whole.cells).items() if key not in known
        ]:
            compared.notes.append(f"omitted, because they have no {by}: {', '.join(lacking)}")
    return compared


def find(
    store: Store, reference: str, on: str | None = None, other: str | None = None
) -> SweepInfo:
    """Return the sweep of the baseline with this name, else the sweep with this id, name or label.

    `other`: the reference that it is compared with, whose hardware selects one of several baselines
    with a name, as in a check."""
    known = store.baselines()
    named = [baseline for baseline in known if baseline.name == reference]
    hardware: set[str] = set()
    if len(named) > 1 and on is None and other is not None:
        of_other = [baseline.hardware for baseline in known if baseline.name == other]
        hardware = {*(of_other or store.hardware(store.find_sweep(other).id))} & {
            it.hardware for it in named
        }
    return store.find_sweep(
        one_baseline(named, on, sorted(hardware)).sweep_id if named else reference
    )


def one_baseline(
    known: Sequence[BaselineInfo], on: str | None, hardware: Collection[str] = ()
) -> BaselineInfo:
    """Return which of these baselines with one name is set on the `hardware` (empty: any) that `on`
    selects. Raises NothingFoundError if none is, UsageError if several are."""
    name = known[0].name
    # match all known hardware, so that L4 never selects an L40S; `on` may also name an interpreter
    asked = (
        sides.matching(on, [*hardware, *(baseline.hardware for baseline in known)])
        if on is not None
        else []
    )
    fitting = [
        baseline for baseline in known if baseline.hardware in (hardware or [baseline.hardware])
    ]
    fitting = [
        baseline for baseline in fitting if baseline.hardware in (asked or [baseline.hardware])
    ]
    places = ", ".join(baseline.hardware for baseline in fitting or known)
    another = f"effbench baseline set {name} SWEEP sets another"
    if hardware and asked and not {*asked} & {*hardware}:
        ran = f"the sweep ran on {', '.join(hardware)}, not on {', '.join(asked)}"
        raise NothingFoundError(f"{ran}; choose another with --sweep or --on")
    if not fitting:
        raise NothingFoundError(
            f"baseline {name!r} is set on {places}, not on {', '.join(asked or hardware)};"
            f" {another}"
        )
    if len(fitting) > 1:
        raise UsageError(f"baseline {name!r} is set on {places}; choose one with --on")
    if fitting[0].started_at is None:
        deleted = f"{fitting[0].sweep_id}, which is not in this database any more"
        raise NothingFoundError(f"baseline {name!r} is sweep {deleted}; {another}")
    return fitting[0]


def finish(
    old: Side,
    new: Side,
    limits: Limits,
    across: Collection[str] = (),
    thresholds: Thresholds | None = None,
    interleaved: bool = False,
    only: Callable[[Pair], bool] | None = None,
    by: str | None = None,
) -> Compared:
    """Return the comparison of two sides; `by`: the parameter in which they differ. Raises like
    `compare_sweeps`."""
    old, new = sides.on_one_machine(old, new, across)
    pairs = sides.pairs_of(old, new, across, by)
    wanted = {pair.key for pair in pairs if only is None or only(pair)}
    if not wanted:
        raise NothingFoundError(
            f"no cell of {old.title} or {new.title} is selected; effbench ls --cells lists them"
        )
    # test all cells: the correction for many tests must not depend on which cells are reported
    changes = [
        change for change in judge(pairs, limits, thresholds, interleaved) if change.key in wanted
    ]
    hardware = pairs[0].about["hardware"]
    is_joined = any("joined" in side.host for side in (old, new))
    mean_of = mean_of_related_estimates if is_joined else mean_of_estimates
    modes = mode_changes(changes, limits, mean_of)
    compared = Compared(
        old, new, hardware, sides.differences(old, new, across), changes, modes, limits, interleaved
    )
    compared.notes += [
        f"exception for {rule} ended on {rule.until}: {rule.reason}" for rule in limits.expired
    ]
    unused = [rule for rule in limits.exceptions if not rule.used]
    compared.notes += [
        f"exception for {rule} matches no cell here: {rule.reason}" for rule in unused
    ]
    return compared


def noise_thresholds(
    store: Store,
    before: SweepInfo,
    after: SweepInfo,
    both: tuple[Side, Side],
    metrics: Collection[str],
) -> Thresholds:
    """Return (cell key, metric) -> noise threshold, where known, from earlier sweeps with the name
    of `before` in the environments of both sides. If both sides ran on one host, use only sweeps of
    this host if they are enough."""
    environments = dict.fromkeys(key for side in both for key in side.environments)
    ratios = [name for name in metrics if METRICS[name].compare == "ratio"]
    old, new = (side.host.get("hostname") for side in both)
    found: dict[tuple[str, str], float] = {}
    for host in (old, None) if old is not None and old == new else (None,):
        for key, levels in store.levels(
            before.id, environments, after.started_at, ratios, host
        ).items():
            if key not in found and (threshold := noise_threshold(levels.values())) is not None:
                found[key] = threshold
    return found


def other_host_speed(store: Store, before: SweepInfo, after: SweepInfo) -> str | None:
    """Return that the host was faster or slower in one of the sweeps, as another machine with the
    same GPU is; None if its speed was about the same, or is unknown."""
    old_ms, new_ms = (store.host_ms(sweep.id) for sweep in (before, after))
    if old_ms is None or new_ms is None or 1 / OTHER_SPEED <= new_ms / old_ms <= OTHER_SPEED:
        return None
    return (
        f"the host's speed differs: fixed work took {1000 * old_ms:.3g} µs, and now"
        f" {1000 * new_ms:.3g} µs ({new_ms / old_ms:.2f}×); launch-bound times follow it,"
        " gpu_busy_ms does not"
    )


def unfinished(side: Side) -> str:
    return f"{side.title} is {side.state}, not completed: only its measured cells are compared"


def two_of(by: str, known: list[str], values: Sequence[str], title: str) -> tuple[str, str]:
    """Return the values to compare. Raises UsageError that lists the known ones."""
    if len(known) < 2:
        raise UsageError(
            f"{title} has only {by}={', '.join(known)}: sweep two values, or compare two sweeps"
        )
    fitting = [
        [name for name in known if name == value] or [n for n in known if value in n]
        for value in values
    ]
    chosen = list(dict.fromkeys(name for names in fitting for name in names)) if values else known
    if len(chosen) != 2 or any(len(names) != 1 for names in fitting):
        raise UsageError(
            f"{title} has {by}={', '.join(known)}; choose two of them with --values BEFORE AFTER"
        )
    return chosen[0], chosen[1]


def mode_changes(
    changes: Sequence[Change],
    limits: Limits,
    mean_of: Callable[[Sequence[LogEstimate]], LogEstimate] = mean_of_estimates,
) -> list[ModeChange]:
    """Return a change for each phase and mode in latency and period, if these are compared and a
    cell has figures on both sides. `mean_of`: averages over cells."""
    timed = [name for name in ("latency_ms", "period_ms") if name in limits.metrics]
    groups = grouped(changes, lambda change: (change.about["phase"], change.about["mode"]))
    order = mode_order((mode, mode) for _, mode in groups)
    found = []
    for (phase, mode), rows in sorted(
        groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]))
    ):
        cells = len({row.key for row in rows})
        for metric in timed:
            # marked rows have no test
            known = [row for row in rows if row.metric == metric and row.test is not None]
            rated = [row for row in known if row.ratio and math.isfinite(row.ratio)]
            if rated:
                means = [
                    LogEstimate(math.log(row.ratio), row.test.error, row.test.df) for row in rated
                ]
                mean = mean_of(means).interval()
                found.append(
                    ModeChange(
                        phase, mode, metric, mean.value, mean.low, mean.high, len(rated), cells
                    )
                )
    return found
