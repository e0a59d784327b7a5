"""Name the cause of times that changed, from the traces of both sides: `name_causes`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter

from effbench.analysis.explain import Explanation, NotTracedError
from effbench.analysis.verdicts import CHANGED, Change
from effbench.core.labels import grouped
from effbench.store.store import Store
from effbench.store.trials import TracedTrial

LOGGER = logging.getLogger(__name__)
#: Metrics whose change a trace may explain, the first one if several of a cell changed.
TRACED = ("latency_ms", "period_ms", "gpu_busy_ms")
#: Least fraction of a change that the difference of the traced latencies must have.
LEAST = 0.5
#: Most cells whose traces are read, the most important first.
MOST_CELLS = 50


def name_causes(store: Store, changes: Iterable[Change]) -> None:
    """Set the cause of each slower or faster cell, on one of its rows, if both sides have traces.
    Other cells' traces are not read."""
    changed = [change for change in changes if change.verdict in CHANGED and change.results]
    timed = [change for change in changed if change.metric in TRACED]
    cells = grouped(timed, attrgetter("key"))
    for rows in islice(cells.values(), MOST_CELLS):
        row = min(rows, key=lambda row: TRACED.index(row.metric))
        traced = []
        for result in row.results:
            traced.append(store.traces(result.sweep_id, result.cell_key, result.environment_id))
        before, after = traced
        difference_ms = (row.after or 0.0) - (row.before or 0.0)
        row.cause = cause_between(before, after, difference_ms)


def cause_between(
    before: Sequence[TracedTrial], after: Sequence[TracedTrial], difference_ms: float
) -> str | None:
    """Return the cause of a difference between two sides in one line; None without traces, if no
    cause is certain, or if the latencies of the traced trials do not differ as much. A cause is
    extra, so that this never raises an exception."""
    try:
        explanation = Explanation.of(before, after, ("before", "after"))
        if explanation.latency.ms.value / difference_ms < LEAST:
            return None
        return explanation.cause
    except NotTracedError:
        return None
    except Exception:  # a trace may be imported, or come from another version
        LOGGER.warning("no cause of a change could be named", exc_info=True)
        return None
