"""Whole sweeps into a database: new ones, ones that have grown since, and ones that contradict what is there.

A sweep is known by its id. Of one that is there already, what is missing is added; what is there is compared, and
the first difference refuses the sweep. Every sweep is one transaction.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa

from effbench.cell import digest
from effbench.errors import StoreError
from effbench.printable import one_line
from effbench.store import derive, sweeps
from effbench.store.bundle import Record, Sections, filled
from effbench.store.collect import (
    ACKNOWLEDGED,
    BASELINE,
    CALIBRATION,
    CELL,
    CHUNK,
    ENVIRONMENT,
    PLANNED,
    SAMPLE,
    SWEEP,
    TRIAL,
    VERDICT,
    taken_samples,
)
from effbench.store.database import Database
from effbench.store.secrets import masked
from effbench.store.values import now

#: what a sweep may differ in from itself: it goes on, and its words are masked
_CHANGES = ("state", "finished_at", "command", "overrides", "environments", "cells", "trials")
#: as they were seen the first time
_FIRST_SEEN = ("details", "first_seen_at")
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_TRIAL_KEY = ("cell_key", "environment_id", "round", "attempt")


class Conflict(StoreError):
    """A sweep that contradicts what the database holds. Nothing of it was written."""


@dataclass
class Arrival:
    """What became of one sweep. `trials` and `cells` are those that were added; `notes` say what was left alone."""

    sweep_id: str
    name: str | None
    outcome: Literal["imported", "completed", "present", "refused"] = "present"
    cells: int = 0
    trials: int = 0
    total: int = 0
    added: Counter[str] = field(default_factory=Counter)
    state: tuple[str, str] | None = None
    notes: list[str] = field(default_factory=list)
    reason: str | None = None


def load(
    store: Database, records: Iterable[Record], *, baselines: bool = False, samples: bool = True
) -> Iterator[Arrival]:
    """Take the sections of a bundle, one transaction each; says of each what became of it.

    With `baselines` also the baselines and acknowledgements that belong to the sweeps; one that is there already is
    never changed. A contradiction refuses its sweep and the next one follows. Raises StoreError where the bundle is
    damaged or the database fails; nothing of that sweep is written then, those before it are.
    """
    for sweep, rest in Sections(records):
        try:
            yield _Taking(store, sweep, baselines, samples).all_of(rest)
        except Conflict as conflict:
            yield Arrival(sweep.values["id"], sweep.values.get("name"), "refused", reason=str(conflict))


class _Taking:
    """One section on its way into the database."""

    def __init__(self, store: Database, sweep: Record, baselines: bool, samples: bool) -> None:
        self.store, self.sweep, self.baselines, self.with_samples = store, sweep, baselines, samples
        self.id: str = sweep.values["id"]
        self.done = Arrival(self.id, sweep.values.get("name"))
        self.fresh = False  # the sweep is new here
        self.known_environments: set[str] = set()
        self.planned: dict[str, int] = {}
        self.there: dict[tuple, int] = {}
        self.seen: set[tuple] = set()
        self.same = 0  # trials that are there already
        self.counted = Counter[str]()

    def all_of(self, rest: Iterator[Record]) -> Arrival:
        with self.store._writing() as connection:
            self.connection = connection
            self.begin()
            batch: list[Record] = []
            for record in rest:
                if batch and (record.table != batch[0].table or len(batch) == CHUNK):
                    self.take(batch)
                    batch = []
                batch.append(record)
                self.counted[record.table] += 1
            if batch:
                self.take(batch)
            self.end()
        return self.done

    def begin(self) -> None:
        if not _ID.fullmatch(self.id):  # folders are named by it
            raise StoreError(f"{self.sweep.where or self.store.name}: {_short(self.id)!r} is not the id of a sweep")
        row = filled(self.sweep, self.sweep.values["started_at"])
        row |= {"id": self.id, "imported_at": now()}
        insert = self.store._insert(SWEEP).values(**row).on_conflict_do_nothing()
        self.fresh = self.connection.scalar(insert.returning(SWEEP.c.id)) is not None
        if self.fresh:
            return
        sweeps.lock(self.connection, self.id, self.store.name)
        here = self.connection.execute(sa.select(SWEEP).where(SWEEP.c.id == self.id)).mappings().one()
        self.compare(self.sweep, here, "sweep", _CHANGES)
        given = self.sweep.values
        if "command" in given and masked(given["command"]) != masked(here["command"]):
            raise self.conflict("sweep", "command", masked(here["command"]), masked(given["command"]))
        planned = sa.select(PLANNED.c.cell_key, PLANNED.c.position).where(PLANNED.c.sweep_id == self.id)
        self.planned = {row.cell_key: row.position for row in self.connection.execute(planned)}
        trials = sa.select(TRIAL.c.id, *(TRIAL.c[name] for name in _TRIAL_KEY)).where(TRIAL.c.sweep_id == self.id)
        self.there = {tuple(row[1:]): row[0] for row in self.connection.execute(trials)}

    def take(self, batch: list[Record]) -> None:
        """Records of one table."""
        getattr(self, f"take_{batch[0].table}")(batch)

    def take_environment(self, batch: list[Record]) -> None:
        self.once(ENVIRONMENT, "id", batch, "environment", _FIRST_SEEN)
        self.known_environments |= {record.values["id"] for record in batch}

    def take_cell(self, batch: list[Record]) -> None:
        self.once(CELL, "key", batch, "cell", ("position",))
        for record in batch:  # else a forged cell would take the place of one that the user plans later
            key = record.values["key"]
            if key != _key_of(record.values["params"]):
                where = record.where or self.id
                raise StoreError(f"{where}: cell {key[:12]} does not fit its params: damaged or forged")
        taken = {position: key for key, position in self.planned.items()}
        new = []
        for record in batch:
            key, position = record.values["key"], record.values.get("position")
            if position is None or self.planned.get(key) == position:
                continue
            if key in self.planned:
                raise self.conflict(f"cell {key[:12]}", "position", self.planned[key], position)
            if position in taken:
                raise self.conflict(f"plan at position {position}", "cell", taken[position][:12], key[:12])
            new.append({"sweep_id": self.id, "cell_key": key, "position": position})
            self.planned[key], taken[position] = position, key
        if new:
            self.connection.execute(sa.insert(PLANNED), new)
            self.done.cells += len(new)

    def take_trial(self, batch: list[Record]) -> None:
        new, again = [], {}
        for record in batch:
            key = tuple(record.values.get(name, 0) for name in _TRIAL_KEY)
            self.check_trial(record, key)
            self.seen.add((sys.intern(key[0]), sys.intern(key[1]), *key[2:]))
            if key in self.there:
                again[self.there[key]] = record
            else:
                new.append(record)
        self.same += len(again)
        blobs = self.compare_trials(again) if again else []
        if new:
            started_at = self.sweep.values["started_at"]
            rows = [{"sweep_id": self.id, **filled(record, started_at)} for record in new]
            insert = sa.insert(TRIAL).returning(TRIAL.c.id, sort_by_parameter_order=True)
            ids = self.connection.scalars(insert, rows).all()
            for trial_id, record in zip(ids, new, strict=True):
                blobs += [{"trial_id": trial_id, **sample} for sample in record.values.get("samples", ())]
            self.done.trials += len(new)
        if blobs and self.with_samples:
            self.connection.execute(sa.insert(SAMPLE), blobs)

    def check_trial(self, record: Record, key: tuple) -> None:
        what = f"{record.where or self.id}: {_trial_name(key)}"
        if key in self.seen:
            raise StoreError(f"{what} stands there twice")
        if key[0] not in self.planned:
            raise StoreError(f"{what}: the cell is not in the plan of sweep {self.id}")
        if key[1] not in self.known_environments:
            raise StoreError(f"{what}: its environment is not among those of the sweep")

    def compare_trials(self, again: dict[int, Record]) -> list[dict[str, Any]]:
        """Compare trials with what is there under these ids; returns rows of samples that are missing there."""
        rows = self.connection.execute(sa.select(TRIAL).where(TRIAL.c.id.in_(list(again)))).mappings()
        kept = taken_samples(self.connection, again) if self.with_samples else {}
        missing = []
        for row in rows:
            record = again[row["id"]]
            what = _trial_name(tuple(row[name] for name in _TRIAL_KEY))
            self.compare(record, row, what, ("samples",))
            given = record.values.get("samples", [])
            if not given or not self.with_samples:
                continue
            here = {sample["timer"]: sample for sample in kept.get(row["id"], ())}
            if not here:
                missing += [{"trial_id": row["id"], **sample} for sample in given]
                self.done.added["samples"] += len(given)
            elif here != {sample["timer"]: sample for sample in given}:
                timers = sorted({sample["timer"] for sample in given} | here.keys())
                raise self.conflict(what, "samples", *(f"other ones of {', '.join(timers)}",) * 2)
        return missing

    def take_calibration(self, batch: list[Record]) -> None:
        self.add_missing(CALIBRATION, ("environment_id", "gpu_uuid", "measured_at"), batch)

    def take_claim_verdict(self, batch: list[Record]) -> None:
        key = ("claim", "experiment", "environment_id", "judged_at")
        self.add_missing(VERDICT, key, batch, sweep_id=self.id)

    def take_baseline(self, batch: list[Record]) -> None:
        if not self.baselines:
            return
        for record in batch:
            row = {**filled(record, self.sweep.values["started_at"]), "sweep_id": self.id}
            insert = self.store._insert(BASELINE).values(**row).on_conflict_do_nothing()
            if self.connection.scalar(insert.returning(BASELINE.c.name)) is not None:
                self.done.added["baselines"] += 1
                continue
            same = sa.and_(BASELINE.c.name == row["name"], BASELINE.c.hardware == row["hardware"])
            here = self.connection.execute(sa.select(BASELINE.c.sweep_id).where(same)).scalar()
            if here != self.id:
                self.done.notes.append(f"baseline {row['name']} ({row['hardware']}) stays on sweep {here}")

    def take_acknowledgement(self, batch: list[Record]) -> None:
        if self.baselines:
            self.add_missing(ACKNOWLEDGED, ("cell_key", "hardware", "metric"), batch, sweep_id=self.id)

    def add_missing(self, table: sa.Table, key: tuple[str, ...], batch: list[Record], **also: str) -> None:
        """Insert the records whose key is not there yet, here and now and for good."""
        columns = [table.c[name] for name in key]
        # of a sweep, or of the environments it ran in: few rows
        scope = [table.c[name] == value for name, value in also.items()]
        if not scope:
            scope = [table.c.environment_id.in_(self.known_environments)]
        there = {tuple(row) for row in self.connection.execute(sa.select(*columns).where(*scope))}
        for record in batch:
            row = {**filled(record, self.sweep.values["started_at"]), **also}
            if row.get("environment_id", self.id) not in {self.id, *self.known_environments}:
                raise StoreError(f"{record.where}: {record.table} of an environment that the sweep does not have")
            found = tuple(row[name] for name in key)
            if found not in there:
                there.add(found)
                self.connection.execute(sa.insert(table).values(**row))
                self.done.added[f"{record.table.replace('_', ' ')}s"] += 1

    def once(self, table: sa.Table, key: str, batch: list[Record], what: str, but: tuple[str, ...]) -> None:
        """Insert rows that several sweeps share; those that are there must be the same."""
        keys = [record.values[key] for record in batch]
        rows = self.connection.execute(sa.select(table).where(table.c[key].in_(keys))).mappings()
        here = {row[key]: row for row in rows}
        new = {}
        for record in batch:
            name = record.values[key]
            if name in here:
                self.compare(record, here[name], f"{what} {name[:16]}", but)
            else:
                new[name] = filled(record, self.sweep.values["started_at"])
        if new:
            # in one order everywhere: two that import at a time wait for each other, and never both
            ordered = [new[name] for name in sorted(new)]
            self.connection.execute(self.store._insert(table).on_conflict_do_nothing(), ordered)

    def end(self) -> None:
        """Everything has come: counts, the sweep's state, and the results."""
        given, done = self.sweep.values, self.done
        for name in ("cells", "trials"):
            counted = self.counted[name.removesuffix("s")]
            if given.get(name, counted) != counted:
                raise StoreError(
                    f"{self.sweep.where or self.id}: sweep {self.id} should have {given[name]} {name}, and has "
                    f"{counted}: damaged or cut off"
                )
        done.total = len(self.there) + done.trials
        if self.fresh:
            done.outcome = "imported"
        else:
            self.go_on()
            if done.cells or done.state:
                self.mark()
        if self.fresh or done.trials:
            baseline_mode = sweeps.lock(self.connection, self.id, self.store.name)
            derive.rewrite(self.connection, self.id, baseline_mode)
        if done.outcome == "present" and (done.trials or done.cells or done.state or done.added):
            done.outcome = "completed"

    def mark(self) -> None:
        """Mark a sweep of this database as imported: its plan or state is no longer what was typed here."""
        own = sa.and_(SWEEP.c.id == self.id, SWEEP.c.imported_at.is_(None))
        marked = self.connection.scalar(sa.update(SWEEP).where(own).values(imported_at=now()).returning(SWEEP.c.id))
        if marked is not None:
            self.done.notes.append("it was run here, but now counts as imported: its plan or state has changed")

    def go_on(self) -> None:
        """The state that is newer: of the side that has all trials of the other and more, else that ended later."""
        here = self.connection.execute(sa.select(SWEEP.c.state, SWEEP.c.finished_at).where(SWEEP.c.id == self.id)).one()
        lacks_here, lacks_there = self.done.trials > 0, len(self.there) > self.same
        given = filled(self.sweep, self.sweep.values["started_at"])
        newer = lacks_here
        if lacks_here == lacks_there:
            newer = _time(given["finished_at"]) > _time(here.finished_at)
        if newer and (given["state"], given["finished_at"]) != (here.state, here.finished_at):
            values = {"state": given["state"], "finished_at": given["finished_at"]}
            self.connection.execute(sa.update(SWEEP).where(SWEEP.c.id == self.id).values(**values))
            self.done.state = (here.state, given["state"])

    def compare(self, record: Record, here: Any, what: str, but: tuple[str, ...]) -> None:
        """Raise Conflict for the first field that the record says otherwise."""
        for name, value in record.values.items():
            if name not in but and here[name] != value:
                raise self.conflict(what, name, here[name], value)

    def conflict(self, what: str, name: str, here: Any, given: Any) -> Conflict:
        where = f" ({self.sweep.where})" if self.sweep.where else ""
        return Conflict(
            f"sweep {self.id}{where} contradicts {self.store.name}: {what} has {name} {_short(here)} there, "
            f"{_short(given)} in what is imported"
        )


def _key_of(params: dict[str, Any]) -> str | None:
    try:
        return digest(params)
    except ValueError:  # NaN, which no cell has
        return None


def _trial_name(key: tuple) -> str:
    cell, environment, number, attempt = key
    return f"trial of cell {cell[:12]} in environment {environment}, round {number + 1}, try {attempt + 1}"


def _time(value: dt.datetime | None) -> dt.datetime:
    return value or dt.datetime.min.replace(tzinfo=dt.UTC)


def _short(value: Any) -> str:
    return one_line(value, 60)
