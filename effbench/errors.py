"""Everything effbench raises on purpose. Messages are one or two lines: what is wrong, what is allowed, what to do."""

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
    """A model, a mode or a behaviour check cannot run on this machine; its trial is `unsupported` for this reason."""


class NothingFoundError(EffbenchError):
    """The database holds nothing that answers the question."""

    exit_code = 3


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of `known` that `word` most likely means, None if none is similar.

    Swapped letters count as nearer than a missing one. `cutoff`: least similarity, from 0 to 1.
    """
    near = difflib.get_close_matches(word, known, n=5, cutoff=cutoff)
    return min(near, key=lambda name: sorted(name) != sorted(word), default=None)
