"""The CPU: launch-bound cells are measured on it, whatever the GPU."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from effbench.doctor.files import ROOT, cgroups, cpu_list, fields, number, text
from effbench.doctor.finding import Finding, counted, good, note, warning

#: Share of the usable cores that other work may take.
MOST_LOAD = 0.5
#: Share of the CPU time since boot that a hypervisor may have given to others.
MOST_STOLEN = 0.005
SPREAD = "launch-bound cells spread and slow down"
CPUS = "sys/devices/system/cpu"


def findings(root: Path = ROOT) -> Iterator[Finding]:
    usable = os.sched_getaffinity(0)
    for look in (load, cores, governor, turbo, siblings, nodes):
        yield from look(root, usable)
    yield from virtual(root)


def quota(root: Path) -> float | None:
    """Cores that the control groups allow, the least of all; None where nothing is limited."""
    least = None
    for group in cgroups(root, "cpu"):
        allowed, _, period = (text(group / "cpu.max") or "").partition(" ")
        if not allowed:  # version 1
            allowed, period = text(group / "cpu.cfs_quota_us") or "", text(group / "cpu.cfs_period_us") or ""
        if allowed.isdigit() and period.isdigit() and int(period):
            share = int(allowed) / int(period)
            least = share if least is None else min(least, share)
    return least


def load(root: Path, usable: Collection[int]) -> Iterator[Finding]:
    share = quota(root)
    available = min(len(usable), share or len(usable))
    now = float((text(root / "proc/loadavg") or "0").split()[0])
    what = f"CPU load {now:.1f} (mean of a minute) on {available:g} usable {'core' if available == 1 else 'cores'}"
    if now > MOST_LOAD * available:
        yield warning(what, SPREAD, "wait for other work to end")
    else:
        yield good(what)


def cores(root: Path, usable: Collection[int]) -> Iterator[Finding]:
    """What this process may use of the machine: affinity and quota."""
    present = cpu_list(text(root / CPUS / "online")) or set(usable)
    if len(usable) < len(present):
        yield note(
            f"{len(usable)} of {len(present)} cores may be used (CPU affinity)",
            "figures compare with others on as many cores; work on the rest still shares caches and power",
        )
    if len(usable) == 1:
        yield warning(
            "one usable core",
            "a trial shares it with the sweep that watches it",
            "allow at least two (taskset, the VM)",
        )
    share = quota(root)
    if share is not None and share < len(usable):
        throttled = max(
            (fields(group / "cpu.stat").get("nr_throttled", 0) for group in cgroups(root, "cpu")), default=0
        )
        yield warning(
            f"a quota of {share:g} cores on {len(usable)} (cgroup)"
            + (f", exhausted {counted(throttled, 'time')} so far" if throttled else ""),
            "torch starts a thread for each core, and all stop for some 0.1 s when the quota is used up",
            "raise the quota, or give whole cores (--cpuset-cpus); or sweep with env.OMP_NUM_THREADS",
        )


def governor(root: Path, usable: Collection[int]) -> Iterator[Finding]:
    names = {text(root / CPUS / f"cpu{cpu}/cpufreq/scaling_governor") for cpu in usable} - {None}
    if not names:
        yield note("the CPU's frequency governor cannot be read", "launch-bound cells follow a clock that is unknown")
    elif names == {"performance"}:
        yield good("CPU frequency governor performance")
    else:
        yield warning(
            f"CPU frequency governor {', '.join(sorted(map(str, names)))}",
            "launch-bound cells follow the clock of the moment",
            "an administrator: cpupower frequency-set -g performance",
        )


def turbo(root: Path, usable: Collection[int]) -> Iterator[Finding]:
    boost, no_turbo = number(root / CPUS / "cpufreq/boost"), number(root / CPUS / "intel_pstate/no_turbo")
    if boost is None and no_turbo is None:
        return
    if boost == 1 or no_turbo == 0:
        file, value = ("intel_pstate/no_turbo", 1) if no_turbo == 0 else ("cpufreq/boost", 0)
        yield note(
            "CPU turbo is on",
            "the clock falls as more cores work and as they heat up: launch-bound cells spread more",
            f"for steadier, slower figures an administrator: echo {value} > /{CPUS}/{file}",
        )
    else:
        yield good("CPU turbo is off")


def siblings(root: Path, usable: Collection[int]) -> Iterator[Finding]:
    """Hardware threads that share a core."""
    groups = [cpu_list(text(root / CPUS / f"cpu{cpu}/topology/thread_siblings_list")) for cpu in usable]
    most = max((len(group) for group in groups), default=0)
    if most > 1:
        yield note(
            f"{most} hardware threads share a core",
            "a neighbour on the same core slows a launch-bound trial by half or more",
            "keep the machine free of other work; an administrator: echo off > /sys/devices/system/cpu/smt/control",
        )
    elif most == 1:
        yield good("one hardware thread per core")


def nodes(root: Path, usable: Collection[int]) -> Iterator[Finding]:
    folder = root / "sys/devices/system/node"
    used = [path.name for path in folder.glob("node[0-9]*") if cpu_list(text(path / "cpulist")) & set(usable)]
    if len(used) > 1:
        yield note(
            f"{len(used)} NUMA nodes",
            "a trial on another node than its GPU is slower; where the kernel names the GPU's cores, trials stay there",
            "else executor.cores=… with the cores near the GPU (nvidia-smi topo -m)",
        )


def virtual(root: Path) -> Iterator[Finding]:
    info = text(root / "proc/cpuinfo") or ""
    flags = next((line.split() for line in info.splitlines() if line.startswith("flags")), [])
    if "hypervisor" not in flags:
        if flags:
            yield good("no virtual machine")
        return
    yield note(
        "a virtual machine (hypervisor flag)",
        "others may use the same cores: launch-bound cells spread more from process to process",
        "judge them by gpu_busy and kernels, or with more rounds; effbench doctor --calibrate measures the spread",
    )
    line = next((line for line in (text(root / "proc/stat") or "").splitlines() if line.startswith("cpu ")), "cpu")
    times = [int(word) for word in line.split()[1:9]]  # user nice system idle iowait irq softirq steal
    if len(times) == 8 and sum(times) and times[7] > MOST_STOLEN * sum(times):
        yield warning(
            f"the hypervisor gave {100 * times[7] / sum(times):.1f} % of the CPU time since boot to others (steal)",
            SPREAD,
            "a machine with dedicated cores",
        )
