"""Run behaviour checks, each in its own process under its device's lock, so that a crash affects no other check."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from effbench.message import CheckRequest
from effbench.sweeping.client import ForkServer
from effbench.sweeping.devices import Slot, gpu_slot
from effbench.sweeping.interpreters import HERE
from effbench.sweeping.pool import ServerPool

TIMEOUT_S = 300.0
LOCK_TIMEOUT_S = 3600.0


def gather(
    requests: Sequence[CheckRequest], server: ForkServer, gpus: Sequence[dict[str, Any]], timeout_s: float = TIMEOUT_S
) -> list[dict[str, Any]]:
    """Run the requests one after the other and return, in order, each one's `status`, `reason` and `facts` (only if it
    is `ok`). An error has a `traceback`; a process that died or was killed has a `log`, the end of its output.

    `device=auto` selects the first of `gpus` (as listed by `probe`), or the CPU without a GPU. The caller closes
    `server`. Raises WorkerError if a server does not start or a device stays locked for LOCK_TIMEOUT_S.
    """
    server.wait_ready()
    outcomes = []
    with closing(ServerPool(HERE, server)) as pool:  # it replaces a server that a check has killed
        for request in requests:
            if request.device == "auto":
                request = replace(request, device="cuda" if gpus else "cpu")
            # without a GPU, a check that needs one reports this itself
            slot = gpu_slot(gpus[0]) if gpus and request.device != "cpu" else Slot("CPU", "cpu")
            caches = tempfile.TemporaryDirectory(prefix="effbench-check-", ignore_cleanup_errors=True)
            with slot.locked(LOCK_TIMEOUT_S, threading.Event()), pool.server(0) as live, caches as folder:
                done = live.run("check", replace(request, cache_dir=folder).to_json(), timeout_s, slot.env)
            if done.result is None:
                status, reason = done.failure()
                log = done.outcome.get("log")
                outcomes.append({"status": str(status), "reason": reason, "facts": None, "log": log})
            else:
                outcomes.append(done.result)
    return outcomes
