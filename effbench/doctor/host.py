"""Checks of the host: CPU, memory, disk space, compile caches, the database."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from effbench.doctor.finding import Finding, Machine, counted, good, note, problem, warning
from effbench.errors import SchemaError, StoreError
from effbench.metrics import format_bytes
from effbench.store.connect import parse_url
from effbench.store.store import Store
from effbench.sweeping.devices import parse_cores
from effbench.sweeping.run import cache_folder

MOST_LOAD = 0.5  # share of the usable cores that other work may take
MOST_STOLEN = 0.005  # share of the CPU time since boot that a hypervisor may have given to others
LEAST_AVAILABLE = 4 * 2**30  # a process with torch, CUDA and a compiler's helpers
LEAST_FREE = 2 * 2**30
OLD_CACHE_S = 7 * 86400
SPREAD = "launch-bound cells spread and slow down"
CPUS = "sys/devices/system/cpu"


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
