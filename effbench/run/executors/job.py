"""The side of a cluster's job on its node: `python -m effbench.run.executors.job FOLDER`.

It runs the cells of FOLDER/job.json as a local sweep, and appends what such a sweep would store to
FOLDER/events.jsonl. effbench reads that file while the job runs, and commits each trial. The job
never touches the database.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from threading import Event

from effbench.core.errors import EffbenchError
from effbench.core.warning_filters import print_instead_of_raising
from effbench.run.compile_caches import make_cache_folders, sweep_cache
from effbench.run.executors.job_files import Done, FoundEnvironment, JobRequest, JobStore
from effbench.run.executors.local import LocalExecutor
from effbench.run.plan import SweepPlan
from effbench.run.pool import open_servers
from effbench.run.progress import Progress


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
    settings, stop = request.settings, Event()
    make_cache_folders(settings)
    with open_servers(request.runs, settings.baseline_mode, stop) as servers:
        for interpreter, probed in servers.items():
            found = probed.machine
            store.write(FoundEnvironment(found.environment, found.details, interpreter.facts()))
        LocalExecutor(
            settings=settings,
            servers=servers,
            plan=SweepPlan(request.runs),
            sweep_id=request.sweep_id,
            progress=Progress(),
            stop=stop,
            store=store,
        ).run()
    if not settings.executor.keep_cache:
        shutil.rmtree(sweep_cache(settings, request.sweep_id), ignore_errors=True)
    store.write(Done())


if __name__ == "__main__":
    main()
