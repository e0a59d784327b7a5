"""Check whether the process that runs a sweep still exists; if it was killed, its sweep is still
`running`."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from effbench.core.processes import statistics_of


def identity() -> dict[str, Any]:
    """Return the facts that identify this process, which a sweep stores as `host["process"]`; None
    for unknown ones."""
    return {
        "hostname": platform.node(),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "namespace": _namespace(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def has_ended(process: Any) -> bool:
    """Return whether the process with this identity (which may be forged) has certainly ended;
    False if that is unknown."""
    return _exists(process) is False


def is_running(process: Any) -> bool:
    """Return whether another process with this identity (which may be forged) certainly exists on
    this machine."""
    return _exists(process) is True and process["pid"] != os.getpid()


def _exists(process: Any) -> bool | None:
    """Return whether the process with this identity exists; None if that is unknown."""
    here = identity()
    if not isinstance(process, dict) or process.get("hostname") != here["hostname"]:
        return None
    if process.get("boot") != here["boot"]:
        return False
    # another container, whose processes are invisible here
    if process.get("namespace") != here["namespace"]:
        return None
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists, and belongs to another user
        pass
    except (KeyError, TypeError, OverflowError):
        return None
    return _started(process["pid"]) in (None, process.get("started"))


def _started(pid: int) -> str | None:
    """Return the start of the process in clock ticks since boot, which tells apart processes that
    reuse a pid."""
    try:
        fields = statistics_of(pid)
    except OSError:
        return None
    if fields[0] == "Z":
        return "ended"
    return fields[19]


def _namespace() -> str | None:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
