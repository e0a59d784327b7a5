"""Compare the kernels of two traces in order: which vanished, appeared, changed, or take another
time although they are the same (`changes_between`).

Kernels are aligned by longest common subsequences of their names, and of what they do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain
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


class Pair(NamedTuple):
    """The kernels of both sides in the same place, or NOTHING."""

    first: Kernel
    second: Kernel

    @property
    def kind(self) -> ChangeKind:
        """What happened, as far as these two tell."""
        if self.first is NOTHING:
            return ChangeKind.NEW
        if self.second is NOTHING:
            return ChangeKind.GONE
        if _name_of(self.first) == _name_of(self.second):
            return ChangeKind.SAME
        return ChangeKind.REPLACED

    @property
    def kernel_class(self) -> KernelClass:
        if self.second is NOTHING:
            return class_of(self.first)
        return class_of(self.second)


@dataclass(frozen=True)
class KernelChange:
    """Kernels to which the same happened. `first_name`, `second_name`: short names on both sides,
    empty where they do not run. `into`: class of the one kernel that does their work on the other
    side. Times in ms per call, of all `count` kernels; changes that differ only in them are equal.
    """

    kind: ChangeKind
    kernel_class: KernelClass
    first_name: str
    second_name: str
    into: KernelClass | None = None
    count: int = 1
    first_ms: float = field(default=0.0, compare=False)
    second_ms: float = field(default=0.0, compare=False)

    @property
    def ms(self) -> float:
        return self.second_ms - self.first_ms

    @property
    def what(self) -> str:
        """What happened: `no longer fused into matrix products`."""
        if self.into is None:
            return self.kind
        return f"{self.kind} into {self.into}"


def changes_between(first: Trace, second: Trace) -> list[KernelChange]:
    """Return the kernels that differ, one row for each kind of change and kernel, largest
    difference first."""
    first_counts = Counter(map(_name_of, first.kernels))
    second_counts = Counter(map(_name_of, second.kernels))
    alike = dict(first_counts.items() & second_counts.items())

    def place_of(kernel: Kernel) -> Hashable:
        """Return what kernels in the same place share: the name, if it runs as often on both
        sides, otherwise what they do."""
        name = _name_of(kernel)
        return name if name in alike else _work_of(kernel)

    pairs = aligned(first.kernels, second.kernels, place_of)
    blocks = list(_blocks(pairs))
    if any(KernelClass.FUSED_LOOPS in (old.name, new.name) for old, new in pairs):
        blocks = [pairs]  # they do the work of several in the whole call
    singles = chain.from_iterable(map(_changes_of, blocks))
    groups = grouped(singles, lambda change: change)
    changes = []
    for single, equals in groups.items():
        first_ms = sum(equal.first_ms for equal in equals)
        second_ms = sum(equal.second_ms for equal in equals)
        change = replace(single, count=len(equals), first_ms=first_ms, second_ms=second_ms)
        if change.kind is not ChangeKind.SAME:
            changes.append(change)
        elif change.ms > SAME_TIME * first_ms:
            changes.append(replace(change, kind=ChangeKind.SLOWER))
        elif change.ms < -SAME_TIME * first_ms:
            changes.append(replace(change, kind=ChangeKind.FASTER))
    return sorted(changes, key=lambda change: -abs(change.ms))


def with_operators(trace: Trace, other: Trace) -> Trace:
    """Return the trace with operators of the other one: of the same kernels at the aligned
    positions where it knows none, as in CUDA graphs, and of attention.

    Without a kernel of its own, attention consists of matrix products, copies and others. They
    stand where the other side has nothing but attention.
    """
    kernels = []
    for block in _blocks(aligned(trace.kernels, other.kernels, _name_of)):
        attention = _attention_of(pair.second for pair in block if pair.first is NOTHING)
        for kernel, partner in block:
            if kernel is NOTHING:
                continue
            operator = kernel.operator or partner.operator
            if partner is NOTHING:
                operator = attention or operator
            if operator != kernel.operator:  # seldom
                kernel = replace(kernel, operator=operator)
            kernels.append(kernel)
    return replace(trace, kernels=tuple(kernels))


def _attention_of(kernels: Iterable[Kernel]) -> str | None:
    """Return the operator of these kernels if they are attention and nothing else, or None."""
    working = [kernel for kernel in kernels if not kernel.name.startswith("Memset")]
    if {class_of(kernel) for kernel in working} != {KernelClass.ATTENTION}:
        return None
    return working[0].operator


def _blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Yield the pairs up to and with each one of the same kernels. A kernel that does the work of
    several stands between the same kernels as they do."""
    block = []
    for pair in pairs:
        block.append(pair)
        if pair.kind is ChangeKind.SAME:
            yield block
            block = []
    yield block


def _changes_of(block: Sequence[Pair]) -> Iterator[KernelChange]:
    """Yield what happened to the kernels of a block. Kernels of the side with more of them are
    fused if one of the other side does the work of several."""
    kinds = Counter(pair.kind for pair in block)
    several = None
    fewer: list[Kernel] = []
    if kinds[ChangeKind.NEW] > kinds[ChangeKind.GONE]:
        several = ChangeKind.NEW
        fewer = [pair.first for pair in block]
    elif kinds[ChangeKind.NEW] < kinds[ChangeKind.GONE]:
        several = ChangeKind.GONE
        fewer = [pair.second for pair in block]
    fusing = set(map(class_of, filter(_does_work_of_several, fewer)))
    for pair in block:
        kind = pair.kind
        into = None
        if fusing and kind is several:
            kind = FUSION[kind]
            # a copy does none of the work of others
            classes = fusing - {KernelClass.COPIES}
            if len(classes) == 1 and pair.kernel_class not in fusing:
                (into,) = classes
        yield KernelChange(
            kind,
            pair.kernel_class,
            first_name=short_name(pair.first.name),
            second_name=short_name(pair.second.name),
            into=into,
            first_ms=pair.first.added_ms,
            second_ms=pair.second.added_ms,
        )


def _does_work_of_several(kernel: Kernel) -> bool:
    """Return whether a kernel may do the work of several."""
    is_whole = class_of(kernel) in (KernelClass.ATTENTION, KernelClass.FUSED_LOOPS)
    return is_whole or kernel.name.startswith("triton_")


# --- alignment


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


def aligned(
    first: Sequence[Kernel], second: Sequence[Kernel], key: Callable[[Kernel], Hashable]
) -> list[Pair]:
    """Return the kernels of both sides in the order of a call: pairs with the same key, a longest
    common subsequence, and between them the others of the first side, then of the second one.

    After Hyyrö (2004): one integer for each kernel of `first`, with a bit for each kernel of
    `second`, from bit 1 on, that is 0 where the subsequence grows. 10,000 kernels on both sides
    take about 0.1 s.
    """
    places: dict[Hashable, int] = {}
    for place, kernel in enumerate(second, 1):
        places[key(kernel)] = places.get(key(kernel), 0) | 1 << place
    every = (2 << len(second)) - 2
    rows = [every]
    for kernel in first:
        row = rows[-1]
        common = row & places.get(key(kernel), 0)
        rows.append(((row + common) | (row - common)) & every)
    pairs = []
    old, new = len(first), len(second)
    while old or new:
        kernel = partner = NOTHING
        is_new = rows[old] >> new & 1
        if not is_new:
            old -= 1
            kernel = first[old]
        if is_new or rows[old] >> new & 1:
            new -= 1
            partner = second[new]
        pairs.append(Pair(kernel, partner))
    return pairs[::-1]
