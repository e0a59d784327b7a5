"""The log: what effbench does and waits for. `-v` prints it to stderr, and each sweep writes it to
a file next to its database.

Every module has a logger of its own, `logging.getLogger(__name__)`.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

#: Options that print the log.
VERBOSE = ("-v", "--verbose")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Records that are kept of a sweep that has no file yet.
MOST_RECORDS = 10_000
_LOGGER = logging.getLogger("effbench")


class SweepLog(logging.Handler):
    """Keep the log of a sweep until its file is known, then write it there."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=MOST_RECORDS)
        self.file: logging.FileHandler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.file is None:
            self.records.append(record)
        else:
            self.file.emit(record)

    def open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = logging.FileHandler(path, encoding="utf-8")
        self.file.setFormatter(logging.Formatter(FORMAT))
        while self.records:
            self.file.emit(self.records.popleft())

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        super().close()


_SWEEP: ContextVar[SweepLog | None] = ContextVar("sweep", default=None)


@contextmanager
def handled(handler: logging.Handler) -> Iterator[None]:
    """Send the log to this handler; a program that uses effbench does not see it elsewhere."""
    level, propagates = _LOGGER.level, _LOGGER.propagate
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
        _LOGGER.propagate = propagates
        handler.close()


def without_verbose(argv: Sequence[str]) -> list[str]:
    """Return the words without `-v` and `--verbose`."""
    return [word for word in argv if word not in VERBOSE]


@contextmanager
def printed() -> Iterator[None]:
    """Print the log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    with handled(handler):
        yield


@contextmanager
def collected() -> Iterator[None]:
    """Collect the log of a sweep, for the file that `write_to` names."""
    if _SWEEP.get() is not None:
        yield
        return
    log = SweepLog()
    token = _SWEEP.set(log)
    try:
        with handled(log):
            yield
    finally:
        _SWEEP.reset(token)


def write_to(folder: Path, sweep_id: str) -> None:
    """Append the log of the running sweep to its file in this folder, from now on as it grows."""
    log = _SWEEP.get()
    if log is None or log.file is not None:
        return
    try:
        log.open(folder / "logs" / f"{sweep_id}.log")
    except OSError as error:
        _LOGGER.warning("the log of the sweep cannot be written: %s", error)
