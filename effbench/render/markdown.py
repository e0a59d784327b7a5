"""The report as Markdown, for a pull request or a job summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from effbench.core.labels import LabelledRow
from effbench.core.printable import count
from effbench.core.table import markdown_text as escape
from effbench.render import comparison, marks, summary
from effbench.render.data import MOST_CHANGES, Changes, DeviceSweep
from effbench.render.tables import NO_REASON, SpeedupTable

BRACKETS = (
    "Brackets hold the 95 % interval of a speedup, which covers measurement noise, and the range of"
    " the others."
)
MOST_FAILURES = 20
LONGEST_REASON = 300


def report(device_sweeps: Iterable[DeviceSweep]) -> str:
    """Return one section per sweep and hardware."""
    return "\n".join(map(section, device_sweeps)) or "There is no result yet.\n"


def section(device_sweep: DeviceSweep) -> str:
    rows, speedups = device_sweep.labelled, device_sweep.speedups
    modes = summary.by_mode(rows)
    return comparison.paragraphs(
        f"## {escape(device_sweep.name)} on {escape(device_sweep.hardware)}",
        escape(summary.headline(speedups, modes)),
        counts_text(rows),
        state_text(device_sweep),
        summary.modes_table(modes).render("markdown"),
        BRACKETS,
        speedups.render("markdown"),
        legend_text(speedups),
        escape(marks.note(rows)),
        *failures(rows),
        *since(device_sweep.changes),
        f"<sub>{escape(summary.environment_line(device_sweep))}</sub>",
    )


def counts_text(rows: Sequence[LabelledRow]) -> str:
    counts = summary.count_statuses(rows)
    ok = counts.pop("ok", 0)
    text = f"{ok} of {len(rows)} results ok"
    if counts:
        text += f"; {', '.join(f'{number} {status}' for status, number in counts.items())}"
    return f"{escape(text)}."


def state_text(device_sweep: DeviceSweep) -> str:
    """Return what a sweep lacks; nothing for a whole one."""
    state, waiting = device_sweep.sweep.state, len(device_sweep.unmeasured)
    if state == "completed" and not waiting:
        return ""
    return f"**This sweep is {escape(state)}; {count(waiting, 'planned cell')} without a result.**"


def legend_text(speedups: SpeedupTable) -> str:
    """Return what the table of speedups shows, and what its signs mean."""
    texts = speedups.legend()
    if speedups.has_figures:
        texts.insert(0, f"Speedups over {escape(speedups.baseline_mode)}, which has times")
    return f"{'; '.join(texts)}." if texts else ""


def failures(rows: Sequence[LabelledRow]) -> list[str]:
    """Return a heading and a line for each result that is not ok, the worst first; nothing if all
    are ok."""
    lines = []
    for row in summary.worst_first(rows):
        reason = (row.reason or NO_REASON)[:LONGEST_REASON]
        lines.append(f"- {escape(row.status)}: {escape(row.name)}: {escape(reason)}")
    if not lines:
        return []
    more = len(lines) - MOST_FAILURES
    if more > 0:
        lines[MOST_FAILURES:] = [f"- and {more} more"]
    return ["### Not ok", "\n".join(lines)]


def since(changes: Changes) -> list[str]:
    """Return paragraphs about the changes since an earlier sweep, none without one."""
    previous = changes.previous
    if previous is None:
        return []
    name = previous.name or previous.label or previous.id
    if previous.name and previous.label:  # many sweeps may have the name
        name = f"{previous.name} ({previous.label})"
    heading = f"### Since sweep {escape(name)}"
    if changes.compared is None:
        return [heading, f"The sweeps cannot be compared: {escape(changes.why)}"]
    significant = changes.significant
    parts = [
        heading,
        comparison.bullets(changes.compared.differences),
        f"{comparison.counts_text(changes.compared)}.",
    ]
    if significant:
        parts.append(comparison.table_of(significant[:MOST_CHANGES]).render("markdown"))
    more = len(significant) - MOST_CHANGES
    if more > 0:
        parts.append(f"{more} more: `{changes.command}`")
    return parts
