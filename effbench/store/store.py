"""The results database: how it is opened, transactions, and short errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import wraps
from operator import attrgetter
from typing import (
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
)

from sqlalchemy import Connection

from effbench.core.cell import Result, Trial
from effbench.core.settings import db_setting
from effbench.store import (
    connect,
    decisions,
    joining,
    maintenance,
)
from effbench.store import sides as side_queries
from effbench.store import sweeps as sweep_queries
from effbench.store import trials as trial_queries
from effbench.store.trials import SampledTrial
from effbench.store.values import DamagedSamplesError

P = ParamSpec("P")
R = TypeVar("R")
Query: TypeAlias = Callable[Concatenate[Connection, P], R]
Method: TypeAlias = Callable[Concatenate["Store", P], R]
Begin: TypeAlias = Callable[[connect.Database], AbstractContextManager[Connection]]


def reads(query: Query[P, R]) -> Method[P, R]:
    """Return the method of a Store that runs this query in a transaction of its own."""
    return method_of(query, connect.Database.reading)


def writes(query: Query[P, R]) -> Method[P, R]:
    """Return the method of a Store that runs this query in a transaction that may write."""
    return method_of(query, connect.Database.writing)


def method_of(query: Query[P, R], begin: Begin) -> Method[P, R]:
    @wraps(query)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def attempt() -> R:
            with begin(store) as connection:
                return query(connection, *args, **kwargs)

        return connect.repeated(attempt, store.name)

    return method


class Store(connect.Database):
    """A results database, in SQLite (the default) or PostgreSQL.

    Every method is one transaction, and raises StoreError if the database fails. Several processes
    may write to one database: each waits for the other's transaction (on SQLite at most 30 s, then
    it raises StoreError). A server that restarts is waited for, also 30 s. Each query is a function
    of this package that takes a connection, so that several can share a transaction; it documents
    the method.
    """

    @classmethod
    def open(
        cls,
        url: connect.DatabaseUrl,
        *,
        mode: Literal["read", "write"] = "read",
        bulk: bool = False,
    ) -> Self:
        """Open the database at `url`, a URL or the path of a SQLite file; "write" creates a missing
        one. `bulk`: a new SQLite file gets a write-ahead log when it is opened again, because the
        log doubles the time of large transactions. Raises StoreError, and SchemaError for another
        version's schema."""
        write = mode == "write"
        store = cls(url, write=write, create=write)
        try:
            store._prepare(bulk)
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self, bulk: bool) -> None:
        """Require this version's schema; create it in an empty database that is opened for
        writing."""
        current = self._revision()
        if current is None and not self.is_writable:
            run = f"effbench -m mode=eager,default{db_setting(self.name)}"
            raise connect.EmptyError(f"{self.name} is empty; `{run}` fills it")
        connect.require_head(current or self._make_unless_there(), self.name)
        is_new_bulk = bulk and current is None
        if self.is_writable and self._file is not None and not is_new_bulk:
            self._use_write_ahead_log()

    def _use_write_ahead_log(self) -> None:
        """Turn it on for good; if another process locks the database, a later call will do it."""
        with self._explained(), self._engine.connect() as connection:
            cursor = connection.connection.cursor()
            with suppress(sqlite3.OperationalError):
                cursor.execute("PRAGMA journal_mode = WAL")

    _revision = reads(connect.revision)
    _make_unless_there = writes(connect.make_unless_there)

    # --- sweeps

    sweeps = reads(sweep_queries.sweeps)
    find_sweep = reads(sweep_queries.find_sweep)
    planned = reads(sweep_queries.planned)
    cell_overrides = reads(sweep_queries.cell_overrides)
    environments = reads(sweep_queries.environments)
    environments_of = reads(sweep_queries.environments_of)
    hardware = reads(sweep_queries.hardware)
    begin_sweep = writes(sweep_queries.begin_sweep)
    extend_sweep = writes(sweep_queries.extend_sweep)
    note_environments = writes(sweep_queries.note_environments)
    add_rounds = writes(sweep_queries.add_rounds)
    finish_sweep = writes(sweep_queries.finish_sweep)
    add_environment = writes(sweep_queries.add_environment)
    join = writes(joining.join)

    # --- trials and results

    _add_trial = writes(trial_queries.add_trial)
    _stored_samples = reads(trial_queries.stored_samples)

    def add_trial(
        self,
        sweep_id: str,
        environment_id: str,
        trial: Trial,
    ) -> int:
        """Store a trial (see `trials.add_trial`). Also raises StoreError if the database file was
        moved, deleted or replaced; a moved file then has the trial."""
        trial_id = self._add_trial(sweep_id, environment_id, trial)
        if self.is_moved():
            raise connect.moved(self.name)
        return trial_id

    history = reads(trial_queries.history)
    host_speeds = reads(trial_queries.host_speeds)
    trials = reads(trial_queries.trials)
    trial_facts = reads(trial_queries.trial_facts)
    samples = reads(trial_queries.samples)
    results = reads(trial_queries.results)
    rebuild_results = writes(trial_queries.rebuild_results)

    def trials_with_samples(
        self, sweep_id: str, environment_ids: Iterable[str]
    ) -> Iterator[SampledTrial]:
        """Yield the trials of the sweep in these environments, by cell key, environment, round and
        attempt. Samples that are damaged are omitted, and `extra` says so. No transaction stays
        open between them."""
        ids = set(environment_ids)
        for trial in sorted(self.trials(sweep_id), key=attrgetter(*trial_queries.ORDER)):
            if trial.environment_id not in ids:
                continue
            timers = {}
            try:
                timers = self._stored_samples(trial.id)
            except DamagedSamplesError as error:
                trial.extra["damaged_samples"] = str(error)
            yield SampledTrial(trial, timers)

    def stream_results(self, sweep_ids: Iterable[str] = ()) -> Iterator[Result]:
        """Yield results in one transaction; see `trials.stream_results`."""
        with self.reading() as connection:
            yield from trial_queries.stream_results(connection, sweep_ids)

    # --- comparisons

    results_with_trials = reads(side_queries.results_with_trials)
    previous = reads(side_queries.previous)
    past_results = reads(side_queries.past_results)

    # --- decisions

    set_baseline = writes(decisions.set_baseline)
    remove_baseline = writes(decisions.remove_baseline)
    baselines = reads(decisions.baselines)
    add_verdicts = writes(decisions.add_verdicts)
    verdicts = reads(decisions.verdicts)

    # --- the file

    upgrade = staticmethod(maintenance.upgrade)

    def finish_log(self) -> None:
        """Write what SQLite's log holds into the file, and empty the log. Otherwise a file that was
        moved would lack it, and SQLite would apply it to a file that is put in its place."""
        with self._lock, self._explained(), self._engine.connect() as connection:
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
