"""Read and write decisions about sweeps: baselines, and verdicts on claims."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection, select

from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.settings import db_option
from effbench.store.connect import insert, name_of
from effbench.store.schema import BASELINE, ENVIRONMENT, SWEEP, VERDICT
from effbench.store.sweeps import hardware
from effbench.store.values import Columns, as_dicts, now, text


@dataclass(frozen=True)
class BaselineInfo:
    """A baseline on one kind of hardware. The last three fields describe its sweep; None if that
    was deleted."""

    name: str
    hardware: str
    sweep_id: str
    set_at: dt.datetime
    note: str | None
    sweep_name: str | None
    label: str | None
    started_at: dt.datetime | None


def set_baseline(
    connection: Connection,
    name: str,
    sweep_id: str,
    note: str | None = None,
) -> list[str]:
    """Make the sweep the baseline `name` on all hardware on which it has trials; return this
    hardware. Raises UsageError for an invalid name, NothingFoundError for a sweep without
    trials."""
    if not re.fullmatch(r"(?!last$|\d{8}-\d{6}-[0-9a-f]{4}$)[A-Za-z0-9][\w.+@/-]*", name):
        allowed = (
            "use letters, digits and . _ - + @ / (such as main or v1.2), but not `last` or a"
            " sweep id"
        )
        raise UsageError(f"{name!r} cannot name a baseline: {allowed}")
    machines = hardware(connection, sweep_id)
    if not machines:
        raise NothingFoundError(
            f"sweep {sweep_id} in {name_of(connection)} has no trial yet: it cannot be a baseline"
        )
    given = {
        "sweep_id": sweep_id,
        "set_at": now(),
        "note": note and text(note),
    }
    for machine in machines:
        row = insert(connection, BASELINE).values(name=name, hardware=machine, **given)
        connection.execute(
            row.on_conflict_do_update(index_elements=["name", "hardware"], set_=given)
        )
    return machines


def baselines(connection: Connection, name: str | None = None) -> list[BaselineInfo]:
    """Return all baselines in order, or those with this name. Raises NothingFoundError for an
    unknown name."""
    columns = SWEEP.c.name.label("sweep_name"), *SWEEP.c["label", "started_at"]
    # a sweep may have been deleted by hand
    every = select(BASELINE, *columns).outerjoin(SWEEP).order_by(*BASELINE.primary_key)
    known = [BaselineInfo(**row) for row in as_dicts(connection, every)]
    if name is None:
        return known
    named = [baseline for baseline in known if baseline.name == name]
    if not named:
        database = name_of(connection)
        hint = f"`effbench baseline set {name} last{db_option(database)}` sets it"
        if known:
            hint = f"choose from {', '.join(sorted({baseline.name for baseline in known}))}"
        raise NothingFoundError(f"no baseline {name!r} in {database}; {hint}")
    return named


def remove_baseline(connection: Connection, name: str) -> list[BaselineInfo]:
    """Delete the baseline on all hardware and return what was deleted. Raises
    NothingFoundError."""
    removed = baselines(connection, name)
    connection.execute(sa.delete(BASELINE).filter_by(name=name))
    return removed


def add_verdicts(connection: Connection, environment_id: str, judged: Iterable[Columns]) -> None:
    """Add rows of `claim_verdict`; `judged` holds them without `environment_id` and `judged_at`."""
    given = {"environment_id": environment_id, "judged_at": now()}
    rows = [{**row, **given} for row in judged]
    if rows:
        connection.execute(sa.insert(VERDICT), rows)


def verdicts(connection: Connection) -> list[Columns]:
    """Return the newest verdict on each claim by each experiment on each GPU (or CPU), oldest
    first, with `gpu_name`, `cpu_name` and `torch_version` of its environment."""
    facts = ENVIRONMENT.c["gpu_name", "cpu_name", "torch_version"]
    oldest_first = (
        select(VERDICT, *facts)
        .join(ENVIRONMENT)
        .order_by(*VERDICT.c["judged_at", "id"])  # ids follow the import
    )
    newest: dict[tuple[str, ...], Columns] = {}
    for row in as_dicts(connection, oldest_first):
        key = (row["claim"], row["experiment"], row["gpu_name"] or row["cpu_name"])
        newest.pop(key, None)
        newest[key] = row
    return list(newest.values())
