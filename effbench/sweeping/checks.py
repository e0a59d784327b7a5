"""Run behaviour checks, each in its own process under its device's lock, so that a crash affects no other check."""

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
    """How a check ended. `facts`: only if it is `ok`; `seconds`: time in its process; `gpu`: as the probe describes it;
    `log`: the end of its output if its process died or was killed; `traceback`: only for an error."""

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
    """Run the requests one after the other and return their outcomes in order. A set `stop` omits the remaining ones.

    `device=auto` selects the first of `gpus` (as listed by `probe`), or the CPU without a GPU. The caller closes
    `server`. Raises WorkerError if a server does not start or a device stays locked for `lock_timeout_s`.
    """
    stop = stop or threading.Event()
    server.wait_ready()
    outcomes: list[CheckOutcome] = []
    with closing(ServerPool(HERE, server)) as pool:  # it replaces a server that a check has killed
        for request in requests:
            if request.device == "auto":
                request = replace(request, device="cuda" if gpus else "cpu")
            # without a GPU, a check that needs one reports this itself
            slot = gpu_slot(gpus[0]) if gpus and request.device != "cpu" else Slot("CPU", "cpu")
            with slot.locked(lock_timeout_s, stop) as is_held, pool.server(0) as live, cache_folder() as folder:
                if not is_held:
                    break
                sent = replace(request, cache_dir=request.cache_dir or folder)
                start = time.monotonic()
                done = live.run("check", sent.to_json(), timeout_s, slot.env, stop=stop)
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
