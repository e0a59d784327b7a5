"""Which cells of an experiment's sweep were measured already, in this environment and by this protocol.

Cells that are compared with each other (all modes of one case) are taken from one sweep: a speedup across sweeps would
be one of two sessions. So a case that is not whole in any sweep is measured anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.cell import Cell, Status, digest
from effbench.store.store import Store
from effbench.sweep.plan import Settings


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


def measured_otherwise(
    store: Store, missing: Collection[str], environment_id: str, settings: Settings
) -> tuple[set[str], list[str]]:
    """Which of the missing cells were measured here in another way, and the overrides that ask for that way: those of
    the newest sweep with most of them."""
    best: tuple[set[str], list[str]] = set(), []
    for sweep in store.sweeps():
        if words := ways(sweep.protocol, sweep.baseline_mode, settings):
            rows = store.results(sweep.id)
            there = {row["cell_key"] for row in rows if row["environment_id"] == environment_id} & set(missing)
            best = (there, words) if len(there) > len(best[0]) else best
    return best


def ways(protocol: Mapping[str, Any], baseline_mode: str, settings: Settings) -> list[str]:
    """The overrides by which a sweep was another than `settings` ask for."""
    asked = settings.protocol
    words = [f"protocol={protocol['name']}"] if protocol.get("name") != asked.get("name") else []
    words += [f"protocol.{key}={said(value)}" for key, value in protocol.items() if value != asked.get(key)]
    words = [word for word in words if not word.startswith("protocol.name=")]
    return words + ([f"baseline_mode={baseline_mode}"] if baseline_mode != settings.baseline_mode else [])


def said(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
