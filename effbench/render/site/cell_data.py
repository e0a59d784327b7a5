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

from effbench.analysis.explain import why_not_traced
from effbench.core.cell import Status, Trial
from effbench.core.labels import PLACES, LabelledResult, flatten
from effbench.core.metrics import TRIAL_METRICS
from effbench.core.printable import excerpt
from effbench.render.colors import glyph_of
from effbench.render.data import DeviceSweep
from effbench.render.site.explained import key_of
from effbench.render.site.page import estimates_of
from effbench.render.site.writer import Json, as_json
from effbench.store.trials import SampledTrial, StoredSamples
from effbench.store.values import ResultKey

#: Facts of a trial that the page shows side by side, in this order, besides those of `extra`.
FACTS = ("status", "phase", "started_at", *(metric.name for metric in TRIAL_METRICS))
#: Parts of `extra` that other sections show.
_ELSEWHERE = ("profile", "traceback", "log")
#: Facts of a result that the page shows first.
ABOUT = ("model", "bs", "dtype", "phase", "device")
#: Samples drawn per trial and timer, and per cell and timer.
MOST_POINTS = 200
MOST_POINTS_OF_CELL = 6000
#: The timer that comes last.
WARMUP = "warmup_ms"
#: Timer -> its title, if its name is not plain enough.
TITLES = {
    WARMUP: "warm-up calls",
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
}


def cells_of(
    device_sweep: DeviceSweep, explained: Mapping[ResultKey, str]
) -> Iterator[tuple[str, list[Json]]]:
    """Yield (cell key, one entry per environment) for each cell, keys in ascending order.
    `explained`: result -> file with what explains its latency.

    Skip cells without a result, whose first trials a running sweep recorded after the results were
    read.
    """
    rows = {(row.cell_key, row.environment_id): row for row in device_sweep.rows}
    for key, of_cell in groupby(device_sweep.trials(), attrgetter("trial.cell_key")):
        entries = []
        for environment, sampled in groupby(of_cell, attrgetter("trial.environment_id")):
            labelled = rows.get((key, environment))
            if labelled is not None:
                one = entry(device_sweep, labelled, list(sampled))
                one["explained"] = explained.get(key_of(labelled))
                entries.append(one)
        if entries:
            yield key, entries


def entry(device_sweep: DeviceSweep, row: LabelledResult, sampled: Sequence[SampledTrial]) -> Json:
    """Return the page's data of one result. Positions of trials are those in `trials`."""
    trials = [of_trial.trial for of_trial in sampled]
    return {
        "env": row.environment_id,
        "where": row.where,
        "name": row.name,
        "labels": {name: label for name, label in row.labels.items() if name not in PLACES},
        "mode": row.mode_label,
        "glyph": glyph_of(row.mode),
        "about": {name: getattr(row, name) for name in ABOUT},
        "status": row.status,
        "reason": row.reason,
        "bound": row.bound,
        "disturbance": row.disturbance,
        "count": row.trials,
        "results": estimates_of(row),
        "params": flatten(row.params),
        "command": device_sweep.command(row.cell_key, row.environment_id),
        "trials": [{"round": trial.round, "attempt": trial.attempt} for trial in trials],
        "facts": facts(trials),
        "timers": timers([of_trial.timers for of_trial in sampled]),
        "profile": profile(trials),
        "not_traced": why_not_traced(trials),
        "errors": errors(trials),
    }


def facts(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Return the facts that trials have, FACTS and the rest of `extra`, by name: the values by
    position of the trial, None for trials without it."""
    by_name: dict[str, list[Any]] = {}
    for position, trial in enumerate(trials):
        known = {name: getattr(trial, name) for name in FACTS}
        known |= {name: value for name, value in trial.extra.items() if name not in _ELSEWHERE}
        for name, value in flatten(known).items():
            if value is not None:
                by_name.setdefault(name, [None] * len(trials))[position] = value
    return by_name


def timers(trials: Sequence[Mapping[str, StoredSamples]]) -> list[Json]:
    """Return the timers of these trials in the order of the page: `title`, and the `trials` that
    have samples, which are in ms."""
    by_timer: dict[str, list[Json]] = {}
    most = min(MOST_POINTS, 1 + MOST_POINTS_OF_CELL // len(trials))
    for position, of_trial in enumerate(trials):
        for name, samples in of_trial.items():
            if len(samples.stored):
                drawn = {"trial": position, **drawn_samples(samples, most)}
                by_timer.setdefault(name, []).append(drawn)
    found = []
    for name in sorted(by_timer, key=lambda name: (name == WARMUP, name)):
        title = TITLES.get(name, name.removesuffix("_ms").replace("_", " "))
        found.append({"name": name, "title": title, "trials": by_timer[name]})
    return found


def drawn_samples(samples: StoredSamples, most: int) -> Json:
    """Return the numbers of samples `taken` and `stored`, and `points`, an even selection of at
    most `most` stored samples as base64 of little-endian float32."""
    stored = samples.stored
    places = np.linspace(0, len(stored) - 1, min(most, len(stored)), dtype=np.int64)
    points = stored[places].astype("<f4", copy=False).tobytes()
    return {
        "taken": samples.taken,
        "stored": len(stored),
        "points": base64.b64encode(points).decode("ascii"),
    }


def profile(trials: Iterable[Trial]) -> Json | None:
    """Return the first profiled pass; of an undisturbed trial, if any: what disturbed a trial also
    slowed its kernels."""
    in_order = sorted(trials, key=lambda trial: trial.disturbance is not None)
    for trial in in_order:
        if "profile" in trial.extra:
            passed: Json = trial.extra["profile"]
            return passed
    return None


def errors(trials: Sequence[Trial]) -> list[Json]:
    """Return the distinct errors: `status`, `reason`, `phase`, `traceback`, `log` and positions of
    their `trials`."""
    distinct: dict[str, Json] = {}
    for position, trial in enumerate(trials):
        if trial.status is Status.OK:
            continue
        facts: Json = {"status": trial.status, "reason": trial.reason, "phase": trial.phase}
        for name in ("traceback", "log"):
            facts[name] = excerpt(str(trial.extra.get(name) or ""))
        error = distinct.setdefault(as_json(facts), facts | {"trials": []})
        error["trials"].append(position)
    return list(distinct.values())
