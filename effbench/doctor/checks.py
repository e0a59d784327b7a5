"""The checks of `effbench doctor`: what this machine can measure and what would disturb it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from effbench.core.errors import ConfigError, StoreError, WorkerError
from effbench.core.message import CheckRequest
from effbench.core.quantities import format_bytes
from effbench.measure.gpu import Gpu, Nvml
from effbench.run.client import ForkServer
from effbench.run.compile_caches import cache_folder, make_cache_folder
from effbench.run.probe import ProbedMachine, describe_machine
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
LEAST_IN_USE = 256 * 2**20  # less than any process with a CUDA context takes
#: Clock events that are no slowdown: an idle GPU, clock settings, and the power cap under full
#: load.
USUAL = ("gpu_idle", "applications_clocks_setting", "sw_power_cap")
USE_ANOTHER = "choose another database with --db"


@dataclass(frozen=True)
class Finding:
    """A finding of a check. `level`: good, note, warning (results suffer) or problem (something
    cannot be measured); `what`: the fact; `effect`: its effect on results; `fix`: what to do."""

    level: str
    what: str
    effect: str = ""
    fix: str = ""


def examine(server: ForkServer, db: str) -> dict[str, list[Finding]]:
    """Return area -> the findings of its checks."""
    software, gpus = [], []
    try:
        machine = describe_machine(server)
        software = [*compilers(machine, try_compiler(server)), *variables()]
        gpus = [*visible(machine), *disturbances(machine)]
    except WorkerError as error:
        fix = "python -c 'import torch' shows why"
        software = [Finding("problem", str(error), "nothing can be measured", fix)]
    return {
        "software": software,
        "GPU": gpus,
        "CPU": [load()],
        "storage": [*compile_caches(), *database(db)],
    }


# --- software ---


def try_compiler(server: ForkServer) -> str | None:
    """Compile a sample for the CPU in the folder of compile caches. Return the error, or None."""
    try:
        parent = make_cache_folder(cache_folder(None), "XDG_CACHE_HOME")
    except ConfigError:  # `writable` reports it
        return None
    with TemporaryDirectory(prefix="doctor-", dir=parent, ignore_cleanup_errors=True) as folder:
        request = replace(SAMPLE, cache_dir=folder)
        try:
            outcome = server.call("check", request.to_json(), COMPILE_TIMEOUT_S)
        except WorkerError as error:
            return str(error)
    reason: str | None = outcome.get("reason")  # None if it is ok
    return reason


def compilers(machine: ProbedMachine, compiler_error: str | None) -> Iterator[Finding]:
    """Yield what prevents torch.compile on the CPU and the GPU. `compiler_error`: why Inductor
    cannot compile for the CPU, None if it can."""
    if compiler_error is None:
        yield Finding("good", "the C++ compiler works")
    else:
        yield Finding(
            "warning",
            f"the C++ compiler does not work: {compiler_error}",
            "torch.compile modes fail on the CPU",
            "install g++, or set CXX to a compiler that works",
        )
    if not machine.gpus:
        return
    effect = "torch.compile modes are unsupported on the GPU"
    installed = machine.details["compilers"]
    if not (installed["gcc"] or installed["clang"] or shutil.which(os.environ.get("CC", ""))):
        yield Finding("warning", "no C compiler", effect, "apt-get install gcc")
    if not machine.environment.triton_version:
        yield Finding("warning", "no Triton", effect, "pip install triton")


def variables() -> Iterator[Finding]:
    """Yield a warning for each environment variable that disturbs measurements."""
    for name, effect in SPOILS.items():
        value = os.environ.get(name, "")
        if value.lower() not in OFF:
            yield Finding("warning", f"{name}={value} is set", effect, f"unset {name}")


# --- GPUs ---


def visible(machine: ProbedMachine) -> Iterator[Finding]:
    """Yield the GPUs that torch sees, or why it sees none."""
    for gpu in machine.gpus:
        yield Finding("good", f"GPU {gpu.index}: {gpu.name}, {format_bytes(gpu.memory_bytes)}")
    if machine.gpus:
        return
    installed = Nvml().ask("nvmlDeviceGetCount") or 0
    level = "problem"
    fix = "python -c 'import torch; torch.cuda.init()' shows why"
    if not installed:
        level = "note"
        fix = "use a machine with an NVIDIA GPU, its driver, and a CUDA build of torch"
    elif "CUDA_VISIBLE_DEVICES" in os.environ:  # probably hidden on purpose
        level = "note"
        fix = "unset CUDA_VISIBLE_DEVICES"
    yield Finding(
        level,
        f"torch sees no CUDA device; the driver has {installed}",
        "cells run on the CPU; CUDA graphs and reduce-overhead are unsupported; no period, memory"
        " or energy",
        fix,
    )


def disturbances(machine: ProbedMachine) -> Iterator[Finding]:
    """Yield what disturbs each GPU that torch uses and NVML knows."""
    nvml = Nvml()
    for probed in machine.gpus:
        gpu = Gpu(nvml, nvml.handle(probed.uuid), f"GPU {probed.index}")
        yield from processes(gpu)
        yield from clocks(gpu)


def processes(gpu: Gpu) -> Iterator[Finding]:
    """Yield other processes on a GPU, or signs of hidden ones (outside of the container)."""
    listed = gpu.ask("nvmlDeviceGetComputeRunningProcesses") or ()
    pids = {process.pid for process in listed} - {os.getpid()}
    used = gpu.used_bytes() or 0
    what = f"other processes on it: {', '.join(map(str, sorted(pids)))}"
    if not pids:
        if used <= LEAST_IN_USE:
            return
        what = f"{format_bytes(used)} of its memory are in use, probably by hidden processes"
    yield Finding(
        "warning",
        f"{gpu.name}: {what}",
        "other processes take GPU time and memory from every trial",
        "end them (nvidia-smi on the host lists them), or select other GPUs with"
        " CUDA_VISIBLE_DEVICES",
    )


def clocks(gpu: Gpu) -> Iterator[Finding]:
    """Yield the reasons for reduced clocks, by NVIDIA's names: heat, the power supply, another GPU,
    a display."""
    slowed = [name for name in gpu.state().clocks_event_reasons if name not in USUAL]
    if slowed:
        yield Finding(
            "warning",
            f"{gpu.name}: clocks are slowed down now: {', '.join(slowed)}",
            "GPU-bound cells are slower, and affected figures are marked",
            "let it cool down; check the airflow, the power supply and the load of other GPUs",
        )


# --- CPU ---


def load() -> Finding:
    """Return the load of the cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    busy, _, _ = os.getloadavg()
    what = f"CPU load {busy:.1f} (mean of one minute) on {cores} usable cores"
    if busy <= MOST_LOAD * cores:
        return Finding("good", what)
    effect = "launch-bound cells are slower and noisier"
    return Finding("warning", what, effect, "wait until other work has ended")


# --- storage ---


def compile_caches() -> Iterator[Finding]:
    """Yield a problem if they cannot be written. XDG_CACHE_HOME also moves the caches that
    executor.cache_dir leaves in the user's cache folder."""
    return writable(cache_folder(None), "compile caches", "XDG_CACHE_HOME")


def writable(folder: Path, what: str, setting: str) -> Iterator[Finding]:
    """Yield a problem if a folder is not writable."""
    existing = folder.absolute()
    while not os.access(existing, os.F_OK):  # the first sweep may create it
        existing = existing.parent
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        yield Finding(
            "problem",
            f"{existing} is not a writable folder for {what}",
            "no sweep can run",
            f"make it writable, or choose another folder with {setting}",
        )


def database(db: str) -> Iterator[Finding]:
    try:
        file = sqlite_file(db)
        if file is not None:
            yield from writable(file.parent, "the database", "db=")
            if not os.access(file, os.F_OK):
                return  # the first sweep creates it
        with Store.open(db, mode="read") as store:
            yield Finding(
                "good", f"database {store.name}: schema up to date, sweeps: {len(store.sweeps())}"
            )
    except StoreError as error:
        yield Finding("problem", str(error), "sweeps cannot be read or recorded there", USE_ANOTHER)
        return
    if file is not None and not os.access(file, os.W_OK):
        yield Finding(
            "problem", f"{file} is read-only", "no sweep can be recorded in it", USE_ANOTHER
        )
