"""Make a module's first call: with gradients only if it fails without them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from effbench.core.errors import EffbenchError
from effbench.core.printable import describe, text_of
from effbench.measure.gradients import GRAD, NO_GRAD, recording
from effbench.workloads.endings import Ended, is_out_of_memory

R = TypeVar("R")
#: Part of an error of a call that records gradients in the wrong way.
ABOUT_GRADIENTS = re.compile(
    r"requires? grad|grad_fn|leaf variable|inference ?(tensor|mode)|backward", re.I
)


@dataclass(frozen=True)
class Success(Generic[R]):
    """The first mode in which a call succeeds, and its result. `reason`: why the mode before it
    does not suit."""

    mode: str
    result: R
    reason: str | None


def first_success(call: Callable[[], R], modes: Iterable[str] = (NO_GRAD, GRAD)) -> Success[R]:
    """Make a call in the first of these modes in which it succeeds.

    If none does, raise the first error that is not about gradients, else the last one. Errors that
    no mode can avoid are raised at once.
    """
    errors: list[Exception] = []
    reason = None
    for mode in modes:
        try:
            with recording(mode):
                return Success(mode, call(), reason)
        except (EffbenchError, Ended):
            raise
        except Exception as error:  # a module may raise anything without its gradients
            if is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold tensors
            errors.append(error)
            reason = f"{mode}: {describe(error)}"
    others = [error for error in errors if not ABOUT_GRADIENTS.search(text_of(error))]
    raise others[0] if others else errors[-1]
