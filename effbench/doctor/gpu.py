"""Check the GPUs: whether torch sees them, driver, sharing, slowdowns and power."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from effbench.doctor.finding import Finding, Machine, good, note, problem, warning
from effbench.measure.gpu import CLOCKS_EVENTS, Gpu
from effbench.metrics import format_bytes

PROHIBITED = 2  # nvmlComputeMode_t
LEAST_IN_USE = 256 * 2**20  # less than any process with a CUDA context takes
LEAST_BUSY_PERCENT = 10
UNKNOWN_BYTES = 2**64 - 1
#: Clock events that are no slowdown: an idle GPU, clock settings, and the power cap under full
#: load.
USUAL = ("gpu_idle", "applications_clocks_setting", "sw_power_cap")


def of_each_gpu(
    check: Callable[[Gpu, Machine], Iterable[Finding]],
) -> Callable[[Machine], Iterator[Finding]]:
    """Turn a check of one GPU into a check of all GPUs; each finding begins with the GPU's name."""

    @functools.wraps(check)
    def all_gpus(machine: Machine) -> Iterator[Finding]:
        for gpu in machine.gpus:
            for finding in check(gpu, machine):
                yield replace(finding, what=f"{gpu.name}: {finding.what}")

    return all_gpus


def visible(machine: Machine) -> Iterator[Finding]:
    """Yield the GPUs that torch sees, or why it sees none."""
    gpus, cuda = machine.answer["gpus"], machine.answer["environment"]["cuda_version"]
    for gpu in gpus:
        yield good(f"GPU {gpu['index']}: {gpu['name']}, {format_bytes(gpu['memory_bytes'])}")
    if gpus:
        return
    effect = (
        "cells run on the CPU; CUDA graphs and reduce-overhead are unsupported; no period, memory"
        " or energy"
    )
    installed = machine.nvml.ask("nvmlDeviceGetCount") or 0
    what = f"torch sees no CUDA device; the driver has {installed}"
    if not installed:
        yield note(
            what, effect, "use a machine with an NVIDIA GPU, its driver, and a CUDA build of torch"
        )
    elif not cuda:
        yield problem(what, effect, "install a CUDA build of torch: this one is built without CUDA")
    elif "CUDA_VISIBLE_DEVICES" in machine.environ:  # probably hidden on purpose
        yield note(what, effect, "unset CUDA_VISIBLE_DEVICES")
    else:
        yield problem(
            what,
            effect,
            "run nvidia-smi and python -c 'import torch; torch.cuda.init()' to see why",
        )


def driver(machine: Machine) -> Iterator[Finding]:
    """Yield findings about NVML, and about the driver's CUDA version and the one that torch is
    built for."""
    works, torch_cuda = bool(machine.answer["gpus"]), machine.answer["environment"]["cuda_version"]
    if works and machine.nvml.error:
        yield warning(
            f"NVML does not answer: {machine.nvml.error}",
            "clocks, slowdowns, energy and other processes on the GPU stay unknown",
            "pip install nvidia-ml-py, and make the driver's libnvidia-ml.so.1 loadable here",
        )
    installed = machine.nvml.ask("nvmlSystemGetDriverVersion")
    number = machine.nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
    if installed is None or number is None or torch_cuda is None:
        return
    supported = (number // 1000, number % 1000 // 10)
    needed = tuple(int(part) for part in torch_cuda.split(".")[:2])
    newest = f"{supported[0]}.{supported[1]}"
    what = f"driver {installed} supports CUDA up to {newest}; torch is built for CUDA {torch_cuda}"
    fix = f"install a driver for CUDA {torch_cuda} or newer, or a torch for CUDA {newest}"
    if supported >= needed:
        yield good(what)
    elif works or supported[0] == needed[0]:  # CUDA's minor-version compatibility
        yield warning(what, "kernels compiled at run time may be refused", fix)
    else:
        yield problem(what, "nothing can be measured on the GPU", fix)


@of_each_gpu
def whole(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """Yield findings about MIG and the compute mode."""
    mig = gpu.ask("nvmlDeviceGetMigMode")
    if gpu.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle") is not None or (
        mig is not None and mig[0]
    ):
        yield warning(
            "MIG is on: sweeps measure an instance, not the GPU",
            "an instance has a part of the cores and bandwidth, and shares power and clock with"
            " others",
            "measure on a whole GPU; as administrator: nvidia-smi -mig 0",
        )
    if gpu.ask("nvmlDeviceGetComputeMode") == PROHIBITED:
        yield problem(
            "compute mode is prohibited",
            "no CUDA program runs on it",
            "as administrator: nvidia-smi -c DEFAULT",
        )


@of_each_gpu
def processes(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """Yield other processes on the GPU, or signs of hidden ones (outside of the container)."""
    lists = [
        gpu.ask(f"nvmlDeviceGet{kind}RunningProcesses")
        for kind in ("Compute", "MPSCompute", "Graphics")
    ]
    others = {
        process.pid: process
        for answer in lists
        for process in answer or ()
        if process.pid != os.getpid()
    }
    effect = "other processes take GPU time and memory from every trial"
    if others:
        names = "; ".join(name_of(process, machine) for process in others.values())
        fix = "end them, or sweep on other GPUs with executor.gpus=[…]"
        yield warning(f"other processes on it: {names}", effect, fix)
        return
    used, busy = gpu.used_bytes() or 0, gpu.utilization() or 0
    if used > LEAST_IN_USE or busy >= LEAST_BUSY_PERCENT:
        what = f"{format_bytes(used)} of its memory are in use, and it is busy {busy} % of the time"
        fix = "run nvidia-smi on the host; sweep when the GPU is free"
        yield warning(
            f"{what}, but no process is listed: hidden processes probably use it", effect, fix
        )
    else:
        yield good("no other process is visible, and the GPU is idle")


def name_of(process: Any, machine: Machine) -> str:
    """Return the name of a process: `pid 12 python, 5 GiB`, or `pid 13`."""
    used = process.usedGpuMemory
    memory = "" if used in (None, UNKNOWN_BYTES) else f", {format_bytes(used)}"
    return f"pid {process.pid} {machine.text(f'proc/{process.pid}/comm')}".strip() + memory


@of_each_gpu
def clocks(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """Yield the reasons for reduced clocks, by NVIDIA's names: heat, the power supply, another GPU,
    a display."""
    bits = gpu.clocks_events()
    slowed = [
        name for bit, name in CLOCKS_EVENTS.items() if (bits or 0) & bit and name not in USUAL
    ]
    if slowed:
        effect = (
            "GPU-bound cells are slower; affected trials are measured again, and marked if that"
            " does not help"
        )
        fix = "let it cool down; check the airflow, the power supply and the load of other GPUs"
        yield warning(f"clocks are slowed down now: {', '.join(slowed)}", effect, fix)
    elif bits is not None:
        yield good("clocks are not slowed down now")


@of_each_gpu
def power(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """Yield findings about the power limit and the persistence mode."""
    limit = gpu.ask("nvmlDeviceGetEnforcedPowerLimit") or gpu.ask(
        "nvmlDeviceGetPowerManagementLimit"
    )
    default = gpu.ask("nvmlDeviceGetPowerManagementDefaultLimit")  # both in mW
    if limit and default and limit < default:
        yield warning(
            f"power limit {limit / 1000:.0f} W, below the default {default / 1000:.0f} W",
            "GPU-bound cells are slower than this GPU allows",
            f"as administrator: nvidia-smi -pl {default // 1000}",
        )
    if gpu.ask("nvmlDeviceGetPersistenceMode") == 0:
        yield note(
            "persistence mode is off",
            "the driver starts again in each trial's process (1 s or more), and forgets clock"
            " settings",
            "as administrator: nvidia-smi -pm 1",
        )
