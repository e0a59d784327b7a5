"""The side of a cluster's job on its node: `python -m effbench.run.executors.job FOLDER`.

It runs the cells of FOLDER/job.json as a local sweep, and appends to FOLDER/events.jsonl what a
local sweep would store and print. effbench reads that file while the job runs, and commits each
trial. Both files are messages (see effbench.core.message), and the job never touches the database.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from effbench.core.cell import Cell, Environment, Trial
from effbench.core.errors import EffbenchError, StoreError
from effbench.core.warning_filters import print_instead_of_raising
from effbench.run.compile_caches import cache_folder, sweep_cache
from effbench.run.executors.job_files import EVENTS, JobRequest
from effbench.run.executors.local import LocalExecutor
from effbench.run.interpreters import Interpreter
from effbench.run.interrupts import stop_on_ctrl_c
from effbench.run.plan import CellRun, PlannedTrial, Settings
from effbench.run.progress import Progress
from effbench.run.sweep import Command, asked_of, open_pools
from effbench.store.trials import HostSpeeds
from effbench.worker.server import write_message


class JobStore:
    """A TrialStore: reads are answered from the request, and writes become events. Thread-safe."""

    def __init__(self, folder: Path, request: JobRequest) -> None:
        self.events = folder / EVENTS
        self.request = request
        self.lock = threading.Lock()

    def send(self, event: str, **facts: Any) -> None:
        """Append an event. Raises StoreError if that fails, for example because effbench has given
        up this job."""
        try:
            with self.lock:
                # do not create a removed file
                descriptor = os.open(self.events, os.O_WRONLY | os.O_APPEND)
                try:
                    write_message(descriptor, {"event": event, **facts})
                finally:
                    # a network file system shows the line to other machines now
                    os.close(descriptor)
        except OSError as error:
            raise StoreError(f"cannot write {self.events}: {error.strerror}") from error

    def add_environment(self, env: Environment, details: dict[str, Any]) -> str:
        self.send("environment", environment=asdict(env), details=details)
        return env.id

    def first_rounds(self, sweep_id: str) -> list[int]:
        return self.request.first_rounds

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
        recorded = self.request.history.get(environment_id, {})
        return {
            key: [Trial.from_json(trial) for trial in trials] for key, trials in recorded.items()
        }

    def record(self, sweep_id: str, environment_id: str, trial: Trial) -> None:
        self.send("record", environment_id=environment_id, trial=trial.to_json())

    def host_speeds(self, environment_id: str) -> HostSpeeds:
        return HostSpeeds()  # those of other nodes say nothing about this one

    def calibration(self, environment_id: str) -> dict[str, Any] | None:
        ceilings = self.request.ceilings.get(environment_id)
        return {"ceilings": ceilings} if ceilings else None

    def add_calibration(
        self, environment_id: str, gpu_uuid: str | None, ceilings: dict[str, Any]
    ) -> None:
        self.request.ceilings[environment_id] = ceilings
        self.send("ceilings", environment_id=environment_id, gpu_uuid=gpu_uuid, ceilings=ceilings)


class JobProgress(Progress):
    """Sends the progress as events."""

    def __init__(self, store: JobStore) -> None:
        super().__init__()
        self.send = store.send

    def started(self, slot: str, trial: PlannedTrial) -> None:
        self.send("started", slot=slot, **facts_of(trial))

    def phase(self, trial: PlannedTrial, phase: str) -> None:
        with suppress(StoreError):  # the next event that matters reports it
            self.send("phase", phase=phase, **facts_of(trial))

    def note(self, text: Any) -> None:
        self.send("note", text=str(text))

    def retried(self, slot: str, trial: PlannedTrial, reason: str) -> None:
        self.note(f"{slot}: retrying {trial.run.cell}: {reason}")

    def dropped(self, run: CellRun) -> None:
        pass  # effbench knows once the job is done

    def ended(self, trial: PlannedTrial, record: Trial) -> None:
        pass  # the record was sent


def facts_of(trial: PlannedTrial) -> dict[str, Any]:
    """Return what identifies a trial, as facts of an event."""
    run = trial.run
    facts = {"interpreter": run.interpreter.given, "cell_key": run.cell.key}
    return {**facts, "round": trial.round, "attempt": trial.attempt}


def main() -> None:
    print_instead_of_raising()
    folder = Path(sys.argv[1])
    request = JobRequest.read(folder)
    store = JobStore(folder, request)
    settings = Settings.with_defaults(**request.settings)
    runs = [
        CellRun(Cell.from_params(params), Interpreter(**given)) for given, params in request.runs
    ]
    try:
        run(settings, runs, store)
    except EffbenchError as error:
        with suppress(StoreError):
            store.send("failed", reason=str(error))
        sys.exit(str(error))
    finally:
        with suppress(OSError):
            # of this job alone, and empty unless it failed
            cache_folder(settings.executor.cache_dir).rmdir()


def run(settings: Settings, runs: Sequence[CellRun], store: JobStore) -> None:
    """Run the cells of the job."""
    sweep_id = store.request.sweep_id
    command = Command([], [], progress=JobProgress(store))
    LocalExecutor.check(settings)
    with open_pools(asked_of(runs), settings, command) as pools:
        executor = LocalExecutor(settings, pools, command.progress, command.stop, store)
        executor.prepare(runs)
        facts = {key: interpreter.facts() for key, interpreter in executor.environments.items()}
        store.send("began", node=platform.node(), environments=facts)
        trials = executor.open(sweep_id)
        with stop_on_ctrl_c(command.stop):
            executor.run(trials)
    # by SIGTERM, when the job is cancelled or reaches its time limit
    if command.stop.is_set():
        return
    if not settings.executor.keep_cache:
        shutil.rmtree(sweep_cache(settings, sweep_id), ignore_errors=True)
    store.send("done")


if __name__ == "__main__":
    main()
