"""Work that is split among processes which share what is in memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

MOST = 4


def processes() -> int:
    """How many are worth it here: one where a process cannot share what is in memory."""
    return min(MOST, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


def in_parts(parts: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(part)` gives for each part, in their order, each in a process of its own.

    What it gives is pickled. The first exception is raised here; RuntimeError for a process that was killed.
    """
    context = multiprocessing.get_context("fork")
    gc.freeze()  # a collection in a child would copy the pages of all that it looks at
    started = []
    try:
        for part in range(parts):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, part, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        return [_answer(process, pipe) for process, pipe in started]
    finally:
        for process, pipe in started:
            pipe.close()
            if process.is_alive() and sys.exc_info()[0] is not None:
                process.terminate()
            process.join()
        gc.unfreeze()


def _run(work: Callable[[int], Any], part: int, pipe: Connection) -> None:
    try:
        answer = (True, work(part))
    except Exception as error:  # raised again by the one who waits
        answer = (False, error)
    pipe.send(answer)


def _answer(process: Any, pipe: Connection) -> Any:
    try:
        done, value = pipe.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"a process that wrote part of the site ended with code {process.exitcode}") from None
    if not done:
        raise value
    return value
