"""Checks of the GPUs: visible to torch, driver, sharing, clocks, power, memory errors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from effbench.doctor.finding import Finding, Machine, counted, good, note, problem, warning
from effbench.measure.telemetry import Gpu
from effbench.metrics import format_bytes

SM = 1  # nvmlClockType_t
UNCORRECTED, SINCE_DRIVER = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
PROHIBITED, EXCLUSIVE = 2, (1, 3)  # nvmlComputeMode_t
LEAST_IN_USE = 256 * 2**20  # less than any process with a CUDA context takes
LEAST_BUSY_PERCENT = 10
UNKNOWN_BYTES = 2**64 - 1
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # the kernel's fixed number

SETTING, POWER_CAP, HARDWARE = 0x02, 0x04, 0x08  # nvmlClocksEventReasons
SLOWER = "GPU-bound cells are slower than they should be; trials that meet it are measured again, then noisy"
COOL = "let it cool; check the airflow and the neighbours' load"
#: What slows the GPU down beyond its settings: bits -> (what, fix).
SLOWDOWNS = {
    0x20: ("thermal slowdown (by the driver)", COOL),
    0x40: ("thermal slowdown (by the hardware)", COOL),
    0x80: ("power brake: the supply asks for less", "an administrator: the machine's power supply and limits"),
    0x10: ("clocks tied to another GPU's (sync boost)", "an administrator: take it out of the group (DCGM)"),
    0x100: ("clocks held by a display", "measure on a GPU without a display"),
}


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
    installed = machine.nvml.ask("nvmlDeviceGetCount") or 0
    chosen = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus:
        if chosen is not None and installed > len(gpus):
            yield note(
                f"{len(gpus)} of {installed} GPUs are used (CUDA_VISIBLE_DEVICES={chosen})",
                "work on the others shares their host's cores and power",
            )
        return
    effect = "cells run on the CPU; CUDA graphs and reduce-overhead are unsupported; no period, memory or energy"
    what = f"torch sees no CUDA device, but the driver has {counted(installed, 'GPU')}"
    if not installed:
        built = "" if cuda else " (it is built without CUDA)"
        fix = "a machine with an NVIDIA GPU, its driver, and a CUDA build of torch"
        yield note(f"torch sees no CUDA device{built}", effect, fix)
    elif chosen is not None and cuda:  # hidden on purpose, as it seems
        yield note(f"{what} (CUDA_VISIBLE_DEVICES={chosen!r})", effect, "unset CUDA_VISIBLE_DEVICES")
    elif cuda:
        yield problem(what, effect, "nvidia-smi, and python -c 'import torch; torch.cuda.init()', show why")
    else:
        yield problem(what, effect, "this torch is built without CUDA: install a CUDA build")


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
    if installed is None:
        return
    number = machine.nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
    supported, needed = number and (number // 1000, number % 1000 // 10), version(torch_cuda)
    what = f"driver {installed}" + (f", for CUDA up to {supported[0]}.{supported[1]}" if supported else "")
    if not supported or needed is None or supported >= needed:
        yield good(what + ("" if needed is None else f"; torch is built for CUDA {torch_cuda}"))
        return
    fix = f"a driver for CUDA {torch_cuda} or newer, or a torch for CUDA {supported[0]}.{supported[1]}"
    if supported[0] == needed[0] or works:
        yield warning(
            f"{what}: older than torch's CUDA {torch_cuda}",
            "it runs by CUDA's compatibility; kernels compiled at run time may be refused",
            fix,
        )
    else:
        yield problem(f"{what}: too old for torch's CUDA {torch_cuda}", "nothing can be measured on the GPU", fix)


def version(text: str | None) -> tuple[int, int] | None:
    """`12.8` is (12, 8)."""
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor.split(".")[0])) if major.isdigit() and minor[:1].isdigit() else None


@of_each_gpu
def exclusive(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """MIG and the compute mode."""
    mig = gpu.ask("nvmlDeviceGetMigMode")
    if gpu.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle") is not None or (mig is not None and mig[0]):
        yield warning(
            "MIG is on: an instance is measured, not the GPU",
            "it has a part of the cores and of the bandwidth; neighbours share its power and its clock",
            "measure on a whole GPU; an administrator: nvidia-smi -mig 0",
        )
    mode = gpu.ask("nvmlDeviceGetComputeMode")
    if mode == PROHIBITED:
        yield problem(
            "compute mode is prohibited", "no CUDA program runs on it", "an administrator: nvidia-smi -c DEFAULT"
        )
    elif mode in EXCLUSIVE:
        yield note(
            "compute mode is exclusive: one process at a time",
            "no one can disturb a trial, but a process that holds the GPU makes every trial fail",
            "nothing else may hold the GPU; or an administrator: nvidia-smi -c DEFAULT",
        )


@of_each_gpu
def processes(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """Other processes on the GPU; if they cannot be seen, signs of them."""
    lists = [gpu.ask(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "MPSCompute", "Graphics")]
    others = {process.pid: process for answer in lists for process in answer or () if process.pid != os.getpid()}
    if others:
        names = described(others.values(), machine.root)
        yield warning(
            f"{counted(len(others), 'other process', 'other processes')} on it ({names})",
            "they share its time and memory with every trial",
            "end them, or sweep on other GPUs with executor.gpus=[…]",
        )
        return
    hidden = lists[0] is None or in_container(machine.root)
    if hidden:
        yield note(
            "foreign processes cannot be seen from here (a container, or NVML does not list them)",
            "trials notice them only by the memory that they take meanwhile, and by a GPU that is busy after timing",
            "nvidia-smi on the host, or start the container with --pid=host",
        )
    used, busy, signs = gpu.used_bytes(), gpu.utilization(), []
    if used is not None and used > LEAST_IN_USE:
        signs.append(f"{format_bytes(used)} of its memory are in use")
    if busy is not None and busy >= LEAST_BUSY_PERCENT:
        signs.append(f"it is busy {busy} % of the time")
    if signs:
        yield warning(
            f"{' and '.join(signs)}, but no process is listed",
            "another process seems to work on it: trials share its time and memory",
            "nvidia-smi on the host; sweep when the GPU is free",
        )
    elif not hidden:
        yield good("no other process on it")


def in_container(root: Path) -> bool:
    """Return whether this process has a PID namespace of its own, which hides processes outside."""
    try:
        return (root / "proc/self/ns/pid").readlink().name != FIRST_PID_NAMESPACE
    except OSError:
        return False


def described(processes: Iterable[Any], root: Path) -> str:
    """`pid 12 python, 5 GiB; pid 13`."""
    parts = []
    for process in processes:
        try:
            name = " " + (root / f"proc/{process.pid}/comm").read_text().strip()
        except OSError:
            name = ""
        used = process.usedGpuMemory
        memory = "" if used in (None, UNKNOWN_BYTES) else f", {format_bytes(used)}"
        parts.append(f"pid {process.pid}{name}{memory}")
    return "; ".join(parts)


@of_each_gpu
def clocks(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """Whether clocks are set, and what slows them down now."""
    bits = gpu.clocks_events()
    if bits is None:
        yield note("the driver does not report why clocks change", "a trial that was slowed down is not recognised")
        return
    setting, most = gpu.ask("nvmlDeviceGetApplicationsClock", SM), gpu.ask("nvmlDeviceGetMaxClockInfo", SM)
    if bits & SETTING or (setting and most and setting < most):
        yield note(
            f"application clock {setting} of {most} MHz"
            if setting and most and setting < most
            else "its clocks are held by a setting (application or locked clocks)",
            "steadier figures, slower than this GPU can be; they compare with others at this clock",
            "to undo it, an administrator: nvidia-smi -rac; nvidia-smi -rgc",
        )
    else:
        yield note(
            "its clocks are not locked, as far as NVML reports",
            "they follow load, power and temperature, and GPU-bound cells follow them",
            "for steadier, slower figures an administrator: nvidia-smi -lgc MHZ, a clock that it holds under full load",
        )
    slowed = [SLOWDOWNS[bit] for bit in SLOWDOWNS if bits & bit]
    if bits & HARDWARE and not bits & (0x40 | 0x80):  # it is the sum of those two
        slowed.append(("hardware slowdown", COOL))
    for what, fix in slowed:
        yield warning(f"{what} now", SLOWER, fix)
    if bits & POWER_CAP:
        yield note(
            "its clocks are held by the power cap now (software power cap)",
            "usual under full load; recorded with each trial",
            "other work on it must end, if there is any",
        )
    if not slowed:
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
    elif limit and default:
        yield good(f"power limit {limit / 1000:.0f} W" + (", the default" if limit == default else ""))
    if gpu.ask("nvmlDeviceGetPersistenceMode") == 0:
        yield note(
            "persistence mode is off",
            "the driver starts anew in each trial's process (a second or more), and forgets clock settings",
            "an administrator: nvidia-smi -pm 1",
        )


@of_each_gpu
def memory_errors(gpu: Gpu, machine: Machine) -> Iterator[Finding]:
    """Uncorrected ECC errors and rows that could not be remapped."""
    mode = gpu.ask("nvmlDeviceGetEccMode")
    if mode is not None and mode[0] != mode[1]:
        state = "on" if mode[1] else "off"
        yield note(f"ECC will be {state} after the next reset", "figures may differ from then on")
    errors = gpu.ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, SINCE_DRIVER)
    if errors and mode and mode[0]:
        yield warning(
            f"{counted(errors, 'uncorrected memory error')} since the driver was loaded",
            "outputs may be wrong, and trials may end with CUDA errors",
            "an administrator: reset the GPU; replace it if they come back",
        )
    remapped = gpu.ask("nvmlDeviceGetRemappedRows")
    if remapped and (remapped[2] or remapped[3]):
        yield warning(
            "memory rows wait for remapping" if remapped[2] else "memory rows could not be remapped",
            "trials may end with CUDA errors",
            "an administrator: reset the GPU" if remapped[2] else "replace the GPU",
        )
