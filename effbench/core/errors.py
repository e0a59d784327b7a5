"""Errors that effbench raises on purpose, in one or two lines: what is wrong, what is allowed, what
to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Other common names of settings, values and metrics, for which the most similar one is another.
SYNONYMS = {
    "batch": "bs",
    "batch_size": "bs",
    "batchsize": "bs",
    "compile_s": "compile_cold_s",
    "quantization": "numerics.quantize",
    "gpu": "cuda",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
}
#: Exit code after Ctrl-C.
INTERRUPTED = 130


class EffbenchError(Exception):
    """Base class of errors that effbench raises on purpose; they are printed without a
    traceback."""

    exit_code = 2


class UsageError(EffbenchError):
    """The command line names something unknown, or its parts contradict each other."""


class ConfigError(UsageError):
    """An override, a configuration group or a value is not allowed."""


class InterpreterError(ConfigError):
    """The interpreter of `python=` cannot run trials; the message names it."""


class ResumeError(UsageError):
    """The sweep to resume does not exist, or its plan differs from the requested one."""


class StoreError(EffbenchError):
    """The database cannot be opened, read or written."""


class SchemaError(StoreError):
    """The schema of the database does not match this version of effbench."""


class WorkerError(EffbenchError):
    """The fork server did not start, or sent an invalid message."""


class UnsupportedError(EffbenchError):
    """A model, mode or behaviour check cannot run on this machine. The message becomes the reason
    for `unsupported`."""


class NothingFoundError(EffbenchError):
    """The database has no data for the request."""

    exit_code = 3


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the entry of `known` that is most similar to `word`, or None if no entry is similar
    enough."""
    known = list(known)
    if SYNONYMS.get(word) in known:
        return SYNONYMS[word]
    near = difflib.get_close_matches(word, known, n=1)
    return near[0] if near else None


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean eager?` with the most similar entry of `known`; empty if no entry is
    similar enough."""
    near = nearest(word, known)
    return f": did you mean {near}?" if near else ""
