"""Read and write sweeps with their plans and environments. Every function takes a connection."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, select

from effbench.core import folders
from effbench.core.cell import (
    Cell,
    Environment,
    JsonObject,
    StoredEnvironment,
)
from effbench.core.errors import NothingFoundError, ResumeError, StoreError, UsageError
from effbench.core.printable import listed, one_line
from effbench.core.settings import db_setting
from effbench.store import liveness
from effbench.store.connect import insert, name_of
from effbench.store.schema import (
    CELL,
    ENVIRONMENT,
    PLANNED,
    RESULT,
    SAMPLE,
    SWEEP,
    SWEEP_ID,
    TRACE,
    TRIAL,
)
from effbench.store.values import (
    Condition,
    as_dicts,
    cell_row,
    now,
    scalar,
)

#: Prefix of the names of sweeps that only re-run cells of another sweep; `last` skips these sweeps.
CONFIRMING = "confirm:"
#: Key of a joined sweep's `host`: what it joins, one entry per host.
JOINED = "joined"
#: Another machine's clock may be ahead of this machine's by this much.
CLOCK_SKEW = dt.timedelta(minutes=5)
#: Most sweeps that a message lists.
MOST_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class SweepInfo:
    """A sweep with its numbers of planned cells, recorded trials (all attempts) and results by
    status. Times are UTC. `imported_at`: None if it was recorded in this database.

    If the process of a running sweep has ended, its state here is `interrupted`.
    """

    id: str
    name: str | None
    label: str | None
    state: str
    started_at: dt.datetime
    finished_at: dt.datetime | None
    command: list[str]
    overrides: list[str]
    protocol: JsonObject
    baseline_mode: str
    seed: int
    rounds: int
    git_revision: str | None
    host: JsonObject
    imported_at: dt.datetime | None = None
    cells: int = 0
    trials: int = 0
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def interpreters(self) -> dict[str, JsonObject]:
        """Environment id -> recorded facts about its interpreter, in the order in which they were
        given."""
        known = self.host.get("environments")
        if not isinstance(known, dict):
            return {}
        # `host` may be forged
        return {key: facts for key, facts in known.items() if isinstance(facts, dict)}

    @property
    def joined(self) -> list[JsonObject]:
        """Facts about the host of each sweep that this one joins; empty unless it joins some."""
        hosts = self.host.get(JOINED)
        if not isinstance(hosts, list):
            return []
        return [facts for facts in hosts if isinstance(facts, dict)]


# --- find sweeps ---


def sweeps(connection: Connection, *where: Condition) -> list[SweepInfo]:
    """Return the sweeps that meet these conditions, newest first; those that start in the future
    come last."""
    query = select(SWEEP).where(*where)
    for name, table in (("cells", PLANNED), ("trials", TRIAL)):
        number = select(sa.func.count()).where(table.c.sweep_id == SWEEP.c.id)
        query = query.add_columns(number.scalar_subquery().label(name))
    infos = {sweep.id: sweep for sweep in _newest_first(connection, query)}
    key = RESULT.c["sweep_id", "status"]
    is_of_these = RESULT.c.sweep_id.in_(select(SWEEP.c.id).where(*where))
    numbers = select(*key, sa.func.count().label("number")).where(is_of_these)
    for row in connection.execute(numbers.group_by(*key).order_by(*key)):
        infos[row.sweep_id].statuses[row.status] = row.number
    return list(infos.values())


def _newest_first(connection: Connection, query: sa.Select[Any]) -> list[SweepInfo]:
    """Return the sweeps of a query, which may lack their numbers."""
    infos = []
    for facts in as_dicts(connection, query.order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())):
        if facts["state"] == "running" and liveness.has_ended(facts["host"].get("process")):
            facts["state"] = "interrupted"
        infos.append(SweepInfo(**facts))
    # a sweep of the future, by its own account, never counts as the newest
    latest = now() + CLOCK_SKEW
    return sorted(infos, key=lambda sweep: sweep.started_at > latest)


def is_rerun(name: str | None) -> bool:
    """Return whether a sweep with this name only runs cells of another sweep again."""
    return (name or "").startswith(CONFIRMING)


def recorded_here_first(sweeps: Iterable[SweepInfo]) -> list[SweepInfo]:
    """Return these sweeps, which are in the order of `sweeps`, in the order in which the newest one
    is looked for: imported ones come last, because they may be of another machine with another
    clock."""
    return sorted(sweeps, key=lambda sweep: sweep.imported_at is not None)


def find_sweep(connection: Connection, ref: str) -> SweepInfo:
    """Return the sweep that `ref` means: `last`, an id, a name (the newest sweep with it), a label
    that only one sweep has, or a unique start of an id.

    `last` is the newest sweep that this user recorded in this database; without one, the newest
    that others recorded here, then the newest imported one. A sweep that starts in the future
    counts as the oldest of its kind. Raises NothingFoundError, UsageError.
    """
    # counting what each sweep has would read the index of all trials
    known = recorded_here_first(_newest_first(connection, select(SWEEP)))
    database = name_of(connection)
    if not known:
        run = f"effbench -m model=mlp mode=eager,default{db_setting(database)}"
        raise NothingFoundError(f"{database} holds no sweep yet; `{run}` runs one")
    matching = _matching(ref, known)
    if not matching:
        some = listed([sweep.name or sweep.id for sweep in known], MOST_LISTED)
        raise NothingFoundError(f"no sweep {ref!r} in {database}; choose from {some}")
    if len(matching) > 1:
        some = listed([sweep.id for sweep in matching], MOST_LISTED)
        raise UsageError(f"{ref!r} means {len(matching)} sweeps: {some}; name one by its id")
    (sweep,) = matching
    if not SWEEP_ID.fullmatch(sweep.id):  # it is part of paths
        raise StoreError(
            f"{database}: {one_line(sweep.id, 64)!r} is not a sweep id: damaged or forged"
        )
    (counted,) = sweeps(connection, SWEEP.c.id == sweep.id)
    return counted


def _matching(ref: str, known: list[SweepInfo]) -> list[SweepInfo]:
    """Return the sweeps that `find_sweep` may mean by `ref`, in the order of
    `recorded_here_first`."""
    # a re-run has the label of the sweep that it confirms
    originals = [sweep for sweep in known if not is_rerun(sweep.name)]
    if ref == "last":
        users = (None, folders.current_user())
        own = [
            sweep
            for sweep in originals
            if sweep.imported_at is None and sweep.host.get("user") in users
        ]
        return (own or originals or known)[:1]
    choices = (
        _with(known, "id", ref),
        _with(known, "name", ref)[:1],
        _with(originals, "label", ref),
        [sweep for sweep in known if ref and sweep.id.startswith(ref)],
    )
    return next(filter(None, choices), [])


def _with(known: list[SweepInfo], name: str, value: str) -> list[SweepInfo]:
    return [sweep for sweep in known if getattr(sweep, name) == value]


# --- begin, extend and finish sweeps ---


def lock(connection: Connection, sweep_id: str, *names: str) -> sa.Row[Any]:
    """Lock the sweep, so that no process derives results while another adds trials; return its id
    and columns with these names."""
    query = select(*SWEEP.c["id", *names]).filter_by(id=sweep_id).with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NothingFoundError(f"no sweep {sweep_id!r} in {name_of(connection)}")
    return row


def begin_sweep(
    connection: Connection,
    /,
    *,
    plan: Iterable[Cell],
    cell_overrides: Mapping[str, list[str]] = {},
    **facts: Any,
) -> str:
    """Store a sweep in state `running` with its planned cells; return its id, which starts with the
    time (UTC).

    `facts`: the other columns of `sweep`. `cell_overrides`: cell key -> overrides that reproduce
    the cell.
    """
    row = {name: scalar(value) for name, value in facts.items()}
    row |= {"state": "running", "started_at": now()}
    is_added = False
    while not is_added:  # the id may be taken
        row["id"] = f"{row['started_at']:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        is_added = add_sweep(connection, row)
    extend_sweep(connection, row["id"], plan, cell_overrides)
    return str(row["id"])


def add_sweep(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Add a row of `sweep`; return whether its id is new."""
    new = insert(connection, SWEEP).values(**row).on_conflict_do_nothing()
    # RETURNING, because PostgreSQL's driver has no rowcount
    return connection.scalar(new.returning(SWEEP.c.id)) is not None


def clear(connection: Connection, sweep_id: str) -> None:
    """Remove the plan, trials and results of a sweep; its row stays, because baselines and verdicts
    may refer to it."""
    trials = select(TRIAL.c.id).filter_by(sweep_id=sweep_id)
    for table in (SAMPLE, TRACE):
        connection.execute(sa.delete(table).where(table.c.trial_id.in_(trials)))
    for table in (RESULT, TRIAL, PLANNED):
        connection.execute(sa.delete(table).filter_by(sweep_id=sweep_id))


def update(connection: Connection, /, sweep_id: str, **values: Any) -> None:
    """Change columns of a sweep."""
    connection.execute(sa.update(SWEEP).filter_by(id=sweep_id).values(**values))


def extend_sweep(
    connection: Connection,
    sweep_id: str,
    cells: Iterable[Cell],
    cell_overrides: Mapping[str, list[str]] = {},
) -> None:
    """Append cells to the sweep's plan; cells that are already planned keep their position."""
    lock(connection, sweep_id)
    known = set(connection.scalars(select(PLANNED.c.cell_key).filter_by(sweep_id=sweep_id)))
    new = {cell.key: cell_row(cell) for cell in cells if cell.key not in known}
    if not new:
        return
    places = [
        {
            "sweep_id": sweep_id,
            "cell_key": key,
            "position": position,
            "overrides": cell_overrides.get(key),
        }
        for position, key in enumerate(new, len(known))
    ]
    # by key, as imports do: in different orders, PostgreSQL's transactions would block each other
    rows = [new[key] for key in sorted(new)]
    connection.execute(insert(connection, CELL).on_conflict_do_nothing(), rows)
    connection.execute(sa.insert(PLANNED), places)


def note_environments(connection: Connection, sweep_id: str, facts: dict[str, JsonObject]) -> None:
    """Append facts of further environments to the sweep's `host["environments"]`; existing ones
    stay unchanged."""
    host = lock(connection, sweep_id, "host").host
    known = host.setdefault("environments", {})
    for key, value in facts.items():
        known.setdefault(key, value)
    update(connection, sweep_id, host=host)


def resume_sweep(connection: Connection, /, sweep_id: str, **changed: Any) -> None:
    """Set the sweep to `running` in this process, and its columns in `changed`. Raises ResumeError
    if another process on this machine runs it."""
    sweep = lock(connection, sweep_id, "state", "host")
    reason = still_running(sweep)
    if reason is not None:
        raise ResumeError(reason)
    host = {**sweep.host, "process": liveness.identity()}
    update(connection, sweep_id, state="running", finished_at=None, host=host, **changed)


def still_running(sweep: sa.Row[Any]) -> str | None:
    """Return that another process on this machine runs the sweep, and what to do; None unless one
    certainly does."""
    process = sweep.host.get("process")
    if sweep.state != "running" or not liveness.is_running(process):
        return None
    return (
        f"sweep {sweep.id} is still running in process {process['pid']}; wait for its end, or end"
        " it first"
    )


def finish_sweep(connection: Connection, sweep_id: str, state: str) -> None:
    """Set the state and the end of the sweep."""
    update(connection, sweep_id, state=state, finished_at=now())


# --- plans ---


def planned(connection: Connection, sweep_id: str) -> list[Cell]:
    """Return the cells of the sweep in the order of the plan."""
    plan = select(CELL.c.params).join(PLANNED).filter_by(sweep_id=sweep_id)
    return [Cell(**params) for params in connection.scalars(plan.order_by(PLANNED.c.position))]


def cells(connection: Connection) -> list[Cell]:
    """Return all cells."""
    return [Cell(**params) for params in connection.scalars(select(CELL.c.params))]


def cell_overrides(connection: Connection, sweep_id: str) -> dict[str, list[str] | None]:
    """Return cell key -> overrides that reproduce the cell (None if they are unknown), in the order
    of the plan."""
    query = select(PLANNED).filter_by(sweep_id=sweep_id).order_by(PLANNED.c.position)
    return {row.cell_key: row.overrides for row in connection.execute(query)}


# --- environments ---


def add_environment(connection: Connection, env: Environment, details: JsonObject) -> str:
    """Store an environment unless it is known; return its id. `details` of a known environment stay
    unchanged."""
    row = {name: scalar(value) for name, value in env.fingerprint().items()}
    row |= {
        "id": env.id,
        "details": details,
        "first_seen_at": now(),
    }
    connection.execute(insert(connection, ENVIRONMENT).values(**row).on_conflict_do_nothing())
    return env.id


def environments(
    connection: Connection, ids: Iterable[str] | None = None
) -> list[StoredEnvironment]:
    """Return the environments (all, or those of `ids`), oldest first."""
    query = select(ENVIRONMENT).order_by(ENVIRONMENT.c.first_seen_at, ENVIRONMENT.c.id)
    if ids is not None:
        query = query.where(ENVIRONMENT.c.id.in_(list(dict.fromkeys(ids))))
    return [StoredEnvironment(**row) for row in connection.execute(query).mappings()]


def environments_of(connection: Connection, sweep_id: str) -> list[StoredEnvironment]:
    """Return the environments in which the sweep has trials, oldest first."""
    used = select(TRIAL.c.environment_id).filter_by(sweep_id=sweep_id).distinct()
    return environments(connection, connection.scalars(used))


def hardware(connection: Connection, sweep_id: str) -> list[str]:
    """Return the names of the GPUs on which the sweep has trials, or of the CPU on a machine
    without GPU."""
    return sorted({known.hardware for known in environments_of(connection, sweep_id)})
