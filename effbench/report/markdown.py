"""The report as Markdown, for a pull request or a job summary."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from effbench.printable import count
from effbench.report import comparison, marks, summary
from effbench.report.data import Changes, DeviceSweep
from effbench.report.summary import score_interval
from effbench.report.tables import NO_REASON
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
    counts = summary.count_statuses(rows)
    bad = ", ".join(f"{number} {status}" for status, number in counts.items() if status != "ok")
    state, waiting = device_sweep.sweep.state, len(device_sweep.unmeasured)
    is_now = "is still running" if state == "running" else f"is {state}"
    missing = f": {count(waiting, 'planned cell')} without a result" if waiting else ""
    is_shown = any(entry.baseline for entry in speedups.entries)
    column = (
        "whose column shows its times" if is_shown else "which was not run: all columns show times"
    )
    headline = summary.headline(speedups, modes)
    shown = [f"Speedups over {escape(baseline)}, {column}"] if speedups.has_figures else []
    shown += [text for text in speedups.legend() if text.lower() not in headline.lower()]
    not_ok = [
        f"- {escape(row.source['status'])}: {escape(row.case)} bs"
        f" {row.labels['bs']} {escape(row.mode)}:"
        f" {escape((row.source['reason'] or NO_REASON)[:LONGEST_REASON])}"
        for row in summary.worst_first(rows)
    ]
    if (more := len(not_ok) - MOST_FAILURES) > 0:
        not_ok[MOST_FAILURES:] = [f"- and {more} more"]
    return comparison.paragraphs(
        f"## {escape(device_sweep.name)} on {escape(device_sweep.hardware)}",
        escape(headline),
        f"{counts.get('ok', 0)} of {len(rows)} results ok{f'; {escape(bad)}' if bad else ''}.",
        f"**This sweep {escape(is_now)}{missing}.**" if state != "completed" or waiting else "",
        summary.modes_table(modes).render("markdown"),
        " ".join([*[HEADLINES] * has_bounds, *map(escape, notes)]),
        speedups.render("markdown"),
        f"{'; '.join(shown)}." if shown else "",
        escape(marks.note(rows)),
        "### Not ok" if not_ok else "",
        "\n".join(not_ok),
        *since(device_sweep.changes),
        f"<sub>{escape(summary.environment_line(device_sweep))}</sub>",
    )


def since(changes: Changes) -> list[str]:
    """Return paragraphs about the changes since an earlier sweep, none without one."""
    previous = changes.previous
    if previous is None:
        return []
    name = str(previous.name or previous.label or previous.id)
    # many sweeps may have the name
    label = f" ({previous.label})" if previous.name and previous.label else ""
    heading = f"### Since sweep {escape(name + label)}"
    if changes.compared is None:
        return [heading, f"The sweeps cannot be compared: {escape(changes.why)}"]
    sure = summary.sure_changes(changes)
    more = len(sure) - summary.MOST_CHANGES
    table = comparison.table_of(sure[: summary.MOST_CHANGES]).render("markdown") if sure else ""
    counts = f"{comparison.counts_text(changes.compared)}."
    differences = comparison.bullets(changes.compared.differences)
    return [
        heading,
        differences,
        counts,
        table,
        f"{more} more: `{changes.command}`" if more > 0 else "",
    ]
