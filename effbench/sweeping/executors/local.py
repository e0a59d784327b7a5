"""Run the trials of a sweep on the GPUs and the CPU of this machine (`executor=local`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from effbench.cell import Trial
from effbench.store import connect
from effbench.store.bottleneck import set_floors
from effbench.store.values import artifact_folder
from effbench.sweeping.compile_caches import make_cache_folders, sweep_cache
from effbench.sweeping.devices import Slot, held_driver, lock_folder, slots_of
from effbench.sweeping.duets import StoppingRule
from effbench.sweeping.executors.base import Executor
from effbench.sweeping.plan import CellRun, PlannedTrial, Settings, cells_of, trials_left
from effbench.sweeping.pool import gpus_of, measure_ceilings
from effbench.sweeping.record import TrialStore, recorded_trials
from effbench.sweeping.schedule import Schedule


@dataclass
class LocalExecutor(Executor):
    """Runs trials in child processes of the pools' fork servers."""

    store: TrialStore
    duet_rule: StoppingRule | None = None

    @staticmethod
    def check(settings: Settings) -> None:
        make_cache_folders(settings)

    def prepare(self, runs: Sequence[CellRun]) -> None:
        self.runs = runs
        for note in dict.fromkeys(chain(*(pool.notes for pool in self.pools.values()))):
            self.progress.note(f"note: {note}")
        self.slots = slots_of(gpus_of(self.pools), cells_of(runs), self.settings.executor)
        self.slot_names = [slot.name for slot in self.slots]
        lock_folder()  # raises for an unsafe folder before anything is recorded
        self.ids = {
            interpreter: self.store.add_environment(pool.environment, pool.details)
            for interpreter, pool in self.pools.items()
        }
        self.environments = {key: interpreter for interpreter, key in self.ids.items()}

    def open(self, sweep_id: str) -> list[PlannedTrial]:
        self.sweep_id = sweep_id
        self.prepare_pools()
        history = recorded_trials(self.store, self.sweep_id, self.runs, self.ids)
        self.schedule = Schedule(
            self.pools,
            self.slots,
            self.settings,
            self.store_trial,
            self.progress,
            self.stop,
            history,
            {interpreter: self.store.host_speeds(key) for interpreter, key in self.ids.items()},
            self.artifacts_of,
            self.store.first_rounds(self.sweep_id),
            self.duet_rule,
        )
        return self.schedule.needed(trials_left(self.runs, self.settings, history))

    def prepare_pools(self) -> None:
        """Tell each pool its compile caches, its cells and the last round that renews servers."""
        caches = sweep_cache(self.settings, self.sweep_id)
        last_round = 0
        if self.settings.executor.renew_server and any(slot.gpu for slot in self.slots):
            last_round = self.settings.protocol.rounds - 1
        for interpreter, pool in self.pools.items():
            pool.stop = self.stop
            pool.cache_root = caches / self.ids[interpreter]
            pool.cells = [run.cell for run in self.runs if run.interpreter == interpreter]
            pool.last_round = last_round

    def run(self, trials: Sequence[PlannedTrial]) -> None:
        gpus = [slot for slot in self.slots if slot.gpu]
        with held_driver(self.slots):
            if gpus and self.settings.protocol.profile:
                self.load_ceilings(gpus[0])
            self.schedule.run(trials)

    def load_ceilings(self, gpu: Slot) -> None:
        """Load the ceilings of each pool's environment; measure unknown ones on this GPU. A failure
        is noted."""
        timeout_s = self.settings.executor.lock_timeout_s
        for interpreter, pool in self.pools.items():
            environment_id = self.ids[interpreter]
            if not self.known_ceilings(environment_id):
                why = measure_ceilings(
                    pool.current, self.store, environment_id, gpu, timeout_s, self.stop
                )
                if why and not self.stop.is_set():
                    self.progress.note(
                        f"could not measure this GPU's ceilings: {why}; these results have no"
                        " roofline"
                    )
            pool.ceilings = self.known_ceilings(environment_id)

    def known_ceilings(self, environment_id: str) -> dict[str, Any] | None:
        known = self.store.calibration(environment_id)
        return known["ceilings"] if known else None

    def store_trial(self, trial: PlannedTrial, result: Trial) -> None:
        """Store a trial, with what its environment's ceilings allow at best."""
        ceilings = self.pools[trial.run.interpreter].ceilings
        if result.min_bytes is not None and ceilings:
            set_floors(result, trial.run.cell, ceilings)
        self.store.record(self.sweep_id, self.ids[trial.run.interpreter], result)

    def artifacts_of(self, trial: PlannedTrial) -> dict[str, Any] | None:
        """Return which artifacts the trial saves and where, or None after a cell's first round."""
        if not self.settings.artifacts or trial.round > 0:
            return None
        interpreter = trial.run.interpreter
        name = artifact_folder(self.sweep_id, trial.run.cell.key)
        if interpreter.given:  # distinguishes it from the same cell under another interpreter
            name += f"-{self.ids[interpreter]}"
        folder = (connect.artifact_home(self.settings.db) / name).absolute()
        return {"kinds": self.settings.artifacts, "folder": str(folder), "name": name}
