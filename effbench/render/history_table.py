"""The history of cells as tables, JSON and CSV."""

from __future__ import annotations

from typing import Any

from effbench.analysis.history import History, HistoryChange, Track
from effbench.analysis.limits import STATUS
from effbench.core.cell import digest
from effbench.core.labels import ABSENT
from effbench.core.metrics import METRICS
from effbench.core.printable import count, one_line
from effbench.core.quantities import ratio_text
from effbench.core.table import Column, Record, Shown, Table, as_json
from effbench.stats.changepoints import EXACT_SHORTEST, SHORTEST

#: Longest label and longest other text of a table, in characters; JSON and CSV do not shorten
#: texts.
LABEL, TEXT = 40, 200
FORMATS = ("markdown", "json", "csv")

#: Keys of a change in CSV.
COLUMNS = (
    "state",
    "word",
    "cell",
    "cell_key",
    "place",
    "metric",
    "old",
    "new",
    "ratio",
    "low",
    "high",
    "before_sweep",
    "before_label",
    "before_started_at",
    "after_sweep",
    "after_label",
    "after_started_at",
    "coincides",
    "reason",
)


# --- texts ---


def summary(past: History) -> str:
    """Return the numbers of changes, judged series, marked results, cells and sweeps, on one
    line."""
    if not past.tracks:
        return "no results yet, so no history"
    need = f"times need {SHORTEST} sweeps, counters {EXACT_SHORTEST}"
    sweeps = len({point.at for point in past.points})
    texts = [
        f"changes: {len(past.changes)} ({len(past.open_changes)} open)",
        f"judged series: {past.judged} of {past.states.total()} ({need})",
    ]
    marked = sum(point.is_marked for point in past.points)
    if marked:
        texts.append(f"left out: times of {count(marked, 'marked result')} (host disturbed)")
    return " · ".join([*texts, f"cells: {len(past.tracks)}", f"sweeps: {sweeps}"])


def lead(past: History) -> str:
    """Return the conclusion about the judged series: open changes and the worst of them."""
    changes = past.open_changes
    if not changes:
        return f"No open change in {past.judged} judged series."
    worst = changes[0]
    cell, since = past.names[worst.track.cell_key], sweep_text(past, worst.after.at)
    number = count(len(changes), "open change")
    return one_line(f"{number}. Worst: {cell}: {worst.metric} {change_text(worst)} since {since}.")


def sweep_text(past: History, at: int) -> str:
    """Return the label of a sweep, or its id without a label."""
    return one_line(past.sweeps[at].label or past.sweeps[at].id, LABEL)


def change_text(change: HistoryChange) -> str:
    """Return a change with its ratio and interval: `slower 1.100 (1.093–1.107)`."""
    return f"{change.word} {text_of_ratio(change)}".rstrip()


def text_of_ratio(change: HistoryChange) -> str:
    """Return the ratio of the levels with its interval; empty for a status."""
    ratio = change.ratio
    if ratio is None:
        return ""
    return ratio_text(ratio.value, ratio.low, ratio.high)


def notes_text(change: HistoryChange) -> str:
    """Return what else is known of a change."""
    notes = []
    if change.coincides:
        notes.append(f"coincides with {', '.join(change.coincides)}")
    if change.reason:
        notes.append(change.reason)
    return "; ".join(one_line(note, TEXT) for note in notes)


# --- tables ---


def line_id(track: Track) -> str:
    """Return the id of a track in the site's URLs."""
    return digest([track.cell_key, track.place])[:12]


def changes_table(past: History, most: int | None = None) -> Table:
    """Return a table with one row per change, at most this many."""
    columns = [
        Column("change", filter=True),
        Column("cell"),
        Column("metric", filter=True),
        Column("ratio", "after ÷ before", numeric=True, help="with its 95 % interval"),
        Column("levels", help="before and after"),
        Column("after", "first sweep after", help="with the last sweep before the change"),
        Column("state", filter=True, help="open: worse, and the last change of its series"),
        Column("notes", wide=True, optional=True),
    ]
    if past.has_several_places:
        columns.insert(2, Column("hardware", filter=True))
    return Table(columns, [row_of(past, change) for change in past.changes[:most]])


def row_of(past: History, change: HistoryChange) -> Record:
    """Return a row of the table of changes."""
    sign, tone = "▼", "good"
    if change.is_worse:
        sign, tone = "▲", ""
    if change.is_open:
        tone = "status"
    ratio = change.ratio.value if change.ratio else None
    old, new = change.old, change.new
    if change.metric != STATUS:
        old, new = map(METRICS[change.metric].format, (old, new))
    after, sweep_id = sweep_text(past, change.after.at), past.sweeps[change.after.at].id
    details = f"after {sweep_text(past, change.before.at)}"
    if after != sweep_id:
        details = f"{sweep_id}, {details}"
    return {
        "change": Shown(None, f"{sign} {change.word}", tone),
        "cell": Shown(
            None,
            one_line(past.names[change.track.cell_key]),
            "name",
            href=f"#series={line_id(change.track)}.{change.metric}",
            hint="show its series",
        ),
        "hardware": change.track.place,
        "metric": change.metric,
        "ratio": Shown(ratio, text_of_ratio(change) or ABSENT),
        "levels": Shown(None, f"{old} → {new}", "nowrap"),
        "after": Shown(change.after.at, after, details=details),
        "state": change.state,
        "notes": notes_text(change),
    }


# --- formats ---


def render(past: History, how: str) -> str:
    """Return the history as `markdown`, `json` (all fields) or `csv` (one line per change)."""
    if how == "markdown":
        parts = [summary(past)]
        if past.changes:
            parts.append(changes_table(past).render("markdown"))
        return "\n\n".join(parts)
    records = [record(past, change) for change in past.changes]
    if how == "json":
        return as_json({"summary": summary(past), "states": past.states, "changes": records})
    rows = [row | {"coincides": "; ".join(row["coincides"])} for row in records]
    return Table([Column(name) for name in COLUMNS], rows).render("csv")


def record(past: History, change: HistoryChange) -> dict[str, Any]:
    """Return the exact values of a change. Sweeps are ids."""
    before, after = past.sweeps[change.before.at], past.sweeps[change.after.at]
    ratio = low = high = None
    if change.ratio is not None:
        ratio, low, high = change.ratio.value, change.ratio.low, change.ratio.high
    return {
        "state": change.state,
        "word": change.word,
        "cell": past.names[change.track.cell_key],
        "cell_key": change.track.cell_key,
        "place": change.track.place,
        "metric": change.metric,
        "old": change.old,
        "new": change.new,
        "ratio": ratio,
        "low": low,
        "high": high,
        "before_sweep": before.id,
        "before_label": before.label,
        "before_started_at": before.started_at.isoformat(),
        "after_sweep": after.id,
        "after_label": after.label,
        "after_started_at": after.started_at.isoformat(),
        "coincides": list(change.coincides),
        "reason": change.reason,
    }
