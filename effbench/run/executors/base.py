"""What every executor does: it runs planned trials somewhere and hands back their records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol

from effbench.core.cell import Environment, Trial
from effbench.run.duets import StoppingRule
from effbench.run.interpreters import Facts, Interpreter
from effbench.run.plan import CellRun, PlannedTrial, Settings
from effbench.run.pool import Pools
from effbench.run.progress import Progress
from effbench.store.trials import HostSpeeds


class TrialStore(Protocol):
    """What trials on this machine need of a database; see the methods of Store."""

    def add_environment(self, env: Environment, details: dict[str, Any]) -> object: ...

    def history(self, sweep_id: str, environment_id: str) -> Mapping[str, list[Trial]]: ...

    def host_speeds(self, environment_id: str) -> HostSpeeds: ...

    def add_trial(self, sweep_id: str, environment_id: str, trial: Trial) -> object: ...


@dataclass
class TrialExecutor(ABC):
    """Runs the trials of one sweep: first `check` and `prepare`, then `run`, which calls `open` and
    `run_trials`.

    `pools`: of the probed interpreters. `prepare` sets `runs`; `environments`: id -> interpreter,
    as far as they are known; and `slot_names`: where trials run. `duet_rule`: see RoundsNeeded.
    """

    settings: Settings
    pools: Pools
    progress: Progress
    stop: Event
    environments: dict[str, Interpreter] = field(default_factory=dict, init=False)
    runs: Sequence[CellRun] = field(default=(), init=False)
    slot_names: Sequence[str] = field(default=(), init=False)
    duet_rule: StoppingRule | None = field(default=None, init=False)

    def facts(self) -> dict[str, Facts]:
        """Return the facts to record about the interpreter of each known environment."""
        return {key: interpreter.facts() for key, interpreter in self.environments.items()}

    def run(self, sweep_id: str) -> None:
        """Run and record the remaining trials of the sweep that has begun, and show the progress.
        Raises WorkerError."""
        trials = self.open(sweep_id)
        showing = self.progress.showing(
            sweep_id,
            self.settings,
            self.runs,
            trials,
            self.slot_names,
        )
        with showing:
            self.run_trials(trials)

    @staticmethod
    @abstractmethod
    def check(settings: Settings) -> None:
        """Raise ConfigError if trials cannot run with these settings on this machine."""

    @abstractmethod
    def prepare(self, runs: Sequence[CellRun]) -> None:
        """Find out where these runs can run, before anything is recorded. Raises ConfigError and
        WorkerError."""

    @abstractmethod
    def open(self, sweep_id: str) -> list[PlannedTrial]:
        """Take over the sweep that has begun, and return its remaining trials."""

    @abstractmethod
    def run_trials(self, trials: Sequence[PlannedTrial]) -> None:
        """Run and record these trials, until all have ended or the sweep is stopped. Raises
        WorkerError."""
