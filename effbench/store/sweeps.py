"""Sweeps as they are seen from outside: `SweepInfo`, and how a reference finds one."""

from __future__ import annotations

import datetime as dt
import difflib
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from effbench.errors import NothingFoundError, UsageError
from effbench.store import liveness
from effbench.store.schema import ResultRow, SweepCellRow, SweepRow, TrialRow

SWEEP, PLANNED, TRIAL, RESULT = (row.__table__ for row in (SweepRow, SweepCellRow, TrialRow, ResultRow))

STATES = ("running", "completed", "interrupted", "failed")
#: How the names of sweeps begin that only run some cells of another one again: `last` is none of them.
CONFIRMING = "confirm:"
#: A clock may be ahead of ours by this much.
CLOCK_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class SweepInfo:
    """A sweep with its counts. Times are aware UTC; `state` is one of running, completed, interrupted, failed.

    A sweep that is stored as running is `interrupted` here if its process was on this host and has ended.

    `cells` were planned, `trials` are recorded (all attempts), `statuses` counts results (cell × environment) by
    status. `imported_at` is set for a sweep that `effbench import` wrote or changed (docs/transfer.md, Trust model).
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


def starts_in_future(started_at: dt.datetime) -> bool:
    """Return whether a sweep claims a start that is still to come. Such a sweep is never the newest one."""
    return started_at > dt.datetime.now(dt.UTC) + CLOCK_SKEW


def all_sweeps(connection: sa.Connection, sweep_id: str | None = None) -> list[SweepInfo]:
    """Every sweep (or the one with this id), newest first; those that start in the future come last."""
    query = sa.select(SWEEP).order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
    cells = sa.select(PLANNED.c.sweep_id, sa.func.count()).group_by(PLANNED.c.sweep_id)
    trials = sa.select(TRIAL.c.sweep_id, sa.func.count()).group_by(TRIAL.c.sweep_id)
    statuses = sa.select(RESULT.c.sweep_id, RESULT.c.status, sa.func.count()).group_by(
        RESULT.c.sweep_id, RESULT.c.status
    )
    if sweep_id is not None:
        query = query.where(SWEEP.c.id == sweep_id)
        cells = cells.where(PLANNED.c.sweep_id == sweep_id)
        trials = trials.where(TRIAL.c.sweep_id == sweep_id)
        statuses = statuses.where(RESULT.c.sweep_id == sweep_id)
    planned = {row[0]: row[1] for row in connection.execute(cells)}
    recorded = {row[0]: row[1] for row in connection.execute(trials)}
    by_status: dict[str, dict[str, int]] = {}
    for found, status, count in connection.execute(statuses):
        by_status.setdefault(found, {})[status] = count
    found = [
        SweepInfo(
            **{**row, "state": _state(row)},
            cells=planned.get(row["id"], 0),
            trials=recorded.get(row["id"], 0),
            statuses=by_status.get(row["id"], {}),
        )
        for row in connection.execute(query).mappings()
    ]
    return sorted(found, key=lambda sweep: starts_in_future(sweep.started_at))


def _state(row: sa.RowMapping) -> str:
    killed = row["state"] == "running" and liveness.has_ended((row["host"] or {}).get("process"))
    return "interrupted" if killed else row["state"]


def find(connection: sa.Connection, ref: str, database: str) -> SweepInfo:
    """The sweep that `ref` means: `last`, an id, a name (its newest), or the unique start of an id.

    A sweep that starts in the future is never `last`, and the newest of its name only if no other has that name.
    Raises NothingFoundError that names what exists.
    """
    rows = connection.execute(
        sa.select(SWEEP.c.id, SWEEP.c.name, SWEEP.c.started_at).order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
    ).all()
    if not rows:
        raise NothingFoundError(f"{database} holds no sweep yet; `effbench -m model=mlp mode=eager,default` runs one")
    started = [(row.id, row.name) for row in rows if not starts_in_future(row.started_at)]
    future = [(row.id, row.name) for row in rows if starts_in_future(row.started_at)]
    if ref == "last" and not started:
        raise NothingFoundError(
            f"every sweep in {database} starts in the future, so none is `last`; name one by its id: "
            f"{_some([sweep_id for sweep_id, _ in future])}"
        )
    known = started if ref == "last" else [*started, *future]
    return all_sweeps(connection, _resolve(ref, known, database))[0]


def _resolve(ref: str, known: list[tuple[str, str | None]], database: str) -> str:
    if ref == "last":
        return next((one for one, name in known if not (name or "").startswith(CONFIRMING)), known[0][0])
    ids = [sweep_id for sweep_id, _ in known]
    if ref in ids:
        return ref
    for sweep_id, name in known:
        if name == ref:
            return sweep_id
    starting = [sweep_id for sweep_id in ids if ref and sweep_id.startswith(ref)]
    if len(starting) == 1:
        return starting[0]
    if starting:
        raise UsageError(f"{ref!r} is the start of {len(starting)} sweeps: {_some(starting)}; give more of the id")
    names = list(dict.fromkeys(name for _, name in known if name))
    near = difflib.get_close_matches(ref, names + ids, n=3, cutoff=0.5)
    if near:
        raise NothingFoundError(f"no sweep {ref!r} in {database}; nearest: {_some(near)}")
    there = _some([f"{sweep_id} ({name})" if name else sweep_id for sweep_id, name in known])
    raise NothingFoundError(f"no sweep {ref!r} in {database}; there are {there}, and `last`")


def lock(connection: sa.Connection, sweep_id: str, database: str) -> str:
    """The sweep's baseline mode; holds its row, so that no one derives from trials that another is adding."""
    found = connection.execute(
        sa.select(SWEEP.c.baseline_mode).where(SWEEP.c.id == sweep_id).with_for_update()
    ).scalar()
    if found is None:
        raise NothingFoundError(f"no sweep {sweep_id!r} in {database}")
    return found


def _some(items: list[str], most: int = 4) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
