"""What every executor does: it runs the trials of a sweep somewhere and records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun, Settings, SweepPlan
from effbench.run.pool import Servers
from effbench.run.progress import Progress


@dataclass
class TrialExecutor:
    """Runs the trials of a sweep that has begun. The method `run` of each executor runs and records
    the remaining ones, until all have ended or the sweep is stopped, and raises WorkerError.

    `servers`: of the probed interpreters. `runs`: those of the plan. `environments`: id ->
    interpreter, as far as they are known.
    """

    settings: Settings
    servers: Servers
    plan: SweepPlan
    sweep_id: str
    progress: Progress
    stop: Event
    runs: Sequence[CellRun] = field(init=False)
    environments: dict[str, Interpreter] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.runs = self.plan.distinct_runs()
