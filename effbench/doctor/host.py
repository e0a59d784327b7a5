"""Checks of the host: CPU, memory, disk space, compile caches, the database."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from effbench.doctor.finding import Finding, Machine, counted, good, note, problem, warning
from effbench.errors import SchemaError, StoreError
from effbench.metrics import format_bytes
from effbench.store.connect import parse_url
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.sweeping.conduct import cache_folder
from effbench.sweeping.cores import parse_cores

MOST_LOAD = 0.5  # share of the usable cores that other work may take
MOST_STOLEN = 0.005  # share of the CPU time since boot that a hypervisor may have given to others
LEAST_AVAILABLE = 4 * 2**30  # a process with torch, CUDA and a compiler's helpers
LEAST_FREE = 2 * 2**30
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


def cgroups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's control groups for `controller`, outermost first; both cgroup versions."""
    mount = root / "sys/fs/cgroup"
    found = []
    for line in (text(root / "proc/self/cgroup") or "0::/").splitlines():
        names, _, path = line.partition(":")[2].partition(":")
        if names and controller not in names.split(","):
            continue
        bases = [mount / name for name in (controller, names) if (mount / name).is_dir()] if names else [mount]
        for base in bases[:1]:
            group = base / path.strip("/")  # a container may see only its own group, mounted as the base
            found += [folder for folder in [*reversed(group.parents), group] if folder.is_relative_to(base)]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def quota(root: Path) -> float | None:
    """Return how many cores the control groups allow, None without a limit."""
    allowances = []
    for group in cgroups(root, "cpu"):
        allowed, _, period = text(group / "cpu.max").partition(" ")
        if not allowed:  # version 1
            allowed, period = text(group / "cpu.cfs_quota_us"), text(group / "cpu.cfs_period_us")
        if allowed.isdigit() and period.isdigit() and int(period):
            allowances.append(int(allowed) / int(period))
    return min(allowances, default=None)


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
        exhausted = max(
            (numbers(group / "cpu.stat").get("nr_throttled", 0) for group in cgroups(root, "cpu")), default=0
        )
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
    left = [bytes_left for group in cgroups(machine.root, "memory") if (bytes_left := room_in(group)) is not None]
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
    """Return the bytes that the control group may still take, with its inactive file cache; None without a limit."""
    for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        limit, now = text(group / most), text(group / used)
        if limit.isdigit() and now.isdigit():
            stat = numbers(group / "memory.stat")
            return int(limit) - int(now) + stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return None


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
    """Cache folders of sweeps that are not running. Each is named after its sweep."""
    folder = cache_folder(None)
    found = [path for path in sorted(folder.glob("*")) if path.is_dir()]
    if not found:
        return
    file, known = database_file(machine.db), {}
    if file is None or exists(file):
        with contextlib.suppress(StoreError), Store.open(machine.db, mode="read") as store:
            known = {sweep.id: sweep for sweep in store.sweeps()}
    servers = running_servers(machine.root / "proc")
    left = [path for path in found if not may_run(known.get(path.name), servers)]
    if not left:
        return
    names = " ".join(str(path) for path in left[:3]) + (" …" if len(left) > 3 else "")
    kept = [path.name for path in left if path.name in known and known[path.name].state != "completed"]
    resumable = f"; {', '.join(kept[:3])} can be resumed, and would compile warm" if kept else ""
    size = format_bytes(sum(size_of(path) for path in left))
    yield note(
        f"compile caches of {counted(len(left), 'sweep')} that no longer run: {size} in {folder}",
        "they take room on the disk" + resumable,
        f"rm -r {names}",
    )


def may_run(sweep: SweepInfo | None, servers: int) -> bool:
    """`sweep`: from the database, None for one of another database. `servers`: fork servers on this machine."""
    if sweep is None:
        return servers > 0
    elsewhere = sweep.host.get("hostname") not in (None, socket.gethostname())  # the folder may be shared
    return sweep.state == "running" and (servers > 0 or elsewhere)


def running_servers(proc: Path) -> int:
    """Count effbench's fork servers that are not this process's own: every running sweep has one."""
    count = 0
    for path in proc.glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # gone meanwhile
            continue
        # its forked children have the same command line
        count += b"effbench.worker.server" in words and parent != str(os.getpid())
    return count


def size_of(folder: Path) -> int:
    """Return the bytes of all files in the folder."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                total += (Path(where) / name).lstat().st_size
    return total
