"""SLURM's queue: check the settings of jobs, submit jobs, and ask for their states."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.core.errors import ConfigError, WorkerError
from effbench.core.printable import one_line
from effbench.core.settings import Executor
from effbench.run.git import output
from effbench.run.interrupts import POLL_S

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
    for name in executor.sbatch:
        if name.replace("_", "-") in RESERVED or not re.fullmatch(r"[a-z][a-z_-]*", name):
            raise ConfigError(
                f"executor.sbatch.{name}: not an option that a sweep can set; see `man sbatch`"
            )
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
    answer = run_command(
        "squeue",
        "--noheader",
        "--states=all",
        f"--name={name}",
        "--format=%i %T %r",
    )
    if answer is None:
        return None
    known = {}
    for line in answer.splitlines():
        job_id, *words = line.split(maxsplit=2)
        known[job_id] = JobState(*words)
    return known


def cancel(name: str) -> None:
    """Cancel all jobs with this name, and wait until they have ended."""
    run_command("scancel", f"--name={name}")
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    while time.monotonic() < deadline:
        if all(job.has_ended for job in (states(name) or {}).values()):
            return
        time.sleep(POLL_S)


def run_command(*command: str) -> str | None:
    """Run a command of SLURM and return its output; None if it fails, for example because the
    controller restarts."""
    return output(command, COMMAND_TIMEOUT_S)


def submit(name: str, folder: Path, executor: Executor) -> str:
    """Submit a job and return its id. Raises WorkerError with SLURM's message if it is refused."""
    options: dict[str, Any] = {
        "job-name": name,
        "output": f"{folder}/%j.out",
        "error": f"{folder}/%j.err",
        "time": executor.time_limit_min,
        "nodes": 1,
        "partition": executor.partition,
        "account": executor.account,
        "gres": executor.gres,
        "cpus-per-task": executor.cpus,
    }
    for option, value in executor.sbatch.items():
        options[option.replace("_", "-")] = value
    command = ["sbatch", "--parsable", "--no-requeue"]
    for option, value in options.items():
        if value is True:
            command.append(f"--{option}")
        elif value is not None and value is not False:
            command.append(f"--{option}={value}")
    step = ["srun", "--ntasks=1"]  # also with sbatch's nodes or ntasks
    if executor.cpus:  # srun no longer takes it from sbatch
        step.append(f"--cpus-per-task={executor.cpus}")
    step += [sys.executable, "-m", "effbench.run.executors.job", str(folder)]
    try:
        done = subprocess.run(
            command,
            input=f"#!/bin/sh\n{shlex.join(step)}\n",
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerError(f"SLURM refused a job: {error}") from error
    if done.returncode != 0:
        why = re.sub(r"sbatch: (fatal|error): ", "", done.stderr)
        raise WorkerError(f"SLURM refused a job: {one_line(why, 500)}")
    return done.stdout.strip().partition(";")[0]
