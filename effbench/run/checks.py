"""Run behaviour checks of claims, each in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from effbench.core.message import CheckRequest, ProbedGpu
from effbench.run.client import ForkServer
from effbench.run.devices import Slot, gpu_slot
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
    for too long (`executor.lock_timeout_s`).
    """
    server.wait_ready()
    with closing(ServerPool(HERE, server)) as pool:  # it replaces a server that a check has killed
        return [
            run_check(
                request,
                pool,
                gpus,
                timeout_s,
            )
            for request in requests
        ]


def run_check(
    request: CheckRequest,
    pool: ServerPool,
    gpus: Sequence[ProbedGpu],
    timeout_s: float,
) -> dict[str, Any]:
    """Run one behaviour check; see `run_checks`."""
    slot = Slot("CPU", "cpu")
    if gpus and request.device != "cpu":
        slot = gpu_slot(gpus[0])
    if request.device == "auto":  # without a GPU, a check that needs one reports this itself
        request = replace(request, device=slot.device)
    caches = tempfile.TemporaryDirectory(prefix="effbench-check-", ignore_cleanup_errors=True)
    with (
        slot.lock(pool.stop),
        pool.shared(0) as server,
        caches as folder,
    ):
        payload = replace(request, cache_dir=folder).to_json()
        done = server.complete("check", payload, timeout_s, slot.env)
    if done.result is not None:
        outcome: dict[str, Any] = done.result
        return outcome
    status, reason = done.failure()
    log = done.outcome.get("log")
    return {"status": str(status), "reason": reason, "facts": None, "log": log}
