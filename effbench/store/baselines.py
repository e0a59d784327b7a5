"""Names for sweeps that later ones are compared with: a name holds once for each hardware."""

from __future__ import annotations

import datetime as dt
import difflib
import re
from dataclasses import dataclass

import sqlalchemy as sa

from effbench.errors import NothingFoundError, UsageError
from effbench.store.schema import BaselineRow, EnvironmentRow, SweepRow, TrialRow
from effbench.store.values import now

BASELINE, ENVIRONMENT, SWEEP, TRIAL = (row.__table__ for row in (BaselineRow, EnvironmentRow, SweepRow, TrialRow))


@dataclass(frozen=True)
class BaselineInfo:
    """A baseline, with the label and the beginning of its sweep; times are aware UTC."""

    name: str
    hardware: str
    sweep_id: str
    set_at: dt.datetime
    note: str | None
    sweep_name: str | None
    label: str | None
    started_at: dt.datetime


def hardware_of(connection: sa.Connection, sweep_id: str) -> list[str]:
    """What the sweep has trials on: GPUs by name; a machine without one by its CPU."""
    query = (
        sa.select(sa.func.coalesce(ENVIRONMENT.c.gpu_name, ENVIRONMENT.c.cpu_name))
        .where(ENVIRONMENT.c.id.in_(sa.select(TRIAL.c.environment_id).where(TRIAL.c.sweep_id == sweep_id)))
        .distinct()
    )
    return sorted(connection.scalars(query))


def put(connection: sa.Connection, name: str, sweep_id: str, note: str | None, database: str) -> list[str]:
    """Set the name to this sweep, on all hardware that it has trials on, which is returned. Raises UsageError for a
    name that could be mistaken, NothingFoundError for a sweep without trials."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.+@/-]*", name):
        raise UsageError(f"{name!r} cannot name a baseline: use letters, digits and . _ - + @ / (as main or v1.2)")
    found = hardware_of(connection, sweep_id)
    if not found:
        raise NothingFoundError(f"sweep {sweep_id} in {database} has no trial yet: it cannot be a baseline")
    for hardware in found:
        connection.execute(sa.delete(BASELINE).where(BASELINE.c.name == name, BASELINE.c.hardware == hardware))
        connection.execute(
            sa.insert(BASELINE).values(name=name, hardware=hardware, sweep_id=sweep_id, set_at=now(), note=note)
        )
    return found


def everything(connection: sa.Connection) -> list[BaselineInfo]:
    """All baselines by name and hardware."""
    query = (
        sa.select(BASELINE, SWEEP.c.name.label("sweep_name"), SWEEP.c.label, SWEEP.c.started_at)
        .join(SWEEP, SWEEP.c.id == BASELINE.c.sweep_id)
        .order_by(BASELINE.c.name, BASELINE.c.hardware)
    )
    return [BaselineInfo(**row) for row in connection.execute(query).mappings()]


def named(connection: sa.Connection, name: str, database: str) -> list[BaselineInfo]:
    """The baselines of this name, one for each hardware. Raises NothingFoundError that names the nearest."""
    known = everything(connection)
    found = [one for one in known if one.name == name]
    if found:
        return found
    names = sorted({one.name for one in known})
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    if near:
        raise NothingFoundError(f"no baseline {name!r} in {database}; nearest: {', '.join(near)}")
    there = f"there are {', '.join(names)}" if names else f"`effbench baseline set {name} last` sets it"
    raise NothingFoundError(f"no baseline {name!r} in {database}; {there}")


def remove(connection: sa.Connection, name: str, hardware: str | None, database: str) -> list[BaselineInfo]:
    """Forget the name (on this hardware, None: on all); the sweeps stay. Raises NothingFoundError."""
    found = [one for one in named(connection, name, database) if hardware in (None, one.hardware)]
    if not found:
        raise NothingFoundError(f"baseline {name!r} is not set for {hardware}")
    for one in found:
        connection.execute(sa.delete(BASELINE).where(BASELINE.c.name == name, BASELINE.c.hardware == one.hardware))
    return found
