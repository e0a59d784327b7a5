"""The report as Markdown, for a pull request or a job summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from effbench.labels import LabelledRow
from effbench.printable import count
from effbench.report import comparison, marks, summary
from effbench.report.data import Changes, DeviceSweep
from effbench.report.summary import score_interval
from effbench.report.tables import NO_REASON, SpeedupTable
from effbench.table import markdown_text as escape

HEADLINES = (
    "Brackets hold the 95 % interval of a speedup, which covers measurement noise, and the smallest"
    " and the largest value of the others."
)
MOST_FAILURES = 20
LONGEST_REASON = 300


def report(device_sweeps: Iterable[DeviceSweep]) -> str:
    """Return one section per sweep and hardware."""
    return "\n".join(map(section, device_sweeps)) or "There is no result yet.\n"


def section(device_sweep: DeviceSweep) -> str:
    rows, baseline = device_sweep.labelled, device_sweep.baseline_mode
    modes, speedups = summary.by_mode(rows), device_sweep.speedups
    notes = [f"{note[0].upper()}{note[1:]}." for note in summary.notes_on_means(modes)]
    intervals = (map(score_interval, mode.scores.values()) for mode in modes)
    brackets = [
        *chain(*intervals),
        *(part.range for mode in modes for part in (mode.memory, mode.compiled)),
    ]
    has_bounds = any(" to " in text or "–" in text for text in brackets)
    headline = summary.headline(speedups, modes)
    failures = not_ok(rows)
    return comparison.paragraphs(
        f"## {escape(device_sweep.name)} on {escape(device_sweep.hardware)}",
        escape(headline),
        counts_text(rows),
        state_text(device_sweep),
        summary.modes_table(modes).render("markdown"),
        " ".join([*[HEADLINES] * has_bounds, *map(escape, notes)]),
        speedups.render("markdown"),
        legend_text(speedups, baseline, headline),
        escape(marks.note(rows)),
        "### Not ok" if failures else "",
        "\n".join(failures),
        *since(device_sweep.changes),
        f"<sub>{escape(summary.environment_line(device_sweep))}</sub>",
    )


def counts_text(rows: Sequence[LabelledRow]) -> str:
    counts = summary.count_statuses(rows)
    ok = counts.get("ok", 0)
    texts = [f"{ok} of {len(rows)} results ok"]
    bad = [f"{number} {status}" for status, number in counts.items() if status != "ok"]
    if bad:
        texts.append(escape(", ".join(bad)))
    return f"{'; '.join(texts)}."


def state_text(device_sweep: DeviceSweep) -> str:
    """Return what a sweep lacks; nothing for a whole one."""
    state, waiting = device_sweep.sweep.state, len(device_sweep.unmeasured)
    if state == "completed" and not waiting:
        return ""
    is_now = "still running" if state == "running" else state
    missing = ""
    if waiting:
        missing = f": {count(waiting, 'planned cell')} without a result"
    return f"**This sweep is {escape(is_now)}{missing}.**"


def legend_text(speedups: SpeedupTable, baseline: str, headline: str) -> str:
    """Return what the table of speedups shows, and its signs that the headline does not explain."""
    texts = []
    if speedups.has_figures:
        column = "which was not run: all columns show times"
        if any(entry.baseline for entry in speedups.entries):
            column = "whose column shows its times"
        texts.append(f"Speedups over {escape(baseline)}, {column}")
    texts += [text for text in speedups.legend() if text.lower() not in headline.lower()]
    return f"{'; '.join(texts)}." if texts else ""


def not_ok(rows: Sequence[LabelledRow]) -> list[str]:
    """Return a line for each result that is not ok, the worst first."""
    lines = []
    for row in summary.worst_first(rows):
        reason = (row.reason or NO_REASON)[:LONGEST_REASON]
        cell = f"{escape(row.case)} bs {row.labels['bs']} {escape(row.mode)}"
        lines.append(f"- {escape(row.status)}: {cell}: {escape(reason)}")
    more = len(lines) - MOST_FAILURES
    if more > 0:
        lines[MOST_FAILURES:] = [f"- and {more} more"]
    return lines


def since(changes: Changes) -> list[str]:
    """Return paragraphs about the changes since an earlier sweep, none without one."""
    previous = changes.previous
    if previous is None:
        return []
    name = str(previous.name or previous.label or previous.id)
    if previous.name and previous.label:  # many sweeps may have the name
        name += f" ({previous.label})"
    heading = f"### Since sweep {escape(name)}"
    if changes.compared is None:
        return [heading, f"The sweeps cannot be compared: {escape(changes.why)}"]
    sure = summary.sure_changes(changes)
    parts = [
        heading,
        comparison.bullets(changes.compared.differences),
        f"{comparison.counts_text(changes.compared)}.",
    ]
    if sure:
        parts.append(comparison.table_of(sure[: summary.MOST_CHANGES]).render("markdown"))
    more = len(sure) - summary.MOST_CHANGES
    if more > 0:
        parts.append(f"{more} more: `{changes.command}`")
    return parts
