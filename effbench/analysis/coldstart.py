"""What the first answer of a fresh process costs, and from which request on a mode pays for it
(`cold_starts_of`).

The first n requests of a process take its cold start and n times its steady latency. A mode pays
from the request on at which this is less than in the reference mode without a cache.
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

#: The label of the cache, which does not distinguish cases.
CACHE = "cache"
NOT_FASTER = "its calls are not faster"
NOT_SIGNIFICANT = "the difference between its calls and those of {mode} is not significant"


@dataclass(frozen=True)
class ColdStart:
    """An `ok` result of fresh processes. `reference`: that of the reference mode without a cache;
    `uncached`: that of the same mode without a cache; None if it has none that is `ok`."""

    row: LabelledResult
    reference: LabelledResult | None
    uncached: LabelledResult | None

    @property
    def case(self) -> str:
        """What it shares with its reference, on one line."""
        return case_of(self.row)

    @property
    def mode(self) -> str:
        return self.row.mode_label

    @property
    def cache(self) -> str:
        return cache_of(self.row)

    @property
    def cold_s(self) -> float:
        assert self.row.cold_s is not None
        return self.row.cold_s

    @property
    def latency_ms(self) -> float:
        assert self.row.latency_ms is not None
        return self.row.latency_ms

    @property
    def is_reference(self) -> bool:
        return self.row is self.reference

    @property
    def is_marked(self) -> bool:
        """Whether a disturbed machine affected it or its reference."""
        marks = [self.row.disturbance]
        if self.reference is not None:
            marks.append(self.reference.disturbance)
        return any(marks)

    @property
    def never(self) -> str:
        """Why it never pays; empty if it does, and without another mode to compare with."""
        reference = self.reference
        if reference is None or self.is_reference:
            return ""
        ratio = log_difference(log_of(self.row, "latency_ms"), log_of(reference, "latency_ms"))
        interval = ratio.interval()
        if interval.value >= 1:
            return NOT_FASTER
        if interval.high is not None and interval.high >= 1:
            return NOT_SIGNIFICANT.format(mode=reference.mode_label)
        return ""

    @cached_property
    def requests(self) -> int | None:
        """From how many requests on it pays; None if it never does."""
        reference = self.reference
        if reference is None or self.is_reference or self.never:
            return None
        assert reference.cold_s is not None and reference.latency_ms is not None
        longer_s = self.cold_s - reference.cold_s
        requests = break_even_calls(longer_s, reference.latency_ms, self.latency_ms)
        if requests is None:
            return None
        return max(1, requests)

    @property
    def uptime_s(self) -> float | None:
        """How long a process has been up when it pays, if it always has a request to answer."""
        if self.requests is None:
            return None
        return self.cold_s + self.requests * self.latency_ms / 1000


def cold_starts_of(rows: LabelledResults) -> list[ColdStart]:
    """Return the cold starts of these rows whose caches were made for what they run, by case and
    mode."""
    starts = []
    unchanged = [row for row in rows if row.cold_s is not None and change_of(row) == NO_CHANGE]
    modes = modes_of(unchanged)
    unchanged.sort(key=lambda row: modes.index(row.mode_label))
    for of_case in grouped(unchanged, case_of).values():
        ok = [row for row in of_case if row.is_ok and row.latency_ms]
        plain = {row.mode_label: row for row in ok if cache_of(row) == NO_CACHE}
        reference = next((row for row in plain.values() if row.is_baseline), None)
        for row in ok:
            starts.append(ColdStart(row, reference, plain.get(row.mode_label)))
    return starts


def fastest(starts: Sequence[ColdStart]) -> ColdStart | None:
    """Return the first answer of the mode with the fastest calls, with the cache that makes it the
    soonest; None if only the reference mode was measured."""
    others = [start for start in starts if not start.is_reference]
    if not others:
        return None
    mode = min(others, key=lambda start: start.latency_ms).mode
    return min((start for start in others if start.mode == mode), key=lambda start: start.cold_s)


def case_of(row: LabelledResult) -> str:
    return row.curve(CACHE)


def cache_of(row: LabelledResult) -> str:
    return str(row.params.get(CACHE, NO_CACHE))


def change_of(row: LabelledResult) -> str:
    """Return what differs from when the cache was made: a value of `coldstart.change`."""
    return str(row.params[COLDSTART]["change"])
