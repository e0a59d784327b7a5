"""What every executor does: it runs planned trials somewhere and hands back their records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, PlannedTrial, Settings
from effbench.sweeping.record import SweepRecord


class Executor(ABC):
    """Runs the trials of one sweep. Its methods are called in this order.

    `environments`: id -> interpreter, as far as they are known; `slot_names`: where trials run.
    """

    environments: dict[str, Interpreter]
    slot_names: Sequence[str]

    @staticmethod
    @abstractmethod
    def check(settings: Settings) -> None:
        """Raise ConfigError if trials cannot run with these settings on this machine."""

    @abstractmethod
    def prepare(self, runs: Sequence[CellRun]) -> None:
        """Find out where these runs can run, before anything is recorded. Raises ConfigError and
        WorkerError."""

    @abstractmethod
    def open(self, record: SweepRecord) -> list[PlannedTrial]:
        """Take over the sweep that has begun, and return its remaining trials."""

    @abstractmethod
    def run(self, trials: Sequence[PlannedTrial]) -> None:
        """Run and record these trials, until all have ended or the sweep is stopped."""
