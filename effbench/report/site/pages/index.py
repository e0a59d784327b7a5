"""The overview: for each machine's newest sweep the answer first, then what failed and what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.metrics import METRICS
from effbench.report import summary
from effbench.report.data import Changes, DeviceSweep
from effbench.report.mode_scores import UNCLEAR
from effbench.report.site.page import Page, PageFolder
from effbench.report.site.pages.cell import address
from effbench.stats.intervals import CLEAR

#: Rows of the table of the fastest modes that a reader takes in; the rest is on the speedups page.
MOST_CASES = 40
MOST_FAILURES = 8


def context(folder: PageFolder) -> Mapping[str, Any]:
    answers = [answer(device_sweep) for device_sweep in folder.report.device_sweeps]
    return {"answers": answers, "most_cases": MOST_CASES, "clear": CLEAR, "unclear": UNCLEAR}


def answer(device_sweep: DeviceSweep) -> dict[str, Any]:
    """What the overview shows of one device sweep."""
    rows = device_sweep.labelled
    best = summary.fastest(rows, device_sweep.baseline_mode)
    modes = summary.by_mode(rows)
    lead = summary.lead(best, modes)
    means = {mode.series: mode.speedup_text for mode in modes if mode.score.averaged and not mode.phase}
    failures = summary.worst_first(rows)
    return {
        "device_sweep": device_sweep,
        "counts": summary.count_statuses(rows),
        "results": len(rows),
        "fastest": dict(list(best.items())[:MOST_CASES]),
        "cases": len(best),
        "sizes": sorted({bs for row in best.values() for bs in row}),
        "lead": lead,
        "mean": means.get(lead.series) if lead else None,
        "waiting": len(device_sweep.unmeasured),
        "series": modes[0].series if modes else "",
        "modes": summary.modes_table(modes),
        "failures": [(row, address(device_sweep, row.source)) for row in failures[:MOST_FAILURES]],
        "more_failures": len(failures) - MOST_FAILURES,
        "environment": summary.environment_line(device_sweep),
        "changes": changed(device_sweep.changes, f"{device_sweep.slug}/cell.html"),
    }


def changed(changes: Changes, cell_page: str) -> dict[str, Any]:
    """Values of templates/changed.html.j2: what changed since the sweep before.

    `quiet`: nothing surely changed; `judged`: whether the trials could show a verdict on a time at all.
    """
    found: dict[str, Any] = {"previous": changes.previous, "why": changes.why, "command": changes.command}
    compared = changes.compared
    if compared is None:
        return found | {"differences": []}
    sure = summary.sure_changes(changes)
    return found | {
        "counts": {str(verdict): number for verdict, number in compared.counts.items()},
        "rows": summary.changes_table(sure[: summary.MOST_CHANGES], cell_page) if sure else None,
        "more": len(sure) - summary.MOST_CHANGES,
        "modes": summary.changed_modes(compared.modes) if compared.modes else None,
        "differences": list(compared.differences),
        "judged": any(change.smallest_slowdown is not None for change in compared.changes),
        "quiet": not sure,
        "only": [METRICS[name].title for name in changes.only],
    }


PAGE = Page("index", "Overview", 10, context, of_device_sweep=False, scripts=())
