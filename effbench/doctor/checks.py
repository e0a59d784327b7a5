"""Run all checks of the doctor, and define those of software, CPU, memory and storage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from effbench.doctor import calibration, gpu
from effbench.doctor.finding import Finding, Machine, good, note, problem, warning
from effbench.errors import ConfigError, SchemaError, StoreError, WorkerError
from effbench.message import CheckRequest, ProbeRequest
from effbench.metrics import format_bytes
from effbench.store.connect import sqlite_file
from effbench.store.store import Store
from effbench.sweeping.client import ForkServer
from effbench.sweeping.compile_caches import cache_folder, make_cache_folder

PROBE_TIMEOUT_S = 120.0
#: Tests the C++ compiler.
SAMPLE = CheckRequest("effbench.worker.check.compile_sample", device="cpu")
#: Package of the extra `models` -> a target of effbench that imports it, and the models that need
#: it.
EXTRA = {
    "torchvision": (
        "effbench.models.vision.torchvision_model",
        "resnet18, resnet50, mobilenetv3, vit-b and model=torchvision",
    ),
    "timm": ("effbench.models.libraries.timm.network", "model=timm"),
    "transformers": ("effbench.models.bert.Bert", "bert-base and model=transformers"),
}
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
LEAST_AVAILABLE = 4 * 2**30  # a process with torch, CUDA and a compiler's helpers
LEAST_FREE = 2 * 2**30


def examine(server: ForkServer, machine: Machine) -> tuple[list[Finding], Machine]:
    """Return the findings of all checks, and the machine with the probe's answer (None if no worker
    starts)."""
    request = ProbeRequest(modules={target: [] for target, _ in EXTRA.values()})
    findings = []
    try:
        machine = replace(machine, answer=server.call("probe", request.to_json(), PROBE_TIMEOUT_S))
        if has_cpp_compiler(machine):
            machine = replace(machine, compiler_error=try_compiler(server))
    except WorkerError as error:
        findings = [
            problem(
                str(error),
                "nothing can be measured",
                "python -c 'import torch' shows why",
                "software",
            )
        ]
    for area, checks in CHECKS.items():
        if machine.answer or area not in NEED_WORKER:
            findings += [
                replace(finding, area=area) for check in checks for finding in check(machine)
            ]
    return findings, machine


def has_cpp_compiler(machine: Machine) -> bool:
    """Return whether the C++ compiler that Inductor uses exists."""
    cxx = machine.environ.get("CXX", "g++")  # Inductor tries no other
    if cxx == "g++":
        return bool(machine.answer["details"]["compilers"]["g++"])
    return shutil.which(cxx) is not None


def try_compiler(server: ForkServer) -> str | None:
    """Compile a sample for the CPU in the folder of compile caches. Return the error, or None."""
    try:
        parent = make_cache_folder(cache_folder(None), "XDG_CACHE_HOME")
    except ConfigError:  # `disk_space` reports the folder
        return None
    with TemporaryDirectory(prefix="doctor-", dir=parent, ignore_cleanup_errors=True) as folder:
        request = replace(SAMPLE, cache_dir=folder)
        try:
            outcome = server.call("check", request.to_json(), PROBE_TIMEOUT_S)
        except WorkerError as error:
            return str(error)
    return outcome.get("reason")  # None if it is ok


def packages(machine: Machine) -> Iterator[Finding]:
    environment, installed = machine.answer["environment"], machine.answer["details"]["packages"]
    torch, cuda, triton = (
        environment[f"{name}_version"] or "none" for name in ("torch", "cuda", "triton")
    )
    yield good(f"torch {torch}, CUDA {cuda}, Triton {triton}, Python {environment['python']}")
    for package, (target, models) in EXTRA.items():
        errors = [
            error
            for error in machine.answer["errors"]
            if target in error or error.startswith(f"{package} ")
        ]
        if package not in installed:
            yield note(
                f"{package} is not installed",
                f"{models} cannot be built",
                'pip install "effbench[models]"',
            )
        elif errors:
            reason = errors[0].removeprefix(f"_target_={target}: ")
            yield warning(
                f"{package} {installed[package]} does not load with torch {torch}: {reason}",
                f"{models} cannot be built",
                f"install the release of {package} that matches this torch, from the same package"
                " index as torch",
            )
    for text in machine.answer["notes"]:
        yield note(
            text,
            "models that detect objects cannot be built",
            "install torchvision from the index of torch",
        )


def compilers(machine: Machine) -> Iterator[Finding]:
    installed, environ = machine.answer["details"]["compilers"], machine.environ
    cxx = environ.get("CXX", "g++")
    has_c = installed["gcc"] or installed["clang"] or shutil.which(environ.get("CC", ""))
    has_cpp = has_cpp_compiler(machine)
    effect = "torch.compile modes are unsupported on the "
    if not has_cpp:
        fix = "apt-get install g++" if cxx == "g++" else "unset CXX, or set it to a compiler"
        yield warning(f"no C++ compiler ({cxx})", effect + "CPU", fix)
    if machine.answer["gpus"] and not has_c:
        yield warning("no C compiler", effect + "GPU", "apt-get install gcc")
    if machine.answer["gpus"] and not machine.answer["environment"]["triton_version"]:
        yield warning("no Triton", effect + "GPU", "pip install triton")
    if machine.compiler_error:
        fix = (
            "effbench model=tiny mode=default, then effbench ls --failures --traceback, shows the"
            " command"
        )
        yield warning(
            f"the C++ compiler fails: {machine.compiler_error}",
            "torch.compile modes fail on the CPU",
            fix,
        )
    elif has_c and has_cpp:
        yield good(f"compilers: {', '.join(name for name, exists in installed.items() if exists)}")


def variables(machine: Machine) -> Iterator[Finding]:
    """Yield a warning for each environment variable that disturbs measurements."""
    for name, effect in SPOILS.items():
        value = machine.environ.get(name, "")
        if value.lower() not in OFF:
            yield warning(f"{name}={value} is set", effect, f"unset {name}")


# --- the host ---


def numbers(text: str) -> dict[str, int]:
    """Return name -> number of the lines such as `MemFree:  22821632 kB` or `nr_throttled 3`."""
    lines = [line.replace(":", " ").split() for line in text.splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) >= 2 and words[1].isdigit()}


def cgroups(machine: Machine) -> list[Path]:
    """Return the folders of this process's control groups (version 2), outermost first."""
    mount = machine.root / "sys/fs/cgroup"
    lines = machine.text("proc/self/cgroup").splitlines()
    group = mount / next((line[3:] for line in lines if line.startswith("0::")), "").strip("/")
    # a container may see only its own group, mounted as the root
    return [
        folder
        for folder in (*reversed(group.parents), group)
        if folder.is_relative_to(mount) and folder.is_dir()
    ]


def quota(machine: Machine) -> float | None:
    """Return the number of cores that the control groups allow; None without a limit."""
    limits = (machine.text(group / "cpu.max").partition(" ") for group in cgroups(machine))
    return min(
        (int(allowed) / int(period) for allowed, _, period in limits if allowed.isdigit()),
        default=None,
    )


def load(machine: Machine) -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0))
    allowed = min(usable, quota(machine) or usable)
    now = float((machine.text("proc/loadavg") or "0").split()[0])
    what = f"CPU load {now:.1f} (mean of one minute) on {allowed:g} usable cores"
    if now > MOST_LOAD * allowed:
        yield warning(
            what, "launch-bound cells are slower and noisier", "wait until other work has ended"
        )
    else:
        yield good(what)
    if allowed < usable:
        yield warning(
            f"CPU quota of {allowed:g} out of {usable} cores (cgroup)",
            "torch starts a thread per core, and all threads stop for about 0.1 s when the quota is"
            " used up",
            "raise the quota, assign whole cores (--cpuset-cpus), or sweep with"
            " env.OMP_NUM_THREADS",
        )


def governor(machine: Machine) -> Iterator[Finding]:
    cpus = (
        f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
        for cpu in os.sched_getaffinity(0)
    )
    others = {name for cpu in cpus if (name := machine.text(cpu))} - {"performance"}
    if others:
        yield warning(
            f"CPU frequency governor {', '.join(sorted(others))}",
            "launch-bound cells vary with the CPU's clock",
            "as administrator: cpupower frequency-set -g performance",
        )


def memory(machine: Machine) -> Iterator[Finding]:
    """Yield the available memory: the host's, or what a control group leaves if that is less."""
    available = numbers(machine.text("proc/meminfo")).get("MemAvailable")
    left = [] if available is None else [available * 1024]
    for group in cgroups(machine):
        limit, used = machine.text(group / "memory.max"), machine.text(group / "memory.current")
        if limit.isdigit() and used.isdigit():
            cached = numbers(machine.text(group / "memory.stat")).get("inactive_file", 0)
            left.append(int(limit) - int(used) + cached)
    if left and min(left) < LEAST_AVAILABLE:
        effect = "trials may end as oom (host memory ran out), or wait for swap"
        yield warning(
            f"{format_bytes(min(left))} of memory available",
            effect,
            "end other processes that use memory",
        )
    elif left:
        yield good(f"{format_bytes(min(left))} of memory available")


# --- storage ---


def disk_space(machine: Machine) -> Iterator[Finding]:
    # XDG_CACHE_HOME also moves the caches that executor.cache_dir leaves in the user's cache folder
    folders = [("compile caches", cache_folder(None), "XDG_CACHE_HOME")]
    with suppress(StoreError):  # `database` reports a wrong URL
        if file := sqlite_file(machine.db):
            folders.append(("the database", file.parent, "db="))
    for what, folder, setting in folders:
        existing = next(
            path
            for path in (folder.absolute(), *folder.absolute().parents)
            if os.access(path, os.F_OK)
        )
        free = shutil.disk_usage(existing).free
        room = f"{format_bytes(free)} free for {what} ({folder})"
        if not (existing.is_dir() and os.access(existing, os.W_OK)):
            fix = f"make it writable, or choose another folder with {setting}"
            yield problem(
                f"{existing} is not a writable folder for {what}", "no sweep can run", fix
            )
        elif free < LEAST_FREE:
            fix = f"delete compile caches of old sweeps, or choose another folder with {setting}"
            yield warning(room, "a sweep may run out of disk space", fix)
        else:
            yield good(room)


def database(machine: Machine) -> Iterator[Finding]:
    try:
        file = sqlite_file(machine.db)
        if file is not None and not os.access(file, os.F_OK):
            return  # the first sweep creates it
        with Store.open(machine.db, mode="read") as store:
            yield good(f"database {store.name}: schema up to date, sweeps: {len(store.sweeps())}")
    except StoreError as error:
        what, _, fix = str(error).partition("\n")
        fix = fix or ("" if isinstance(error, SchemaError) else "choose another database with --db")
        yield problem(what, "sweeps cannot be read or recorded there", fix)
        return
    if file is not None and not os.access(file, os.W_OK):
        yield problem(
            f"{file} is read-only",
            "no sweep can be recorded in it",
            "make it writable, or use another --db",
        )


#: Area -> checks; a check takes the Machine and yields findings.
CHECKS = {
    "software": (packages, compilers, variables),
    "GPU": (gpu.visible, gpu.driver, gpu.whole, gpu.processes, gpu.clocks, gpu.power),
    "CPU": (load, governor),
    "memory": (memory,),
    "storage": (disk_space, database),
    "calibration": (calibration.stored,),
}
NEED_WORKER = ("software", "GPU", "calibration")
