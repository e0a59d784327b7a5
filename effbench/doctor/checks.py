"""All checks of the doctor in the order in which it shows them; those of the software, and of the host: CPU, memory,
disk space, compile caches, the database."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from effbench.doctor import calibration, gpu
from effbench.doctor.finding import Finding, Machine, counted, good, note, problem, warning
from effbench.errors import SchemaError, StoreError, WorkerError
from effbench.message import ProbeRequest
from effbench.metrics import format_bytes
from effbench.store.connect import parse_url
from effbench.store.store import Store
from effbench.sweeping.client import ForkServer
from effbench.sweeping.devices import parse_cores
from effbench.sweeping.run import cache_folder

PROBE_TIMEOUT_S = 120.0
UNCOMPILED = "torch.compile modes are unsupported"
#: Package of the extra `models` -> a target of effbench that imports it, and the models that need it.
EXTRA = {
    "torchvision": ("effbench.models.vision.torchvision_model", "resnet18, resnet50, mobilenetv3 and vit-b"),
    "transformers": ("effbench.models.bert.Bert", "bert-base"),
}
#: Variables that spoil measurements -> their effect. A value that is off (empty, 0, false) spoils nothing.
SPOILS = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel: launch-bound cells and periods mean nothing",
    "TORCH_COMPILE_DISABLE": "torch.compile modes run as eager",
    "TORCHDYNAMO_DISABLE": "torch.compile modes run as eager",
    "TORCH_COMPILE_DEBUG": "compiling writes its traces, and takes longer",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "every compile is cold: compile_warm_s stays empty",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver: slow, and CUDA graphs fail",
    "TORCH_LOGS": "logging takes time while compiling, and in the calls that it logs",
    "TRITON_INTERPRET": "Triton's kernels run on the CPU, interpreted",
    "NVIDIA_TF32_OVERRIDE": "it overrules numerics.tf32 in cuBLAS and cuDNN",
}
OFF = ("", "0", "false", "no", "off")
#: Variables that a trial sets itself.
REPLACED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
MOST_LOAD = 0.5  # share of the usable cores that other work may take
MOST_STOLEN = 0.005  # share of the CPU time since boot that a hypervisor may have given to others
LEAST_AVAILABLE = 4 * 2**30  # a process with torch, CUDA and a compiler's helpers
LEAST_FREE = 2 * 2**30
OLD_CACHE_S = 7 * 86400
SPREAD = "launch-bound cells spread and slow down"
CPUS = "sys/devices/system/cpu"


def examine(server: ForkServer, machine: Machine) -> tuple[list[Finding], Machine]:
    """Run every check; also return the machine with the probe's answer, None if no worker runs.

    `server`: a fork server that may still be starting.
    """
    on_host = run(HOST_CHECKS, machine)  # before the probe is a load
    request = ProbeRequest(modules=[target for target, _ in EXTRA.values()])
    try:
        answer = server.call("probe", request.to_json(), PROBE_TIMEOUT_S)
    except WorkerError as error:
        why = problem(str(error), "nothing can be measured", "python -c 'import torch' shows why")
        return [replace(why, area="software"), *on_host, *run(STORAGE_CHECKS, machine)], machine
    machine = replace(machine, answer=answer)
    findings = [*run(WORKER_CHECKS, machine), *on_host, *run(STORAGE_CHECKS, machine), *run(LAST_CHECKS, machine)]
    return findings, machine


def run(checks: tuple[tuple[str, Any], ...], machine: Machine) -> list[Finding]:
    return [replace(finding, area=area) for area, check in checks for finding in check(machine)]


def packages(machine: Machine) -> Iterator[Finding]:
    environment, installed = machine.answer["environment"], machine.answer["details"]["packages"]
    cuda = f"CUDA {environment['cuda_version']}" if environment["cuda_version"] else "no CUDA"
    triton = environment["triton_version"] or "none"
    yield good(f"torch {environment['torch_version']}, {cuda}, Triton {triton}, Python {environment['python']}")
    for package, (target, models) in EXTRA.items():
        if package not in installed:
            yield note(f"{package} is not installed", f"no {models}", 'pip install "effbench[models]"')
        elif error := next((error for error in machine.answer["errors"] if target in error), None):
            unfit = "torchvision" if "torchvision::" in error else package  # which transformers imports too
            yield warning(
                f"{package} {installed[package]} does not load with torch {environment['torch_version']}: "
                + error.partition(": ")[2],
                f"{models} cannot be built",
                f"install the release of {unfit} that fits this torch, from the same package index as torch",
            )


def compilers(machine: Machine) -> Iterator[Finding]:
    found, environ = machine.answer["details"]["compilers"], machine.environ
    on_gpu = bool(machine.answer["gpus"])
    missing = []
    if not found["g++"] and not environ.get("CXX"):
        missing.append(warning("no C++ compiler (g++)", f"{UNCOMPILED} on the CPU", "apt-get install g++"))
    if on_gpu and not (found["gcc"] or found["clang"] or environ.get("CC")):
        missing.append(warning("no C compiler", f"{UNCOMPILED} on CUDA", "apt-get install gcc"))
    if on_gpu and not machine.answer["environment"]["triton_version"]:
        missing.append(warning("no Triton", f"{UNCOMPILED} on CUDA", "pip install triton"))
    names = [name for name, exists in found.items() if exists]
    names += [f"{name}={value}" for name in ("CC", "CXX") if (value := environ.get(name))]
    yield from missing or [good(f"compilers: {', '.join(names)}")]


def variables(machine: Machine) -> Iterator[Finding]:
    """Environment variables that change how torch runs."""
    environ = machine.environ
    spoiling = {name: environ[name] for name in SPOILS if name in environ}
    for name, value in (machine.answer["environment"]["flags"] | spoiling).items():
        if name in SPOILS and value.lower() not in OFF:
            yield warning(f"{name}={value} is set", SPOILS[name], f"unset {name}")
        else:
            yield note(
                f"{name}={value} is set", "it belongs to the environment: results compare only with the same value"
            )
    for name in REPLACED:
        if value := environ.get(name):
            yield note(f"{name}={value} is set", "no effect: each cell has its own compile cache", f"unset {name}")
    if value := environ.get("LD_PRELOAD"):
        yield note(
            f"LD_PRELOAD={value} is set", "another allocator or OpenMP changes launch-bound cells without a record"
        )


# --- the host ---


def text(path: Path) -> str:
    """Return the file without its last newline, empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def numbers(path: Path) -> dict[str, int]:
    """Return the number of each line such as `MemFree:  22821632 kB` or `nr_throttled 3` by its name."""
    found = {}
    for line in text(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2:
            with contextlib.suppress(ValueError):
                found[words[0]] = int(words[1])
    return found


def cgroups(root: Path) -> list[Path]:
    """Return the folders of this process's control groups (version 2), outermost first."""
    mount = root / "sys/fs/cgroup"
    lines = text(root / "proc/self/cgroup").splitlines()
    group = mount / next((line[3:] for line in lines if line.startswith("0::")), "").strip("/")
    # a container may see only its own group, mounted as the first
    return [folder for folder in (*reversed(group.parents), group) if folder.is_relative_to(mount) and folder.is_dir()]


def quota(root: Path) -> float | None:
    """Return how many cores the control groups allow, None without a limit."""
    limits = (text(group / "cpu.max").partition(" ") for group in cgroups(root))
    return min((int(allowed) / int(period) for allowed, _, period in limits if allowed.isdigit()), default=None)


def load(machine: Machine) -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0))
    available = min(usable, quota(machine.root) or usable)
    now = float((text(machine.root / "proc/loadavg") or "0").split()[0])
    what = f"CPU load {now:.1f} (mean of a minute) on {available:g} usable {'core' if available == 1 else 'cores'}"
    yield warning(what, SPREAD, "wait for other work to end") if now > MOST_LOAD * available else good(what)


def cores(machine: Machine) -> Iterator[Finding]:
    """The part of the machine that this process may use: affinity and quota."""
    root, usable = machine.root, os.sched_getaffinity(0)
    online = text(root / CPUS / "online")
    present = parse_cores(online) if online else usable
    if len(usable) < len(present):
        yield note(
            f"{len(usable)} of {len(present)} cores may be used (CPU affinity)",
            "figures compare with others on as many cores; work on the rest still shares caches and power",
        )
    if len(usable) == 1:
        what, fix = "one usable core", "allow at least two (taskset, the VM)"
        yield warning(what, "a trial shares it with the sweep that watches it", fix)
    allowed = quota(root)
    if allowed is not None and allowed < len(usable):
        exhausted = max((numbers(group / "cpu.stat").get("nr_throttled", 0) for group in cgroups(root)), default=0)
        yield warning(
            f"a quota of {allowed:g} cores on {len(usable)} (cgroup)"
            + (f", exhausted {counted(exhausted, 'time')} so far" if exhausted else ""),
            "torch starts a thread for each core, and all stop for some 0.1 s when the quota is used up",
            "raise the quota, or give whole cores (--cpuset-cpus); or sweep with env.OMP_NUM_THREADS",
        )


def governor(machine: Machine) -> Iterator[Finding]:
    files = (machine.root / CPUS / f"cpu{cpu}/cpufreq/scaling_governor" for cpu in os.sched_getaffinity(0))
    names = {name for file in files if (name := text(file))}
    if not names:
        yield note("the CPU's frequency governor cannot be read", "launch-bound cells follow a clock that is unknown")
    elif names == {"performance"}:
        yield good("CPU frequency governor performance")
    else:
        yield warning(
            f"CPU frequency governor {', '.join(sorted(names))}",
            "launch-bound cells follow the clock of the moment",
            "an administrator: cpupower frequency-set -g performance",
        )


def virtual_machine(machine: Machine) -> Iterator[Finding]:
    lines = text(machine.root / "proc/cpuinfo").splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    if "hypervisor" not in flags:
        return
    yield note(
        "a virtual machine (hypervisor flag)",
        "others may use the same cores: launch-bound cells spread more from process to process",
        "judge them by gpu_busy and kernels, or with more rounds; effbench doctor --calibrate measures the spread",
    )
    lines = text(machine.root / "proc/stat").splitlines()
    line = next((line for line in lines if line.startswith("cpu ")), "cpu")
    times = [int(word) for word in line.split()[1:9]]  # user nice system idle iowait irq softirq steal
    if len(times) == 8 and sum(times) and times[7] > MOST_STOLEN * sum(times):
        stolen = f"the hypervisor gave {100 * times[7] / sum(times):.1f} % of the CPU time since boot to others (steal)"
        yield warning(stolen, SPREAD, "a machine with dedicated cores")


def memory(machine: Machine) -> Iterator[Finding]:
    """Available memory, or what the control group leaves, if less."""
    kib = numbers(machine.root / "proc/meminfo").get("MemAvailable")
    left = [bytes_left for group in cgroups(machine.root) if (bytes_left := room_in(group)) is not None]
    free = min([*left, *([kib * 1024] if kib is not None else [])], default=None)
    if free is None:
        yield note("free memory cannot be read", "trials may end as oom (host memory ran out)")
        return
    limited = kib is None or free < kib * 1024
    what = f"{format_bytes(free)} of memory available" + (" (the control group's limit)" if limited else "")
    if free < LEAST_AVAILABLE:
        effect = "trials may end as oom (host memory ran out), or wait for swap"
        yield warning(what, effect, "end what needs the memory")
    else:
        yield good(what)


def room_in(group: Path) -> int | None:
    """Return the bytes that the control group may still take, inactive file cache included; None without a limit."""
    limit, now = text(group / "memory.max"), text(group / "memory.current")
    if not (limit.isdigit() and now.isdigit()):
        return None
    return int(limit) - int(now) + numbers(group / "memory.stat").get("inactive_file", 0)


def disk_space(machine: Machine) -> Iterator[Finding]:
    folders = {"compile caches": cache_folder(None)}
    if (file := database_file(machine.db)) is not None:
        folders["the database"] = file.parent
    for what, folder in folders.items():
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if exists(path))
        free = shutil.disk_usage(existing).free
        if not (existing.is_dir() and os.access(existing, os.W_OK)):
            fix = "another folder, or chmod"
            yield problem(f"no folder can be made in {existing} for {what}", "no sweep can run", fix)
        elif free < LEAST_FREE:
            yield warning(
                f"{format_bytes(free)} free for {what} ({folder})",
                "a sweep may run out of room",
                "free some, or another folder (executor.cache_dir=, db=)",
            )
        else:
            yield good(f"{format_bytes(free)} free for {what} ({folder})")


def database_file(db: str) -> Path | None:
    """Return the file of a SQLite database, None for a server's database or a wrong URL."""
    try:
        url = parse_url(db)
    except StoreError:  # `database` reports it
        return None
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # below a folder that may not be read
        return False


def database(machine: Machine) -> Iterator[Finding]:
    file = database_file(machine.db)
    if file is not None and not exists(file):
        yield note(f"no database at {machine.db} yet", "the first sweep makes it")
        return
    try:
        with Store.open(machine.db, mode="read") as store:
            yield good(f"database {store.name}: {counted(len(store.sweeps()), 'sweep')}, schema up to date")
    except StoreError as error:
        what, _, fix = str(error).partition("\n")
        fix = fix or ("" if isinstance(error, SchemaError) else "another --db")
        yield problem(what, "nothing can be read there, and no sweep recorded", fix)
        return
    if file is not None and not os.access(file, os.W_OK):
        yield problem(f"{file} is read-only", "no sweep can be recorded in it", "chmod, or another --db")


def compile_caches(machine: Machine) -> Iterator[Finding]:
    """Cache folders that no sweep has written to for days. Each is named after its sweep."""
    old, size = [], 0
    for folder in sorted(cache_folder(None).glob("*")):
        with contextlib.suppress(OSError):  # gone meanwhile
            files = [file.lstat() for file in (folder, *folder.rglob("*"))]
            if time.time() - max(file.st_mtime for file in files) > OLD_CACHE_S:
                old.append(folder)
                size += sum(file.st_size for file in files if stat.S_ISREG(file.st_mode))
    if old:
        names = " ".join(map(str, old[:3])) + (" …" if len(old) > 3 else "")
        yield note(
            f"compile caches of {counted(len(old), 'sweep')} unused for a week: {format_bytes(size)}",
            "they take room on the disk; a sweep that is resumed without its cache compiles again",
            f"rm -r {names}",
        )


#: (area, check); a check takes the Machine and yields findings.
WORKER_CHECKS = (
    ("software", packages),
    ("software", compilers),
    ("software", variables),
    ("GPU", gpu.visible),
    ("GPU", gpu.driver),
    ("GPU", gpu.exclusive),
    ("GPU", gpu.processes),
    ("GPU", gpu.clocks),
    ("GPU", gpu.power),
    ("GPU", gpu.memory_errors),
)
HOST_CHECKS = (
    ("CPU", load),
    ("CPU", cores),
    ("CPU", governor),
    ("CPU", virtual_machine),
    ("memory", memory),
)
STORAGE_CHECKS = (("storage", disk_space), ("storage", database), ("storage", compile_caches))
LAST_CHECKS = (("calibration", calibration.stored),)
