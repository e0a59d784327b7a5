"""What every executor does: it runs the trials of a sweep somewhere and records them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from threading import Event

from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun, Settings, SweepPlan
from effbench.run.pool import Servers
from effbench.run.progress import Progress


@dataclass
class TrialExecutor:
    """Runs the trials of a sweep that has begun. The method `run` of each executor runs and records
    the remaining ones, until all have ended or the sweep is stopped, and raises WorkerError.

    `servers`: of the probed interpreters. `environments`: id -> interpreter, as far as they are
    known.
    """

    settings: Settings
    servers: Servers
    plan: SweepPlan
    sweep_id: str
    progress: Progress
    stop: Event
    environments: dict[str, Interpreter] = field(default_factory=dict, init=False)

    @cached_property
    def runs(self) -> list[CellRun]:
        return self.plan.distinct_runs()
