"""Reads from a database what the site is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from effbench.commands import ledgers, options
from effbench.report.site.material import Material, Subject
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo


def gather(store: Store, database: str, references: Sequence[str] = ()) -> Material:
    """Everything for the site. `references`: which sweeps it is about; none given are the newest of each hardware."""
    infos = store.sweeps()
    chosen = [store.find_sweep(reference) for reference in references] or newest(store, infos)
    subjects = [subject for info in chosen for subject in subjects_of(store, info)]
    history = ledgers.past(store)
    for subject in subjects:
        subject.changes = ledgers.changes(store, subject, history, infos)
    environments = store.environments()
    return Material(
        database=database,
        subjects=subjects,
        sweeps=[dataclasses.asdict(info) for info in infos],
        environments=environments,
        claims=ledgers.ledger(store),
        history=history,
        calibrations=ledgers.calibrations(store, environments),
    )


def newest(store: Store, infos: Sequence[SweepInfo]) -> list[SweepInfo]:
    """For each hardware the newest sweep with a trial on it; newest first. What only confirms another is none."""
    seen: set[str] = set()
    found = []
    for info in infos:
        if not info.trials or (info.name or "").startswith(CONFIRMING):
            continue
        hardware = set(store.hardware(info.id))
        if hardware - seen:
            found.append(info)
            seen |= hardware
    return found


def subjects_of(store: Store, info: SweepInfo) -> list[Subject]:
    """One for each hardware of the sweep."""
    rows = options.rows_of(store, info)
    environments = {one["id"]: one for one in store.environments(row["environment_id"] for row in rows)}
    planned = store.planned_cells(info.id)
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        place = environments[row["environment_id"]]
        parts.setdefault(place["gpu_name"] or place["cpu_name"], []).append(row)
    return [
        Subject(
            sweep=dataclasses.asdict(info),
            hardware=hardware,
            rows=part,
            environments=[environments[key] for key in dict.fromkeys(row["environment_id"] for row in part)],
            unmeasured=ledgers.unmeasured(planned, part, environments),
        )
        for hardware, part in parts.items()
    ]
