"""Data that explains latencies: why a cell takes more or less time than the other modes at its
point, and where its own time goes.

The cells of a point (model, other swept parameters, bs) share a file. It holds what
`analysis.explain` says about their traces, for `static/cell_explained.js`. Databases without traces
have no such files.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from effbench.analysis.cell_pairs import CellPair, default_pairs
from effbench.analysis.explain import (
    Breakdown,
    Explanation,
    NotTracedError,
    digits_of,
    terms_between,
)
from effbench.core.cell import Result
from effbench.core.labels import LabelledResult, grouped
from effbench.render.data import DeviceSweep
from effbench.render.explain import PairReport, report_of
from effbench.render.site.page import PageFolder
from effbench.render.site.writer import Json
from effbench.render.tables import SpeedupRow
from effbench.store.store import Store
from effbench.store.values import ResultKey

#: Most kernels that differ in the data of two cells.
MOST_KERNELS = 20


@dataclass(frozen=True)
class Side:
    """A result with traces, and where its time goes."""

    row: LabelledResult
    breakdown: Breakdown


def key_of(row: Result) -> ResultKey:
    return ResultKey(row.cell_key, row.environment_id)


def point_of(row: LabelledResult | SpeedupRow) -> Hashable:
    return tuple(row.labels.values())


def best_reports(device_sweep: DeviceSweep, most: int) -> dict[Hashable, PairReport]:
    """Return point -> what explains the difference between the reference mode and the best other
    mode, at most of the first points; none without traces."""
    reports: dict[Hashable, PairReport] = {}
    if device_sweep.database is None:
        return reports
    with Store.open(device_sweep.database, mode="read") as store:
        if store.traced_results(device_sweep.sweep.id):
            for pair in default_pairs(device_sweep.rows)[:most]:
                reports[point_of(pair.second)] = report_of(store, pair)
    return reports


# --- pages of cells


def write_files(folder: PageFolder) -> dict[ResultKey, str]:
    """Write a file for each point with traces: cell key -> what `choices_of` returns. Return result
    -> path of its file."""
    device_sweep = folder.subject
    files: dict[ResultKey, str] = {}
    if device_sweep.database is None:
        return files
    with Store.open(device_sweep.database, mode="read") as store:
        traced = set(store.traced_results(device_sweep.sweep.id))
        rows = [row for row in device_sweep.rows if key_of(row) in traced]
        for number, of_point in enumerate(grouped(rows, point_of).values()):
            sides = read_sides(store, of_point)
            cells = {side.row.cell_key: choices_of(side, sides) for side in sides}
            path = folder.data(f"explained-{number}", cells)
            files |= {key_of(side.row): path for side in sides}
    return files


def read_sides(store: Store, rows: Iterable[LabelledResult]) -> list[Side]:
    """Read the traces of results. Skip those without a trace of a trial that counts."""
    sides = []
    for row in rows:
        traced = store.traces(row.sweep_id, row.cell_key, row.environment_id)
        with suppress(NotTracedError):
            sides.append(Side(row, Breakdown.of(traced, row.mode_label)))
    return sides


def choices_of(side: Side, sides: Iterable[Side]) -> list[Json]:
    """Return what explains the latency of a result: against each other one at its point, the
    reference mode first, and on its own."""
    choices = []
    for other in sorted(sides, key=lambda other: not other.row.is_baseline):
        if other is not side:
            choices.append(record_of(other, side))
    breakdown = side.breakdown
    alone = {
        "digits": digits_of(breakdown.latency_ms.value),
        "b_ms": breakdown.latency_ms,
        "terms": breakdown.terms,
        "host": terms_between([], breakdown.host),
    }
    return [*choices, msgspec.to_builtins(alone)]


def record_of(first: Side, second: Side) -> Json:
    """Return what `effbench explain` says about two results as data."""
    explanation = Explanation.between(first.breakdown, second.breakdown)
    report = PairReport(CellPair(first.row, second.row), explanation)
    record = report.record()
    return record | {
        "with": first.row.cell_key,
        "sentence": report.signed(explanation.sentence),
        "digits": explanation.digits,
        "kernels": record["kernels"][:MOST_KERNELS],
        "all_kernels": len(record["kernels"]),
    }
