"""The log: what effbench does and waits for. `-v` prints it to stderr, and each sweep writes it to
a file next to its database.

Every module has a logger of its own, `logging.getLogger(__name__)`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path

#: Options that print the log.
VERBOSE = ("-v", "--verbose")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Records of a sweep that has no file yet.
MOST_RECORDS = 10_000
_LOGGER = logging.getLogger("effbench")


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
def collected() -> Iterator[MemoryHandler]:
    """Collect the log of a sweep, for the file that `write` names."""
    log = MemoryHandler(MOST_RECORDS, flushLevel=sys.maxsize)
    with handled(log):
        try:
            yield log
        finally:
            if log.target is not None:
                log.target.close()


def write(log: MemoryHandler, folder: Path, sweep_id: str) -> None:
    """Append the log of a sweep to its file in this folder, from now on as it grows."""
    path = folder / "logs" / f"{sweep_id}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        _LOGGER.warning("the log of the sweep cannot be written: %s", error)
        return
    file.setFormatter(logging.Formatter(FORMAT))
    log.setTarget(file)
    log.flush()
    log.flushLevel = logging.NOTSET  # write each record at once
