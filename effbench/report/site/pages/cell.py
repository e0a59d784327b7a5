"""One cell: its results, raw samples, trials, kernels and errors, and the command that runs it again.

One page for all cells of a device sweep: its URL names the cell behind `#cell=`, and the cell's data is in one of the
files of `cell_files`, which the page finds by the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from effbench.comparison.sides import hardware_of
from effbench.metrics import METRICS
from effbench.report.colors import glyph_of
from effbench.report.data import DeviceSweep
from effbench.report.site import cell_data
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder
from effbench.table import Column, Shown, Table


def address(device_sweep: DeviceSweep, row: Mapping[str, Any]) -> str:
    """Return what follows the page's name in the URL of a result's cell."""
    key = row["cell_key"]
    key = key[:16] if len(key) == 64 else key  # enough of a hash to find it
    where = f"&env={quote(row['environment_id'], safe='')}" if len(device_sweep.environments) > 1 else ""
    return f"#cell={quote(key, safe='')}{where}"


def context(folder: PageFolder) -> Mapping[str, Any]:
    own = folder.device_sweep
    index = {
        "chunks": folder.cells()[own.slug],
        "facts": cell_data.fact_headings(),
        "metrics": {name: [metric.title, metric.help] for name, metric in METRICS.items()},
        "environments": {one["id"]: environment_name(one) for one in own.environments},
    }
    return {"index": folder.data("index", index), "list": folder.grid("list", list_of(own)), "cells": len(own.rows)}


def environment_name(row: Mapping[str, Any]) -> str:
    flags = row.get("flags") or {}
    parts = [hardware_of(row), f"torch {row['torch_version']}", f"Python {row['python']}"]
    return " · ".join(parts + [f"{name} {flags[name]}" for name in ("interpreter", "folder") if flags.get(name)])


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
        figures = {name: source[name] if ok else None for name in ("latency_ms", "speedup")}
        rows.append([
            *(str(row.labels[name]) for name in names), row.labels["bs"],
            Shown(row.mode, row.mode, link=address(own, source), glyph=glyph_of(row.base_mode)),
            "ok" if ok else Shown(None, str(source["status"]), "status"),
            *(Shown(value, METRICS[name].format(value)) for name, value in figures.items()),
            source["trials"],
        ])  # fmt: skip
    return Table.of(columns, rows, "Cells of this sweep")


PAGE = Page("cell", "Cells", 50, context, scripts=(*GRIDS, *CHARTS, "cell_samples.js", "cell.js"))
