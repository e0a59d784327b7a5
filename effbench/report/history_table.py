"""The history of cells as texts: a table for people, Markdown, CSV, JSON; and all that the site's page is made of."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from effbench.comparison.events import Event, History, SeriesId
from effbench.comparison.history import Track, columns_of, history, tracks_of
from effbench.comparison.limits import ExceptionRule
from effbench.comparison.verdicts import STATUS
from effbench.errors import UsageError
from effbench.labels import row_names
from effbench.metrics import METRICS, Better
from effbench.printable import one_line
from effbench.stats.changepoints import EXACT_SHORTEST
from effbench.stats.segmentation import SHORTEST
from effbench.store.sides import Series
from effbench.store.store import Store
from effbench.store.sweeps import starts_in_future
from effbench.table import Column, Shown, Table, as_json, markdown_text

#: Longest label and longest reason in a table, in characters; JSON and CSV have all of them.
LABEL, REASON = 40, 200
#: Names of sweeps that a message lists.
MOST_NAMES = 8
FORMATS = ("markdown", "json", "csv")
COLUMNS = (
    "id", "kind", "word", "alarms", "cell", "cell_key", "place", "metric", "old", "new", "ratio", "low", "high",
    "before_sweep", "before_label", "before_started_at", "after_sweep", "after_label", "after_started_at",
    "earliest_sweep", "latest_sweep", "undone_sweep", "undoes", "coincides", "reason", "acknowledged", "switches",
)  # fmt: skip
#: Kind of the other events -> heading.
OTHERS = {"new": "New cells", "dead": "Dead cells", "flapping": "Flapping", "drifting": "Drifting"}


def read(
    store: Store,
    metrics: Sequence[str],
    models: Sequence[str] = (),
    modes: Sequence[str] = (),
    since: str | None = None,
    everything: bool = False,
    hosts: Sequence[str] = (),
    name: str | None = None,
    exceptions: Sequence[ExceptionRule] = (),
) -> HistoryTable:
    """Judge what the database holds, except re-runs; omit what is older than `since` and, unless `everything`,
    what is acknowledged. `name`: of the sweeps to look at (empty: those without one); None for all."""
    series = store.series(columns_of(metrics), models, modes).without_reruns()
    if not series.cells and (models or modes):
        known = store.series(None).cells.values()
        there = [
            f"{what}s {', '.join(sorted({cell[what] for cell in known})) or 'none'}"
            for what, asked in (("model", models), ("mode", modes))
            if asked
        ]
        asked = " and ".join([*models, *modes])
        raise UsageError(f"no cell with {asked} in {store.name}; there are {' and '.join(there)}")
    if hosts:
        series = of_hosts(series, hosts)
    if name is not None:
        series = of_name(series, name)
    found = history(series, metrics, store.acknowledgements(), exceptions)
    if since is not None:
        found = found.since(position_of(since, series.sweeps))
    if not everything:
        shown = [event for event in found.events if event.acknowledged is None]
        found = replace(found, events=shown, left_out=len(found.events) - len(shown))
    return table_of(found, series, name, since)


def table_of(found: History, series: Series, name: str | None = None, since: str | None = None) -> HistoryTable:
    names = dict(zip(series.cells, row_names(list(series.cells.values())), strict=True))
    return HistoryTable(found, names, {sweep["id"]: sweep for sweep in series.sweeps}, name, since)


def of_hosts(series: Series, hosts: Sequence[str]) -> Series:
    """Return what these machines measured. Raises UsageError for one that measured nothing."""
    host_of = {sweep["id"]: (sweep["host"] or {}).get("hostname") for sweep in series.sweeps}
    known = sorted({name for name in host_of.values() if name})
    if unknown := [name for name in hosts if name not in known]:
        raise UsageError(f"no sweep of host {unknown[0]}; there are {', '.join(known) or 'none with a name'}")
    return series.of({sweep_id for sweep_id, host in host_of.items() if host in hosts})


def of_name(series: Series, name: str) -> Series:
    """Return what the sweeps of this name measured (empty: those without one). Raises UsageError if there is none."""
    name_of = {sweep["id"]: sweep["name"] or "" for sweep in series.sweeps}
    own = {sweep_id for sweep_id, one in name_of.items() if one == name}
    if own or not name_of:
        return series.of(own)
    known = list(dict.fromkeys(one or "some without a name" for one in reversed(name_of.values())))
    there = ", ".join(known[:MOST_NAMES]) + (f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else "")
    raise UsageError(f"{f'no sweep has the name {name}' if name else 'every sweep has a name'}; there are {there}")


def position_of(since: str, sweeps: Sequence[dict[str, Any]]) -> int:
    """Return the place of the first sweep that `since` means: an id, a label, a name, a date (UTC), the start of an id;
    `last` is the newest that does not start in the future."""
    if since == "last" and sweeps:
        return max((i for i, sweep in enumerate(sweeps) if not starts_in_future(sweep["started_at"])), default=0)
    for key in ("id", "label", "name"):
        for index, sweep in enumerate(sweeps):
            if sweep[key] == since:
                return index
    try:
        date = dt.datetime.fromisoformat(since)
    except ValueError:
        date = None
    if date is not None:
        date = date if date.tzinfo else date.replace(tzinfo=dt.UTC)
        return next((index for index, sweep in enumerate(sweeps) if sweep["started_at"] >= date), len(sweeps))
    for index, sweep in enumerate(sweeps):
        if since and sweep["id"].startswith(since):
            return index
    raise UsageError(f"--since {since!r} is no date (2026-03-01), and no id, label or name of a sweep; effbench ls")


@dataclass
class HistoryTable:
    """`found` with what its ids mean: `names` of cells by key, `sweeps` (rows with label and started_at) by id. `name`:
    that of all the sweeps (empty: they have none); `since`: what is older is omitted; None if not asked for."""

    found: History
    names: Mapping[str, str]
    sweeps: Mapping[str, Mapping[str, Any]]
    name: str | None = None
    since: str | None = None
    short: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.short = self.found.short_ids()

    # --- texts ---

    @cached_property
    def several_places(self) -> bool:
        found = self.found
        return len({key.place for key in found.states} | {one.series.place for one in found.events}) > 1

    @property
    def confirmed(self) -> list[Event]:
        return [event for event in self.found.events if event.kind != "recent"]

    @property
    def recent(self) -> list[Event]:
        return [event for event in self.found.events if event.kind == "recent"]

    def summary(self) -> str:
        """One line: how much was judged, with which result."""
        found, states = self.found, list(self.found.states.values())
        if not found.sweeps:
            return "no results yet: nothing has a history"
        cells = {(key.cell_key, key.place) for key in found.states}
        first, last = (self.date(found.sweeps[index]) for index in (0, -1))
        changes = self.confirmed
        acknowledged = sum(event.acknowledged is not None for event in changes)
        parts = [
            f"{sum(event.alarms for event in changes)} unacknowledged and worse",
            f"{sum(event.undone is not None for event in changes)} undone",
            f"{found.left_out} acknowledged and omitted" if found.left_out else f"{acknowledged} acknowledged",
        ]
        short = f"too short to judge (under {SHORTEST} sweeps, of counters {EXACT_SHORTEST})"
        others = [
            (len(self.recent), "recent, unconfirmed"), *((len(found.of(kind)), kind) for kind in OTHERS),
            (states.count("steady"), "steady"), (states.count("short"), short),
        ]  # fmt: skip
        named = "" if self.name is None else f" named {one_line(self.name, LABEL)}" if self.name else " without a name"
        since = "" if self.since is None else f" since {one_line(self.since, LABEL)}"
        return " · ".join([
            f"{_count(len(changes), 'change')}{since} ({', '.join(parts)}) in {len(states)} series of "
            f"{_count(len(cells), 'cell')} over {_count(len(found.sweeps), 'sweep')}{named}, {first} to {last}",
            *(f"{number} {what}" for number, what in others if number),
        ])  # fmt: skip

    def verdict(self) -> str:
        """Return whether anything got worse, and for how many series that is known. "Nothing got worse" is only said of
        series that are long enough to judge."""
        states = list(self.found.states.values())
        short = states.count("short")
        judged = len(states) - short
        worse = sum(event.alarms for event in self.confirmed)
        unconfirmed = sum(bool(event.worse) for event in self.recent)
        if worse:
            said = f"{_count(worse, 'change')} for the worse still {'holds' if worse == 1 else 'hold'}, unacknowledged."
        elif judged:
            settled = self.found.left_out or any(event.worse for event in self.confirmed)
            said = f"Nothing got worse in the {judged} series that could be judged"
            said += ", apart from what is undone or acknowledged." if settled else "."
        else:
            said = "No series can be judged yet."
        said += f" {_count(unconfirmed, 'recent change')} for the worse: not confirmed yet." if unconfirmed else ""
        needed = f"times need {SHORTEST} sweeps, counters {EXACT_SHORTEST}"
        return said + (f" Too short to judge: {short} of {len(states)} series ({needed})." if short else "")

    def row(self, event: Event) -> dict[str, Any]:
        """Return the texts of a change."""
        tone = "bad" if event.alarms else "good" if event.worse is False else ""
        change = ("! " if event.alarms else "") + self.change(event)
        texts = {
            "id": self.short[event.id],
            "change": change,
            "cell": self.cell(event.series),
            "metric": event.series.metric,
            "levels": f"{self.level(event.series, event.old)} -> {self.level(event.series, event.new)}",
            "sweeps": f"{self.sweep(event.before)} .. {self.sweep(event.after)}",
            "notes": "; ".join(self.notes(event)),
        }
        if event.acknowledged is not None:
            return {key: Shown(text, text, "unsure") for key, text in texts.items()}
        return {**texts, "change": Shown(change, change, tone)}

    def change(self, event: Event) -> str:
        said = word(event)
        if event.ratio is not None:
            said += f" {event.ratio:.3f}×"
        if event.low is not None and event.high is not None:
            said += f" ({event.low:.3f}–{event.high:.3f})"
        return said

    def notes(self, event: Event) -> list[str]:
        notes = []
        if event.earliest is not None and event.latest is not None:
            notes.append(f"first after it is one of {self.sweep(event.earliest)} .. {self.sweep(event.latest)} (95 %)")
        notes += [f"undone in {self.sweep(event.undone)}"] if event.undone else []
        notes += [f"takes back {self.taken_back(event)}"] if event.undoes else []
        notes += [f"coincides with {', '.join(one_line(text, REASON) for text in event.with_)}"] if event.with_ else []
        notes += [one_line(event.reason, REASON)] if event.reason else []
        notes += [f"acknowledged: {one_line(event.acknowledged, REASON)}"] if event.acknowledged is not None else []
        return notes

    def taken_back(self, event: Event) -> str:
        return event.undoes and self.short.get(event.undoes, event.undoes[:6])

    def sweep(self, sweep_id: str) -> str:
        label = one_line(self.sweeps[sweep_id]["label"] or "", LABEL)
        return f"{label} ({sweep_id})" if label else sweep_id

    def date(self, sweep_id: str) -> str:
        return f"{self.sweeps[sweep_id]['started_at']:%Y-%m-%d}"

    @staticmethod
    def level(series: SeriesId, value: Any) -> str:
        return str(value) if series.metric == STATUS else METRICS[series.metric].format(value)

    def cell(self, series: SeriesId) -> str:
        name = self.names[series.cell_key]
        return one_line(f"{name} on {series.place}" if self.several_places else name)

    def details(self, event: Event) -> str:
        """Describe an event that is no change of level."""
        if event.kind in ("new", "dead"):
            return f"since {self.sweep(event.after)}" if event.kind == "new" else f"last in {self.sweep(event.before)}"
        if event.kind == "drifting":
            return f"slides by {event.ratio:.3f}× without a step"
        levels = f"{self.level(event.series, event.old)} and {self.level(event.series, event.new)}"
        with_ = f"; goes with {', '.join(one_line(text, REASON) for text in event.with_)}" if event.with_ else ""
        return f"{levels}, {event.switches} switches, last in {self.sweep(event.after)}{with_}"

    # --- formats ---

    def tables(self) -> list[tuple[str, Table]]:
        """Return the changes under their headings."""
        columns = [Column("id"), Column("change"), Column("cell"), Column("metric"), Column("levels"),
                   Column("sweeps", "last before .. first after"), Column("notes")]  # fmt: skip
        parts = (("Changes", self.confirmed), ("Recent, unconfirmed", self.recent))
        return [(title, Table(columns, [self.row(event) for event in events])) for title, events in parts if events]

    def sections(self) -> list[tuple[str, list[str]]]:
        """Return heading and lines of everything else; empty ones are omitted."""
        found = []
        for kind, title in OTHERS.items():
            lines = [
                f"{self.cell(one.series)}{'' if kind in ('new', 'dead') else f' {one.series.metric}'}: "
                f"{self.details(one)}"
                for one in self.found.of(kind)
            ]
            found += [(title, lines)] if lines else []
        return found

    def render(self, how: str) -> str:
        """Return `markdown` (for people), `json` (everything) or `csv` (a line for each event)."""
        records = [self.record(event) for event in [*self.found.events, *self.found.others]]
        if how == "csv":
            texts = {"alarms": lambda one: None if one is None else str(one), "coincides": "; ".join}
            rows = [{**one, **{key: text(one[key]) for key, text in texts.items()}} for one in records]
            return Table([Column(name) for name in COLUMNS], rows).render("csv")
        if how == "json":
            states = list(self.found.states.values())
            kinds = (*OTHERS, "recent")
            return as_json({
                "summary": self.summary(),
                "verdict": self.verdict(),
                "states": {state: states.count(state) for state in dict.fromkeys(states)},
                "changes": [one for one in records if one["kind"] not in kinds],
                **{kind: [one for one in records if one["kind"] == kind] for kind in kinds},
            })  # fmt: skip
        parts = [self.summary(), *([self.verdict()] if self.found.sweeps else [])]
        for title, table in self.tables():
            parts += [f"## {title}", table.render("markdown").rstrip()]
        for title, lines in self.sections():
            parts += [f"## {title}", "\n".join(f"- {markdown_text(line)}" for line in lines)]
        return "\n\n".join(parts) + "\n"

    def record(self, event: Event) -> dict[str, Any]:
        """Return a dict with COLUMNS."""
        is_change = event.kind not in OTHERS
        values = {
            **dict.fromkeys(COLUMNS), "kind": event.kind, "cell": self.names[event.series.cell_key],
            "cell_key": event.series.cell_key, "place": event.series.place, "old": event.old, "new": event.new,
            "ratio": event.ratio, "coincides": list(event.with_), "switches": event.switches,
            "metric": None if event.kind in ("new", "dead") else event.series.metric,
        }  # fmt: skip
        if is_change:
            values |= {
                "id": self.short[event.id], "word": word(event), "alarms": event.alarms, "low": event.low,
                "high": event.high, "undone_sweep": event.undone, "earliest_sweep": event.earliest or event.after,
                "latest_sweep": event.latest or event.after, "undoes": self.taken_back(event), "reason": event.reason,
                "acknowledged": event.acknowledged,
            }  # fmt: skip
        for side, sweep_id in (("before", event.before), ("after", event.after)):
            if sweep_id is not None:
                sweep = self.sweeps[sweep_id]
                values |= {f"{side}_sweep": sweep_id, f"{side}_label": sweep["label"],
                           f"{side}_started_at": sweep["started_at"].isoformat()}  # fmt: skip
        return values


@dataclass
class HistoryData:
    """What was read and judged. `series`: input of `comparison.history.history`, which `table` was made of; `metrics`:
    those that were judged; `baselines`: from `decisions.baselines`; `whole`: the series with re-runs."""

    table: HistoryTable
    series: Series
    metrics: Sequence[str]
    baselines: Sequence[Any]
    whole: Series

    @cached_property
    def tracks(self) -> list[Track]:
        return tracks_of(self.series)

    @cached_property
    def sweeps_of_environment(self) -> dict[str, list[str]]:
        """Environment id -> ids of the sweeps with a result in it, oldest first."""
        position = {sweep["id"]: index for index, sweep in enumerate(self.whole.sweeps)}
        found: dict[str, set[str]] = defaultdict(set)
        for sweep_id, environment_id, _ in self.whole.measured:
            found[environment_id].add(sweep_id)
        return {key: sorted(ids, key=position.__getitem__) for key, ids in found.items()}

    @cached_property
    def events_of_line(self) -> dict[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.table.found.events:
            found[event.series.cell_key, event.series.place].append(event)
        return found


def word(event: Event) -> str:
    """What happened, in a word: slower, faster, more, less, broken, fixed."""
    if event.series.metric == STATUS:
        return event.kind
    metric = METRICS[event.series.metric]
    up = event.new > event.old
    if metric.unit in ("ms", "s") or metric.name == "speedup":
        return "slower" if up == (metric.better == Better.LOWER) else "faster"
    return "more" if up else "less"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
