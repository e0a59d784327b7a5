"""Types of the history of cells: series, events, and `History`, which holds them all."""

from __future__ import annotations

from collections import defaultdict, namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from effbench.cell import Status, digest
from effbench.comparison.limits import ExceptionRule
from effbench.comparison.verdicts import STATUS
from effbench.environments import hardware_of
from effbench.labels import row_names
from effbench.metrics import METRICS, Better
from effbench.store.sides import Series

#: Sweep, environment and a digest of all parameters but the mode.
Unit = tuple[str, str, str]


class SeriesId(NamedTuple):
    """One metric of one cell at one place: hardware, plus the interpreter or folder if a sweep
    compared several."""

    cell_key: str
    place: str
    metric: str


class Track(NamedTuple):
    """The results of one cell at one place, one per sweep, oldest first, as named tuples of the
    columns of `result`."""

    cell_key: str
    place: str
    rows: list[Any]


@dataclass(frozen=True)
class Event:
    """Something that happened to a series between two neighbouring sweeps (ids).

    Changes have an `id`. Their `kind` is `change`, `recent` (only the newest one or two sweeps: not
    confirmed), `broken` or `fixed` (the status). Other kinds are `flapping` (alternates between
    `old` and `new`, most recently in `after_sweep`), `drifting` (changes by `ratio` without a
    step), `new` (the cell first appears in `after_sweep`) and `dead` (the cell last appears in
    `before_sweep`).

    `old`, `new`: levels in the metric's unit, or statuses. `ratio`: new ÷ old with its 95 % bounds,
    None if unknown. `earliest_sweep`, `latest_sweep`: the first sweep after the change lies between
    these with 95 % confidence. `undone_sweep`: the first sweep with the old level again.
    `coincides`: what else changed between the two sweeps. `reason`: the reason of the status.
    `acknowledged`: why the change is accepted; `acknowledgement`: the key of that row.
    """

    kind: str
    series: SeriesId
    before_sweep: str | None = None
    after_sweep: str | None = None
    id: str | None = None
    old: Any = None
    new: Any = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    worse: bool | None = None
    earliest_sweep: str | None = None
    latest_sweep: str | None = None
    undone_sweep: str | None = None
    coincides: tuple[str, ...] = ()
    reason: str | None = None
    acknowledged: str | None = None
    acknowledgement: int | None = None
    switches: int | None = None

    @property
    def state(self) -> str:
        """Return unconfirmed, undone, acknowledged, open (worse and not acknowledged) or holds;
        empty for no change."""
        if self.worse is None:
            return ""
        if self.kind == "recent":
            return "unconfirmed"
        if self.undone_sweep is not None:
            return "undone"
        if self.acknowledged is not None:
            return "acknowledged"
        return "open" if self.worse else "holds"

    @property
    def alarms(self) -> bool:
        return self.state == "open"

    @property
    def word(self) -> str:
        """Return the direction of a change (slower, faster, more, less, broken, fixed); else the
        kind of the event."""
        if self.worse is None or self.series.metric == STATUS:
            return self.kind
        metric = METRICS[self.series.metric]
        up = self.new > self.old
        if metric.unit in ("ms", "s", "×"):
            return "slower" if up == (metric.better == Better.LOWER) else "faster"
        return "more" if up else "less"


class History:
    """All cells of a database over its sweeps.

    `series`: the results without re-runs; `whole`: with re-runs. `sweeps`: rows by id, oldest
    first; `position`: sweep id -> index. `places`: environment id -> place; `hardware`: place ->
    hardware. `events`: changes, the worst open ones first, then other events. `states`: steady,
    changed, flapping, drifting or short (too short to judge). `left_out`: number of acknowledged
    changes that were removed from `events`.
    """

    def __init__(self, series: Series, metrics: Sequence[str]) -> None:
        self.series, self.whole, self.metrics = series, series, metrics
        self.sweeps = {sweep["id"]: sweep for sweep in series.sweeps}
        self.position = {sweep_id: position for position, sweep_id in enumerate(self.sweeps)}
        self.places = {
            key: place_of(environment) for key, environment in series.environments.items()
        }
        self.hardware = {
            self.places[key]: hardware_of(row) for key, row in series.environments.items()
        }
        self.tracks = self._tracks()
        self.events: list[Event] = []
        self.states: dict[SeriesId, str] = {}
        self.left_out = 0
        self.baselines: Sequence[Any] = ()

    def _tracks(self) -> list[Track]:
        """Return all tracks. If a sweep has several results at a place (two hosts), the best one
        counts; of equal ones the last, as in comparisons: perhaps the sweep was resumed after an
        update."""
        best: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
        row_type = namedtuple("Row", self.series.columns)

        def rank(row: Any) -> tuple:
            known = [*((self.sweeps[row.sweep_id]["host"] or {}).get("environments") or ())]
            place = known.index(row.environment_id) if row.environment_id in known else -1
            return (row.status == Status.OK, not row.marked, row.trials, place, row.environment_id)

        for row in map(row_type._make, self.series.rows):
            of_track = best[row.cell_key, self.places[row.environment_id]]
            other = of_track.setdefault(row.sweep_id, row)
            if other is not row and rank(row) > rank(other):
                of_track[row.sweep_id] = row
        return [
            Track(
                *key,
                [
                    of_track[sweep_id]
                    for sweep_id in sorted(of_track, key=self.position.__getitem__)
                ],
            )
            for key, of_track in sorted(best.items(), key=itemgetter(0))
        ]

    @cached_property
    def marked_baselines(self) -> set[Unit]:
        """The units whose baseline has marked times, so that the speedups of other modes there
        depend on them."""
        modes = {
            sweep_id: sweep.get("baseline_mode", "eager") for sweep_id, sweep in self.sweeps.items()
        }
        row_type = namedtuple("Row", self.series.columns)
        rows = map(row_type._make, self.series.rows)
        return {
            unit_of(self, row)
            for row in rows
            if row.marked and self.series.cells[row.cell_key]["mode"] == modes[row.sweep_id]
        }

    @property
    def marked_results(self) -> int:
        """The number of results whose times make no level and no change, because the host was
        disturbed."""
        return sum(bool(row.marked) for track in self.tracks for row in track.rows)

    @property
    def changes(self) -> list[Event]:
        return [event for event in self.events if event.id is not None]

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    def without(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind not in kinds]

    @cached_property
    def names(self) -> dict[str, str]:
        """Cell key -> unique name."""
        return dict(
            zip(self.series.cells, row_names(list(self.series.cells.values())), strict=True)
        )

    @cached_property
    def sweeps_of_environment(self) -> dict[str, list[str]]:
        """Environment id -> ids of the sweeps (and re-runs) with a result in it, oldest first."""
        order = {sweep["id"]: place for place, sweep in enumerate(self.whole.sweeps)}
        ids: dict[str, list[str]] = defaultdict(list)
        for sweep_id, environment_id in sorted(
            {row[:2] for row in self.whole.measured}, key=lambda row: order[row[0]]
        ):
            ids[environment_id].append(sweep_id)
        return ids

    def is_matched(self, event: Event, rule: ExceptionRule) -> bool:
        """Return whether an exception matches the metric and the cell of an event."""
        cell = {
            **self.series.cells[event.series.cell_key],
            "hardware": self.hardware[event.series.place],
        }
        return rule.is_of(event.series.metric) and rule.fits(cell)


def unit_of(history: History, row: Any) -> Unit:
    """Return what the modes of a case have in common: sweep, environment, and all parameters but
    the mode."""
    params = history.series.cells[row.cell_key].get("params") or {}
    return (
        row.sweep_id,
        row.environment_id,
        digest({key: value for key, value in params.items() if key != "mode"}),
    )


def place_of(environment: Mapping[str, Any]) -> str:
    """Return the hardware, plus the interpreter or folder if the environment is one of several in a
    sweep."""
    flags = environment["flags"] or {}
    compared = [f"{name} {flags[name]}" for name in ("interpreter", "folder") if flags.get(name)]
    hardware = hardware_of(environment)
    return f"{hardware} ({', '.join(compared)})" if compared else hardware


def event_id(series: SeriesId, sweep_id: str) -> str:
    """Return the id of a change: 16 hex digits."""
    return digest([series.cell_key, series.place, series.metric, sweep_id])[:16]


def short_id(event_id: str) -> str:
    """Return the start of an id, which is unique among thousands of changes."""
    return event_id[:8]
