"""Compare the kernels of two traces in order: which vanished, appeared, changed, or take another
time although they are the same (`changes_between`).

Kernels of the same name are aligned by a longest common subsequence. What stands between two
aligned ones on one side is matched with what stands there on the other by what it does.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from effbench.analysis.kernel_classes import KernelClass, class_of, short_name
from effbench.core.labels import grouped
from effbench.core.trace import Kernel, Trace

#: The same kernels take another time if it differs by more than this fraction.
SAME_TIME = 0.05
#: Classes of which one kernel replaces another whatever operator launched it.
LIBRARY_CLASSES = (
    KernelClass.PRODUCTS,
    KernelClass.CONVOLUTIONS,
    KernelClass.ATTENTION,
    KernelClass.NORMALISATION,
    KernelClass.COLLECTIVES,
    KernelClass.FUSED_LOOPS,
)
#: Parts of a name that differ between processes and builds.
_NOISE = re.compile(r"0x[0-9a-f]+|\{lambda[^}]*\}|_\d+$")


class ChangeKind(StrEnum):
    """How kernels differ between two sides. `FUSED` and `NO_LONGER_FUSED` vanish and appear, too:
    one kernel does the work of several."""

    VANISHED = "vanished"
    FUSED = "fused"
    APPEARED = "appeared"
    NO_LONGER_FUSED = "no longer fused"
    CHANGED = "changed"
    SLOWER = "slower"
    FASTER = "faster"


class Match(NamedTuple):
    """Positions of the same item in two sequences."""

    first: int
    second: int


@dataclass(frozen=True)
class KernelChange:
    """Kernels that changed in the same way. `first_name`, `second_name`: short names on both sides,
    None where they do not run; equal for another launch shape or time. Times in ms per call, of all
    `count` kernels. `into`, `into_number`: the class of the kernel that does their work on the
    other side, and which of its class that is there, from 1; None for several."""

    kind: ChangeKind
    kernel_class: KernelClass
    first_name: str | None
    second_name: str | None
    count: int
    first_ms: float
    second_ms: float
    into: KernelClass | None = None
    into_number: int | None = None

    @property
    def ms(self) -> float:
        return self.second_ms - self.first_ms


def changes_between(first: Trace, second: Trace) -> list[KernelChange]:
    """Return the kernels that differ, one row for each kind of change and kernel, largest
    difference first."""
    rows = [*_single_changes(first.kernels, second.kernels)]
    by_kind = grouped(
        rows,
        lambda row: (row.kind, row.kernel_class, row.first_name, row.second_name, row.into),
    )
    changes = []
    for same in by_kind.values():
        change = _merged(same)
        if change.kind is ChangeKind.SLOWER:
            if abs(change.ms) <= SAME_TIME * change.first_ms:
                continue
            if change.ms < 0:
                change = replace(change, kind=ChangeKind.FASTER)
        changes.append(change)
    return sorted(changes, key=lambda change: -abs(change.ms))


def _merged(rows: Sequence[KernelChange]) -> KernelChange:
    numbers = {row.into_number for row in rows}
    return replace(
        rows[0],
        count=len(rows),
        first_ms=sum(row.first_ms for row in rows),
        second_ms=sum(row.second_ms for row in rows),
        into_number=numbers.pop() if len(numbers) == 1 else None,
    )


def with_operators(trace: Trace, other: Trace) -> Trace:
    """Return the trace with operators of the other one where it knows none, as in CUDA graphs:
    those of the same kernels at the aligned positions."""
    kernels = list(trace.kernels)
    if all(kernel.operator is not None for kernel in kernels):
        return trace
    for match in _aligned_by_name(trace.kernels, other.kernels):
        kernel = kernels[match.first]
        if kernel.operator is None:
            operator = other.kernels[match.second].operator
            kernels[match.first] = replace(kernel, operator=operator)
    return replace(trace, kernels=tuple(kernels))


# --- single changes


def _single_changes(first: Sequence[Kernel], second: Sequence[Kernel]) -> Iterator[KernelChange]:
    """Yield a change for each pair of matched kernels, and for each kernel without a match."""
    start = Match(0, 0)
    for match in _aligned_by_name(first, second):
        yield from _changes_between(first, second, start, match)
        yield _change(first[match.first], second[match.second])
        start = Match(match.first + 1, match.second + 1)
    yield from _changes_between(first, second, start, Match(len(first), len(second)))


def _changes_between(
    first: Sequence[Kernel], second: Sequence[Kernel], start: Match, end: Match
) -> Iterator[KernelChange]:
    """Yield the changes from a position to another one, between which no names are the same."""
    old = range(start.first, end.first)
    new = range(start.second, end.second)
    matches = aligned(
        [_work_of(first[place]) for place in old], [_work_of(second[place]) for place in new]
    )
    for match in matches:
        yield _change(first[old[match.first]], second[new[match.second]])
    vanished = set(old).difference(old[match.first] for match in matches)
    appeared = set(new).difference(new[match.second] for match in matches)
    for place in sorted(vanished):
        change = _change(first[place], None)
        if len(vanished) > len(appeared):
            change = _fused(change, ChangeKind.FUSED, second, new)
        yield change
    for place in sorted(appeared):
        change = _change(None, second[place])
        if len(appeared) > len(vanished):
            change = _fused(change, ChangeKind.NO_LONGER_FUSED, first, old)
        yield change


def _fused(
    change: KernelChange, kind: ChangeKind, others: Sequence[Kernel], places: range
) -> KernelChange:
    """Return the change as one of `kind` if one of the other side's kernels at these places does
    the work of several."""
    fusing = [place for place in places if _is_fusing(others[place])]
    if not fusing:
        return change
    into = class_of(others[fusing[0]])
    if len(fusing) > 1 or into in (change.kernel_class, KernelClass.FUSED_LOOPS):
        return replace(change, kind=kind)
    until_there = others[: fusing[0] + 1]
    number = sum(class_of(kernel) is into for kernel in until_there)
    return replace(change, kind=kind, into=into, into_number=number)


def _is_fusing(kernel: Kernel) -> bool:
    if kernel.name.startswith("triton_"):
        return True
    return class_of(kernel) in (KernelClass.ATTENTION, KernelClass.FUSED_LOOPS)


def _change(first: Kernel | None, second: Kernel | None) -> KernelChange:
    """Return the change of a kernel that vanished, appeared, was replaced, or is the same (called
    `SLOWER` whatever its time)."""
    kind = ChangeKind.CHANGED
    if first is None:
        kind = ChangeKind.APPEARED
    elif second is None:
        kind = ChangeKind.VANISHED
    elif _same_name(first.name) == _same_name(second.name) and first.launch == second.launch:
        kind = ChangeKind.SLOWER
    names = [None if kernel is None else short_name(kernel) for kernel in (first, second)]
    times = [0.0 if kernel is None else kernel.added_ms for kernel in (first, second)]
    kernel = second or first
    assert kernel is not None
    return KernelChange(kind, class_of(kernel), *names, 1, *times)


# --- alignment


def _aligned_by_name(first: Sequence[Kernel], second: Sequence[Kernel]) -> list[Match]:
    return aligned(
        [_same_name(kernel.name) for kernel in first],
        [_same_name(kernel.name) for kernel in second],
    )


@lru_cache(maxsize=8192)  # a call repeats its layers
def _same_name(name: str) -> str:
    return _NOISE.sub("", name)


def _work_of(kernel: Kernel) -> Hashable:
    """Return what must be equal for one kernel to replace another."""
    kernel_class = class_of(kernel)
    if kernel_class in LIBRARY_CLASSES:
        return kernel_class
    if kernel.operator is None:
        return _same_name(kernel.name)
    return kernel_class, kernel.operator


def aligned(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[Match]:
    """Return the positions of a longest common subsequence, in order.

    After Hyyrö (2004): one integer for each item of `first`, with a bit for each item of `second`
    that is 0 where the subsequence grows. 10,000 items on both sides take about 0.1 s.
    """
    places: dict[Hashable, int] = {}
    for place, item in enumerate(second):
        places[item] = places.get(item, 0) | 1 << place
    every = (1 << len(second)) - 1
    rows = [every]
    for item in first:
        row = rows[-1]
        common = row & places.get(item, 0)
        rows.append(((row + common) | (row - common)) & every)
    matches = []
    old, new = len(first), len(second)
    while old and new:
        if rows[old] >> (new - 1) & 1:
            new -= 1
        elif rows[old - 1] >> (new - 1) & 1:
            old -= 1
            new -= 1
            matches.append(Match(old, new))
        else:
            old -= 1
    return matches[::-1]
