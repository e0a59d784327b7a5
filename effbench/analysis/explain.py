"""Explain where the time went between two cells: `Explanation.of`.

A call of a traced trial is divided into terms: host time before the first kernel, idle time between
kernels, the time of kernels by class, and host time after the last kernel. Tracing delays the host,
whose speed also changes, but not the kernels of a GPU; `without_tracing` adapts the host's times to
the latency that was measured without tracing. What remains is the term `not explained`: kernels may
take longer than the whole call, because they overlap when they are not traced. So the terms add up
to the mean latency of a side, and their differences to the difference between two sides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain

from effbench.analysis.kernel_changes import (
    FUSION,
    ChangeKind,
    KernelChange,
    changes_between,
    with_operators,
)
from effbench.analysis.kernel_classes import NOUNS, KernelClass, class_of
from effbench.core.cell import Trial
from effbench.core.errors import NothingFoundError
from effbench.core.labels import grouped
from effbench.core.printable import count, listed, one_line
from effbench.core.trace import Trace
from effbench.stats.intervals import Interval, LogEstimate, log_difference, mean_of
from effbench.store.trials import TracedTrial

#: A part that is a smaller fraction of the difference is not named, without intervals and in the
#: work of the host a smaller one than LARGE.
SMALL, LARGE = 0.1, 0.25
#: Without intervals, a smaller relative difference counts as none.
FLOOR = 0.02
#: A kind of kernel changes explains a term from this fraction of it on.
MOST_OF_IT = 0.5
#: Most terms in a sentence, and most names in a reason.
MOST_TERMS, MOST_NAMES = 3, 2
#: Keys in `Trial.extra` that say why a trial has no trace.
NO_TRACE = ("no_trace", "omitted_trace", "damaged_trace")
#: How many times slower the host may have been in timing than in the trace: shared hosts differ by
#: less. Beyond it, something else is the reason.
SLOWER_HOST = 2.0
#: Names of the host's work in traces.
GRAPH_LAUNCH, WAITING = "graph launch", "waiting for the GPU"
#: The ms of a side that takes no time, in enough trials for an interval.
NOTHING_MS = (0.0, 0.0)
#: Name of a part of a call, or of some work of the host -> its ms in a trial.
Times = Mapping[str, float]


class NotTracedError(NothingFoundError):
    """A side has no traced trial."""


class Part(StrEnum):
    """Parts of a call in which no kernel runs, and the rest."""

    BEFORE = "host before the first kernel"
    GAPS = "idle between kernels"
    AFTER = "host after the last kernel"
    REST = "not explained"


#: Names of parts on the CPU.
ON_CPU: Mapping[str, str] = {
    Part.BEFORE: "Python before the first operator",
    Part.GAPS: "Python between operators",
    Part.AFTER: "Python after the last operator",
}
#: First word of such a name -> what happens, before `longer` or `less time`.
VERBS = {"host": "the host takes", "idle": "the GPU waits", "Python": "Python takes"}


# --- statistics


def difference_of(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the mean of `second` - the mean of `first` with Welch's interval; without bounds if a
    side has a single value."""
    return interval_of(log_difference(mean_of(second), mean_of(first)))


def interval_of(ms: LogEstimate) -> Interval:
    """Return an estimate of ms, not of a logarithm, with its bounds; without them if its error is
    unknown."""
    if ms.error is None:
        return Interval(ms.value)
    half = ms.half_width()
    return Interval(ms.value, ms.value - half, ms.value + half)


def is_certain(ms: Interval, least_ms: float) -> bool:
    """Return whether the interval excludes 0; without an interval, whether it is more than
    `least_ms`."""
    if ms.low is None or ms.high is None:
        return abs(ms.value) > least_ms
    return ms.low > 0 or ms.high < 0


# --- one side


@dataclass(frozen=True)
class Breakdown:
    """Where the time of one side went. `traces`: of its trials, without the delay of tracing;
    `latencies_ms`: of the same trials, measured without tracing."""

    name: str
    traces: Sequence[Trace]
    latencies_ms: Sequence[float]

    @classmethod
    def of(cls, traced: Iterable[TracedTrial], name: str = "this cell") -> Breakdown:
        """Divide the calls of the trials that have a trace. Raises NotTracedError without any."""
        traced = list(traced)
        traces = []
        latencies_ms = []
        for trial in traced:
            latency_ms = trial.trial.latency_ms
            if trial.trace is not None and latency_ms is not None:
                traces.append(without_tracing(trial.trace, latency_ms))
                latencies_ms.append(latency_ms)
        if not traces:
            why = why_not_traced(trial.trial for trial in traced)
            raise NotTracedError(f"{name} was not traced: {why}")
        return cls(name, traces, latencies_ms)

    @property
    def latency_ms(self) -> Interval:
        """The mean latency: the sum of the terms."""
        return interval_of(mean_of(self.latencies_ms))

    @property
    def typical(self) -> Trace:
        """The trace of the trial with the median latency."""
        median_ms = statistics.median_low(self.latencies_ms)
        return self.traces[self.latencies_ms.index(median_ms)]

    @cached_property
    def times(self) -> Sequence[Times]:
        """The ms of each term (Part or KernelClass), in the order of a call."""
        return list(map(times_of, self.traces, self.latencies_ms))

    @property
    def host(self) -> Sequence[Times]:
        """The ms of what the host did; they overlap with the terms."""
        return [trace.host for trace in self.traces]

    @property
    def terms(self) -> list[Term]:
        """The terms that are not 0, compared with a call that takes no time."""
        return terms_between([], self.times, self.device)

    @property
    def device(self) -> str:
        return self.traces[0].device

    def compared_with(self, other: Breakdown) -> Breakdown:
        """Return the breakdown with the operators that only the other side knows."""
        typical = other.typical
        return replace(self, traces=[with_operators(trace, typical) for trace in self.traces])


def why_not_traced(trials: Iterable[Trial]) -> str:
    """Return why none of these trials has a trace."""
    for trial in trials:
        if trial.cold_s is not None:
            return "effbench coldstart shows the parts of a cold start"
        for key in NO_TRACE:
            if key in trial.extra:
                return one_line(trial.extra[key])
    return "measured by an older version, or with protocol.profile=false"


def without_tracing(trace: Trace, latency_ms: float) -> Trace:
    """Return the trace with the times of a call that takes `latency_ms` without tracing.

    Kernels of a GPU take as long. Tracing delays launches, hence the gaps. A longer delay, and a
    host that was slower in timing, concern all times of the host alike, up to SLOWER_HOST.
    """
    if trace.device == "cpu":
        return without_tracing_on_cpu(trace, latency_ms)
    ends_ms = trace.before_ms + trace.after_ms
    host_ms = max(0.0, latency_ms - trace.busy_ms)
    ends = gaps = 1.0
    if host_ms > ends_ms + trace.gap_ms > 0:
        ends = gaps = min(SLOWER_HOST, host_ms / (ends_ms + trace.gap_ms))
    elif host_ms > ends_ms and trace.gap_ms > 0:
        gaps = (host_ms - ends_ms) / trace.gap_ms
    elif ends_ms > 0:
        ends = host_ms / ends_ms
        gaps = 0.0
    return scaled(trace, ends, gaps)


def without_tracing_on_cpu(trace: Trace, latency_ms: float) -> Trace:
    """Return the trace with shorter operators and gaps, each of which tracing delays alike; then
    all times are those of the host in timing, which may have been slower or faster."""
    gaps = sum(kernel.gap_ms > 0 for kernel in trace.kernels)
    delay_ms = max(0.0, trace.latency_ms - latency_ms)
    of_each = delay_ms / max(trace.events, len(trace.kernels) + gaps, 1)
    shorter = scaled(trace, 1.0, 1.0, delay_ms=of_each)
    left_ms = shorter.before_ms + shorter.gap_ms + shorter.busy_ms + shorter.after_ms
    if left_ms == 0:
        return shorter
    factor = min(SLOWER_HOST, latency_ms / left_ms)
    return scaled(shorter, factor, factor, factor)


def scaled(
    trace: Trace,
    ends: float,
    gaps: float,
    kernels: float = 1.0,
    delay_ms: float = 0.0,
) -> Trace:
    """Return the trace with its times multiplied: `ends`, those before and after the kernels; and
    `delay_ms` subtracted from each gap and kernel."""
    changed = []
    for kernel in trace.kernels:
        gap_ms = gaps * max(0.0, kernel.gap_ms - delay_ms)
        added_ms = kernels * max(0.0, kernel.added_ms - delay_ms)
        changed.append(replace(kernel, gap_ms=gap_ms, added_ms=added_ms))
    return replace(
        trace,
        before_ms=ends * trace.before_ms,
        after_ms=ends * trace.after_ms,
        kernels=tuple(changed),
    )


def times_of(trace: Trace, latency_ms: float) -> Times:
    """Return the ms of each term; together they are `latency_ms`."""
    times: dict[str, float] = {Part.BEFORE: trace.before_ms, Part.GAPS: trace.gap_ms}
    times |= dict.fromkeys(KernelClass, 0.0)
    for kernel in trace.kernels:
        times[class_of(kernel)] += kernel.added_ms
    times[Part.AFTER] = trace.after_ms
    times[Part.REST] = latency_ms - math.fsum(times.values())
    return times


# --- two sides


@dataclass(frozen=True)
class Term:
    """How a part of a call, or some work of the host, differs between two sides: `ms` = `second_ms`
    - `first_ms`, means over trials. `ms` has the 95 % interval; without bounds if a side has a
    single trial."""

    name: str
    first_ms: float
    second_ms: float
    ms: Interval


@dataclass(frozen=True)
class Explanation:
    """Why the second side takes more or less time than the first one. Differences are second -
    first, in ms per call."""

    first: Breakdown
    second: Breakdown

    @classmethod
    def of(
        cls, first: Iterable[TracedTrial], second: Iterable[TracedTrial], names: Sequence[str]
    ) -> Explanation:
        """Compare the trials of two sides with these names. Raises NotTracedError."""
        first_name, second_name = names
        return cls.between(Breakdown.of(first, first_name), Breakdown.of(second, second_name))

    @classmethod
    def between(cls, first: Breakdown, second: Breakdown) -> Explanation:
        """Compare two sides, each with the operators that only the other one knows."""
        return cls(first.compared_with(second), second.compared_with(first))

    @cached_property
    def latency(self) -> Term:
        """The mean latencies: the sums of the terms."""
        return term_between("latency", self.first.latencies_ms, self.second.latencies_ms)

    @property
    def digits(self) -> int:
        """How many decimals of times tell the difference."""
        return digits_of(self.latency.ms.value)

    @cached_property
    def terms(self) -> list[Term]:
        """The terms that are not 0 on both sides, in the order of a call; `not explained` last."""
        return terms_between(self.first.times, self.second.times, self.second.device)

    @property
    def rest(self) -> Term | None:
        """What is not explained; None if everything is."""
        for term in self.terms:
            if term.name == Part.REST:
                return term
        return None

    @cached_property
    def host_changes(self) -> list[Term]:
        """What the host did, largest difference first. It overlaps with the terms."""
        return by_size(terms_between(self.first.host, self.second.host))

    @cached_property
    def kernel_changes(self) -> list[KernelChange]:
        """The kernels that differ between the trials with the median latencies, largest difference
        first."""
        return changes_between(self.first.typical, self.second.typical)

    # --- in words

    @cached_property
    def certain_terms(self) -> list[Term]:
        """The terms that explain a part of the difference or reduce it, largest first; none if it
        is not significant."""
        if not self.is_significant:
            return []
        whole = abs(self.latency.ms.value)
        certain = []
        for term in by_size(self.terms):
            is_large = abs(term.ms.value) > SMALL * whole
            if term.name != Part.REST and is_large and is_certain(term.ms, LARGE * whole):
                certain.append(term)
        return certain

    @property
    def is_significant(self) -> bool:
        return is_certain(self.latency.ms, FLOOR * self.latency.first_ms)

    def text(self, term: Term) -> str:
        """Return the difference of a term in ms: `+0.11`."""
        return f"{term.ms.value:+.{self.digits}f}"

    @property
    def cause(self) -> str | None:
        """The largest term in the direction of the difference, on one line: `1 copy operation is
        new (Memcpy DtoD): +0.11 of +0.13 ms`. None if no term is certain."""
        for term in self.certain_terms:
            if term.ms.value * self.latency.ms.value > 0:
                return f"{self.reason(term)}: {self.text(term)} of {self.text(self.latency)} ms"
        return None

    @property
    def sentence(self) -> str:
        """The difference and its causes."""
        latency = self.latency
        first, second = self.first.name, self.second.name
        if not self.is_significant:
            digits = digits_of(latency.first_ms)
            return (
                f"{second} takes {latency.second_ms:.{digits}f} ms and {first}"
                f" {latency.first_ms:.{digits}f} ms: the difference is not significant."
            )
        reasons = []
        if self.cause is None:
            reasons.append("no single part explains it")
        for term in self.certain_terms[:MOST_TERMS]:
            reasons.append(f"{self.text(term)} ms because {self.reason(term)}")
        rest = self.rest
        if rest is not None and abs(rest.ms.value) > LARGE * abs(latency.ms.value):
            reasons.append(f"{self.text(rest)} ms not explained")
        more = "longer" if latency.ms.value > 0 else "less"
        digits = self.digits
        text = (
            f"{second} takes {abs(latency.ms.value):.{digits}f} ms {more} than {first}"
            f" ({latency.second_ms:.{digits}f} instead of {latency.first_ms:.{digits}f} ms):"
            f" {', '.join(reasons)}."
        )
        if latency.ms.low is None:
            text += " A single trial has no intervals."
        return text

    def reason(self, term: Term) -> str:
        """Return why a term differs, as a clause: `pointwise operations take longer`."""
        more = "longer" if term.ms.value > 0 else "less time"
        if term.name not in NOUNS:
            return self._reason_of_host(term, more)
        kernel_class = KernelClass(term.name)
        noun = NOUNS[kernel_class]
        changes = self._main_changes(kernel_class, term.ms.value)
        if not changes:
            return f"{noun}s take {more}"
        number = sum(change.count for change in changes)
        verb = "is" if number == 1 else "are"
        return f"{count(number, noun)} {verb} {predicate_of(changes)}"

    def _reason_of_host(self, term: Term, more: str) -> str:
        works = []
        for work in self.host_changes:
            if work.name == GRAPH_LAUNCH and term.name == Part.GAPS:
                if work.second_ms == 0 and term.ms.value > 0:
                    return "the CUDA graph is gone, so the GPU waits for launches between kernels"
                if work.first_ms == 0 and term.ms.value < 0:
                    return "the GPU no longer waits for launches between kernels"
            if work.name != WAITING and work.ms.value / term.ms.value > LARGE:
                works.append(work.name)
        who, _, where = term.name.partition(" ")
        text = f"{VERBS[who]} {more} {where}"
        if works:
            text += f" ({listed(works, MOST_NAMES)})"
        return text

    def _main_changes(self, kernel_class: KernelClass, ms: float) -> list[KernelChange]:
        """Return the changes of the kind that explains most of the class's difference; none if no
        kind does."""
        of_class = [change for change in self.kernel_changes if change.kernel_class is kernel_class]
        kinds = grouped(of_class, lambda change: change.kind).values()
        main = max(kinds, key=lambda changes: ms_of(changes) / ms, default=[])
        if ms_of(main) / ms < MOST_OF_IT:
            return []
        return main


def terms_between(
    first: Sequence[Times], second: Sequence[Times], device: str = "cuda"
) -> list[Term]:
    """Return the difference of each part that is not 0 on both sides, under its name on `device`.
    Without trials, a side takes no time."""
    names = ON_CPU if device == "cpu" else {}
    terms = []
    for name in dict.fromkeys(chain.from_iterable([*first, *second])):
        old = [times.get(name, 0.0) for times in first]
        new = [times.get(name, 0.0) for times in second]
        if any(old) or any(new):
            terms.append(term_between(names.get(name, name), old or NOTHING_MS, new))
    return terms


def term_between(name: str, first: Sequence[float], second: Sequence[float]) -> Term:
    """Return the difference of a part. `first`, `second`: its ms in each trial."""
    return Term(
        name,
        first_ms=statistics.fmean(first),
        second_ms=statistics.fmean(second),
        ms=difference_of(first, second),
    )


def by_size(terms: Iterable[Term]) -> list[Term]:
    return sorted(terms, key=lambda term: -abs(term.ms.value))


def ms_of(changes: Iterable[KernelChange]) -> float:
    return sum(change.ms for change in changes)


def predicate_of(changes: Sequence[KernelChange]) -> str:
    """Return what happened to kernels by changes of one kind, largest first: `new (Memcpy DtoD)`,
    `no longer fused into matrix products`."""
    kind = changes[0].kind
    if kind in FUSION.values():
        return changes[0].what
    names = []
    for change in changes:
        name = change.second_name or change.first_name
        if kind is ChangeKind.REPLACED:
            name += f" instead of {change.first_name}"
        names.append(name)
    if set(names) == {KernelClass.FUSED_LOOPS}:  # on the CPU, they have no names of their own
        return str(kind)
    return f"{kind} ({listed(names, MOST_NAMES)})"


def digits_of(ms: float) -> int:
    """Return how many decimals give three significant digits."""
    if ms == 0:
        return 3
    return min(6, max(0, 2 - math.floor(math.log10(abs(ms)))))
