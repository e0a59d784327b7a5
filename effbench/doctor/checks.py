"""Run all checks of the doctor, and define those of software, CPU and storage."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from effbench.core.environments import SOFTWARE
from effbench.core.errors import ConfigError, StoreError, WorkerError
from effbench.core.message import CheckRequest
from effbench.core.metrics import format_bytes
from effbench.doctor import gpu
from effbench.doctor.finding import ExaminedMachine, Finding, good, problem, warning
from effbench.run.client import ForkServer
from effbench.run.compile_caches import cache_folder, make_cache_folder
from effbench.run.probe import describe_machine
from effbench.store.connect import sqlite_file
from effbench.store.store import Store

COMPILE_TIMEOUT_S = 120.0
#: Tests the C++ compiler.
SAMPLE = CheckRequest("effbench.worker.check.compile_sample", device="cpu")
#: Variables that disturb measurements -> their effect, unless the value is in OFF.
SPOILS = {
    "CUDA_LAUNCH_BLOCKING": (
        "every launch waits for its kernel: launch-bound cells and periods are meaningless"
    ),
    "TORCH_COMPILE_DISABLE": "torch.compile modes run as eager",
    "TORCHDYNAMO_DISABLE": "torch.compile modes run as eager",
    "TORCH_COMPILE_DEBUG": "compiling writes traces and takes longer",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "every compile is cold: compile_warm_s stays empty",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (
        "every allocation goes to the driver: slow, and CUDA graphs fail"
    ),
    "TORCH_LOGS": "logging slows down compilation and the calls that are logged",
    "TRITON_INTERPRET": "Triton kernels run on the CPU, in an interpreter",
    "NVIDIA_TF32_OVERRIDE": "it overrides numerics.tf32 in cuBLAS and cuDNN",
    "LD_PRELOAD": (
        "another allocator or OpenMP library changes launch-bound cells, and is not recorded"
    ),
}
OFF = ("", "0", "false", "no", "off")
MOST_LOAD = 0.5  # fraction of the usable cores that other work may take
LEAST_FREE = 2 * 2**30
USE_ANOTHER = "choose another database with --db"

Check = Callable[[ExaminedMachine], Iterator[Finding]]


def probe_machine(server: ForkServer, db: str) -> ExaminedMachine:
    """Return the machine with what a worker finds out about it."""
    try:
        found = describe_machine(server)
        return ExaminedMachine(db, found, compiler_error=try_compiler(server))
    except WorkerError as error:
        return ExaminedMachine(db, worker_error=str(error))


def examine(machine: ExaminedMachine) -> list[Finding]:
    """Return the findings of all checks."""
    findings = []
    if machine.worker_error is not None:
        fix = "python -c 'import torch' shows why"
        findings = [
            problem(
                machine.worker_error,
                "nothing can be measured",
                fix,
                "software",
            )
        ]
    for area, checks in CHECKS.items():
        if machine.found is None and area in NEED_WORKER:
            continue
        for check in checks:
            findings += [replace(finding, area=area) for finding in check(machine)]
    return findings


def try_compiler(server: ForkServer) -> str | None:
    """Compile a sample for the CPU in the folder of compile caches. Return the error, or None."""
    try:
        parent = make_cache_folder(cache_folder(None), "XDG_CACHE_HOME")
    except ConfigError:  # `disk_space` reports the folder
        return None
    with TemporaryDirectory(prefix="doctor-", dir=parent, ignore_cleanup_errors=True) as folder:
        request = replace(SAMPLE, cache_dir=folder)
        try:
            outcome = server.call("check", request.to_json(), COMPILE_TIMEOUT_S)
        except WorkerError as error:
            return str(error)
    reason: str | None = outcome.get("reason")  # None if it is ok
    return reason


# --- software ---


def versions(machine: ExaminedMachine) -> Iterator[Finding]:
    texts = []
    for name, title in SOFTWARE.items():
        version = getattr(machine.probed.environment, name) or "none"
        texts.append(f"{title} {version}")
    yield good(", ".join(texts))


def compilers(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield what prevents torch.compile on the CPU and the GPU."""
    if machine.compiler_error:
        yield warning(
            f"the C++ compiler does not work: {machine.compiler_error}",
            "torch.compile modes fail on the CPU",
            "install g++, or set CXX to a compiler that works",
        )
    if not machine.probed.gpus:
        return
    effect = "torch.compile modes are unsupported on the GPU"
    installed = machine.probed.details["compilers"]
    has_c = installed["gcc"] or installed["clang"] or shutil.which(machine.environ.get("CC", ""))
    if not has_c:
        yield warning("no C compiler", effect, "apt-get install gcc")
    if not machine.probed.environment.triton_version:
        yield warning("no Triton", effect, "pip install triton")


def variables(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield a warning for each environment variable that disturbs measurements."""
    for name, effect in SPOILS.items():
        value = machine.environ.get(name, "")
        if value.lower() not in OFF:
            yield warning(f"{name}={value} is set", effect, f"unset {name}")


# --- the host ---


def quota(machine: ExaminedMachine) -> float:
    """Return the number of cores that the control groups (version 2) allow; infinite without a
    limit."""
    mount, cores = machine.root / "sys/fs/cgroup", math.inf
    # a container may see only its own group, as the root
    group = mount / machine.text("proc/self/cgroup").rpartition("::")[2].strip("/")
    while group.is_relative_to(mount):
        allowed, _, period = machine.text(group / "cpu.max").partition(" ")
        if allowed.isdigit():
            cores = min(cores, int(allowed) / int(period))
        group = group.parent
    return cores


def load(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield the load of the cores that this process may use, and a limit of their time."""
    cores = len(os.sched_getaffinity(0))
    allowed = min(cores, quota(machine))
    busy = float((machine.text("proc/loadavg") or "0").split()[0])
    what = f"CPU load {busy:.1f} (mean of one minute) on {allowed:g} usable cores"
    if busy <= MOST_LOAD * allowed:
        yield good(what)
    else:
        effect = "launch-bound cells are slower and noisier"
        yield warning(what, effect, "wait until other work has ended")
    if allowed < cores:
        yield warning(
            f"CPU quota of {allowed:g} out of {cores} cores (cgroup)",
            "torch starts a thread per core, and all threads stop for about 0.1 s when the quota is"
            " used up",
            "raise the quota, assign whole cores (--cpuset-cpus), or sweep with"
            " env.OMP_NUM_THREADS",
        )


def governor(machine: ExaminedMachine) -> Iterator[Finding]:
    folder = "sys/devices/system/cpu"
    files = [f"cpu{cpu}/cpufreq/scaling_governor" for cpu in os.sched_getaffinity(0)]
    others = {machine.text(f"{folder}/{file}") for file in files} - {"", "performance"}
    if others:
        yield warning(
            f"CPU frequency governor {', '.join(sorted(others))}",
            "launch-bound cells vary with the CPU's clock",
            "as administrator: cpupower frequency-set -g performance",
        )


# --- storage ---


def disk_space(machine: ExaminedMachine) -> Iterator[Finding]:
    # XDG_CACHE_HOME also moves the caches that executor.cache_dir leaves in the user's cache folder
    yield room_in(cache_folder(None), "compile caches", "XDG_CACHE_HOME")
    with suppress(StoreError):  # `database` reports a wrong URL
        file = sqlite_file(machine.db)
        if file:
            yield room_in(file.parent, "the database", "db=")


def room_in(folder: Path, what: str, setting: str) -> Finding:
    """Return a finding about the free space of a folder, which the first sweep may create."""
    existing = folder.absolute()
    while not os.access(existing, os.F_OK):
        existing = existing.parent
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        return problem(
            f"{existing} is not a writable folder for {what}",
            "no sweep can run",
            f"make it writable, or choose another folder with {setting}",
        )
    free = shutil.disk_usage(existing).free
    room = f"{format_bytes(free)} free for {what} ({folder})"
    if free >= LEAST_FREE:
        return good(room)
    fix = f"delete compile caches of old sweeps, or choose another folder with {setting}"
    return warning(room, "a sweep may run out of disk space", fix)


def database(machine: ExaminedMachine) -> Iterator[Finding]:
    try:
        file = sqlite_file(machine.db)
        if file is not None and not os.access(file, os.F_OK):
            return  # the first sweep creates it
        with Store.open(machine.db, mode="read") as store:
            yield good(f"database {store.name}: schema up to date, sweeps: {len(store.sweeps())}")
    except StoreError as error:
        yield problem(str(error), "sweeps cannot be read or recorded there", USE_ANOTHER)
        return
    if file is not None and not os.access(file, os.W_OK):
        yield problem(f"{file} is read-only", "no sweep can be recorded in it", USE_ANOTHER)


CHECKS: dict[str, tuple[Check, ...]] = {
    "software": (versions, compilers, variables),
    "GPU": (gpu.visible, gpu.nvml, gpu.partition, gpu.processes, gpu.clocks, gpu.power),
    "CPU": (load, governor),
    "storage": (disk_space, database),
}
NEED_WORKER = ("software", "GPU")
