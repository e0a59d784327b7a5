"""Read and write sweeps with their plans, environments and calibrations. Every function takes a
connection."""

from __future__ import annotations

import datetime as dt
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from effbench.cell import Cell, Environment, digest
from effbench.config import db_setting
from effbench.environments import hardware_of
from effbench.errors import NothingFoundError, StoreError, UsageError
from effbench.printable import listed, one_line
from effbench.store import liveness, signature
from effbench.store.connect import insert, name_of
from effbench.store.schema import (
    CALIBRATION,
    CELL,
    ENVIRONMENT,
    PLANNED,
    RESULT,
    SWEEP,
    SWEEP_ID,
    TRIAL,
)
from effbench.store.values import cell_row, now, scalar

#: Prefix of the names of sweeps that only re-run cells of another sweep; `last` skips these sweeps.
CONFIRMING = "confirm:"
#: Key of `host`: the first round of each part of a sweep to which rounds were added.
PARTS = "first_rounds"
#: Another machine's clock may be ahead of this machine's by this much.
CLOCK_SKEW = dt.timedelta(minutes=5)
#: Most sweeps whose signature `last` checks: a shared database may hold thousands of other users'
#: sweeps.
MOST_SIGNATURES = 200
#: Most sweeps that a message lists.
MOST_LISTED = 20


@dataclass(frozen=True)
class SweepInfo:
    """A sweep with its numbers of planned cells, recorded trials (all attempts) and results by
    status. Times are UTC.

    If the process of a running sweep has ended, its state here is `interrupted`; `partial (1 of 3
    shards)` if shards of a completed one are missing. `imported_at`: None if not imported.
    """

    id: str
    name: str | None
    label: str | None
    state: str
    started_at: dt.datetime
    finished_at: dt.datetime | None
    command: list[str]
    overrides: list[str]
    protocol: dict[str, Any]
    baseline_mode: str
    seed: int
    rounds: int
    git_revision: str | None
    host: dict[str, Any]
    imported_at: dt.datetime | None = None
    cells: int = 0
    trials: int = 0
    statuses: dict[str, int] = field(default_factory=dict)


def processes(host: Mapping[str, Any], shard: str | None = None) -> list[Any]:
    """Return the identities of the processes that run the sweep, or its `shard`, as its facts
    `host` say."""
    of_shards = host.get("processes") or {}
    running = [name for name, state in (host.get("shards") or {}).items() if state == "running"]
    if shard is not None:
        running = [name for name in running if name == shard]
    elif not running:
        return [host.get("process")]
    return [of_shards.get(name, host.get("process")) for name in running]


def is_future(time: dt.datetime) -> bool:
    """Return whether a sweep, calibration or verdict is of the future, by its own account. Such a
    one never counts as the newest."""
    return time > dt.datetime.now(dt.UTC) + CLOCK_SKEW


def sweeps(
    connection: sa.Connection, sweep_id: str | None = None, *, brief: bool = False
) -> list[SweepInfo]:
    """Return every sweep (or the one with this id), newest first; those that start in the future
    come last.

    `brief`: without `statuses`, and `cells` and `trials` are 1 if there are any: counting all takes
    long in a large database."""

    def number_of(table: sa.Table) -> sa.Label:
        is_own = table.c.sweep_id == SWEEP.c.id
        if brief:
            return sa.cast(sa.exists().where(is_own), sa.Integer).label(table.name)
        return (
            sa.select(sa.func.count())
            .select_from(table)
            .where(is_own)
            .scalar_subquery()
            .label(table.name)
        )

    chosen = sa.true() if sweep_id is None else SWEEP.c.id == sweep_id
    results = sa.select(RESULT.c.sweep_id, RESULT.c.status, sa.func.count()).join(
        SWEEP, SWEEP.c.id == RESULT.c.sweep_id
    )
    statuses: dict[str, dict[str, int]] = {}
    by = RESULT.c.sweep_id, RESULT.c.status
    counted = results.where(chosen).group_by(*by).order_by(*by)  # else PostgreSQL gives any order
    for key, status, count in () if brief else connection.execute(counted):
        statuses.setdefault(key, {})[status] = count
    query = sa.select(SWEEP, number_of(PLANNED), number_of(TRIAL)).where(chosen)
    infos = []
    for row in connection.execute(
        query.order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
    ).mappings():
        facts = dict(row)
        counts = {"cells": facts.pop("sweep_cell"), "trials": facts.pop("trial")}
        if row["state"] == "running" and all(map(liveness.has_ended, processes(row["host"] or {}))):
            facts["state"] = "interrupted"
        shards = (row["host"] or {}).get("shards") or {}
        number = next(iter(shards), "").rpartition("/")[2]  # 3 of `1/3`
        # the others were not imported
        if row["state"] == "completed" and len(shards) < int(number or 0):
            facts["state"] = f"partial ({len(shards)} of {number} shards)"
        infos.append(SweepInfo(**facts, **counts, statuses=statuses.get(row["id"], {})))
    return sorted(infos, key=lambda sweep: is_future(sweep.started_at))


@dataclass(frozen=True)
class KnownSweep:
    """What identifies a sweep. `imported_at`: None if it was recorded in this database."""

    id: str
    name: str | None
    label: str | None
    started_at: dt.datetime
    imported_at: dt.datetime | None = None

    @property
    def is_rerun(self) -> bool:
        """Whether it only runs cells of another sweep again."""
        return (self.name or "").startswith(CONFIRMING)

    def __str__(self) -> str:
        return f"{self.id} ({self.name})" if self.name else self.id


Dated = TypeVar("Dated", KnownSweep, SweepInfo)


def recorded_here_first(newest_first: Iterable[Dated]) -> list[Dated]:
    """Return the sweeps in the order in which the newest one is looked for: imported ones come
    last, because they may be of another machine with another clock, and those that start in the
    future come last among each kind."""
    return sorted(
        newest_first, key=lambda sweep: (sweep.imported_at is not None, is_future(sweep.started_at))
    )


def find_sweep(connection: sa.Connection, ref: str) -> SweepInfo:
    """Return the sweep that `ref` means: `last`, an id, a name (the newest sweep with it), a label
    that only one sweep has, or a unique start of an id.

    `last` is the newest sweep that this user recorded in this database; without one, the newest
    that others recorded here, then the newest imported one. A sweep that starts in the future
    counts as the oldest of its kind. Raises NothingFoundError, UsageError.
    """
    columns = [SWEEP.c[field.name] for field in fields(KnownSweep)]
    query = sa.select(*columns).order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
    known = [KnownSweep(**row) for row in connection.execute(query).mappings()]
    sweep_id = resolve(ref, known, name_of(connection), partial(signature.is_own, connection))
    if not SWEEP_ID.fullmatch(sweep_id):  # it is part of paths
        raise StoreError(
            f"{name_of(connection)}: {one_line(sweep_id, 64)!r} is not a sweep id: damaged or"
            " forged"
        )
    return sweeps(connection, sweep_id)[0]


def resolve(
    ref: str,
    newest_first: Sequence[KnownSweep],
    database: str,
    is_own: Callable[[str], bool] = lambda sweep_id: True,
) -> str:
    """Return the id that `ref` means (see `find_sweep`) among these sweeps. `is_own`: whether this
    user recorded the sweep with an id."""
    if not isinstance(ref, str):  # None would be the newest sweep without a name
        raise UsageError(
            f"a sweep is given by its id, its name or 'last', not by {ref!r}; a label works if it"
            " is unique"
        )
    known = recorded_here_first(newest_first)
    if not known:
        run = f"effbench -m model=mlp mode=eager,default{db_setting(database)}"
        raise NothingFoundError(f"{database} holds no sweep yet; `{run}` runs one")
    if ref == "last":
        return last_of(known, is_own).id
    for sweep in known:
        if sweep.id == ref:
            return sweep.id
    for sweep in known:
        if sweep.name == ref:
            return sweep.id
    labelled = with_label(ref, known)
    if labelled is not None:
        return labelled.id
    starting = [sweep.id for sweep in known if ref and sweep.id.startswith(ref)]
    if len(starting) > 1:
        raise UsageError(
            f"{len(starting)} sweep ids start with {ref!r}, such as {starting[0]}; give a longer"
            " start"
        )
    if starting:
        return starting[0]
    some = ", ".join(map(str, known[:4])) + (" …" if known[4:] else "")
    raise NothingFoundError(f"no sweep {ref!r} in {database}; choose from {some}")


def last_of(known: Sequence[KnownSweep], is_own: Callable[[str], bool]) -> KnownSweep:
    """Return the sweep that `last` means among these, which are not empty and in the order of
    `recorded_here_first`."""
    known = [sweep for sweep in known if not sweep.is_rerun] or known
    recorded_here = [sweep for sweep in known if sweep.imported_at is None]
    for sweep in recorded_here[:MOST_SIGNATURES]:
        if is_own(sweep.id):
            return sweep
    return known[0]


def with_label(label: str, known: Sequence[KnownSweep]) -> KnownSweep | None:
    """Return the only sweep with this label, or None. A re-run has the label of the sweep that it
    confirms and does not count. Raises UsageError if there are several."""
    labelled = [sweep for sweep in known if sweep.label == label]
    labelled = [sweep for sweep in labelled if not sweep.is_rerun] or labelled
    if len(labelled) > 1:
        ids = listed([str(sweep) for sweep in labelled], MOST_LISTED)
        raise UsageError(
            f"{len(labelled)} sweeps have the label {label!r}: {ids}; name one by its id"
        )
    return labelled[0] if labelled else None


def lock(connection: sa.Connection, sweep_id: str) -> str:
    """Lock the sweep's row, so that no process derives results while another adds trials; return
    its baseline mode."""
    mode = connection.scalar(
        sa.select(SWEEP.c.baseline_mode).where(SWEEP.c.id == sweep_id).with_for_update()
    )
    if mode is None:
        raise NothingFoundError(f"no sweep {sweep_id!r} in {name_of(connection)}")
    return mode


@dataclass(frozen=True)
class Shard:
    """One of several parts of a sweep, `name` is such as `3/8`. Parts with equal `facts` and
    `matrix` (all cells, in order) have the same sweep id in every database, so that they become one
    sweep when they are imported."""

    name: str
    facts: list[Any]
    matrix: Sequence[Cell]

    @property
    def sweep_id(self) -> str:
        return f"shards-{digest([self.facts, [cell.key for cell in self.matrix]])[:12]}"


def begin_sweep(
    connection: sa.Connection,
    *,
    plan: Iterable[Cell],
    cell_overrides: Mapping[str, list[str]] | None = None,
    started_at: dt.datetime | None = None,
    shard: Shard | None = None,
    **facts: Any,
) -> str:
    """Store a sweep in state `running` with its planned cells; return its id, which starts with the
    time (UTC).

    `facts`: the other columns of `sweep`. `cell_overrides`: cell key -> overrides that reproduce
    the cell. `shard`: add this part to the sweep of its parts. If this process has begun a sweep at
    exactly `started_at`, return its id. Raises UsageError if the shard is there.
    """
    started = started_at or now()
    begun = sa.select(SWEEP.c.id, SWEEP.c.host).where(SWEEP.c.started_at == started)
    for sweep_id, host in connection.execute(begun) if started_at else ():
        if host.get("process") == facts["host"].get("process"):
            return sweep_id  # the connection broke after its commit
    if shard is not None:
        add_shard(connection, shard, started, facts)
        positions = {cell.key: position for position, cell in enumerate(shard.matrix)}
        extend_sweep(connection, shard.sweep_id, plan, cell_overrides, positions)
        return shard.sweep_id
    values = {
        "state": "running",
        "started_at": started,
        **{name: scalar(value) for name, value in facts.items()},
    }
    sweep_id = None
    # RETURNING shows that an id is taken: PostgreSQL's driver has no rowcount
    while sweep_id is None:
        new = insert(connection, SWEEP).values(
            id=f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}", **values
        )
        sweep_id = connection.scalar(new.on_conflict_do_nothing().returning(SWEEP.c.id))
    extend_sweep(connection, sweep_id, plan, cell_overrides)
    signature.sign(connection, sweep_id)
    return sweep_id


def add_shard(
    connection: sa.Connection, shard: Shard, started: dt.datetime, facts: Mapping[str, Any]
) -> None:
    """Store the sweep of this shard, or add the shard to it, without its cells."""
    own = {
        **facts["host"],
        "shards": {shard.name: "running"},
        "processes": {shard.name: facts["host"].get("process")},
    }
    values = {**facts, "host": own, "state": "running", "started_at": started}
    values = {name: scalar(value) for name, value in values.items()}
    new = insert(connection, SWEEP).values(id=shard.sweep_id, **values).on_conflict_do_nothing()
    is_own = connection.scalar(new.returning(SWEEP.c.id)) is not None
    if not is_own:
        lock(connection, shard.sweep_id)
        is_own = signature.is_own(connection, shard.sweep_id)
        host = connection.scalar(sa.select(SWEEP.c.host).where(SWEEP.c.id == shard.sweep_id))
        if shard.name in host["shards"]:
            how = (
                f"continue it with resume={shard.sweep_id} shard={shard.name}, or choose another"
                " sweep.label"
            )
            raise UsageError(f"{name_of(connection)} has shard {shard.name} of this sweep; {how}")
        joined = with_shards(host, own) | {"process": own.get("process")}
        changes = {"host": joined, "state": "running", "finished_at": None}
        connection.execute(sa.update(SWEEP).where(SWEEP.c.id == shard.sweep_id).values(**changes))
    if is_own:
        signature.sign(connection, shard.sweep_id)


def with_shards(host: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the facts `host` of a sweep with the shards and environments of another record of the
    same sweep."""
    joined = dict(host)
    for name in filter(other.__contains__, ("shards", "environments", "processes")):
        joined[name] = {**(other[name] or {}), **(host.get(name) or {})}
    done = {
        name: state for name, state in (other.get("shards") or {}).items() if state == "completed"
    }
    return joined | ({"shards": joined["shards"] | done} if done else {})


def state_of(shards: Mapping[str, str]) -> str:
    """Return the state of a sweep from those of its shards."""
    return next(
        (state for state in ("running", "interrupted", "failed") if state in shards.values()),
        "completed",
    )


def extend_sweep(
    connection: sa.Connection,
    sweep_id: str,
    cells: Iterable[Cell],
    cell_overrides: Mapping[str, list[str]] | None = None,
    positions: Mapping[str, int] | None = None,
) -> None:
    """Append cells to the sweep's plan; cells that are already planned keep their position.
    `positions`: cell key -> position in the plan."""
    lock(connection, sweep_id)
    is_own = signature.is_own(connection, sweep_id)
    planned = sa.select(PLANNED.c.cell_key, PLANNED.c.position).where(
        PLANNED.c.sweep_id == sweep_id
    )
    known = dict(connection.execute(planned).all())
    rows = {cell.key: cell_row(cell) for cell in cells if cell.key not in known}
    positions = positions or dict(
        zip(rows, itertools.count(max(known.values(), default=-1) + 1), strict=False)
    )
    words = cell_overrides or {}
    places = [
        {
            "sweep_id": sweep_id,
            "cell_key": key,
            "position": positions[key],
            "overrides": words.get(key),
        }
        for key in rows
    ]
    if rows:
        connection.execute(insert(connection, CELL).on_conflict_do_nothing(), list(rows.values()))
        connection.execute(sa.insert(PLANNED), places)
    if is_own:
        signature.sign(connection, sweep_id)


def planned_cells(connection: sa.Connection, sweep_id: str) -> list[dict[str, Any]]:
    """Return the rows of `cell` that the sweep plans, in the order of the plan."""
    query = sa.select(CELL).join(PLANNED, PLANNED.c.cell_key == CELL.c.key)
    query = query.where(PLANNED.c.sweep_id == sweep_id).order_by(PLANNED.c.position)
    return [dict(row) for row in connection.execute(query).mappings()]


def planned(connection: sa.Connection, sweep_id: str) -> list[Cell]:
    """Return the cells of the sweep in the order of the plan."""
    return [Cell.from_params(row["params"]) for row in planned_cells(connection, sweep_id)]


def cell_overrides(connection: sa.Connection, sweep_id: str) -> dict[str, list[str] | None]:
    """Return cell key -> overrides that reproduce the cell (None if they are unknown), in the order
    of the plan."""
    query = sa.select(PLANNED.c.cell_key, PLANNED.c.overrides).where(PLANNED.c.sweep_id == sweep_id)
    return {
        row.cell_key: row.overrides
        for row in connection.execute(query.order_by(PLANNED.c.position))
    }


def note_environments(
    connection: sa.Connection, sweep_id: str, facts: dict[str, dict[str, Any]]
) -> None:
    """Append facts of further environments to the sweep's `host["environments"]`; existing ones
    stay unchanged."""
    lock(connection, sweep_id)
    host = connection.scalar(sa.select(SWEEP.c.host).where(SWEEP.c.id == sweep_id))
    known = host.get("environments") or {}
    host["environments"] = known | {key: value for key, value in facts.items() if key not in known}
    is_own = signature.is_own(connection, sweep_id)
    connection.execute(sa.update(SWEEP).where(SWEEP.c.id == sweep_id).values(host=host))
    if is_own:
        signature.sign(connection, sweep_id)


def add_rounds(
    connection: sa.Connection,
    sweep_id: str,
    protocol: Mapping[str, Any],
    overrides: Sequence[str],
    starts_part: bool,
) -> None:
    """Store that the sweep has more rounds: its `protocol`, and the `overrides` that plan it.

    `starts_part`: its compile caches are gone, so the new rounds compile again.
    """
    lock(connection, sweep_id)
    is_own = signature.is_own(connection, sweep_id)
    query = sa.select(SWEEP.c.host, SWEEP.c.rounds).where(SWEEP.c.id == sweep_id)
    host, rounds = connection.execute(query).one()
    values = {
        "protocol": dict(protocol),
        "overrides": list(overrides),
        "rounds": protocol["rounds"],
    }
    if starts_part:
        values["host"] = {**host, PARTS: [*first_rounds_of(host), rounds]}
    connection.execute(sa.update(SWEEP).where(SWEEP.c.id == sweep_id).values(**values))
    if is_own:
        signature.sign(connection, sweep_id)


def first_rounds_of(host: Mapping[str, Any]) -> list[int]:
    """Return the first round of each part of a sweep with these facts. Only its first part has the
    round 0."""
    return list(host.get(PARTS) or [0])


def first_rounds(connection: sa.Connection, sweep_id: str) -> list[int]:
    """Return the first round of each part of the sweep: a part has compile caches of its own."""
    host = connection.scalar(sa.select(SWEEP.c.host).where(SWEEP.c.id == sweep_id))
    return first_rounds_of(host or {})


def finish_sweep(
    connection: sa.Connection, sweep_id: str, state: str, shard: str | None = None
) -> None:
    """Set the state and end of the sweep, or of one of its shards; `running` removes the end and
    names this process as the one that runs it."""
    lock(connection, sweep_id)
    values: dict[str, Any] = {"state": state, "finished_at": now()}
    host = connection.scalar(sa.select(SWEEP.c.host).where(SWEEP.c.id == sweep_id))
    if shard is not None:
        host = {**host, "shards": {**(host.get("shards") or {}), shard: state}}
        values |= {"state": state_of(host["shards"]), "host": host}
    if state == "running":
        host = {**host, "process": liveness.identity()}
        if shard is not None:
            host["processes"] = {**(host.get("processes") or {}), shard: host["process"]}
        values = {"state": state, "finished_at": None, "host": host}
    connection.execute(sa.update(SWEEP).where(SWEEP.c.id == sweep_id).values(**values))


def add_environment(connection: sa.Connection, env: Environment, details: dict[str, Any]) -> str:
    """Store an environment unless it is known; return its id. `details` of a known environment stay
    unchanged."""
    row = {name: scalar(getattr(env, name)) for name in env.__dataclass_fields__}
    row |= {"id": env.id, "details": details, "first_seen_at": now()}
    connection.execute(insert(connection, ENVIRONMENT).values(**row).on_conflict_do_nothing())
    return env.id


def environments(
    connection: sa.Connection, ids: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Return rows of `environment` (all, or those of `ids`), with `flags` and `details` as dicts,
    oldest first."""
    query = sa.select(ENVIRONMENT).order_by(ENVIRONMENT.c.first_seen_at, ENVIRONMENT.c.id)
    if ids is not None:
        query = query.where(ENVIRONMENT.c.id.in_(list(dict.fromkeys(ids))))
    return [dict(row) for row in connection.execute(query).mappings()]


def environments_of(connection: sa.Connection, sweep_id: str) -> list[dict[str, Any]]:
    """Return the rows of `environment` in which the sweep has trials, oldest first."""
    used = connection.scalars(
        sa.select(TRIAL.c.environment_id).where(TRIAL.c.sweep_id == sweep_id).distinct()
    )
    return environments(connection, used)


def hardware(connection: sa.Connection, sweep_id: str) -> list[str]:
    """Return the names of the GPUs on which the sweep has trials, or of the CPU on a machine
    without GPU."""
    return sorted({hardware_of(row) for row in environments_of(connection, sweep_id)})


@dataclass(frozen=True)
class Recorded:
    """How much of a sweep is recorded: if it is unchanged, so are its results."""

    trials: int
    last_trial: int | None
    last_recorded_at: dt.datetime | None
    results: int


def recorded(connection: sa.Connection, sweep_id: str) -> Recorded:
    """Return how many trials and results a sweep has, and the id and time of its last trial."""
    facts = sa.func.count(), sa.func.max(TRIAL.c.id), sa.func.max(TRIAL.c.recorded_at)
    trials, last, recorded_at = connection.execute(
        sa.select(*facts).where(TRIAL.c.sweep_id == sweep_id)
    ).one()
    results = sa.select(sa.func.count()).select_from(RESULT).where(RESULT.c.sweep_id == sweep_id)
    return Recorded(trials, last, recorded_at, connection.scalar(results) or 0)


def add_calibration(
    connection: sa.Connection,
    environment_id: str,
    gpu_uuid: str | None,
    **measured: dict[str, Any] | None,
) -> None:
    """Store `ceilings`, `noise` or both (docs/explanation/measuring.md) of this environment; older
    rows stay."""
    row = {"environment_id": environment_id, "gpu_uuid": gpu_uuid, "measured_at": now(), **measured}
    connection.execute(sa.insert(CALIBRATION).values(**row))


def calibration(connection: sa.Connection, environment_id: str) -> dict[str, Any] | None:
    """Return the environment's newest `ceilings` and newest `noise`, with time and GPU of the
    newest row; None if neither was measured."""
    # by time, because ids follow the order of import
    query = sa.select(CALIBRATION).order_by(
        CALIBRATION.c.measured_at.desc(), CALIBRATION.c.id.desc()
    )
    rows = (
        connection.execute(query.where(CALIBRATION.c.environment_id == environment_id))
        .mappings()
        .all()
    )
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: is_future(row["measured_at"]))
    newest = {
        name: next((row[name] for row in rows if row[name] is not None), None)
        for name in ("ceilings", "noise")
    }
    return {"measured_at": rows[0]["measured_at"], "gpu_uuid": rows[0]["gpu_uuid"], **newest}
