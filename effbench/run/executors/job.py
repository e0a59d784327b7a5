"""The side of a cluster's job on its node: `python -m effbench.run.executors.job FOLDER`.

It runs the cells of FOLDER/job.json as a local sweep, and appends to FOLDER/events.jsonl what a
local sweep would store. effbench reads that file while the job runs, and commits each trial. The
job never touches the database.
"""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from effbench.core.cell import Environment, Trial
from effbench.core.errors import EffbenchError
from effbench.core.warning_filters import print_instead_of_raising
from effbench.run.compile_caches import sweep_cache
from effbench.run.executors.job_files import (
    EVENTS,
    Done,
    Ended,
    Event,
    FoundEnvironment,
    JobRequest,
    NotedEnvironments,
)
from effbench.run.executors.local import LocalExecutor
from effbench.run.interpreters import Facts
from effbench.run.progress import Progress
from effbench.run.sweep import Command, open_pools
from effbench.store.trials import HostSpeeds


class JobStore:
    """What a job reads from its request instead of the database, and writes as events.
    Thread-safe."""

    def __init__(self, folder: Path, request: JobRequest) -> None:
        self.events = folder / EVENTS
        self.request = request
        self.writing = threading.Lock()

    def write(self, event: Event) -> None:
        # once it is closed, a network file system shows the line to other machines
        with self.writing, self.events.open("ab") as file:
            file.write(event.encode())

    def add_environment(self, env: Environment, details: dict[str, Any]) -> str:
        self.write(FoundEnvironment(env, details))
        return env.id

    def note_environments(self, sweep_id: str, facts: dict[str, Facts]) -> None:
        self.write(NotedEnvironments(facts))

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
        return self.request.history.get(environment_id, {})

    def host_speeds(self, environment_id: str) -> HostSpeeds:
        return HostSpeeds()  # those of other nodes say nothing about this one

    def add_trial(self, sweep_id: str, environment_id: str, trial: Trial) -> None:
        self.write(Ended(environment_id, trial))


def main() -> None:
    print_instead_of_raising()
    folder = Path(sys.argv[1])
    request = JobRequest.read(folder)
    try:
        run_job(request, JobStore(folder, request))
    except EffbenchError as error:
        sys.exit(str(error))


def run_job(request: JobRequest, store: JobStore) -> None:
    """Run the cells of the job."""
    settings, runs = request.settings, request.runs
    progress = Progress()
    command = Command([], {}, progress=progress)
    LocalExecutor.check(settings)
    with open_pools(runs, settings, command) as pools:
        executor = LocalExecutor(
            settings,
            pools,
            progress,
            command.stop,
            store,
        )
        executor.prepare(runs)
        store.note_environments(request.sweep_id, executor.facts())
        executor.run(request.sweep_id)
    if not settings.executor.keep_cache:
        shutil.rmtree(sweep_cache(settings, request.sweep_id), ignore_errors=True)
    store.write(Done())


if __name__ == "__main__":
    main()
