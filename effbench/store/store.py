"""The database of results, behind one class."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.analysis.summary import last_attempts
from effbench.cell import Cell, Environment, Status, Trial
from effbench.errors import StoreError
from effbench.store import calibration, connect, derive, samples, sweeps, verdicts
from effbench.store.refusal import refused
from effbench.store.schema import (
    RESULTS,
    CellRow,
    EnvironmentRow,
    ResultRow,
    SampleRow,
    SweepCellRow,
    SweepRow,
    TrialRow,
)
from effbench.store.sweeps import STATES, SweepInfo
from effbench.store.values import cell_row, now, scalar, trial_of, trial_row

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

ENVIRONMENT, SWEEP, CELL, PLANNED, TRIAL, SAMPLE, RESULT = (
    row.__table__ for row in (EnvironmentRow, SweepRow, CellRow, SweepCellRow, TrialRow, SampleRow, ResultRow)
)
#: rows in one statement: below SQLite's limit of bound values
_CHUNK = 500


class Store:
    """A results database: SQLite by default, PostgreSQL the same.

    One Store belongs to one process: open it after a fork, never carry it across one. Within the process every method
    may be called from any thread; writes are serialised, reads run beside them. Several processes may write to one
    database at the same time: each waits for the other's transaction (30 s on SQLite, then StoreError). What a method
    has returned from is committed: killing the process loses the trial in flight and nothing else.

    Close it, or use it as a context manager. Every method raises StoreError where the database fails.
    """

    def __init__(self, engine: sa.Engine, name: str, *, writable: bool) -> None:
        """Use `Store.open`."""
        self._engine = engine
        self._writer = engine.execution_options(**{connect.WRITE_OPTION: True})
        self._lock = threading.Lock()
        self._writable = writable
        self.name = name

    @classmethod
    def open(cls, url: str | os.PathLike[str], *, mode: Literal["read", "write"] = "read") -> Self:
        """Open the database at `url`: a SQLAlchemy URL or the path of a SQLite file.

        "write" makes a missing SQLite file, its folder and the schema of an empty database; "read" changes nothing,
        and works where it may not write. Raises StoreError for what cannot be opened, SchemaError for an older or
        newer schema.
        """
        if mode not in ("read", "write"):
            raise ValueError(f"mode must be 'read' or 'write', not {mode!r}")
        parsed = connect.parse_url(url)
        name = connect.describe(parsed)
        write = mode == "write"
        engine = connect.connect(parsed, write=write, create=write)
        store = cls(engine, name, writable=write)
        try:
            store._prepare(write)
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self, write: bool) -> None:
        with self._reading() as connection:
            current = connect.revision(connection)
        if current is None:
            if not write:
                raise StoreError(f"{self.name} is empty; `effbench -m mode=eager,default db={self.name}` fills it")
            current = self._create()
        connect.require_head(current, self.name)
        if write and self._engine.dialect.name == "sqlite":
            with self._translated():
                connect.use_wal(self._engine)

    def _create(self) -> str:
        from effbench.store.migrate import migrate

        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                # two processes that both found it empty: the second waits, then finds the schema
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(20823501)"))
            if connect.revision(connection) is None:
                migrate(connection)
            current = connect.revision(connection)
        assert current is not None
        return current

    def close(self) -> None:
        """Close every connection. The Store cannot be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def begin_sweep(
        self,
        *,
        name: str | None,
        label: str | None,
        command: list[str],
        overrides: list[str],
        protocol: dict[str, Any],
        baseline_mode: str,
        seed: int,
        git_revision: str | None,
        host: dict[str, Any],
        plan: Sequence[Cell],
        rounds: int,
    ) -> str:
        """Store a sweep in state `running` with its planned cells, in one transaction; return its id.

        The id starts with the time (UTC), so ids sort by it: `20261121-143052-7f3a`. A cell that is planned twice
        counts once, at its first position.
        """
        started = now()
        values = {
            "name": name,
            "label": label,
            "state": "running",
            "started_at": started,
            "finished_at": None,
            "command": command,
            "overrides": overrides,
            "protocol": protocol,
            "baseline_mode": baseline_mode,
            "seed": seed,
            "rounds": rounds,
            "git_revision": git_revision,
            "host": host,
        }
        values = {key: scalar(value) for key, value in values.items()}
        with self._writing() as connection:
            while True:
                sweep_id = f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
                insert = self._insert(SWEEP).values(id=sweep_id, **values).on_conflict_do_nothing()
                if connection.execute(insert).rowcount:
                    break
            self._plan(connection, sweep_id, plan, 0)
        return sweep_id

    def extend_sweep(self, sweep_id: str, cells: Iterable[Cell]) -> None:
        """Plan further cells after those of the sweep; what is planned already stays where it is."""
        with self._writing() as connection:
            sweeps.lock(connection, sweep_id, self.name)
            last = connection.execute(
                sa.select(sa.func.max(PLANNED.c.position)).where(PLANNED.c.sweep_id == sweep_id)
            ).scalar()
            known = set(connection.scalars(sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == sweep_id)))
            fresh = [cell for cell in cells if cell.key not in known]
            self._plan(connection, sweep_id, fresh, 0 if last is None else last + 1)

    def _plan(self, connection: sa.Connection, sweep_id: str, cells: Iterable[Cell], first: int) -> None:
        rows = list({row["key"]: row for row in map(cell_row, cells)}.values())
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            connection.execute(self._insert(CELL).on_conflict_do_nothing(), chunk)
            connection.execute(
                sa.insert(PLANNED),
                [
                    {"sweep_id": sweep_id, "cell_key": row["key"], "position": first + start + index}
                    for index, row in enumerate(chunk)
                ],
            )

    def add_environment(self, env: Environment, details: dict[str, Any]) -> str:
        """Store an environment once; return its id. `details` are kept as they were the first time."""
        values = {name: scalar(getattr(env, name)) for name in env.__dataclass_fields__}
        with self._writing() as connection:
            connection.execute(
                self._insert(ENVIRONMENT)
                .values(id=env.id, **values, details=details, first_seen_at=now())
                .on_conflict_do_nothing()
            )
        return env.id

    def record(self, sweep_id: str, environment_id: str, trial: Trial) -> int:
        """Store a trial with its samples, and rewrite the results that it bears on, in one transaction.

        Those are its cell's, and, for a trial of the baseline mode, all that are compared with it. Returns the trial's
        id. Raises StoreError for a trial that is recorded already, or whose cell or environment is unknown.
        """
        row = trial_row(trial)
        blobs = [
            {"timer": scalar(timer), "count": len(values), "codec": samples.CODEC, "encoded": samples.encode(values)}
            for timer, values in trial.samples.items()
        ]
        with self._writing() as connection:
            baseline_mode = sweeps.lock(connection, sweep_id, self.name)
            try:
                with connection.begin_nested():
                    inserted = connection.execute(
                        sa.insert(TRIAL).values(sweep_id=sweep_id, environment_id=environment_id, **row)
                    )
            except exc.IntegrityError as error:
                raise refused(connection, sweep_id, environment_id, trial, error, self.name) from error
            trial_id = inserted.inserted_primary_key[0]
            for blob in blobs:
                stored, data = blob.pop("encoded")
                connection.execute(sa.insert(SAMPLE).values(trial_id=trial_id, stored=stored, data=data, **blob))
            derive.write(
                connection,
                derive.derive(connection, sweep_id, baseline_mode, environment_id=environment_id, only=trial.cell_key),
            )
        return trial_id

    def finish_sweep(self, sweep_id: str, state: str) -> None:
        """Set the state (completed, interrupted, failed) and the time of the end; `running` takes the end back."""
        if state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}, not {state!r}")
        finished = None if state == "running" else now()
        with self._writing() as connection:
            sweeps.lock(connection, sweep_id, self.name)
            connection.execute(sa.update(SWEEP).where(SWEEP.c.id == sweep_id).values(state=state, finished_at=finished))

    def add_calibration(self, environment_id: str, gpu_uuid: str | None, **measured: dict[str, Any] | None) -> None:
        """Store `ceilings`, `noise` or both (docs/measuring.md) of this environment; older ones are kept."""
        with self._writing() as connection:
            calibration.add(connection, environment_id, gpu_uuid, **measured)

    def add_verdicts(self, environment_id: str, judged: Iterable[dict[str, Any]]) -> None:
        """Store rows of `claim_verdict` (less their environment and time), all or none."""
        with self._writing() as connection:
            verdicts.add(connection, environment_id, judged)

    def rebuild_results(self, sweep_id: str) -> None:
        """Derive every result of the sweep again from its trials."""
        with self._writing() as connection:
            baseline_mode = sweeps.lock(connection, sweep_id, self.name)
            derive.rewrite(connection, sweep_id, baseline_mode)

    # --- reading -----------------------------------------------------------------------------------------------------

    def find_sweep(self, ref: str) -> SweepInfo:
        """The sweep that `ref` means: `last`, an id, a name (the newest of it), or the unique start of an id.

        Raises NothingFoundError that names the nearest, or what exists.
        """
        with self._reading() as connection:
            return sweeps.find(connection, ref, self.name)

    def sweeps(self) -> list[SweepInfo]:
        """All sweeps, newest first."""
        with self._reading() as connection:
            return sweeps.all_sweeps(connection)

    def planned(self, sweep_id: str) -> list[Cell]:
        """The cells of the sweep in the order of the plan."""
        query = (
            sa.select(CELL.c.params)
            .join(PLANNED, PLANNED.c.cell_key == CELL.c.key)
            .where(PLANNED.c.sweep_id == sweep_id)
            .order_by(PLANNED.c.position)
        )
        with self._reading() as connection:
            return [Cell.from_params(params) for params in connection.scalars(query)]

    def recorded(self, sweep_id: str, environment_id: str) -> dict[tuple[str, int], Status]:
        """(cell key, round) of every trial in the sweep and environment, with the status of its last attempt."""
        query = (
            sa.select(TRIAL.c.cell_key, TRIAL.c.round, TRIAL.c.status)
            .where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id == environment_id)
            .order_by(TRIAL.c.attempt)
        )
        with self._reading() as connection:
            return {(row.cell_key, row.round): Status(row.status) for row in connection.execute(query)}

    def calibration(self, environment_id: str) -> dict[str, Any] | None:
        """The environment's newest `ceilings` and `noise`, with `measured_at` and `gpu_uuid`; None without either."""
        with self._reading() as connection:
            return calibration.newest(connection, environment_id)

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
        """Cell key -> its recorded trials (last attempts) in the sweep and environment, without samples."""
        query = sa.select(TRIAL).where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id == environment_id)
        found: dict[str, list[Trial]] = {}
        for row in self._rows(query.order_by(TRIAL.c.round, TRIAL.c.attempt)):
            found.setdefault(row["cell_key"], []).append(trial_of(row))
        return {key: last_attempts(trials) for key, trials in found.items()}

    def results(self, sweep_id: str | None = None) -> list[dict[str, Any]]:
        """Rows of the view `results` of one sweep or of all: oldest sweep first, then in the order of the plan.

        `params` is a dict, `started_at` an aware UTC datetime.
        """
        query = (
            sa.select(RESULTS)
            .join(
                PLANNED,
                sa.and_(PLANNED.c.sweep_id == RESULTS.c.sweep_id, PLANNED.c.cell_key == RESULTS.c.cell_key),
            )
            .order_by(RESULTS.c.started_at, RESULTS.c.sweep_id, PLANNED.c.position, RESULTS.c.environment_id)
        )
        if sweep_id is not None:
            query = query.where(RESULTS.c.sweep_id == sweep_id)
        return self._rows(query)

    def verdicts(self) -> list[dict[str, Any]]:
        """The newest judgement of each claim by each experiment on each GPU (or CPU)."""
        with self._reading() as connection:
            return verdicts.newest(connection)

    def results_frame(self, sweep_id: str | None = None) -> pd.DataFrame:
        """`results` as a DataFrame with the view's columns in order, also when it is empty.

        Every figure is float64 with NaN for NULL (`bs` and `trials` int64), `started_at` is UTC, `params` dicts.
        """
        from effbench.store.frames import results_frame

        return results_frame(self.results(sweep_id))

    def trials(self, sweep_id: str) -> list[dict[str, Any]]:
        """Every row of `trial` of the sweep, in the order they were recorded, all attempts."""
        return self._rows(sa.select(TRIAL).where(TRIAL.c.sweep_id == sweep_id).order_by(TRIAL.c.id))

    def samples(self, trial_id: int) -> dict[str, np.ndarray]:
        """Timer -> float32 array of the trial's raw samples in order, at most 5,000; ms unless the name says else."""
        rows = self._rows(sa.select(SAMPLE).where(SAMPLE.c.trial_id == trial_id).order_by(SAMPLE.c.timer))
        return {row["timer"]: samples.decode(row["codec"], row["data"], row["stored"]) for row in rows}

    def environments(self, ids: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Rows of `environment` (all, or those of `ids`), with `flags` and `details` as dicts, oldest first."""
        query = sa.select(ENVIRONMENT).order_by(ENVIRONMENT.c.first_seen_at, ENVIRONMENT.c.id)
        if ids is None:
            return self._rows(query)
        wanted = list(dict.fromkeys(ids))
        return self._rows(query.where(ENVIRONMENT.c.id.in_(wanted))) if wanted else []

    @staticmethod
    def upgrade(url: str | os.PathLike[str]) -> tuple[str | None, str]:
        """Bring an existing database to this version's schema; returns its revision before and after."""
        from effbench.store.upkeep import upgrade

        return upgrade(url)

    @staticmethod
    def check(url: str | os.PathLike[str]) -> list[str]:
        """What is wrong with the database, one line each; empty where all is well."""
        from effbench.store.upkeep import check

        return check(url)

    # --- within ------------------------------------------------------------------------------------------------------

    def _rows(self, query: sa.Select) -> list[dict[str, Any]]:
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if not self._writable:
            raise StoreError(f"{self.name} is open for reading only")
        with self._lock, self._translated(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise connect.explain(error, self.name) from error

    def _insert(self, table: sa.Table) -> Any:
        if self._engine.dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import insert
        else:
            from sqlalchemy.dialects.sqlite import insert
        return insert(table)
