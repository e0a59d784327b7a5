"""What the history of cells consists of: changes, flapping and drifting series, new and dead cells."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from effbench.cell import digest

#: The metric of an event that is about a status.
STATUS = "status"


@dataclass(frozen=True)
class SeriesId:
    """Which series: `place` is the hardware, and what of the software is compared within sweeps."""

    cell_key: str
    place: str
    metric: str


@dataclass(frozen=True)
class Event:
    """Something that changed between the sweeps `before` and `after` (their ids), neighbours in the series.

    `kind`: `change`, `recent` (the newest one or two sweeps alone: not confirmed), `broken` or `fixed` (the status).
    `old`, `new`: levels in the metric's unit, or statuses. `ratio`: new ÷ old with its 95 % bounds, None where it has
    none. `earliest`, `latest`: sweeps between which `after` lies with a confidence of 95 %; None: it is certain.
    `worse`: True, False, or None where the metric has no direction. `undone`: sweep from which the old level was
    back. `undoes`: id of the event that this one takes back. `with_`: what else changed between the two sweeps.
    `reason`: of the status. `acknowledged`: the reason given, None where nobody did.
    """

    id: str
    kind: str
    series: SeriesId
    before: str
    after: str
    position: int  # of `after` among all sweeps
    old: Any
    new: Any
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
    acknowledgement: int | None = None  # its row
    earliest: str | None = None
    latest: str | None = None

    @property
    def alarms(self) -> bool:
        """Worse, still so, and acknowledged by nobody."""
        return bool(self.worse) and self.undone is None and self.acknowledged is None and self.kind != "recent"


@dataclass(frozen=True)
class Flapping:
    """A series that goes to and fro between two levels; `last`: sweep of the newest switch. `with_`: what is never the
    same on both."""

    series: SeriesId
    low: Any
    high: Any
    switches: int
    last: str
    with_: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drifting:
    """A series that slides without a step; `ratio`: end ÷ start of the stretch that does."""

    series: SeriesId
    ratio: float


@dataclass(frozen=True)
class Seen:
    """A cell at a place that is new (`sweep`: the first that has it) or dead (the last that has it)."""

    cell_key: str
    place: str
    sweep: str


@dataclass
class History:
    """`events` newest and worst first. `states`: what is said of each series (steady, changed, flapping, drifting,
    short); `new` and `dead` are said of cells. `sweeps`: ids that have results, oldest first. `left_out`:
    acknowledged events that are not among these."""

    events: list[Event] = field(default_factory=list)
    flapping: list[Flapping] = field(default_factory=list)
    drifting: list[Drifting] = field(default_factory=list)
    new: list[Seen] = field(default_factory=list)
    dead: list[Seen] = field(default_factory=list)
    states: dict[SeriesId, str] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)
    left_out: int = 0

    def short_ids(self, shortest: int = 6) -> dict[str, str]:
        """Id -> its shortest start of 6 digits or more that no other event has."""
        ids = {event.id for event in self.events}
        return {one: _unique_start(one, ids, shortest) for one in ids}


def event_id(series: SeriesId, sweep_id: str) -> str:
    """What names a change: 16 hex digits, of which any unique start will do."""
    return digest([series.cell_key, series.place, series.metric, sweep_id])[:16]


def _unique_start(one: str, ids: Collection[str], shortest: int) -> str:
    return next(
        (one[:length] for length in range(shortest, len(one)) if sum(i.startswith(one[:length]) for i in ids) == 1), one
    )
