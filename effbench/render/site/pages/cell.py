"""Cells: results, raw samples, trials, kernels and errors of a cell, and the command that measures
it again.

All cells of a device sweep share one page. Its URL names the cell (`#cell=KEY`), and by the key the
page finds the cell's data in the files of `cell_data`.
"""

from __future__ import annotations

from functools import partial
from urllib.parse import quote

from effbench.core.cell import Result
from effbench.core.labels import LabelledResult
from effbench.core.metrics import METRICS
from effbench.core.table import Column, Shown, Table
from effbench.render.bottlenecks import bottleneck_columns, no_bottlenecks
from effbench.render.colors import glyph_of
from effbench.render.data import DeviceSweep
from effbench.render.site import cell_data
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


def link(device_sweep: DeviceSweep, result: Result) -> str:
    """Return the URL of a result's cell, relative to the folder of the device sweep."""
    key = result.cell_key[:16]  # enough of the hash to find the cell
    url = f"cell.html#cell={quote(key, safe='')}"
    if len(device_sweep.environments) > 1:
        url += f"&env={quote(result.environment_id, safe='')}"
    return url


def context(folder: PageFolder) -> Context:
    device_sweep = folder.subject
    files = []
    cells = batched(cell_data.cells_of(device_sweep), CELLS_A_FILE)
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
        "no_bottlenecks": no_bottlenecks(device_sweep.labelled),
    }


def list_of(device_sweep: DeviceSweep) -> Table:
    """Return a table of all cells with links, and what bounds them or why they failed."""
    rows = device_sweep.labelled
    columns = [
        Column("model", filter=True, value=partial(linked_case, device_sweep)),
        Column("bs", numeric=True, filter=True, value=lambda row: row.labels["bs"]),
        Column("mode", filter=True, value=shown_mode),
        Column("status", filter=True, value=shown_status),
        Column("trials", numeric=True, value=lambda row: row.trials),
        *bottleneck_columns(rows),
    ]
    return Table(columns, rows, caption="Cells of this sweep")


def linked_case(device_sweep: DeviceSweep, row: LabelledResult) -> Shown:
    return Shown(row.case, row.case, "name", link=link(device_sweep, row))


def shown_mode(row: LabelledResult) -> Shown:
    return Shown(row.mode_label, row.mode_label, glyph=glyph_of(row.mode))


def shown_status(row: LabelledResult) -> Shown:
    tone = "status"
    if row.is_ok:
        tone = ""
    return Shown(row.status, row.status, tone)


PAGE = Page("cell", "Cells", context, scripts=(*GRIDS, *CHARTS, "cell_samples.js", "cell.js"))
