"""The table of a history, from a database: whose sweeps, of which machine and line, since when."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from effbench.analysis.events import History
from effbench.analysis.history import columns_of, history
from effbench.analysis.row_labels import row_names
from effbench.errors import UsageError
from effbench.report.history_table import HistoryTable
from effbench.store.series import Series
from effbench.store.store import Store
from effbench.store.sweeps import starts_in_future

#: Names of sweeps that a message tells.
MOST_NAMES = 8


def table_of(
    store: Store,
    metrics: Sequence[str],
    models: Sequence[str] = (),
    modes: Sequence[str] = (),
    since: str | None = None,
    everything: bool = False,
    hosts: Sequence[str] = (),
    name: str | None = None,
) -> HistoryTable:
    """Judge what the database holds, re-runs excepted; leave out what is older than `since` or, but for `everything`,
    acknowledged. `name`: of the sweeps that are looked at (empty: those without one); None is all."""
    series = store.series(columns_of(metrics), models, modes).without_reruns()
    if not series.cells and (models or modes):
        raise UsageError(_no_cells(store, models, modes))
    if hosts:
        series = of_hosts(series, hosts)
    if name is not None:
        series = of_line(series, name)
    found = history(series, metrics, store.acknowledgements())
    if since is not None:
        position = position_of(since, series.sweeps)
        found = newer(found, position, [sweep["id"] for sweep in series.sweeps])
    if not everything:
        shown = [event for event in found.events if event.acknowledged is None]
        found = replace(found, events=shown, left_out=len(found.events) - len(shown))
    rows = list(series.cells.values())
    names = dict(zip(series.cells, row_names(rows), strict=True))
    return HistoryTable(found, names, {sweep["id"]: sweep for sweep in series.sweeps}, name, since)


def of_hosts(series: Series, hosts: Sequence[str]) -> Series:
    """What these machines measured. Raises UsageError for one that measured nothing."""
    host_of = {sweep["id"]: (sweep["host"] or {}).get("hostname") for sweep in series.sweeps}
    known = sorted({name for name in host_of.values() if name})
    if unknown := [name for name in hosts if name not in known]:
        raise UsageError(f"no sweep of host {unknown[0]}; there are {', '.join(known) or 'none with a name'}")
    return series.of({sweep_id for sweep_id, host in host_of.items() if host in hosts})


def of_line(series: Series, name: str) -> Series:
    """What the sweeps of this name measured (empty: those without one). Raises UsageError where there is none."""
    name_of = {sweep["id"]: sweep["name"] or "" for sweep in series.sweeps}
    own = {sweep_id for sweep_id, one in name_of.items() if one == name}
    if own or not name_of:
        return series.of(own)
    known = list(dict.fromkeys(one or "some without a name" for one in reversed(name_of.values())))
    there = ", ".join(known[:MOST_NAMES]) + (f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else "")
    raise UsageError(f"{f'no sweep has the name {name}' if name else 'every sweep has a name'}; there are {there}")


def _no_cells(store: Store, models: Sequence[str], modes: Sequence[str]) -> str:
    known = store.series(None).cells.values()
    there = [
        f"{what}s {', '.join(sorted({cell[what] for cell in known})) or 'none'}"
        for what, asked in (("model", models), ("mode", modes))
        if asked
    ]
    return f"no cell with {' and '.join([*models, *modes])} in {store.name}; there are {' and '.join(there)}"


def position_of(since: str, sweeps: Sequence[dict[str, Any]]) -> int:
    """Place of the first sweep that `since` means: an id, a label, a name, a date (UTC), the start of an id; `last` is
    the newest that does not start in the future."""
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


def newer(found: History, position: int, ids: Sequence[str]) -> History:
    """What happened from the sweep at `position` on."""
    recent = set(ids[position:])
    return replace(
        found,
        events=[event for event in found.events if event.position >= position],
        flapping=[one for one in found.flapping if one.last in recent],
        new=[one for one in found.new if one.sweep in recent],
    )
