"""Published claims about CUDA graphs and torch.compile, with their measured verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from effbench.report.claims import claims_table, shipped_verdicts
from effbench.report.site.page import GRIDS, Page, PageFolder
from effbench.table import Table


def context(folder: PageFolder) -> Mapping[str, Any]:
    records = folder.report.claims
    counts = Counter(record["verdict"] for record in records)
    claims = {(record["experiment"], record["claim"]) for record in records}
    published = {(record["experiment"], record["claim"]) for record in shipped_verdicts()}
    pages = {it.sweep["id"]: f"{it.slug}/speedups.html" for it in folder.report.device_sweeps}
    return {
        "published": len(claims & published),
        "others": len(claims - published),
        "counts": dict(counts.most_common()),
        "machines": list(dict.fromkeys(record["machine"] for record in records if record["machine"])),
        "own": sum(record["machine"] is not None and not record["reference"] for record in records),
        "grid": folder.grid("claims", shown(records, pages)) if records else None,
    }


def shown(records: Sequence[Mapping[str, Any]], pages: Mapping[str, str]) -> Table:
    """Return the table of claims, without the machine's column if there is only one machine."""
    table = claims_table(records, pages)
    if len({record["machine"] for record in records if record["machine"]}) > 1:
        return table
    return replace(table, columns=[column for column in table.columns if column.key != "machine"])


PAGE = Page("claims", "Claims", context, of_device_sweep=False, scripts=GRIDS)
