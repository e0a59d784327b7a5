"""Copy whole sweeps from one database into another.

Rows are identified by keys that are the same in every database. Missing rows are added and others
are compared; a difference refuses the sweep. Every sweep is one transaction. Trials of a new sweep
are copied within SQLite if they are plainly valid. Results are derived from the trials.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.errors import StoreError
from effbench.outputs import EXPORT_ID
from effbench.printable import one_line
from effbench.store import connect, sweeps
from effbench.store.schema import (
    ACKNOWLEDGEMENT,
    BASELINE,
    CALIBRATION,
    CELL,
    ENVIRONMENT,
    PLANNED,
    SAMPLE,
    SWEEP,
    TRIAL,
    VERDICT,
)
from effbench.store.secrets import masked, masked_db
from effbench.store.soundness import BLOB_LIMIT, batched, require_sound
from effbench.store.source import ATTACHED, RefusedError, Source
from effbench.store.store import Store
from effbench.store.trials import rebuild_results, summary_rows
from effbench.store.values import now

#: rows compared or inserted at a time; a trial with its samples has at most about 60 kB
CHUNK = 500
#: trials in memory without their samples, 3 kB each, while they are checked
CHECKED = 10_000
#: table -> columns that identify a row
_KEYS = {
    SWEEP: ("id",),
    ENVIRONMENT: ("id",),
    CELL: ("key",),
    PLANNED: ("sweep_id", "cell_key"),
    TRIAL: ("sweep_id", "cell_key", "environment_id", "round", "attempt"),
    SAMPLE: ("trial_id", "timer"),
    CALIBRATION: ("environment_id", "measured_at"),
    VERDICT: ("claim", "experiment", "environment_id", "judged_at"),
    ACKNOWLEDGEMENT: ("cell_key", "hardware", "metric", "sweep_id"),
    BASELINE: ("name", "hardware"),
}
#: table -> columns that may differ: a sweep may have continued, passwords are masked, and the
#: target's decisions stay
_MAY_DIFFER = {
    SWEEP: {"state", "finished_at", "imported_at", "command", "overrides", "host"},
    ENVIRONMENT: {"details", "first_seen_at"},
    PLANNED: {"overrides"},
    ACKNOWLEDGEMENT: {"reason", "acknowledged_at"},
    BASELINE: {"sweep_id", "set_at", "note"},
}
#: further columns of `sweep` that differ between the shards of a sweep
_SHARDS_DIFFER = {"started_at", "host"}


@dataclass
class Arrival:
    """The outcome of copying one sweep. `added`: table -> number of new rows; `notes`: remarks for
    the user."""

    sweep_id: str
    name: str | None = None
    outcome: Literal["imported", "completed", "already there", "refused"] = "already there"
    added: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    reason: str | None = None


def copy(
    source: Source,
    target: Store,
    sweep_ids: Iterable[str],
    *,
    baselines: bool = False,
    samples: bool = True,
) -> Iterator[Arrival]:
    """Copy these sweeps, one transaction each; yield the outcome of each.

    `baselines`: also copy their baselines and acknowledgements that `target` does not have. A sweep
    that is damaged or contradicts `target` is refused, and the next one follows. Raises StoreError
    if a database fails.
    """
    copied: set[str] = set()
    for sweep_id in sweep_ids:
        arrival = Arrival(one_line(sweep_id, 64))
        try:
            copied |= connect.repeated(
                partial(_attempt, source, target, arrival, copied, sweep_id, baselines, samples)
            )
        except RefusedError as error:
            arrival = Arrival(arrival.sweep_id, arrival.name, "refused", reason=str(error))
        yield arrival


def _attempt(
    source: Source,
    target: Store,
    arrival: Arrival,
    copied: set[str],
    sweep_id: str,
    baselines: bool,
    samples: bool,
) -> set[str]:
    """Copy a sweep in one transaction; return the keys of its cells."""
    arrival.added, arrival.notes = Counter(), []  # an attempt that broke off has left nothing else
    try:
        with target._writing() as connection:
            try:
                return _Copy(source, connection, target.name, arrival, copied).run(
                    sweep_id, baselines, samples
                )
            except (exc.IntegrityError, exc.DataError, ArithmeticError, ValueError) as error:
                fault = one_line(getattr(error, "orig", None) or error, 100)
                raise RefusedError(
                    f"{source.name}: sweep {arrival.sweep_id} is damaged: {fault}"
                ) from error
    # of either file, if the source is attached to the target's connection
    except connect.DamagedError as error:
        what = (
            f"{source.name} is damaged or was changed during the import: import it again when"
            " nothing writes to it"
        )
        raise StoreError(f"{what}. If that fails, too: {error}") from error


@dataclass
class _Copy:
    """Copies one sweep into the database `name`. `copied`: keys of cells that earlier sweeps
    brought."""

    source: Source
    connection: sa.Connection
    name: str
    arrival: Arrival
    copied: set[str]
    is_new: bool = False  # whether the database does not know the sweep yet

    def run(self, sweep_id: str, baselines: bool, samples: bool) -> set[str]:
        """Copy the sweep; return the keys of its cells."""
        rows = list(self.source.rows(SWEEP, SWEEP.c.id == sweep_id))
        if len(rows) != 1:
            raise RefusedError(
                f"{self.source.name}: {len(rows)} sweeps have the id {one_line(sweep_id, 64)}"
            )
        (row,) = rows
        row["command"], row["overrides"] = masked(row["command"]), masked_db(row["overrides"])
        row["imported_at"] = now()
        self.arrival.name = row["name"]
        insert = connect.insert(self.connection, SWEEP).values(**row).on_conflict_do_nothing()
        self.is_new = self.connection.scalar(insert.returning(SWEEP.c.id)) is not None
        if not self.is_new:
            sweeps.lock(self.connection, sweep_id)
            self.merge(SWEEP, [row])
        environments = sa.select(TRIAL.c.environment_id).where(TRIAL.c.sweep_id == sweep_id)
        if self.source.has(VERDICT):
            environments = environments.union(
                sa.select(VERDICT.c.environment_id).where(VERDICT.c.sweep_id == sweep_id)
            )
        cells = sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == sweep_id)
        # an acknowledgement may name a cell that is not planned
        if baselines and self.source.has(ACKNOWLEDGEMENT):
            cells = cells.union(
                sa.select(ACKNOWLEDGEMENT.c.cell_key).where(ACKNOWLEDGEMENT.c.sweep_id == sweep_id)
            )
        self.take(ENVIRONMENT, ENVIRONMENT.c.id.in_(environments))
        keys = {row[0] for row in self.source.fetch(cells)}
        for chunk in batched(sorted(keys - self.copied, key=str), CHUNK):
            self.take(CELL, CELL.c.key.in_(chunk))
        self.take(PLANNED, PLANNED.c.sweep_id == sweep_id)
        is_derived = self.is_new and self.copy_trials(sweep_id, samples)
        if not is_derived:
            self.take_trials(sweep_id, samples)
        # calibrations and verdicts have no unique key: another import of the same ones must wait
        self.connection.execute(
            sa.select(ENVIRONMENT.c.id).order_by(ENVIRONMENT.c.id).with_for_update(key_share=True)
        )
        self.take(CALIBRATION, CALIBRATION.c.environment_id.in_(environments))
        # a verdict of behaviour checks belongs to no sweep
        of_checks = sa.and_(
            VERDICT.c.sweep_id.is_(None), VERDICT.c.environment_id.in_(environments)
        )
        self.take(VERDICT, sa.or_(VERDICT.c.sweep_id == sweep_id, of_checks))
        for table in (ACKNOWLEDGEMENT, BASELINE) if baselines else ():
            self.take(table, table.c.sweep_id == sweep_id)
        has_gone_on = not self.is_new and self.go_on(row)
        if not is_derived and (self.is_new or self.arrival.added["trial"]):
            rebuild_results(self.connection, sweep_id)
        if self.is_new or has_gone_on or self.arrival.added:
            self.arrival.outcome = "imported" if self.is_new else "completed"
        return keys

    def merge(self, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
        """Insert missing rows and count them. Raises RefusedError for an existing row that
        differs."""
        names = _KEYS[table]
        key_of = itemgetter(*names)
        key = sa.tuple_(*(table.c[name] for name in names)) if len(names) > 1 else table.c[names[0]]
        # always in the same order, so that two simultaneous imports cannot deadlock
        for chunk in batched(sorted(rows, key=key_of), CHUNK):
            missing = {key_of(row): row for row in chunk}
            if len(missing) < len(chunk):
                raise ValueError(f"rows of {table.name} with the same key")
            # also by the first column, because SQLite searches no index for a tuple with integers
            first = table.c[names[0]].in_({row[names[0]] for row in chunk})
            query = sa.select(table).where(first, key.in_(list(missing)))
            for here in self.connection.execute(query).mappings():
                self.compare(table, missing.pop(key_of(here)), here)
            insert = connect.insert(self.connection, table)
            # another import may have been faster
            if names == tuple(table.primary_key.columns.keys()):
                insert = insert.on_conflict_do_nothing(index_elements=names)
            if missing:
                self.connection.execute(insert, list(missing.values()))
            self.arrival.added += Counter({table.name: len(missing)})

    def compare(self, table: sa.Table, row: dict[str, Any], here: sa.RowMapping) -> None:
        may_differ = _MAY_DIFFER.get(table, set())
        if table is SWEEP and "shards" in row["host"] and "shards" in here["host"]:
            may_differ = may_differ | _SHARDS_DIFFER
        for name, value in row.items():
            if name not in may_differ and here[name] != value:
                keys = " ".join(one_line(row[name], 20) for name in _KEYS[table])
                raise RefusedError(
                    f"sweep {self.arrival.sweep_id} ({self.source.name}) contradicts {self.name}:"
                    f" {table.name} {keys} has {name} {one_line(here[name], 60)} there, but"
                    f" {one_line(value, 60)} in the import"
                )

    def take(self, table: sa.Table, where: Any) -> None:
        """Merge rows; drop ids of decisions, which belong to one database."""
        rows = list(self.source.rows(table, where))
        for row in rows:
            if "id" not in _KEYS[table]:
                row.pop("id", None)
            if row.get("overrides"):
                row["overrides"] = masked_db(row["overrides"])
        self.merge(table, rows)

    def copy_trials(self, sweep_id: str, with_samples: bool) -> bool:
        """Copy the trials of a new sweep within SQLite, check the copies and derive the results.
        Return False, with nothing copied, if that is impossible or a row may be invalid."""
        if {
            connection.dialect.name for connection in (self.connection, self.source.connection)
        } != {"sqlite"}:
            return False
        names = ", ".join(
            name
            for name in self.source.columns.get("trial", ())
            if name in TRIAL.c and name != "id"
        )
        ids = (
            "SELECT id AS old, :last + row_number() OVER (ORDER BY id) AS new FROM"
            f" {ATTACHED}.trial"
        )
        ids = f"({ids} WHERE sweep_id = :sweep)"
        blobs = (
            f"CASE WHEN typeof(data) = 'blob' AND length(data) <= {BLOB_LIMIT} THEN x'' ELSE"
            " data END"
        )
        added, known = Counter[str](), []

        def copied(table: sa.Table, insert: str, select: str, size: int) -> Iterator[list[Any]]:
            added[table.name] = cursor.execute(f"INSERT INTO {table.name} {insert}", given).rowcount
            cursor.execute(
                f"SELECT {select} FROM {table.name} WHERE {table.primary_key.columns[0]} > :last",
                given,
            )
            return iter(partial(cursor.fetchmany, size), [])

        try:
            with self.connection.begin_nested():
                self.source.attach(self.connection)
                given = {
                    "sweep": sweep_id,
                    "last": self.connection.scalar(sa.select(sa.func.max(TRIAL.c.id))) or 0,
                }
                cursor = self.connection.connection.cursor()  # SQLAlchemy's rows take longer
                insert = (
                    f"(id, {names}) SELECT new, {names} FROM {ids} JOIN {ATTACHED}.trial ON id"
                    " = old"
                )
                for rows in copied(TRIAL, insert, ", ".join(TRIAL.c.keys()), CHECKED):
                    require_sound(TRIAL, rows)
                    known += summary_rows(rows)
                facts = "timer, count, stored, codec"
                insert = (
                    f"SELECT new, {facts}, data FROM {ids} JOIN {ATTACHED}.sample ON trial_id = old"
                )
                for rows in (
                    copied(SAMPLE, insert, f"trial_id, {facts}, {blobs}", CHUNK)
                    if with_samples
                    else ()
                ):
                    require_sound(SAMPLE, rows)
                rebuild_results(self.connection, sweep_id, known=known)
        except Exception:  # whatever is wrong with the rows, checking them one by one names it
            # such as after a full disk
            if not self.connection.connection.driver_connection.in_transaction:
                raise
            return False
        self.arrival.added += added
        return True

    def take_trials(self, sweep_id: str, with_samples: bool) -> None:
        key_of = itemgetter(*_KEYS[TRIAL])
        keys: dict[int, tuple] = {}
        query = sa.select(TRIAL.c.id).where(TRIAL.c.sweep_id == sweep_id)
        for chunk in batched((row.id for row in self.source.fetch(query)), CHUNK):
            trials = list(self.source.rows(TRIAL, TRIAL.c.id.in_(chunk)))
            keys |= {row.pop("id"): key_of(row) for row in trials}
            self.merge(TRIAL, trials)
        query = sa.select(TRIAL.c.id, *(TRIAL.c[name] for name in _KEYS[TRIAL])).where(
            TRIAL.c.sweep_id == sweep_id
        )
        here = {tuple(key): trial_id for trial_id, *key in self.connection.execute(query)}
        for chunk in batched(keys if with_samples else (), CHUNK):
            samples = self.source.rows(SAMPLE, SAMPLE.c.trial_id.in_(chunk))
            self.merge(SAMPLE, [row | {"trial_id": here[keys[row["trial_id"]]]} for row in samples])

    def go_on(self, row: dict[str, Any]) -> bool:
        """Take over the source's state if it brought trials or ended later; return whether this
        changed the state.

        Mark a sweep that ran here as imported if the source changes its plan or state.
        """
        here = (
            self.connection.execute(sa.select(SWEEP).where(SWEEP.c.id == row["id"]))
            .mappings()
            .one()
        )
        ended, ended_here = row["finished_at"], here["finished_at"]
        is_newer = self.arrival.added["trial"] or (
            ended and (ended_here is None or ended > ended_here)
        )
        host = sweeps.with_shards(here["host"], row["host"])
        state = {"host": host} | ({"state": row["state"], "finished_at": ended} if is_newer else {})
        if "shards" in row["host"]:
            state["state"] = sweeps.state_of(host["shards"])
            state["started_at"] = min(row["started_at"], here["started_at"])
            state["finished_at"] = max(filter(None, (ended, ended_here)), default=None)
        has_changed = any(here[name] != value for name, value in state.items())
        if here["imported_at"] is None and (has_changed or self.arrival.added["sweep_cell"]):
            state["imported_at"] = now()
            self.arrival.notes.append(
                "it ran here, but now counts as imported: its plan or state has changed"
            )
        self.connection.execute(sa.update(SWEEP).where(SWEEP.c.id == row["id"]).values(**state))
        return has_changed


def write_file(
    source: Source, sweep_ids: Sequence[str], path: Path, *, samples: bool = True
) -> None:
    """Write whole sweeps into a new, compact SQLite file. Raises RefusedError for the first damaged
    sweep."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            # wastes less space with rows of 2 to 3 kB
            connection.execute("PRAGMA page_size = 2048")
            connection.execute(f"PRAGMA application_id = {EXPORT_ID}")
    except sqlite3.Error as error:  # else it would count as an error of the source
        raise connect.explain(error, str(path)) from error
    with Store.open(path, mode="write", bulk=True) as store:
        for arrival in copy(source, store, sweep_ids, baselines=True, samples=samples):
            if arrival.reason:
                raise RefusedError(arrival.reason)
