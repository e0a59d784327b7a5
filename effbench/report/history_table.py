"""The history of cells, read from a database and shown: tables for terminal, Markdown and site; JSON and CSV."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from effbench.cell import digest
from effbench.comparison.events import Event, History
from effbench.comparison.history import DEFAULT_METRICS, OTHER_KINDS, columns_of, history
from effbench.comparison.limits import ExceptionRule
from effbench.comparison.verdicts import STATUS
from effbench.errors import UsageError
from effbench.labels import ABSENT
from effbench.metrics import METRICS
from effbench.printable import one_line
from effbench.stats.changepoints import EXACT_SHORTEST
from effbench.stats.segmentation import SHORTEST
from effbench.store.sides import Series
from effbench.store.store import Store
from effbench.store.sweeps import starts_in_future
from effbench.table import Column, Shown, Table, as_json

#: Longest label and longest other text in a table, in characters; JSON and CSV have all of them.
LABEL, TEXT = 40, 200
FORMATS = ("markdown", "json", "csv")
#: Keys of an event in JSON and CSV.
COLUMNS = (
    "id", "kind", "word", "alarms", "cell", "cell_key", "place", "metric", "old", "new", "ratio", "low", "high",
    "before_sweep", "before_label", "before_started_at", "after_sweep", "after_label", "after_started_at",
    "earliest_sweep", "latest_sweep", "undone_sweep", "undoes", "coincides", "reason", "acknowledged", "switches",
)  # fmt: skip


def read(
    store: Store,
    metrics: Sequence[str] = DEFAULT_METRICS,
    *,
    models: Sequence[str] = (),
    modes: Sequence[str] = (),
    hosts: Sequence[str] = (),
    name: str | None = None,
    since: str | None = None,
    everything: bool = False,
    exceptions: Sequence[ExceptionRule] = (),
) -> History:
    """Judge what the database holds, except re-runs.

    `name`: of the sweeps to look at (empty: those without one). What is older than `since` is omitted, and what is
    acknowledged, unless `everything` is asked for. Raises UsageError if nothing has a given name.
    """
    whole = store.series(columns_of(metrics), models, modes)
    series = whole.without_reruns()
    if not series.cells and (models or modes):
        known = store.series(None).cells.values()
        there = (f"{what}s {', '.join(sorted({cell[what] for cell in known}))}" for what in ("model", "mode"))
        raise UsageError(f"no cell with {', '.join([*models, *modes])}; there are {'; '.join(there)}")
    if hosts:
        series = _of_sweeps(series, "host", hosts, lambda sweep: (sweep["host"] or {}).get("hostname"))
    if name is not None:
        series = _of_sweeps(series, "name", [name], lambda sweep: sweep["name"] or "")
    found = history(series, metrics, store.acknowledgements(), exceptions)
    found.whole, found.baselines = whole, store.baselines()
    if since is not None:
        first = position_of(since, series.sweeps)
        # drifting and dead cells, which have no sweep after, stay
        found.events = [event for event in found.events if found.position.get(event.after_sweep, first) >= first]
    if not everything:
        shown = [event for event in found.events if event.acknowledged is None]
        found.events, found.left_out = shown, len(found.events) - len(shown)
    return found


def _of_sweeps(
    series: Series, what: str, wanted: Sequence[str], value_of: Callable[[Mapping[str, Any]], str | None]
) -> Series:
    """Return what the sweeps with one of these values measured. Raises UsageError for a value that none has."""
    values = {sweep["id"]: value_of(sweep) for sweep in series.sweeps}
    known = list(dict.fromkeys(repr(value) for value in reversed(values.values()) if value is not None))
    for one in wanted:
        if one not in values.values():
            raise UsageError(f"no sweep with {what} {one!r}; there are {one_line(', '.join(known) or 'none', TEXT)}")
    return series.of({sweep_id for sweep_id, value in values.items() if value in wanted})


def position_of(since: str, sweeps: Sequence[Mapping[str, Any]]) -> int:
    """Return the position of the first sweep that `since` means: an id, a label, a name or a date (UTC); `last` is the
    newest that does not start in the future. Raises UsageError."""
    if since == "last" and sweeps:
        return max((at for at, sweep in enumerate(sweeps) if not starts_in_future(sweep["started_at"])), default=0)
    named = [at for key in ("id", "label", "name") for at, sweep in enumerate(sweeps) if sweep[key] == since]
    if named:
        return named[0]
    try:
        date = dt.datetime.fromisoformat(since)
    except ValueError as error:
        text = f"--since {since!r} is no date (2026-03-01), and no id, label or name of a sweep; effbench ls"
        raise UsageError(text) from error
    date = date if date.tzinfo else date.replace(tzinfo=dt.UTC)
    return sum(sweep["started_at"] < date for sweep in sweeps)


# --- texts ---


def summary(found: History) -> str:
    """Return what was judged and what changed; first what is too short to judge."""
    if not found.tracks:
        return "no results yet: nothing has a history"
    states = Counter(found.states.values())
    short, total = states.pop("short", 0), len(found.states)
    sweeps = len({row.sweep_id for track in found.tracks for row in track.rows})
    texts = []
    if short:
        which = f"all {total}" if short == total else f"{short} of {total}"
        texts.append(f"{which} series are too short to judge (times need {SHORTEST} sweeps, counters {EXACT_SHORTEST})")
    changes = Counter(event.state for event in found.changes)
    changes["acknowledged and omitted"] = found.left_out
    if changes.total() or total > short:
        texts.append(f"changes: {changes.total()}{_details(changes)}")
    if total > short:
        texts.append(f"judged series: {total - short}{_details(states)}")
    return " · ".join([*texts, f"cells: {len(found.tracks)}", f"sweeps: {sweeps}"])


def lead(found: History) -> str:
    """Return the conclusion in one or two sentences; first what is too short to judge."""
    total, short = len(found.states), sum(state == "short" for state in found.states.values())
    texts = []
    if short:
        which = "All" if short == total else f"{short} of"
        texts.append(f"{which} {total} series are too short to judge (times need {SHORTEST} sweeps of a cell).")
    alarms = [event for event in found.changes if event.alarms]
    if alarms:
        worst, several = alarms[0], "s. The worst" if len(alarms) > 1 else ""
        what = f"{found.names[worst.series.cell_key]} {change_text(worst)} since {sweep_text(found, worst.after_sweep)}"
        texts.append(f"{len(alarms)} open change{several}: {what}.")
    elif short < total:
        texts.append(f"No open change in {total - short} judged series.")
    return one_line(" ".join(texts))


def _details(counts: Mapping[str, int]) -> str:
    texts = [f"{number} {what}" for what, number in counts.items() if number]
    return f" ({', '.join(texts)})" if texts else ""


def sweep_text(found: History, sweep_id: str | None) -> str:
    """Return the label, without one the id; of None nothing."""
    return one_line((sweep_id and found.sweeps[sweep_id]["label"]) or sweep_id or "", LABEL)


def change_text(event: Event) -> str:
    """Return what a change did, and by how much: `slower 1.100× (1.093–1.107)`."""
    interval = "" if event.low is None or event.high is None else f" ({event.low:.3f}–{event.high:.3f})"
    return event.word + ("" if event.ratio is None else f" {event.ratio:.3f}×{interval}")


# --- tables ---


def line_id(cell_key: str, place: str) -> str:
    """Return the name of a track in the addresses of the site."""
    return digest([cell_key, place])[:12]


def events_table(found: History, most: int | None = None) -> Table:
    """Return a row for each event, or for the first `most`; `data` holds the exact values by COLUMNS."""
    several = len({track.place for track in found.tracks}) > 1
    columns = [
        Column("id", help="what effbench history ack calls a change"),
        Column("change", filter=True),
        Column("cell"),
        *([Column("hardware", filter=True)] if several else []),
        Column("metric", filter=True),
        Column("after ÷ before", numeric=True, help="ratio of the levels, with its 95 % interval if it is known"),
        Column("levels", help="before and after"),
        Column("first sweep after", help="with the last one before"),
        Column("state", filter=True, help="open: worse, still so, and acknowledged by nobody"),
        Column("notes", wide=True, optional=True),
    ]
    events = found.events[:most]
    return Table(columns, [_row(found, event) for event in events], [record(found, event) for event in events])


def _row(found: History, event: Event) -> dict[str, Any]:
    series = event.series
    tone = "status" if event.alarms else "good" if event.worse is False else ""
    sign = {True: "▲ ", False: "▼ ", None: ""}[event.worse]
    link = f"#series={line_id(series.cell_key, series.place)}.{series.metric}"
    ratio = ABSENT if event.ratio is None else f"{event.ratio:.3f}×"
    interval = "" if event.low is None or event.high is None else f"{event.low:.3f} to {event.high:.3f}"
    level = str if series.metric == STATUS else METRICS[series.metric].format
    levels = [level(value) for value in (event.old, event.new) if value is not None]
    after, before = (sweep_text(found, one) for one in (event.after_sweep, event.before_sweep))
    details = [] if after == (event.after_sweep or "") else [event.after_sweep]
    details += [f"after {before}"] if before else []
    why = event.acknowledged or (f"in {sweep_text(found, event.undone_sweep)}" if event.undone_sweep else "")
    notes = []
    if event.earliest_sweep != event.latest_sweep:
        earliest, latest = (sweep_text(found, one) for one in (event.earliest_sweep, event.latest_sweep))
        notes.append(f"first after it is one of {earliest} .. {latest} (95 %)")
    notes += [f"{event.switches} switches, the last one in this sweep"] if event.switches else []
    word = "goes" if event.kind == "flapping" else "coincides"
    notes += [f"{word} with {', '.join(event.coincides)}"] if event.coincides else []
    notes += [event.reason] if event.reason else []
    return {
        "id": found.short_id(event.id or ""),
        "change": Shown(None, f"{sign}{event.word}", tone),
        "cell": Shown(None, one_line(found.names[series.cell_key]), "name", link=link, hint="its series as a figure"),
        "hardware": series.place,
        "metric": series.metric,
        "after ÷ before": Shown(event.ratio, ratio, sub=interval),
        "levels": " → ".join(levels),
        "first sweep after": Shown(found.position.get(event.after_sweep), after or ABSENT, sub=", ".join(details)),
        "state": Shown(None, event.state, sub=one_line(why, TEXT)),
        "notes": "; ".join(one_line(note, TEXT) for note in notes),
    }


# --- formats ---


def render(found: History, how: str) -> str:
    """Return `markdown` (for people), `json` (everything) or `csv` (a line for each event)."""
    table = events_table(found)
    if how == "markdown":
        return f"{summary(found)}\n\n{table.render('markdown')}"
    records = table.records()
    if how == "csv":
        for one in records:
            one["alarms"] = None if one["alarms"] is None else str(one["alarms"])
            one["coincides"] = "; ".join(one["coincides"])
        return Table([Column(name) for name in COLUMNS], records).render("csv")
    kinds = (*OTHER_KINDS, "recent")
    return as_json({
        "summary": summary(found),
        "states": Counter(found.states.values()),
        "changes": [one for one in records if one["kind"] not in kinds],
        **{kind: [one for one in records if one["kind"] == kind] for kind in kinds},
    })  # fmt: skip


def record(found: History, event: Event) -> dict[str, Any]:
    """Return the exact values of an event, by COLUMNS."""
    values = vars(event) | event.series._asdict()
    values |= {"cell": found.names[event.series.cell_key], "coincides": list(event.coincides)}
    values |= {"word": event.word, "alarms": event.alarms} if event.id else {"word": None, "alarms": None}
    values |= {name: values[name] and found.short_id(values[name]) for name in ("id", "undoes")}
    if event.kind in ("new", "dead"):
        values["metric"] = None
    for side in ("before", "after"):
        sweep = found.sweeps.get(values[f"{side}_sweep"]) or {"label": None, "started_at": None}
        started = sweep["started_at"] and sweep["started_at"].isoformat()
        values |= {f"{side}_label": sweep["label"], f"{side}_started_at": started}
    return {name: values[name] for name in COLUMNS}
