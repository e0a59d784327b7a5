"""Join sweeps of several hosts with the same GPU into one sweep, whose intervals are over hosts.

The host decides launch-bound times: the same cell may run at 8.9 times eager's speed on one host
and at 10.7 times on another with the same GPU. Repeating it on one host does not show that.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import sqlalchemy as sa

from effbench.core.cell import Conditions, Environment, StoredEnvironment, digest
from effbench.core.environments import Difference, diff_conditions
from effbench.core.errors import StoreError, UsageError
from effbench.core.printable import count
from effbench.store import sweeps
from effbench.store.connect import insert
from effbench.store.schema import PLANNED, RESULT, SAMPLE, SWEEP, TRIAL
from effbench.store.trials import rebuild_results
from effbench.store.values import now, text

#: Key of a joined sweep's `host`: what it joins, one entry per host.
JOINED = "joined"
#: Facts in which the hosts of a joined sweep may differ, by kind.
MAY_DIFFER = {
    "hardware": {"gpu_memory_bytes"},
    "software": {"driver_version", "cpu_name", "platform"},
    "protocol": {"name", "rounds"},
}
#: Facts of an environment that the joined sweep records about each host.
OF_HOST = ("cpu_name", "driver_version", "platform")


@dataclass(frozen=True)
class HostSweep:
    """A sweep of one host, which is joined with others. `trials`: cell_key, round, compilation,
    gpu_uuid and host_ms of each."""

    sweep: sa.RowMapping
    environment: StoredEnvironment
    cell_keys: list[str]
    trials: Sequence[Any]

    @property
    def id(self) -> str:
        return str(self.sweep["id"])

    @property
    def conditions(self) -> Conditions:
        return Conditions(self.environment, self.sweep["protocol"], self.sweep["host"])

    @property
    def hostname(self) -> str:
        return self.sweep["host"].get("hostname") or ""

    @property
    def identity(self) -> set[str]:
        """What only this host has: its GPUs, and the boot of its kernel, which its containers
        share. Rented machines often have the same name, which counts only without a boot."""
        boot = (self.sweep["host"].get("process") or {}).get("boot")
        known = {boot or self.hostname, *(trial.gpu_uuid for trial in self.trials)}
        return known - {None, ""}

    @property
    def rounds(self) -> int:
        return 1 + max(int(trial.round) for trial in self.trials)

    @property
    def compilations(self) -> int:
        numbers = {trial.compilation for trial in self.trials} - {None}
        return 1 + max(numbers, default=-1)

    def facts(self, host: str) -> dict[str, Any]:
        """Return what the joined sweep records about this host."""
        times = [trial.host_ms for trial in self.trials if trial.host_ms]
        return {
            "host": host,
            "sweep": self.id,
            "trials": len(self.trials),
            "host_ms": statistics.median(times) if times else None,
            **{name: getattr(self.environment, name) for name in OF_HOST},
        }


@dataclass(frozen=True)
class JoinedSweep:
    """The outcome of `join`. `omitted`: number of cells that only some of the sweeps planned."""

    id: str
    name: str
    hosts: list[str]
    cells: int
    omitted: int
    trials: int


def join(connection: sa.Connection, sweep_ids: Iterable[str], name: str) -> JoinedSweep:
    """Join these sweeps of the database, each of another host, into one with this name. The sweeps
    stay as they are. Joining them again replaces the joined sweep.

    Raises UsageError for an invalid name or fewer than two sweeps, StoreError for sweeps that
    cannot be joined.
    """
    name = text(name)
    if not name.strip() or name.startswith(sweeps.CONFIRMING):
        raise UsageError(f"--join {name!r}: give the joined sweep a name, such as --join h100")
    parts = _read_parts(connection, sorted(set(sweep_ids)))
    every = {key for part in parts for key in part.cell_keys}
    shared = every.intersection(*(part.cell_keys for part in parts))
    if not shared:
        ids = " and ".join(sorted(part.id for part in parts))
        raise StoreError(f"{ids} cannot be joined: they have no cell in common")
    hosts = _host_names(parts)
    row = _sweep_row(parts, hosts, name)
    _remove(connection, row["id"])
    _write(connection, row, parts, [key for key in parts[0].cell_keys if key in shared])
    trials = sum(trial.cell_key in shared for part in parts for trial in part.trials)
    return JoinedSweep(row["id"], name, hosts, len(shared), len(every - shared), trials)


def _read_parts(connection: sa.Connection, sweep_ids: Sequence[str]) -> list[HostSweep]:
    """Return the sweeps to join, by host. Raises UsageError for fewer than two, StoreError for
    sweeps that cannot be joined."""
    if len(sweep_ids) < 2:
        raise UsageError(
            f"--join needs the sweeps of two hosts or more, not {count(len(sweep_ids), 'sweep')};"
            " name several files, or several sweeps with --sweep"
        )
    parts = [_read(connection, sweep_id) for sweep_id in sweep_ids]
    parts.sort(key=lambda part: (part.hostname, part.id))
    for part, other in combinations(parts, 2):
        fault = _other_conditions(part, other) or _same_host(part, other)
        if fault:
            raise StoreError(f"{part.id} and {other.id} cannot be joined{fault}")
    return parts


def _read(connection: sa.Connection, sweep_id: str) -> HostSweep:
    query = sa.select(SWEEP).where(SWEEP.c.id == sweep_id)
    sweep = connection.execute(query).mappings().one()
    if JOINED in sweep["host"]:
        raise StoreError(f"{sweep_id} is a joined sweep; name the sweeps that it joins instead")
    environments = sweeps.environments_of(connection, sweep_id)
    if len(environments) != 1:
        number = count(len(environments), "environment")
        raise StoreError(
            f"{sweep_id} has trials in {number}; --join takes sweeps with one environment each"
        )
    names = ("cell_key", "round", "compilation", "gpu_uuid", "host_ms")
    trials = sa.select(*(TRIAL.c[name] for name in names)).where(TRIAL.c.sweep_id == sweep_id)
    cell_keys = list(sweeps.cell_overrides(connection, sweep_id))
    return HostSweep(sweep, environments[0], cell_keys, connection.execute(trials).all())


def _other_conditions(part: HostSweep, other: HostSweep) -> str:
    """Return in what the sweeps differ if they measured different things, or with different
    software."""
    baselines = {part.sweep["baseline_mode"], other.sweep["baseline_mode"]}
    if len(baselines) > 1:
        return f": their baselines are {' and '.join(sorted(baselines))}"
    for difference in diff_conditions([part.conditions], [other.conditions]):
        if not _may_differ(difference, part, other):
            words = difference.text(difference.label, "and", "none")
            return f", because only the host may differ: {words}"
    return ""


def _may_differ(difference: Difference, part: HostSweep, other: HostSweep) -> bool:
    kind, name = difference.kind, difference.name
    if kind == "machine":
        return True
    if kind == "protocol" and not all(name in side.sweep["protocol"] for side in (part, other)):
        return True  # an earlier version did not have the setting
    if name == "cpu_name":  # without a GPU it is the hardware
        return part.environment.gpu_name is not None
    if name == "python":  # the same but for the patch
        minors = {side.environment.python.rpartition(".")[0] for side in (part, other)}
        return len(minors) == 1
    return name in MAY_DIFFER.get(kind, ())


def _same_host(part: HostSweep, other: HostSweep) -> str:
    """Return why the sweeps do not certainly come from two hosts."""
    if not part.identity or not other.identity:
        return ": it is unknown whether they ran on different hosts"
    shared = sorted(part.identity & other.identity)
    if shared:
        return f": they ran on the same host ({part.hostname or shared[0]})"
    return ""


def _host_names(parts: Sequence[HostSweep]) -> list[str]:
    """Return a short and unique name for the host of each part."""
    names = [(part.hostname or "host").partition(".")[0] for part in parts]
    if len(set(names)) == len(names):
        return names
    return [f"{name}-{number}" for number, name in enumerate(names, 1)]


def _sweep_row(parts: Sequence[HostSweep], hosts: Sequence[str], name: str) -> dict[str, Any]:
    """Return the row of `sweep`."""
    rows = [part.sweep for part in parts]
    ends = [row["finished_at"] for row in rows if row["finished_at"] is not None]
    states = {row["state"] for row in rows}
    return {
        **rows[0],
        "id": f"joined-{digest([name, sorted(part.id for part in parts)])[:12]}",
        "name": name,
        "label": _shared(row["label"] for row in rows),
        "state": "completed" if states == {"completed"} else "interrupted",
        "started_at": min(row["started_at"] for row in rows),
        "finished_at": max(ends, default=None),
        "command": [],
        "overrides": [],
        "rounds": sum(part.rounds for part in parts),
        "git_revision": _shared(row["git_revision"] for row in rows),
        "host": {JOINED: [part.facts(host) for part, host in zip(parts, hosts, strict=True)]},
        "imported_at": now(),
    }


def _shared(values: Iterable[str | None]) -> str | None:
    """Return the value that all have; None if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _joined_environment(parts: Sequence[HostSweep]) -> Environment:
    """Return the environment of the parts; facts in which they differ name all values."""
    names = [field.name for field in fields(Environment)]
    facts = {name: getattr(parts[0].environment, name) for name in names}
    for name in (*OF_HOST, "python"):
        values = {getattr(part.environment, name) for part in parts} - {None}
        facts[name] = ", ".join(sorted(values)) or None
    memories = [part.environment.gpu_memory_bytes for part in parts]
    facts["gpu_memory_bytes"] = min(filter(None, memories), default=None)
    return Environment(**facts)


def _remove(connection: sa.Connection, sweep_id: str) -> None:
    """Remove all of a joined sweep except its row, which baselines may refer to."""
    trials = sa.select(TRIAL.c.id).where(TRIAL.c.sweep_id == sweep_id)
    connection.execute(sa.delete(SAMPLE).where(SAMPLE.c.trial_id.in_(trials)))
    for table in (RESULT, TRIAL, PLANNED):
        connection.execute(sa.delete(table).where(table.c.sweep_id == sweep_id))


def _write(
    connection: sa.Connection,
    row: dict[str, Any],
    parts: Sequence[HostSweep],
    cell_keys: Sequence[str],
) -> None:
    """Write the sweep, its plan, and the trials of the parts, each with rounds and compilations of
    its own."""
    sweep_id = row["id"]
    new = insert(connection, SWEEP).values(**row)
    connection.execute(new.on_conflict_do_update(index_elements=["id"], set_=row))
    places = [
        {"sweep_id": sweep_id, "cell_key": key, "position": position, "overrides": None}
        for position, key in enumerate(cell_keys)
    ]
    connection.execute(sa.insert(PLANNED), places)
    details = {JOINED: [part.environment.id for part in parts]}
    environment_id = sweeps.add_environment(connection, _joined_environment(parts), details)
    rounds = compilations = 0
    for part, facts in zip(parts, row["host"][JOINED], strict=True):
        changed = {
            "sweep_id": sa.literal(sweep_id),
            "environment_id": sa.literal(environment_id),
            "host": sa.literal(facts["host"]),
            "round": TRIAL.c.round + rounds,
            "compilation": TRIAL.c.compilation + compilations,
        }
        _copy_trials(connection, part.id, sweep_id, changed)
        _copy_samples(connection, part.id, sweep_id, rounds)
        rounds += part.rounds
        compilations += part.compilations
    rebuild_results(connection, sweep_id)


def _copy_trials(
    connection: sa.Connection,
    part_id: str,
    sweep_id: str,
    changed: Mapping[str, sa.ColumnElement[Any]],
) -> None:
    """Copy the trials of a part, in their order. `changed`: columns that differ."""
    kept: dict[str, Any] = {column.name: column for column in TRIAL.c if column.name != "id"}
    columns = {**kept, **changed}
    cells = sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == sweep_id)
    query = sa.select(*columns.values()).order_by(TRIAL.c.id)
    chosen = query.where(TRIAL.c.sweep_id == part_id, TRIAL.c.cell_key.in_(cells))
    connection.execute(sa.insert(TRIAL).from_select(list(columns), chosen))


def _copy_samples(connection: sa.Connection, part_id: str, sweep_id: str, rounds: int) -> None:
    """Copy the samples of a part to the copies of its trials, which come `rounds` later."""
    old, new = TRIAL.alias(), TRIAL.alias()
    is_copy = sa.and_(
        new.c.sweep_id == sweep_id,
        new.c.cell_key == old.c.cell_key,
        new.c.round == old.c.round + rounds,
        new.c.attempt == old.c.attempt,
    )
    columns = {column.name: column for column in SAMPLE.c} | {"trial_id": new.c.id}
    query = sa.select(*columns.values()).select_from(SAMPLE)
    query = query.join(old, old.c.id == SAMPLE.c.trial_id).join(new, is_copy)
    chosen = query.where(old.c.sweep_id == part_id)
    connection.execute(sa.insert(SAMPLE).from_select(list(columns), chosen))
