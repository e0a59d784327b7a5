"""Which cells of an experiment's sweep were measured already, in this environment and by this protocol.

Cells that are compared with each other (all modes of one case) are taken from one sweep: a speedup across sweeps would
be one of two sessions. So a case that is not whole in any sweep is measured anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.cell import Cell, Status, digest
from effbench.store.store import Store
from effbench.sweeping.plan import Settings


@dataclass
class Found:
    """`rows`: of the view, for the cells that need no measuring; `missing`: keys of those that do."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)


def case_of(cell: Cell) -> str:
    """What the cells of all modes of one case share."""
    return digest({key: value for key, value in cell.params().items() if key != "mode"})


def look(store: Store, cells: Sequence[Cell], environment_id: str, settings: Settings) -> Found:
    """What was measured here already, by this protocol and against this baseline.

    The newest sweep that has a whole case serves it. What failed has its answer, however many rounds it ran.
    """
    cases: dict[str, list[str]] = {}
    for cell in cells:
        cases.setdefault(case_of(cell), []).append(cell.key)
    left = dict(cases)
    found = Found()
    for sweep in store.sweeps():
        if not left:
            break
        if (sweep.protocol, sweep.baseline_mode) != (settings.protocol, settings.baseline_mode):
            continue
        rows = {
            row["cell_key"]: row
            for row in store.results(sweep.id)
            if row["environment_id"] == environment_id and is_done(row, sweep.rounds, sweep.state)
        }
        for case, keys in list(left.items()):
            if all(key in rows for key in keys):
                found.rows += [rows[key] for key in keys]
                del left[case]
    found.missing = {key for keys in left.values() for key in keys}
    return found


def is_done(row: dict[str, Any], rounds: int, state: str) -> bool:
    """Has it all its rounds, or an answer without them? Rounds end early where a cell is known well enough."""
    return not Status(row["status"]).is_measured or row["trials"] >= rounds or state == "completed"
