"""Data of a cell's page: results, facts, samples, kernels and errors.

A page finds a cell's file by the first key of each file.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from effbench.core.cell import Status, Trial
from effbench.core.labels import PLACES, LabelledRow, flatten
from effbench.core.printable import excerpt
from effbench.render.colors import glyph_of
from effbench.render.data import DeviceSweep
from effbench.render.marks import estimates_of
from effbench.render.site.writer import Json, as_json
from effbench.store.schema import TRIAL
from effbench.store.trials import SampledTrial, StoredSamples

#: Columns of `trial` that the page does not show side by side.
_HIDDEN = ("id", "sweep_id", "cell_key", "environment_id", "reason", "extra", "recorded_at")
#: Columns of `trial` that the page shows side by side.
FACTS = [column.name for column in TRIAL.columns if column.name not in _HIDDEN]
#: Parts of `extra` that other sections show.
_ELSEWHERE = ("profile", "traceback", "log")
#: Facts of a result that the page shows first.
ABOUT = ("model", "bs", "dtype", "phase", "device")
#: Samples drawn per trial and timer, and per cell and timer.
MOST_POINTS = 200
MOST_POINTS_OF_CELL = 6000


def cells_of(device_sweep: DeviceSweep) -> Iterator[tuple[str, list[Json]]]:
    """Yield (cell key, one entry per environment) for each cell, keys in ascending order.

    Skip cells without a result, whose first trials a running sweep recorded after the results were
    read.
    """
    rows = {}
    for row in device_sweep.labelled:
        rows[row.result.cell_key, row.result.environment_id] = row
    for key, of_cell in groupby(device_sweep.trials(), attrgetter("trial.cell_key")):
        entries = []
        for environment, sampled in groupby(of_cell, attrgetter("trial.environment_id")):
            if (key, environment) in rows:
                entries.append(entry(device_sweep, rows[key, environment], list(sampled)))
        if entries:
            yield key, entries


def entry(device_sweep: DeviceSweep, row: LabelledRow, sampled: Sequence[SampledTrial]) -> Json:
    """Return the page's data of one result."""
    result = row.result
    trials = [of_trial.trial for of_trial in sampled]
    return {
        "env": result.environment_id,
        "where": row.where,
        "name": row.name,
        "labels": {name: label for name, label in row.labels.items() if name not in PLACES},
        "mode": row.mode,
        "glyph": glyph_of(row.base_mode),
        "about": {name: getattr(result, name) for name in ABOUT},
        "status": row.status,
        "reason": row.reason,
        "bound": result.bound,
        "disturbance": result.disturbance,
        "count": result.trials,
        "results": estimates_of(result),
        "params": flatten(result.params),
        "command": device_sweep.command(result.params, result.environment_id),
        "facts": facts(trials),
        "samples": samples([of_trial.timers for of_trial in sampled]),
        "profile": profile(trials),
        "errors": errors(trials),
    }


def facts(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Return fact -> its value in each trial, None for trials without it. Facts are FACTS and the
    rest of `extra`; those that no trial has are omitted."""
    by_name: dict[str, list[Any]] = {}
    for position, trial in enumerate(trials):
        known = {name: getattr(trial, name) for name in FACTS}
        known |= {name: value for name, value in trial.extra.items() if name not in _ELSEWHERE}
        for name, value in flatten(known).items():
            if value is not None:
                by_name.setdefault(name, [None] * len(trials))[position] = value
    return by_name


def samples(trials: Sequence[Mapping[str, StoredSamples]]) -> dict[str, list[Json]]:
    """Return timer -> its trials: `trial` (position), numbers of samples `taken` and `stored`, and
    `points`, an even selection of the stored samples as base64 of little-endian float32."""
    most = min(MOST_POINTS, 1 + MOST_POINTS_OF_CELL // max(1, len(trials)))
    by_timer: dict[str, list[Json]] = {}
    for position, timers in enumerate(trials):
        for timer, of_timer in timers.items():
            stored = of_timer.stored
            if not len(stored):
                continue
            places = np.linspace(0, len(stored) - 1, min(most, len(stored)), dtype=np.int64)
            points = stored[places].astype("<f4", copy=False).tobytes()
            by_timer.setdefault(timer, []).append(
                {
                    "trial": position,
                    "taken": of_timer.taken,
                    "stored": len(stored),
                    "points": base64.b64encode(points).decode("ascii"),
                }
            )
    return by_timer


def profile(trials: Iterable[Trial]) -> Json | None:
    """Return the first profiled pass; of an undisturbed trial, if any: what disturbed a trial also
    slowed its kernels."""
    profiled = [trial for trial in trials if trial.extra.get("profile")]
    if not profiled:
        return None
    first = min(profiled, key=lambda trial: trial.disturbance is not None)
    found: Json = first.extra["profile"]
    return found


def errors(trials: Sequence[Trial]) -> list[Json]:
    """Return the distinct errors: `status`, `reason`, `phase`, `traceback`, `log` and positions of
    their `trials`."""
    distinct: dict[str, Json] = {}
    for position, trial in enumerate(trials):
        facts: Json = {"status": trial.status, "reason": trial.reason, "phase": trial.phase}
        for name in ("traceback", "log"):
            facts[name] = excerpt(str(trial.extra.get(name) or ""))
        if trial.status is Status.OK and not any((trial.reason, facts["traceback"], facts["log"])):
            continue
        error = distinct.setdefault(as_json(facts), facts | {"trials": []})
        error["trials"].append(position)
    return list(distinct.values())
