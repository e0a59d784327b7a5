"""Runs behaviour checks: each in a child of its own, under the lock of its device, so that a crash or a hang costs
that check alone."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.cell import Status
from effbench.message import CheckRequest
from effbench.sweeping.client import ForkServer
from effbench.sweeping.devices import Slot
from effbench.sweeping.interpreters import HERE
from effbench.sweeping.pool import ServerPool

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class CheckOutcome:
    """What became of a request. `facts` are there for `ok` only; `seconds`: in its process; `gpu`: as the probe names
    it; `log`: the end of what it printed, where its process died or was ended; `traceback`: of an error."""

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
    servers = ServerPool(HERE, server)  # a check that takes the server with it does not take the others too
    try:
        for request in requests:
            if request.device == "auto":
                request = replace(request, device="cuda" if gpus else "cpu")
            slot = slot_of(request, gpus)
            lock = slot.acquire(lock_timeout_s, stop, lambda: None)
            if lock is None:
                break
            try:
                own = servers.take(0)
                try:
                    outcome = run_one(own, slot, request, timeout_s, stop)
                finally:
                    servers.give_back(own)
            finally:
                lock.release()
            if outcome is None:
                break
            outcomes.append(outcome)
            on_outcome(outcome)
    finally:
        servers.close()
    return outcomes


def slot_of(request: CheckRequest, gpus: Sequence[dict[str, Any]]) -> Slot:
    """Return the CPU if a GPU is asked for and there is none: the check says itself what it lacks."""
    if gpus and request.device != "cpu":
        return Slot(f"GPU {gpus[0]['index']}", "cuda", gpus[0])
    return Slot("CPU", "cpu")


def run_one(
    server: ForkServer, slot: Slot, request: CheckRequest, timeout_s: float, stop: threading.Event
) -> CheckOutcome | None:
    """Return None if it was stopped."""
    with tempfile.TemporaryDirectory(prefix="effbench-check-", ignore_cleanup_errors=True) as folder:
        sent = replace(request, cache_dir=request.cache_dir or folder)
        start = time.monotonic()
        done = server.run("check", sent.to_json(), timeout_s, slot.env, stop=stop)
        wall_s = time.monotonic() - start
    if done.stopped:
        return None
    if (answer := done.result) is None:
        status, reason = done.failure()
        return CheckOutcome(request, status, reason, None, wall_s, slot.gpu, done.outcome.get("log") or None)
    return CheckOutcome(
        request,
        Status(answer["status"]),
        answer["reason"],
        answer["facts"],
        answer["seconds"],
        slot.gpu,
        traceback=answer.get("traceback"),
    )
