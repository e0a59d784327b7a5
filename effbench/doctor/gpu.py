"""Check the GPUs: whether torch sees them, whether they are shared, slowed down or limited."""

from __future__ import annotations

import os
from collections.abc import Iterator

from effbench.core.metrics import format_bytes
from effbench.doctor.finding import ExaminedMachine, Finding, good, note, problem, warning
from effbench.measure.gpu import Gpu

LEAST_IN_USE = 256 * 2**20  # less than any process with a CUDA context takes
LEAST_BUSY_PERCENT = 10
#: Clock events that are no slowdown: an idle GPU, clock settings, and the power cap under full
#: load.
USUAL = ("gpu_idle", "applications_clocks_setting", "sw_power_cap")


def visible(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield the GPUs that torch sees, or why it sees none."""
    gpus = machine.probed.gpus
    for gpu in gpus:
        yield good(f"GPU {gpu.index}: {gpu.name}, {format_bytes(gpu.memory_bytes)}")
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
    if machine.probed.gpus and machine.nvml.error:
        yield warning(
            f"NVML does not answer: {machine.nvml.error}",
            "clocks, slowdowns, energy and other processes on the GPU stay unknown",
            "pip install nvidia-ml-py, and make the driver's libnvidia-ml.so.1 loadable here",
        )


def partition(machine: ExaminedMachine) -> Iterator[Finding]:
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


def processes(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield other processes on each GPU, or signs of hidden ones (outside of the container)."""
    effect = "other processes take GPU time and memory from every trial"
    for gpu in machine.gpus:
        used, busy = gpu.used_bytes() or 0, gpu.utilization() or 0
        others = [f"{pid} {machine.text(f'proc/{pid}/comm')}".strip() for pid in other_pids(gpu)]
        if others:
            fix = "end them, or sweep on other GPUs with executor.gpus=[…]"
            yield warning(f"{gpu.name}: other processes on it: {', '.join(others)}", effect, fix)
        elif used > LEAST_IN_USE or busy >= LEAST_BUSY_PERCENT:
            yield warning(
                f"{gpu.name}: {format_bytes(used)} of its memory are in use, and it is busy"
                f" {busy} % of the time, but no process is listed: hidden processes probably use"
                " it",
                effect,
                "run nvidia-smi on the host; sweep when the GPU is free",
            )


def other_pids(gpu: Gpu) -> list[int]:
    """Return the other processes on a GPU."""
    pids = set()
    for kind in ("Compute", "MPSCompute", "Graphics"):
        listed = gpu.ask(f"nvmlDeviceGet{kind}RunningProcesses") or ()
        pids |= {process.pid for process in listed}
    return sorted(pids - {os.getpid()})


def clocks(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield the reasons for reduced clocks, by NVIDIA's names: heat, the power supply, another GPU,
    a display."""
    for gpu in machine.gpus:
        slowed = [name for name in gpu.read().clocks_event_reasons if name not in USUAL]
        if slowed:
            yield warning(
                f"{gpu.name}: clocks are slowed down now: {', '.join(slowed)}",
                "GPU-bound cells are slower; affected trials are measured again, and marked if that"
                " does not help",
                "let it cool down; check the airflow, the power supply and the load of other GPUs",
            )


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
