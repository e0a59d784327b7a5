"""One cell: its figures, raw samples, trials, kernels and errors, and the command that runs it again.

One page for all cells of a device sweep: its address names the cell behind `#cell=`, and the cell's data is in one of
the chunk files, which the page finds by the key.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any
from urllib.parse import quote

from effbench.environments import hardware_of
from effbench.labels import LabelledRow
from effbench.metrics import METRICS
from effbench.report.colors import glyph_of
from effbench.report.data import DeviceSweep, Trial
from effbench.report.figures.base import compact_json
from effbench.report.site import cell_data
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder
from effbench.report.site.parallel import processes, started
from effbench.report.site.writer import Writer
from effbench.table import Column, Shown, Table

#: Characters of a chunk file; a cell alone may have more.
CHUNK = 800_000
#: Trials of all device sweeps from which on several processes write.
MANY_TRIALS = 2_000
#: Characters of a key in links: enough to find it.
SHORT_KEY = 16

Chunks = list[list[str]]


def short_key(key: str) -> str:
    """Return the start of a hash; another key as it is."""
    is_hash = len(key) == 64 and all(character in "0123456789abcdef" for character in key)
    return key[:SHORT_KEY] if is_hash else key


def address(device_sweep: DeviceSweep, row: Mapping[str, Any]) -> str:
    """Return what follows the page's name in the address of a result's cell."""
    where = f"&env={quote(row['environment_id'], safe='')}" if len(device_sweep.environments) > 1 else ""
    return f"#cell={quote(short_key(row['cell_key']), safe='')}{where}"


def context(folder: PageFolder) -> Mapping[str, Any]:
    own = folder.device_sweep
    index = {
        "chunks": folder.chunks(own),
        "facts": [list(fact) for _, *fact in cell_data.FACTS],
        "metrics": {name: [metric.title, metric.help] for name, metric in METRICS.items()},
        "environments": {
            one["id"]: [f"{hardware_of(one)} · torch {one['torch_version']} · Python {one['python']}",
                        (one.get("flags") or {}).get("interpreter"), (one.get("flags") or {}).get("folder")]
            for one in own.environments
        },
        "baseline": own.baseline_mode,
    }  # fmt: skip
    return {"index": folder.data("index", index), "list": folder.grid("list", list_of(own)), "cells": len(own.rows)}


def list_of(own: DeviceSweep) -> Table:
    """Every cell with a link to it."""
    names = [name for name in own.labelled[0].labels if name != "bs"] if own.labelled else ["model"]
    columns = [
        *(Column(name, filter=True) for name in names), Column("bs", numeric=True, filter=True),
        Column("the mode", "mode", filter=True), Column("the status", "status", filter=True),
        *(Column(f"the {name}", name, numeric=True) for name in ("latency", "speedup", "trials")),
    ]  # fmt: skip
    rows = []
    for row in own.labelled:
        source = row.source
        ok = source["status"] == "ok"
        figures = [source[name] if ok else None for name in ("latency_ms", "speedup")]
        rows.append([
            *(str(row.labels[name]) for name in names), row.labels["bs"],
            Shown(row.mode, row.mode, link=address(own, source), glyph=glyph_of(row.base_mode)),
            "ok" if ok else Shown(None, str(source["status"]), "status"),
            *(Shown(value, METRICS[name].format(value))
              for name, value in zip(("latency_ms", "speedup"), figures, strict=True)),
            source["trials"],
        ])  # fmt: skip
    return Table.of(columns, rows, "Cells of this sweep")


# --- chunk files ---


@contextmanager
def cells_of_all(device_sweeps: Sequence[DeviceSweep], writer: Writer) -> Iterator[Callable[[DeviceSweep], Chunks]]:
    """Yield a function that returns the chunk files of a device sweep, as [first key, path] each.

    Of many trials several processes write them, each a part of every device sweep, while this one goes on.
    """
    parts = processes()
    trials = sum(row["trials"] or 0 for one in device_sweeps for row in one.rows)
    if parts == 1 or trials < MANY_TRIALS:
        yield lambda own: list(write_cells(own, writer))
        return
    entries = [CellEntries(own, writer) for own in device_sweeps]

    def write(part: int) -> tuple[list[Chunks], dict[str, int]]:
        before = set(writer.written)
        chunks = [list(write_cells(own.device_sweep, writer, own, part, parts)) for own in entries]
        return chunks, {path: size for path, size in writer.written.items() if path not in before}

    with started(parts, write) as wait:

        def chunks_of(own: DeviceSweep) -> Chunks:
            number = next(place for place, one in enumerate(device_sweeps) if one is own)
            for _, written in wait():
                writer.written |= written
            return [chunk for chunks, _ in wait() for chunk in chunks[number]]

        yield chunks_of


def write_cells(
    own: DeviceSweep, writer: Writer, entries: CellEntries | None = None, part: int = 0, parts: int = 1
) -> Iterator[list[str]]:
    cells = (entries or CellEntries(own, writer)).of_trials(own.trials(part, parts))
    yield from write_chunks(writer, f"{own.slug}/", cells, part)


def write_chunks(
    writer: Writer, folder: str, cells: Iterable[tuple[str, list[dict[str, Any]]]], part: int = 0
) -> Iterator[list[str]]:
    """Write cells in files of about CHUNK characters; yield for each its first key and its path in `folder`.

    Keys come in ascending order, so that a page finds the file of a key by the first ones. Raises ValueError otherwise.
    """
    texts: list[str] = []
    first, last, size, number = "", "", 0, 0

    def flush() -> list[str]:
        path = f"data/cells-{part}-{number}.js"
        writer.json(folder + path, "{" + ",\n".join(texts) + "}")
        return [first, path]

    for key, entries in cells:
        if key <= last:
            raise ValueError(f"cells come in the order of their keys, each once: {key!r} after {last!r}")
        last = key
        text = f"{json.dumps(key)}:{compact_json(entries)}"
        if texts and size + len(text) > CHUNK:
            yield flush()
            texts, size, number = [], 0, number + 1
        first = first if texts else key
        texts.append(text)
        size += len(text)
    if texts:
        yield flush()


class CellEntries:
    """What the page shows of each result of a device sweep."""

    def __init__(self, own: DeviceSweep, writer: Writer) -> None:
        self.device_sweep = own
        self.files = cell_data.ArtifactFiles(writer, f"{own.slug}/", own.artifacts)
        self.rows: dict[tuple[str, str], LabelledRow] = {}
        self.points: dict[tuple, list[LabelledRow]] = defaultdict(list)
        self.curves: dict[tuple, list[LabelledRow]] = defaultdict(list)
        for row in own.labelled:
            self.rows[row.source["cell_key"], row.source["environment_id"]] = row
            self.points[_point(row)].append(row)
            self.curves[_curve(row)].append(row)
        self.links = {id(row): neighbour(row) for row in own.labelled}  # of each about a dozen cells say the same

    def of_trials(self, trials: Iterable[Trial]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield each cell's key with an entry for each of its environments. Trials of a cell without a result (the
        sweep runs, and had none when its results were read) are skipped."""
        for key, of_cell in groupby(trials, key=lambda trial: trial[0]["cell_key"]):
            entries = [
                self.entry(self.rows[key, environment], list(own))
                for environment, own in groupby(of_cell, key=lambda trial: trial[0]["environment_id"])
                if (key, environment) in self.rows
            ]
            if entries:
                yield key, entries

    def entry(self, row: LabelledRow, trials: list[Trial]) -> dict[str, Any]:
        source = row.source
        command, why_not = self.device_sweep.command(source["params"], source["environment_id"])
        return {
            "env": source["environment_id"],
            "name": row.name,
            "mode": row.mode,
            "glyph": glyph_of(row.base_mode),
            "facts": [[name, source[name]] for name in ("model", "bs", "dtype", "phase", "device")],
            "status": source["status"],
            "reason": source["reason"],
            "bound": source.get("bound"),
            "count": source["trials"],
            "results": cell_data.results(source),
            "artifacts": self.files.links(trials),
            "params": source["params"],
            "command": command,
            "why_not": why_not,
            "modes": [self.links[id(other)] for other in self.points[_point(row)] if other is not row],
            "sizes": [self.links[id(other)] for other in self.curves[_curve(row)] if other is not row],
        } | cell_data.of_trials(trials)


def _point(row: LabelledRow) -> tuple:
    return tuple(row.labels.values())


def _curve(row: LabelledRow) -> tuple:
    return (*(value for name, value in row.labels.items() if name != "bs"), row.mode)


def neighbour(row: LabelledRow) -> list[Any]:
    """Return what a link to a cell shows: mode, its look, bs, key, environment, status, latency, speedup."""
    source = row.source
    figures = [source[name] if source["status"] == "ok" else None for name in ("latency_ms", "speedup")]
    texts = [None if value is None else METRICS[name].format(value)
             for name, value in zip(("latency_ms", "speedup"), figures, strict=True)]  # fmt: skip
    return [row.mode, glyph_of(row.base_mode), row.labels["bs"], short_key(source["cell_key"]),
            source["environment_id"], source["status"], *texts]  # fmt: skip


SCRIPTS = (*GRIDS, *CHARTS, "cell_samples.js", "cell.js")
PAGE = Page("cell", "Cells", 50, context, scripts=SCRIPTS)
