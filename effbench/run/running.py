"""A sweep while it runs on this machine: what it knows, and what it asks of each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from effbench.core.cell import Trial
from effbench.core.message import DuetRequest, TrialRequest
from effbench.run.devices import Slot
from effbench.run.host_history import HostHistory
from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun, PlannedTrial, Settings
from effbench.run.pool import Pools
from effbench.run.progress import Progress
from effbench.run.record import TrialStore
from effbench.run.resume import compilation_of
from effbench.store import connect
from effbench.store.bottleneck import set_floors
from effbench.store.values import artifact_folder


@dataclass
class RunningSweep:
    """A sweep that runs on this machine.

    `environments`: the id of each interpreter's. `caches`: the folder of its compile caches.
    `first_rounds`: of each part of the sweep, see `compilation_of`. `history`: the last attempts of
    the recorded trials, to which `record` adds. `ceilings`: of each interpreter's environment and
    the GPU, if they are known.
    """

    sweep_id: str
    settings: Settings
    pools: Pools
    progress: Progress
    stop: Event
    store: TrialStore
    environments: Mapping[Interpreter, str]
    caches: Path
    first_rounds: Sequence[int]
    history: dict[CellRun, list[Trial]]
    host: HostHistory
    ceilings: dict[Interpreter, dict[str, Any]] = field(default_factory=dict)

    def record(self, trial: PlannedTrial, record: Trial) -> None:
        """Store a trial that has ended. Raises StoreError."""
        run = trial.run
        ceilings = self.ceilings.get(run.interpreter)
        if ceilings and record.min_bytes is not None:
            set_floors(record, run.cell, ceilings)
        self.store.record(self.sweep_id, self.environments[run.interpreter], record)
        why_busy = self.host.add(trial, record)
        if why_busy:
            self.progress.note(why_busy)
        # only the last attempt of a round counts
        others = [other for other in self.history.get(run, []) if other.round != record.round]
        recent = replace(record, samples={})  # which take megabytes
        self.history[run] = [*others, recent]

    def request_of(self, slot: Slot, trial: PlannedTrial, duet: DuetRequest | None) -> TrialRequest:
        """Return what the trial's process is asked for. `duet`: its part in one, or None."""
        run, settings = trial.run, self.settings
        protocol = dict(vars(settings.protocol))
        if not self.host.waits:
            protocol["patience"] = 1.0
        # the same for all attempts and after resuming
        compilation = compilation_of(trial.round, settings.compilations, self.first_rounds)
        caches = self.caches / self.environments[run.interpreter] / run.cell.key[:32]
        recorded = self.history.get(run, ())
        speeds = self.host.speeds_of(run.interpreter)
        return TrialRequest(
            cell=run.cell.params(),
            protocol=protocol,
            round=trial.round,
            attempt=trial.attempt,
            gpu_uuid=slot.uuid,
            cache_dir=str(caches / str(compilation)),
            compilation=compilation,
            is_cold=all(record.compilation != compilation for record in recorded),
            cores=slot.cores,
            foreign_wait_s=settings.executor.foreign_wait_s,
            host_ms=speeds.quiet_ms(),
            host_high_ms=speeds.high_ms(),
            baseline=self.baseline_of(run),
            artifacts=self.artifacts_of(trial),
            duet=duet,
        )

    def baseline_of(self, run: CellRun) -> dict[str, Any] | None:
        """Return the mode that the run's speedup refers to, if a cell of this sweep has it; None
        for that cell."""
        cell, baseline_mode = run.cell, self.settings.baseline_mode
        if cell.mode_name == baseline_mode:
            return None
        for other in self.pools[run.interpreter].cells:
            if other.mode_name == baseline_mode and other.comparison_key == cell.comparison_key:
                return other.mode
        return None

    def artifacts_of(self, trial: PlannedTrial) -> dict[str, Any] | None:
        """Return which artifacts the trial saves and where, or None after a cell's first round."""
        if not self.settings.artifacts or trial.round > 0:
            return None
        interpreter = trial.run.interpreter
        name = artifact_folder(self.sweep_id, trial.run.cell.key)
        if interpreter.given:  # distinguishes it from the same cell under another interpreter
            name += f"-{self.environments[interpreter]}"
        folder = (connect.artifact_home(self.settings.db) / name).absolute()
        return {"kinds": self.settings.artifacts, "folder": str(folder), "name": name}
