"""The history of cells as texts: rows of a table, Markdown, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from effbench.analysis.events import STATUS, Event, History, SeriesId
from effbench.analysis.exact_changes import SHORTEST as EXACT
from effbench.analysis.potts import SHORTEST
from effbench.metrics import METRICS, Better
from effbench.printable import one_line

#: Longest label and longest reason in a table, in characters; JSON and CSV have all of them.
LABEL, REASON = 40, 200
FORMATS = ("markdown", "json", "csv")
HEADINGS = ("id", "change", "cell", "metric", "levels", "last before .. first after", "notes")
COLUMNS = (
    "id", "kind", "word", "alarms", "cell", "cell_key", "place", "metric", "old", "new", "ratio", "low", "high",
    "before_sweep", "before_label", "before_started_at", "after_sweep", "after_label", "after_started_at",
    "earliest_sweep", "latest_sweep", "undone_sweep", "undoes", "coincides", "reason", "acknowledged", "switches",
)  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A heading with lines below it."""

    title: str
    lines: list[str]


class HistoryTable:
    """`found` with what its ids mean: `names` of cells by key, `sweeps` (rows with label and started_at) by id. `name`:
    that of all the sweeps that were looked at (empty: they have none); `since`: what is older was left out; None where
    they were not asked for."""

    def __init__(
        self, found: History, names: Mapping[str, str], sweeps: Mapping[str, Mapping[str, Any]],
        name: str | None = None, since: str | None = None,
    ) -> None:  # fmt: skip
        self.found = found
        self.names = names
        self.sweeps = sweeps
        self.name = name
        self.since = since
        self.short = found.short_ids()
        self.several_places = len({key.place for key in found.states} | {one.series.place for one in found.events}) > 1

    # --- texts ---

    @property
    def confirmed(self) -> list[Event]:
        return [event for event in self.found.events if event.kind != "recent"]

    @property
    def recent(self) -> list[Event]:
        return [event for event in self.found.events if event.kind == "recent"]

    def summary(self) -> str:
        """One line: how much was looked at and what came of it."""
        states = list(self.found.states.values())
        cells = {(key.cell_key, key.place) for key in self.found.states}
        if not self.found.sweeps:
            return "no results yet: nothing has a history"
        first, last = (self.date(self.found.sweeps[index]) for index in (0, -1))
        changes = self.confirmed
        parts = [
            f"{sum(event.alarms for event in changes)} unacknowledged and worse",
            f"{sum(event.undone is not None for event in changes)} undone",
            f"{self.found.left_out} acknowledged and left out"
            if self.found.left_out
            else f"{sum(event.acknowledged is not None for event in changes)} acknowledged",
        ]
        short = f"too short to judge (under {SHORTEST} sweeps, of counters {EXACT})"
        others = [
            (len(self.recent), "recent, unconfirmed"), (len(self.found.new), "new"), (len(self.found.dead), "dead"),
            (len(self.found.flapping), "flapping"), (len(self.found.drifting), "drifting"),
            (states.count("steady"), "steady"), (states.count("short"), short),
        ]  # fmt: skip
        line = "" if self.name is None else f" named {one_line(self.name, LABEL)}" if self.name else " without a name"
        said = " · ".join(f"{number} {what}" for number, what in others if number)
        since = "" if self.since is None else f" since {one_line(self.since, LABEL)}"
        return (
            f"{_count(len(changes), 'change')}{since} ({', '.join(parts)}) in {len(states)} series of "
            f"{_count(len(cells), 'cell')} over {_count(len(self.found.sweeps), 'sweep')}{line}, {first} to {last}"
            + (f" · {said}" if said else "")
        )

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
        needed = f"times need {SHORTEST} sweeps, counters {EXACT}"
        return said + (f" Too short to judge: {short} of {len(states)} series ({needed})." if short else "")

    def row(self, event: Event) -> tuple[str, ...]:
        """The texts below `HEADINGS`."""
        return (
            self.short[event.id],
            ("! " if event.alarms else "") + self.change(event),
            self.where(event.series),
            event.series.metric,
            f"{self.level(event.series, event.old)} -> {self.level(event.series, event.new)}",
            f"{self.sweep(event.before)} .. {self.sweep(event.after)}",
            "; ".join(self.notes(event)),
        )

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
        notes += [f"takes back {self.short.get(event.undoes, event.undoes[:6])}"] if event.undoes else []
        notes += [f"coincides with {', '.join(one_line(text, REASON) for text in event.with_)}"] if event.with_ else []
        notes += [one_line(event.reason, REASON)] if event.reason else []
        notes += [f"acknowledged: {one_line(event.acknowledged, REASON)}"] if event.acknowledged is not None else []
        return notes

    def where(self, series: SeriesId) -> str:
        return self.cell(series)

    def sweep(self, sweep_id: str) -> str:
        label = one_line(self.sweeps[sweep_id]["label"] or "", LABEL)
        return f"{label} ({sweep_id})" if label else sweep_id

    def date(self, sweep_id: str) -> str:
        return f"{self.sweeps[sweep_id]['started_at']:%Y-%m-%d}"

    @staticmethod
    def level(series: SeriesId, value: Any) -> str:
        return str(value) if series.metric == STATUS else METRICS[series.metric].format(value)

    def sections(self) -> list[Section]:
        """All that is no change of level, under headings; empty ones are left out."""
        found = self.found
        sections = [
            Section("New cells", [f"{self.cell(one)}: since {self.sweep(one.sweep)}" for one in found.new]),
            Section("Dead cells", [f"{self.cell(one)}: last in {self.sweep(one.sweep)}" for one in found.dead]),
            Section("Flapping", [
                f"{self.where(one.series)} {one.series.metric}: {self.level(one.series, one.low)} and "
                f"{self.level(one.series, one.high)}, {one.switches} switches, last in {self.sweep(one.last)}"
                + (f"; goes with {', '.join(one_line(text, REASON) for text in one.with_)}" if one.with_ else "")
                for one in found.flapping
            ]),
            Section("Drifting", [
                f"{self.where(one.series)} {one.series.metric}: slides by {one.ratio:.3f}× without a step"
                for one in found.drifting
            ]),
        ]  # fmt: skip
        return [section for section in sections if section.lines]

    def cell(self, one: Any) -> str:
        """Of what has a `cell_key` and a `place`."""
        name = self.names[one.cell_key]
        return one_line(f"{name} on {one.place}" if self.several_places else name)

    # --- formats ---

    def render(self, how: str) -> str:
        """`markdown` (as read), `json` (all there is) or `csv` (a line for each of them)."""
        return {"markdown": self._markdown, "json": self._json, "csv": self._csv}[how]()

    def _markdown(self) -> str:
        lines = [self.summary(), *(["", self.verdict()] if self.found.sweeps else [])]
        for title, events in (("Changes", self.confirmed), ("Recent, unconfirmed", self.recent)):
            if events:
                lines += ["", f"## {title}", "", _markdown_line(HEADINGS), _markdown_line(["---"] * len(HEADINGS))]
                for event in events:
                    first, change, *rest = (_markdown_text(text) for text in self.row(event))
                    lines.append(_markdown_line([first, f"**{change}**" if event.alarms else change, *rest]))
        for section in self.sections():
            lines += ["", f"## {section.title}", "", *(f"- {_markdown_text(line)}" for line in section.lines)]
        return "\n".join(lines) + "\n"

    def _json(self) -> str:
        records = self.records()
        kinds = ("new", "dead", "flapping", "drifting", "recent")
        states = list(self.found.states.values())
        data = {
            "summary": self.summary(),
            "verdict": self.verdict(),
            "states": {state: states.count(state) for state in dict.fromkeys(states)},
            "changes": [one for one in records if one["kind"] not in kinds],
            **{kind: [one for one in records if one["kind"] == kind] for kind in kinds},
        }
        return json.dumps(data, indent=2, default=str, allow_nan=False)

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for record in self.records():
            writer.writerow({**record, "coincides": "; ".join(record["coincides"])})
        return out.getvalue()

    def records(self) -> list[dict[str, Any]]:
        """A dict with `COLUMNS` for each event, new, dead, flapping and drifting one."""
        found = self.found
        records = [self._record_of(event) for event in found.events]
        for kind, seen in (("new", found.new), ("dead", found.dead)):
            for one in seen:
                side = "after" if kind == "new" else "before"
                records.append(self._record(kind, one.cell_key, one.place, **self._facts(side, one.sweep)))
        for one in found.flapping:
            key = one.series
            records.append(self._record(
                "flapping", key.cell_key, key.place, metric=key.metric, old=one.low, new=one.high,
                switches=one.switches, coincides=list(one.with_), **self._facts("after", one.last),
            ))  # fmt: skip
        for one in found.drifting:
            key = one.series
            records.append(self._record("drifting", key.cell_key, key.place, metric=key.metric, ratio=one.ratio))
        return records

    def _record(self, kind: str, cell_key: str, place: str, **values: Any) -> dict[str, Any]:
        empty = {**dict.fromkeys(COLUMNS), "coincides": []}
        return {**empty, "kind": kind, "cell": self.names[cell_key], "cell_key": cell_key, "place": place, **values}

    def _record_of(self, event: Event) -> dict[str, Any]:
        return self._record(
            event.kind, event.series.cell_key, event.series.place, id=self.short[event.id], word=word(event),
            alarms=event.alarms, metric=event.series.metric, old=event.old, new=event.new, ratio=event.ratio,
            low=event.low, high=event.high, undone_sweep=event.undone, coincides=list(event.with_),
            earliest_sweep=event.earliest or event.after, latest_sweep=event.latest or event.after,
            undoes=event.undoes and self.short.get(event.undoes, event.undoes[:6]), reason=event.reason,
            acknowledged=event.acknowledged, **self._facts("before", event.before), **self._facts("after", event.after),
        )  # fmt: skip

    def _facts(self, side: str, sweep_id: str) -> dict[str, Any]:
        sweep = self.sweeps[sweep_id]
        return {
            f"{side}_sweep": sweep_id,
            f"{side}_label": sweep["label"],
            f"{side}_started_at": sweep["started_at"].isoformat(),
        }


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


def _markdown_line(values: Any) -> str:
    return "| " + " | ".join(values) + " |"


def _markdown_text(text: str) -> str:
    text = one_line(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for sign in "|*`[":
        text = text.replace(sign, f"\\{sign}")
    return text
