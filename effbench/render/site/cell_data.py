"""Data of a cell's page: results, facts, samples, kernels and errors.

A page finds a cell's file by the first key of each file.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from effbench.core.cell import Result, Status, Trial
from effbench.core.labels import (
    PLACES,
    LabelledRow,
    flatten,
    grouped,
)
from effbench.core.metrics import METRICS, bounds_of, why_marked
from effbench.core.printable import excerpt
from effbench.render.colors import glyph_of
from effbench.render.columns import heading, interval_text, title_and_unit
from effbench.render.data import DeviceSweep
from effbench.render.marks import signed
from effbench.render.site.writer import Json, as_json
from effbench.store.schema import TRIAL
from effbench.store.trials import SampledTrial, TimerSamples

#: Columns of `trial` that the page does not show side by side.
_HIDDEN = frozenset(
    {
        "id",
        "sweep_id",
        "cell_key",
        "environment_id",
        "reason",
        "extra",
        "recorded_at",
    }
)
#: Columns of `trial` that the page shows side by side, round and attempt first.
FACTS = [column.name for column in TRIAL.columns if column.name not in _HIDDEN]
_NAMES = {"phase": "last phase", "started_at": "started (UTC)"}
#: The heading of each of FACTS, and whether its values are sizes in bytes.
HEADINGS = [
    [_NAMES.get(name) or heading(name), title_and_unit(name)[1] == "bytes"] for name in FACTS
]
#: Parts of `extra` that other sections show.
_ELSEWHERE = frozenset({"profile", "traceback", "log"})
#: Facts of a result that the page shows first.
ABOUT = ("model", "bs", "dtype", "phase", "device")
#: Samples drawn per trial and timer, and per cell and timer.
MOST_POINTS = 200
MOST_POINTS_OF_CELL = 6000
Indices = npt.NDArray[np.int64]


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
        "results": metrics_of(result),
        "params": flatten(result.params),
        "command": device_sweep.command(result.params, result.environment_id),
        "trials": [_facts(trial) for trial in trials],
        "extra": extra(trials),
        "samples": samples([of_trial.timers for of_trial in sampled]),
        "kernels": kernels(trials),
        "errors": errors(trials),
    }


def _facts(trial: Trial) -> list[Any]:
    """Return the values of FACTS."""
    facts = {name: getattr(trial, name) for name in FACTS}
    if trial.started_at:
        facts["started_at"] = trial.started_at[:19].replace("T", " ")
    return list(facts.values())


def metrics_of(result: Result) -> dict[str, list[Any]]:
    """Return metric -> [value, its text, its interval's text, why it is marked or None] for the
    metrics that the result has."""
    values = {}
    for name, metric in METRICS.items():
        value = result.value(name)
        if value is not None:
            why = why_marked(result, name)
            text = signed(metric.format(value), why is not None)
            interval = interval_text(name, *bounds_of(result, name))
            values[name] = [value, text, interval, why]
    return values


def extra(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Return further recorded values: name -> one value per trial, None for trials without it."""
    by_name: dict[str, list[Any]] = {}
    for position, trial in enumerate(trials):
        shown = {key: value for key, value in trial.extra.items() if key not in _ELSEWHERE}
        for name, value in flatten(shown).items():
            if value is not None:
                by_name.setdefault(name, [None] * len(trials))[position] = value
    return by_name


def samples(trials: Sequence[Mapping[str, TimerSamples]]) -> dict[str, list[Json]]:
    """Return timer -> its trials: `trial` (position), numbers of samples `taken` and `stored`, and
    `points`, an even selection of the stored samples as base64 of little-endian float32."""
    most = min(MOST_POINTS, 1 + MOST_POINTS_OF_CELL // max(1, len(trials)))
    by_timer: dict[str, list[Json]] = {}
    for position, timers in enumerate(trials):
        for timer, of_timer in timers.items():
            stored = of_timer.stored
            if not len(stored):
                continue
            shown = stored[evenly(len(stored), min(most, len(stored)))]
            points = shown.astype("<f4", copy=False).tobytes()
            facts = {
                "trial": position,
                "taken": of_timer.taken,
                "stored": len(stored),
                "points": base64.b64encode(points).decode("ascii"),
            }
            by_timer.setdefault(timer, []).append(facts)
    return by_timer


def evenly(stored: int, shown: int) -> Indices:
    """Return the indices of `shown` samples, evenly spaced and with both ends."""
    return np.arange(shown) * (stored - 1) // max(1, shown - 1)


def kernels(trials: Iterable[Trial]) -> Json | None:
    """Return the largest kernels of the profiled passes, see `kernel_rows`. None without a
    profile."""
    passes = profiles_of(trials)
    if not passes:
        return None
    return {
        "passes": len(passes),
        "calls": passes[0].get("calls"),
        "in_graphs": max(profile.get("kernels_in_graphs") or 0 for profile in passes),
        "rows": kernel_rows(passes),
    }


def profiles_of(trials: Iterable[Trial]) -> list[Json]:
    """Return the profiles of undisturbed trials, or of all trials if each profiled one is marked:
    what disturbed a trial also slowed its kernels."""
    profiled = [trial for trial in trials if trial.extra.get("profile")]
    undisturbed = [trial for trial in profiled if trial.disturbance is None]
    return [trial.extra["profile"] for trial in undisturbed or profiled]


def kernel_rows(passes: Iterable[Json]) -> list[list[Any]]:
    """Return [name, launches per call, ms per call, fraction of GPU time, passes] of each kernel,
    averaged over the passes that list it. The kernel with the longest total time comes first."""
    kernels_of_passes = [kernel for profile in passes for kernel in profile["top"]]
    rows = []
    for name, same in grouped(kernels_of_passes, itemgetter("name")).items():
        count, ms, share = (fmean(map(itemgetter(fact), same)) for fact in ("count", "ms", "share"))
        rows.append([name, count, ms, share, len(same)])
    return sorted(rows, key=lambda row: -row[2] * row[4])


def errors(trials: Sequence[Trial]) -> list[Json]:
    """Return the distinct errors: `status`, `reason`, `phase`, `traceback`, `log` and positions of
    their `trials`."""
    distinct: dict[str, Json] = {}
    for position, trial in enumerate(trials):
        facts: Json = {"status": trial.status, "reason": trial.reason, "phase": trial.phase}
        texts = {name: str(trial.extra.get(name) or "") for name in ("traceback", "log")}
        if trial.status is not Status.OK or trial.reason or any(texts.values()):
            facts |= {name: excerpt(text) for name, text in texts.items()}
            error = distinct.setdefault(as_json(facts), facts | {"trials": []})
            error["trials"].append(position)
    return list(distinct.values())
