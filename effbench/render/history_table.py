"""The history of cells as tables, JSON and CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from effbench.analysis.history import History, HistoryEvent, short_id
from effbench.analysis.limits import STATUS
from effbench.core.cell import digest
from effbench.core.labels import ABSENT
from effbench.core.metrics import METRICS
from effbench.core.printable import count, one_line
from effbench.core.table import Column, Shown, Table, as_json
from effbench.stats.changepoints import EXACT_SHORTEST, SHORTEST

#: Longest label and longest other text of a table, in characters; JSON and CSV do not shorten
#: texts.
LABEL, TEXT = 40, 200
FORMATS = ("markdown", "json", "csv")
#: Keys of an event in JSON and CSV.
COLUMNS = (
    "id",
    "kind",
    "word",
    "alarms",
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
    "earliest_sweep",
    "latest_sweep",
    "undone_sweep",
    "coincides",
    "reason",
    "acknowledged",
)


# --- texts ---


def summary(past: History) -> str:
    """Return the numbers of short series, changes, judged series, cells and sweeps, on one line."""
    if not past.tracks:
        return "no results yet, so no history"
    states = Counter(past.states.values())
    short, total = states.pop("short", 0), len(past.states)
    texts = []
    if short:
        need = f"times need {SHORTEST} sweeps, counters {EXACT_SHORTEST}"
        texts.append(f"too short to judge: {short} of {total} series ({need})")
    if past.marked_results:
        texts.append(
            f"left out: times of {count(past.marked_results, 'marked result')} (host disturbed)"
        )
    changes = Counter(event.state for event in past.changes)
    changes["acknowledged and omitted"] = past.left_out
    if changes.total() or total > short:
        texts.append(f"changes: {changes.total()}{_details(changes)}")
    if total > short:
        texts.append(f"judged series: {total - short}{_details(states)}")
    return " · ".join([*texts, f"cells: {len(past.tracks)}", f"sweeps: {past.measured_sweeps}"])


def lead(past: History) -> str:
    """Return the conclusion: open changes and the worst of them; empty without a series to
    judge."""
    alarms = past.open_changes
    if not alarms:
        judged = sum(state != "short" for state in past.states.values())
        return f"No open change in {judged} judged series." if judged else ""
    worst = alarms[0]
    number = count(len(alarms), "open change")
    if len(alarms) > 1:
        number += ". The worst"
    cell, since = past.names[worst.series.cell_key], sweep_text(past, worst.after_sweep)
    what = f"{worst.series.metric} {change_text(worst)} since {since}"
    return one_line(f"{number}: {cell}: {what}.")


def _details(counts: Mapping[str, int]) -> str:
    texts = [f"{number} {what}" for what, number in counts.items() if number]
    return f" ({', '.join(texts)})" if texts else ""


def sweep_text(past: History, sweep_id: str) -> str:
    """Return the label of a sweep, or its id without a label."""
    return one_line(past.sweeps[sweep_id]["label"] or sweep_id, LABEL)


def change_text(event: HistoryEvent) -> str:
    """Return a change with its ratio and interval: `slower 1.100× (1.093–1.107)`."""
    text = event.word
    if event.ratio is not None:
        text += f" {event.ratio:.3f}×"
    if event.low is not None and event.high is not None:
        text += f" ({event.low:.3f}–{event.high:.3f})"
    return text


# --- tables ---


def line_id(cell_key: str, place: str) -> str:
    """Return the id of a track in the site's URLs."""
    return digest([cell_key, place])[:12]


def events_table(past: History, most: int | None = None) -> Table:
    """Return a table with one row per change, at most this many; its `data` holds the exact values
    of COLUMNS."""
    columns = [
        Column("id", help="argument of effbench history ack"),
        Column("change", filter=True),
        Column("cell"),
        Column("hardware", filter=True),
        Column("metric", filter=True),
        Column("after ÷ before", numeric=True, help="ratio of the levels, with its 95 % interval"),
        Column("levels", help="before and after"),
        Column("first sweep after", help="with the last sweep before the change"),
        Column("state", filter=True, help="open: worse, not undone and not acknowledged"),
        Column("notes", wide=True, optional=True),
    ]
    if not past.has_several_places:
        columns = [column for column in columns if column.key != "hardware"]
    events = past.changes[:most]
    rows = [_row(past, event) for event in events]
    return Table(columns, rows, [record(past, event) for event in events])


def _row(past: History, event: HistoryEvent) -> dict[str, Any]:
    series = event.series
    link = f"#series={line_id(series.cell_key, series.place)}.{series.metric}"
    tone, sign = "", "▲"
    if event.alarms:
        tone = "status"
    elif not event.worse:
        tone, sign = "good", "▼"
    ratio, interval = ABSENT, ""
    if event.ratio is not None:
        ratio = f"{event.ratio:.3f}×"
    if event.low is not None and event.high is not None:
        interval = f"{event.low:.3f} to {event.high:.3f}"
    level = str if series.metric == STATUS else METRICS[series.metric].format
    details = f"after {sweep_text(past, event.before_sweep)}"
    after = sweep_text(past, event.after_sweep)
    if after != event.after_sweep:
        details = f"{event.after_sweep}, {details}"
    why = event.acknowledged or ""
    if not why and event.undone_sweep:
        why = f"in {sweep_text(past, event.undone_sweep)}"
    name = one_line(past.names[series.cell_key])
    return {
        "id": short_id(event.id),
        "change": Shown(None, f"{sign} {event.word}", tone),
        "cell": Shown(None, name, "name", link=link, hint="show its series"),
        "hardware": series.place,
        "metric": series.metric,
        "after ÷ before": Shown(event.ratio, ratio, sub=interval),
        "levels": Shown(None, f"{level(event.old)} → {level(event.new)}", "nowrap"),
        "first sweep after": Shown(past.position[event.after_sweep], after, sub=details),
        "state": Shown(None, event.state, sub=one_line(why, TEXT)),
        "notes": notes_text(past, event),
    }


def notes_text(past: History, event: HistoryEvent) -> str:
    """Return what else is known of a change."""
    notes = []
    if event.earliest_sweep != event.latest_sweep:
        earliest = sweep_text(past, event.earliest_sweep)
        latest = sweep_text(past, event.latest_sweep)
        notes.append(f"first sweep after it: {earliest} to {latest} (95 %)")
    if event.coincides:
        notes.append(f"coincides with {', '.join(event.coincides)}")
    if event.reason:
        notes.append(event.reason)
    return "; ".join(one_line(note, TEXT) for note in notes)


# --- formats ---


def render(past: History, how: str) -> str:
    """Return the history as `markdown`, `json` (all fields) or `csv` (one line per change)."""
    if how == "markdown":
        parts = [summary(past)]
        if past.changes:
            parts.append(events_table(past).render("markdown"))
        return "\n\n".join(parts)
    records = [record(past, event) for event in past.changes]
    if how == "csv":
        for row in records:
            row["coincides"] = "; ".join(row["coincides"])
        return Table([Column(name) for name in COLUMNS], records).render("csv")
    return as_json(
        {
            "summary": summary(past),
            "states": Counter(past.states.values()),
            "changes": [row for row in records if row["kind"] != "recent"],
            "recent": [row for row in records if row["kind"] == "recent"],
        }
    )


def record(past: History, event: HistoryEvent) -> dict[str, Any]:
    """Return the exact values of a change by the names of COLUMNS."""
    series = event.series
    before, after = past.sweeps[event.before_sweep], past.sweeps[event.after_sweep]
    values: dict[str, Any] = {
        "id": short_id(event.id),
        "cell": past.names[series.cell_key],
        "cell_key": series.cell_key,
        "place": series.place,
        "metric": series.metric,
        "before_label": before["label"],
        "before_started_at": before["started_at"].isoformat(),
        "after_label": after["label"],
        "after_started_at": after["started_at"].isoformat(),
        "coincides": list(event.coincides),
    }
    return {name: values[name] if name in values else getattr(event, name) for name in COLUMNS}
