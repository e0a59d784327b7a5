"""What every executor does: it runs the trials of a sweep somewhere and records them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol

from effbench.core.cell import Trial
from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun, Settings, SweepPlan
from effbench.run.pool import Pools
from effbench.run.progress import Progress
from effbench.run.schedule import TrialGroup
from effbench.store.trials import HostSpeeds


class TrialStore(Protocol):
    """What trials on this machine need of a database; see the methods of Store."""

    def history(self, sweep_id: str, environment_id: str) -> Mapping[str, list[Trial]]: ...

    def host_speeds(self, environment_id: str) -> HostSpeeds: ...

    def add_trial(self, sweep_id: str, environment_id: str, trial: Trial) -> object: ...


@dataclass
class TrialExecutor:
    """Runs the trials of a sweep that has begun. The method `run` of each executor runs and records
    the remaining ones, until all have ended or the sweep is stopped, and raises WorkerError.

    `pools`: of the probed interpreters. `runs`: those of the plan. `environments`: id ->
    interpreter, as far as they are known.
    """

    settings: Settings
    pools: Pools
    plan: SweepPlan
    sweep_id: str
    progress: Progress
    stop: Event
    runs: Sequence[CellRun] = field(init=False)
    environments: dict[str, Interpreter] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.runs = self.plan.distinct_runs()

    def showing(
        self, groups: Sequence[TrialGroup], slots: Sequence[str]
    ) -> AbstractContextManager[None]:
        """Show the progress of these trials in this context. `slots`: names of devices."""
        return self.progress.showing(
            self.sweep_id,
            self.settings,
            self.runs,
            groups,
            slots,
        )
