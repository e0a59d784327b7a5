"""The side of a cluster's job on its node: `python -m effbench.sweeping.executors.job FOLDER`.

It runs the cells of FOLDER/job.json as a local sweep, and appends to FOLDER/events.jsonl what a
local sweep would store and print. effbench reads that file while the job runs, and commits each
trial. Both files are messages (see effbench.message), and the job never touches the database.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from effbench.cell import Cell, Environment, Trial
from effbench.errors import EffbenchError, StoreError
from effbench.store.trials import HostSpeeds
from effbench.sweeping.executors.job_files import EVENTS, JobRequest
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, PlannedTrial, Settings
from effbench.sweeping.progress import Progress
from effbench.sweeping.run import Command, run_cells
from effbench.warning_filters import print_instead_of_raising
from effbench.worker.server import write_message


class JobStore:
    """What a sweep needs of `Store`: reads are answered from the request, and writes become events.
    Thread-safe."""

    name = "the folder of the job"

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

    def begin_sweep(self, *_: Any, **facts: Any) -> str:
        host = facts["host"]
        self.send("began", node=host["hostname"], environments=host["environments"])
        return self.request.sweep_id

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
        self, environment_id: str, gpu_uuid: str | None, **measured: dict[str, Any] | None
    ) -> None:
        self.request.ceilings[environment_id] = measured["ceilings"]
        self.send("ceilings", environment_id=environment_id, gpu_uuid=gpu_uuid, **measured)

    def finish_sweep(self, sweep_id: str, state: str, shard: str | None = None) -> None:
        pass

    def is_moved(self) -> bool:
        return False

    def rescue(self, suffix: str) -> Path:
        raise StoreError(f"{self.name} holds no database")

    def results(self, sweep_id: str) -> list[dict[str, Any]]:
        return []


class JobProgress(Progress):
    """Sends the progress as events."""

    def __init__(self, store: JobStore) -> None:
        super().__init__()
        self.send = store.send

    @contextmanager
    def showing(
        self,
        sweep_id: str,
        settings: Settings,
        runs: Sequence[CellRun],
        trials: Sequence[PlannedTrial],
        slots: Sequence[str],
    ) -> Iterator[None]:
        yield

    def started(self, slot: str, trial: PlannedTrial) -> None:
        self.send("started", slot=slot, **facts_of(trial))

    def phase(self, trial: PlannedTrial, phase: str) -> None:
        with suppress(StoreError):  # the next event that matters reports it
            self.send("phase", phase=phase, **facts_of(trial))

    def note(self, text: Any) -> None:
        self.send("note", text=str(text))

    def retried(self, slot: str, trial: PlannedTrial, reason: str) -> None:
        self.note(f"{slot}: retrying {trial.run.cell}: {reason}")

    def resized(self, change: int) -> None:
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
    command = Command([], [], progress=JobProgress(store))
    try:
        run_cells(settings, runs, command, store=store)
        # by SIGTERM, when the job is cancelled or reaches its time limit
        if not command.stop.is_set():
            store.send("done")
    except EffbenchError as error:
        with suppress(StoreError):
            store.send("failed", reason=str(error))
        sys.exit(str(error))
    finally:
        with suppress(OSError):
            # of this job alone, and empty unless it failed
            Path(settings.executor.cache_dir or "").rmdir()


if __name__ == "__main__":
    main()
