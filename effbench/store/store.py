"""The results database: `Store.open`, and the list of all queries, a method each. `connect` has
URLs, transactions and errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import wraps
from typing import (
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
)

from sqlalchemy import Connection

from effbench.core.errors import StoreError
from effbench.store import connect, decisions, joining
from effbench.store import sides as side_queries
from effbench.store import sweeps as sweep_queries
from effbench.store import trials as trial_queries
from effbench.store.schema import TRIAL
from effbench.store.trials import SampledTrial, TracedTrial
from effbench.store.values import batched

#: Trials whose samples are in memory at a time; a trial has at most about 60 kB of them.
CHUNK = 50
P = ParamSpec("P")
R = TypeVar("R")
Query: TypeAlias = Callable[Concatenate[Connection, P], R]
Method: TypeAlias = Callable[Concatenate["Store", P], R]


def reads(query: Query[P, R]) -> Method[P, R]:
    """Return the method of a Store that runs this query in a transaction of its own."""
    return method_of(query, write=False)


def writes(query: Query[P, R]) -> Method[P, R]:
    """Return the method of a Store that runs this query in a transaction that may write."""
    return method_of(query, write=True)


def method_of(query: Query[P, R], *, write: bool) -> Method[P, R]:
    @wraps(query)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        begin = store.writing if write else store.reading
        patience = connect.Patience(store.name)
        while True:
            try:
                with begin() as connection:
                    return query(connection, *args, **kwargs)
            except StoreError as error:
                patience.wait(error)

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
            raise connect.EmptyError(f"{self.name} is empty: it holds no sweep yet")
        connect.require_head(current or self._make_unless_there(), self.name)
        is_new_bulk = bulk and current is None
        if self.is_writable and self._file is not None and not is_new_bulk:
            # it stays on; if another process locks the database, a later call turns it on
            with suppress(StoreError):
                self._set_pragma("journal_mode = WAL")

    def _set_pragma(self, pragma: str) -> None:
        """Execute a pragma outside of transactions."""
        with self._explained(), self._engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA {pragma}")

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
    resume_sweep = writes(sweep_queries.resume_sweep)
    finish_sweep = writes(sweep_queries.finish_sweep)
    add_environment = writes(sweep_queries.add_environment)
    join = writes(joining.join)

    # --- trials and results

    add_trial = writes(trial_queries.add_trial)
    history = reads(trial_queries.history)
    host_speeds = reads(trial_queries.host_speeds)
    trials = reads(trial_queries.trials)
    read_trials = reads(trial_queries.read_trials)
    trial_facts = reads(trial_queries.trial_facts)
    samples = reads(trial_queries.samples)
    with_samples = reads(trial_queries.with_samples)
    traces = reads(trial_queries.traces)
    traced_results = reads(trial_queries.traced_results)
    results = reads(trial_queries.results)
    rebuild_results = writes(trial_queries.rebuild_results)

    def trials_with_samples(
        self, sweep_id: str, environment_ids: Collection[str]
    ) -> Iterator[SampledTrial]:
        """Yield the trials of the sweep in these environments, by cell key, environment, round and
        attempt, as `with_samples` returns them. No transaction stays open between them."""
        is_there = TRIAL.c.environment_id.in_(environment_ids)
        for trials in batched(self.read_trials(sweep_id, is_there), CHUNK):
            yield from self.with_samples(trials)

    def sweep_traces(self, sweep_id: str) -> Iterator[list[TracedTrial]]:
        """Yield what `traces` returns for each result of the sweep that has a trace, by cell key
        and environment. No transaction stays open between them."""
        for key in self.traced_results(sweep_id):
            yield self.traces(sweep_id, key.cell_key, key.environment_id)

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

    def finish_log(self) -> None:
        """Write what SQLite's log holds into the file, and empty the log. Otherwise a file that was
        moved would lack it, and SQLite would apply it to a file that is put in its place."""
        with self._lock:
            self._set_pragma("wal_checkpoint(TRUNCATE)")
