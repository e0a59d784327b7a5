"""What can be read of a results database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from effbench.analysis.summary import last_attempts
from effbench.cell import Cell, Status, Trial
from effbench.store import baselines, calibration, raw, samples, series, sides, sweeps, verdicts
from effbench.store.baselines import BaselineInfo
from effbench.store.database import Database
from effbench.store.schema import RESULTS, CellRow, EnvironmentRow, SampleRow, SweepCellRow, TrialRow
from effbench.store.series import Series
from effbench.store.sweeps import SweepInfo
from effbench.store.values import trial_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

ENVIRONMENT, CELL, PLANNED, TRIAL, SAMPLE = (
    row.__table__ for row in (EnvironmentRow, CellRow, SweepCellRow, TrialRow, SampleRow)
)


class Reading(Database):
    """The reading half of `Store`."""

    def find_sweep(self, ref: str) -> SweepInfo:
        """The sweep that `ref` means: `last`, an id, a name (the newest of it), or the unique start of an id.

        Raises NothingFoundError that names the nearest, or what exists.
        """
        with self._reading() as connection:
            return sweeps.find(connection, ref, self.name)

    def sweeps(self) -> list[SweepInfo]:
        """All sweeps, newest first."""
        with self._reading() as connection:
            return sweeps.all_sweeps(connection)

    def planned(self, sweep_id: str) -> list[Cell]:
        """The cells of the sweep in the order of the plan."""
        query = (
            sa.select(CELL.c.params)
            .join(PLANNED, PLANNED.c.cell_key == CELL.c.key)
            .where(PLANNED.c.sweep_id == sweep_id)
            .order_by(PLANNED.c.position)
        )
        with self._reading() as connection:
            return [Cell.from_params(params) for params in connection.scalars(query)]

    def recorded(self, sweep_id: str, environment_id: str) -> dict[tuple[str, int], Status]:
        """(cell key, round) of every trial in the sweep and environment, with the status of its last attempt."""
        query = (
            sa.select(TRIAL.c.cell_key, TRIAL.c.round, TRIAL.c.status)
            .where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id == environment_id)
            .order_by(TRIAL.c.attempt)
        )
        with self._reading() as connection:
            return {(row.cell_key, row.round): Status(row.status) for row in connection.execute(query)}

    def calibration(self, environment_id: str) -> dict[str, Any] | None:
        """The environment's newest `ceilings` and `noise`, with `measured_at` and `gpu_uuid`; None without either."""
        with self._reading() as connection:
            return calibration.newest(connection, environment_id)

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
        """Cell key -> its recorded trials (last attempts) in the sweep and environment, without samples."""
        query = sa.select(TRIAL).where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id == environment_id)
        found: dict[str, list[Trial]] = {}
        for row in self._rows(query.order_by(TRIAL.c.round, TRIAL.c.attempt)):
            found.setdefault(row["cell_key"], []).append(trial_of(row))
        return {key: last_attempts(trials) for key, trials in found.items()}

    def results(self, sweep_id: str | None = None) -> list[dict[str, Any]]:
        """Rows of the view `results` of one sweep or of all: oldest sweep first, then in the order of the plan.

        `params` is a dict, `started_at` an aware UTC datetime.
        """
        query = (
            sa.select(RESULTS)
            .join(
                PLANNED,
                sa.and_(PLANNED.c.sweep_id == RESULTS.c.sweep_id, PLANNED.c.cell_key == RESULTS.c.cell_key),
            )
            .order_by(RESULTS.c.started_at, RESULTS.c.sweep_id, PLANNED.c.position, RESULTS.c.environment_id)
        )
        if sweep_id is not None:
            query = query.where(RESULTS.c.sweep_id == sweep_id)
        return self._rows(query)

    def verdicts(self) -> list[dict[str, Any]]:
        """The newest judgement of each claim by each experiment on each GPU (or CPU)."""
        with self._reading() as connection:
            return verdicts.newest(connection)

    def series(self, columns: Sequence[str] | None, models: Sequence[str] = (), modes: Sequence[str] = ()) -> Series:
        """These columns of the results of all sweeps, of cells with one of the models and one of the modes; of
        None no results, but the cells, environments and sweeps."""
        with self._reading() as connection:
            return series.read(connection, columns, models, modes)

    def acknowledgements(self) -> list[dict[str, Any]]:
        """Rows of `acknowledgement`, oldest first."""
        with self._reading() as connection:
            return series.acknowledgements(connection)

    def results_frame(self, sweep_id: str | None = None) -> pd.DataFrame:
        """`results` as a DataFrame with the view's columns in order, also when it is empty.

        Every figure is float64 with NaN for NULL (`bs` and `trials` int64), `started_at` is UTC, `params` dicts.
        """
        from effbench.store.frames import results_frame

        return results_frame(self.results(sweep_id))

    def trials(self, sweep_id: str) -> list[dict[str, Any]]:
        """Every row of `trial` of the sweep, in the order they were recorded, all attempts."""
        return self._rows(sa.select(TRIAL).where(TRIAL.c.sweep_id == sweep_id).order_by(TRIAL.c.id))

    def trials_with_samples(
        self, sweep_id: str, environment_ids: Iterable[str], part: int = 0, parts: int = 1
    ) -> Iterator[tuple[dict[str, Any], dict[str, tuple[int, np.ndarray]]]]:
        """Every row of `trial` of the sweep in these environments with what `samples` gives of it, and how many samples
        were taken: timer -> (taken, float32 array).

        By cell key, a cell's by environment, round and attempt; of `parts` nearly equal ones, each of whole cells, the
        one with the number `part`. A few hundred are held at a time, none of them in a
        transaction that stays open: a sweep that runs goes on meanwhile, and what it adds is left out.
        """
        with self._reading() as connection:
            ids = raw.ordered_ids(connection, sweep_id, list(environment_ids), part, parts)
        for start in range(0, len(ids), raw.CHUNK):
            with self._reading() as connection:
                found = list(raw.read(connection, ids[start : start + raw.CHUNK]))
            yield from found

    def samples(self, trial_id: int) -> dict[str, np.ndarray]:
        """Timer -> float32 array of the trial's raw samples in order, at most 5,000; ms unless the name says else."""
        rows = self._rows(sa.select(SAMPLE).where(SAMPLE.c.trial_id == trial_id).order_by(SAMPLE.c.timer))
        return {row["timer"]: samples.decode(row["codec"], row["data"], row["stored"]) for row in rows}

    def environments(self, ids: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Rows of `environment` (all, or those of `ids`), with `flags` and `details` as dicts, oldest first."""
        query = sa.select(ENVIRONMENT).order_by(ENVIRONMENT.c.first_seen_at, ENVIRONMENT.c.id)
        if ids is None:
            return self._rows(query)
        wanted = list(dict.fromkeys(ids))
        return self._rows(query.where(ENVIRONMENT.c.id.in_(wanted))) if wanted else []

    def baselines(self, name: str | None = None) -> list[BaselineInfo]:
        """All baselines, or those of this name: one for each hardware. Raises NothingFoundError for an unknown name."""
        with self._reading() as connection:
            return baselines.everything(connection) if name is None else baselines.named(connection, name, self.name)

    def hardware(self, sweep_id: str) -> list[str]:
        """What the sweep has trials on: GPUs by name; a machine without one by its CPU."""
        with self._reading() as connection:
            return baselines.hardware_of(connection, sweep_id)

    def sides(self, sweep_id: str) -> dict[tuple[str, str], sides.CellResult]:
        """(cell key, environment id) -> result of the sweep with the figures of its counted trials, for comparing."""
        with self._reading() as connection:
            return sides.sides(connection, sweep_id)

    def planned_cells(self, sweep_id: str) -> list[sides.PlannedCell]:
        """The cells of the sweep as rows, in the order of the plan."""
        with self._reading() as connection:
            return sides.planned_cells(connection, sweep_id)

    def environments_of(self, sweep_id: str) -> list[dict[str, Any]]:
        """Rows of `environment` in which the sweep has trials, oldest first."""
        with self._reading() as connection:
            return list(sides.environments_of(connection, sweep_id))

    def levels(
        self,
        sweep_id: str,
        environment_ids: Iterable[str],
        before: dt.datetime,
        metrics: Iterable[str],
        host: str | None = None,
    ) -> dict[tuple[str, str], dict[str, list[float]]]:
        """(cell key, metric) -> environment id -> ok results of this sweep's cells in the newest sweeps of its name,
        before this time and in these environments; of this host alone, if one is given."""
        with self._reading() as connection:
            return sides.levels(connection, sweep_id, environment_ids, before, metrics, host)
