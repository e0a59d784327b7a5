"""Whole sweeps from one database into another: new ones, ones that have grown since, and ones that contradict.

A sweep is known by its id. Of one that is there already, what is missing is added; what is there is compared, and the
first difference refuses the sweep. Every sweep is one transaction. Results follow from the trials and are derived.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.outputs import EXPORT_ID
from effbench.printable import one_line
from effbench.store import connect, sweeps
from effbench.store.maintenance import raw
from effbench.store.schema import (
    ACKNOWLEDGEMENT,
    BASELINE,
    CALIBRATION,
    CELL,
    ENVIRONMENT,
    PLANNED,
    RESULT,
    SAMPLE,
    SWEEP,
    TRIAL,
    VERDICT,
)
from effbench.store.secrets import masked, masked_db
from effbench.store.source import RefusedError, Source
from effbench.store.store import Store
from effbench.store.trials import rebuild_results
from effbench.store.values import now

#: trials in memory at a time; with their samples some 60 kB each at most
CHUNK = 200
#: what a sweep may differ in from itself: it goes on, and its words are masked
_CHANGES = ("state", "finished_at", "imported_at", "command", "overrides")
_TRIAL_KEY = ("cell_key", "environment_id", "round", "attempt")


@dataclass
class Arrival:
    """What became of one sweep. `trials` and `cells` are those that were added, `notes` name what was omitted."""

    sweep_id: str
    name: str | None = None
    outcome: Literal["imported", "completed", "present", "refused"] = "present"
    cells: int = 0
    trials: int = 0
    total: int = 0
    added: Counter[str] = field(default_factory=Counter)
    state: tuple[str, str] | None = None
    notes: list[str] = field(default_factory=list)
    reason: str | None = None


def copy(
    source: Source, target: Store, sweep_ids: Iterable[str], *, baselines: bool = False, samples: bool = True
) -> Iterator[Arrival]:
    """Copy these sweeps, one transaction each; yield what became of each.

    With `baselines` also the baselines and acknowledgements that belong to the sweeps; one that is there already is
    never changed. A sweep that is damaged or contradicts `target` is refused, and the next one follows. Passwords in
    URLs are masked. Raises StoreError if a database fails.
    """
    for sweep_id in sweep_ids:
        arrival = Arrival(one_line(sweep_id, 64))
        try:
            with target._writing() as connection:
                try:
                    _Copy(source, connection, target.name, arrival, baselines, samples).run(sweep_id)
                except (exc.IntegrityError, exc.DataError, ArithmeticError, ValueError) as error:
                    fault = one_line(getattr(error, "orig", None) or error, 100)
                    raise RefusedError(f"{source.name}: sweep {arrival.sweep_id} is damaged: {fault}") from error
        except RefusedError as error:
            arrival = Arrival(arrival.sweep_id, arrival.name, "refused", reason=str(error))
        yield arrival


class _Copy:
    """One sweep on its way."""

    def __init__(
        self, source: Source, connection: sa.Connection, name: str, arrival: Arrival, baselines: bool, samples: bool
    ) -> None:
        self.source, self.connection, self.name, self.done = source, connection, name, arrival
        self.baselines, self.samples = baselines, samples
        self.environments: set[str] = set()
        self.positions: dict[str, int] = {}
        self.there: dict[tuple, int] = {}  # key of a trial -> its id in the target
        self.known = 0  # trials that both have

    def run(self, sweep_id: str) -> None:
        rows = list(self.source.rows(SWEEP, SWEEP.c.id == sweep_id))
        if len(rows) != 1:
            raise RefusedError(f"{self.source.name}: {len(rows)} sweeps have the id {one_line(sweep_id, 64)}")
        self.row = rows[0]
        self.id, self.done.name = self.row["id"], self.row["name"]
        self.row["command"], self.row["overrides"] = masked(self.row["command"]), masked_db(self.row["overrides"])
        self.row["imported_at"] = now()
        insert = connect.insert(self.connection, SWEEP).values(**self.row).on_conflict_do_nothing()
        fresh = self.connection.scalar(insert.returning(SWEEP.c.id)) is not None
        if not fresh:
            self.begin_again()
        self.take_environments()
        self.take_plan()
        measured = self.take_trials()
        self.take_decisions()
        self.note_results(measured)
        self.done.total = len(self.there) + self.done.trials
        if fresh:
            self.done.outcome = "imported"
        else:
            self.go_on()
            if self.done.cells or self.done.state:
                self.mark()
        if fresh or self.done.trials:
            rebuild_results(self.connection, self.id)
        if not fresh and (self.done.trials or self.done.cells or self.done.state or self.done.added):
            self.done.outcome = "completed"

    def begin_again(self) -> None:
        sweeps.lock(self.connection, self.id)
        here = self.connection.execute(sa.select(SWEEP).where(SWEEP.c.id == self.id)).mappings().one()
        self.compare(self.row, here, "sweep", _CHANGES)
        if self.row["command"] != masked(here["command"]):
            raise self.conflict("sweep", "command", masked(here["command"]), self.row["command"])
        plan = sa.select(PLANNED.c.cell_key, PLANNED.c.position).where(PLANNED.c.sweep_id == self.id)
        self.positions = {row.cell_key: row.position for row in self.connection.execute(plan)}
        trials = sa.select(TRIAL.c.id, *(TRIAL.c[name] for name in _TRIAL_KEY)).where(TRIAL.c.sweep_id == self.id)
        self.there = {tuple(row[1:]): row[0] for row in self.connection.execute(trials)}

    def take_environments(self) -> None:
        used = sa.select(TRIAL.c.environment_id).where(TRIAL.c.sweep_id == self.id)
        if self.source.columns["claim_verdict"]:
            used = used.union(sa.select(VERDICT.c.environment_id).where(VERDICT.c.sweep_id == self.id))
        rows = list(self.source.rows(ENVIRONMENT, ENVIRONMENT.c.id.in_(used)))
        self.share(ENVIRONMENT, "id", rows, ("details", "first_seen_at"))
        self.environments = {row["id"] for row in rows}

    def take_plan(self) -> None:
        """Copy the cells, also those that only an acknowledgement names, and their places in the plan."""
        wanted = sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == self.id)
        if self.baselines and self.source.columns["acknowledgement"]:
            named = sa.select(ACKNOWLEDGEMENT.c.cell_key).where(ACKNOWLEDGEMENT.c.sweep_id == self.id)
            wanted = wanted.union(named)
        rows = list(self.source.rows(CELL, CELL.c.key.in_(wanted)))
        self.share(CELL, "key", rows, ())
        cells = {row["key"] for row in rows}
        taken = {position: key for key, position in self.positions.items()}
        new = []
        for row in self.source.rows(PLANNED, PLANNED.c.sweep_id == self.id, order=["position"]):
            key, position = row["cell_key"], row["position"]
            if key not in cells:
                raise RefusedError(f"{self.source.name}: sweep {self.id} plans the missing cell {one_line(key, 12)}")
            if self.positions.get(key, position) != position:
                raise self.conflict(f"cell {key[:12]}", "position", self.positions[key], position)
            if taken.get(position, key) != key:
                raise self.conflict(f"plan at position {position}", "cell", taken[position][:12], key[:12])
            if key not in self.positions:
                new.append(row | {"overrides": row.get("overrides") and masked_db(row["overrides"])})
                self.positions[key], taken[position] = position, key
        if new:
            self.connection.execute(sa.insert(PLANNED), new)
        self.done.cells = len(new)

    def take_trials(self) -> set[tuple[str, str]]:
        """Copy the trials and their samples; return (cell key, environment id) of all."""
        ids = [row["id"] for row in self.source.fetch(raw(TRIAL, ["id"]).where(TRIAL.c.sweep_id == self.id))]
        measured = set()
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            samples: dict[int, list[dict[str, Any]]] = {}
            for row in self.source.rows(SAMPLE, SAMPLE.c.trial_id.in_(chunk)) if self.samples else ():
                samples.setdefault(row["trial_id"], []).append(row)
            new, again = [], {}
            for row in self.source.rows(TRIAL, TRIAL.c.id.in_(chunk), order=["id"]):
                own = samples.get(row.pop("id"), [])
                key = tuple(row[name] for name in _TRIAL_KEY)
                if row["cell_key"] not in self.positions or row["environment_id"] not in self.environments:
                    raise RefusedError(
                        f"{self.source.name}: {_trial_name(key)}: not a cell or environment of its sweep"
                    )
                measured.add(key[:2])
                if key in self.there:
                    again[self.there[key]] = (row, own)
                else:
                    new.append((row, own))
            blobs = self.insert_trials(new) + self.compare_trials(again)
            if blobs:
                self.connection.execute(sa.insert(SAMPLE), blobs)
        return measured

    def insert_trials(self, new: list[tuple[dict[str, Any], list[dict[str, Any]]]]) -> list[dict[str, Any]]:
        """Insert trials; return their rows of `sample`."""
        if not new:
            return []
        insert = sa.insert(TRIAL).returning(TRIAL.c.id, sort_by_parameter_order=True)
        ids = self.connection.scalars(insert, [row for row, _ in new]).all()
        self.done.trials += len(new)
        return [{**sample, "trial_id": one} for one, (_, own) in zip(ids, new, strict=True) for sample in own]

    def compare_trials(self, again: dict[int, tuple[dict[str, Any], list[dict[str, Any]]]]) -> list[dict[str, Any]]:
        """Compare trials with those that are there under these ids; return rows of samples that are missing there."""
        self.known += len(again)
        stored: dict[int, dict[str, dict[str, Any]]] = {}
        for sample in self.connection.execute(sa.select(SAMPLE).where(SAMPLE.c.trial_id.in_(again))).mappings():
            stored.setdefault(sample["trial_id"], {})[sample["timer"]] = dict(sample)
        missing = []
        for here in self.connection.execute(sa.select(TRIAL).where(TRIAL.c.id.in_(again))).mappings():
            row, own = again[here["id"]]
            what = _trial_name(tuple(row[name] for name in _TRIAL_KEY))
            self.compare(row, here, what, ())
            given = {sample["timer"]: {**sample, "trial_id": here["id"]} for sample in own}
            kept = stored.get(here["id"])
            if given and not kept:
                self.done.added["samples"] += len(given)
                missing += given.values()
            elif given and given != kept:
                raise self.conflict(what, "samples", "other ones", ", ".join(sorted(kept)))
        return missing

    def take_decisions(self) -> None:
        """Copy calibrations, verdicts and, if asked for, baselines and acknowledgements that are missing."""
        at_home = [CALIBRATION.c.environment_id.in_(self.environments)]
        self.add_missing(CALIBRATION, ("environment_id", "gpu_uuid", "measured_at"), at_home)
        self.add_missing(
            VERDICT, ("claim", "experiment", "environment_id", "judged_at"), [VERDICT.c.sweep_id == self.id]
        )
        if not self.baselines:
            return
        of_sweep = [ACKNOWLEDGEMENT.c.sweep_id == self.id]
        self.add_missing(ACKNOWLEDGEMENT, ("cell_key", "hardware", "metric"), of_sweep)
        for row in self.source.rows(BASELINE, BASELINE.c.sweep_id == self.id):
            insert = connect.insert(self.connection, BASELINE).values(**row).on_conflict_do_nothing()
            if self.connection.scalar(insert.returning(BASELINE.c.name)) is not None:
                self.done.added["baselines"] += 1
                continue
            same = (BASELINE.c.name == row["name"], BASELINE.c.hardware == row["hardware"])
            here = self.connection.execute(sa.select(BASELINE.c.sweep_id).where(*same)).scalar()
            if here != self.id:
                self.done.notes.append(f"baseline {row['name']} ({row['hardware']}) stays on sweep {here}")

    def add_missing(self, table: sa.Table, key: tuple[str, ...], where: list[Any]) -> None:
        columns = [table.c[name] for name in key]
        there = {tuple(row) for row in self.connection.execute(sa.select(*columns).where(*where))}
        for row in self.source.rows(table, *where):
            if tuple(row[name] for name in key) not in there:
                there.add(tuple(row[name] for name in key))
                del row["id"]  # means nothing in another database
                self.connection.execute(sa.insert(table).values(**row))
                self.done.added[f"{table.name.replace('_', ' ')}s"] += 1

    def note_results(self, measured: set[tuple[str, str]]) -> None:
        """Report results that no trial supports: they cannot be derived, so they are not copied."""
        keys = raw(RESULT, ["cell_key", "environment_id"]).where(RESULT.c.sweep_id == self.id)
        without = sum(tuple(row.values()) not in measured for row in self.source.fetch(keys))
        if without:
            self.done.notes.append(f"{without} results without trials were omitted: results are derived from trials")

    def share(self, table: sa.Table, key: str, rows: list[dict[str, Any]], but: tuple[str, ...]) -> None:
        """Insert rows that several sweeps share; those that are there must be the same."""
        # in one order everywhere, so that two imports at a time cannot deadlock
        rows = sorted(rows, key=lambda row: row[key])
        for start in range(0, len(rows), CHUNK):
            chunk = {row[key]: row for row in rows[start : start + CHUNK]}
            query = sa.select(table).where(table.c[key].in_(list(chunk)))
            for here in self.connection.execute(query).mappings().all():
                self.compare(chunk.pop(here[key]), here, f"{table.name} {here[key][:16]}", but)
            if chunk:
                insert = connect.insert(self.connection, table).on_conflict_do_nothing()
                self.connection.execute(insert, list(chunk.values()))

    def mark(self) -> None:
        """Mark a sweep of this database as imported: its plan or state is no longer what was typed here."""
        own = sa.and_(SWEEP.c.id == self.id, SWEEP.c.imported_at.is_(None))
        marked = self.connection.scalar(sa.update(SWEEP).where(own).values(imported_at=now()).returning(SWEEP.c.id))
        if marked is not None:
            self.done.notes.append("it was run here, but now counts as imported: its plan or state has changed")

    def go_on(self) -> None:
        """Take the newer state: of the side that has all trials of the other and more, else that ended later."""
        here = self.connection.execute(sa.select(SWEEP.c.state, SWEEP.c.finished_at).where(SWEEP.c.id == self.id)).one()
        lacks_here, lacks_there = self.done.trials > 0, len(self.there) > self.known
        newer = lacks_here
        if lacks_here == lacks_there:
            newer = _time(self.row["finished_at"]) > _time(here.finished_at)
        given = {name: self.row[name] for name in ("state", "finished_at")}
        if newer and tuple(given.values()) != tuple(here):
            self.connection.execute(sa.update(SWEEP).where(SWEEP.c.id == self.id).values(**given))
            self.done.state = (here.state, given["state"])

    def compare(self, row: dict[str, Any], here: Any, what: str, but: tuple[str, ...]) -> None:
        """Raise RefusedError for the first column that differs."""
        for name, value in row.items():
            if name not in but and here[name] != value:
                raise self.conflict(what, name, here[name], value)

    def conflict(self, what: str, name: str, here: Any, given: Any) -> RefusedError:
        return RefusedError(
            f"sweep {self.id} ({self.source.name}) contradicts {self.name}: {what} has {name} {one_line(here, 60)} "
            f"there, {one_line(given, 60)} in what is imported"
        )


def write_file(source: Source, sweep_ids: Sequence[str], path: Path, *, samples: bool = True) -> None:
    """Write whole sweeps, with their baselines and acknowledgements, into a new, compact SQLite file.

    Raises RefusedError for the first sweep that is damaged.
    """
    with Store.open(path, mode="write") as store:
        for arrival in copy(source, store, sweep_ids, baselines=True, samples=samples):
            if arrival.reason:
                raise RefusedError(arrival.reason)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # one file, without a log next to it
        connection.execute(f"PRAGMA application_id = {EXPORT_ID}")
        connection.execute("PRAGMA page_size = 1024")  # rows of 2 to 3 kB leave less room unused
        connection.execute("VACUUM")


def _trial_name(key: tuple) -> str:
    cell, environment, number, attempt = key
    return f"trial of cell {cell[:12]} in environment {environment}, round {number + 1}, try {attempt + 1}"


def _time(value: dt.datetime | None) -> dt.datetime:
    return value or dt.datetime.min.replace(tzinfo=dt.UTC)
