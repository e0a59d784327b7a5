"""The database of results, behind one class."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Cell, Environment, Trial
from effbench.store import (
    baselines,
    calibration,
    connect,
    derive,
    liveness,
    samples,
    series,
    sweeps,
    verdicts,
)
from effbench.store.reading import Reading
from effbench.store.refusal import refused
from effbench.store.schema import CellRow, EnvironmentRow, SampleRow, SweepCellRow, SweepRow, TrialRow
from effbench.store.sweeps import STATES
from effbench.store.values import cell_row, now, scalar, trial_row

ENVIRONMENT, SWEEP, CELL, PLANNED, TRIAL, SAMPLE = (
    row.__table__ for row in (EnvironmentRow, SweepRow, CellRow, SweepCellRow, TrialRow, SampleRow)
)
#: rows in one statement: below SQLite's limit of bound values
_CHUNK = 500


class Store(Reading):
    """A results database: SQLite by default, PostgreSQL the same.

    One Store belongs to one process: open it after a fork, never carry it across one. Within the process every method
    may be called from any thread; writes are serialised, reads run beside them. Several processes may write to one
    database at the same time: each waits for the other's transaction (30 s on SQLite, then StoreError). What a method
    has returned from is committed: killing the process loses the trial in flight and nothing else.

    Close it, or use it as a context manager. Every method raises StoreError where the database fails.
    """

    def begin_sweep(
        self,
        *,
        name: str | None,
        label: str | None,
        command: list[str],
        overrides: list[str],
        protocol: dict[str, Any],
        baseline_mode: str,
        seed: int,
        git_revision: str | None,
        host: dict[str, Any],
        plan: Sequence[Cell],
        rounds: int,
    ) -> str:
        """Store a sweep in state `running` with its planned cells, in one transaction; return its id.

        The id starts with the time (UTC), so ids sort by it: `20261121-143052-7f3a`. A cell that is planned twice
        counts once, at its first position.
        """
        started = now()
        values = {
            "name": name,
            "label": label,
            "state": "running",
            "started_at": started,
            "finished_at": None,
            "command": command,
            "overrides": overrides,
            "protocol": protocol,
            "baseline_mode": baseline_mode,
            "seed": seed,
            "rounds": rounds,
            "git_revision": git_revision,
            "host": host,
        }
        values = {key: scalar(value) for key, value in values.items()}
        with self._writing() as connection:
            while True:
                sweep_id = f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
                insert = self._insert(SWEEP).values(id=sweep_id, **values).on_conflict_do_nothing()
                # not its rowcount: PostgreSQL's driver does not tell
                if connection.scalar(insert.returning(SWEEP.c.id)) is not None:
                    break
            self._plan(connection, sweep_id, plan, 0)
        return sweep_id

    def extend_sweep(self, sweep_id: str, cells: Iterable[Cell]) -> None:
        """Plan further cells after those of the sweep; what is planned already stays where it is."""
        with self._writing() as connection:
            sweeps.lock(connection, sweep_id, self.name)
            last = connection.execute(
                sa.select(sa.func.max(PLANNED.c.position)).where(PLANNED.c.sweep_id == sweep_id)
            ).scalar()
            known = set(connection.scalars(sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == sweep_id)))
            fresh = [cell for cell in cells if cell.key not in known]
            self._plan(connection, sweep_id, fresh, 0 if last is None else last + 1)

    def _plan(self, connection: sa.Connection, sweep_id: str, cells: Iterable[Cell], first: int) -> None:
        rows = list({row["key"]: row for row in map(cell_row, cells)}.values())
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            connection.execute(self._insert(CELL).on_conflict_do_nothing(), chunk)
            connection.execute(
                sa.insert(PLANNED),
                [
                    {"sweep_id": sweep_id, "cell_key": row["key"], "position": first + start + index}
                    for index, row in enumerate(chunk)
                ],
            )

    def add_environment(self, env: Environment, details: dict[str, Any]) -> str:
        """Store an environment once; return its id. `details` are kept as they were the first time."""
        values = {name: scalar(getattr(env, name)) for name in env.__dataclass_fields__}
        with self._writing() as connection:
            connection.execute(
                self._insert(ENVIRONMENT)
                .values(id=env.id, **values, details=details, first_seen_at=now())
                .on_conflict_do_nothing()
            )
        return env.id

    def record(self, sweep_id: str, environment_id: str, trial: Trial) -> int:
        """Store a trial with its samples, and rewrite the results that it bears on, in one transaction.

        Those are its cell's, and, for a trial of the baseline mode, all that are compared with it. Return the trial's
        id. Raises StoreError for a trial that is recorded already, or whose cell or environment is unknown, and if the
        database file was moved, deleted or replaced: the trial is then stored where `rescue` finds it.
        """
        row = trial_row(trial)
        blobs = [
            {"timer": scalar(timer), "count": len(values), "codec": samples.CODEC, "encoded": samples.encode(values)}
            for timer, values in trial.samples.items()
        ]
        with self._writing() as connection:
            baseline_mode = sweeps.lock(connection, sweep_id, self.name)
            try:
                with connection.begin_nested():
                    inserted = connection.execute(
                        sa.insert(TRIAL).values(sweep_id=sweep_id, environment_id=environment_id, **row)
                    )
            except exc.IntegrityError as error:
                raise refused(connection, sweep_id, environment_id, trial, error, self.name) from error
            trial_id = inserted.inserted_primary_key[0]
            for blob in blobs:
                stored, data = blob.pop("encoded")
                connection.execute(sa.insert(SAMPLE).values(trial_id=trial_id, stored=stored, data=data, **blob))
            derive.write(
                connection,
                derive.derive(connection, sweep_id, baseline_mode, environment_id=environment_id, only=trial.cell_key),
            )
        if self.is_moved():
            raise connect.moved(self.name)
        return trial_id

    def note_environments(self, sweep_id: str, facts: dict[str, dict[str, Any]]) -> None:
        """Add what is known of further environments of a sweep to its `host["environments"]`; what is there stays."""
        with self._writing() as connection:
            sweeps.lock(connection, sweep_id, self.name)
            host = connection.execute(sa.select(SWEEP.c.host).where(SWEEP.c.id == sweep_id)).scalar_one()
            known = {**facts, **(host.get("environments") or {})}
            connection.execute(
                sa.update(SWEEP).where(SWEEP.c.id == sweep_id).values(host={**host, "environments": known})
            )

    def finish_sweep(self, sweep_id: str, state: str) -> None:
        """Set the state (completed, interrupted, failed) and the time of the end.

        `running` takes the end back: this process runs the sweep now, which `host["process"]` says.
        """
        if state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}, not {state!r}")
        finished = None if state == "running" else now()
        with self._writing() as connection:
            sweeps.lock(connection, sweep_id, self.name)
            values: dict[str, Any] = {"state": state, "finished_at": finished}
            if state == "running":
                host = connection.execute(sa.select(SWEEP.c.host).where(SWEEP.c.id == sweep_id)).scalar_one()
                values["host"] = {**host, "process": liveness.identity()}
            connection.execute(sa.update(SWEEP).where(SWEEP.c.id == sweep_id).values(**values))

    def add_calibration(self, environment_id: str, gpu_uuid: str | None, **measured: dict[str, Any] | None) -> None:
        """Store `ceilings`, `noise` or both (docs/measuring.md) of this environment; older ones are kept."""
        with self._writing() as connection:
            calibration.add(connection, environment_id, gpu_uuid, **measured)

    def add_verdicts(self, environment_id: str, judged: Iterable[dict[str, Any]]) -> None:
        """Store rows of `claim_verdict` (less their environment and time), all or none."""
        with self._writing() as connection:
            verdicts.add(connection, environment_id, judged)

    def set_baseline(self, name: str, sweep_id: str, note: str | None = None) -> list[str]:
        """Name the sweep a baseline on all hardware that it has trials on, which is returned."""
        with self._writing() as connection:
            return baselines.put(connection, name, sweep_id, note, self.name)

    def remove_baseline(self, name: str, hardware: str | None = None) -> list[baselines.BaselineInfo]:
        """Forget the name (on this hardware, None: on all); the sweeps stay. Returns what was removed."""
        with self._writing() as connection:
            return baselines.remove(connection, name, hardware, self.name)

    def acknowledge(self, changes: Iterable[dict[str, str]], reason: str) -> None:
        """Accept changes of history, each named by cell_key, hardware, metric and sweep_id (the first after it)."""
        with self._writing() as connection:
            series.acknowledge(connection, changes, reason)

    def unacknowledge(self, ids: Iterable[int]) -> None:
        """Take acknowledgements back, by their ids."""
        with self._writing() as connection:
            series.unacknowledge(connection, ids)

    def rebuild_results(self, sweep_id: str) -> None:
        """Derive every result of the sweep again from its trials."""
        with self._writing() as connection:
            baseline_mode = sweeps.lock(connection, sweep_id, self.name)
            derive.rewrite(connection, sweep_id, baseline_mode)
