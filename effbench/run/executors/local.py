"""Run the trials of a sweep on the GPUs and the CPU of this machine (`executor=local`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from effbench.run.compile_caches import make_cache_folders, sweep_cache
from effbench.run.devices import Slot, held_driver, slots_of
from effbench.run.executors.base import TrialExecutor
from effbench.run.plan import CellRun, PlannedTrial, Settings, cells_of, trials_left
from effbench.run.pool import gpus_of, measure_ceilings
from effbench.run.record import TrialStore, recorded_trials
from effbench.run.running import RunningSweep
from effbench.run.schedule import Schedule


@dataclass
class LocalExecutor(TrialExecutor):
    """Runs trials in child processes of the pools' fork servers."""

    store: TrialStore

    @staticmethod
    def check(settings: Settings) -> None:
        make_cache_folders(settings)

    def prepare(self, runs: Sequence[CellRun]) -> None:
        self.runs = runs
        for note in dict.fromkeys(chain(*(pool.machine.notes for pool in self.pools.values()))):
            self.progress.note(f"note: {note}")
        self.slots = slots_of(gpus_of(self.pools), cells_of(runs), self.settings.executor)
        self.slot_names = [slot.name for slot in self.slots]
        last_round = 0
        if self.settings.executor.renew_server and any(slot.is_gpu for slot in self.slots):
            last_round = self.settings.protocol.rounds - 1
        for interpreter, pool in self.pools.items():
            pool.cells = [run.cell for run in runs if run.interpreter == interpreter]
            pool.last_round = last_round
            pool.current.stop = self.stop
            machine = pool.machine
            environment_id = self.store.add_environment(machine.environment, machine.details)
            self.environments[environment_id] = interpreter

    def open(self, sweep_id: str) -> list[PlannedTrial]:
        ids = {interpreter: key for key, interpreter in self.environments.items()}
        self.sweep = RunningSweep(
            sweep_id=sweep_id,
            settings=self.settings,
            pools=self.pools,
            progress=self.progress,
            stop=self.stop,
            store=self.store,
            environments=ids,
            caches=sweep_cache(self.settings, sweep_id),
            first_rounds=self.store.first_rounds(sweep_id),
            history=recorded_trials(self.store, sweep_id, self.runs, ids),
            speeds={key: self.store.host_speeds(key) for key in self.environments},
        )
        self.schedule = Schedule(self.sweep, self.slots, self.runs, self.duet_rule)
        left = trials_left(self.runs, self.settings, self.sweep.history)
        return self.schedule.rounds.needed(left)

    def run(self, trials: Sequence[PlannedTrial]) -> None:
        gpus = [slot for slot in self.slots if slot.is_gpu]
        with held_driver(self.slots):
            if gpus and self.settings.protocol.profile:
                self.load_ceilings(gpus[0])
            self.schedule.run(trials)

    def load_ceilings(self, gpu: Slot) -> None:
        """Load the ceilings of each environment; measure unknown ones on this GPU. A failure is
        noted."""
        timeout_s = self.settings.executor.lock_timeout_s
        for environment_id, interpreter in self.environments.items():
            known = self.store.ceilings(environment_id)
            if known is None:
                server = self.pools[interpreter].current
                why = measure_ceilings(
                    server, self.store, environment_id, gpu, timeout_s, self.stop
                )
                if why and not self.stop.is_set():
                    self.progress.note(
                        f"could not measure this GPU's ceilings: {why}; these results have no"
                        " roofline"
                    )
                known = self.store.ceilings(environment_id)
            if known is not None:
                self.sweep.ceilings[environment_id] = known
