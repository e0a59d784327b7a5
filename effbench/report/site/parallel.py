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
    """Return how many are useful here: one on platforms where a process cannot share what is in memory."""
    return min(MOST, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


@contextmanager
def started(parts: int, work: Callable[[int], Any]) -> Iterator[Callable[[], list[Any]]]:
    """Begin `work(part)` for each part in a process of its own; yield a function that waits for the results, in order.

    Results are pickled. The function raises the first exception, and RuntimeError for a process that was killed. What
    still runs at the end is stopped.
    """
    context = multiprocessing.get_context("fork")
    gc.freeze()  # a collection in a child would copy the pages of all that it looks at
    running: list[tuple[Any, Connection]] = []
    answers: list[Any] = []

    def wait() -> list[Any]:
        for process, pipe in running[len(answers) :]:
            try:
                error, value = pipe.recv()
            except EOFError:
                process.join()
                reason = f"a process that wrote part of the site ended with code {process.exitcode}"
                raise RuntimeError(reason) from None
            if error is not None:
                raise error
            answers.append(value)
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


def _run(work: Callable[[int], Any], part: int, pipe: Connection) -> None:
    # a process that is stopped ends as from an exception, which removes the file it was writing
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        answer = (None, work(part))
    except Exception as error:  # raised again by the one who waits
        answer = (error, None)
    pipe.send(answer)
