"""How a trial ends early, and what exceptions mean for that."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from effbench.core.cell import Status
from effbench.core.errors import EffbenchError
from effbench.core.printable import describe, text_of
from effbench.measure.gradients import GRAD, NO_GRAD, recording

OOM_TEXTS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",
)


class Ended(Exception):
    """End a trial early with this status and reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the exception itself, regardless of its causes, says that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = text_of(error).lower()
    return any(known in text for known in OOM_TEXTS)


def is_caused_by_memory(error: BaseException) -> bool:
    """Return whether the exception or a cause of it says that memory ran out."""
    return any(map(is_out_of_memory, chain(error)))


def without_float64(doubt: str, error: Exception) -> str:
    """Return the reason of a result that only float64 could have cleared of a `doubt`, but its
    computation failed.

    Raises Ended if memory ran out: other trials may have used it, so this says nothing about the
    result.
    """
    reason = f"{doubt}; no float64 reference ({describe(error)})"
    if is_caused_by_memory(error):
        raise Ended(Status.OOM, reason) from error
    return reason


class GradientAttempts:
    """Attempts at a call: without gradients and, if that fails, with them. Iterate over their
    contexts, and make the call in each. `reason`: why it failed without gradients, or None."""

    reason: str | None = None

    def __iter__(self) -> Iterator[AbstractContextManager[None]]:
        yield self.without_gradients()
        if self.reason is not None:
            yield recording(GRAD)

    @contextmanager
    def without_gradients(self) -> Iterator[None]:
        """Suppress the errors of a call, except for those that gradients cannot avoid."""
        try:
            with recording(NO_GRAD):
                yield
        except Exception as error:  # a module may raise anything without its gradients
            if isinstance(error, EffbenchError | Ended) or is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold tensors
            self.reason = f"{NO_GRAD}: {describe(error)}"
