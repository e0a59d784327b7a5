"""What the first answer of a fresh process costs, and from which request on a mode pays for it
(`cold_starts_of`).

The first n requests of a process take its cold start and n times its steady latency. A mode pays
from the request on at which this is less than in the reference mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from effbench.analysis.winners import log_of
from effbench.core.cell import COLDSTART, NO_CACHE, NO_CHANGE
from effbench.core.labels import LabelledResult, LabelledResults, grouped, modes_of
from effbench.stats.intervals import log_difference
from effbench.store.summary import break_even_calls

NOT_FASTER = "its calls are not faster"
NOT_SIGNIFICANT = "its calls are not significantly faster"


@dataclass(frozen=True)
class ColdStart:
    """An `ok` result of fresh processes. `reference`: that of the reference mode, which has no
    cache; `uncached`: that of the same mode without a cache; None if it has none that is `ok`."""

    row: LabelledResult
    cold_s: float
    latency_ms: float
    reference: LabelledResult | None
    uncached: LabelledResult | None

    @property
    def cache(self) -> str:
        return cache_of(self.row)

    @property
    def is_reference(self) -> bool:
        return self.row is self.reference

    @property
    def never(self) -> str:
        """Why it never pays; empty if it does, and if there is nothing to compare it with."""
        if self.reference is None or self.is_reference:
            return ""
        times = [log_of(row, "latency_ms") for row in (self.row, self.reference)]
        ratio = log_difference(*times).interval()
        if ratio.value >= 1:
            return NOT_FASTER
        if ratio.high is not None and ratio.high >= 1:
            return NOT_SIGNIFICANT
        return ""

    @cached_property
    def requests(self) -> int | None:
        """From how many requests on it pays; None if it never does, or if that is unknown."""
        reference = self.reference
        if reference is None or self.is_reference or self.never:
            return None
        longer_s = self.cold_s - (reference.cold_s or 0.0)
        requests = break_even_calls(longer_s, reference.latency_ms or 0.0, self.latency_ms)
        if requests is None:
            return None
        return max(1, requests)

    @property
    def uptime_s(self) -> float | None:
        """How long a process that always has a request to answer has been up when it pays."""
        if self.requests is None:
            return None
        return self.cold_s + self.requests * self.latency_ms / 1000


def cold_starts_of(rows: LabelledResults) -> list[ColdStart]:
    """Return the cold starts of these rows whose caches were made for what they run, by case and
    mode."""
    ok = [row for row in rows if row.is_ok and row.phase == COLDSTART]
    modes = modes_of(ok)
    ok.sort(key=lambda row: modes.index(row.mode_label))
    starts: list[ColdStart] = []
    for of_case in grouped(ok, case_of).values():
        starts += cold_starts_of_case(of_case)
    return starts


def cold_starts_of_case(rows: LabelledResults) -> list[ColdStart]:
    """Return the cold starts of rows that differ in mode, cache and change alone."""
    uncached = {row.mode_label: row for row in rows if cache_of(row) == NO_CACHE}
    reference = next((row for row in uncached.values() if row.is_baseline), None)
    starts = []
    for row in rows:
        if row.cold_s and row.latency_ms and change_of(row) == NO_CHANGE:
            plain = uncached.get(row.mode_label)
            starts.append(ColdStart(row, row.cold_s, row.latency_ms, reference, plain))
    return starts


def fastest(starts: Sequence[ColdStart]) -> ColdStart:
    """Return the start of the mode with the fastest calls, with the cache that makes it the
    soonest; one of the reference mode only if there is no other."""
    others = [start for start in starts if not start.is_reference] or starts
    quickest = min(others, key=lambda start: start.latency_ms)
    alike = [start for start in others if start.row.mode_label == quickest.row.mode_label]
    return min(alike, key=lambda start: start.cold_s)


def case_of(row: LabelledResult) -> str:
    """Return the labels that a start shares with its reference, on one line."""
    return row.curve("cache")


def cache_of(row: LabelledResult) -> str:
    return str(row.params["cache"])


def change_of(row: LabelledResult) -> str:
    """Return what differs from when the cache was made: a value of `coldstart.change`."""
    return str(row.params[COLDSTART]["change"])
