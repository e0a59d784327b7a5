"""Cells: results, raw samples, trials, kernels and errors of a cell, and the command that measures
it again.

All cells of a device sweep share one page. Its URL names the cell (`#cell=KEY`), and by the key the
page finds the cell's data in the files of `cell_data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from effbench.cell import Result
from effbench.environments import hardware_of
from effbench.metrics import METRICS
from effbench.report.bottlenecks import bottleneck_table, no_bottlenecks, time_columns
from effbench.report.colors import glyph_of
from effbench.report.data import DeviceSweep
from effbench.report.site import cell_data
from effbench.report.site.page import (
    CHARTS,
    GRIDS,
    Context,
    Page,
    PageFolder,
)
from effbench.table import Column, Shown, Table


def link(device_sweep: DeviceSweep, result: Result) -> str:
    """Return the URL of a result's cell, relative to the folder of the device sweep."""
    key = result.cell_key
    # enough of the hash to find the cell
    if len(key) == 64:
        key = key[:16]
    url = f"cell.html#cell={quote(key, safe='')}"
    if len(device_sweep.environments) > 1:
        url += f"&env={quote(result.environment_id, safe='')}"
    return url


def context(folder: PageFolder) -> Context:
    device_sweep = folder.subject
    cells = cell_data.cells_of(device_sweep, folder.writer)
    index = {
        "hardware": device_sweep.hardware,
        "chunks": list(cell_data.write_cells(folder.writer, folder.folder, cells)),
        "facts": cell_data.HEADINGS,
        "metrics": {name: [metric.title, metric.help] for name, metric in METRICS.items()},
        "environments": {row["id"]: environment_name(row) for row in device_sweep.environments},
    }
    return {
        "index": folder.data("index", index),
        "list": folder.grid("list", list_of(device_sweep)),
        "no_bottlenecks": no_bottlenecks(device_sweep.labelled),
    }


def environment_name(row: Mapping[str, Any]) -> str:
    parts = [hardware_of(row), f"torch {row['torch_version']}", f"Python {row['python']}"]
    flags = row.get("flags") or {}
    for name in ("interpreter", "folder"):
        if flags.get(name):
            parts.append(f"{name} {flags[name]}")
    return " · ".join(parts)


def list_of(device_sweep: DeviceSweep) -> Table:
    """Return a table of all cells with links, and what bounds them or why they failed."""
    bottlenecks = bottleneck_table(device_sweep.labelled)
    columns = [
        Column("model", filter=True),
        Column("bs", numeric=True, filter=True),
        Column("mode", filter=True),
        Column("status", filter=True),
        *time_columns(device_sweep.labelled),
        Column("trials", numeric=True),
        Column("bound", filter=True),
        Column("why", wide=True),
    ]
    rows = []
    for row, values in zip(device_sweep.labelled, bottlenecks.rows, strict=True):
        shown = {
            "model": Shown(row.case, row.case, "name", link=link(device_sweep, row.result)),
            "bs": row.labels["bs"],
            "mode": Shown(row.mode, row.mode, glyph=glyph_of(row.base_mode)),
            "status": Shown(row.status, row.status, "" if row.is_ok else "status"),
            "trials": row.result.trials,
        }
        rows.append({**values, **shown})
    return Table(columns, rows, caption="Cells of this sweep")


PAGE = Page("cell", "Cells", context, scripts=(*GRIDS, *CHARTS, "cell_samples.js", "cell.js"))
