"""Make a module's first call: with gradients only if it fails without them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from effbench.core.errors import EffbenchError
from effbench.core.printable import describe
from effbench.measure.gradients import GRAD, NO_GRAD, recording
from effbench.workloads.endings import Ended, is_out_of_memory

R = TypeVar("R")


@dataclass(frozen=True)
class Success(Generic[R]):
    """The mode in which a call succeeded, and its result. `reason`: why it fails without
    gradients, or None."""

    mode: str
    result: R
    reason: str | None = None


def first_success(call: Callable[[], R]) -> Success[R]:
    """Make a call without gradients or, if that fails, with them. Errors that gradients cannot
    avoid are raised at once."""
    try:
        with recording(NO_GRAD):
            return Success(NO_GRAD, call())
    except (EffbenchError, Ended):
        raise
    except Exception as error:  # a module may raise anything without its gradients
        if is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold tensors
        reason = f"{NO_GRAD}: {describe(error)}"
    with recording(GRAD):
        return Success(GRAD, call(), reason)
