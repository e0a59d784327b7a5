"""Reads from a database what the site is made of."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from effbench.cell import digest
from effbench.commands import ledgers, options
from effbench.launcher.overrides import quoted
from effbench.report.site.material import Material, Subject, TrialFacts
from effbench.store import artifacts
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo


def gather(store: Store, database: str, references: Sequence[str] = (), *, later: bool = False) -> Material:
    """Everything for the site. `references`: which sweeps it is about; none given are the newest of each hardware.
    `later`: history and what needs it is read by `Material.complete`, while the store is still open."""
    infos = store.sweeps()
    environments = store.environments()

    def rest(material: Material) -> None:
        material.history = ledgers.past(store)
        compare(store, material, ledgers.cells_of_sweep(material.history.whole))
        material.claims = ledgers.ledger(store)
        material.calibrations = ledgers.calibrations(store, environments)

    found = Material(
        database=database,
        subjects=chosen(store, infos, database, references),
        sweeps=[dataclasses.asdict(info) for info in infos],
        environments=environments,
        db_override="" if database == options.DEFAULT_DB else f" {shlex.quote(f'db={masked_url(database)}')}",
        later=rest,
    )
    if not later:
        found.complete()
    return found


def for_markdown(store: Store, database: str, references: Sequence[str] = ()) -> Material:
    """The subjects alone, each with what changed since the sweep before: no history is judged."""
    found = Material(database, chosen(store, store.sweeps(), database, references))
    compare(store, found, ledgers.cells_of_sweep(store.series(())))
    return found


def compare(store: Store, material: Material, cells: ledgers.CellsOfSweep) -> None:
    """Hold every subject against the sweep before it."""
    infos = store.sweeps()
    for subject in material.subjects:
        subject.changes = ledgers.changes(store, subject, cells, infos, material.database)


def chosen(store: Store, infos: Sequence[SweepInfo], database: str, references: Sequence[str]) -> list[Subject]:
    """Those of the referenced sweeps, without any the newest ones."""
    wanted = {store.find_sweep(reference).id: None for reference in references} or newest(store, infos)
    by_id = {info.id: info for info in infos}
    return [
        subject
        for sweep_id, hardware in wanted.items()
        for subject in subjects_of(store, by_id[sweep_id], database)
        if hardware is None or subject.hardware in hardware
    ]


def newest(store: Store, infos: Sequence[SweepInfo]) -> dict[str, set[str]]:
    """Sweep id -> the hardware of which it is the newest sweep with a trial; newest first. What only confirms another
    is none."""
    seen: set[str] = set()
    found = {}
    for info in infos:
        if not info.trials or (info.name or "").startswith(CONFIRMING):
            continue
        hardware = set(store.hardware(info.id))
        if hardware - seen:
            found[info.id] = hardware - seen
            seen |= hardware
    return found


def subjects_of(store: Store, info: SweepInfo, database: str) -> list[Subject]:
    """One for each hardware of the sweep."""
    rows = options.rows_of(store, info)
    environments = {one["id"]: one for one in store.environments(row["environment_id"] for row in rows)}
    planned = store.planned_cells(info.id)
    overrides = store.cell_overrides(info.id)
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
            trials=partial(trials_of, store, info.id, list(dict.fromkeys(row["environment_id"] for row in part))),
            trials_in_parts=partial(
                trials_in_part, database, info.id, list(dict.fromkeys(row["environment_id"] for row in part))
            ),
            command=partial(command_of, info, overrides),
            artifacts=artifacts.home(database),
        )
        for hardware, part in parts.items()
    ]


def trials_in_part(
    database: str, sweep_id: str, environment_ids: Sequence[str], part: int, parts: int
) -> Iterator[TrialFacts]:
    """A part of `trials_of` in another process, which needs a connection of its own."""
    with Store.open(database, mode="read") as store:
        yield from trials_of(store, sweep_id, environment_ids, part, parts)


def trials_of(
    store: Store, sweep_id: str, environment_ids: Sequence[str], part: int = 0, parts: int = 1
) -> Iterator[TrialFacts]:
    """Every trial of the sweep in these environments, by cell key."""
    for row, timers in store.trials_with_samples(sweep_id, environment_ids, part, parts):
        yield TrialFacts(
            row, {name: stored for name, (_, stored) in timers.items()}, {name: n for name, (n, _) in timers.items()}
        )


def command_of(
    info: SweepInfo, overrides: Mapping[str, list[str] | None], params: Mapping[str, Any], environment_id: str
) -> tuple[str | None, str | None]:
    """Return the command that runs the cell again under the interpreter that it ran under, or None and why there is
    none. An imported sweep has none: pasting it would run what another person chose. `overrides`: by cell key."""
    if info.imported_at is not None:
        return None, "its sweep was imported, so review the parameters below before you run it"
    words = overrides.get(digest(dict(params)))
    if words is None:
        return None, "its sweep did not record the overrides of its cells"
    facts = (info.host.get("environments") or {}).get(environment_id) or {}
    interpreter = [f"{name}={quoted(facts[name])}" for name in facts.get("given", ())]
    return shlex.join(["effbench", *words, *interpreter]), None
