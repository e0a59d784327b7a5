"""Cells: results, raw samples, trials, kernels and errors of a cell, and the command that measures
it again.

All cells of a device sweep share one page. Its URL names the cell (`#cell=KEY`), and by the key the
page finds the cell's data in the files of `cell_data`.
"""

from __future__ import annotations

from urllib.parse import quote

from effbench.core.cell import Result
from effbench.core.metrics import METRICS
from effbench.core.table import Column, Shown, Table
from effbench.render.bottlenecks import bottleneck_columns, bottleneck_of, no_bottlenecks
from effbench.render.colors import glyph_of
from effbench.render.data import DeviceSweep
from effbench.render.site import cell_data
from effbench.render.site.explained import write_files
from effbench.render.site.page import (
    CHARTS,
    GRIDS,
    Context,
    Page,
    PageFolder,
)
from effbench.store.values import batched

#: Cells whose data is in one file.
CELLS_A_FILE = 25


def name_in_url(result: Result) -> str:
    """Return enough of a cell's key to find the cell."""
    return quote(result.cell_key[:16], safe="")


def link(device_sweep: DeviceSweep, result: Result) -> str:
    """Return the URL of a result's cell, relative to the folder of the device sweep."""
    url = f"cell.html#cell={name_in_url(result)}"
    if len(device_sweep.environments) > 1:
        url += f"&env={quote(result.environment_id, safe='')}"
    return url


def context(folder: PageFolder) -> Context:
    device_sweep = folder.subject
    files = []
    explained = write_files(folder)
    cells = batched(cell_data.cells_of(device_sweep, explained), CELLS_A_FILE)
    for number, part in enumerate(cells):
        entries = dict(part)
        files.append({"first_key": min(entries), "file": folder.data(str(number), entries)})
    index = {
        "hardware": device_sweep.hardware,
        "chunks": files,
        "metrics": {
            name: {"title": metric.title, "help": metric.help} for name, metric in METRICS.items()
        },
    }
    return {
        "index": folder.data("index", index),
        "list": folder.grid("list", list_of(device_sweep)),
        "no_bottlenecks": no_bottlenecks(device_sweep.rows),
    }


def list_of(device_sweep: DeviceSweep) -> Table:
    """Return a table of all cells with links, and what bounds them or why they failed."""
    columns = [
        Column("model", filter=True),
        Column("bs", numeric=True, filter=True),
        Column("mode", filter=True),
        Column("status", filter=True),
        Column("trials", numeric=True),
        *bottleneck_columns(device_sweep.rows),
    ]
    rows = []
    for row in device_sweep.rows:
        tone = "" if row.is_ok else "status"
        record = {
            "model": Shown(row.case, row.case, "name", href=link(device_sweep, row)),
            "bs": row.bs,
            "mode": Shown(row.mode_label, row.mode_label, glyph=glyph_of(row.mode)),
            "status": Shown(row.status, row.status, tone),
            "trials": row.trials,
            **bottleneck_of(row),
        }
        rows.append(record)
    return Table(columns, rows, caption="Cells of this sweep")


PAGE = Page(
    "cell", "Cells", scripts=(*GRIDS, *CHARTS, "cell_samples.js", "cell_explained.js", "cell.js")
)
