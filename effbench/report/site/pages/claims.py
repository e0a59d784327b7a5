"""Published claims about CUDA graphs and torch.compile, with their measured verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from effbench.report.claims import claims_table
from effbench.report.site.page import GRIDS, Page, PageFolder
from effbench.table import Table


def context(folder: PageFolder) -> Mapping[str, Any]:
    found = folder.report.claims
    counts = Counter(record["verdict"] for record in found)
    pages = {one.sweep["id"]: f"{one.slug}/speedups.html" for one in folder.report.device_sweeps}
    return {
        "claims": len({(record["experiment"], record["claim"]) for record in found}),
        "counts": dict(counts.most_common()),
        "machines": list(dict.fromkeys(record["machine"] for record in found if record["machine"])),
        "own": sum(record["machine"] is not None and not record["reference"] for record in found),
        "grid": folder.grid("claims", shown(found, pages)) if found else None,
    }


def shown(found: Sequence[Mapping[str, Any]], pages: Mapping[str, str]) -> Table:
    """Return the table; of one machine without the column that names it."""
    table = claims_table(found, pages)
    if len({record["machine"] for record in found if record["machine"]}) > 1:
        return table
    return replace(table, columns=[column for column in table.columns if column.key != "machine"])


PAGE = Page("claims", "Claims", 70, context, of_device_sweep=False, scripts=GRIDS)
