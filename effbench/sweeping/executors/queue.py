"""SLURM's queue: check the settings of jobs, submit jobs, and ask for their states."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.config import Executor
from effbench.errors import ConfigError, WorkerError
from effbench.printable import one_line
from effbench.sweeping.interrupts import POLL_S

COMMAND_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 90.0
ENDED = {
    "BOOT_FAIL": "lost its node",
    "CANCELLED": "was cancelled",
    "COMPLETED": "ended early",
    "DEADLINE": "timed out",
    "FAILED": "failed",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
    "TIMEOUT": "timed out",
    "UNKNOWN": "left the queue",
}
#: Reasons for waiting that end by themselves.
USUAL = ("None", "Priority", "Resources", "BeginTime", "Dependency")
#: Options of sbatch that effbench sets itself, or that would start a job several times.
RESERVED = {
    "array",
    "error",
    "job-name",
    "open-mode",
    "output",
    "parsable",
    "requeue",
    "signal",
    "wait",
    "wrap",
}


def check(executor: Executor) -> None:
    """Raise ConfigError if jobs cannot be submitted from this machine, or with these settings."""
    options = executor.sbatch
    if not isinstance(options, dict) or not all(
        isinstance(value, str | int | float) for value in options.values()
    ):
        raise ConfigError(
            f"executor.sbatch must map options to values, got {options!r}. Example: {{qos: high}}"
        )
    for name in options:
        if name.replace("_", "-") in RESERVED or not re.fullmatch(r"[a-z][a-z_-]*", name):
            raise ConfigError(
                f"executor.sbatch.{name}: not an option that a sweep can set; see `man sbatch`"
            )
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise ConfigError(
            'executor=slurm requires submitit: pip install "effbench[slurm]"'
        ) from None
    for program in ("sbatch", "squeue", "scancel", "srun"):
        if shutil.which(program) is None:
            raise ConfigError(
                f"executor=slurm requires {program} on PATH: run effbench on a login node of the"
                " cluster"
            )


@dataclass(frozen=True)
class JobState:
    """What the queue says about a job. `reason`: why it waits."""

    state: str
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


def states(name: str) -> dict[str, JobState] | None:
    """Return the state of each job with this name by id, also of jobs that ended a short time ago
    (`MinJobAge` in slurm.conf), without an accounting database; None if SLURM does not answer."""
    answer = run("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i %T %r")
    if answer is None:
        return None
    known = {}
    for line in answer.splitlines():
        job_id, *words = line.split(maxsplit=2)
        known[job_id] = JobState(*words)
    return known


def cancel(name: str) -> None:
    """Cancel all jobs with this name, and wait until they have ended."""
    run("scancel", f"--name={name}")
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    while time.monotonic() < deadline:
        if all(job.has_ended for job in (states(name) or {}).values()):
            return
        time.sleep(POLL_S)


def run(*command: str) -> str | None:
    """Run a command of SLURM and return its output; None if it fails, for example because the
    controller restarts."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=COMMAND_TIMEOUT_S
        )
        return done.stdout
    return None


def submit(name: str, folder: Path, executor: Executor) -> str:
    """Submit a job with submitit and return its id. Raises WorkerError with SLURM's message if it
    is refused.

    submitit writes the script and calls sbatch. Its usual way to pass a Python function, a pickle,
    is not used.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    given: dict[str, Any] = {"srun_args": ["--ntasks=1"]}  # also with sbatch's nodes or ntasks
    for option in ("partition", "account", "gres"):
        value = getattr(executor, option)
        if value is not None:
            given[option] = value
    if executor.cpus:  # srun no longer takes it from sbatch
        given["cpus_per_task"] = executor.cpus
        given["srun_args"].append(f"--cpus-per-task={executor.cpus}")
    options = {
        name.replace("_", "-"): value
        for name, value in executor.sbatch.items()
        if value is not False
    }
    submitter = submitit.SlurmExecutor(folder)
    submitter.update_parameters(
        job_name=name,
        time=executor.time_limit_min,
        signal_delay_s=0,
        additional_parameters={**options, "no-requeue": True},
        **given,
    )
    command = shlex.join([sys.executable, "-m", "effbench.sweeping.executors.job", str(folder)])
    try:
        with redirect_stderr(io.StringIO()):  # submitit prints the message that the error has
            return str(submitter._submit_command(command).job_id)
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        text = str(error)
        why = re.search(r"sbatch: fatal: (.*)", text) or re.search(r"sbatch: error: (.*)", text)
        raise WorkerError(
            f"SLURM refused a job: {one_line(why[1] if why else text, 500)}"
        ) from error
