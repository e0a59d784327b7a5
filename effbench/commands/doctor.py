"""`effbench doctor`: what this machine can measure, and what would disturb it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from effbench.commands import options
from effbench.errors import StoreError

HELP = "What this machine can measure and what would disturb it; each finding with its effect and how to mend it."
MARKS = {"good": "[green]✓[/]", "note": "[blue]·[/]", "warning": "[yellow]![/]", "problem": "[red]✗[/]"}
LEAST_FREE_BYTES = 2 * 2**30
#: Clocks events that slow a GPU down while it works; `gpu_idle` and settings do not.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Finding:
    """`level`: good, note, warning (results suffer) or problem (something cannot be measured)."""

    level: str
    what: str
    effect: str = ""
    mend: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument("--format", default="text", choices=["text", "json"], help="(default: text)")


def run(args: argparse.Namespace) -> int:
    findings = [*software(), *gpus(), *processor(), *storage(args.db)]
    if args.format == "json":
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        show(Console(), findings)
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def show(console: Console, findings: list[Finding]) -> None:
    for finding in findings:
        console.print(f"{MARKS[finding.level]} {escape(finding.what)}", highlight=False, soft_wrap=True)
        for word, text in (("effect", finding.effect), ("mend", finding.mend)):
            if text:
                console.print(f"    [dim]{word}:[/] {escape(text)}", highlight=False, soft_wrap=True)
    worst = sum(finding.level in ("warning", "problem") for finding in findings)
    console.print(f"{worst} of {len(findings)} findings need attention", highlight=False)


def software() -> Iterator[Finding]:
    """What a probe in a worker says of torch, its device and its compilers."""
    from effbench.message import ProbeRequest
    from effbench.sweeping.workers import ForkServer

    server = ForkServer()
    try:
        answer = server.call("probe", ProbeRequest().to_json(), 120.0)
    finally:
        server.close()
    found, details = answer["environment"], answer["details"]
    yield Finding(
        "good", f"torch {found['torch_version']}, Python {found['python']}, Triton {found['triton_version'] or 'none'}"
    )
    packages = details["packages"]
    yield Finding("note", "packages: " + ", ".join(f"{name} {version}" for name, version in sorted(packages.items())))
    for gpu in answer["gpus"]:
        yield Finding(
            "good",
            f"GPU {gpu['index']}: {gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB, CUDA {found['cuda_version']}",
        )
    if not answer["gpus"]:
        yield Finding(
            "note",
            "torch sees no CUDA device",
            "cells run on the CPU; CUDA graphs and reduce-overhead are unsupported; no period, memory or energy",
            "" if found["cuda_version"] else "this torch is built without CUDA: install a CUDA build",
        )
    compilers = details["compilers"]
    if not compilers["g++"] and not os.environ.get("CXX"):
        yield Finding(
            "warning", "no C++ compiler (g++)", "torch.compile modes are unsupported on the CPU", "apt-get install g++"
        )
    if answer["gpus"] and not (compilers["gcc"] or compilers["clang"] or os.environ.get("CC")):
        yield Finding("warning", "no C compiler", "torch.compile modes are unsupported on CUDA", "apt-get install gcc")
    if answer["gpus"] and not found["triton_version"]:
        yield Finding("warning", "no Triton", "torch.compile modes are unsupported on CUDA", "pip install triton")
    for package, models in (("torchvision", "resnet50"), ("transformers", "bert-base")):
        if package not in packages:
            yield Finding("note", f"{package} is not installed", f"no {models}", 'pip install "effbench[models]"')
    for name, value in found["flags"].items():
        yield Finding("note", f"{name}={value} is set", "it belongs to the environment: results compare within it only")


def gpus() -> Iterator[Finding]:
    """What NVML says of each GPU; nothing where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    yield Finding("good", f"driver {pynvml.nvmlSystemGetDriverVersion()}")
    for index in range(pynvml.nvmlDeviceGetCount()):
        yield from gpu(index, pynvml.nvmlDeviceGetHandleByIndex(index))


def gpu(index: int, handle: Any) -> Iterator[Finding]:
    import pynvml

    def ask(function: str, *args: Any) -> Any:
        try:
            return getattr(pynvml, function)(handle, *args)
        except (pynvml.NVMLError, AttributeError):  # this driver or machine does not say
            return None

    name = f"GPU {index}"
    if ask("nvmlDeviceGetPersistenceMode") == 0:
        yield Finding(
            "note",
            f"{name}: persistence mode is off",
            "the first trial waits for the driver to start",
            "an administrator: nvidia-smi -pm 1",
        )
    ecc = ask("nvmlDeviceGetEccMode")
    if ecc is not None:
        yield Finding("note", f"{name}: ECC is {'on' if ecc[0] else 'off'}")
    mig = ask("nvmlDeviceGetMigMode")
    if mig is not None and mig[0]:
        yield Finding(
            "warning",
            f"{name}: MIG is on",
            "a cell sees a slice of the GPU; neighbours share its power",
            "measure on a whole GPU",
        )
    limit, default = ask("nvmlDeviceGetEnforcedPowerLimit"), ask("nvmlDeviceGetPowerManagementDefaultLimit")
    if limit and default:
        level = "note" if limit >= default else "warning"
        yield Finding(
            level,
            f"{name}: power cap {limit / 1000:.0f} W (default {default / 1000:.0f} W)",
            "" if limit >= default else "GPU-bound cells run slower than this GPU can",
        )
    clock, most = ask("nvmlDeviceGetClockInfo", 1), ask("nvmlDeviceGetMaxClockInfo", 1)
    temperature = ask("nvmlDeviceGetTemperature", 0)
    yield Finding("note", f"{name}: SM clock {clock} of {most} MHz, {temperature} °C")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons") or 0
    for bit, what in SLOWDOWNS.items():
        if reasons & bit:
            yield Finding(
                "warning", f"{name}: {what} now", "GPU-bound cells are slower than they should be", "let it cool"
            )
    others = ask("nvmlDeviceGetComputeRunningProcesses") or []
    if others:
        pids = ", ".join(str(process.pid) for process in others)
        yield Finding(
            "warning",
            f"{name}: {len(others)} processes compute on it (pid {pids})",
            "they share its time and memory with every trial",
            "end them, or sweep with executor.gpus=[…]",
        )


def processor() -> Iterator[Finding]:
    """Load, cores and frequency governor: launch-bound cells are measured on the CPU."""
    usable = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    if load > 0.5 * usable:
        yield Finding(
            "warning",
            f"CPU load {load:.1f} on {usable} cores",
            "launch-bound cells spread and slow down",
            "wait for other work to end",
        )
    else:
        yield Finding("good", f"CPU load {load:.1f} on {usable} cores")
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.is_file() and (name := governor.read_text().strip()) not in ("performance", "schedutil"):
        yield Finding(
            "warning",
            f"CPU frequency governor {name}",
            "launch-bound cells depend on the clock of the moment",
            "an administrator: cpupower frequency-set -g performance",
        )


def storage(db: str) -> Iterator[Finding]:
    """Room for compile caches and the database, and the database's schema."""
    from effbench.store import Store
    from effbench.sweeping.conduct import cache_folder

    for what, folder in (("compile caches", cache_folder(None)), ("database", Path(db).parent)):
        if "://" in str(folder) or (what == "database" and "://" in db):
            continue
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
        level = "good" if free >= LEAST_FREE_BYTES else "warning"
        yield Finding(
            level,
            f"{free / 2**30:.0f} GiB free for {what} ({folder})",
            "" if level == "good" else "a sweep may run out of room",
            "",
        )
    if "://" not in db and not Path(db).exists():
        yield Finding("note", f"no database at {db} yet", "the first sweep makes it")
        return
    try:
        with Store.open(db, mode="read") as store:
            yield Finding("good", f"database {db}: {len(store.sweeps())} sweeps")
    except StoreError as error:
        yield Finding("problem", str(error), "effbench cannot record there")
