"""The overview: of each machine's newest sweep the answer first, then what failed and what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from effbench.analysis.scores import UNCLEAR
from effbench.report import summary
from effbench.report.site.cells import address
from effbench.report.site.changed import changed
from effbench.report.site.material import Subject
from effbench.report.site.pages.base import Page, PageFolder
from effbench.stats.intervals import CLEAR

#: Rows of the table of the fastest modes that a reader takes in; the rest is on the speedups page.
MOST_CASES = 40


def context(folder: PageFolder) -> Mapping[str, Any]:
    return {"answers": [answer(subject) for subject in folder.material], "most_cases": MOST_CASES, "clear": CLEAR}


def answer(subject: Subject) -> dict[str, Any]:
    """What the overview says of one subject."""
    tidy = subject.tidy
    best = summary.fastest(tidy, subject.baseline_mode) if len(tidy) else {}
    modes = summary.by_mode(tidy) if len(tidy) else pd.DataFrame()
    lead = summary.lead(best, modes) if len(tidy) else None
    means = {row["series"]: row for row in modes.to_dict("records") if row["speedup_results"] and not row["phase"]}
    mean = means.get(lead.series) if lead else None
    return {
        "subject": subject,
        "counts": summary.counts(tidy),
        "fastest": dict(list(best.items())[:MOST_CASES]),
        "cases": len(best),
        "sizes": sorted({bs for row in best.values() for bs in row}),
        "lead": lead,
        "mean": mean["speedup_text"] if mean and mean["speedup_text"] != UNCLEAR else None,
        "waiting": len(subject.unmeasured),
        "modes": [
            row | {"notes": summary.notes(row), "unclear": row["speedup_text"] == UNCLEAR}
            for row in modes.to_dict("records")
        ],
        "not_ok": not_ok(tidy, several=len(subject.environments) > 1),
        "environment": environment_line(subject),
        "changed": changed(subject.changes),
    }


def not_ok(tidy: pd.DataFrame, most: int = 8, several: bool = False) -> dict[str, Any]:
    """The worst of what is not ok, and how many more there are; `link`: what follows the address of the cell page."""
    from effbench.analysis.swept import plain_rows
    from effbench.cell import SEVERITY

    rank = {str(status): index for index, status in enumerate(SEVERITY)}
    bad = tidy[tidy["status"] != "ok"]
    rows = plain_rows(bad[["status", "case", "bs", "series", "reason", "cell_key", "environment_id"]])
    rows.sort(key=lambda row: rank.get(str(row["status"]), -1))
    for row in rows[:most]:
        row["link"] = address(row, several)
    return {"rows": rows[:most], "more": max(0, len(rows) - most)}


def environment_line(subject: Subject) -> str:
    """Machine and software on one line; where there are several environments what they share."""
    names = {"driver_version": "driver", "cuda_version": "CUDA", "torch_version": "torch", "triton_version": "triton",
             "python": "Python"}  # fmt: skip
    parts = [subject.hardware]
    for key, title in names.items():
        found = {str(environment[key]) for environment in subject.environments if environment.get(key)}
        if found:
            parts.append(f"{title} {' and '.join(sorted(found))}")
    return " · ".join(parts)


PAGE = Page("index", "Overview", 10, context, of_subject=False)
