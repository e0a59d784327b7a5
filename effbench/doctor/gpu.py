"""Checks of the GPUs: visible to torch, driver, sharing, slowdowns, power."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from effbench.doctor.finding import Finding, Machine, good, note, problem, warning
from effbench.measure.telemetry import CLOCKS_EVENTS, Gpu
from effbench.metrics import format_bytes

PROHIBITED = 2  # nvmlComputeMode_t
LEAST_IN_USE = 256 * 2**20  # less than any process with a CUDA context takes
LEAST_BUSY_PERCENT = 10
UNKNOWN_BYTES = 2**64 - 1
#: What clocks follow without being slowed down: idleness, settings, and the power cap under full load.
USUAL = ("gpu_idle", "applications_clocks_setting", "sw_power_cap")


def of_each_gpu(check: Callable[[Gpu, Machine], Iterable[Finding]]) -> Callable[[Machine], Iterator[Finding]]:
    """Turn a check of one GPU into one of all; each finding begins with the GPU's name."""

    @functools.wraps(check)
    def all_gpus(machine: Machine) -> Iterator[Finding]:
        for gpu in machine.gpus:
            for finding in check(gpu, machine):
                yield replace(finding, what=f"{gpu.name}: {finding.what}")

    return all_gpus


def visible(machine: Machine) -> Iterator[Finding]:
    """The GPUs that torch sees, or why it sees none."""
    gpus, cuda = machine.answer["gpus"], machine.answer["environment"]["cuda_version"]
    for gpu in gpus:
        yield good(f"GPU {gpu['index']}: {gpu['name']}, {format_bytes(gpu['memory_bytes'])}")
    if gpus:
        return
    effect = "cells run on the CPU; CUDA graphs and reduce-overhead are unsupported; no period, memory or energy"
    installed = machine.nvml.ask("nvmlDeviceGetCount") or 0
    what = f"torch sees no CUDA device; GPUs that the driver has: {installed}"
    if not installed:
        yield note(what, effect, "a machine with an NVIDIA GPU, its driver, and a CUDA build of torch")
    elif not cuda:
        yield problem(what, effect, "this torch is built without CUDA: install a CUDA build")
    elif "CUDA_VISIBLE_DEVICES" in machine.environ:  # hidden on purpose, as it seems
        yield note(what, effect, "unset CUDA_VISIBLE_DEVICES")
    else:
        yield problem(what, effect, "nvidia-smi, and python -c 'import torch; torch.cuda.init()', show why")


def driver(machine: Machine) -> Iterator[Finding]:
    """NVML, and the driver's CUDA against the CUDA that torch was built for."""
    works, torch_cuda = bool(machine.answer["gpus"]), machine.answer["environment"]["cuda_version"]
    if works and machine.nvml.error:
        yield warning(
            f"NVML does not answer: {machine.nvml.error}",
            "clocks, slowdowns, energy and other processes on the GPU stay unknown",
            "pip install nvidia-ml-py, and a driver whose libnvidia-ml.so.1 can be loaded here",
        )
    installed = machine.nvml.ask("nvmlSystemGetDriverVersion")
    number = machine.nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
    if installed is None or number is None or torch_cuda is None:
        return
    supported = (number // 1000, number % 1000 // 10)
    needed = tuple(int(part) for part in torch_cuda.split(".")[:2])
    what = f"driver {installed}, for CUDA up to {supported[0]}.{supported[1]}; torch is built for CUDA {torch_cuda}"
    fix = f"a driver for CUDA {torch_cuda} or newer, or a torch for CUDA {supported[0]}.{supported[1]}"
    if supported >= needed:
        yield good(what)
    elif works or supported[0] == needed[0]:  # CUDA's compatibility of minor versions
        yield warning(what, "kernels compiled at run time may be refused", fix)
    else:
        yield problem(what, "nothing can be measured on the GPU", fix)


@of_each_gpu
def whole(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """MIG and the compute mode."""
    mig = gpu.ask("nvmlDeviceGetMigMode")
    if gpu.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle") is not None or (mig is not None and mig[0]):
        yield warning(
            "MIG is on: an instance is measured, not the GPU",
            "it has a part of the cores and of the bandwidth; neighbours share its power and its clock",
            "measure on a whole GPU; an administrator: nvidia-smi -mig 0",
        )
    if gpu.ask("nvmlDeviceGetComputeMode") == PROHIBITED:
        yield problem(
            "compute mode is prohibited", "no CUDA program runs on it", "an administrator: nvidia-smi -c DEFAULT"
        )


@of_each_gpu
def processes(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """Other processes on the GPU, or signs of them if they are hidden (outside of a container)."""
    lists = [gpu.ask(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "MPSCompute", "Graphics")]
    others = {process.pid: process for answer in lists for process in answer or () if process.pid != os.getpid()}
    effect = "they share its time and memory with every trial"
    if others:
        names = "; ".join(name_of(process, machine) for process in others.values())
        fix = "end them, or sweep on other GPUs with executor.gpus=[…]"
        yield warning(f"other processes on it: {names}", effect, fix)
        return
    used, busy = gpu.used_bytes() or 0, gpu.utilization() or 0
    if used > LEAST_IN_USE or busy >= LEAST_BUSY_PERCENT:
        what = f"{format_bytes(used)} of its memory are in use, and it is busy {busy} % of the time"
        fix = "nvidia-smi on the host; sweep when the GPU is free"
        yield warning(f"{what}, but no process is listed: others seem to work on it", effect, fix)
    else:
        yield good("no other process is visible, and the GPU is idle")


def name_of(process: Any, machine: Machine) -> str:
    """`pid 12 python, 5 GiB`, or `pid 13`."""
    used = process.usedGpuMemory
    memory = "" if used in (None, UNKNOWN_BYTES) else f", {format_bytes(used)}"
    return f"pid {process.pid} {machine.text(f'proc/{process.pid}/comm')}".strip() + memory


@of_each_gpu
def clocks(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """What slows its clocks down now, by NVIDIA's names: heat, the power supply, another GPU, a display."""
    bits = gpu.clocks_events()
    slowed = [name for bit, name in CLOCKS_EVENTS.items() if (bits or 0) & bit and name not in USUAL]
    if slowed:
        effect = "GPU-bound cells are slower than they should be; trials that meet it are measured again, then noisy"
        fix = "let it cool; check the airflow, the power supply and the neighbours' load"
        yield warning(f"slowed down now: {', '.join(slowed)}", effect, fix)
    elif bits is not None:
        yield good("no slowdown now")


@of_each_gpu
def power(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """The power limit and the persistence mode."""
    limit = gpu.ask("nvmlDeviceGetEnforcedPowerLimit") or gpu.ask("nvmlDeviceGetPowerManagementLimit")
    default = gpu.ask("nvmlDeviceGetPowerManagementDefaultLimit")  # both in mW
    if limit and default and limit < default:
        yield warning(
            f"power limit {limit / 1000:.0f} W, below the default {default / 1000:.0f} W",
            "GPU-bound cells run slower than this GPU can",
            f"an administrator: nvidia-smi -pl {default // 1000}",
        )
    if gpu.ask("nvmlDeviceGetPersistenceMode") == 0:
        yield note(
            "persistence mode is off",
            "the driver starts anew in each trial's process (a second or more), and forgets clock settings",
            "an administrator: nvidia-smi -pm 1",
        )
