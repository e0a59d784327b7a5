"""What the history of cells consists of: changes, flapping and drifting series, new and dead cells."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from effbench.cell import digest


@dataclass(frozen=True)
class SeriesId:
    """`place` is the hardware, and the interpreter or folder if these are compared within sweeps."""

    cell_key: str
    place: str
    metric: str


@dataclass(frozen=True)
class Event:
    """Something that happened between the sweeps `before` and `after` (their ids), neighbours in the series.

    `kind`: `change`, `recent` (the newest one or two sweeps alone: not confirmed), `broken` or `fixed` (the status);
    `flapping` (a series that alternates between the levels `old` and `new`; `after`: sweep of the newest of its
    `switches`), `drifting` (it slides without a step by `ratio`), `new` (the cell is first in `after`) or `dead` (it
    was last in `before`).
    `old`, `new`: levels in the metric's unit, or statuses. `ratio`: new ÷ old with its 95 % bounds, None if unknown.
    `earliest`, `latest`: sweeps between which `after` lies with a confidence of 95 %; None if it is certain. `worse`:
    None if the metric has no direction. `undone`: sweep from which the old level was back. `undoes`: id of the event
    that this one takes back. `with_`: what else changed between the two sweeps. `reason`: of the status.
    `acknowledged`: the reason given, None if nobody did; `acknowledgement`: its row.
    """

    id: str
    kind: str
    series: SeriesId
    before: str | None
    after: str | None
    position: int  # of `after` among all sweeps
    old: Any = None
    new: Any = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    worse: bool | None = None
    undone: str | None = None
    undoes: str | None = None
    with_: tuple[str, ...] = ()
    reason: str | None = None
    acknowledged: str | None = None
    acknowledgement: int | None = None
    earliest: str | None = None
    latest: str | None = None
    switches: int | None = None

    @property
    def alarms(self) -> bool:
        """Worse, still so, and acknowledged by nobody."""
        return bool(self.worse) and self.undone is None and self.acknowledged is None and self.kind != "recent"


@dataclass
class History:
    """`events`: changes, newest and worst first; `others`: those of kind flapping, drifting, new and dead. `states`: of
    each series (steady, changed, flapping, drifting, short). `sweeps`: ids that have results, oldest first.
    `left_out`: how many acknowledged events are omitted."""

    events: list[Event] = field(default_factory=list)
    others: list[Event] = field(default_factory=list)
    states: dict[SeriesId, str] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)
    left_out: int = 0

    def of(self, kind: str) -> list[Event]:
        """Return the `others` of this kind."""
        return [event for event in self.others if event.kind == kind]

    def since(self, position: int) -> History:
        """Return what happened from the sweep at `position` on; drifting and dead cells stay."""

        def is_kept(event: Event) -> bool:
            return event.kind in ("drifting", "dead") or event.position >= position

        events, others = (list(filter(is_kept, events)) for events in (self.events, self.others))
        return replace(self, events=events, others=others)

    def short_ids(self) -> dict[str, str]:
        """Return id -> its shortest start of 6 digits or more that no other event has."""
        ids = {event.id for event in self.events}
        return {
            one: next(
                (one[:n] for n in range(6, len(one)) if sum(other.startswith(one[:n]) for other in ids) == 1),
                one,
            )
            for one in ids
        }


def event_id(series: SeriesId, sweep_id: str) -> str:
    """Return the name of a change: 16 hex digits, of which any unique start will do."""
    return digest([series.cell_key, series.place, series.metric, sweep_id])[:16]
