"""Process trees on Linux through /proc: find them, end them, keep them from outliving their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exits at once if the parent is gone already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the new parent of its orphaned descendants, so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prefer_as_oom_victim() -> None:
    """When host memory runs out, let the kernel end this process and not the sweep."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def oom_kills() -> int:
    """How many processes the kernel has ended for want of memory since boot (0 where it does not say)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def process_table() -> dict[int, tuple[int, int]]:
    """pid -> (parent's pid, session id) of every process that can be read."""
    table = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # the command's name is in parentheses and may hold anything: split after the last one
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                table[int(entry.name)] = (int(fields[1]), int(fields[3]))
    return table


def descendants(root: int, table: dict[int, tuple[int, int]] | None = None) -> set[int]:
    """All processes below `root`, and those in its session, without `root` itself."""
    table = process_table() if table is None else table
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found = {pid for pid, (_, session) in table.items() if session == root}
    queue = [root, *found]
    while queue:
        for child in children.get(queue.pop(), []):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found - {root, os.getpid()}


def environment_of(pid: int, name: str) -> str | None:
    """The value of a variable in the environment that process `pid` was started with."""
    with contextlib.suppress(OSError):
        for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            key, _, value = item.partition(b"=")
            if key == name.encode():
                return value.decode(errors="replace")
    return None


def kill(pids: set[int]) -> None:
    """SIGKILL; processes that are gone already do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_tree(root: int) -> None:
    """End `root` and everything below it."""
    kill({root})
    kill_below(root)


def kill_below(root: int) -> None:
    """End everything below `root`, repeated until nothing new turns up."""
    for _ in range(5):
        rest = descendants(root)
        if not rest:
            return
        kill(rest)
