"""The report's data, read from a database: sweeps by hardware, changes, history."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from effbench.cell import Result, digest
from effbench.comparison.compare import CellSelection, Compared, compare_sweeps
from effbench.comparison.history import Filters, History
from effbench.comparison.history import read as read_history
from effbench.comparison.limits import read as read_limits
from effbench.config import DEFAULT_DB, quoted
from effbench.environments import (
    hardware_of,
    interpreter_of,
)
from effbench.errors import EffbenchError, NothingFoundError, UsageError
from effbench.labels import (
    LabelledRow,
    grouped,
    label_rows,
    short_label,
)
from effbench.printable import listed
from effbench.report.figures.base import Point, points_of
from effbench.report.tables import SpeedupTable, rows_of, speedup_table
from effbench.store.decisions import BaselineInfo
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo, recorded_here_first
from effbench.store.values import plain

#: Most omitted sweeps that are listed by name.
MOST_NAMES = 5
#: Most older sweeps that a site includes by default, and most of their planned cells together.
MOST_OLDER = 200
MOST_OLDER_CELLS = 20_000
#: Most results of the history per sweep of the report, so that it does not take longer the larger a
#: database grows.
MOST_RESULTS = 25_000


#: Columns of a sweep, an environment or a claim -> values.
Facts = Mapping[str, Any]
#: A row of the table `trial`: column -> value.
TrialRow = Mapping[str, Any]
#: Timer -> number of samples taken, and the stored samples in order as a float32 array.
Timers = Mapping[str, tuple[int, Any]]


class Trial(NamedTuple):
    row: TrialRow
    samples: Timers


class Command(NamedTuple):
    """The command that measures a cell again, or the reason for its absence."""

    text: str | None
    why_not: str | None


@dataclass(frozen=True)
class Changes:
    """Changes of a sweep since an earlier one.

    `previous`: the earlier sweep, if any. `compared`: the result of `compare_sweeps`, or None for
    the reason `why`. `command`: the command that compares the two sweeps. `is_baseline`: whether
    the earlier sweep is a baseline, of which no cell may be missing, as in a check.
    """

    previous: SweepInfo | None = None
    compared: Compared | None = None
    why: str = "There is no earlier sweep to compare with."
    command: str = ""
    is_baseline: bool = False


@dataclass
class DeviceSweep:
    """One sweep on one hardware, the subject of most pages.

    `unmeasured`: keys of planned cells without a result.
    `database`: holds the trials; None if there are none.
    """

    sweep: SweepInfo
    hardware: str
    rows: Sequence[Result]
    environments: Sequence[Facts]
    unmeasured: Sequence[str] = ()
    changes: Changes = field(default_factory=Changes)
    database: str | None = None
    # cell key -> overrides that reproduce it
    overrides: Mapping[str, list[str] | None] = field(default_factory=dict)
    # label on the x axis of figures, with or without `model.module.`; None: that of `axis_of`
    axis: str | None = None

    @cached_property
    def labelled(self) -> list[LabelledRow]:
        """The rows with distinguishing labels, in reading order."""
        return label_rows(self.rows)

    @cached_property
    def speedups(self) -> SpeedupTable:
        return speedup_table(self.labelled, "speedup", self.baseline_mode)

    @cached_property
    def points(self) -> list[Point]:
        """What figures are drawn from."""
        axis = None
        for label in self.numbers:
            if self.axis in (label, short_label(label)):
                axis = label
        return points_of(self.labelled, self.baseline_mode, axis)

    @cached_property
    def numbers(self) -> set[str]:
        """The labels with a number in a row: what figures can have on the x axis."""
        numbers = set()
        for row in self.labelled:
            numbers |= {label for label in row.labels if math.isfinite(row.number(label))}
        return numbers

    @property
    def baseline_mode(self) -> str:
        return self.sweep.baseline_mode

    @property
    def name(self) -> str:
        return self.sweep.name or self.sweep.id

    @cached_property
    def slug(self) -> str:
        """The name of its folder: unique, and safe even if the names of sweeps contain paths."""
        name = f"{self.hardware} {self.sweep.id}"
        readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
        unique = f"{self.hardware}\0{self.sweep.id}".encode("utf-8", "replace")
        return f"{readable}-{hashlib.sha256(unique).hexdigest()[:6]}".lstrip("-")

    def trials(self) -> Iterator[Trial]:
        """Yield the trials by cell key and environment; none without a database."""
        if self.database is None:
            return
        environments = [row["id"] for row in self.environments]
        with Store.open(self.database, mode="read") as store:
            for row, samples in store.trials_with_samples(self.sweep.id, environments):
                yield Trial(row, samples)

    def command(self, params: Facts, environment_id: str) -> Command:
        """Return the command that measures a cell again under its interpreter. Imported sweeps get
        no command: a reader who pastes it would run code that someone else chose."""
        if self.sweep.imported_at is not None:
            why = "the sweep was imported, so review the parameters below before you run the cell"
            return Command(None, why)
        words = self.overrides.get(digest(dict(params)))
        if words is None:
            return Command(None, "the sweep did not record the overrides of its cells")
        facts = (self.sweep.host.get("environments") or {}).get(environment_id) or {}
        interpreter = [f"{name}={quoted(facts[name])}" for name in facts.get("given", ())]
        return Command(shlex.join(["effbench", *words, *interpreter]), None)


@dataclass(frozen=True)
class OlderSweep:
    """A sweep that the overview does not show. `stamp`: changes if a trial or a result is added or
    derived anew."""

    info: SweepInfo
    stamp: str


@dataclass
class ReportData:
    """`device_sweeps`: in the order of the overview. `older`: sweeps that only have pages of their
    own, newest first; `load` reads one. `sweeps`: all, newest first. `axis`: of the figures, None
    for the default."""

    database: str
    device_sweeps: Sequence[DeviceSweep]
    sweeps: Sequence[SweepInfo] = ()
    claims: Sequence[Facts] = ()
    history: History | None = None
    older: Sequence[OlderSweep] = ()
    axis: str | None = None

    def set_axis(self, name: str) -> None:
        """Draw figures against the label with this name, with or without `model.module.`. Raises
        UsageError if no row has a number there."""
        self.axis = name
        labels: set[str] = set()
        for device_sweep in self.device_sweeps:
            device_sweep.axis = name
            labels |= device_sweep.numbers
        short = sorted({short_label(label) for label in labels})
        if name not in labels.union(short):
            raise UsageError(
                f"--axis={name} is not a swept number of these sweeps; choose {', '.join(short)}"
            )

    def load(self, info: SweepInfo) -> Iterator[DeviceSweep]:
        """Read an older sweep, and yield its device sweeps, without changes. Those of the overview
        are skipped: a sweep may be the newest on one of its machines only."""
        on_overview = {(known.sweep.id, known.hardware) for known in self.device_sweeps}
        with Store.open(self.database, mode="read") as store:
            device_sweeps = device_sweeps_of(store, info, self.database)
        for device_sweep in device_sweeps:
            if (info.id, device_sweep.hardware) not in on_overview:
                device_sweep.axis = self.axis
                yield device_sweep

    def omitted(self) -> str:
        """Return a sentence that lists omitted sweeps with results; empty if there are none."""
        shown = {known.sweep.id: known.sweep.name for known in self.device_sweeps}
        shown |= {sweep.info.id: sweep.info.name for sweep in self.older}
        names = []
        for info in self.sweeps:
            if info.trials and info.id not in shown:
                name = info.name
                # the name of a sweep on the page selects that one
                if name is None or name in shown.values():
                    name = info.id
                names.append(name)
        if not names:
            return ""
        which = f"{len(names)} other sweep{'s are' if len(names) > 1 else ' is'} not included"
        distinct = list(dict.fromkeys(names))  # all sweeps of the main branch may have one name
        return (
            f"{which}: {listed(distinct, MOST_NAMES)}. Select sweeps with --sweep NAME"
            " (repeatable)."
        )


# --- reading ---


def read(
    store: Store,
    database: str,
    references: Sequence[str] = (),
    *,
    whole: bool = True,
    baseline: str | None = None,
) -> ReportData:
    """Read the results of the referenced sweeps, by default of the newest of each hardware, and
    their changes; with `whole`, also history (with `references`, of their hardware), and without
    `references` which older sweeps the site includes. `baseline`: what to compare with, instead of
    the previous sweep."""
    infos = store.sweeps(brief=True)
    device_sweeps = chosen(store, infos, database, references)
    data = ReportData(database, device_sweeps)
    environments = store.environments()
    if whole:
        hardware = {device_sweep.hardware for device_sweep in device_sweeps}
        ids = [row["id"] for row in environments if hardware_of(row) in hardware]
        filters = Filters(
            environment_ids=ids if references else (),
            most=MOST_RESULTS * len(device_sweeps),
            everything=True,
        )
        data.history = read_history(store, filters=filters)
        data.sweeps = infos
        if not references:
            data.older = older(store, infos, device_sweeps)
    # refuses an unknown one
    baselines = []
    if baseline:
        baselines = store.baselines(baseline)
    for device_sweep in device_sweeps:
        device_sweep.changes = read_changes(store, device_sweep, environments, infos, baselines)
    return data


def chosen(
    store: Store, infos: Sequence[SweepInfo], database: str, references: Sequence[str]
) -> list[DeviceSweep]:
    """Return the device sweeps of the referenced sweeps, by default of the newest ones."""
    by_id = {info.id: info for info in infos}
    if not references:
        selected = []
        for sweep_id, hardware in newest(store, infos).items():
            for device_sweep in device_sweeps_of(store, by_id[sweep_id], database):
                if device_sweep.hardware in hardware:
                    selected.append(device_sweep)
        return selected
    wanted = dict.fromkeys(store.find_sweep(reference).id for reference in references)
    selected = []
    for sweep_id in wanted:
        device_sweeps = device_sweeps_of(store, by_id[sweep_id], database)
        if not device_sweeps:
            raise NothingFoundError(
                f"sweep {sweep_id} has no results yet; effbench ls --cells lists its planned cells"
            )
        selected += device_sweeps
    return selected


def newest(store: Store, infos: Sequence[SweepInfo]) -> dict[str, set[str]]:
    """Return sweep id -> the hardware on which it is the newest sweep with a trial; newest first.
    Imported sweeps count if no other ran there. Sweeps that only confirm another sweep are
    skipped."""
    seen: set[str] = set()
    newest_on = {}
    every = set(map(hardware_of, store.environments()))
    for info in recorded_here_first(infos):
        if seen == every:
            break
        if not _is_shown(info):
            continue
        new = set(store.hardware(info.id)) - seen
        if new:
            newest_on[info.id] = new
            seen |= new
    return newest_on


def _is_shown(info: SweepInfo) -> bool:
    """Return whether a sweep has a trial, and does not only confirm another sweep."""
    return info.trials > 0 and not (info.name or "").startswith(CONFIRMING)


def older(
    store: Store, infos: Sequence[SweepInfo], device_sweeps: Sequence[DeviceSweep]
) -> list[OlderSweep]:
    """Return the sweeps with a trial that the overview does not have, or has on one of their
    machines only; newest first, as many as the site includes."""
    on_overview: dict[str, set[str]] = {}
    for device_sweep in device_sweeps:
        on_overview.setdefault(device_sweep.sweep.id, set()).add(device_sweep.hardware)
    selected: list[OlderSweep] = []
    cells = 0
    for info in filter(_is_shown, infos):
        shown = on_overview.get(info.id, set())
        if shown and set(store.hardware(info.id)) == shown:
            continue
        recorded = store.recorded(info.id)
        cells += recorded.results
        if len(selected) == MOST_OLDER or cells > MOST_OLDER_CELLS:
            break
        facts = [dataclasses.asdict(info), dataclasses.asdict(recorded), sorted(shown)]
        selected.append(OlderSweep(info, digest(plain(facts))))
    return selected


def device_sweeps_of(store: Store, info: SweepInfo, database: str) -> list[DeviceSweep]:
    """Return one device sweep per hardware of the sweep."""
    rows = rows_of(store, info)
    known = store.environments(row.environment_id for row in rows)
    environments = {facts["id"]: facts for facts in known}
    overrides = store.cell_overrides(info.id)
    device_sweeps = []
    by_hardware = grouped(rows, lambda row: hardware_of(environments[row.environment_id]))
    for hardware, of_hardware in by_hardware.items():
        ids = dict.fromkeys(row.environment_id for row in of_hardware)
        device_sweep = DeviceSweep(
            sweep=info,
            hardware=hardware,
            rows=of_hardware,
            environments=[environments[key] for key in ids],
            unmeasured=unmeasured(store, info, of_hardware, environments),
            database=database,
            overrides=overrides,
        )
        device_sweeps.append(device_sweep)
    return device_sweeps


def unmeasured(
    store: Store,
    info: SweepInfo,
    rows: Sequence[Result],
    environments: Mapping[str, Facts],
) -> list[str]:
    """Return the keys of the planned cells that have no result, for each interpreter of these rows.
    Environments of one interpreter share the cells: nodes of a cluster, shards, or before and after
    an upgrade."""
    measured: dict[tuple[str | None, ...], set[str]] = {}
    for row in rows:
        interpreter = interpreter_of(environments[row.environment_id])
        measured.setdefault(interpreter, set()).add(row.cell_key)
    planned = [str(cell["key"]) for cell in store.planned_cells(info.id)]
    missing = []
    for keys in measured.values():
        missing += [key for key in planned if key not in keys]
    return missing


def read_changes(
    store: Store,
    after: DeviceSweep,
    environments: Sequence[Facts],
    infos: Sequence[SweepInfo],
    baselines: Sequence[BaselineInfo],
) -> Changes:
    """Compare a sweep with that of `baselines` on the same hardware. Without one there, and if the
    sweep is the baseline, compare with the newest earlier sweep that measured one of its cells
    there. `environments`: all. If the comparison fails, the changes hold the reason."""
    by_id = {info.id: info for info in infos}
    info = by_id[after.sweep.id]
    named = {baseline.hardware: baseline.sweep_id for baseline in baselines}
    before = by_id.get(named.get(after.hardware, ""))
    is_baseline = before is not None and before != info
    if not is_baseline:
        ids = [row["id"] for row in environments if hardware_of(row) == after.hardware]
        before = by_id.get(store.previous(info.id, ids) or "")
    if before is None:
        return Changes(why=f"No earlier sweep measured any of these cells on {after.hardware}.")
    words = [
        "effbench",
        "compare",
        before.id,
        info.id,
        "--on",
        after.hardware,
    ]
    if after.database is not None and after.database != DEFAULT_DB:
        words += ["--db", masked_url(after.database)]
    try:
        compared = compare_sweeps(
            store, before, info, read_limits(), CellSelection(on=after.hardware)
        )
    except EffbenchError as error:
        return Changes(before, None, str(error))
    return Changes(before, compared, "", shlex.join(words), is_baseline)
