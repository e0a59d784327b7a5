"""Copy whole sweeps from one database into another.

Rows are identified by keys that are the same in every database. Missing rows are added and others
are compared; a difference refuses the sweep. Every sweep is one transaction. The target's
constraints refuse values that are not allowed, and results are derived from the trials.
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

from effbench.core.errors import StoreError
from effbench.core.printable import one_line
from effbench.store import connect, sweeps
from effbench.store.schema import (
    CELL,
    ENVIRONMENT,
    PLANNED,
    SAMPLE,
    SWEEP,
    TRIAL,
    VERDICT,
)
from effbench.store.secrets import masked, masked_db
from effbench.store.source import RefusedError, Source
from effbench.store.store import Store
from effbench.store.trials import rebuild_results
from effbench.store.values import batched, now

Row = dict[str, Any]
#: rows compared or inserted at a time; a trial with its samples has at most about 60 kB
CHUNK = 500
#: table -> columns that identify a row
_KEYS = {
    SWEEP: ("id",),
    ENVIRONMENT: ("id",),
    CELL: ("key",),
    PLANNED: ("sweep_id", "cell_key"),
    TRIAL: ("sweep_id", "cell_key", "environment_id", "round", "attempt"),
    SAMPLE: ("trial_id", "timer"),
    VERDICT: ("claim", "experiment", "environment_id", "judged_at"),
}
#: table -> columns that may differ: a sweep may have continued, and passwords are masked
_MAY_DIFFER = {
    SWEEP: {
        "state",
        "finished_at",
        "imported_at",
        "command",
        "overrides",
        "host",
    },
    ENVIRONMENT: {"details", "first_seen_at"},
    PLANNED: {"overrides"},
}
#: tables in which a sweep that is not there yet has no row
_OF_ONE_SWEEP = (PLANNED, TRIAL, SAMPLE)


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
) -> Iterator[Arrival]:
    """Copy these sweeps, one transaction each; yield the outcome of each. A sweep that is damaged
    or contradicts `target` is refused, and the next one follows. Raises StoreError if a database
    fails."""
    for sweep_id in sweep_ids:
        attempt = partial(
            _copy_sweep,
            source,
            target,
            sweep_id,
        )
        try:
            yield connect.repeated(attempt, target.name)
        except RefusedError as error:
            yield Arrival(one_line(sweep_id, 64), outcome="refused", reason=str(error))


def _copy_sweep(
    source: Source,
    target: Store,
    sweep_id: str,
) -> Arrival:
    """Copy a sweep in one transaction. Raises RefusedError if it is damaged or contradicts
    `target`."""
    arrival = Arrival(one_line(sweep_id, 64))
    try:
        with target.writing() as connection:
            copying = SweepCopy(
                source,
                connection,
                sweep_id,
                arrival,
            )
            copying.copy()
            return arrival
    except (ArithmeticError, TypeError, ValueError) as error:
        fault: Exception = error
    except StoreError as error:
        cause = error.__cause__
        # also of a value that is not even passed on to the database
        is_about_values = isinstance(cause, exc.IntegrityError | exc.DataError)
        if not is_about_values and type(cause) is not exc.StatementError:
            raise
        fault = getattr(cause, "orig", None) or error
    what = f"sweep {arrival.sweep_id} is damaged: {one_line(fault, 100)}"
    raise RefusedError(f"{source.name}: {what}") from fault


@dataclass
class SweepCopy:
    """Copies one sweep into a database. `is_new`: the database does not know it yet."""

    source: Source
    connection: sa.Connection
    sweep_id: str
    arrival: Arrival
    is_new: bool = False

    def copy(self) -> None:
        (row,) = self.read(SWEEP, SWEEP.c.id == self.sweep_id)
        row["command"] = masked(row["command"])
        row["imported_at"] = now()
        self.arrival.name = row["name"]
        self.is_new = sweeps.add_sweep(self.connection, row)
        if not self.is_new:
            sweeps.lock(self.connection, self.sweep_id)
            self.merge(SWEEP, [row])
        of_sweep = TRIAL.c.sweep_id == self.sweep_id
        is_planned = PLANNED.c.sweep_id == self.sweep_id
        environments = sa.select(TRIAL.c.environment_id).where(of_sweep)
        cells = sa.select(PLANNED.c.cell_key).where(is_planned)
        self.take(ENVIRONMENT, ENVIRONMENT.c.id.in_(environments))
        self.take(CELL, CELL.c.key.in_(cells))
        self.take(PLANNED, is_planned)
        self.take(TRIAL, of_sweep)
        self.take_samples(of_sweep)
        # verdicts have no unique key: another import of the same ones must wait
        ordered = sa.select(ENVIRONMENT.c.id).order_by(ENVIRONMENT.c.id)
        self.connection.execute(ordered.with_for_update(key_share=True))
        # a verdict of behaviour checks belongs to no sweep
        is_of_sweep = sa.func.coalesce(VERDICT.c.sweep_id, self.sweep_id) == self.sweep_id
        self.take(VERDICT, is_of_sweep, VERDICT.c.environment_id.in_(environments))
        has_gone_on = not self.is_new and self.go_on(row)
        if self.is_new or self.arrival.added["trial"]:
            rebuild_results(self.connection, self.sweep_id)
        if self.is_new:
            self.arrival.outcome = "imported"
        elif has_gone_on or self.arrival.added:
            self.arrival.outcome = "completed"

    def read(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> Iterator[Row]:
        """Yield rows of the source without ids that belong to one database, and without
        passwords."""
        for row in self.source.rows(table, *where):
            if "id" not in _KEYS[table]:
                row.pop("id", None)
            if row.get("overrides"):
                row["overrides"] = masked_db(row["overrides"])
            yield row

    def take(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> None:
        for rows in batched(self.read(table, *where), CHUNK):
            self.merge(table, rows)

    def take_samples(self, of_sweep: sa.ColumnElement[bool]) -> None:
        """Take the samples, which belong to trials by their numbers here."""
        query = sa.select(TRIAL.c.id, *TRIAL.c[_KEYS[TRIAL]]).where(of_sweep)
        numbers = {tuple(row[1:]): row.id for row in self.connection.execute(query)}
        trials = {row.id: numbers[tuple(row[1:])] for row in self.source.fetch(query)}
        in_sweep = SAMPLE.c.trial_id.in_(sa.select(TRIAL.c.id).where(of_sweep))
        for samples in batched(self.read(SAMPLE, in_sweep), CHUNK):
            for sample in samples:
                sample["trial_id"] = trials[sample["trial_id"]]
            self.merge(SAMPLE, samples)

    def merge(self, table: sa.Table, rows: Sequence[Row]) -> None:
        """Insert missing rows and count them. Raises RefusedError for an existing row that
        differs."""
        names = _KEYS[table]
        key_of = itemgetter(*names)
        missing = {key_of(row): row for row in rows}
        if not (self.is_new and table in _OF_ONE_SWEEP):
            may_be_same = [table.c[name].in_({row[name] for row in rows}) for name in names]
            query = sa.select(table).where(*may_be_same)
            for known in self.connection.execute(query).mappings():
                row = missing.pop(key_of(known), None)
                if row is not None:
                    self.compare(table, row, known)
        if not missing:
            return
        insert = connect.insert(self.connection, table)
        # another import may have been faster
        if names == tuple(table.primary_key.columns.keys()):
            insert = insert.on_conflict_do_nothing(index_elements=names)
        self.connection.execute(insert, list(missing.values()))
        self.arrival.added[table.name] += len(missing)

    def compare(
        self,
        table: sa.Table,
        row: Row,
        known: sa.RowMapping,
    ) -> None:
        """Raise RefusedError if a row differs from the one that is there."""
        may_differ = _MAY_DIFFER.get(table, set())
        for name, value in row.items():
            if name not in may_differ and known[name] != value:
                keys = " ".join(one_line(row[name], 20) for name in _KEYS[table])
                raise RefusedError(
                    f"sweep {self.arrival.sweep_id} ({self.source.name}) contradicts"
                    f" {connect.name_of(self.connection)}: {table.name} {keys} has {name}"
                    f" {one_line(known[name], 60)} there, but {one_line(value, 60)} in the import"
                )

    def go_on(self, row: Row) -> bool:
        """Take over the source's state if it brought trials or ended later; return whether this
        changed the state.

        Mark a sweep that ran here as imported if the source changes its plan or state.
        """
        names = ("state", "finished_at", "host", "imported_at")
        known = sweeps.lock(self.connection, self.sweep_id, *names)._mapping
        ends = [end for end in (row["finished_at"], known["finished_at"]) if end is not None]
        last = max(ends, default=None)
        environments = {
            **(row["host"].get("environments") or {}),
            **(known["host"].get("environments") or {}),
        }
        state: Row = {"host": {**known["host"], "environments": environments}}
        if self.arrival.added["trial"] or last != known["finished_at"]:
            state |= {name: row[name] for name in ("state", "finished_at")}
        has_changed = any(known[name] != value for name, value in state.items())
        if known["imported_at"] is None and (has_changed or self.arrival.added["sweep_cell"]):
            state["imported_at"] = now()
            self.arrival.notes.append(
                "it ran here, but now counts as imported: its plan or state has changed"
            )
        sweeps.update(self.connection, self.sweep_id, **state)
        return has_changed


def write_file(
    source: Source,
    sweep_ids: Sequence[str],
    path: Path,
) -> None:
    """Write whole sweeps into a new, compact SQLite file. Raises RefusedError for the first damaged
    sweep."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            # wastes less space with rows of 2 to 3 kB
            connection.execute("PRAGMA page_size = 2048")
            connection.execute("VACUUM")  # writes the empty file with these pages
    except sqlite3.Error as error:  # else it would count as an error of the source
        raise connect.explain(error, str(path)) from error
    with Store.open(path, mode="write", bulk=True) as store:
        for arrival in copy(source, store, sweep_ids):
            if arrival.reason:
                raise RefusedError(arrival.reason)
