"""Published claims about CUDA graphs and torch.compile, with their measured verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from effbench.render.claims import claims_table, shipped_verdicts
from effbench.render.site.page import GRIDS, Page, PageFolder


def context(folder: PageFolder) -> Mapping[str, Any]:
    records = folder.report.claims
    counts = Counter(record["verdict"] for record in records)
    claims = {(record["experiment"], record["claim"]) for record in records}
    published = {(record["experiment"], record["claim"]) for record in shipped_verdicts()}
    pages = {held.sweep.id: f"{held.slug}/speedups.html" for held in folder.held}
    machines = list(dict.fromkeys(record["machine"] for record in records if record["machine"]))
    table = claims_table(records, pages, with_machine=len(machines) > 1)
    return {
        "published": len(claims & published),
        "others": len(claims - published),
        "counts": dict(counts.most_common()),
        "machines": machines,
        "own": sum(record["machine"] is not None and not record["reference"] for record in records),
        "grid": folder.grid("claims", table) if records else None,
    }


PAGE = Page("claims", "Claims", context, of_device_sweep=False, scripts=GRIDS)
