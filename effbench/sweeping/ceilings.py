"""The machine's own ceilings, measured once for each environment and kept in the database."""

from __future__ import annotations

import threading
from typing import Any

from effbench.errors import WorkerError
from effbench.store.store import Store
from effbench.sweeping.schedule import Slot, acquire
from effbench.sweeping.workers import ForkServer

TIMEOUT_S = 120.0


def measure_missing(
    server: ForkServer,
    store: Store,
    environment_id: str,
    gpus: list[dict[str, Any]],
    again: bool = False,
    lock_timeout_s: float = 3600.0,
) -> str | None:
    """Measure the first of these GPUs, unless the environment's ceilings are known (`again`: anyway), and store them.

    GPUs of one environment are of one kind. Returns why they could not be measured, or None.
    """
    known = store.calibration(environment_id)
    if not gpus or (known and known["ceilings"] and not again):
        return None
    slot = Slot(f"GPU {gpus[0]['index']}", "cuda", gpus[0])
    lock = None
    try:
        lock = acquire(slot, lock_timeout_s, threading.Event(), lambda: None)
        answer = server.call("ceilings", {}, TIMEOUT_S, slot.env)
    except WorkerError as error:
        return str(error)
    finally:
        if lock is not None:
            lock.release()
    if answer["ceilings"] is None:
        return answer["reason"]
    store.add_calibration(environment_id, gpus[0]["uuid"], ceilings=answer["ceilings"])
    return None
