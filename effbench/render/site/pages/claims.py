"""Published claims about CUDA graphs and torch.compile, with their measured verdicts."""

from __future__ import annotations

from collections import Counter

from effbench.claims.definition import shipped_verdicts
from effbench.render.claims import claims_table, key_of
from effbench.render.site.page import Context, Page, PageFolder


def context(folder: PageFolder) -> Context:
    records = folder.report.claims
    claims = set(map(key_of, records))
    published = set(map(key_of, shipped_verdicts()))
    return {
        "published": len(claims & published),
        "others": len(claims - published),
        "counts": Counter(record["verdict"] for record in records).most_common(),
        "records": records,
        "grid": folder.grid("claims", claims_table(records)),
    }


PAGE = Page("claims", "Claims", of_device_sweep=False)
