"""The side of a cluster's job on its node: `python -m effbench.run.executors.job FOLDER`.

It runs the cells of FOLDER/job.json as a local sweep, and appends to FOLDER/events.jsonl what a
local sweep would store and print. effbench reads that file while the job runs, and commits each
trial. The job never touches the database.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from effbench.core.cell import Environment, Trial
from effbench.core.errors import EffbenchError, StoreError
from effbench.core.warning_filters import print_instead_of_raising
from effbench.run.compile_caches import cache_folder, sweep_cache
from effbench.run.executors.job_files import (
    EVENTS,
    Began,
    Done,
    Event,
    Failed,
    FoundEnvironment,
    JobRequest,
    Note,
    Record,
    Started,
)
from effbench.run.executors.local import LocalExecutor
from effbench.run.interrupts import stop_on_ctrl_c
from effbench.run.plan import CellRun, PlannedTrial, Settings
from effbench.run.progress import Progress
from effbench.run.sweep import Command, open_pools
from effbench.store.trials import HostSpeeds


class JobReporter(Progress):
    """The database and the progress of a job's sweep: reads are answered from the request; what
    would be stored or printed becomes events. Thread-safe."""

    def __init__(self, folder: Path, request: JobRequest) -> None:
        super().__init__()
        self.events = folder / EVENTS
        self.request = request
        self.runs = request.cell_runs()
        self.writing = threading.Lock()

    def send(self, event: Event) -> None:
        """Append an event. Raises StoreError if that fails, for example because effbench has given
        up this job."""
        try:
            # not created again if it was removed; once it is closed, a network file system shows
            # the line to other machines
            with self.writing, self.events.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(event.encode())
        except OSError as error:
            raise StoreError(f"cannot write {self.events}: {error.strerror}") from error

    # --- as a database ---

    def add_environment(self, env: Environment, details: dict[str, Any]) -> str:
        return env.id  # `run_job` sends it

    def first_rounds(self, sweep_id: str) -> list[int]:
        return self.request.first_rounds

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
        return self.request.history.get(environment_id, {})

    def add_trial(
        self,
        sweep_id: str,
        environment_id: str,
        trial: Trial,
    ) -> None:
        """Leave it to `ended`, which knows its run."""

    def host_speeds(self, environment_id: str) -> HostSpeeds:
        return HostSpeeds()  # those of other nodes say nothing about this one

    # --- as a progress ---

    def started(self, slot: str, trial: PlannedTrial) -> None:
        number = self.runs.index(trial.run)
        self.send(Started(number, trial.round, trial.attempt, slot))

    def phase(self, trial: PlannedTrial, phase: str) -> None:
        pass  # many, and of little interest elsewhere

    def ended(self, trial: PlannedTrial, record: Trial) -> None:
        number = self.runs.index(trial.run)
        self.send(
            Record(
                number,
                trial.round,
                trial.attempt,
                record.to_json(),
            )
        )

    def note(self, text: Any) -> None:
        self.send(Note(str(text)))

    def retried(self, slot: str, trial: PlannedTrial, reason: str) -> None:
        self.note(f"{slot}: retrying {trial.run.cell}: {reason}")

    def dropped(self, run: CellRun) -> None:
        pass  # effbench knows once the job is done


def main() -> None:
    print_instead_of_raising()
    folder = Path(sys.argv[1])
    request = JobRequest.read(folder)
    reporter = JobReporter(folder, request)
    settings = Settings.with_defaults(**request.settings)
    try:
        run_job(settings, reporter)
    except EffbenchError as error:
        with suppress(StoreError):
            reporter.send(Failed(str(error)))
        sys.exit(str(error))
    finally:
        with suppress(OSError):
            # of this job alone, and empty unless it failed
            cache_folder(settings.executor.cache_dir).rmdir()


def run_job(settings: Settings, reporter: JobReporter) -> None:
    """Run the cells of the job."""
    sweep_id = reporter.request.sweep_id
    command = Command([], {}, progress=reporter)
    LocalExecutor.check(settings)
    with open_pools(reporter.runs, settings, command) as pools:
        executor = LocalExecutor(
            settings,
            pools,
            reporter,
            command.stop,
            reporter,
        )
        executor.prepare(reporter.runs)
        found = {}
        for interpreter, pool in pools.items():
            machine, facts = pool.machine, interpreter.facts()
            found[pool.environment_id] = FoundEnvironment(
                machine.environment, machine.details, facts
            )
        reporter.send(Began(platform.node(), found))
        trials = executor.open(sweep_id)
        with stop_on_ctrl_c(command.stop):
            executor.run_trials(trials)
    # by SIGTERM, when the job is cancelled or reaches its time limit
    if command.stop.is_set():
        return
    if not settings.executor.keep_cache:
        shutil.rmtree(sweep_cache(settings, sweep_id), ignore_errors=True)
    reporter.send(Done())


if __name__ == "__main__":
    main()
