"""CPU and memory, from made-up files of the kernel."""

from __future__ import annotations

import os

import pytest

from effbench.doctor import files, memory, processor

CPU = "sys/devices/system/cpu"
CG = "sys/fs/cgroup"
#: The virtual machine with the H200: 16 cores of one thread, one NUMA node, no cpufreq.
VM = {
    "proc/loadavg": "0.31 0.2 0.1 1/200 77",
    "proc/cpuinfo": "model name : Xeon\nflags\t\t: fpu hypervisor avx512f",
    "proc/stat": "cpu  1000 0 500 98500 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1",
    "proc/self/cgroup": "0::/",
    f"{CG}/cpu.max": "max 100000",
    f"{CPU}/online": "0-15",
    "sys/devices/system/node/node0/cpulist": "0-15",
    **{f"{CPU}/cpu{cpu}/topology/thread_siblings_list": str(cpu) for cpu in range(16)},
}


@pytest.fixture
def cpus(monkeypatch):
    """This process may use so many cores."""

    def allow(number):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(number)))

    allow(16)
    return allow


def words(findings):
    return {finding.what: finding for finding in findings}


def attention(findings):
    return [finding.what for finding in findings if finding.needs_attention]


def test_the_virtual_machine(machine, cpus):
    found = words(processor.findings(machine(VM)))
    assert attention(found.values()) == []
    assert list(found) == [
        "CPU load 0.3 (mean of a minute) on 16 usable cores",
        "the CPU's frequency governor cannot be read",
        "one hardware thread per core",
        "a virtual machine (hypervisor flag)",
    ]


def test_nothing_readable(tmp_path, cpus):
    assert attention(processor.findings(tmp_path)) == []
    assert attention(memory.findings(tmp_path)) == []


def test_load(machine, cpus):
    root = machine({**VM, "proc/loadavg": "9.0 1 1 1/2 3"})
    assert attention(processor.findings(root)) == ["CPU load 9.0 (mean of a minute) on 16 usable cores"]
    machine({"proc/loadavg": "7.9 1 1 1/2 3"})
    assert attention(processor.findings(root)) == []
    cpus(8)
    assert attention(processor.load(root, range(8))) == ["CPU load 7.9 (mean of a minute) on 8 usable cores"]


def test_affinity(machine, cpus):
    root = machine(VM)
    assert list(processor.cores(root, range(16))) == []
    assert "4 of 16 cores may be used (CPU affinity)" in words(processor.cores(root, range(4)))
    assert "one usable core" in attention(processor.cores(root, range(1)))


def test_quota_of_version_2(machine, cpus):
    files_of_group = {
        "proc/self/cgroup": "0::/pods/mine",
        f"{CG}/pods/cpu.max": "400000 100000",
        f"{CG}/pods/mine/cpu.max": "max 100000",
        f"{CG}/pods/mine/cpu.stat": "nr_periods 9\nnr_throttled 3",
    }
    root = machine({**VM, **files_of_group})
    assert attention(processor.cores(root, range(16))) == [
        "a quota of 4 cores on 16 (cgroup), exhausted 3 times so far"
    ]
    assert next(processor.cores(root, range(4))).what == "4 of 16 cores may be used (CPU affinity)"
    assert "on 4 usable cores" in next(iter(words(processor.load(root, range(16)))))


def test_quota_of_version_1(machine):
    root = machine(
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n0::/",
            f"{CG}/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            f"{CG}/cpu,cpuacct/cpu.cfs_period_us": "100000",
        }
    )
    assert processor.quota(root) is None
    machine({f"{CG}/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "150000",
             f"{CG}/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000"})  # fmt: skip
    assert processor.quota(root) == 1.5


@pytest.mark.parametrize(
    ("governors", "level"),
    [(["performance", "performance"], "good"), (["performance", "powersave"], "warning"), (["schedutil"], "warning")],
)
def test_governor(machine, governors, level):
    root = machine({f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": name for cpu, name in enumerate(governors)})
    (finding,) = processor.governor(root, range(2))
    assert finding.level == level


@pytest.mark.parametrize(
    ("name", "value", "level", "mend"),
    [
        ("cpufreq/boost", 1, "note", "echo 0 > /sys/devices/system/cpu/cpufreq/boost"),
        ("cpufreq/boost", 0, "good", ""),
        ("intel_pstate/no_turbo", 0, "note", "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo"),
        ("intel_pstate/no_turbo", 1, "good", ""),
    ],
)
def test_turbo(machine, name, value, level, mend):
    (finding,) = processor.turbo(machine({f"{CPU}/{name}": str(value)}), range(2))
    assert finding.level == level
    assert finding.mend.endswith(mend)


def test_hardware_threads(machine):
    root = machine({f"{CPU}/cpu0/topology/thread_siblings_list": "0,16"})
    (finding,) = processor.siblings(root, range(1))
    assert (finding.level, finding.what) == ("note", "2 hardware threads share a core")
    machine({f"{CPU}/cpu0/topology/thread_siblings_list": "0"})
    (finding,) = processor.siblings(root, range(1))
    assert finding.level == "good"


def test_nodes(machine):
    root = machine({f"sys/devices/system/node/node{n}/cpulist": f"{8 * n}-{8 * n + 7}" for n in range(2)})
    assert list(words(processor.nodes(root, range(16)))) == ["2 NUMA nodes"]
    assert list(processor.nodes(root, range(8))) == []


def test_bare_metal_and_stolen_time(machine):
    root = machine({**VM, "proc/cpuinfo": "flags : fpu avx2"})
    assert list(words(processor.virtual(root))) == ["no virtual machine"]
    machine({**VM, "proc/stat": "cpu  1000 0 500 96500 0 0 0 2000 0 0"})
    assert attention(processor.virtual(root)) == [
        "the hypervisor gave 2.0 % of the CPU time since boot to others (steal)"
    ]


MEMORY = {"proc/meminfo": "MemTotal: 131072000 kB\nMemAvailable:  104857600 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB"}


def test_memory(machine):
    root = machine(MEMORY)
    assert list(words(memory.findings(root))) == ["100 GiB of memory available", "no swap"]
    machine({"proc/meminfo": "MemAvailable: 1048576 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB"})
    found = words(memory.findings(root))
    assert [(what, finding.level) for what, finding in found.items()] == [
        ("1.00 GiB of memory available", "warning"),
        ("1.00 GiB of swap are in use", "note"),
    ]
    machine({"proc/meminfo": "MemAvailable: 104857600 kB\nSwapTotal: 2097152 kB\nSwapFree: 2097152 kB"})
    assert "swap is not in use" in words(memory.findings(root))


@pytest.mark.parametrize(
    "group",
    [
        {"proc/self/cgroup": "0::/x", f"{CG}/x/memory.max": str(3 * 2**30), f"{CG}/x/memory.current": str(2**30),
         f"{CG}/x/memory.stat": f"anon 1\ninactive_file {2**29}", f"{CG}/memory.max": "max"},
        {"proc/self/cgroup": "4:memory:/x\n0::/", f"{CG}/memory/x/memory.limit_in_bytes": str(3 * 2**30),
         f"{CG}/memory/x/memory.usage_in_bytes": str(2**30), f"{CG}/memory/memory.limit_in_bytes": str(2**62),
         f"{CG}/memory/memory.usage_in_bytes": "5", f"{CG}/memory/x/memory.stat": f"total_inactive_file {2**29}"},
    ],
    ids=["version 2", "version 1"],
)  # fmt: skip
def test_the_groups_memory_counts(machine, group):
    found = words(memory.findings(machine({**MEMORY, **group})))
    assert found["2.50 GiB of memory available (the control group's limit)"].level == "warning"


def test_lists_of_cpus():
    assert files.cpu_list("0-2,8") == {0, 1, 2, 8}
    assert files.cpu_list(None) == files.cpu_list("") == set()


def test_namespaces(machine, tmp_path):
    assert files.in_first_pid_namespace(tmp_path) is None
    assert files.in_first_pid_namespace(machine({"proc/self/ns/pid@": "pid:[4026531836]"})) is True
    assert files.in_first_pid_namespace(machine({"proc/self/ns/pid@": "pid:[1]"})) is False
