"""Find and kill process trees on Linux through /proc, and make processes end with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

GONE_POLL_S = 0.02
#: A tree of processes is killed until there are none, because it may grow meanwhile.
MOST_PASSES = 5
#: The times of a process in its statistics: of itself, and of its children that have ended.
CPU_TIMES = slice(11, 15)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends; exit immediately if it has already
    ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the new parent of its orphaned descendants, so that it can kill them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prefer_as_oom_victim() -> None:
    """Make the kernel kill this process, and not the sweep, if host memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def oom_kills() -> int:
    """Return how many processes the kernel has killed since boot because memory ran out (0 if
    unknown)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGKILL`; `signal 63` for a real-time signal."""
    if number in set(signal.Signals):
        return signal.Signals(number).name
    return f"signal {number}"


def statistics_of(pid: int) -> list[str]:
    """Return the fields of a process's statistics from its state on. Raises OSError once it is
    gone."""
    # the command's name is in parentheses and may contain any character: split after the last
    # parenthesis
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def state_of(pid: int) -> str | None:
    """Return the letter of a process's state, such as `T` if it was stopped and `Z` if it has
    ended; None once it is gone."""
    try:
        return statistics_of(pid)[0]
    except (OSError, IndexError):
        return None


def cpu_s() -> float:
    """Return for how long this process and its descendants have used cores so far."""
    used = os.times()
    seconds = used.user + used.system + used.children_user + used.children_system
    ticks = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended
            ticks += sum(map(int, statistics_of(pid)[CPU_TIMES]))
    return seconds + ticks / os.sysconf("SC_CLK_TCK")


def process_table() -> dict[int, tuple[int, int]]:
    """Return pid -> (parent's pid, session id) of every running process that can be read."""
    table = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = statistics_of(int(entry.name))
            if fields[0] != "Z":
                table[int(entry.name)] = (int(fields[1]), int(fields[3]))
    return table


def descendants(root: int) -> set[int]:
    """Return all descendants of `root` and all processes in its session, without `root` and this
    process."""
    table = process_table()
    tree = {root} | {pid for pid, (_, session) in table.items() if session == root}
    more = tree
    while more:
        more = {pid for pid, (parent, _) in table.items() if parent in tree} - tree
        tree |= more
    return tree - {root, os.getpid()}


def wait_until_gone(pid: int, timeout_s: float) -> None:
    """Wait until the process has ended, for at most `timeout_s`. It need not be a child of this
    process."""
    deadline = time.monotonic() + timeout_s
    while state_of(pid) not in (None, "Z") and time.monotonic() < deadline:
        time.sleep(GONE_POLL_S)


def is_stopped(pid: int) -> bool:
    """Return whether the process was stopped by a signal or a debugger, and has not continued."""
    return state_of(pid) in ("T", "t")


def environment_of(pid: int, name: str) -> str | None:
    """Return the value of a variable in the initial environment of process `pid`, or None."""
    with contextlib.suppress(OSError):
        for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            key, _, value = item.partition(b"=")
            if key == name.encode():
                return value.decode(errors="replace")
    return None


def siblings(pids: set[int]) -> set[int]:
    """Return which of these processes are trials of the same sweep: they have the same grandparent
    as this process."""
    table = process_table()
    sweep = table.get(os.getppid(), (None, 0))[0]
    return {pid for pid in pids if pid in table and table.get(table[pid][0], (0, 0))[0] == sweep}


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to those of these processes that exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_descendants(root: int) -> None:
    """Kill the descendants of `root` and its session, but not `root`."""
    for _ in range(MOST_PASSES):
        pids = descendants(root)
        if not pids:
            return
        kill(pids)


def kill_tree(root: int) -> None:
    """Kill `root`, its descendants and its session."""
    kill([root])
    kill_descendants(root)


def kill_marked(session: int | None, name: str, value: str) -> None:
    """Kill the processes of a session, and all processes with this variable in their
    environment."""
    for _ in range(MOST_PASSES):
        table = process_table()
        pids = {pid for pid, (_, sid) in table.items() if sid == session}
        pids |= {pid for pid in table if environment_of(pid, name) == value}
        if not pids:
            return
        kill(pids)
