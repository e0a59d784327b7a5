"""The report's data, read from a database: sweeps by hardware, changes, history."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from effbench.analysis.compare import Compared, compare_sweeps
from effbench.analysis.history import History
from effbench.analysis.history import read as read_history
from effbench.analysis.limits import read as read_limits
from effbench.analysis.verdicts import Change, Verdict
from effbench.core.cell import StoredEnvironment, digest
from effbench.core.errors import EffbenchError, NothingFoundError
from effbench.core.labels import LabelledResults, grouped, label_rows
from effbench.core.settings import quoted
from effbench.core.table import Record
from effbench.render.claims import entries
from effbench.render.tables import SpeedupTable, rows_of, speedup_table, unmeasured
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo, is_rerun, recorded_here_first
from effbench.store.trials import SampledTrial

#: Most changes that a report shows.
MOST_CHANGES = 10
#: Most sweeps that a site includes by default.
MOST_SWEEPS = 50
#: Most results of the history per sweep of the report, so that it does not take longer the larger a
#: database grows.
MOST_RESULTS = 25_000


@dataclass(frozen=True)
class Changes:
    """Changes of a sweep since an earlier one.

    `previous`: the earlier sweep, if any. `compared`: the result of `compare_sweeps`, or None for
    the reason `why`.
    """

    previous: SweepInfo | None = None
    compared: Compared | None = None
    why: str = "There is no earlier sweep to compare with."

    @property
    def significant(self) -> list[Change]:
        """The significant changes. Ambiguous rows are only counted, as are missing cells: a sweep
        of a few cells after one of many is no fault."""
        if self.compared is None:
            return []
        counted = (Verdict.SAME, Verdict.AMBIGUOUS, Verdict.MISSING)
        return [change for change in self.compared.changes if change.verdict not in counted]


@dataclass
class DeviceSweep:
    """One sweep on one hardware, the subject of most pages.

    `unmeasured`: keys of planned cells without a result.
    `database`: holds the trials; None if there are none.
    """

    sweep: SweepInfo
    hardware: str
    rows: LabelledResults
    environments: Sequence[StoredEnvironment]
    unmeasured: Sequence[str] = ()
    changes: Changes = field(default_factory=Changes)
    database: str | None = None
    # cell key -> overrides that reproduce it
    overrides: Mapping[str, list[str] | None] = field(default_factory=dict)

    @cached_property
    def speedups(self) -> SpeedupTable:
        return speedup_table(self.rows, "speedup", self.sweep.baseline_mode)

    @property
    def name(self) -> str:
        return self.sweep.name or self.sweep.id

    @cached_property
    def slug(self) -> str:
        """The name of its folder: unique, and safe even if the names of sweeps contain paths."""
        name = f"{self.hardware} {self.sweep.id}"
        readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
        return f"{readable}-{digest([self.hardware, self.sweep.id])[:6]}"

    def trials(self) -> Iterator[SampledTrial]:
        """Yield the trials by cell key and environment; none without a database."""
        if self.database is None:
            return
        environments = [environment.id for environment in self.environments]
        with Store.open(self.database, mode="read") as store:
            yield from store.trials_with_samples(self.sweep.id, environments)

    def command(self, cell_key: str, environment_id: str) -> str | None:
        """Return the command that measures a cell again under its interpreter. Return None if the
        sweep did not record its overrides, or was imported: a reader who pastes it would run code
        that someone else chose."""
        words = self.overrides.get(cell_key)
        if words is None or self.sweep.imported_at is not None:
            return None
        facts = self.sweep.interpreters.get(environment_id, {})
        interpreter = [f"{name}={quoted(facts[name])}" for name in facts.get("given", ())]
        return shlex.join(["effbench", *words, *interpreter])


@dataclass
class ReportData:
    """`device_sweeps`: those on the overview. `sweeps`: all that have pages, newest first; `load`
    reads one. `omitted`: number of further sweeps."""

    database: str
    device_sweeps: Sequence[DeviceSweep]
    history: History
    claims: Sequence[Record] = ()
    sweeps: Sequence[SweepInfo] = ()
    omitted: int = 0

    def load(self, info: SweepInfo) -> Iterator[DeviceSweep]:
        """Read a sweep, and yield its device sweeps that are not on the overview, without
        changes."""
        on_overview = {device_sweep.slug for device_sweep in self.device_sweeps}
        with Store.open(self.database, mode="read") as store:
            device_sweeps = device_sweeps_of(store, info, self.database)
        for device_sweep in device_sweeps:
            if device_sweep.slug not in on_overview:
                yield device_sweep


# --- reading ---


def read(store: Store, database: str, references: Sequence[str] = ()) -> ReportData:
    """Read the results of the referenced sweeps, by default of the newest of each hardware, their
    changes, the claims, and the history (with `references`, of their hardware); without
    `references` also which other sweeps the site includes."""
    infos = store.sweeps()
    environments = store.environments()
    ids, shown = [], []
    if references:
        device_sweeps = chosen(store, database, references)
        hardware = {device_sweep.hardware for device_sweep in device_sweeps}
        ids = [known.id for known in environments if known.hardware in hardware]
    else:
        device_sweeps = newest(store, infos, database)
        shown = [info for info in infos if _is_shown(info)]
    compared = [
        replace(device_sweep, changes=read_changes(store, device_sweep, environments))
        for device_sweep in device_sweeps
    ]
    most = MOST_RESULTS * len(compared)
    return ReportData(
        database,
        compared,
        history=read_history(store, environment_ids=ids, most=most),
        claims=entries(store.verdicts()),
        sweeps=shown[:MOST_SWEEPS],
        omitted=len(shown[MOST_SWEEPS:]),
    )


def chosen(store: Store, database: str, references: Sequence[str]) -> list[DeviceSweep]:
    """Return the device sweeps of the referenced sweeps."""
    infos = {info.id: info for info in map(store.find_sweep, references)}
    selected = []
    for info in infos.values():
        device_sweeps = device_sweeps_of(store, info, database)
        if not device_sweeps:
            raise NothingFoundError(
                f"sweep {info.id} has no results yet; effbench ls --cells lists its planned cells"
            )
        selected += device_sweeps
    return selected


def newest(store: Store, infos: Sequence[SweepInfo], database: str) -> list[DeviceSweep]:
    """Return the newest sweep with a trial of each hardware, newest first. Imported sweeps count if
    no other ran there. Sweeps that only confirm another sweep are skipped."""
    hardware = {environment.hardware for environment in store.environments()}
    selected: dict[str, DeviceSweep] = {}
    for info in recorded_here_first(filter(_is_shown, infos)):
        if selected.keys() >= hardware:
            break
        if selected.keys() >= set(store.hardware(info.id)):
            continue
        for device_sweep in device_sweeps_of(store, info, database):
            selected.setdefault(device_sweep.hardware, device_sweep)
    return [*selected.values()]


def _is_shown(info: SweepInfo) -> bool:
    """Return whether a sweep has a trial, and does not only confirm another sweep."""
    return info.trials > 0 and not is_rerun(info.name)


def device_sweeps_of(store: Store, info: SweepInfo, database: str) -> list[DeviceSweep]:
    """Return one device sweep per hardware of the sweep."""
    rows = rows_of(store, info)
    known = store.environments(row.environment_id for row in rows)
    hardware_of = {environment.id: environment.hardware for environment in known}
    by_hardware = grouped(rows, lambda row: hardware_of[row.environment_id])
    overrides = store.cell_overrides(info.id)
    device_sweeps = []
    for hardware, of_hardware in by_hardware.items():
        device_sweeps.append(
            DeviceSweep(
                sweep=info,
                hardware=hardware,
                rows=label_rows(of_hardware),
                environments=[place for place in known if place.hardware == hardware],
                unmeasured=unmeasured(store, info, of_hardware),
                database=database,
                overrides=overrides,
            )
        )
    return device_sweeps


def read_changes(
    store: Store,
    after: DeviceSweep,
    environments: Sequence[StoredEnvironment],
) -> Changes:
    """Compare a sweep with the newest earlier sweep that measured one of its cells on the same
    hardware. `environments`: all. If the comparison fails, the changes hold the reason."""
    sweep, hardware = after.sweep, after.hardware
    ids = [known.id for known in environments if known.hardware == hardware]
    before = store.previous(sweep, ids)
    if before is None:
        return Changes(why=f"No earlier sweep measured any of these cells on {hardware}.")
    try:
        compared = compare_sweeps(store, before, sweep, read_limits(), on=hardware)
    except EffbenchError as error:
        return Changes(before, why=str(error))
    return Changes(before, compared)
