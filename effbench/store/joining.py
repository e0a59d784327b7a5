"""Join sweeps of several hosts with the same GPU into one sweep, whose intervals are over hosts.

The host decides launch-bound times: the same cell may run at 8.9 times eager's speed on one host
and at 10.7 times on another with the same GPU. Repeating it on one host does not show that.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import combinations, islice
from typing import Any

import sqlalchemy as sa

from effbench.cell import Environment, digest
from effbench.environments import Difference, diff_environments
from effbench.errors import StoreError, UsageError
from effbench.printable import count
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
#: Parts of `extra` that name files of the original sweep.
OF_ARTIFACTS = ("artifacts", "artifact_notes")
#: Trials copied at a time.
CHUNK = 500


@dataclass(frozen=True)
class Part:
    """A sweep of one host that is joined. `rounds`, `compilations`: how many numbers of each its
    trials use."""

    sweep: dict[str, Any]
    environment: dict[str, Any]
    cell_keys: list[str]
    trials: int
    rounds: int
    compilations: int
    gpu_uuids: frozenset[str]
    host_ms: float | None

    @property
    def id(self) -> str:
        return str(self.sweep["id"])

    @property
    def hostname(self) -> str | None:
        name = self.sweep["host"].get("hostname")
        return None if name is None else str(name)

    @property
    def boot(self) -> str | None:
        """The boot of the host's kernel, which its containers share."""
        return (self.sweep["host"].get("process") or {}).get("boot")

    def facts(self, host: str) -> dict[str, Any]:
        """Return what the joined sweep records about this host."""
        names = ("cpu_name", "driver_version", "platform")
        return {
            "host": host,
            "sweep": self.id,
            "trials": self.trials,
            "host_ms": self.host_ms,
            **{name: self.environment[name] for name in names},
        }


@dataclass(frozen=True)
class JoinedSweep:
    """The outcome of `join`. `omitted`: cells that only some of the sweeps planned; `is_changed`:
    whether the joined sweep was not there yet, or has changed."""

    id: str
    name: str
    hosts: list[str]
    cells: int
    omitted: int
    trials: int
    is_changed: bool


@dataclass(frozen=True)
class Plan:
    """A sweep to be made of these parts, in which each part has one of the `hosts`."""

    name: str
    parts: Sequence[Part]
    hosts: Sequence[str]

    @property
    def id(self) -> str:
        return f"joined-{digest([self.name, sorted(part.id for part in self.parts)])[:12]}"

    @cached_property
    def cell_keys(self) -> list[str]:
        """The cells that all parts planned, in the order of the first part."""
        others = [set(part.cell_keys) for part in self.parts[1:]]
        first = self.parts[0].cell_keys
        return [key for key in first if all(key in other for other in others)]

    @property
    def omitted(self) -> int:
        every = {key for part in self.parts for key in part.cell_keys}
        return len(every) - len(self.cell_keys)

    def environment(self) -> Environment:
        """Return the environment of the parts; facts in which they differ name all values."""
        facts: dict[str, Any] = {}
        for field in fields(Environment):
            values = [part.environment[field.name] for part in self.parts]
            known = [value for value in values if value is not None]
            if all(value == values[0] for value in values):
                facts[field.name] = values[0]
            elif field.name == "gpu_memory_bytes":
                facts[field.name] = min(known)
            else:
                facts[field.name] = ", ".join(sorted(set(known)))
        return Environment(**facts)

    def row(self) -> dict[str, Any]:
        """Return the row of `sweep`."""
        rows = [part.sweep for part in self.parts]
        ends = [row["finished_at"] for row in rows if row["finished_at"] is not None]
        is_completed = all(row["state"] == "completed" for row in rows)
        facts = [part.facts(host) for part, host in zip(self.parts, self.hosts, strict=True)]
        return {
            "id": self.id,
            "name": self.name,
            "label": _shared([row["label"] for row in rows]),
            "state": "completed" if is_completed else "interrupted",
            "started_at": min(row["started_at"] for row in rows),
            "finished_at": max(ends, default=None),
            "command": [],
            "overrides": [],
            "protocol": rows[0]["protocol"],
            "baseline_mode": rows[0]["baseline_mode"],
            "seed": rows[0]["seed"],
            "rounds": sum(part.rounds for part in self.parts),
            "git_revision": _shared([row["git_revision"] for row in rows]),
            "host": {JOINED: facts},
            "imported_at": now(),
        }


def join(connection: sa.Connection, sweep_ids: Iterable[str], name: str) -> JoinedSweep:
    """Join these sweeps of the database, each of another host, into one with this name. The sweeps
    stay as they are. Joining them again changes nothing, unless they have changed.

    Raises UsageError for an invalid name or fewer than two sweeps, StoreError for sweeps that
    cannot be joined.
    """
    ids = sorted(set(sweep_ids))
    if not name.strip() or name.startswith(sweeps.CONFIRMING):
        raise UsageError(f"--join {name!r}: give the joined sweep a name, such as --join h100")
    if len(ids) < 2:
        raise UsageError(
            f"--join needs the sweeps of two hosts or more, not {count(len(ids), 'sweep')}; name"
            " several files, or several sweeps with --sweep"
        )
    parts = [_part(connection, sweep_id) for sweep_id in ids]
    parts.sort(key=lambda part: (part.hostname or "", part.id))
    for part, other in combinations(parts, 2):
        _require_same_conditions(part, other)
        _require_other_host(part, other)
    plan = Plan(text(name), parts, _host_names(parts))
    if not plan.cell_keys:
        raise StoreError(f"{' and '.join(ids)} cannot be joined: they have no cell in common")
    row = plan.row()
    known = connection.scalar(sa.select(SWEEP.c.host).where(SWEEP.c.id == plan.id))
    is_changed = known != row["host"]
    if is_changed:
        if known is not None:
            _remove_trials(connection, plan.id)
        _write(connection, plan, row)
    query = sa.select(sa.func.count()).select_from(TRIAL).where(TRIAL.c.sweep_id == plan.id)
    trials = connection.scalar(query) or 0
    hosts = list(plan.hosts)
    return JoinedSweep(
        plan.id, plan.name, hosts, len(plan.cell_keys), plan.omitted, trials, is_changed
    )


def _part(connection: sa.Connection, sweep_id: str) -> Part:
    query = sa.select(SWEEP).where(SWEEP.c.id == sweep_id)
    sweep = dict(connection.execute(query).mappings().one())
    if JOINED in sweep["host"]:
        raise StoreError(f"{sweep_id} is a joined sweep; name the sweeps that it joins instead")
    environments = sweeps.environments_of(connection, sweep_id)
    if len(environments) != 1:
        number = count(len(environments), "environment")
        raise StoreError(
            f"{sweep_id} has trials in {number}; --join takes sweeps with one environment each"
        )
    columns = (TRIAL.c.round, TRIAL.c.compilation, TRIAL.c.gpu_uuid, TRIAL.c.host_ms)
    trials = connection.execute(sa.select(*columns).where(TRIAL.c.sweep_id == sweep_id)).all()
    host_times = [trial.host_ms for trial in trials if trial.host_ms]
    caches = [trial.compilation for trial in trials if trial.compilation is not None]
    return Part(
        sweep,
        environments[0],
        list(sweeps.cell_overrides(connection, sweep_id)),
        trials=len(trials),
        rounds=1 + max(trial.round for trial in trials),
        compilations=1 + max(caches, default=-1),
        gpu_uuids=frozenset(trial.gpu_uuid for trial in trials if trial.gpu_uuid),
        host_ms=statistics.median(host_times) if host_times else None,
    )


def _require_same_conditions(part: Part, other: Part) -> None:
    """Raise StoreError if the sweeps measured different things, or with different software."""
    what = f"{part.id} and {other.id} cannot be joined"
    baselines = {part.sweep["baseline_mode"], other.sweep["baseline_mode"]}
    if len(baselines) > 1:
        raise StoreError(f"{what}: their baselines are {' and '.join(sorted(baselines))}")
    sides = [[(side.sweep, side.environment)] for side in (part, other)]
    for difference in diff_environments(*sides):
        if not _may_differ(difference, part, other):
            text = difference.text(difference.label, "and", "none")
            raise StoreError(f"{what}, because only the host may differ: {text}")


def _may_differ(difference: Difference, part: Part, other: Part) -> bool:
    kind, name = difference.kind, difference.name
    if kind == "machine":
        return True
    if kind == "protocol":
        # an earlier version did not have the setting
        is_new = not all(name in side.sweep["protocol"] for side in (part, other))
        return is_new or name in MAY_DIFFER[kind]
    if name == "cpu_name":  # without a GPU it is the hardware
        return part.environment["gpu_name"] is not None
    if name == "python":
        return _minor_version(part) == _minor_version(other)
    return name in MAY_DIFFER.get(kind, ())


def _minor_version(part: Part) -> list[str]:
    """Return `3` and `12` for a sweep with Python 3.12.4."""
    return str(part.environment["python"]).split(".")[:2]


def _require_other_host(part: Part, other: Part) -> None:
    """Raise StoreError unless the sweeps ran on two hosts.

    Rented machines often have the same name, so GPUs and the boot of the kernel count more.
    """
    what = f"{part.id} and {other.id} cannot be joined"
    same_host = f"{what}: they ran on the same host"
    shared = sorted(part.gpu_uuids & other.gpu_uuids)
    if shared:
        raise StoreError(f"{same_host}, with the GPU {shared[0]}")
    boots = {part.boot, other.boot} - {None}
    if len(boots) == 1 and part.boot == other.boot:
        raise StoreError(f"{same_host}, {part.hostname or 'without a name'}")
    names = {part.hostname, other.hostname} - {None}
    has_gpus = bool(part.gpu_uuids and other.gpu_uuids)
    if part.hostname == other.hostname and names and not (has_gpus and len(boots) == 2):
        raise StoreError(f"{same_host}, {part.hostname}")
    if len(names) < 2 and not has_gpus:
        raise StoreError(f"{what}: it is unknown whether they ran on different hosts")


def _host_names(parts: Sequence[Part]) -> list[str]:
    """Return a short and unique name for the host of each part."""
    names = [(part.hostname or "host").partition(".")[0] for part in parts]
    numbers: Counter[str] = Counter()
    unique = []
    for name in names:
        numbers[name] += 1
        unique.append(f"{name}-{numbers[name]}" if names.count(name) > 1 else name)
    return unique


def _remove_trials(connection: sa.Connection, sweep_id: str) -> None:
    """Remove all of a joined sweep except its row, which baselines may refer to."""
    trials = sa.select(TRIAL.c.id).where(TRIAL.c.sweep_id == sweep_id)
    connection.execute(sa.delete(SAMPLE).where(SAMPLE.c.trial_id.in_(trials)))
    for table in (RESULT, TRIAL, PLANNED):
        connection.execute(sa.delete(table).where(table.c.sweep_id == sweep_id))


def _write(connection: sa.Connection, plan: Plan, row: dict[str, Any]) -> None:
    new = insert(connection, SWEEP).values(**row)
    connection.execute(new.on_conflict_do_update(index_elements=["id"], set_=row))
    places = [
        {"sweep_id": plan.id, "cell_key": key, "position": position, "overrides": None}
        for position, key in enumerate(plan.cell_keys)
    ]
    connection.execute(sa.insert(PLANNED), places)
    joined = [part.environment["id"] for part in plan.parts]
    environment_id = sweeps.add_environment(connection, plan.environment(), {JOINED: joined})
    first_round = first_compilation = 0
    for part, host in zip(plan.parts, plan.hosts, strict=True):
        place = Place(plan.id, environment_id, host, first_round, first_compilation)
        _copy_trials(connection, part.id, place)
        _copy_samples(connection, part.id, place)
        first_round += part.rounds
        first_compilation += part.compilations
    rebuild_results(connection, plan.id)


@dataclass(frozen=True)
class Place:
    """Where the trials of a part go: they keep their order, with rounds and compilations of their
    own."""

    sweep_id: str
    environment_id: str
    host: str
    first_round: int
    first_compilation: int

    def trial(self, row: sa.RowMapping) -> dict[str, Any]:
        """Return the row of `trial` for the trial of a part."""
        copy = {name: value for name, value in row.items() if name != "id"}
        copy["sweep_id"] = self.sweep_id
        copy["environment_id"] = self.environment_id
        copy["host"] = self.host
        copy["round"] += self.first_round
        if copy["compilation"] is not None:
            copy["compilation"] += self.first_compilation
        extra = copy["extra"].items()
        copy["extra"] = {name: value for name, value in extra if name not in OF_ARTIFACTS}
        return copy


def _copy_trials(connection: sa.Connection, part_id: str, place: Place) -> None:
    cells = sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == place.sweep_id)
    query = sa.select(TRIAL).where(TRIAL.c.sweep_id == part_id, TRIAL.c.cell_key.in_(cells))
    rows = iter(connection.execute(query.order_by(TRIAL.c.id)).mappings().all())
    while chunk := [place.trial(row) for row in islice(rows, CHUNK)]:
        connection.execute(sa.insert(TRIAL), chunk)


def _copy_samples(connection: sa.Connection, part_id: str, place: Place) -> None:
    old, new = TRIAL.alias(), TRIAL.alias()
    is_copy = sa.and_(
        new.c.sweep_id == place.sweep_id,
        new.c.cell_key == old.c.cell_key,
        new.c.round == old.c.round + place.first_round,
        new.c.attempt == old.c.attempt,
    )
    names = [column.name for column in SAMPLE.c if column.name != "trial_id"]
    query = (
        sa.select(new.c.id, *(SAMPLE.c[name] for name in names))
        .select_from(SAMPLE)
        .join(old, old.c.id == SAMPLE.c.trial_id)
        .join(new, is_copy)
        .where(old.c.sweep_id == part_id)
    )
    connection.execute(sa.insert(SAMPLE).from_select(["trial_id", *names], query))


def _shared(values: Sequence[Any]) -> Any:
    """Return the value that all have; None if they differ."""
    return values[0] if all(value == values[0] for value in values) else None
