"""The report as Markdown, for a pull request or a job summary."""

from __future__ import annotations

from collections.abc import Sequence

from effbench.core.printable import count
from effbench.render import comparison, marks, summary
from effbench.render.data import MOST_CHANGES, DeviceSweep
from effbench.render.templating import markdown

MOST_FAILURES = 20


def report(device_sweeps: Sequence[DeviceSweep]) -> str:
    """Return one section per sweep and hardware."""
    return markdown(
        "report.md.j2",
        device_sweeps=device_sweeps,
        summary=summary,
        note=marks.note,
        count=count,
        counts_text=comparison.counts_text,
        table_of=comparison.table_of,
        most_failures=MOST_FAILURES,
        most_changes=MOST_CHANGES,
    )
