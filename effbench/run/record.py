"""The record of a sweep in its database: what is read from it, what is stored, and how it ends."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from effbench.core.cell import Environment, Trial
from effbench.core.errors import StoreError
from effbench.run.compile_caches import sweep_cache
from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun, Settings
from effbench.run.resume import resume_command
from effbench.store import connect
from effbench.store.store import Store
from effbench.store.trials import HostSpeeds


class TrialStore(Protocol):
    """What a local executor needs of a database: a job of a cluster has another one."""

    def add_environment(self, env: Environment, details: dict[str, Any]) -> str: ...

    def first_rounds(self, sweep_id: str) -> list[int]: ...

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]: ...

    def record(self, sweep_id: str, environment_id: str, trial: Trial) -> object: ...

    def host_speeds(self, environment_id: str) -> HostSpeeds: ...

    def calibration(self, environment_id: str) -> dict[str, Any] | None: ...

    def add_calibration(
        self, environment_id: str, gpu_uuid: str | None, ceilings: dict[str, Any]
    ) -> None: ...


@dataclass(frozen=True)
class SweepRecord:
    """A sweep that has begun, in its database."""

    store: Store
    sweep_id: str
    settings: Settings

    @contextmanager
    def ending(self, stop: threading.Event) -> Iterator[None]:
        """Record how the sweep ended when this context ends, and remove its compile caches if it is
        complete."""
        state, failure = "failed", None
        try:
            yield
            state = "interrupted" if stop.is_set() else "completed"
        except KeyboardInterrupt:  # a second Ctrl-C
            state = "interrupted"
            again = self.resume_command(self.settings.db, self.store.name)
            raise KeyboardInterrupt(f"resume with: {again}") from None
        except StoreError as error:  # for example a full disk: the sweep can be resumed later
            state, failure = "interrupted", error
        finally:
            if state == "completed" and not self.settings.executor.keep_cache:
                shutil.rmtree(sweep_cache(self.settings, self.sweep_id), ignore_errors=True)
            self.end(state, failure)

    def end(self, state: str, failure: StoreError | None = None) -> None:
        """Record how the sweep ended. `failure`: why the database could not store a trial, if so.

        If the database file was moved, deleted or replaced, save the recorded data in another file.
        In this case, and if anything could not be stored, raise StoreError with the command that
        resumes the sweep.
        """
        store = self.store
        try:
            store.finish_sweep(self.sweep_id, state, self.settings.shard)
        except StoreError as error:
            failure = failure or error
        db, name = self.settings.db, store.name
        if store.is_moved():
            db = name = str(store.rescue(self.sweep_id))
            failure = StoreError(f"{connect.moved(store.name)}; everything recorded is in {name}")
        if failure is not None:
            again = self.resume_command(db, name)
            raise StoreError(f"{failure}\nContinue with: {again}") from failure

    def resume_command(self, db: str, name: str) -> str:
        return resume_command(self.sweep_id, db, name, self.settings.shard)


def recorded_trials(
    store: TrialStore,
    sweep_id: str,
    runs: Iterable[CellRun],
    environments: Mapping[Interpreter, str],
) -> dict[CellRun, list[Trial]]:
    """Return the recorded trials (last attempts) of each cell run. `environments`: the id of that
    of each interpreter."""
    recorded: dict[Interpreter, dict[str, list[Trial]]] = {
        interpreter: store.history(sweep_id, environment_id)
        for interpreter, environment_id in environments.items()
    }
    trials: dict[CellRun, list[Trial]] = {}
    for run in runs:
        known = recorded.get(run.interpreter, {}).get(run.cell.key)
        if known is not None:
            trials[run] = known
    return trials
