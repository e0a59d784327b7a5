"""The report as Markdown, for a pull request or a job summary."""

from __future__ import annotations

from collections.abc import Iterable

from effbench.printable import count
from effbench.report import comparison, summary
from effbench.report.data import Changes, DeviceSweep
from effbench.report.tables import NO_REASON
from effbench.table import markdown_text as escape

HEADLINES = (
    "Brackets hold 95 % intervals: the speedup's covers measurement noise, the others the choice of models and batch "
    "sizes. With too few cells for an interval, they hold the smallest and the largest value."
)
MOST_FAILURES = 20
LONGEST_REASON = 300


def report(device_sweeps: Iterable[DeviceSweep]) -> str:
    """Return one section per sweep and hardware."""
    return "\n".join(map(section, device_sweeps)) or "There is no result yet.\n"


def section(device_sweep: DeviceSweep) -> str:
    rows, baseline = device_sweep.labelled, device_sweep.baseline_mode
    modes, speedups = summary.by_mode(rows), device_sweep.speedups
    counts = summary.count_statuses(rows)
    lines = [f"## {escape(device_sweep.name)} on {escape(device_sweep.hardware)}", ""]
    lines += [escape(summary.headline(speedups, modes)), ""]
    bad = ", ".join(f"{number} {status}" for status, number in counts.items() if status != "ok")
    lines += [f"{counts.get('ok', 0)} of {len(rows)} results ok{f'; {escape(bad)}' if bad else ''}.", ""]
    state = device_sweep.sweep.get("state") or "completed"
    if state != "completed" or device_sweep.unmeasured:
        is_now = "is still running" if state == "running" else f"is {state}"
        waiting = len(device_sweep.unmeasured)
        missing = f": {count(waiting, 'planned cell')} without a result" if waiting else ""
        lines += [f"**This sweep {escape(is_now)}{missing}.**", ""]
    lines += [summary.modes_table(modes).render("markdown"), HEADLINES]
    lines += ["", speedups.render("markdown")]
    is_shown = any(entry.baseline for entry in speedups.entries)
    column = "whose column shows its times" if is_shown else "which was not run: all columns show times"
    shown = [f"Speedups over {escape(baseline)}, {column}", *speedups.legend()]
    lines += [f"{'; '.join(shown)}."]
    failures = summary.worst_first(rows)
    if failures:
        lines += ["", "### Not ok", ""]
        lines += [
            f"- {escape(row.source['status'])}: {escape(row.case)} bs {row.labels['bs']} {escape(row.mode)}: "
            f"{escape((row.source['reason'] or NO_REASON)[:LONGEST_REASON])}"
            for row in failures[:MOST_FAILURES]
        ]
        more = len(failures) - MOST_FAILURES
        lines += [f"- and {more} more"] if more > 0 else []
    lines += since(device_sweep.changes)
    return "\n".join([*lines, "", f"<sub>{escape(summary.environment_line(device_sweep))}</sub>", ""])


def since(changes: Changes) -> list[str]:
    """Return lines about the changes since the previous sweep, none without one."""
    previous = changes.previous
    if previous is None:
        return []
    name = previous["name"] or previous["label"] or previous["id"]
    lines = ["", f"### Since sweep {escape(str(name))}", ""]
    if changes.compared is None:
        return [*lines, f"The sweeps cannot be compared: {escape(changes.why)}"]
    lines += [f"{comparison.counts_text(changes.compared)}."]
    sure = summary.sure_changes(changes)
    if sure:
        lines += ["", comparison.table_of(sure[: summary.MOST_CHANGES]).render("markdown").rstrip("\n")]
    if len(sure) > summary.MOST_CHANGES:
        lines += ["", f"{len(sure) - summary.MOST_CHANGES} more: `{changes.command}`"]
    return lines
