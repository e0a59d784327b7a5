"""Compare the kernels of two traces in order: which vanished, appeared, changed, or take another
time although they are the same (`changes_between`).

Kernels are aligned by longest common subsequences of their names, and of what they do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
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
    """What happened to kernels. `FUSED` are gone, and `NO_LONGER_FUSED` new, because one kernel of
    the other side does the work of several."""

    GONE = "gone"
    FUSED = "fused"
    NEW = "new"
    NO_LONGER_FUSED = "no longer fused"
    REPLACED = "replaced"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "the same"


#: Kinds of kernels whose work one kernel of the other side does.
FUSION = {ChangeKind.GONE: ChangeKind.FUSED, ChangeKind.NEW: ChangeKind.NO_LONGER_FUSED}

#: Stands where a side has no kernel.
NOTHING = Kernel("", "", None, 0.0, 0.0, 0.0)


class Match(NamedTuple):
    """Positions of the same item in two sequences."""

    first: int
    second: int


class Pair(NamedTuple):
    """The kernels of both sides in the same place, or NOTHING."""

    first: Kernel
    second: Kernel

    @property
    def is_same(self) -> bool:
        return _name_of(self.first) == _name_of(self.second)


@dataclass(frozen=True)
class KernelChange:
    """Kernels to which the same happened. `first_name`, `second_name`: short names on both sides,
    empty where they do not run. `into`: class of the one kernel that does their work on the other
    side. Times in ms per call, of all `count` kernels."""

    kind: ChangeKind
    kernel_class: KernelClass
    first_name: str
    second_name: str
    into: KernelClass | None = None
    count: int = 1
    first_ms: float = 0.0
    second_ms: float = 0.0

    @property
    def ms(self) -> float:
        return self.second_ms - self.first_ms


def changes_between(first: Trace, second: Trace) -> list[KernelChange]:
    """Return the kernels that differ, one row for each kind of change and kernel, largest
    difference first."""
    singles = _single_changes(first.kernels, second.kernels)
    alike = grouped(singles, lambda change: replace(change, first_ms=0.0, second_ms=0.0))
    changes = []
    for change, of_kind in alike.items():
        first_ms = sum(single.first_ms for single in of_kind)
        second_ms = sum(single.second_ms for single in of_kind)
        kind = change.kind
        if kind is ChangeKind.SAME:
            if abs(second_ms - first_ms) <= SAME_TIME * first_ms:
                continue
            kind = ChangeKind.SLOWER if second_ms > first_ms else ChangeKind.FASTER
        changes.append(
            replace(change, kind=kind, count=len(of_kind), first_ms=first_ms, second_ms=second_ms)
        )
    return sorted(changes, key=lambda change: -abs(change.ms))


def with_operators(trace: Trace, other: Trace) -> Trace:
    """Return the trace with operators of the other one: of the same kernels at the aligned
    positions where it knows none, as in CUDA graphs, and of attention.

    Without a kernel of its own, attention consists of matrix products, copies and others. They
    stand where the other side has nothing but attention.
    """
    kernels = list(trace.kernels)
    names = [[_name_of(kernel) for kernel in side.kernels] for side in (trace, other)]
    start = Match(0, 0)
    last = Match(len(kernels), len(other.kernels))
    for match in [*aligned(*names), last]:
        if match.first > start.first:
            operator = _attention_of(other.kernels[start.second : match.second])
            if operator is not None:
                for place in range(start.first, match.first):
                    kernels[place] = replace(kernels[place], operator=operator)
        if match is not last and not kernels[match.first].operator:
            operator = other.kernels[match.second].operator
            kernels[match.first] = replace(kernels[match.first], operator=operator)
        start = Match(match.first + 1, match.second + 1)
    return replace(trace, kernels=tuple(kernels))


def _attention_of(kernels: Sequence[Kernel]) -> str | None:
    """Return the operator of these kernels if they are attention and nothing else, or None."""
    working = [kernel for kernel in kernels if not kernel.name.startswith("Memset")]
    if {class_of(kernel) for kernel in working} != {KernelClass.ATTENTION}:
        return None
    return working[0].operator


# --- single changes


def _single_changes(first: Sequence[Kernel], second: Sequence[Kernel]) -> Iterator[KernelChange]:
    """Yield what happened to each kernel. One that does the work of several stands between the same
    kernels as they do; fused loops do it for the whole call."""
    is_whole = any(class_of(kernel) is KernelClass.FUSED_LOOPS for kernel in (*first, *second))
    block: list[Pair] = []
    for pair in _pairs(first, second):
        block.append(pair)
        if pair.is_same and not is_whole:
            yield from _changes_of_block(block)
            block = []
    yield from _changes_of_block(block)


def _pairs(first: Sequence[Kernel], second: Sequence[Kernel]) -> Iterator[Pair]:
    """Yield the kernels of both sides in the order of a call."""
    start = Match(0, 0)
    last = Match(len(first), len(second))
    for match in [*_matches(first, second), last]:
        for kernel in first[start.first : match.first]:
            yield Pair(kernel, NOTHING)
        for kernel in second[start.second : match.second]:
            yield Pair(NOTHING, kernel)
        if match is not last:
            yield Pair(first[match.first], second[match.second])
        start = Match(match.first + 1, match.second + 1)


def _changes_of_block(block: Sequence[Pair]) -> Iterator[KernelChange]:
    """Yield what happened to the kernels of a block. Kernels of the side with more of them are
    fused if one of the other side does the work of several."""
    first = [pair.first for pair in block if pair.first is not NOTHING]
    second = [pair.second for pair in block if pair.second is not NOTHING]
    of_first: set[KernelClass] = set()
    of_second: set[KernelClass] = set()
    if len(first) < len(second):
        of_first = _fusing_classes(first)
    elif len(first) > len(second):
        of_second = _fusing_classes(second)
    for pair in block:
        if pair.first is NOTHING:
            yield _change(pair, ChangeKind.NEW, of_first)
        elif pair.second is NOTHING:
            yield _change(pair, ChangeKind.GONE, of_second)
        elif pair.is_same:
            yield _change(pair, ChangeKind.SAME)
        else:
            yield _change(pair, ChangeKind.REPLACED)


def _change(pair: Pair, kind: ChangeKind, fusing: Collection[KernelClass] = ()) -> KernelChange:
    """Return what happened to the kernels of a pair. `fusing`: classes of those kernels on the
    other side that do the work of several."""
    kernel = pair.first if pair.second is NOTHING else pair.second
    kernel_class = class_of(kernel)
    into = None
    if fusing:
        kind = FUSION[kind]
    if len(fusing) == 1 and kernel_class not in fusing:
        (into,) = fusing
    names = short_name(pair.first), short_name(pair.second)
    return KernelChange(
        kind, kernel_class, *names, into, 1, pair.first.added_ms, pair.second.added_ms
    )


def _fusing_classes(kernels: Iterable[Kernel]) -> set[KernelClass]:
    """Return the classes of those kernels that may do the work of several."""
    classes = set()
    for kernel in kernels:
        kernel_class = class_of(kernel)
        is_whole = kernel_class in (KernelClass.ATTENTION, KernelClass.FUSED_LOOPS)
        if is_whole or kernel.name.startswith("triton_"):
            classes.add(kernel_class)
    return classes


# --- alignment


def _matches(first: Sequence[Kernel], second: Sequence[Kernel]) -> list[Match]:
    """Return the positions of kernels that take the same place on both sides: by name if it runs
    as often on both, otherwise by what they do."""
    old = Counter(map(_name_of, first))
    new = Counter(map(_name_of, second))
    alike = {name for name in old if old[name] == new[name]}
    keys: list[list[Hashable]] = [[], []]
    for side, of_side in zip((first, second), keys, strict=True):
        for kernel in side:
            name = _name_of(kernel)
            of_side.append(name if name in alike else _work_of(kernel))
    return aligned(*keys)


def _name_of(kernel: Kernel) -> str:
    return _without_noise(kernel.name)


@lru_cache(maxsize=8192)  # a call repeats its layers
def _without_noise(name: str) -> str:
    return _NOISE.sub("", name)


def _work_of(kernel: Kernel) -> Hashable:
    """Return what must be equal for one kernel to replace another."""
    kernel_class = class_of(kernel)
    if kernel_class in LIBRARY_CLASSES:
        return kernel_class
    return kernel_class, kernel.operator or _name_of(kernel)


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
