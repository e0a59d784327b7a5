"""The history of cells: reading it from a database, and rendering it as tables, JSON and CSV."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from effbench.cell import digest
from effbench.comparison.history import (
    DEFAULT_METRICS,
    Event,
    History,
    columns_of,
    history,
    short_id,
)
from effbench.comparison.limits import STATUS, Limits
from effbench.comparison.limits import read as read_limits
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import ABSENT
from effbench.metrics import METRICS
from effbench.printable import count, one_line
from effbench.stats.changepoints import EXACT_SHORTEST
from effbench.stats.segmentation import SHORTEST
from effbench.store.sides import Series
from effbench.store.store import Store
from effbench.store.sweeps import is_future
from effbench.table import Column, Shown, Table, as_json

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


@dataclass(frozen=True)
class Filters:
    """Which results and changes a history has. `name`: only sweeps with this name (empty: sweeps
    without a name); `environment_ids`: only results in these (empty: all); `most`: only the newest
    sweeps, with at most this many results; `since`: omit earlier changes; `everything`: include
    acknowledged ones."""

    models: Sequence[str] = ()
    modes: Sequence[str] = ()
    hosts: Sequence[str] = ()
    name: str | None = None
    environment_ids: Collection[str] = ()
    most: int | None = None
    since: str | None = None
    everything: bool = False


ALL = Filters()


def read(
    store: Store,
    metrics: Sequence[str] = DEFAULT_METRICS,
    filters: Filters = ALL,
    limits: Limits | None = None,
) -> History:
    """Read and judge all series of the database, except re-runs.

    Raises NothingFoundError if a filter matches nothing, UsageError for an unknown `since`.
    """
    metrics = list(dict.fromkeys(metrics))
    whole = store.series(
        columns_of(metrics), filters.models, filters.modes, filters.environment_ids, filters.most
    )
    series = filtered(store, whole, filters)
    past = history(series, metrics, limits or read_limits(), store.acknowledgements())
    past.baselines = store.baselines()
    if filters.since is not None:
        first = position_of(filters.since, series.sweeps)
        past.changes = [
            event for event in past.changes if past.position[event.after_sweep] >= first
        ]
    if not filters.everything:
        shown = [event for event in past.changes if event.acknowledged is None]
        past.changes, past.left_out = shown, len(past.changes) - len(shown)
    return past


def filtered(store: Store, whole: Series, filters: Filters) -> Series:
    """Return the series without re-runs, of the hosts and the name that are wanted."""
    series = whole.without_reruns()
    # a clock was wrong: as in find_sweep, the future is the oldest, else it would hide what the
    # newest sweep shows
    sweeps = sorted(series.sweeps, key=lambda sweep: not is_future(sweep["started_at"]))
    series = replace(series, sweeps=sweeps)
    if not series.cells and (filters.models or filters.modes):
        raise NothingFoundError(no_cell_text(store, filters))
    if filters.hosts:
        series = _of_sweeps(series, "host", filters.hosts, hosts_of(sweeps))
    if filters.name is not None:
        named = {sweep["id"]: sweep["name"] or "" for sweep in sweeps}
        series = _of_sweeps(series, "name", [filters.name], named)
    if whole.rows and not series.rows and (filters.hosts or filters.name is not None):
        raise NothingFoundError(
            "no result fits all of --host, --name, --model and --mode; omit one of them"
        )
    return series


def hosts_of(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return sweep id -> name of its host."""
    return {sweep["id"]: (sweep["host"] or {}).get("hostname") for sweep in sweeps}


def no_cell_text(store: Store, filters: Filters) -> str:
    known = store.series(None).cells.values()
    models = ", ".join(sorted({cell["model"] for cell in known}))
    modes = ", ".join(sorted({cell["mode"] for cell in known}))
    wanted = ", ".join([*filters.models, *filters.modes])
    return f"no cell with {wanted}; available: models {models}; modes {modes}"


def _of_sweeps(
    series: Series, what: str, wanted: Sequence[str], values: Mapping[str, str | None]
) -> Series:
    """Return the series of the sweeps that have one of these values. Raises NothingFoundError for
    one that none has."""
    known = dict.fromkeys(value for value in reversed([*values.values()]) if value is not None)
    for value in wanted:
        if value not in known:
            listed = one_line(", ".join(map(repr, known)) or "none", TEXT)
            raise NothingFoundError(f"no sweep with {what} {value!r}; available: {listed}")
    return series.of({sweep_id for sweep_id, value in values.items() if value in wanted})


def position_of(since: str, sweeps: Sequence[Mapping[str, Any]]) -> int:
    """Return the position of the first sweep that matches `since`: an id, label, name or date
    (UTC). `last` is the newest sweep that was recorded here, or the newest imported one if there is
    no other. Sweeps that start in the future come first. Raises UsageError if nothing matches."""
    if since == "last" and sweeps:
        newest = len(sweeps) - 1
        recorded_here = (at for at, sweep in enumerate(sweeps) if not sweep.get("imported_at"))
        return max(recorded_here, default=newest)
    for key in ("id", "label", "name"):
        for at, sweep in enumerate(sweeps):
            if sweep[key] == since:
                return at
    date = date_of(since)
    starts = [sweep["started_at"] for sweep in sweeps]
    return sum(start < date or is_future(start) for start in starts)


def date_of(text: str) -> dt.datetime:
    try:
        date = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            "--since: expected a date (2026-03-01) or a sweep's id, label or name (see effbench"
            f" ls), got {text!r}"
        ) from error
    return date if date.tzinfo else date.replace(tzinfo=dt.UTC)


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
    alarms = [event for event in past.changes if event.alarms]
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


def change_text(event: Event) -> str:
    """Return a change with its ratio and interval: `slower 1.100× (1.093–1.107)`."""
    text = event.word
    if event.ratio is not None:
        text += f" {event.ratio:.3f}×"
    if event.low is not None and event.high is not None:
        text += f" ({event.low:.3f}–{event.high:.3f})"
    return text


def levels_text(event: Event) -> str:
    """Return the levels of a change: `1.00 ms → 1.10 ms`."""
    level = str if event.series.metric == STATUS else METRICS[event.series.metric].format
    return f"{level(event.old)} → {level(event.new)}"


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


def _row(past: History, event: Event) -> dict[str, Any]:
    series = event.series
    name = one_line(past.names[series.cell_key])
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
    after, before = sweep_text(past, event.after_sweep), sweep_text(past, event.before_sweep)
    details = f"after {before}"
    if after != event.after_sweep:
        details = f"{event.after_sweep}, {details}"
    why = event.acknowledged or ""
    if not why and event.undone_sweep:
        why = f"in {sweep_text(past, event.undone_sweep)}"
    return {
        "id": short_id(event.id),
        "change": Shown(None, f"{sign} {event.word}", tone),
        "cell": Shown(None, name, "name", link=link, hint="show its series"),
        "hardware": series.place,
        "metric": series.metric,
        "after ÷ before": Shown(event.ratio, ratio, sub=interval),
        "levels": Shown(None, levels_text(event), "nowrap"),
        "first sweep after": Shown(past.position[event.after_sweep], after, sub=details),
        "state": Shown(None, event.state, sub=one_line(why, TEXT)),
        "notes": notes_text(past, event),
    }


def notes_text(past: History, event: Event) -> str:
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
    records = events_table(past).records()
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


def record(past: History, event: Event) -> dict[str, Any]:
    """Return the exact values of a change by the names of COLUMNS."""
    values: dict[str, Any] = {
        **vars(event),
        **vars(event.series),
        "id": short_id(event.id),
        "word": event.word,
        "alarms": event.alarms,
        "cell": past.names[event.series.cell_key],
        "coincides": list(event.coincides),
    }
    for side in ("before", "after"):
        sweep = past.sweeps[values[f"{side}_sweep"]]
        values[f"{side}_label"] = sweep["label"]
        values[f"{side}_started_at"] = sweep["started_at"].isoformat()
    return {name: values[name] for name in COLUMNS}
