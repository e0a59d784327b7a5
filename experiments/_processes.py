"""Run functions in forks of this process or in new interpreters, and measure the memory of a whole
process tree.

`python -m effbench.claims._processes` is the other end of `in_fresh_process`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: Runs `main` in a new interpreter, whose search path the fork server has set.
COMMAND = (sys.executable, "-P", "-m", "effbench.claims._processes")
#: Seconds between two samples of a tree's memory.
PAUSE_S = 0.1


def in_fork(function: Callable[[], Any]) -> Any:
    """Return the function's result, as JSON, from a fork of this process. Raises RuntimeError if
    the fork dies."""
    # not above: a new interpreter hides packages before it imports torch
    from effbench.claims._tools import attempt, error_facts

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


def in_fresh_process(
    function: Callable[..., dict[str, Any]],
    device: Any,
    hide: Sequence[str] = (),
    timeout_s: float = 180.0,
    **settings: Any,
) -> dict[str, Any]:
    """Call a function of an experiment's file in a new interpreter that does not find the packages
    `hide`: for actions that are possible only once per process, or that break it.

    Return `{"succeeded", "error_type", "error"}` and its facts; if the interpreter dies or hangs,
    it did not succeed.
    """
    file = function.__code__.co_filename
    order = json.dumps([file, function.__name__, str(device), list(hide), settings])
    try:
        done = subprocess.run(
            COMMAND, input=order, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return failed("timeout", f"not done after {timeout_s:g} s")
    if done.stdout:
        return json.loads(done.stdout)
    died = f"exited with code {done.returncode}"
    if done.returncode < 0:
        died = f"killed by {signal.Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines() or ["no message"]
    return failed(died, lines[-1])


def failed(error_type: str, error: str) -> dict[str, Any]:
    return {"succeeded": False, "error_type": error_type, "error": error}


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # printed text must not mix with the answer
    file, name, device, hide, settings = json.load(sys.stdin)
    sys.modules.update(dict.fromkeys(hide))  # None makes the import fail
    import torch
    from effbench.claims._tools import attempt

    from effbench.core.python_files import module_of

    torch.manual_seed(0)
    function = getattr(module_of(Path(file)), name)
    done = attempt(function, torch.device(device), **settings)
    answer.write(json.dumps({**done.facts(), **(done.value or {})}))
    answer.flush()
    sys.stderr.flush()
    os._exit(0)  # a CUDA context that a failed capture left behind may block a normal exit


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


if __name__ == "__main__":
    main()
