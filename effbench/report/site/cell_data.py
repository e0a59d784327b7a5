"""Data of a cell's page: results, facts, samples, kernels, errors, and artifacts copied into the
site.

A page finds a cell's file by the first key of each file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from effbench.cell import digest
from effbench.labels import PLACES, LabelledRow, flatten
from effbench.metrics import METRICS, format_bytes
from effbench.printable import excerpt
from effbench.report import marks
from effbench.report.colors import glyph_of
from effbench.report.columns import heading, interval_text, title_and_unit
from effbench.report.data import DeviceSweep, Trial
from effbench.report.marks import signed, why_marked
from effbench.report.site.writer import Writer, as_json
from effbench.store.connect import artifact_home
from effbench.store.schema import TRIAL

#: Columns of `trial` that the page shows side by side, round and attempt first.
FACTS = [
    column.name
    for column in TRIAL.columns
    if column.name
    not in ("id", "sweep_id", "cell_key", "environment_id", "reason", "extra", "recorded_at")
]
_VALUES = itemgetter(*FACTS)
_NAMES = {"phase": "last phase", "started_at": "started (UTC)"}
#: The heading of each of FACTS, and whether its values are sizes in bytes.
HEADINGS = [
    [_NAMES.get(name) or heading(name), title_and_unit(name)[1] == "bytes"] for name in FACTS
]
#: Parts of `extra` that other sections show.
_ELSEWHERE = frozenset({"profile", "traceback", "log", "artifacts"})
#: Most characters per file of cells, unless a single cell has more.
MOST_CHARACTERS = 800_000
#: Samples drawn per trial and timer; fewer if a cell has many trials.
POINTS = 200
MOST_POINTS = 6000
FEWEST_POINTS = 25
#: Suffixes of files that no browser executes; other files are not copied.
KINDS = (".json.gz", ".json", ".py", ".txt", ".log", ".dot", ".pickle")
#: Most bytes copied per file, and per process and device sweep: traces and snapshots can be very
#: large.
LARGEST = 4 * 2**20
MOST = 64 * 2**20


def write_cells(
    writer: Writer, folder: str, cells: Iterable[tuple[str, list[dict[str, Any]]]]
) -> Iterator[list[str]]:
    """Write cells, with ascending keys, to files of about MOST_CHARACTERS; yield [first key, path
    in `folder`]."""
    texts: dict[str, str] = {}
    numbers, size = count(), 0

    def flush() -> list[str]:
        first, path = next(iter(texts)), f"data/cells-{next(numbers)}.js"
        writer.script(folder + path, "{" + ",\n".join(texts.values()) + "}")
        texts.clear()
        return [first, path]

    for key, entries in cells:
        text = f"{json.dumps(key)}:{as_json(entries)}"
        if texts and size + len(text) > MOST_CHARACTERS:
            yield flush()
            size = 0
        texts[key] = text
        size += len(text)
    if texts:
        yield flush()


def cells_of(
    device_sweep: DeviceSweep, writer: Writer
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield (cell key, one entry per environment) for each cell.

    Skip cells without a result, whose first trials a running sweep recorded after the results were
    read.
    """
    if device_sweep.database is None:
        return
    rows = {
        (row.source["cell_key"], row.source["environment_id"]): row for row in device_sweep.labelled
    }
    files = ArtifactFiles(writer, f"{device_sweep.slug}/", artifact_home(device_sweep.database))
    for key, of_cell in groupby(device_sweep.trials(), key=lambda trial: trial[0]["cell_key"]):
        entries = [
            entry(device_sweep, rows[key, environment], list(trials), files)
            for environment, trials in groupby(
                of_cell, key=lambda trial: trial[0]["environment_id"]
            )
            if (key, environment) in rows
        ]
        if entries:
            yield key, entries


def entry(
    device_sweep: DeviceSweep, row: LabelledRow, trials: Sequence[Trial], files: ArtifactFiles
) -> dict[str, Any]:
    """Return the page's data of one result."""
    source = row.source
    facts = [facts for facts, _ in trials]
    command, why_not = device_sweep.command(source["params"], source["environment_id"])
    return {
        "env": source["environment_id"],
        "name": row.name,
        "labels": {name: label for name, label in row.labels.items() if name not in PLACES},
        "mode": row.mode,
        "glyph": glyph_of(row.base_mode),
        "about": {name: source[name] for name in ("model", "bs", "dtype", "phase", "device")},
        "status": source["status"],
        "reason": source["reason"],
        "bound": source.get("bound"),
        "disturbance": why_marked(source),
        "count": source["trials"],
        "results": results(row),
        "artifacts": files.links(trials),
        "params": flatten(source["params"]),
        "command": command,
        "why_not": why_not,
        "trials": [
            _VALUES(
                row | {"started_at": row["started_at"] and f"{row['started_at']:%Y-%m-%d %H:%M:%S}"}
            )
            for row in facts
        ],
        "extra": extra(facts),
        "samples": samples([timers for _, timers in trials]),
        "kernels": kernels(facts),
        "errors": errors(facts),
    }


def results(row: LabelledRow) -> dict[str, list[Any]]:
    """Return metric -> [value, its text, its interval's text, why it is marked or None] for the
    metrics that the result has."""
    found = {}
    for name, metric in METRICS.items():
        value = row.source.get(name)
        if value is not None:
            why = marks.reason(row.source, name)
            text = signed(metric.format(value), why is not None)
            found[name] = [value, text, interval_text(name, row.source), why]
    return found


def extra(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return further recorded values: name -> one value per trial, None for trials without it."""
    flat = [
        flatten({key: value for key, value in row["extra"].items() if key not in _ELSEWHERE})
        for row in rows
    ]
    by_name = {
        name: [values.get(name) for values in flat]
        for name in dict.fromkeys(chain.from_iterable(flat))
    }
    return {name: values for name, values in by_name.items() if values.count(None) < len(values)}


def samples(trials: Sequence[Mapping[str, tuple[int, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return timer -> its trials: `trial` (position), numbers of samples `taken` and `stored`, and
    `points`, an even selection of the stored samples as base64 of little-endian float32."""
    most = min(POINTS, max(FEWEST_POINTS, MOST_POINTS // max(1, len(trials))))
    by_timer: dict[str, list[dict[str, Any]]] = {}
    for position, timers in enumerate(trials):
        for timer, (taken, stored) in timers.items():
            if len(stored):
                shown = stored[evenly(len(stored), min(most, len(stored)))].astype(
                    "<f4", copy=False
                )
                points = base64.b64encode(shown.tobytes()).decode("ascii")
                facts = {
                    "trial": position,
                    "taken": int(taken),
                    "stored": len(stored),
                    "points": points,
                }
                by_timer.setdefault(timer, []).append(facts)
    return by_timer


def evenly(stored: int, shown: int) -> np.ndarray:
    """Return the indices of `shown` samples, evenly spaced and with both ends."""
    return np.arange(shown) * (stored - 1) // max(1, shown - 1)


def kernels(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the largest kernels of the profiled passes: [name, launches per call, ms per call,
    fraction of GPU time, passes], averaged over the passes that list the kernel. None without a
    profile. Marked trials count only alone: what disturbed them also slowed their kernels."""
    profiled = [row for row in rows if row["extra"].get("profile")]
    undisturbed = [row for row in profiled if row.get("disturbance") is None]
    passes = [row["extra"]["profile"] for row in undisturbed or profiled]
    if not passes:
        return None
    listed: dict[str, list[tuple[float, ...]]] = {}
    for kernel in (kernel for profile in passes for kernel in profile["top"]):
        listed.setdefault(kernel["name"], []).append(
            (kernel["count"], kernel["ms"], kernel["share"])
        )
    means = [
        [name, *(sum(fact) / len(same) for fact in zip(*same, strict=True)), len(same)]
        for name, same in listed.items()
    ]
    return {
        "passes": len(passes),
        "calls": passes[0].get("calls"),
        "in_graphs": max(profile.get("kernels_in_graphs") or 0 for profile in passes),
        "rows": sorted(means, key=lambda row: -row[2] * row[4]),
    }


def errors(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the distinct errors: `status`, `reason`, `phase`, `traceback`, `log` and positions of
    their `trials`."""
    distinct: dict[tuple, dict[str, Any]] = {}
    for position, row in enumerate(rows):
        texts = {
            name: excerpt(str(row["extra"][name]))
            for name in ("traceback", "log")
            if row["extra"].get(name)
        }
        if row["status"] == "ok" and not texts and not row["reason"]:
            continue
        facts = {name: row[name] for name in ("status", "reason", "phase")} | texts
        distinct.setdefault(tuple(facts.items()), facts | {"trials": []})["trials"].append(position)
    return list(distinct.values())


@dataclass
class ArtifactFiles:
    """Copies artifacts from `home` into `folder` of the site, so that links work after the site is
    moved. `room`: bytes that may still be copied."""

    writer: Writer
    folder: str
    home: Path
    room: int = MOST

    def links(self, trials: Iterable[Trial]) -> list[list[str | None]]:
        """Return [name, link relative to the page or None, reason for None] for each artifact of
        the trials."""
        names = (str(name) for row, _ in trials for name in row["extra"].get("artifacts") or ())
        return [[name, *self._link(name)] for name in dict.fromkeys(names)]

    def _link(self, name: str) -> tuple[str | None, str | None]:
        try:
            path = (self.home / name).resolve()
            if not path.is_relative_to((self.home / "artifacts").resolve()) or not path.is_file():
                return None, "file not found"
            size = path.stat().st_size
        # removed meanwhile, or an invalid name: too long, a null character
        except (OSError, ValueError):
            return None, "file not found"
        # a hash of the path makes names unique: cells have files of the same name
        target = f"files/{digest(name)[:12]}-{re.sub(r'[^A-Za-z0-9._-]', '_', path.name)[-60:]}"
        if not path.name.endswith(KINDS) or size > LARGEST or size > self.room:
            return None, f"{format_bytes(size)}, not copied into the site"
        try:
            self.writer.copy(self.folder + target, path)
        except FileNotFoundError:  # removed meanwhile
            return None, "file not found"
        self.room -= size
        return target, None
