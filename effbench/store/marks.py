"""Read trials of databases before revision 0011, in which the status `noisy` stood for what is a
mark now."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from effbench.core.errors import StoreError
from effbench.stats.intervals import is_number
from effbench.store.values import decode_samples

#: the former status
NOISY = "noisy"
#: start of the reason of a trial that compiled while it was timed
COMPILED = "a graph was compiled"
#: reason of a trial whose host was disturbed
DISTURBED = re.compile(r"the host was disturbed for (.*) of the timing \(.*")
#: reason of a trial without one
UNKNOWN = "host or GPU busy"

# without types, because a damaged file may hold anything
_SAMPLE = sa.table(
    "sample", *(sa.column(name) for name in ("trial_id", "timer", "stored", "codec", "data"))
)


def marked_values(connection: sa.Connection, trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that change for a trial with the former status `noisy`.

    If it compiled while it was timed, it is degraded. Otherwise it is ok and marked, and its bounds
    also hold the medians of its undisturbed and disturbed samples. `trial`: the row with the
    columns of an earlier revision.
    """
    reason = trial.get("reason")
    if not isinstance(reason, str):
        reason = UNKNOWN
    if reason.startswith(COMPILED):
        return {"status": "degraded"}
    values: dict[str, Any] = {
        "status": "ok",
        "reason": None,
        "disturbance": DISTURBED.sub(r"host busy for \1 of the timing", reason),
    }
    for timer in ("latency", "period"):
        low, high = f"{timer}_median_low_ms", f"{timer}_median_high_ms"
        candidates: list[Any] = [trial.get(low), trial.get(high)]
        for kind in ("", "_disturbed"):
            name = f"{timer}{kind}_ms"
            candidates.append(median_of_samples(connection, trial["id"], name))
        known = [value for value in candidates if is_number(value) and value > 0]
        if known:
            values |= {low: min(known), high: max(known)}
    return values


def median_of_samples(connection: sa.Connection, trial_id: int, timer: str) -> float | None:
    """Return the median of a trial's samples of a timer; None if there are none, or if they are
    damaged."""
    query = sa.select(_SAMPLE).where(_SAMPLE.c.trial_id == trial_id, _SAMPLE.c.timer == timer)
    row = connection.execute(query).first()
    if row is None:
        return None
    try:
        samples = decode_samples(row.codec, row.data, row.stored).tolist()
    except (StoreError, TypeError):
        return None
    positive = [value for value in samples if is_number(value) and value > 0]
    return statistics.median(positive) if positive else None
