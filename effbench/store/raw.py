"""Trials with their raw samples in bulk: a whole sweep's, a few hundred at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from effbench.store import samples
from effbench.store.schema import SampleRow, TrialRow

if TYPE_CHECKING:
    import numpy as np

TRIAL, SAMPLE = TrialRow.__table__, SampleRow.__table__
#: trials in one statement: below SQLite's limit of bound values, and some megabytes of samples
CHUNK = 500
_IDS = sa.bindparam("ids", expanding=True)
_TRIALS = sa.select(TRIAL).where(TRIAL.c.id.in_(_IDS))
_SAMPLES = sa.select(SAMPLE).where(SAMPLE.c.trial_id.in_(_IDS)).order_by(SAMPLE.c.trial_id, SAMPLE.c.timer)


def ordered_ids(
    connection: sa.Connection, sweep_id: str, environment_ids: Sequence[str], part: int = 0, parts: int = 1
) -> list[int]:
    """The sweep's trials in these environments by cell key, each cell's by environment, round and attempt; of `parts`
    nearly equal ones, each of whole cells, the one with the number `part`."""
    query = (
        sa.select(TRIAL.c.id, TRIAL.c.cell_key)
        .where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id.in_(environment_ids))
        .order_by(TRIAL.c.cell_key, TRIAL.c.environment_id, TRIAL.c.round, TRIAL.c.attempt)
    )
    found = connection.execute(query).all()

    def cut(number: int) -> int:
        """Where this part begins: not within a cell."""
        place = number * len(found) // parts
        while 0 < place < len(found) and found[place].cell_key == found[place - 1].cell_key:
            place += 1
        return place

    return [row.id for row in found[cut(part) : cut(part + 1)]]


def read(
    connection: sa.Connection, ids: Sequence[int]
) -> Iterator[tuple[dict[str, Any], dict[str, tuple[int, np.ndarray]]]]:
    """Rows of `trial` in the order of `ids`, each with timer -> how many samples were taken, and float32 of those that
    are stored."""
    found = connection.execute(_TRIALS, {"ids": ids})
    names = tuple(found.keys())
    place = names.index("id")
    rows = {values[place]: dict(zip(names, values, strict=True)) for values in found.all()}
    blobs: dict[int, dict[str, tuple[int, np.ndarray]]] = {}
    for trial_id, timer, count, stored, codec, data in connection.execute(_SAMPLES, {"ids": ids}).all():
        blobs.setdefault(trial_id, {})[timer] = (count, samples.decode(codec, data, stored))
    for one in ids:
        if one in rows:
            yield rows[one], blobs.get(one, {})
