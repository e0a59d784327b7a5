"""Run functions in forks of this process, and measure the memory of a whole process tree."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from effbench.claims.checks import attempt, error_facts

#: Seconds between two samples of a tree's memory.
PAUSE_S = 0.1


def in_fork(function: Callable[[], Any]) -> Any:
    """Return the function's result, as JSON, from a fork of this process. Raises RuntimeError if
    the fork dies."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(reader)
        faulthandler.enable()  # a crash shows where in the log
        tried = attempt(function)
        with os.fdopen(writer, "w") as answer:
            json.dump([tried.value, error_facts(tried.raised)], answer)
        sys.stderr.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if not text:
        raise RuntimeError(
            f"a forked process ended with status {os.waitstatus_to_exitcode(status)}"
        )
    value, error = json.loads(text)
    if value is None:
        raise RuntimeError(f"{error['error_type']} in a forked process: {error['error']}")
    return value


@contextmanager
def tree_memory() -> Iterator[dict[str, int]]:
    """Sample the memory of this process and its descendants in this context: `peak_bytes`, the
    largest sum of their proportional set sizes (shared pages count once); `processes`, the most at
    once. Compile workers are descendants."""
    peaks = {"peak_bytes": 0, "processes": 0}
    done = threading.Event()

    def sample() -> None:
        while True:
            tree = descendants(os.getpid())
            peaks["peak_bytes"] = max(peaks["peak_bytes"], sum(map(proportional_bytes, tree)))
            peaks["processes"] = max(peaks["processes"], len(tree))
            if done.wait(PAUSE_S):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def descendants(root: int) -> list[int]:
    """Return this process and its descendants."""
    tree, remaining = [], [root]
    while remaining:
        pid = remaining.pop()
        tree.append(pid)
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # the process or thread has ended
                remaining += map(int, path.read_text().split())
    return tree


def proportional_bytes(pid: int) -> int:
    """Return the proportional set size of a process; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0
