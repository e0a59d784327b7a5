"""The results database: how it is opened, transactions, and short errors."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Cell, Environment, Result, Trial
from effbench.config import db_setting
from effbench.errors import StoreError
from effbench.store import (
    connect,
    decisions,
    joining,
    maintenance,
    schema,
    sides,
    sweeps,
    trials,
)
from effbench.store.decisions import BaselineInfo
from effbench.store.joining import JoinedSweep
from effbench.store.sides import CellResult, Levels, Series
from effbench.store.sweeps import Recorded, Shard, SweepInfo
from effbench.store.trials import HostSpeeds, TakenSamples

if TYPE_CHECKING:
    from effbench.store.values import Samples

#: number of cells whose trials and samples are in memory at a time: about a hundred trials
CELLS = 20
P = ParamSpec("P")
R = TypeVar("R")


class Store:
    """A results database, in SQLite (the default) or PostgreSQL.

    A Store belongs to one process: open it after a fork. Every method may be called from any
    thread, is one transaction, and raises StoreError if the database fails. Several processes may
    write to one database: each waits for the other's transaction (on SQLite at most 30 s, then it
    raises StoreError). A server that restarts is waited for, also 30 s. The queries are functions
    of this package that take a connection, so that several can share a transaction.
    """

    def __init__(self, engine: sa.Engine, name: str, writable: bool, bulk: bool = False) -> None:
        self._engine = engine
        self._writer = connect.writing(engine)
        self._lock = threading.Lock()
        self._writable = writable
        self._bulk = bulk
        self.name = name

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        mode: Literal["read", "write"] = "read",
        bulk: bool = False,
    ) -> Self:
        """Open the database at `url`, a URL or the path of a SQLite file; "write" creates a missing
        one. `bulk`: a new SQLite file gets a write-ahead log when it is opened again, because the
        log doubles the time of large transactions. Raises StoreError, and SchemaError for another
        version's schema."""
        parsed = connect.parse_url(url)
        write = mode == "write"
        engine = connect.connect(parsed, write=write, create=write)
        store = cls(engine, connect.describe(parsed), write, bulk)
        try:
            store._prepare()
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self) -> None:
        """Require this version's schema; create it in an empty database that is opened for
        writing."""
        current = self._read(connect.revision)
        if current is None and not self._writable:
            run = f"effbench -m mode=eager,default{db_setting(self.name)}"
            raise connect.EmptyError(f"{self.name} is empty; `{run}` fills it")
        connect.require_head(current or self._write(_make_unless_there), self.name)
        is_new_bulk = self._bulk and current is None
        if self._writable and self._engine.dialect.name == "sqlite" and not is_new_bulk:
            self._use_write_ahead_log()

    def _use_write_ahead_log(self) -> None:
        """Turn it on for good; if another process locks the database, a later call will do it."""
        with self._translated(), self._engine.connect() as connection:
            cursor = connection.connection.cursor()
            with suppress(sqlite3.OperationalError):
                cursor.execute("PRAGMA journal_mode = WAL")

    # --- sweeps

    def sweeps(self, sweep_id: str | None = None, *, brief: bool = False) -> list[SweepInfo]:
        return self._read(sweeps.sweeps, sweep_id, brief=brief)

    def find_sweep(self, ref: str) -> SweepInfo:
        return self._read(sweeps.find_sweep, ref)

    def planned(self, sweep_id: str) -> list[Cell]:
        return self._read(sweeps.planned, sweep_id)

    def planned_cells(self, sweep_id: str) -> list[dict[str, Any]]:
        return self._read(sweeps.planned_cells, sweep_id)

    def cell_overrides(self, sweep_id: str) -> dict[str, list[str] | None]:
        return self._read(sweeps.cell_overrides, sweep_id)

    def environments(self, ids: Iterable[str] | None = None) -> list[dict[str, Any]]:
        return self._read(sweeps.environments, ids)

    def environments_of(self, sweep_id: str) -> list[dict[str, Any]]:
        return self._read(sweeps.environments_of, sweep_id)

    def hardware(self, sweep_id: str) -> list[str]:
        return self._read(sweeps.hardware, sweep_id)

    def recorded(self, sweep_id: str) -> Recorded:
        return self._read(sweeps.recorded, sweep_id)

    def first_rounds(self, sweep_id: str) -> list[int]:
        return self._read(sweeps.first_rounds, sweep_id)

    def calibration(self, environment_id: str) -> dict[str, Any] | None:
        return self._read(sweeps.calibration, environment_id)

    def begin_sweep(
        self,
        *,
        plan: Iterable[Cell],
        cell_overrides: Mapping[str, list[str]] | None = None,
        shard: Shard | None = None,
        **facts: Any,
    ) -> str:
        """Begin a sweep; see `sweeps.begin_sweep`."""
        begin = partial(sweeps.begin_sweep, plan=list(plan), cell_overrides=cell_overrides)
        return self._write(partial(begin, shard=shard, **facts))

    def extend_sweep(
        self,
        sweep_id: str,
        cells: Iterable[Cell],
        cell_overrides: Mapping[str, list[str]] | None = None,
    ) -> None:
        self._write(sweeps.extend_sweep, sweep_id, list(cells), cell_overrides)

    def note_environments(self, sweep_id: str, facts: dict[str, dict[str, Any]]) -> None:
        self._write(sweeps.note_environments, sweep_id, facts)

    def add_rounds(
        self,
        sweep_id: str,
        protocol: Mapping[str, Any],
        overrides: Sequence[str],
        starts_part: bool,
    ) -> None:
        self._write(sweeps.add_rounds, sweep_id, protocol, overrides, starts_part)

    def finish_sweep(self, sweep_id: str, state: str, shard: str | None = None) -> None:
        self._write(sweeps.finish_sweep, sweep_id, state, shard)

    def add_environment(self, env: Environment, details: dict[str, Any]) -> str:
        return self._write(sweeps.add_environment, env, details)

    def add_calibration(
        self, environment_id: str, gpu_uuid: str | None, ceilings: dict[str, Any]
    ) -> None:
        self._write(sweeps.add_calibration, environment_id, gpu_uuid, ceilings)

    def join(self, sweep_ids: Iterable[str], name: str) -> JoinedSweep:
        return self._write(joining.join, list(sweep_ids), name)

    # --- trials and results

    def record(self, sweep_id: str, environment_id: str, trial: Trial) -> int:
        """Store a trial (see `trials.record`). Also raises StoreError if the database file was
        moved, deleted or replaced; the trial is then stored where `rescue` finds it."""
        trial_id = self._write(trials.record, sweep_id, environment_id, trial)
        if self.is_moved():
            raise connect.moved(self.name)
        return trial_id

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
        return self._read(trials.history, sweep_id, environment_id)

    def durations(
        self, sweep_ids: Sequence[str], environment_ids: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        return self._read(trials.durations, sweep_ids, environment_ids)

    def host_speeds(self, environment_id: str) -> HostSpeeds:
        return self._read(trials.host_speeds, environment_id)

    def trials(self, sweep_id: str) -> list[dict[str, Any]]:
        return self._read(trials.trials, sweep_id)

    def trial_facts(
        self, sweep_id: str, names: Sequence[str]
    ) -> dict[tuple[str, str], dict[str, Any]]:
        return self._read(trials.trial_facts, sweep_id, names)

    def samples(self, trial_id: int) -> dict[str, Samples]:
        return self._read(trials.samples, trial_id)

    def trials_with_samples(
        self, sweep_id: str, environment_ids: Iterable[str]
    ) -> Iterator[tuple[dict[str, Any], TakenSamples]]:
        """Yield the trials by cell key (see `trials.trials_of_cells`). No transaction stays open
        between them."""
        ids = list(environment_ids)
        keys = sorted(self.cell_overrides(sweep_id))
        for start in range(0, len(keys), CELLS):
            chosen = keys[start : start + CELLS]
            yield from self._read(trials.trials_of_cells, sweep_id, ids, chosen)

    def results(self, sweep_id: str | None = None) -> list[Result]:
        return self._read(trials.results, sweep_id)

    def stream_results(self, sweep_ids: Iterable[str] = ()) -> Iterator[Result]:
        """Yield results in one transaction; see `trials.stream_results`."""
        with self.reading() as connection:
            yield from trials.stream_results(connection, sweep_ids)

    def rebuild_results(self, sweep_id: str) -> None:
        self._write(trials.rebuild_results, sweep_id)

    # --- comparisons

    def sides(self, sweep_id: str) -> dict[tuple[str, str], CellResult]:
        return self._read(sides.sides, sweep_id)

    def levels(
        self,
        sweep_id: str,
        environment_ids: Iterable[str],
        before: dt.datetime,
        metrics: Iterable[str],
        host: str | None = None,
    ) -> Levels:
        environment_ids, metrics = list(environment_ids), list(metrics)
        return self._read(sides.levels, sweep_id, environment_ids, before, metrics, host)

    def previous(self, sweep_id: str, environment_ids: Collection[str]) -> str | None:
        return self._read(sides.previous, sweep_id, environment_ids)

    def host_ms(self, sweep_id: str) -> float | None:
        return self._read(sides.host_ms, sweep_id)

    def series(
        self,
        columns: Sequence[str] | None,
        models: Sequence[str] = (),
        modes: Sequence[str] = (),
        environment_ids: Collection[str] = (),
        most: int | None = None,
    ) -> Series:
        return self._read(sides.series, columns, models, modes, environment_ids, most)

    # --- decisions

    def set_baseline(self, name: str, sweep_id: str, note: str | None = None) -> list[str]:
        return self._write(decisions.set_baseline, name, sweep_id, note)

    def remove_baseline(self, name: str, hardware: str | None = None) -> list[BaselineInfo]:
        return self._write(decisions.remove_baseline, name, hardware)

    def baselines(self, name: str | None = None) -> list[BaselineInfo]:
        return self._read(decisions.baselines, name)

    def acknowledge(self, changes: Iterable[dict[str, str]], reason: str) -> None:
        self._write(decisions.acknowledge, list(changes), reason)

    def unacknowledge(self, ids: Iterable[int]) -> None:
        self._write(decisions.unacknowledge, list(ids))

    def acknowledgements(self) -> list[dict[str, Any]]:
        return self._read(decisions.acknowledgements)

    def add_verdicts(self, environment_id: str, judged: Iterable[dict[str, Any]]) -> None:
        self._write(decisions.add_verdicts, environment_id, list(judged))

    def verdicts(self) -> list[dict[str, Any]]:
        return self._read(decisions.verdicts)

    # --- the file

    check = staticmethod(maintenance.check)
    upgrade = staticmethod(maintenance.upgrade)

    def is_moved(self) -> bool:
        """Return whether the path no longer leads to the file that was opened for writing (SQLite
        only)."""
        file, opened = self._engine.get_execution_options().get(connect.FILE_OPTION, (None, None))
        return opened is not None and connect.identity(file) != opened

    def rescue(self, suffix: str) -> Path:
        """Copy a moved, deleted or replaced database, which is still open, to a new file next to
        the old path; return its path. Raises StoreError if the file cannot be written."""
        file: Path = self._engine.get_execution_options()[connect.FILE_OPTION][0]
        copy = file.with_name(f"{file.stem}.recovered-{suffix}.db")
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            with (
                self._lock,
                self._engine.connect() as connection,
                closing(sqlite3.connect(copy)) as target,
            ):
                database: Any = connection.connection.driver_connection
                database.backup(target)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"{connect.moved(self.name)}, and no copy of it can be saved: {error}"
            ) from error
        _remove_log(file)
        return copy

    def close(self) -> None:
        """Close every connection. The Store cannot be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- transactions

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        if not self._writable:
            raise StoreError(f"{self.name} is open for reading only")
        with self._lock, self._translated(), self._writer.begin() as connection:
            yield connection

    def _read(
        self, query: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return what the query returns in a transaction of its own."""

        def attempt() -> R:
            with self.reading() as connection:
                return query(connection, *args, **kwargs)

        return connect.repeated(attempt, self.name)

    def _write(
        self, query: Callable[Concatenate[sa.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return what the query returns in a transaction of its own that may write."""

        def attempt() -> R:
            with self.writing() as connection:
                return query(connection, *args, **kwargs)

        return connect.repeated(attempt, self.name)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise connect.explain(error, self.name) from error


def _make_unless_there(connection: sa.Connection) -> str:
    """Create the schema in an empty database; return the revision."""
    if connection.dialect.name == "postgresql":
        encoding = connection.scalar(sa.text("SHOW server_encoding"))
        if encoding != "UTF8":  # PostgreSQL would refuse a trial's text or JSON in mid-sweep
            how = "`createdb --encoding UTF8 --template template0 NAME` creates a database"
            raise StoreError(
                f"{connect.name_of(connection)} has encoding {encoding}, but effbench needs UTF8;"
                f" {how}"
            )
    schema.lock(connection)
    return connect.revision(connection) or schema.make(connection)


def _remove_log(file: Path) -> None:
    """Remove this process's log: SQLite would apply it to any file that is put in the database's
    place."""
    try:
        ours = {connect.identity(descriptor) for descriptor in Path("/proc/self/fd").iterdir()}
    except OSError:  # not Linux
        return
    real = os.path.realpath(file)  # SQLite keeps the log next to the file that links lead to
    for log in (Path(f"{real}-wal"), Path(f"{real}-shm")):
        file_id = connect.identity(log)
        if file_id is not None and file_id in ours:
            log.unlink(missing_ok=True)
