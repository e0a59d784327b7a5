"""Changes of what is exact, such as counters: any difference that lasts is a change. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

#: A change of a counter is only called one with so many sweeps on either side.
PERSISTENCE = 2
#: Fewer values than this are not judged.
SHORTEST = 2 * PERSISTENCE
#: So many changes between two values that both come back are an alternation.
SWITCHES = 4


@dataclass(frozen=True)
class Step:
    """The value changed from `before` to `after` at place `at`; `undone_at`: where it came back to `before`, or None.

    `undoes`: `at` of the earliest step that this one takes back.
    """

    at: int
    before: Hashable
    after: Hashable
    undone_at: int | None = None
    undoes: int | None = None


@dataclass(frozen=True)
class Steps:
    """`recent`: the newest value alone differs. `alternation`: the two values, how many switches, the last one's place;
    there are no `changes` then."""

    changes: tuple[Step, ...] = ()
    recent: Step | None = None
    alternation: tuple[Hashable, Hashable, int, int] | None = None


def find_exact(values: Sequence[Hashable], persistence: int = PERSISTENCE) -> Steps:
    """The steps of a series of exact values, oldest first. What lasts for fewer than `persistence` values is none, but
    for the newest one."""
    if len(values) < 2:
        return Steps()
    raw = runs(values)
    if (alternation := _alternation(values, raw)) is not None:
        return Steps(alternation=alternation)
    # what does not last belongs to the level before it, at the very start to the one after
    lasting: list[list] = []
    recent = None
    for index, (value, start, length) in enumerate(raw):
        if length < persistence:
            if index == len(raw) - 1 and lasting and value != lasting[-1][0]:
                recent = Step(start, lasting[-1][0], value)
            continue
        if not lasting or lasting[-1][0] != value:
            lasting.append([value, start])
    steps = [Step(b[1], a[0], b[0]) for a, b in pairwise(lasting)]
    return Steps(tuple(_undone(steps)), recent)


def runs(values: Sequence[Hashable]) -> list[tuple[Hashable, int, int]]:
    """(value, place of its first, how many) of each run of equal values."""
    found, place = [], 0
    for value, same in groupby(values):
        length = sum(1 for _ in same)
        found.append((value, place, length))
        place += length
    return found


def _undone(steps: list[Step]) -> list[Step]:
    back = [
        next((later.at for later in steps[index + 1 :] if later.after == step.before), None)
        for index, step in enumerate(steps)
    ]
    undoes: dict[int, int] = {}
    for step, place in zip(steps, back, strict=True):
        if place is not None:
            undoes.setdefault(place, step.at)
    return [
        Step(step.at, step.before, step.after, place, undoes.get(step.at))
        for step, place in zip(steps, back, strict=True)
    ]


def _alternation(values: Sequence[Hashable], raw: list) -> tuple[Hashable, Hashable, int, int] | None:
    """Two values that make up nine tenths of the series, go to and fro, and are both there for a fair share of it."""
    if len(raw) - 1 < SWITCHES:
        return None
    (one, many), (other, few) = Counter(values).most_common(2)
    if many + few < 0.9 * len(values) or few < max(3, 0.15 * len(values)):
        return None
    between = [(value, start) for value, start, _ in raw if value in (one, other)]
    switches = [start for (a, _), (b, start) in pairwise(between) if a != b]
    if len(switches) < SWITCHES:
        return None
    return (*sorted((one, other)), len(switches), switches[-1])
