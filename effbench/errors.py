"""Everything effbench raises on purpose.

    EffbenchError                exit code 2 unless said otherwise
    ├── UsageError               a command line that cannot be understood
    │   ├── ConfigError          an override, group or value that is not allowed
    │   └── ResumeError          a sweep that cannot be gone on with as asked
    ├── StoreError               a database that cannot be opened, read or written
    │   └── SchemaError          a database of an older or newer schema
    ├── WorkerError              the fork server cannot start or be understood
    ├── UnsupportedError         raised by a model or a mode: it cannot run here, and why
    └── NothingFoundError        exit code 3: no sweep, no result, nothing comparable

A failure *inside* a cell is never an exception here: it becomes that trial's status with a reason. UnsupportedError is
how a module, a mode or a behaviour check says so from inside: its trial is `unsupported`, with the message as reason.
Messages are one or two lines: what was wrong, what is allowed, how to mend it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EffbenchError(Exception):
    """Base of all errors that effbench raises on purpose; printed without a traceback."""

    exit_code = 2


class UsageError(EffbenchError):
    """The command line asks for something that does not exist or does not fit together."""


class ConfigError(UsageError):
    """An override, a configuration group or a value is not allowed."""


class ResumeError(UsageError):
    """The sweep to be resumed does not exist, or its plan differs from the one asked for."""


class StoreError(EffbenchError):
    """The database cannot be opened, read or written."""


class SchemaError(StoreError):
    """The database has another schema than this version of effbench."""


class WorkerError(EffbenchError):
    """The fork server did not start, or said something that is not a message."""


class UnsupportedError(EffbenchError):
    """What is asked for cannot run on this machine; the message says what is missing."""


class NothingFoundError(EffbenchError):
    """The database holds nothing that answers the question."""

    exit_code = 3


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of `known` that `word` most likely means, None if none is similar.

    Swapped letters count as nearer than a missing one. `cutoff`: least similarity, from 0 to 1.
    """
    near = difflib.get_close_matches(word, known, n=5, cutoff=cutoff)
    return min(near, key=lambda name: sorted(name) != sorted(word), default=None)
