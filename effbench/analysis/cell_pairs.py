"""Choose which cells of stored sweeps `effbench explain` compares: `pairs_for` pairs the cells of
two sides that agree in everything else, or the reference mode with the best mode of each row."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from effbench.analysis.compare import find
from effbench.analysis.winners import winners
from effbench.core.cell import Result
from effbench.core.environments import OWN, labelled
from effbench.core.errors import NothingFoundError
from effbench.core.labels import (
    ABSENT,
    PLACES,
    LabelledResult,
    LabelledResults,
    grouped,
    label_rows,
    short_label,
)
from effbench.core.printable import listed
from effbench.run.selection import fits_all, values_of
from effbench.store.store import Store

#: Setting that chooses trials by where they ran -> the field of a result.
WHERE = {
    "sweep": "sweep_id",
    "gpu": "gpu_name",
    "torch": "torch_version",
    "python": "interpreter",
    "folder": "folder",
}
#: Labels of the sweep, which may differ like those of PLACES if one of WHERE does.
SWEEP = ("sweep", "sweep_id")
#: Most cells that a message names.
MOST_NAMES = 8

#: Name of a setting -> its text.
Words = Mapping[str, str]


@dataclass(frozen=True)
class CellPair:
    """Two results to compare."""

    first: LabelledResult
    second: LabelledResult

    @cached_property
    def differing(self) -> set[str]:
        """What differs: labels, mode and sweep."""
        different = words_of(self.first).items() ^ words_of(self.second).items()
        names = {name for name, _ in different}
        if "sweep" in names:
            names.discard("sweep_id")
        return names

    @property
    def first_name(self) -> str:
        """What distinguishes the first side: `eager`, or `dtype=float32`."""
        return self._name_of(self.first)

    @property
    def second_name(self) -> str:
        return self._name_of(self.second)

    def _name_of(self, row: LabelledResult) -> str:
        words = words_of(row).items()
        return " ".join(word for name, word in words if name in self.differing)

    @property
    def cell(self) -> str:
        """What both sides have in common: `mlp bs=8`."""
        words = []
        for name, word in words_of(self.first).items():
            if name not in (*self.differing, *SWEEP) and not word.endswith(ABSENT):
                words.append(word)
        return " ".join(words)


def words_of(row: LabelledResult) -> dict[str, str]:
    """Return a word for each label of a row, its mode and its sweep."""
    words = {name: f"{short_label(name)}={value}" for name, value in row.labels.items()}
    sweep = f"sweep={row.sweep_name or row.sweep_id}"
    return {**words, "model": row.model, "mode": row.mode_label, "sweep": sweep}


def pairs_for(store: Store, first: Words, second: Words) -> list[CellPair]:
    """Return the pairs of cells with the settings of both sides, in the order of the tables: sides
    with the same settings are the reference mode and the best mode, and a mode of the second one
    alone is compared with the reference mode. Raises NothingFoundError if no cells fit."""
    first_id = find(store, first["sweep"]).id
    second_id = find(store, second["sweep"]).id
    rows = labelled_rows(store, [first_id, second_id])
    old = rows_with(rows, {**first, "sweep": first_id})
    new = rows_with(rows, {**second, "sweep": second_id})
    differing = {name.partition(".")[0] for name, _ in first.items() ^ second.items()} or {"mode"}
    if first == second:
        pairs = default_pairs(new)
    else:
        if differing == {"mode"} and "mode" not in first:
            old = [row for row in old if row.is_baseline]
        pairs = pairs_between(old, new, differing)
    if not pairs:
        names = listed([row.name for row in rows], MOST_NAMES) or "nothing"
        raise NothingFoundError(
            "explain: no cells fit both sides and differ only in"
            f" {', '.join(sorted(differing))}\nmeasured: {names}"
        )
    return pairs


def labelled_rows(store: Store, sweep_ids: Iterable[str]) -> LabelledResults:
    results = store.results(*sweep_ids)
    environments = store.environments({row.environment_id for row in results})
    return label_rows(labelled(results, environments))


def default_pairs(results: Iterable[Result]) -> list[CellPair]:
    """Return the reference mode with the best other mode for each point of a sweep (model, other
    swept parameters, bs): the one that wins, or else the fastest."""
    pairs = []
    points = grouped(label_rows(results), lambda row: tuple(row.labels.items()))
    for point in points.values():
        ok = [row for row in point if row.is_ok and row.latency_ms is not None]
        by_latency = sorted(ok, key=lambda row: row.latency_ms or 0.0)
        references = [row for row in ok if row.is_baseline]
        others = [row for row in winners(ok, "speedup") + by_latency if not row.is_baseline]
        if references and others:
            pairs.append(CellPair(references[0], others[0]))
    return pairs


def rows_with(rows: LabelledResults, settings: Words) -> LabelledResults:
    return [row for row in rows if has_settings(row, settings)]


def has_settings(row: Result, words: Words) -> bool:
    """Return whether a result has these settings; several values of one are separated by commas,
    and a part of the name of a GPU, interpreter or folder is enough. `sweep`: its id."""
    wanted = {}
    for name, value in words.items():
        if name in WHERE:
            place = str(getattr(row, WHERE[name]))
            # folders may be typed as in a sweep, such as ../before and .
            if (value.lstrip("./") or OWN["folder"]).lower() not in place.lower():
                return False
        else:
            wanted[name] = [value, *value.split(",")]
    return fits_all(values_of(row.params), wanted)


def pairs_between(
    first: LabelledResults, second: LabelledResults, differing: Collection[str]
) -> list[CellPair]:
    """Return the pairs of rows that differ only in these settings and what follows them; of several
    partners of a row those that differ in the fewest labels."""
    settings = set(differing)
    if not settings.isdisjoint(WHERE):
        settings |= {*PLACES, *SWEEP}

    def common_words(row: LabelledResult) -> Hashable:
        words = words_of(row).items()
        return tuple(word for name, word in words if name.partition(".")[0] not in settings)

    partners = grouped(second, common_words)
    pairs = []
    for row in first:
        others = [CellPair(row, other) for other in partners.get(common_words(row), [])]
        by_distance = grouped(others, lambda pair: len(pair.differing))
        by_distance.pop(0, None)
        if by_distance:
            pairs += by_distance[min(by_distance)]
    return pairs
