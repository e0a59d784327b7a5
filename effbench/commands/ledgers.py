"""Reads what the site says beyond a sweep's figures: history, changes, claims, calibrations, cells still to run."""

from __future__ import annotations

import dataclasses
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from effbench.analysis.environments import COLUMNS, TELLING
from effbench.comparison.compare import compare_sweeps
from effbench.comparison.history import DEFAULT_METRICS, columns_of, history
from effbench.comparison.settings import read
from effbench.config import DEFAULT_DB
from effbench.errors import EffbenchError
from effbench.experiments.definition import Claim, load_all
from effbench.report.claims import Entry, entries
from effbench.report.history_table import table_of
from effbench.report.site.changed import Changes
from effbench.report.site.material import Subject
from effbench.report.site.past import Past
from effbench.store.secrets import masked_url
from effbench.store.series import Series
from effbench.store.sides import PlannedCell
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo

#: Of more cells the site compares these alone with the sweep before: all metrics of 10,000 cells take 5.5 s, these 3.
MOST_CELLS = 2000
TIMES = ("latency_ms", "period_ms")
CellsOfSweep = dict[str, set[tuple[str, str]]]


def past(store: Store, metrics: Sequence[str] = DEFAULT_METRICS) -> Past:
    """All series, judged as `effbench history --all` does."""
    whole = store.series(columns_of(metrics))
    series = whole.without_reruns()
    found = history(series, metrics, store.acknowledgements(), read().exceptions)
    return Past(table_of(found, series), series, metrics, store.baselines(), whole)


def ledger(store: Store) -> list[Entry]:
    """The claims that ship, and those of other experiments that this database holds a verdict of."""
    claims = [(experiment.name, claim) for experiment in load_all() for claim in experiment.claims]
    verdicts = store.verdicts()
    known = {(name, claim.id) for name, claim in claims}
    others = dict.fromkeys((row["experiment"], row["claim"]) for row in verdicts)
    text = "(a claim of an experiment of your own: its statement is in that experiment's file)"
    claims += [(name, Claim(claim, text)) for name, claim in others if (name, claim) not in known]
    return entries(claims, verdicts)


def calibrations(store: Store, environments: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Environment id -> its newest ceilings and noise, of those that have any."""
    found = {row["id"]: store.calibration(row["id"]) for row in environments}
    return {key: value for key, value in found.items() if value is not None}


def unmeasured(
    planned: Sequence[PlannedCell], rows: Sequence[Mapping[str, Any]], environments: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The cells of the plan that have no result in an environment of these rows, as rows of the view."""
    ids = dict.fromkeys(row["environment_id"] for row in rows)
    shown = {row["environment_id"]: {name: row[name] for name in COLUMNS if name in row} for row in rows}
    there = {(row["cell_key"], row["environment_id"]) for row in rows}
    found = []
    for cell in planned:
        about = cell._asdict()
        key = about.pop("key")
        for one in ids:
            if (key, one) not in there:
                place = {name: environments[one][name] for name in TELLING}
                found.append({**about, **place, **shown[one], "cell_key": key, "environment_id": one})
    return found


def cells_of_sweep(series: Series) -> CellsOfSweep:
    """Sweep id -> (cell key, hardware) of each of its results."""
    hardware = {key: row["gpu_name"] or row["cpu_name"] for key, row in series.environments.items()}
    found: CellsOfSweep = defaultdict(set)
    for row in series.rows:
        found[row[0]].add((row[1], hardware[row[2]]))
    return found


def changes(
    store: Store, subject: Subject, known: CellsOfSweep, infos: Sequence[SweepInfo], database: str = DEFAULT_DB
) -> Changes:
    """This subject against the newest sweep before it that measured one of its cells on the same hardware. `known`: as
    `cells_of_sweep` gives it. What cannot be compared says why; nothing is raised."""
    own = {cell for cell in known.get(subject.sweep["id"], ()) if cell[1] == subject.hardware}
    after = next(info for info in infos if info.id == subject.sweep["id"])
    before = next(
        (
            info
            for info in infos
            if (info.started_at, info.id) < (after.started_at, after.id)
            and not (info.name or "").startswith(CONFIRMING)
            and not own.isdisjoint(known.get(info.id, ()))
        ),
        None,
    )
    if before is None:
        return Changes(why=f"No earlier sweep measured any of these cells on {subject.hardware}.")
    previous = dataclasses.asdict(before)
    words = ["effbench", "compare", before.id, after.id, "--on", subject.hardware]
    words += ["--db", masked_url(database)] if database != DEFAULT_DB else []
    limits = read()
    only = TIMES if len(own) > MOST_CELLS else ()
    limits.metrics = only or limits.metrics
    try:
        compared = compare_sweeps(store, before, after, limits, on=subject.hardware)
        return Changes(previous, compared, None, after.id, only, shlex.join(words))
    except EffbenchError as error:
        return Changes(previous, None, str(error), after.id)
