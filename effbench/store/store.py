"""The results database: how it is opened, transactions, and short errors."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Trial
from effbench.config import db_setting
from effbench.errors import StoreError
from effbench.store import (
    connect,
    decisions,
    joining,
    maintenance,
    schema,
    sides,
    signature,
    sweeps,
    trials,
)

if TYPE_CHECKING:
    import numpy as np

#: number of cells whose trials and samples are in memory at a time: about a hundred trials
CELLS = 20
P, R = ParamSpec("P"), TypeVar("R")


def in_transaction(
    query: Callable[Concatenate[sa.Connection, P], R], *, write: bool = False
) -> Callable[Concatenate[Store, P], R]:
    """Turn a function of a connection into a method of `Store` that runs it in one transaction per
    call.

    If the connection breaks, the method waits for the server and repeats the transaction. It may
    have been committed before: a function that writes must therefore do the same when it runs twice
    with the same arguments.
    """

    @wraps(query)
    def method(self: Store, *args: P.args, **kwargs: P.kwargs) -> R:
        def attempt() -> R:
            with self._writing() if write else self._reading() as connection:
                return query(connection, *args, **kwargs)

        return connect.repeated(attempt)

    return method


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
        store = cls(
            connect.connect(parsed, write=write, create=write),
            connect.describe(parsed),
            write,
            bulk,
        )
        try:
            store._prepare()
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self) -> None:
        """Require this version's schema; create it in an empty database that is opened for
        writing."""
        current = self._revision()
        if current is None and not self._writable:
            run = f"effbench -m mode=eager,default{db_setting(self.name)}"
            raise connect.EmptyError(f"{self.name} is empty; `{run}` fills it")
        connect.require_head(current or self._make(), self.name)
        if (
            self._writable
            and self._engine.dialect.name == "sqlite"
            and not (self._bulk and current is None)
        ):
            # for good; if another process locks the database, a later call will do it
            with (
                self._translated(),
                self._engine.connect() as connection,
                suppress(sqlite3.OperationalError),
            ):
                connection.connection.cursor().execute("PRAGMA journal_mode = WAL")

    # a method that has the name of its module comes last, because it shadows the module in this
    # class body
    _revision = in_transaction(connect.revision)
    _make = in_transaction(_make_unless_there, write=True)
    find_sweep = in_transaction(sweeps.find_sweep)
    is_own = in_transaction(signature.is_own)
    planned = in_transaction(sweeps.planned)
    planned_cells = in_transaction(sweeps.planned_cells)
    cell_overrides = in_transaction(sweeps.cell_overrides)
    environments = in_transaction(sweeps.environments)
    environments_of = in_transaction(sweeps.environments_of)
    hardware = in_transaction(sweeps.hardware)
    recorded = in_transaction(sweeps.recorded)
    calibration = in_transaction(sweeps.calibration)
    begin_sweep = in_transaction(sweeps.begin_sweep, write=True)
    extend_sweep = in_transaction(sweeps.extend_sweep, write=True)
    note_environments = in_transaction(sweeps.note_environments, write=True)
    add_rounds = in_transaction(sweeps.add_rounds, write=True)
    first_rounds = in_transaction(sweeps.first_rounds)
    finish_sweep = in_transaction(sweeps.finish_sweep, write=True)
    add_environment = in_transaction(sweeps.add_environment, write=True)
    add_calibration = in_transaction(sweeps.add_calibration, write=True)
    join = in_transaction(joining.join, write=True)
    sweeps = in_transaction(sweeps.sweeps)
    history = in_transaction(trials.history)
    durations = in_transaction(trials.durations)
    host_speeds = in_transaction(trials.host_speeds)
    trial_facts = in_transaction(trials.trial_facts)
    samples = in_transaction(trials.samples)
    results = in_transaction(trials.results)
    results_frame = in_transaction(trials.results_frame)
    rebuild_results = in_transaction(trials.rebuild_results, write=True)
    _record = in_transaction(trials.record, write=True)
    _trials_of_cells = in_transaction(trials.trials_of_cells)
    trials = in_transaction(trials.trials)
    set_baseline = in_transaction(decisions.set_baseline, write=True)
    remove_baseline = in_transaction(decisions.remove_baseline, write=True)
    baselines = in_transaction(decisions.baselines)
    acknowledge = in_transaction(decisions.acknowledge, write=True)
    unacknowledge = in_transaction(decisions.unacknowledge, write=True)
    acknowledgements = in_transaction(decisions.acknowledgements)
    add_verdicts = in_transaction(decisions.add_verdicts, write=True)
    verdicts = in_transaction(decisions.verdicts)
    previous = in_transaction(sides.previous)
    host_ms = in_transaction(sides.host_ms)
    series = in_transaction(sides.series)
    levels = in_transaction(sides.levels)
    sides = in_transaction(sides.sides)
    check = staticmethod(maintenance.check)
    upgrade = staticmethod(maintenance.upgrade)

    def record(self, sweep_id: str, environment_id: str, trial: Trial) -> int:
        """Store a trial (see `trials.record`). Also raises StoreError if the database file was
        moved, deleted or replaced; the trial is then stored where `rescue` finds it."""
        trial_id = self._record(sweep_id, environment_id, trial)
        if self.is_moved():
            raise connect.moved(self.name)
        return trial_id

    def trials_with_samples(
        self, sweep_id: str, environment_ids: Iterable[str]
    ) -> Iterator[tuple[dict[str, Any], dict[str, tuple[int, np.ndarray]]]]:
        """Yield the trials by cell key (see `trials.trials_of_cells`). No transaction stays open
        between them."""
        environment_ids = list(environment_ids)
        keys = sorted(self.cell_overrides(sweep_id))
        for start in range(0, len(keys), CELLS):
            yield from self._trials_of_cells(sweep_id, environment_ids, keys[start : start + CELLS])

    def stream_results(self, sweep_ids: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield rows of the view `results` in one transaction; see `trials.stream_results`."""
        with self._reading() as connection:
            yield from trials.stream_results(connection, sweep_ids)

    def is_moved(self) -> bool:
        """Return whether the path no longer leads to the file that was opened for writing (SQLite
        only)."""
        file, opened = self._engine.get_execution_options().get(connect.FILE_OPTION, (None, None))
        return opened is not None and connect.identity(file) != opened

    def rescue(self, suffix: str) -> Path:
        """Copy a moved, deleted or replaced database, which is still open, to a new file next to
        the old path; return its path. Raises StoreError if the file cannot be written."""
        file = self._engine.get_execution_options()[connect.FILE_OPTION][0]
        copy = file.with_name(f"{file.stem}.recovered-{suffix}.db")
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            with (
                self._lock,
                self._engine.connect() as connection,
                closing(sqlite3.connect(copy)) as target,
            ):
                connection.connection.driver_connection.backup(target)
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


def _remove_log(file: Path) -> None:
    """Remove this process's log: SQLite would apply it to any file that is put in the database's
    place."""
    try:
        ours = {connect.identity(descriptor) for descriptor in Path("/proc/self/fd").iterdir()}
    except OSError:  # not Linux
        return
    real = os.path.realpath(file)  # SQLite keeps the log next to the file that links lead to
    for log in (Path(f"{real}-wal"), Path(f"{real}-shm")):
        if (file_id := connect.identity(log)) and file_id in ours:
            log.unlink(missing_ok=True)
