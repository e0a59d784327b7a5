"""What the trials of a sweep need of its database, and which of them it has recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from effbench.core.cell import Environment, Trial
from effbench.run.plan import CellRun
from effbench.store.trials import HostSpeeds

if TYPE_CHECKING:
    from effbench.run.pool import Pools


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
    pools: Pools,
) -> dict[CellRun, list[Trial]]:
    """Return the recorded trials (last attempts) of each of these runs."""
    recorded = {
        interpreter: store.history(sweep_id, pool.environment_id)
        for interpreter, pool in pools.items()
    }
    return {run: recorded[run.interpreter].get(run.cell.key, []) for run in runs}
