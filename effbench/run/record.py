"""What the trials of a sweep need of its database, and which of them it has recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from effbench.core.cell import Environment, Trial
from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun
from effbench.store.trials import HostSpeeds


class TrialStore(Protocol):
    """What a local executor needs of a database: a job of a cluster has another one."""

    def add_environment(self, env: Environment, details: dict[str, Any]) -> str: ...

    def first_rounds(self, sweep_id: str) -> list[int]: ...

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]: ...

    def add_trial(self, sweep_id: str, environment_id: str, trial: Trial) -> object: ...

    def host_speeds(self, environment_id: str) -> HostSpeeds: ...

    def ceilings(self, environment_id: str) -> dict[str, Any] | None: ...

    def add_calibration(
        self, environment_id: str, gpu_uuid: str | None, ceilings: dict[str, Any]
    ) -> None: ...


def recorded_trials(
    store: TrialStore,
    sweep_id: str,
    runs: Sequence[CellRun],
    environments: Mapping[Interpreter, str],
) -> dict[CellRun, list[Trial]]:
    """Return the recorded trials (last attempts) of each cell run. `environments`: the id of that
    of each interpreter."""
    trials: dict[CellRun, list[Trial]] = {}
    for interpreter, environment_id in environments.items():
        recorded = store.history(sweep_id, environment_id)
        for run in runs:
            if run.interpreter == interpreter and run.cell.key in recorded:
                trials[run] = recorded[run.cell.key]
    return trials
