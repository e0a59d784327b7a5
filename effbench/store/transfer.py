"""Copy whole sweeps from one database into another.

Every sweep is one transaction. A sweep that is there already stays, or is replaced if it has grown
since; it is refused if it differs otherwise. The target's constraints refuse values that are not
allowed, and results are derived from the trials.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
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
Fetch = Callable[[sa.Select[Any]], Iterable[sa.Row[Any]]]
CopyOutcome = Literal["imported", "replaced", "already there", "refused"]
#: rows inserted at a time; a trial with its samples has at most about 60 kB
CHUNK = 500
#: table of which several sweeps use a row -> columns that identify one
_KEYS = {
    ENVIRONMENT: ("id",),
    CELL: ("key",),
    VERDICT: ("claim", "experiment", "environment_id", "judged_at"),
}
#: tables whose `id` is a number that belongs to one database
_NUMBERED = (TRIAL, VERDICT)
#: columns that identify a trial in every database
_TRIAL_KEY = ("sweep_id", "cell_key", "environment_id", "round", "attempt")
#: columns that a sweep keeps when it continues
_LASTING = ("name", "label", "started_at", "baseline_mode", "seed", "git_revision")


@dataclass
class Arrival:
    """The outcome of copying one sweep. `added`: table -> number of new rows; `note`: a remark for
    the user."""

    sweep_id: str
    name: str | None = None
    outcome: CopyOutcome = "already there"
    added: Counter[str] = field(default_factory=Counter)
    note: str | None = None
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
    """Copies one sweep into a database."""

    source: Source
    connection: sa.Connection
    sweep_id: str
    arrival: Arrival

    def copy(self) -> None:
        (row,) = self.read(SWEEP, SWEEP.c.id == self.sweep_id)
        row["command"] = masked(row["command"])
        row["imported_at"] = now()
        self.arrival.name = row["name"]
        self.arrival.outcome = self.make_room(row)
        of_sweep = TRIAL.c.sweep_id == self.sweep_id
        environments = sa.select(TRIAL.c.environment_id).where(of_sweep)
        if self.arrival.outcome != "already there":
            is_planned = PLANNED.c.sweep_id == self.sweep_id
            cells = sa.select(PLANNED.c.cell_key).where(is_planned)
            self.take(ENVIRONMENT, ENVIRONMENT.c.id.in_(environments))
            self.take(CELL, CELL.c.key.in_(cells))
            self.take(PLANNED, is_planned)
            self.take(TRIAL, of_sweep)
            self.take_samples(of_sweep)
            rebuild_results(self.connection, self.sweep_id)
        # verdicts have no unique key: another import of the same ones must wait
        ordered = sa.select(ENVIRONMENT.c.id).order_by(ENVIRONMENT.c.id)
        self.connection.execute(ordered.with_for_update(key_share=True))
        # a verdict of behaviour checks belongs to no sweep
        is_of_sweep = sa.func.coalesce(VERDICT.c.sweep_id, self.sweep_id) == self.sweep_id
        self.take(VERDICT, is_of_sweep, VERDICT.c.environment_id.in_(environments))

    def make_room(self, row: Row) -> CopyOutcome:
        """Add this row of `sweep`. If the sweep is there and has grown in the source since, replace
        its row and remove its trials. Raises RefusedError if it differs otherwise."""
        if sweeps.add_sweep(self.connection, row):
            return "imported"
        known = sweeps.lock(self.connection, self.sweep_id, "state", "imported_at", *_LASTING)
        recorded_there = recorded(self.connection.execute, self.sweep_id)
        recorded_here = recorded(self.source.fetch, self.sweep_id)
        is_same = all(row[name] == getattr(known, name) for name in _LASTING)
        has_grown = recorded_here > recorded_there
        if recorded_here == recorded_there:
            has_grown = row["state"] == "completed" and known.state != "completed"
        if not is_same or not (has_grown or recorded_here <= recorded_there):
            raise RefusedError(
                f"sweep {self.arrival.sweep_id} ({self.source.name}) contradicts"
                f" {connect.name_of(self.connection)}, which has another sweep with this id, or"
                " other cells, trials or samples of it; import it into another database"
            )
        if not has_grown:
            return "already there"
        if known.imported_at is None:
            self.arrival.note = "it ran here, but now counts as imported: the import replaced it"
        sweeps.clear(self.connection, self.sweep_id)
        sweeps.update(self.connection, self.sweep_id, **row)
        return "replaced"

    def read(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> Iterator[Row]:
        """Yield rows of the source without ids that belong to one database, and without
        passwords."""
        for row in self.source.rows(table, *where):
            if table in _NUMBERED:
                del row["id"]
            if row.get("overrides"):
                row["overrides"] = masked_db(row["overrides"])
            yield row

    def take(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> None:
        """Copy rows; of tables that sweeps share, those that are not there."""
        for rows in batched(self.read(table, *where), CHUNK):
            self.insert(table, rows)

    def take_samples(self, of_sweep: sa.ColumnElement[bool]) -> None:
        """Take the samples, which belong to trials by their numbers here."""
        query = sa.select(TRIAL.c.id, *TRIAL.c[_TRIAL_KEY]).where(of_sweep)
        numbers = {tuple(row[1:]): row.id for row in self.connection.execute(query)}
        trials = {row.id: numbers[tuple(row[1:])] for row in self.source.fetch(query)}
        in_sweep = SAMPLE.c.trial_id.in_(sa.select(TRIAL.c.id).where(of_sweep))
        for samples in batched(self.read(SAMPLE, in_sweep), CHUNK):
            for sample in samples:
                sample["trial_id"] = trials[sample["trial_id"]]
            self.insert(SAMPLE, samples)

    def insert(self, table: sa.Table, rows: Sequence[Row]) -> None:
        """Insert rows and count them; of tables that sweeps share, those that are not there."""
        insert = connect.insert(self.connection, table)
        if table in _KEYS:
            rows = self.missing(table, rows)
            # another import may have been faster
            insert = insert.on_conflict_do_nothing()
        if rows:
            self.connection.execute(insert, rows)
            self.arrival.added[table.name] += len(rows)

    def missing(self, table: sa.Table, rows: Sequence[Row]) -> list[Row]:
        """Return the rows whose keys are not there."""
        names = _KEYS[table]
        may_be_same = [table.c[name].in_({row[name] for row in rows}) for name in names]
        query = sa.select(*table.c[names]).where(*may_be_same)
        key_of = itemgetter(*names)
        known = {key_of(row) for row in self.connection.execute(query).mappings()}
        return [row for row in rows if key_of(row) not in known]


def recorded(fetch: Fetch, sweep_id: str) -> set[bytes]:
    """Return digests of what a sweep has planned and measured, which are the same in every
    database. A sweep that continues only adds to them."""
    of_sweep = TRIAL.c.sweep_id == sweep_id
    of_trial = [column for column in TRIAL.c if column.name != "id"]
    of_sample = [column for column in SAMPLE.c if column.name != "trial_id"]
    queries = [
        sa.select(*PLANNED.c["cell_key", "position"]).filter_by(sweep_id=sweep_id),
        sa.select(*of_trial).where(of_sweep),
        sa.select(*TRIAL.c[_TRIAL_KEY], *of_sample).join_from(TRIAL, SAMPLE).where(of_sweep),
    ]
    digests = set()
    for query in queries:
        for row in fetch(query):
            digests.add(sha256(repr(tuple(row)).encode()).digest())
    return digests


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
