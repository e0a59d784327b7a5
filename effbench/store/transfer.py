"""Copy whole sweeps from one database into another.

Every sweep is one transaction. A sweep that is there already stays, or is replaced if it has grown
since; it is refused if it differs otherwise. The target's constraints refuse values that are not
allowed, and results are derived from the trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection, select

from effbench.core.printable import one_line
from effbench.store import connect, schema, sweeps
from effbench.store.schema import (
    CELL,
    ENVIRONMENT,
    PLANNED,
    SAMPLE,
    SWEEP,
    TRACE,
    TRIAL,
    VERDICT,
)
from effbench.store.secrets import masked, masked_db
from effbench.store.source import RefusedError, Source
from effbench.store.store import Store
from effbench.store.trials import rebuild_results
from effbench.store.values import Columns, Condition, batched, now

CopyOutcome = Literal["imported", "replaced", "already there", "refused"]
#: trials, or other rows, inserted at a time; a trial has at most about 60 kB of samples, and
#: a trace of 1 MiB
CHUNK = 100
#: columns that identify a trial and its recording
_RECORDING = ("cell_key", "environment_id", "round", "attempt", "status", "recorded_at")
#: columns that identify a verdict
_JUDGEMENT = ("claim", "experiment", "environment_id", "judged_at")


@dataclass(frozen=True)
class Arrival:
    """The outcome of copying one sweep. `trials`: number of new trials; `reason`: why the sweep was
    refused."""

    sweep_id: str
    name: str | None = None
    outcome: CopyOutcome = "refused"
    trials: int = 0
    reason: str | None = None


def copy(source: Source, target: Store, sweep_ids: Iterable[str]) -> Iterator[Arrival]:
    """Copy these sweeps, one transaction each; yield the outcome of each. A sweep that is damaged
    or contradicts `target` is refused, and the next one follows. Raises StoreError if a database
    fails."""
    for sweep_id in sweep_ids:
        shown_id = one_line(sweep_id, 64)
        try:
            with target.writing() as connection:
                arrival = SweepCopy(source, connection, sweep_id).copy()
        except RefusedError as error:
            arrival = Arrival(shown_id, reason=str(error))
        except (ArithmeticError, TypeError, ValueError, connect.ValueRefusedError) as error:
            arrival = Arrival(
                shown_id,
                reason=f"{source.name}: sweep {shown_id} is damaged: {one_line(error, 200)}",
            )
        yield arrival


@dataclass
class SweepCopy:
    """Copies one sweep into a database."""

    source: Source
    connection: Connection
    sweep_id: str

    def copy(self) -> Arrival:
        (row,) = self.source.rows(SWEEP, SWEEP.c.id == self.sweep_id)
        row["command"] = masked(row["command"])
        row["overrides"] = masked_db(row["overrides"])
        row["imported_at"] = now()
        outcome = self.make_room(row)
        trials = 0
        is_of_sweep = TRIAL.c.sweep_id == self.sweep_id
        environments = select(TRIAL.c.environment_id).where(is_of_sweep)
        if outcome != "already there":
            is_planned = PLANNED.c.sweep_id == self.sweep_id
            cells = select(PLANNED.c.cell_key).where(is_planned)
            self.share(ENVIRONMENT, ENVIRONMENT.c.id.in_(environments))
            self.share(CELL, CELL.c.key.in_(cells))
            self.take_plan(is_planned)
            trials = self.take_trials(is_of_sweep)
            rebuild_results(self.connection, self.sweep_id)
        self.take_verdicts(environments)
        return Arrival(self.sweep_id, row["name"], outcome, trials)

    def make_room(self, row: Columns) -> CopyOutcome:
        """Add this row of `sweep`. If the sweep is there and has grown in the source since, replace
        its row and remove its trials. Raises RefusedError if it differs otherwise."""
        if sweeps.add_sweep(self.connection, row):
            return "imported"
        known = sweeps.lock(self.connection, self.sweep_id, "state")
        query = select(*TRIAL.c[_RECORDING]).filter_by(sweep_id=self.sweep_id)
        there = set(map(tuple, self.connection.execute(query)))
        here = set(map(tuple, self.source.fetch(query)))
        if not (here <= there or here >= there):
            raise RefusedError(
                f"sweep {self.sweep_id} ({self.source.name}) contradicts"
                f" {connect.name_of(self.connection)}, which has other trials of it; import it into"
                " another database"
            )
        has_ended = row["state"] == "completed" and known.state != "completed"
        has_grown = here > there or (here == there and has_ended)
        if not has_grown:
            return "already there"
        sweeps.clear(self.connection, self.sweep_id)
        sweeps.update(self.connection, self.sweep_id, **row)
        return "replaced"

    def share(self, table: sa.Table, is_used: Condition) -> None:
        """Copy the rows that are not there, of a table whose rows several sweeps share."""
        insert = connect.insert(self.connection, table).on_conflict_do_nothing()
        for rows in batched(self.source.rows(table, is_used), CHUNK):
            self.connection.execute(insert, rows)

    def take_plan(self, is_planned: Condition) -> None:
        rows = list(self.source.rows(PLANNED, is_planned))
        for row in rows:
            if row["overrides"] is not None:
                row["overrides"] = masked_db(row["overrides"])
        self.insert(PLANNED, rows)

    def take_trials(self, is_of_sweep: Condition) -> int:
        """Copy the trials, which get numbers of this database, with their samples and traces;
        return how many there are."""
        number = 0
        insert = sa.insert(TRIAL).returning(TRIAL.c.id, sort_by_parameter_order=True)
        for trials in batched(self.source.rows(TRIAL, is_of_sweep), CHUNK):
            ids = [trial.pop("id") for trial in trials]
            numbers = dict(zip(ids, self.connection.scalars(insert, trials), strict=True))
            number += len(trials)
            for table in (SAMPLE, TRACE):
                rows = list(self.source.rows(table, table.c.trial_id.in_(numbers)))
                for row in rows:
                    row["trial_id"] = numbers[row["trial_id"]]
                self.insert(table, rows)
        return number

    def take_verdicts(self, environments: sa.Select[Any]) -> None:
        """Copy the verdicts that are not there, of this sweep, or of checks of behaviour in its
        environments, which belong to no sweep."""
        # they have no unique key: another import of the same ones must wait
        schema.lock(self.connection)
        known = set(map(tuple, self.connection.execute(select(*VERDICT.c[_JUDGEMENT]))))
        is_of_sweep = sa.func.coalesce(VERDICT.c.sweep_id, self.sweep_id) == self.sweep_id
        new = []
        for row in self.source.rows(
            VERDICT, is_of_sweep, VERDICT.c.environment_id.in_(environments)
        ):
            del row["id"]
            if itemgetter(*_JUDGEMENT)(row) not in known:
                new.append(row)
        self.insert(VERDICT, new)

    def insert(self, table: sa.Table, rows: Sequence[Columns]) -> None:
        if rows:
            self.connection.execute(sa.insert(table), rows)


def write_file(source: Source, sweep_ids: Sequence[str], path: Path) -> None:
    """Write whole sweeps into a new SQLite file. Raises RefusedError for the first damaged
    sweep."""
    with Store.open(path, mode="write", bulk=True) as store:
        for arrival in copy(source, store, sweep_ids):
            if arrival.reason:
                raise RefusedError(arrival.reason)
