"""The host's memory and swap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from effbench.doctor.files import ROOT, cgroups, fields, number
from effbench.doctor.finding import Finding, good, note, warning
from effbench.metrics import format_bytes

LEAST_AVAILABLE = 4 * 2**30  # a process with torch, CUDA and a compiler's helpers
LEAST_SWAPPED = 64 * 2**20


def findings(root: Path = ROOT) -> Iterator[Finding]:
    info = {name: kib * 1024 for name, kib in fields(root / "proc/meminfo").items()}
    yield from available(root, info)
    swapped = info.get("SwapTotal", 0) - info.get("SwapFree", 0)
    if swapped > LEAST_SWAPPED:
        yield note(
            f"{format_bytes(swapped)} of swap are in use",
            "what returns from swap while a trial runs takes milliseconds",
            "end what needs the memory, then an administrator: swapoff -a; swapon -a",
        )
    elif "SwapTotal" in info:
        yield good("swap is not in use" if info["SwapTotal"] else "no swap")


def available(root: Path, info: dict[str, int]) -> Iterator[Finding]:
    """Free memory, or what the control group leaves, if less."""
    free, limit = info.get("MemAvailable"), None
    for group in cgroups(root, "memory"):
        left = left_of(group)
        if left is not None and (free is None or left < free):
            free, limit = left, left
    if free is None:
        yield note("free memory cannot be read", "trials may end as oom (host memory ran out)")
        return
    what = f"{format_bytes(free)} of memory available" + ("" if limit is None else " (the control group's limit)")
    if free < LEAST_AVAILABLE:
        yield warning(
            what, "trials may end as oom (host memory ran out), or wait for swap", "end what needs the memory"
        )
    else:
        yield good(what)


def left_of(group: Path) -> int | None:
    """Bytes that the control group may still take; its inactive file cache can be freed. None without a limit."""
    for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        limit, now = number(group / most), number(group / used)
        if limit is not None and now is not None:
            stat = fields(group / "memory.stat")
            return limit - now + stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return None
