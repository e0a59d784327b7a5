"""Make a module's first call: with gradients only if it fails without them."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from effbench.core.errors import EffbenchError
from effbench.core.printable import describe
from effbench.measure.gradients import GRAD, NO_GRAD, recording
from effbench.workloads.endings import Ended, is_out_of_memory


def why_gradients(call: Callable[[], object]) -> str | None:
    """Make a call without gradients or, if that fails, with them. Return why it failed, or None.
    Errors that gradients cannot avoid are raised at once."""
    try:
        with recording(NO_GRAD):
            call()
        return None
    except (EffbenchError, Ended):
        raise
    except Exception as error:  # a module may raise anything without its gradients
        if is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold tensors
        reason = f"{NO_GRAD}: {describe(error)}"
    with recording(GRAD):
        call()
    return reason
