"""Work that is split among processes which share what is in memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

MOST = 4


def processes() -> int:
    """How many are worth it here: one where a process cannot share what is in memory."""
    return min(MOST, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage in cycles meanwhile: with some million values in memory each search takes long and finds
    next to nothing, an eighth of the time of a large site."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def started(parts: int, work: Callable[[int], Any]) -> Iterator[Callable[[], list[Any]]]:
    """Begins `work(part)` for each part, each in a process of its own, and gives what waits for them: it returns what
    `work` gave, in the order of the parts.

    What it gives is pickled. The waiting raises the first exception; RuntimeError for a process that was killed. What
    still runs at the end is stopped.
    """
    context = multiprocessing.get_context("fork")
    gc.freeze()  # a collection in a child would copy the pages of all that it looks at
    running: list[tuple[Any, Connection]] = []
    answers: list[Any] = []

    def wait() -> list[Any]:
        for process, pipe in running[len(answers) :]:
            answers.append(_answer(process, pipe))
        return answers

    try:
        for part in range(parts):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, part, theirs), daemon=True)
            process.start()
            theirs.close()
            running.append((process, ours))
        yield wait
    finally:
        for process, _ in running[len(answers) :]:
            process.terminate()
        for process, pipe in running:
            pipe.close()
            process.join()
        gc.unfreeze()


def in_parts(parts: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(part)` gives for each part, in their order, each in a process of its own; raises as `started`."""
    with started(parts, work) as wait:
        return wait()


def _run(work: Callable[[int], Any], part: int, pipe: Connection) -> None:
    # a process that is stopped ends as from an exception, which removes the file it was writing
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
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
