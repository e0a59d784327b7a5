"""Run behaviour checks of claims, each in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from effbench.core.message import CheckRequest, ProbedGpu
from effbench.run.client import NEVER, ForkServer, ServerRequest
from effbench.run.devices import Slot, gpu_slot, wait_for_device
from effbench.run.interpreters import HERE
from effbench.run.pool import ServerPool


def run_checks(
    requests: Sequence[CheckRequest],
    server: ForkServer,
    gpus: Sequence[ProbedGpu],
    timeout_s: float = 300.0,
) -> list[dict[str, Any]]:
    """Run behaviour checks, each in its own process under its device's lock, so that a crash
    affects no other check.

    Return, in order, each one's `status`, `reason` and `facts` (only if it is `ok`). An error has a
    `traceback`; a process that died or was killed has a `log`, the end of its output.

    `device=auto` selects the first of `gpus` (as listed by `probe`), or the CPU without a GPU. The
    caller closes `server`. Raises WorkerError if a server does not start or a device stays locked
    for an hour.
    """
    outcomes = []
    # a pool replaces a server that a check has killed
    with closing(ServerPool(HERE, server, NEVER)) as pool:
        for request in requests:
            slot = Slot("CPU", "cpu")
            if gpus and request.device != "cpu":
                slot = gpu_slot(gpus[0])
            if request.device == "auto":  # without a GPU, a check that needs one fails
                request = replace(request, device=slot.device)
            caches = TemporaryDirectory(prefix="effbench-check-", ignore_cleanup_errors=True)
            with wait_for_device(slot, NEVER), pool.shared(0) as current, caches as folder:
                payload = replace(request, cache_dir=folder).to_json()
                done = current.complete("check", payload, timeout_s, slot.env)
            outcomes.append(done.result or failed(done))
    return outcomes


def failed(request: ServerRequest) -> dict[str, Any]:
    """Return the outcome of a check whose process died or was killed."""
    status, reason = request.failure()
    return {"status": str(status), "reason": reason, "facts": None, "log": request.outcome.log}
