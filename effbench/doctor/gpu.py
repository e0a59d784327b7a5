"""Check the GPUs: whether torch sees them, whether they are shared, slowed down or limited."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from effbench.core.metrics import format_bytes
from effbench.doctor.finding import ExaminedMachine, Finding, good, note, problem, warning
from effbench.measure.gpu import CLOCKS_EVENTS, Gpu

PROHIBITED = 2  # nvmlComputeMode_t
LEAST_IN_USE = 256 * 2**20  # less than any process with a CUDA context takes
LEAST_BUSY_PERCENT = 10
UNKNOWN_BYTES = 2**64 - 1
#: Clock events that are no slowdown: an idle GPU, clock settings, and the power cap under full
#: load.
USUAL = ("gpu_idle", "applications_clocks_setting", "sw_power_cap")


def visible(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield the GPUs that torch sees, or why it sees none."""
    gpus = machine.probed["gpus"]
    for gpu in gpus:
        yield good(f"GPU {gpu['index']}: {gpu['name']}, {format_bytes(gpu['memory_bytes'])}")
    if gpus:
        return
    installed = machine.nvml.ask("nvmlDeviceGetCount") or 0
    level = problem
    fix = "python -c 'import torch; torch.cuda.init()' shows why"
    if not installed:
        level = note
        fix = "use a machine with an NVIDIA GPU, its driver, and a CUDA build of torch"
    elif "CUDA_VISIBLE_DEVICES" in machine.environ:  # probably hidden on purpose
        level = note
        fix = "unset CUDA_VISIBLE_DEVICES"
    yield level(
        f"torch sees no CUDA device; the driver has {installed}",
        "cells run on the CPU; CUDA graphs and reduce-overhead are unsupported; no period, memory"
        " or energy",
        fix,
    )


def nvml(machine: ExaminedMachine) -> Iterator[Finding]:
    if machine.probed["gpus"] and machine.nvml.error:
        yield warning(
            f"NVML does not answer: {machine.nvml.error}",
            "clocks, slowdowns, energy and other processes on the GPU stay unknown",
            "pip install nvidia-ml-py, and make the driver's libnvidia-ml.so.1 loadable here",
        )


def partition(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield findings about MIG and the compute mode."""
    for gpu in machine.gpus:
        mode = gpu.ask("nvmlDeviceGetMigMode")
        is_instance = gpu.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle") is not None
        if is_instance or (mode is not None and mode[0]):
            yield warning(
                f"{gpu.name}: MIG is on: sweeps measure an instance, not the GPU",
                "an instance has a part of the cores and bandwidth, and shares power and clock with"
                " others",
                "measure on a whole GPU; as administrator: nvidia-smi -mig 0",
            )
        if gpu.ask("nvmlDeviceGetComputeMode") == PROHIBITED:
            yield problem(
                f"{gpu.name}: compute mode is prohibited",
                "no CUDA program runs on it",
                "as administrator: nvidia-smi -c DEFAULT",
            )


def processes(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield other processes on each GPU, or signs of hidden ones (outside of the container)."""
    effect = "other processes take GPU time and memory from every trial"
    for gpu in machine.gpus:
        others = other_processes(gpu)
        used, busy = gpu.used_bytes() or 0, gpu.utilization() or 0
        if others:
            names = "; ".join(describe_process(process, machine) for process in others)
            fix = "end them, or sweep on other GPUs with executor.gpus=[…]"
            yield warning(f"{gpu.name}: other processes on it: {names}", effect, fix)
        elif used > LEAST_IN_USE or busy >= LEAST_BUSY_PERCENT:
            yield warning(
                f"{gpu.name}: {format_bytes(used)} of its memory are in use, and it is busy"
                f" {busy} % of the time, but no process is listed: hidden processes probably use"
                " it",
                effect,
                "run nvidia-smi on the host; sweep when the GPU is free",
            )
        else:
            yield good(f"{gpu.name}: no other process is visible, and the GPU is idle")


def other_processes(gpu: Gpu) -> list[Any]:
    """Return NVML's records of the other processes on a GPU, each once."""
    others = {}
    for kind in ("Compute", "MPSCompute", "Graphics"):
        for process in gpu.ask(f"nvmlDeviceGet{kind}RunningProcesses") or ():
            if process.pid != os.getpid():
                others[process.pid] = process
    return list(others.values())


def describe_process(process: Any, machine: ExaminedMachine) -> str:
    """Return `pid 12 python, 5 GiB`, or `pid 13`."""
    text = f"pid {process.pid} {machine.text(f'proc/{process.pid}/comm')}".strip()
    used = process.usedGpuMemory
    if used in (None, UNKNOWN_BYTES):
        return text
    return f"{text}, {format_bytes(used)}"


def clocks(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield the reasons for reduced clocks, by NVIDIA's names: heat, the power supply, another GPU,
    a display."""
    for gpu in machine.gpus:
        bits = gpu.clocks_events()
        if bits is None:
            continue
        events = [name for bit, name in CLOCKS_EVENTS.items() if bits & bit]
        slowed = [name for name in events if name not in USUAL]
        if slowed:
            yield warning(
                f"{gpu.name}: clocks are slowed down now: {', '.join(slowed)}",
                "GPU-bound cells are slower; affected trials are measured again, and marked if that"
                " does not help",
                "let it cool down; check the airflow, the power supply and the load of other GPUs",
            )
        else:
            yield good(f"{gpu.name}: clocks are not slowed down now")


def power(machine: ExaminedMachine) -> Iterator[Finding]:
    for gpu in machine.gpus:
        limit = gpu.ask("nvmlDeviceGetEnforcedPowerLimit")
        default = gpu.ask("nvmlDeviceGetPowerManagementDefaultLimit")  # both in mW
        if limit and default and limit < default:
            yield warning(
                f"{gpu.name}: power limit {limit / 1000:.0f} W, below the default"
                f" {default / 1000:.0f} W",
                "GPU-bound cells are slower than this GPU allows",
                f"as administrator: nvidia-smi -pl {default // 1000}",
            )
