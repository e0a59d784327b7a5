"""Data that explains latencies: why a cell takes more or less time than the other modes at its
point, and where its own time goes.

The cells of a point (model, other swept parameters, bs) share a file. It holds what
`analysis.explain` says about their traces, for `static/cell_explained.js`. Databases without traces
have no such files.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from effbench.analysis.cell_pairs import default_pairs
from effbench.analysis.explain import (
    Breakdown,
    Explanation,
    NotTracedError,
    Term,
    digits_of,
    terms_between,
    title_of,
)
from effbench.core.cell import Result
from effbench.core.labels import LabelledResult, grouped
from effbench.render.data import DeviceSweep
from effbench.render.marks import signed
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

    def terms(self, terms: Iterable[Term]) -> list[Json]:
        """Return terms as data, with the names that they have on this device."""
        records = []
        for term in terms:
            records.append(asdict(replace(term, name=title_of(term.name, self.row.device))))
        return records


@dataclass(frozen=True)
class Comparison:
    """Two results at a point. The explanation tells why the second one takes more or less time."""

    first: Side
    second: Side

    @cached_property
    def explanation(self) -> Explanation:
        first, second = self.first.breakdown, self.second.breakdown
        return Explanation(first.compared_with(second), second.compared_with(first))

    @property
    def sentence(self) -> str:
        return self._signed(self.explanation.sentence)

    @property
    def cause(self) -> str:
        """The largest cause on one line; empty if none is certain."""
        return self._signed(self.explanation.cause or "")

    def _signed(self, text: str) -> str:
        is_marked = self.first.row.marked or self.second.row.marked
        return signed(text, bool(text and is_marked))


def key_of(row: Result) -> ResultKey:
    return ResultKey(row.cell_key, row.environment_id)


def point_of(row: LabelledResult | SpeedupRow) -> Hashable:
    return tuple(row.labels.values())


def read_sides(store: Store, rows: Iterable[LabelledResult]) -> list[Side]:
    """Read the traces of results. Skip those without a trace of a trial that counts."""
    sides = []
    for row in rows:
        traced = store.traces(row.sweep_id, row.cell_key, row.environment_id)
        with suppress(NotTracedError):
            sides.append(Side(row, Breakdown.of(traced, row.mode_label)))
    return sides


def best_comparisons(device_sweep: DeviceSweep, most: int) -> dict[Hashable, Comparison]:
    """Return point -> the reference mode and the best other mode, at most of the first points."""
    comparisons: dict[Hashable, Comparison] = {}
    if device_sweep.database is None:
        return comparisons
    with Store.open(device_sweep.database, mode="read") as store:
        if store.traced_results(device_sweep.sweep.id):
            for pair in default_pairs(device_sweep.rows)[:most]:
                sides = read_sides(store, [pair.first, pair.second])
                if len(sides) == 2:
                    comparisons[point_of(pair.second)] = Comparison(*sides)
    return comparisons


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
        best = {key_of(pair.second) for pair in default_pairs(rows)}
        for number, of_point in enumerate(grouped(rows, point_of).values()):
            sides = read_sides(store, of_point)
            cells = {side.row.cell_key: choices_of(side, sides, best) for side in sides}
            path = folder.data(f"explained-{number}", cells)
            files |= {key_of(side.row): path for side in sides}
    return files


def choices_of(side: Side, sides: Sequence[Side], best: Collection[ResultKey]) -> list[Json]:
    """Return what explains the latency of a result: against each other one at its point, the
    reference mode and the best one first, and on its own."""

    def rank(other: Side) -> tuple[bool, bool]:
        return not other.row.is_baseline, key_of(other.row) not in best

    choices = []
    for other in sorted(sides, key=rank):
        if other is not side:
            choices.append(record_of(Comparison(other, side)))
    breakdown = side.breakdown
    latency_ms = breakdown.latency_ms.value
    alone = {
        "digits": digits_of(latency_ms),
        "second_ms": latency_ms,
        "terms": side.terms(breakdown.terms),
        "host": side.terms(terms_between([], breakdown.host)),
    }
    return [*choices, alone]


def record_of(comparison: Comparison) -> Json:
    """Return a comparison as data; times in ms per call."""
    explanation = comparison.explanation
    second = comparison.second
    kernels = list(map(asdict, explanation.kernel_changes))
    return {
        "with": comparison.first.row.cell_key,
        "name": comparison.first.row.mode_label,
        "sentence": comparison.sentence,
        "digits": explanation.digits,
        "first_ms": explanation.first.latency_ms.value,
        "second_ms": explanation.second.latency_ms.value,
        "terms": second.terms(explanation.terms),
        "kernels": kernels[:MOST_KERNELS],
        "all_kernels": len(kernels),
        "host": second.terms(explanation.host_changes),
    }
