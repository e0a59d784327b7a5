"""Cells: results, raw samples, trials, kernels and errors of a cell, and the command that measures
it again.

All cells of a device sweep share one page. Its URL names the cell (`#cell=KEY`), and by the key the
page finds the cell's data in the files of `cell_data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from effbench.environments import hardware_of
from effbench.labels import LabelledRow
from effbench.metrics import METRICS
from effbench.report.colors import glyph_of
from effbench.report.data import DeviceSweep
from effbench.report.marks import is_marked, note, why_marked
from effbench.report.site import cell_data
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder
from effbench.report.tables import IS_UNCLEAR, time_cells, time_columns
from effbench.table import Column, Shown, Table


def link(device_sweep: DeviceSweep, row: Mapping[str, Any]) -> str:
    """Return the URL of a result's cell, relative to the folder of the device sweep."""
    key = row["cell_key"]
    key = key[:16] if len(key) == 64 else key  # enough of the hash to find the cell
    environment = (
        f"&env={quote(row['environment_id'], safe='')}"
        if len(device_sweep.environments) > 1
        else ""
    )
    return f"cell.html#cell={quote(key, safe='')}{environment}"


def context(folder: PageFolder) -> Mapping[str, Any]:
    device_sweep = folder.device_sweep
    cells = cell_data.cells_of(device_sweep, folder.writer)
    index = {
        "hardware": device_sweep.hardware,
        "chunks": list(cell_data.write_cells(folder.writer, folder.folder, cells)),
        "facts": cell_data.HEADINGS,
        "metrics": {name: [metric.title, metric.help] for name, metric in METRICS.items()},
        "environments": {row["id"]: environment_name(row) for row in device_sweep.environments},
    }
    grid = folder.grid("list", list_of(device_sweep))
    unclear = IS_UNCLEAR.capitalize() if device_sweep.speedups.is_unclear else ""
    return {
        "index": folder.data("index", index),
        "list": grid,
        "cells": len(device_sweep.rows),
        "unclear": unclear,
        "marks": note(device_sweep.labelled),
    }


def environment_name(row: Mapping[str, Any]) -> str:
    flags = row.get("flags") or {}
    parts = [hardware_of(row), f"torch {row['torch_version']}", f"Python {row['python']}"]
    return " · ".join(
        parts + [f"{name} {flags[name]}" for name in ("interpreter", "folder") if flags.get(name)]
    )


#: Columns that name a cell, in every table of cells.
CELL = [
    Column("cell"),
    Column("model", filter=True),
    Column("bs", numeric=True, filter=True),
    Column("mode", filter=True),
]
TRIALS = Column("trials", numeric=True)


def cell_of(row: LabelledRow, device_sweep: DeviceSweep | None = None) -> dict[str, Any]:
    """Return the values of CELL and TRIALS. With `device_sweep`, the name links to the cell's
    page."""
    return {
        "cell": Shown(
            row.name, row.name, "name", link=link(device_sweep, row.source) if device_sweep else ""
        ),
        "model": row.case,
        "bs": row.labels["bs"],
        "mode": Shown(row.mode, row.mode, glyph=glyph_of(row.base_mode)),
        "trials": row.source.get("trials"),
    }


def list_of(device_sweep: DeviceSweep) -> Table:
    """Return a table of all cells with links; failed cells have no figures."""
    columns = [*CELL, Column("status", filter=True)]
    columns += time_columns(device_sweep.labelled)
    columns.append(TRIALS)
    if any(is_marked(row.source) for row in device_sweep.labelled):
        columns.append(Column("disturbance", wide=True))
    rows = []
    for row in device_sweep.labelled:
        status = str(row.source["status"])
        values = cell_of(row, device_sweep) | time_cells(row)
        values["status"] = Shown(status, status, "" if status == "ok" else "status")
        values["disturbance"] = why_marked(row.source) or ""
        rows.append(values)
    return Table(columns, rows, caption="Cells of this sweep")


PAGE = Page("cell", "Cells", context, scripts=(*GRIDS, *CHARTS, "cell_samples.js", "cell.js"))
