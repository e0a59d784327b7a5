"""Runs behaviour checks: each in a child of its own, under the lock of its device, so that a crash or a hang costs
that check alone."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.cell import Status
from effbench.message import CheckRequest
from effbench.sweeping.client import ForkServer
from effbench.sweeping.devices import Slot, gpu_slot
from effbench.sweeping.interpreters import HERE
from effbench.sweeping.pool import ServerPool

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class CheckOutcome:
    """How a check ended. `facts`: of an `ok` one only; `seconds`: in its process; `gpu`: as the probe describes it;
    `log`: the end of what it printed, if its process died or was killed; `traceback`: of an error."""

    request: CheckRequest
    status: Status
    reason: str | None
    facts: dict[str, Any] | None
    seconds: float
    gpu: dict[str, Any] | None = None
    log: str | None = None
    traceback: str | None = field(default=None, repr=False)


def gather(
    requests: Sequence[CheckRequest],
    server: ForkServer,
    gpus: Sequence[dict[str, Any]],
    timeout_s: float = TIMEOUT_S,
    lock_timeout_s: float = 3600.0,
    stop: threading.Event | None = None,
    on_outcome: Callable[[CheckOutcome], None] = lambda outcome: None,
) -> list[CheckOutcome]:
    """Run the requests one after the other; return their outcomes in the same order, fewer once `stop` is set.

    `device=auto` is the first of `gpus` (as `probe` lists them), or the CPU if there is none. `server` stays its
    owner's to close. Raises WorkerError if a server does not start or a device's lock does not come free.
    """
    stop = stop or threading.Event()
    server.wait_ready()
    outcomes: list[CheckOutcome] = []
    with closing(ServerPool(HERE, server)) as pool:  # a check that kills the server does not take the others with it
        for request in requests:
            if request.device == "auto":
                request = replace(request, device="cuda" if gpus else "cpu")
            # without a GPU, a check that needs one says so itself
            slot = gpu_slot(gpus[0]) if gpus and request.device != "cpu" else Slot("CPU", "cpu")
            with slot.locked(lock_timeout_s, stop) as is_held, pool.server(0) as own, cache_folder() as folder:
                if not is_held:
                    break
                sent = replace(request, cache_dir=request.cache_dir or folder)
                start = time.monotonic()
                done = own.run("check", sent.to_json(), timeout_s, slot.env, stop=stop)
                wall_s = time.monotonic() - start
            if done.stopped:
                break
            if done.result is None:
                status, reason = done.failure()
                log = done.outcome.get("log") or None
                outcome = CheckOutcome(request, status, reason, None, wall_s, slot.gpu, log=log)
            else:
                answer = {**done.result, "status": Status(done.result["status"])}
                outcome = CheckOutcome(request, gpu=slot.gpu, **answer)
            outcomes.append(outcome)
            on_outcome(outcome)
    return outcomes


def cache_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="effbench-check-", ignore_cleanup_errors=True)
