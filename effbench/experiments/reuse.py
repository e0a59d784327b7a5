"""Which cells of an experiment's sweep were measured already, in this environment and by this protocol.

Cells that are compared with each other (all modes of one case) are taken from one sweep: a speedup across sweeps would
compare two sessions. So a case that no sweep measured completely is measured again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from effbench.cell import Cell, Status, digest
from effbench.store.store import Store
from effbench.sweeping.plan import Settings


def stored_rows(store: Store, cells: Sequence[Cell], environment_id: str, settings: Settings) -> list[dict[str, Any]]:
    """Return the rows of the complete cases, each from the newest sweep that has it. A cell that failed is complete
    however many rounds it ran."""
    cases: dict[str, list[str]] = {}
    for cell in cells:
        case = digest({key: value for key, value in cell.params().items() if key != "mode"})
        cases.setdefault(case, []).append(cell.key)
    found: list[dict[str, Any]] = []
    for sweep in store.sweeps():
        if not cases:
            break
        if (sweep.protocol, sweep.baseline_mode) != (settings.protocol, settings.baseline_mode):
            continue
        rows = {
            row["cell_key"]: row
            for row in store.results(sweep.id)
            if row["environment_id"] == environment_id and is_complete(row, sweep.rounds, sweep.state)
        }
        for case, keys in list(cases.items()):
            if all(key in rows for key in keys):
                found += [rows[key] for key in keys]
                del cases[case]
    return found


def is_complete(row: Mapping[str, Any], rounds: int, state: str) -> bool:
    """Whether a row needs no more rounds. They end early if a cell is known well enough."""
    return not Status(row["status"]).is_measured or row["trials"] >= rounds or state == "completed"


def measured_otherwise(
    store: Store, missing: Collection[str], environment_id: str, settings: Settings
) -> tuple[set[str], list[str]]:
    """Return which of the missing cells were measured in another way, and the overrides that ask for that way: those of
    the newest sweep with most of them."""
    best: tuple[set[str], list[str]] = set(), []
    for sweep in store.sweeps():
        if words := differing(sweep.protocol, sweep.baseline_mode, settings):
            rows = store.results(sweep.id)
            measured = {row["cell_key"] for row in rows if row["environment_id"] == environment_id} & set(missing)
            best = (measured, words) if len(measured) > len(best[0]) else best
    return best


def differing(protocol: Mapping[str, Any], baseline_mode: str, settings: Settings) -> list[str]:
    """The overrides that ask for a sweep's protocol and baseline mode."""
    asked = settings.protocol
    words = [f"protocol={protocol['name']}"] if protocol.get("name") != asked.get("name") else []
    for key, value in protocol.items():
        if value != asked.get(key) and key != "name":
            text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            words.append(f"protocol.{key}={text}")
    return words + ([f"baseline_mode={baseline_mode}"] if baseline_mode != settings.baseline_mode else [])
