"""The history of cells: reading it from a database, and rendering it as tables, JSON and CSV."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from effbench.cell import digest
from effbench.comparison.events import Event, History, short_id
from effbench.comparison.history import DEFAULT_METRICS, OTHER_KINDS, columns_of, history
from effbench.comparison.limits import Limits
from effbench.comparison.limits import read as read_limits
from effbench.comparison.verdicts import STATUS
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import ABSENT
from effbench.metrics import METRICS
from effbench.printable import count, one_line
from effbench.stats.changepoints import EXACT_SHORTEST
from effbench.stats.segmentation import SHORTEST
from effbench.store.sides import Series
from effbench.store.store import Store
from effbench.store.sweeps import is_future
from effbench.table import Column, Shown, Table, as_json, markdown_text

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
    "switches",
)


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
    limits: Limits | None = None,
    environment_ids: Collection[str] = (),
    most: int | None = None,
) -> History:
    """Read and judge all series of the database, except re-runs; `environment_ids`: only in these
    (empty: all). `most`: only in the newest sweeps, with at most this many results.

    `name`: only sweeps with this name (empty: sweeps without a name). `since`: omit earlier events.
    `everything`: include acknowledged events.

    Raises NothingFoundError if a filter matches nothing, UsageError for an unknown `since`.
    """
    metrics = list(dict.fromkeys(metrics))
    whole = store.series(columns_of(metrics), models, modes, environment_ids, most)
    series = whole.without_reruns()
    # a clock was wrong: as in find_sweep, the future is the oldest, else it would hide what the
    # newest sweep shows
    series = replace(
        series, sweeps=sorted(series.sweeps, key=lambda sweep: not is_future(sweep["started_at"]))
    )
    if not series.cells and (models or modes):
        known = store.series(None).cells.values()
        names = (
            f"{what}s {', '.join(sorted({cell[what] for cell in known}))}"
            for what in ("model", "mode")
        )
        raise NothingFoundError(
            f"no cell with {', '.join([*models, *modes])}; available: {'; '.join(names)}"
        )
    if hosts:
        series = _of_sweeps(
            series, "host", hosts, lambda sweep: (sweep["host"] or {}).get("hostname")
        )
    if name is not None:
        series = _of_sweeps(series, "name", [name], lambda sweep: sweep["name"] or "")
    if (hosts or name is not None) and whole.rows and not series.rows:
        raise NothingFoundError(
            "no result fits all of --host, --name, --model and --mode; omit one of them"
        )
    past = history(series, metrics, limits or read_limits(), store.acknowledgements())
    past.whole, past.baselines = whole, store.baselines()
    if since is not None:
        first = position_of(since, series.sweeps)
        # drifting and dead cells have no sweep after them and stay
        past.events = [
            event for event in past.events if past.position.get(event.after_sweep, first) >= first
        ]
    if not everything:
        shown = [event for event in past.events if event.acknowledged is None]
        past.events, past.left_out = shown, len(past.events) - len(shown)
    return past


def _of_sweeps(
    series: Series,
    what: str,
    wanted: Sequence[str],
    value_of: Callable[[Mapping[str, Any]], str | None],
) -> Series:
    """Return the series of the sweeps that have one of these values. Raises NothingFoundError for
    one that none has."""
    values = {sweep["id"]: value_of(sweep) for sweep in series.sweeps}
    known = list(
        dict.fromkeys(repr(value) for value in reversed(values.values()) if value is not None)
    )
    for value in wanted:
        if value not in values.values():
            listed = one_line(", ".join(known) or "none", TEXT)
            raise NothingFoundError(f"no sweep with {what} {value!r}; available: {listed}")
    return series.of({sweep_id for sweep_id, value in values.items() if value in wanted})


def position_of(since: str, sweeps: Sequence[Mapping[str, Any]]) -> int:
    """Return the position of the first sweep that matches `since`: an id, label, name or date
    (UTC). `last` is the newest sweep that was recorded here, or the newest imported one if there is
    no other. Sweeps that start in the future come first. Raises UsageError if nothing matches."""
    if since == "last" and sweeps:
        recorded_here = [at for at, sweep in enumerate(sweeps) if sweep.get("imported_at") is None]
        return recorded_here[-1] if recorded_here else len(sweeps) - 1
    named = [
        at
        for key in ("id", "label", "name")
        for at, sweep in enumerate(sweeps)
        if sweep[key] == since
    ]
    if named:
        return named[0]
    try:
        date = dt.datetime.fromisoformat(since)
    except ValueError as error:
        text = (
            "--since: expected a date (2026-03-01) or a sweep's id, label or name (see effbench"
            f" ls), got {since!r}"
        )
        raise UsageError(text) from error
    date = date if date.tzinfo else date.replace(tzinfo=dt.UTC)
    return sum(sweep["started_at"] < date or is_future(sweep["started_at"]) for sweep in sweeps)


# --- texts ---


def summary(past: History) -> str:
    """Return the numbers of short series, changes, judged series, cells and sweeps, on one line."""
    if not past.tracks:
        return "no results yet, so no history"
    states = Counter(past.states.values())
    short, total = states.pop("short", 0), len(past.states)
    sweeps = len({row.sweep_id for track in past.tracks for row in track.rows})
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
    return " · ".join([*texts, f"cells: {len(past.tracks)}", f"sweeps: {sweeps}"])


def lead(past: History) -> str:
    """Return the conclusion: open changes and the worst of them; empty without a series to
    judge."""
    alarms = [event for event in past.changes if event.alarms]
    if not alarms:
        judged = sum(state != "short" for state in past.states.values())
        return f"No open change in {judged} judged series." if judged else ""
    worst, several = alarms[0], "s. The worst" if len(alarms) > 1 else ""
    what = f"{worst.series.metric} {change_text(worst)} since {sweep_text(past, worst.after_sweep)}"
    return one_line(
        f"{len(alarms)} open change{several}: {past.names[worst.series.cell_key]}: {what}."
    )


def _details(counts: Mapping[str, int]) -> str:
    texts = [f"{number} {what}" for what, number in counts.items() if number]
    return f" ({', '.join(texts)})" if texts else ""


def sweep_text(past: History, sweep_id: str | None) -> str:
    """Return the label of a sweep, or its id without a label; empty for None."""
    return one_line((sweep_id and past.sweeps[sweep_id]["label"]) or sweep_id or "", LABEL)


def change_text(event: Event) -> str:
    """Return a change with its ratio and interval: `slower 1.100× (1.093–1.107)`."""
    interval = (
        "" if event.low is None or event.high is None else f" ({event.low:.3f}–{event.high:.3f})"
    )
    return event.word + ("" if event.ratio is None else f" {event.ratio:.3f}×{interval}")


def levels_text(event: Event) -> str:
    """Return the levels of an event: `1.00 ms → 1.10 ms`; empty if it has none."""
    level = str if event.series.metric == STATUS else METRICS[event.series.metric].format
    return " → ".join(level(value) for value in (event.old, event.new) if value is not None)


def details_text(past: History, event: Event) -> str:
    """Return what is known of an event that is not a change: `1.00 ms → 1.10 ms, 11 switches, the
    last in v22`."""
    after, before = (sweep_text(past, key) for key in (event.after_sweep, event.before_sweep))
    texts = [levels_text(event)]
    texts += [f"{event.switches} switches, the last in {after}"] if event.switches else []
    texts += [f"first measured in {after}"] if event.kind == "new" else []
    texts += [f"last measured in {before}"] if event.kind == "dead" else []
    return ", ".join(filter(None, texts))


# --- tables ---


def line_id(cell_key: str, place: str) -> str:
    """Return the id of a track in the site's URLs."""
    return digest([cell_key, place])[:12]


def coming_and_going(past: History, longest: int | None = TEXT) -> list[str]:
    """Return a line for the new cells of each sweep, and one for the cells that were last measured
    in it, on each hardware. `longest`: characters of their names."""
    cells: dict[tuple[str, str, str], list[str]] = {}
    for event in past.of("new", "dead"):
        when, sweep = (
            ("first", event.after_sweep) if event.kind == "new" else ("last", event.before_sweep)
        )
        cells.setdefault((when, sweep, event.series.place), []).append(
            past.names[event.series.cell_key]
        )
    several, lines = len({track.place for track in past.tracks}) > 1, []
    for (when, sweep, place), names in cells.items():
        number, name = count(len(names), "cell"), " ".join({sweep: 0, sweep_text(past, sweep): 0})
        where = one_line(f"{name} on {place}" if several else name)
        lines.append(
            f"{number} {when} measured in {where}: {one_line(', '.join(sorted(names)), longest)}"
        )
    return lines


def events_table(past: History, events: Sequence[Event] | None = None) -> Table:
    """Return a table with one row per event (default: all); its `data` holds the exact values of
    COLUMNS."""
    several = len({track.place for track in past.tracks}) > 1
    columns = [
        Column("id", help="argument of effbench history ack"),
        Column("change", filter=True),
        Column("cell"),
        *([Column("hardware", filter=True)] if several else []),
        Column("metric", filter=True),
        Column("after ÷ before", numeric=True, help="ratio of the levels, with its 95 % interval"),
        Column("levels", help="before and after"),
        Column("first sweep after", help="with the last sweep before the change"),
        Column("state", filter=True, help="open: worse, not undone and not acknowledged"),
        Column("notes", wide=True, optional=True),
    ]
    events = past.events if events is None else events
    return Table(
        columns, [_row(past, event) for event in events], [record(past, event) for event in events]
    )


def _row(past: History, event: Event) -> dict[str, Any]:
    series = event.series
    tone = "status" if event.alarms else "good" if event.worse is False else ""
    sign = {True: "▲ ", False: "▼ ", None: ""}[event.worse]
    link = f"#series={line_id(series.cell_key, series.place)}.{series.metric}"
    ratio = ABSENT if event.ratio is None else f"{event.ratio:.3f}×"
    interval = (
        "" if event.low is None or event.high is None else f"{event.low:.3f} to {event.high:.3f}"
    )
    after, before = (sweep_text(past, key) for key in (event.after_sweep, event.before_sweep))
    details = [] if after == (event.after_sweep or "") else [event.after_sweep]
    details += [f"after {before}"] if before else []
    why = event.acknowledged or (
        f"in {sweep_text(past, event.undone_sweep)}" if event.undone_sweep else ""
    )
    notes = []
    if event.earliest_sweep != event.latest_sweep:
        earliest, latest = (
            sweep_text(past, key) for key in (event.earliest_sweep, event.latest_sweep)
        )
        notes.append(f"first sweep after it: {earliest} to {latest} (95 %)")
    notes += [f"{event.switches} switches, the last in this sweep"] if event.switches else []
    notes += [f"coincides with {', '.join(event.coincides)}"] if event.coincides else []
    notes += [event.reason] if event.reason else []
    return {
        "id": short_id(event.id or ""),
        "change": Shown(None, f"{sign}{event.word}", tone),
        "cell": Shown(
            None, one_line(past.names[series.cell_key]), "name", link=link, hint="show its series"
        ),
        "hardware": series.place,
        "metric": series.metric,
        "after ÷ before": Shown(event.ratio, ratio, sub=interval),
        "levels": Shown(None, levels_text(event), "nowrap"),
        "first sweep after": Shown(
            past.position.get(event.after_sweep), after or ABSENT, sub=", ".join(details)
        ),
        "state": Shown(None, event.state, sub=one_line(why, TEXT)),
        "notes": "; ".join(one_line(note, TEXT) for note in notes),
    }


# --- formats ---


def render(past: History, how: str) -> str:
    """Return the history as `markdown`, `json` (all fields) or `csv` (one line per event)."""
    if how == "markdown":
        events = past.without("new", "dead")
        tables = [events_table(past, events).render("markdown")] if events else []
        return "\n\n".join(
            [summary(past), *map(markdown_text, coming_and_going(past, None)), *tables]
        )
    records = events_table(past).records()
    if how == "csv":
        for row in records:
            row["coincides"] = "; ".join(row["coincides"])
        return Table([Column(name) for name in COLUMNS], records).render("csv")
    kinds = (*OTHER_KINDS, "recent")
    return as_json(
        {
            "summary": summary(past),
            "states": Counter(past.states.values()),
            "changes": [row for row in records if row["kind"] not in kinds],
            **{kind: [row for row in records if row["kind"] == kind] for kind in kinds},
        }
    )


def record(past: History, event: Event) -> dict[str, Any]:
    """Return the exact values of an event by the names of COLUMNS."""
    values = vars(event) | event.series._asdict()
    values |= {"cell": past.names[event.series.cell_key], "coincides": list(event.coincides)}
    values |= (
        {"word": event.word, "alarms": event.alarms} if event.id else {"word": None, "alarms": None}
    )
    values["id"] = event.id and short_id(event.id)
    if event.kind in ("new", "dead"):
        values["metric"] = None
    for side in ("before", "after"):
        sweep = past.sweeps.get(values[f"{side}_sweep"]) or {"label": None, "started_at": None}
        started = sweep["started_at"] and sweep["started_at"].isoformat()
        values |= {f"{side}_label": sweep["label"], f"{side}_started_at": started}
    return {name: values[name] for name in COLUMNS}
