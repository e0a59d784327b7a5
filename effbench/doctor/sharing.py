"""Who else may use a GPU: MIG, compute mode, processes, memory in use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from effbench.doctor.files import ROOT, in_first_pid_namespace, text
from effbench.doctor.finding import Finding, counted, good, note, problem, warning
from effbench.doctor.nvml import Device
from effbench.metrics import format_bytes

MEMORY_V2 = 0x02000028  # nvmlMemory_v2: tells the driver's own reserve apart
LEAST_IN_USE = 256 * 2**20  # less than any process with a CUDA context takes
LEAST_IN_USE_V1 = 2 * 2**30  # with the driver's own reserve in it
LEAST_BUSY_PERCENT = 10
NOT_AVAILABLE = 2**64 - 1
EXCLUSIVE_THREAD, PROHIBITED, EXCLUSIVE_PROCESS = 1, 2, 3
LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")


def findings(device: Device, root: Path = ROOT) -> Iterator[Finding]:
    for found in (*mig(device), *compute_mode(device), *processes(device, root)):
        yield Finding(found.level, f"{device.name}: {found.what}", found.effect, found.mend)


def mig(device: Device) -> Iterator[Finding]:
    parent = device.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
    mode = device.ask("nvmlDeviceGetMigMode")
    if parent is not None or (mode is not None and mode[0]):
        yield warning(
            "MIG is on: an instance is measured, not the GPU",
            "it has a part of the cores and of the bandwidth; neighbours share its power and its clock",
            "measure on a whole GPU; an administrator: nvidia-smi -mig 0",
        )
    elif mode is not None:
        yield good("MIG is off")


def compute_mode(device: Device) -> Iterator[Finding]:
    mode = device.ask("nvmlDeviceGetComputeMode")
    if mode == PROHIBITED:
        yield problem(
            "compute mode is prohibited", "no CUDA program runs on it", "an administrator: nvidia-smi -c DEFAULT"
        )
    elif mode in (EXCLUSIVE_THREAD, EXCLUSIVE_PROCESS):
        yield note(
            "compute mode is exclusive: one process at a time",
            "no one can disturb a trial, but a process that holds it makes every trial fail",
            "nothing else may hold the GPU; or an administrator: nvidia-smi -c DEFAULT",
        )


def processes(device: Device, root: Path = ROOT) -> Iterator[Finding]:
    """Other processes, by name; or that they cannot be seen, with what betrays them."""
    answers = [device.ask(name) for name in LISTS]
    found = {process.pid: process for answer in answers for process in answer or () if process.pid != os.getpid()}
    graphics = device.ask("nvmlDeviceGetGraphicsRunningProcesses") or ()
    if drawing := [process for process in graphics if process.pid not in (*found, os.getpid())]:
        yield note(
            f"{counted(len(drawing), 'process', 'processes')} with graphics on it ({described(drawing, root)})",
            "a display takes some of its time and memory",
            "measure without a graphical session",
        )
    if found:
        yield warning(
            f"{counted(len(found), 'other process', 'other processes')} on it ({described(found.values(), root)})",
            "they share its time and memory with every trial",
            "end them, or sweep on other GPUs with executor.gpus=[…]",
        )
        return
    unseen = answers[0] is None or in_first_pid_namespace(root) is False
    if unseen:
        yield note(
            "processes of others on it cannot be seen from here (a container, or NVML does not list them)",
            "trials notice them only by memory that they take meanwhile, and by a GPU that is busy after timing",
            "look from the host with nvidia-smi, or start the container with --pid=host",
        )
    traces = [] if drawing else list(use(device))
    if traces:
        yield warning(
            f"{' and '.join(traces)}, though no process is listed",
            "someone seems to work on it: trials share its time and memory",
            "look from the host with nvidia-smi; sweep when it is free",
        )
    elif not unseen:
        yield good("no other process on it")


def use(device: Device) -> Iterator[str]:
    """What tells of work on the GPU without naming a process."""
    info, least = device.ask("nvmlDeviceGetMemoryInfo", MEMORY_V2), LEAST_IN_USE
    if info is None:
        info, least = device.ask("nvmlDeviceGetMemoryInfo"), LEAST_IN_USE_V1
    if info is not None and info.used > least:
        yield f"{format_bytes(info.used)} of its memory are in use"
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    if rates is not None and rates.gpu >= LEAST_BUSY_PERCENT:
        yield f"it is busy {rates.gpu} % of the time"


def described(found: Any, root: Path) -> str:
    """`pid 12 python, 5 GiB; pid 13`."""
    parts = []
    for process in found:
        name, used = text(root / f"proc/{process.pid}/comm"), process.usedGpuMemory
        memory = "" if used in (None, NOT_AVAILABLE) else f", {format_bytes(used)}"
        parts.append(f"pid {process.pid}{f' {name}' if name else ''}{memory}")
    return "; ".join(parts)
