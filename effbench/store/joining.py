"""Join sweeps of several hosts with the same GPU into one sweep, whose intervals are over hosts.

The host decides launch-bound times: the same cell may run at 8.9 times eager's speed on one host
and at 10.7 times on another with the same GPU. Repeating it on one host does not show that. A
joined sweep has one trial for each host and cell, with the figures of the host's result, so that
each host counts once.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Self

import sqlalchemy as sa
from sqlalchemy import Connection

from effbench.core.cell import (
    Cell,
    Conditions,
    Environment,
    Result,
    Status,
    StoredEnvironment,
    StoredTrial,
    Trial,
    digest,
)
from effbench.core.environments import diff_conditions
from effbench.core.errors import StoreError, UsageError
from effbench.core.metrics import SPEEDUPS, TRIAL_METRICS, bounds_of
from effbench.core.printable import count
from effbench.store import sweeps, trials
from effbench.store.schema import RESULT, TRIAL
from effbench.store.summary import BOUNDS, mean_of
from effbench.store.values import Columns, now, text, trial_row

#: Facts of an environment and settings of a protocol in which hosts may differ.
OF_HOST = ("driver_version", "platform", "gpu_memory_bytes", "name", "rounds")
#: Figures of a result that are figures of a trial.
SHARED_FIGURES = tuple(
    metric.name for metric in TRIAL_METRICS if metric.title and metric.name in RESULT.columns
)


@dataclass(frozen=True)
class HostSweep:
    """A sweep of one host, which is joined with others. `host`: a short and unique name."""

    sweep: sweeps.SweepInfo
    environment: StoredEnvironment
    plan: list[Cell]
    trials: list[StoredTrial]
    results: list[Result]
    host: str = ""

    @classmethod
    def read(cls, connection: Connection, sweep_id: str) -> Self:
        """Return a sweep to join. Raises StoreError for a joined one, and for one with several
        environments."""
        sweep = sweeps.find_sweep(connection, sweep_id)
        if sweep.joined:
            raise StoreError(f"{sweep_id} is a joined sweep; name the sweeps that it joins instead")
        environments = sweeps.environments_of(connection, sweep_id)
        if len(environments) != 1:
            number = count(len(environments), "environment")
            raise StoreError(
                f"{sweep_id} has trials in {number}; --join takes sweeps with one environment each"
            )
        return cls(
            sweep,
            environments[0],
            sweeps.planned(connection, sweep_id),
            trials.trials(connection, sweep_id),
            trials.results(connection, sweep_id),
        )

    @property
    def hostname(self) -> str:
        return self.sweep.host.get("hostname") or ""

    @property
    def identity(self) -> set[str]:
        """What only this host has: its GPUs, and the boot of its kernel, which its containers
        share. Rented machines often have the same name, which counts only without a boot."""
        boot = (self.sweep.host.get("process") or {}).get("boot")
        gpus = {trial.gpu_uuid for trial in self.trials}
        return {name for name in (boot or self.hostname, *gpus) if name}

    @property
    def conditions(self) -> Conditions:
        """The environment, with two parts of Python's version, and the protocol."""
        python, _, _ = self.environment.python.rpartition(".")
        environment = replace(self.environment, python=python)
        protocol = {**self.sweep.protocol, "baseline_mode": self.sweep.baseline_mode}
        return Conditions(environment, protocol, {})

    def facts(self) -> Columns:
        """Return what the joined sweep records about this host."""
        times = [trial.host_ms for trial in self.trials if trial.host_ms]
        host_ms = statistics.median(times) if times else None
        return {
            "host": self.host,
            "sweep": self.sweep.id,
            "cpu_name": self.environment.cpu_name,
            "host_ms": host_ms,
        }

    def trials_of(self, result: Result, number: int) -> Iterator[Trial]:
        """Yield a trial with the figures of a result, as round `number`, and before it an attempt
        with those of an empty compile cache, if there are any."""
        cache = None
        if result.compile_cold_s is not None:
            cache = "cold"
            yield Trial(
                result.cell_key,
                number,
                Status.OK,
                host=self.host,
                compile_cache=cache,
                compile_s=result.compile_cold_s,
                first_call_s=result.first_call_s,
                peak_reserved_bytes=result.peak_reserved_cold_bytes,
                prepare_peak_allocated_bytes=result.prepare_peak_allocated_bytes,
            )
        if result.compile_warm_s is not None:
            cache = "warm"
        trials = [trial for trial in self.trials if trial.cell_key == result.cell_key]
        yield Trial(
            result.cell_key,
            number,
            result.status,
            result.reason,
            attempt=1,
            extra=trials[-1].extra,
            host=self.host,
            disturbance=result.disturbance,
            compile_cache=cache,
            compile_s=result.compile_warm_s,
            prepare_s=mean_of(trial.prepare_s for trial in trials),
            **figures_of(result),
        )

    def typical_trial(self, result: Result) -> int | None:
        """Return the id of the trial whose latency is nearest to that of a result, so that its
        trace explains the result; None if there are no latencies."""
        distances: dict[int, float] = {}
        for trial in self.trials:
            if trial.cell_key == result.cell_key and trial.latency_ms and result.latency_ms:
                distances[trial.id] = abs(trial.latency_ms - result.latency_ms)
        return min(distances, key=lambda trial_id: distances[trial_id], default=None)


def figures_of(result: Result) -> Columns:
    """Return the figures of a trial that stands for a result. Its speedups count as those of pairs,
    because both sides ran on the same host."""
    figures: Columns = {name: getattr(result, name) for name in SHARED_FIGURES}
    figures["pair_disturbance"] = result.speedup_disturbance
    if result.unsteady_trials is not None:
        figures["steady"] = result.unsteady_trials == 0
    bounded = {"latency_ms": "latency_ms", "period_ms": "period_ms"}
    for name in SPEEDUPS:
        figures[f"pair_{name}"] = result.value(name)
        figures[f"pair_{name}_disturbed"] = result.value(f"busy_{name}")
        bounded[name] = f"pair_{name}"
    for name, figure in bounded.items():
        bounds = BOUNDS[figure]
        figures[bounds.low], figures[bounds.high] = bounds_of(result, name)
    return figures


@dataclass(frozen=True)
class JoinedSweep:
    """The outcome of `join`. `omitted`: number of cells that only some of the sweeps planned."""

    id: str
    name: str
    hosts: list[str]
    cells: int
    omitted: int


def join(connection: Connection, sweep_ids: Iterable[str], name: str) -> JoinedSweep:
    """Join these sweeps of the database, each of another host, into one with this name. The sweeps
    stay as they are. Joining them again replaces the joined sweep.

    Raises UsageError for an invalid name or fewer than two sweeps, StoreError for sweeps that
    cannot be joined.
    """
    name = text(name)
    if not name.strip() or sweeps.is_rerun(name):
        raise UsageError(f"--join {name!r}: give the joined sweep a name, such as --join h100")
    parts = _read_parts(connection, sorted(set(sweep_ids)))
    every = {cell for part in parts for cell in part.plan}
    shared = every.intersection(*(part.plan for part in parts))
    if not shared:
        raise StoreError("the sweeps cannot be joined: they have no cell in common")
    ids = sorted(part.sweep.id for part in parts)
    sweep_id = f"joined-{digest([name, ids])[:12]}"
    _write_sweep(connection, sweep_id, name, parts)
    plan = [cell for cell in parts[0].plan if cell in shared]
    sweeps.extend_sweep(connection, sweep_id, plan)
    _write_trials(connection, sweep_id, parts, {cell.key for cell in plan})
    trials.rebuild_results(connection, sweep_id)
    return JoinedSweep(
        sweep_id,
        name,
        hosts=[part.host for part in parts],
        cells=len(plan),
        omitted=len(every - shared),
    )


def _read_parts(connection: Connection, sweep_ids: Sequence[str]) -> list[HostSweep]:
    """Return the sweeps to join, by host. Raises UsageError for fewer than two, StoreError for
    sweeps that cannot be joined."""
    if len(sweep_ids) < 2:
        raise UsageError(
            f"--join needs the sweeps of two hosts or more, not {count(len(sweep_ids), 'sweep')};"
            " name several files, or several sweeps with --sweep"
        )
    parts = [HostSweep.read(connection, sweep_id) for sweep_id in sweep_ids]
    parts.sort(key=lambda part: (part.hostname, part.sweep.id))
    for part, other in combinations(parts, 2):
        fault = _fault(part, other)
        if fault:
            raise StoreError(f"{part.sweep.id} and {other.sweep.id} cannot be joined{fault}")
    return with_hosts(parts)


def _fault(part: HostSweep, other: HostSweep) -> str | None:
    """Return why two sweeps cannot be joined: they measured different things, or did not certainly
    run on two hosts."""
    may_differ = {*OF_HOST}
    if part.environment.gpu_name is not None:  # else the CPU is what was measured
        may_differ.add("cpu_name")
    for difference in diff_conditions([part.conditions], [other.conditions]):
        values = (*difference.before, *difference.after)
        # an earlier version did not have all settings
        is_new = difference.kind == "protocol" and None in values
        if difference.name not in may_differ and not is_new:
            words = difference.text(difference.label, "and", "none")
            return f", because only the host may differ: {words}"
    if not part.identity or not other.identity:
        return ": it is unknown whether they ran on different hosts"
    shared = sorted(part.identity & other.identity)
    if shared:
        return f": they ran on the same host ({part.hostname or shared[0]})"
    return None


def with_hosts(parts: Sequence[HostSweep]) -> list[HostSweep]:
    """Return the parts with a short and unique name for each host."""
    names = [(part.hostname or "host").partition(".")[0] for part in parts]
    if len(set(names)) < len(names):
        names = [f"{name}-{number}" for number, name in enumerate(names, 1)]
    return [replace(part, host=name) for part, name in zip(parts, names, strict=True)]


def _write_sweep(
    connection: Connection,
    sweep_id: str,
    name: str,
    parts: Sequence[HostSweep],
) -> None:
    """Write the row of the joined sweep, which baselines may refer to, and remove what belongs to
    an earlier one."""
    joined = [part.sweep for part in parts]
    row: Columns = {
        "id": sweep_id,
        "name": name,
        "state": "completed",
        "started_at": min(sweep.started_at for sweep in joined),
        "finished_at": now(),
        "command": [],
        "overrides": [],
        "protocol": joined[0].protocol,
        "baseline_mode": joined[0].baseline_mode,
        "seed": joined[0].seed,
        "rounds": len(parts),
        "host": {sweeps.JOINED: [part.facts() for part in parts]},
        "imported_at": now(),
    }
    if not sweeps.add_sweep(connection, row):
        sweeps.update(connection, sweep_id, **row)
        sweeps.clear(connection, sweep_id)


def _write_trials(
    connection: Connection,
    sweep_id: str,
    parts: Sequence[HostSweep],
    cell_keys: Collection[str],
) -> None:
    """Write the trials of these cells, a round for each part."""
    environment_id = sweeps.add_environment(
        connection,
        _joined_environment(parts),
        details={sweeps.JOINED: [part.environment.id for part in parts]},
    )
    keys = {"sweep_id": sweep_id, "environment_id": environment_id}
    for number, part in enumerate(parts):
        for result in part.results:
            if result.cell_key in cell_keys:
                for trial in part.trials_of(result, number):
                    row = trial_row(trial) | keys
                    new_id = connection.scalar(sa.insert(TRIAL).values(row).returning(TRIAL.c.id))
                trials.copy_trace(connection, part.typical_trial(result), new_id)


def _joined_environment(parts: Sequence[HostSweep]) -> Environment:
    """Return the environment of the parts; texts in which they differ name all values."""
    environments = [part.environment for part in parts]
    facts = environments[0].fingerprint()
    for name in ("cpu_name", "driver_version", "platform", "python"):
        values = {getattr(environment, name) for environment in environments} - {None}
        facts[name] = ", ".join(sorted(values)) or None
    return Environment(**facts)
