"""One cell: its figures, raw samples, trials, kernels and errors, and the command that runs it again.

One page for all cells of a subject: which it shows stands behind `#cell=` in its address, and its data lies in one of
the chunk files that the page finds by the key.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

from effbench.analysis.swept import SweptRow, plain
from effbench.metrics import METRICS
from effbench.report.colors import style_of
from effbench.report.site import cells
from effbench.report.site.files import Files
from effbench.report.site.grid import Column, Grid, cell
from effbench.report.site.material import Subject, TrialFacts
from effbench.report.site.pages.base import Page, PageFolder
from effbench.report.site.parts import processes, started

#: Characters of a chunk file; a cell alone may have more.
CHUNK = 800_000
#: Trials of all subjects from which on several processes write.
MANY_TRIALS = 2_000


def context(folder: PageFolder) -> Mapping[str, Any]:
    subject = folder.subject
    index = {
        "chunks": folder.begun() if folder.begun else list(chunks_of(folder, Entries(subject, folder))),
        "facts": [fact.plain() for fact in cells.FACTS],
        "metrics": {name: [metric.title, metric.help] for name, metric in METRICS.items()},
        "environments": {
            one["id"]: [f"{one['gpu_name'] or one['cpu_name']} · torch {one['torch_version']} · Python {one['python']}",
                        (one.get("flags") or {}).get("interpreter"), (one.get("flags") or {}).get("folder")]
            for one in subject.environments
        },
        "baseline": subject.baseline_mode,
    }  # fmt: skip
    return {
        "index": folder.data("index", index),
        "list": folder.grid("list", list_of(subject)),
        "cells": len(subject.rows),
    }


def chunks_of(folder: PageFolder, entries: Entries) -> Iterator[list[str]]:
    """Keep all cells; gives each file's first key and its path."""
    yield from write_chunks(folder, entries.of_trials(folder.subject.trials()))


@contextmanager
def ahead(folders: Sequence[PageFolder]) -> Iterator[None]:
    """Large subjects' cells are written by several processes, each a part of every subject, while this one writes the
    other pages."""
    parts = processes()
    large = [folder for folder in folders if folder.subject.trials_in_parts]
    trials = sum(row.source["trials"] or 0 for folder in large for row in folder.subject.labelled)
    if parts == 1 or trials < MANY_TRIALS:
        yield
        return
    entries = [Entries(folder.subject, folder) for folder in large]

    def write(part: int) -> tuple[list[list[list[str]]], dict[str, int]]:
        before = set(large[0].writer.written)
        found = [
            list(write_chunks(folder, own.of_trials(folder.subject.trials_in_parts(part, parts)), part))
            for folder, own in zip(large, entries, strict=True)
        ]
        return found, {path: size for path, size in large[0].writer.written.items() if path not in before}

    with started(parts, write) as wait:

        def chunks(number: int) -> list[list[str]]:
            done = wait()
            for _, written in done:
                large[number].writer.written |= written
            return [chunk for found, _ in done for chunk in found[number]]

        for number, folder in enumerate(large):
            folder.begun = partial(chunks, number)
        yield


def write_chunks(
    folder: PageFolder, found: Iterable[tuple[str, list[dict[str, Any]]]], part: int = 0
) -> Iterator[list[str]]:
    """Keep cells in files of about CHUNK characters; gives for each its first key and its path.

    Keys come in ascending order, so that a page finds the file of a key by these alone. Raises ValueError otherwise.
    """
    parts: list[str] = []
    first, last, size, number = "", "", 0, 0

    def flush() -> list[str]:
        path = f"data/cells-{part}-{number}.js"
        folder.writer.json(folder.folder + path, "{" + ",\n".join(parts) + "}")
        return [first, path]

    for key, entries in found:
        if key <= last:
            raise ValueError(f"cells come in the order of their keys, each once: {key!r} after {last!r}")
        last = key
        text = f"{json.dumps(key)}:{_json(entries)}"
        if parts and size + len(text) > CHUNK:
            yield flush()
            parts, size, number = [], 0, number + 1
        if not parts:
            first = key
        parts.append(text)
        size += len(text)
    if parts:
        yield flush()


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a database that others wrote may hold NaN
        return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return plain(value)


class Entries:
    """What is said of each result of a subject."""

    def __init__(self, subject: Subject, folder: PageFolder) -> None:
        self.subject = subject
        self.files = Files(folder.writer, folder.folder, subject.artifacts)
        self.rows: dict[tuple[str, str], SweptRow] = {}
        self.points: dict[tuple, list[SweptRow]] = defaultdict(list)
        self.curves: dict[tuple, list[SweptRow]] = defaultdict(list)
        for row in subject.labelled:
            self.rows[row.source["cell_key"], row.source["environment_id"]] = row
            self.points[_point(row)].append(row)
            self.curves[_curve(row)].append(row)
        self.said = {id(row): neighbour(row) for row in subject.labelled}

    def of_trials(self, trials: Iterable[TrialFacts]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Each cell's key with an entry for each of its environments. Trials of a cell that has no result (a sweep that
        runs had none when its results were read) are left out."""
        for key, of_cell in groupby(trials, key=lambda trial: trial.row["cell_key"]):
            entries = [
                self.entry(self.rows[key, environment], list(own))
                for environment, own in groupby(of_cell, key=lambda trial: trial.row["environment_id"])
                if (key, environment) in self.rows
            ]
            if entries:
                yield key, entries

    def entry(self, row: SweptRow, trials: list[TrialFacts]) -> dict[str, Any]:
        source = row.source
        short, long = cells.more(trials)
        params = json.loads(source["params"]) if isinstance(source["params"], str) else source["params"]
        command, why_not = self.subject.command(params, source["environment_id"])
        return {
            "env": source["environment_id"],
            "name": row.name,
            "mode": row.mode,
            "glyph": _glyph(row.base_mode),
            "facts": [[name, source[name]] for name in ("model", "bs", "dtype", "phase", "device")],
            "status": source["status"],
            "reason": source["reason"],
            "bound": source.get("bound"),
            "count": source["trials"],
            "results": cells.results(source),
            "trials": [cells.trial_values(trial.row) for trial in trials],
            "short": short,
            "long": long,
            "samples": cells.samples(trials),
            "kernels": cells.kernels(trials),
            "errors": cells.errors(trials),
            "artifacts": self.artifacts(trials),
            "params": params,
            "command": command,
            "why_not": why_not,
            "modes": [self.said[id(other)] for other in self.points[_point(row)] if other is not row],
            "sizes": [self.said[id(other)] for other in self.curves[_curve(row)] if other is not row],
        }

    def artifacts(self, trials: Iterable[TrialFacts]) -> list[list[str | None]]:
        """As `Files.links` gives them."""
        names = (str(name) for trial in trials for name in trial.row["extra"].get("artifacts") or ())
        return self.files.links(dict.fromkeys(names))


def _point(row: SweptRow) -> tuple:
    return tuple(row.labels.values())


def _curve(row: SweptRow) -> tuple:
    return (*(value for name, value in row.labels.items() if name != "bs"), row.mode)


def _glyph(mode: str) -> list[str]:
    style = style_of(mode)
    return [style.color, style.glyph]


def neighbour(row: SweptRow) -> list[Any]:
    """What a link to a cell says: mode, its look, bs, key, environment, status, latency, speedup."""
    source = row.source
    ok = source["status"] == "ok"
    return [
        row.mode, _glyph(row.base_mode), row.labels["bs"], cells.short_key(source["cell_key"]),
        source["environment_id"], source["status"], METRICS["latency_ms"].format(source["latency_ms"]) if ok else None,
        METRICS["speedup"].format(source["speedup"]) if ok and source["speedup"] is not None else None,
    ]  # fmt: skip


def list_of(subject: Subject) -> Grid:
    """Every cell with a link to it."""
    several = len(subject.environments) > 1
    names = [name for name in subject.labelled[0].labels if name != "bs"] if subject.labelled else ["model"]
    columns = [
        *(Column(name, filter=True) for name in names), Column("bs", numeric=True, filter=True),
        Column("mode", filter=True), Column("status", filter=True), Column("latency", numeric=True),
        Column("speedup", numeric=True), Column("trials", numeric=True),
    ]  # fmt: skip
    rows = []
    for row in subject.labelled:
        source = row.source
        ok = source["status"] == "ok"
        latency, speedup = (source["latency_ms"], source["speedup"]) if ok else (None, None)
        rows.append([
            *(str(row.labels[name]) for name in names), row.labels["bs"],
            cell(row.mode, link=cells.address(source, several), glyph=tuple(_glyph(row.base_mode))),
            "ok" if ok else cell(str(source["status"]), tone="status"),
            cell("—") if latency is None else cell(METRICS["latency_ms"].format(latency), latency),
            cell("—") if speedup is None else cell(METRICS["speedup"].format(speedup), speedup),
            source["trials"],
        ])  # fmt: skip
    return Grid("Cells of this sweep", columns, rows)


SCRIPTS = ("datatables.js", "grid.js", "plotly.min.js", "charts.js", "cell_samples.js", "cell.js")
PAGE = Page("cell", "Cells", 50, context, scripts=SCRIPTS, ahead=ahead)
