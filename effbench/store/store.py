"""The results database: opening it, transactions, and errors of a line or two."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Trial
from effbench.errors import StoreError
from effbench.store import connect, decisions, maintenance, sides, sweeps, trials
from effbench.store.schema import make

if TYPE_CHECKING:
    import numpy as np

P, R = ParamSpec("P"), TypeVar("R")


def reads(query: Callable[Concatenate[sa.Connection, P], R]) -> Callable[Concatenate[Store, P], R]:
    """Return a function of a connection as a method of `Store` that reads."""

    @wraps(query)
    def method(self: Store, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._reading() as connection:
            return query(connection, *args, **kwargs)

    return method


def writes(change: Callable[Concatenate[sa.Connection, P], R]) -> Callable[Concatenate[Store, P], R]:
    """Return a function of a connection as a method of `Store`, one transaction a call."""

    @wraps(change)
    def method(self: Store, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._writing() as connection:
            return change(connection, *args, **kwargs)

    return method


class Store:
    """A results database: SQLite by default, PostgreSQL the same.

    One Store belongs to one process: open it after a fork, never carry it across one. Within the process every method
    may be called from any thread; writes are serialised, reads run next to them. Several processes may write to one
    database at the same time: each waits for the other's transaction (30 s on SQLite, then StoreError). What a method
    has returned from is committed: killing the process loses the trial in flight and nothing else.

    Close it, or use it as a context manager. Every method raises StoreError where the database fails. The methods are
    functions of this package that take a connection first; their docstrings are there.
    """

    def __init__(self, engine: sa.Engine, name: str, *, writable: bool) -> None:
        """Use `open`."""
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
        write = mode == "write"
        engine = connect.connect(parsed, write=write, create=write)
        store = cls(engine, connect.describe(parsed), writable=write)
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
        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                # two processes that both found it empty: the second waits, then finds the schema
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(20823501)"))
            if connect.revision(connection) is None:
                make(connection)
            current = connect.revision(connection)
        assert current is not None
        return current

    # in this class body a module's own name comes last: the method shadows it from there on
    find_sweep = reads(sweeps.find_sweep)
    planned = reads(sweeps.planned)
    cell_overrides = reads(sweeps.cell_overrides)
    environments = reads(sweeps.environments)
    hardware = reads(sweeps.hardware)
    calibration = reads(sweeps.calibration)
    begin_sweep = writes(sweeps.begin_sweep)
    extend_sweep = writes(sweeps.extend_sweep)
    note_environments = writes(sweeps.note_environments)
    finish_sweep = writes(sweeps.finish_sweep)
    add_environment = writes(sweeps.add_environment)
    add_calibration = writes(sweeps.add_calibration)
    sweeps = reads(sweeps.sweeps)
    recorded = reads(trials.recorded)
    history = reads(trials.history)
    samples = reads(trials.samples)
    results = reads(trials.results)
    results_frame = reads(trials.results_frame)
    rebuild_results = writes(trials.rebuild_results)
    trials = reads(trials.trials)
    set_baseline = writes(decisions.set_baseline)
    remove_baseline = writes(decisions.remove_baseline)
    baselines = reads(decisions.baselines)
    acknowledge = writes(decisions.acknowledge)
    unacknowledge = writes(decisions.unacknowledge)
    acknowledgements = reads(decisions.acknowledgements)
    add_verdicts = writes(decisions.add_verdicts)
    verdicts = reads(decisions.verdicts)
    planned_cells = reads(sides.planned_cells)
    environments_of = reads(sides.environments_of)
    series = reads(sides.series)
    levels = reads(sides.levels)
    sides = reads(sides.sides)
    check = staticmethod(maintenance.check)
    upgrade = staticmethod(maintenance.upgrade)

    def record(self, sweep_id: str, environment_id: str, trial: Trial) -> int:
        """Store a trial (see `trials.record`).

        Raises StoreError also if the database file was moved, deleted or replaced: the trial is then stored where
        `rescue` finds it.
        """
        with self._writing() as connection:
            trial_id = trials.record(connection, sweep_id, environment_id, trial)
        if self.is_moved():
            raise connect.moved(self.name)
        return trial_id

    def trials_with_samples(
        self, sweep_id: str, environment_ids: Iterable[str], part: int = 0, parts: int = 1
    ) -> Iterator[tuple[dict[str, Any], dict[str, tuple[int, np.ndarray]]]]:
        """Every row of `trial` of the sweep in these environments, with timer -> (samples taken, float32 array).

        By cell key, a cell's by environment, round and attempt; of `parts` nearly equal ones, each of whole cells, the
        one with the number `part`. A few hundred are held at a time, and no transaction stays open: a running sweep
        goes on meanwhile, and what it adds is omitted.
        """
        with self._reading() as connection:
            ids = trials.trial_ids(connection, sweep_id, list(environment_ids), part, parts)
        for start in range(0, len(ids), trials.CHUNK):
            with self._reading() as connection:
                found = list(trials.trials_by_id(connection, ids[start : start + trials.CHUNK]))
            yield from found

    def is_moved(self) -> bool:
        """Return whether the path no longer leads to the file that was opened for writing (SQLite only)."""
        file, opened = self._engine.get_execution_options().get(connect.FILE_OPTION, (None, None))
        return opened is not None and connect.identity(file) != opened

    def rescue(self, suffix: str) -> Path:
        """Save all that a moved, deleted or replaced database holds in a new file, and return its path.

        It is next to the old path, or in a new temporary folder. Raises StoreError if neither can be written.
        """
        file: Path = self._engine.get_execution_options()[connect.FILE_OPTION][0]
        name = f"{file.stem}.recovered-{suffix}.db"
        with self._lock, self._engine.connect() as connection:
            try:
                copy = _copy(connection, file.with_name(name))
            except (OSError, sqlite3.Error):
                try:
                    copy = _copy(connection, Path(tempfile.mkdtemp(prefix="effbench-")) / name)
                except (OSError, sqlite3.Error) as error:
                    raise StoreError(f"{connect.moved(self.name)}, and no copy of it can be saved: {error}") from error
        _remove_log(file)
        return copy

    def close(self) -> None:
        """Close every connection. The Store cannot be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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


def _copy(connection: sa.Connection, target: Path) -> Path:
    """Copy the database of an open connection, wherever its file is, to a new file."""
    target.open("x").close()
    try:
        with closing(sqlite3.connect(target)) as copy:
            connection.connection.driver_connection.backup(copy)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def _remove_log(file: Path) -> None:
    """Remove this process's log: SQLite would take it for that of any file that is put where the database was."""
    try:
        ours = {connect.identity(descriptor) for descriptor in Path("/proc/self/fd").iterdir()}
    except OSError:  # not Linux
        return
    for log in (file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
        if (found := connect.identity(log)) and found in ours:
            log.unlink(missing_ok=True)
