"""Choose which cells of stored sweeps `effbench explain` compares: `pairs_for` pairs the cells of
two sides that agree in everything else, or the reference mode with the best mode of each row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from effbench.analysis.compare import find
from effbench.analysis.explain import default_pairs
from effbench.core.cell import Result
from effbench.core.environments import OWN, labelled
from effbench.core.errors import NothingFoundError
from effbench.core.labels import (
    ABSENT,
    PLACES,
    LabelledResult,
    LabelledResults,
    label_rows,
    short_label,
)
from effbench.core.printable import listed
from effbench.run.selection import fits_all, values_of
from effbench.store.store import Store

#: Setting that chooses where trials ran -> the field of a result.
WHERE = {
    "gpu": "gpu_name",
    "torch": "torch_version",
    "python": "interpreter",
    "folder": "folder",
}
#: Labels that may differ if one of these settings does, or the sweep.
PLACE_LABELS = {*PLACES, "sweep", "sweep_id"}
#: Most cells that a message names.
MOST_NAMES = 8

#: Name of a setting -> its text.
Words = Mapping[str, str]


@dataclass(frozen=True)
class Request:
    """Which cells to compare. `first`, `second`: settings of one side; without any, the first side
    is the reference mode and the second one the best mode. `common`: those of both sides, with the
    `sweep`."""

    first: Words
    second: Words
    common: Words

    @property
    def differing(self) -> set[str]:
        """The settings in which the sides of a pair may differ, without what follows a dot."""
        if not self.first:
            return {"mode"}
        return {name.partition(".")[0] for name in (*self.first, *self.second)}


@dataclass(frozen=True)
class CellPair:
    """Two results to compare."""

    first: LabelledResult
    second: LabelledResult

    @property
    def first_name(self) -> str:
        """What distinguishes the first side: `eager`, or `dtype=float32`."""
        return " ".join(different_words(self.first, self.second).values())

    @property
    def second_name(self) -> str:
        return " ".join(different_words(self.second, self.first).values())

    @property
    def cell(self) -> str:
        """What both sides have in common: `mlp bs=8`."""
        different = different_words(self.first, self.second)
        words = []
        for name, word in words_of(self.first).items():
            if name not in (*different, "sweep", "sweep_id") and not word.endswith(ABSENT):
                words.append(word)
        return " ".join(words)


def words_of(row: LabelledResult) -> dict[str, str]:
    """Return a word for each label of a row, its mode and its sweep."""
    words = {name: f"{short_label(name)}={value}" for name, value in row.labels.items()}
    sweep = f"sweep={row.sweep_name or row.sweep_id}"
    return {**words, "model": row.model, "mode": row.mode_label, "sweep": sweep}


def different_words(row: LabelledResult, other: LabelledResult) -> dict[str, str]:
    """Return the words of a row that another one does not have."""
    others = words_of(other)
    different = {name: word for name, word in words_of(row).items() if word != others[name]}
    if "sweep" in different:
        different.pop("sweep_id", None)
    return different


def pairs_for(store: Store, request: Request) -> list[CellPair]:
    """Return the pairs of cells that a request means, in the order of the tables. Raises
    NothingFoundError if there is none."""
    sides = [{**request.common, **words} for words in (request.first, request.second)]
    sweeps = [find(store, words["sweep"]) for words in sides]
    results = store.results(*(sweep.id for sweep in sweeps))
    environments = store.environments({row.environment_id for row in results})
    rows = label_rows(labelled(results, environments))
    first, second = (
        [row for row in rows if row.sweep_id == sweep.id and has_settings(row, words)]
        for sweep, words in zip(sweeps, sides, strict=True)
    )
    if not request.second:
        pairs = [CellPair(pair.reference, pair.best) for pair in default_pairs(second)]
    else:
        if not request.first:
            first = [row for row in first if row.is_baseline]
        pairs = pairs_between(first, second, request.differing)
    if not pairs:
        names = listed([row.name for row in rows], MOST_NAMES) or "nothing"
        raise NothingFoundError(
            f"explain: no cells fit both sides and differ only in"
            f" {', '.join(sorted(request.differing))}\nmeasured: {names}"
        )
    return pairs


def has_settings(row: Result, words: Words) -> bool:
    """Return whether a result has these settings; several values of one are separated by commas,
    and a part of the name of a GPU, interpreter or folder is enough."""
    wanted = {}
    for name, value in words.items():
        if name in WHERE:
            place = str(getattr(row, WHERE[name]))
            # folders may be typed as in a sweep, such as ../before and .
            if (value.lstrip("./") or OWN["folder"]).lower() not in place.lower():
                return False
        elif name != "sweep":
            wanted[name] = [value, *value.split(",")]
    return fits_all(values_of(row.params), wanted)


def pairs_between(
    first: LabelledResults, second: LabelledResults, differing: Collection[str]
) -> list[CellPair]:
    """Return the pairs of rows that differ only in these settings and what follows them; of several
    partners of a row those that differ in the fewest labels."""
    settings = set(differing)
    if not settings.isdisjoint({"sweep", *WHERE}):
        settings |= PLACE_LABELS
    pairs = []
    for row in first:
        partners: dict[int, list[CellPair]] = {}
        for other in second:
            different = different_words(row, other)
            if different and settings.issuperset(name.partition(".")[0] for name in different):
                partners.setdefault(len(different), []).append(CellPair(row, other))
        if partners:
            pairs += partners[min(partners)]
    return pairs
