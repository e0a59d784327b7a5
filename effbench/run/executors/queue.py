"""SLURM's queue: submit jobs, ask for their states, and cancel them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from effbench.core.errors import ConfigError, WorkerError
from effbench.core.printable import one_line
from effbench.core.settings import Executor
from effbench.run.git import output
from effbench.run.interrupts import POLL_S

COMMAND_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 90.0
#: The state of a job that the queue no longer lists.
UNKNOWN = "UNKNOWN"
#: The states of jobs that have ended.
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
    UNKNOWN,
}


def check() -> None:
    """Raise ConfigError if jobs cannot be submitted from this machine."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "executor=slurm requires sbatch on PATH: run effbench on a login node of the cluster"
        )


def states(name: str) -> dict[str, str] | None:
    """Return the state of each job with this name by id, also of jobs that ended a short time ago
    (`MinJobAge` in slurm.conf), without an accounting database; None if SLURM does not answer, for
    example because the controller restarts."""
    command = ["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i %T"]
    answer = output(command, COMMAND_TIMEOUT_S)
    if answer is None:
        return None
    known = {}
    for line in answer.splitlines():
        job_id, state = line.split()
        known[job_id] = state
    return known


def cancel(name: str) -> None:
    """Cancel all jobs with this name, and wait until they have ended."""
    output(["scancel", f"--name={name}"], COMMAND_TIMEOUT_S)
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    while time.monotonic() < deadline:
        known = states(name)
        if known is not None and ENDED.issuperset(known.values()):
            return
        time.sleep(POLL_S)


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
    program = [sys.executable, "-u", "-m", "effbench.run.executors.job", str(folder)]
    try:
        done = subprocess.run(
            command,
            input=f"#!/bin/sh\nexec {shlex.join(program)}\n",
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerError(f"SLURM refused a job: {error}") from error
    if done.returncode != 0:
        raise WorkerError(f"SLURM refused a job: {one_line(done.stderr, 500)}")
    return done.stdout.strip().partition(";")[0]
