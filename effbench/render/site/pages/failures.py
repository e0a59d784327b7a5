"""What the overview says about failures: results that are not ok by reason."""

from __future__ import annotations

from urllib.parse import urlencode

from effbench.core.cell import SEVERITY
from effbench.core.labels import grouped
from effbench.core.table import Column, Shown, Table
from effbench.render.data import DeviceSweep
from effbench.render.site.pages.cell import link
from effbench.render.tables import NO_REASON


def failures_table(device_sweep: DeviceSweep, folder: str) -> Table:
    """Return a row per status and reason, with the number of cells and the first one: the worst
    status and the most frequent reason first. `folder`: of the device sweep, as seen from the
    page."""
    failed = [row for row in device_sweep.rows if not row.is_ok]
    groups = grouped(failed, lambda row: (row.status, row.reason)).values()
    rows = []
    for alike in sorted(groups, key=lambda alike: (SEVERITY.index(alike[0].status), -len(alike))):
        first = alike[0]
        url = f"{folder}cell.html#{urlencode({'status': first.status})}"
        example = f"{folder}{link(device_sweep, first)}"
        record = {
            "status": Shown(first.status, first.status, "status", href=url),
            "cells": len(alike),
            "reason": first.reason or NO_REASON,
            "example": Shown(first.name, first.name, "name linked", href=example),
        }
        rows.append(record)
    columns = [
        Column("status"),
        Column("cells", numeric=True),
        Column("reason", wide=True),
        Column("example", "one of them"),
    ]
    return Table(columns, rows, caption="Results that are not ok")
