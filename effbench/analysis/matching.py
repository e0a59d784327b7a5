"""Decide which results of two sides are compared: read the sides, match their cells, and list how
the sides differ.

`compared_cells` decides which cells are compared; `verdicts.judge` gives their verdicts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from effbench.core.cell import Cell, Conditions, Environment, StoredEnvironment
from effbench.core.environments import FLAGS, OWN, diff_conditions, names_by
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import (
    Parameters,
    all_parameters,
    cell_names,
    flatten,
    grouped,
    row_names,
)
from effbench.core.printable import listed
from effbench.store.sides import ResultWithTrials
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.store.values import ResultKey

#: What may differ only if the user allows it.
ACROSS = ("hardware", "dtype", "numerics")
#: What `--by` accepts besides the parameters of cells.
BY_ENVIRONMENT = (
    "python",
    "folder",
    "torch_version",
    "triton_version",
    "driver_version",
    "cuda_version",
    "gpu_name",
)
#: What follows the parameters of a module: shapes of inputs its width, names its architecture.
FOLLOWERS = ("model.inputs", "model.name")
#: Most differences that a message lists.
MOST_DIFFERENCES = 5
#: Compilations per side after which kernels that differ between the sides, but not within one, are
#: no coincidence.
LEAST_COMPILATIONS = 3


def place_of(environment: Environment) -> str:
    """Return where trials ran: the hardware, plus the interpreter or folder that was chosen."""
    chosen = []
    for name in ("interpreter", "folder"):
        value = getattr(environment, name)
        if value:
            chosen.append(f"{name} {value}")
    if not chosen:
        return environment.hardware
    return f"{environment.hardware} ({', '.join(chosen)})"


@dataclass
class Side:
    """A sweep, or its part in these environments. `cells`: by key, in the order of the plan;
    `results`: by key and environment id."""

    sweep: SweepInfo
    title: str
    label: str | None
    cells: dict[str, Cell]
    results: dict[ResultKey, ResultWithTrials]
    environments: dict[str, StoredEnvironment]

    @property
    def places(self) -> dict[str, list[str]]:
        """Place -> ids of its environments: two, for example, if the sweep was resumed after a
        software update."""
        return grouped(self.environments, lambda key: place_of(self.environments[key]))

    @property
    def hardware(self) -> str:
        """The hardware of a side that ran at one place."""
        first, *_ = self.environments.values()
        return first.hardware

    @property
    def conditions(self) -> list[Conditions]:
        """The conditions in each environment."""
        return [
            Conditions(environment, self.sweep.protocol, self.sweep.host)
            for environment in self.environments.values()
        ]

    def within(self, environment_ids: Collection[str]) -> Side:
        """Return the part of this side in these environments."""
        kept = {key: known for key, known in self.environments.items() if key in environment_ids}
        return replace(self, environments=kept)

    def result(self, key: str) -> ResultWithTrials | None:
        """Return the result of one of this side's cells; the last one if it has several
        environments."""
        if key not in self.cells:
            return None
        for environment_id in reversed(self.environments):
            result = self.results.get(ResultKey(key, environment_id))
            if result is not None:
                return result
        return None

    def recorded_facts(self, environment_id: str) -> Mapping[str, Any]:
        """Return what the sweep records about the interpreter of an environment."""
        return self.sweep.interpreters.get(environment_id, {})


@dataclass(frozen=True)
class Kernels:
    """How the kernels of two sides differ, as text, and among which ones the compiler may choose by
    chance."""

    difference: str | None
    by_chance: frozenset[str]


@dataclass(frozen=True)
class ComparedCell:
    """A cell on both sides. `before`, `after`: None without a result, and then `why` may give the
    reason. `hardware`: of the later side."""

    key: str
    name: str
    hardware: str
    before: ResultWithTrials | None
    after: ResultWithTrials | None
    why: str | None = None

    @property
    def results(self) -> tuple[ResultWithTrials, ResultWithTrials]:
        """The results before and after of a cell that has both."""
        assert self.before is not None
        assert self.after is not None
        return self.before, self.after

    @cached_property
    def kernels(self) -> Kernels:
        """There is no chance if each side has one choice, in all of LEAST_COMPILATIONS or in a cell
        of its own."""
        before, after = self.results
        old = before.kernel_fingerprints
        new = after.kernel_fingerprints
        is_same_cell = before.cell_key == after.cell_key
        caches = [set(result.compile_caches.values()) - {None} for result in self.results]
        count = min(map(len, caches))
        are_enough = count >= LEAST_COMPILATIONS or not is_same_cell
        are_sure = max(len(old), len(new)) <= 1 and are_enough
        difference = None
        if old and new and old != new and count and is_same_cell:
            difference = "the compiler chose other kernels, unless the code changed"
            if are_sure:
                difference = f"other kernels in each of {count} compilations"
        by_chance: frozenset[str] = frozenset()
        if not are_sure:
            by_chance = old | new
        return Kernels(difference, by_chance)


def load(store: Store, info: SweepInfo) -> Side:
    """Return a whole sweep as a side."""
    # in the user's order, if the sweep records it
    turns = {key: turn for turn, key in enumerate(info.interpreters, 1)}
    environments = sorted(
        store.environments_of(info.id),
        key=lambda known: turns.get(known.id, 0),
    )
    title = info.id
    if info.name:
        title += f" ({info.name})"
    return Side(
        info,
        title,
        info.label,
        {cell.key: cell for cell in store.planned(info.id)},
        store.results_with_trials(info.id),
        {known.id: known for known in environments},
    )


# --- places ---


def names_matching(text: str, names: Iterable[str]) -> list[str]:
    """Return the `names` that `text` matches, ignoring case: in full or without the maker (`L4` is
    `NVIDIA L4`, not `NVIDIA L40S`); if none does, the names that contain it."""
    wanted = text.strip().lower()
    distinct = dict.fromkeys(names)
    in_full = [name for name in distinct if f" {name.lower()}".endswith(f" {wanted}")]
    return in_full or [name for name in distinct if wanted in name.lower()]


def chosen_on(sides: Sequence[Side], on: str | None) -> list[Side]:
    """Return the sides, each limited to its environments that match `on` if it has any. Raises
    NothingFoundError if nothing matches."""
    if on is None:
        return list(sides)
    names: dict[str, set[str]] = {}
    for side in sides:
        for key, environment in side.environments.items():
            names[key] = names_of(environment)
    wanted = set(names_matching(on, chain.from_iterable(names.values())))
    chosen = [key for key in names if names[key] & wanted]
    if not chosen:
        raise NothingFoundError(nothing_on(sides, on))
    limited = []
    for side in sides:
        part = side.within(chosen)
        limited.append(part if part.environments else side)
    return limited


def names_of(environment: StoredEnvironment) -> set[str]:
    """Return what `--on` may call an environment."""
    return {
        environment.hardware,
        environment.interpreter or OWN["python"],
        environment.folder or OWN["folder"],
        environment.torch_version,
    }


def nothing_on(sides: Sequence[Side], on: str) -> str:
    """Return that no trial ran there, and where the trials ran."""
    titles = " or ".join(dict.fromkeys(side.title for side in sides))
    places = dict.fromkeys(chain.from_iterable(side.places for side in sides))
    where = ", ".join(places) or "nothing yet"
    return f"no trial of {titles} on {on!r}; trials ran on {where}"


def at_one_place(
    before: Side,
    after: Side,
    across: Collection[str],
) -> tuple[Side, Side]:
    """Return both sides, limited to the place that is compared. Raises NothingFoundError if a side
    has no trial or the hardware differs, UsageError if it is ambiguous which places to compare."""
    for side in (before, after):
        if not side.environments:
            raise NothingFoundError(f"{side.title} has no trial yet: there is nothing to compare")
    shared = before.places.keys() & after.places.keys()
    before = _at_only_place(before, shared)
    after = _at_only_place(after, shared)
    if before.hardware != after.hardware and "hardware" not in across:
        raise NothingFoundError(
            f"not comparable: {before.hardware} and {after.hardware}; --across hardware compares"
            " them anyway"
        )
    return before, after


def _at_only_place(side: Side, shared: Collection[str]) -> Side:
    """Return the part of a side at the only place that both sides share, or else at its only
    one."""
    places = [place for place in side.places if place in (shared or side.places)]
    if len(places) > 1:
        raise UsageError(
            f"{side.title} ran on several kinds of hardware or interpreters: {', '.join(places)};"
            " choose one with --on (own: effbench's interpreter, here: the folder of the sweep)"
        )
    return side.within(side.places[places[0]])


# --- parts of one sweep ---


def split(whole: Side, by: str) -> dict[str, Side]:
    """Return value of `by` -> the part of the sweep with this value. Raises UsageError for an
    unknown parameter."""
    if by in FLAGS:
        names = names_by(whole.environments.values(), by)
    elif by in BY_ENVIRONMENT:
        names = {key: str(getattr(known, by)) for key, known in whole.environments.items()}
    else:
        return split_cells(whole, by)
    parts = {}
    for name, keys in grouped(names, names.__getitem__).items():
        parts[name] = whole.within(keys)
    if by == "folder":  # the sweep's label describes only one folder
        for part in parts.values():
            for key in part.environments:
                part.label = whole.recorded_facts(key).get("git_description") or part.label
    return parts


def split_cells(whole: Side, by: str) -> dict[str, Side]:
    """Return value of the parameter `by` -> the part of the sweep whose cells have this value.
    Raises UsageError if no cell has the parameter."""
    parts: dict[str, Side] = {}
    for key, cell in whole.cells.items():
        value = parameter(cell, by)
        if value is not None:
            parts.setdefault(value, replace(whole, cells={})).cells[key] = cell
    if not parts:
        known = f"a parameter, such as bs or model.module.width, or {', '.join(BY_ENVIRONMENT)}"
        raise UsageError(f"no cell of {whole.title} has a parameter {by!r}; use {known}")
    return parts


def part_named(
    value: str,
    parts: Mapping[str, Side],
    by: str,
) -> str:
    """Return the part of `split` that has this value: its name, or the path of its interpreter or
    folder, as the database stores it or as it was typed; the value if no part has it."""
    if value in parts or by not in FLAGS:
        return value
    for name, part in parts.items():
        typed = typed_paths(value, by, part.sweep.host.get("folder", ""))
        for key, environment in part.environments.items():
            # an interpreter that was not chosen has no flag
            stored = {environment.flags.get(FLAGS[by]), part.recorded_facts(key).get(by)}
            if typed & stored:
                return name
    return value


def typed_paths(
    text: str,
    by: str,
    folder: str,
) -> set[str]:
    """Return the absolute paths that `text` may mean as a value of python= or folder=, as
    `interpreters.resolve` makes them here, or in the `folder` in which the sweep began."""
    path = os.path.expanduser(text)  # noqa: PTH111 - Path would drop the ./ that marks a path
    paths = [path, os.path.join(folder, path)]  # noqa: PTH118
    if by == "folder":
        return set(map(os.path.realpath, paths))
    # links are not followed, because that would lead out of a virtual environment
    return set(map(os.path.abspath, [*paths, shutil.which(path) or path]))


def parameter(cell: Cell, by: str) -> str | None:
    """Return the text of a cell's parameter, of a mode or model its name; None if it has none."""
    known = {**all_parameters(cell.params()), **cell.params()}
    if by not in known:
        return None
    value = known[by]
    if isinstance(value, Mapping) and "name" in value:
        value = value["name"]
    return str(value)


# --- cells ---


def compared_cells(
    before: Side,
    after: Side,
    across: Sequence[str] = (),
    by: str | None = None,
) -> list[ComparedCell]:
    """Return the matched cells of both sides (`at_one_place`) that were measured on one of them.

    `across`, `by`: parameters in which matched cells may differ; names omit `by`, and what follows
    it may differ, too. Raises NothingFoundError, which names the difference, if no cell was
    measured on both sides, and UsageError if a cell has several partners."""
    differing = across
    if by is not None:
        differing = parameters_with(before, after, by)
    partners = partners_of(before, after, differing)
    matched = set(partners.values())
    new_cells = {key: cell for key, cell in after.cells.items() if key not in matched}
    names = names_without(by, before.cells | new_cells)
    compared = []
    for key, name in names.items():
        partner = partners.get(key, key)
        old = before.result(key)
        new = after.result(partner)
        if old is not None or new is not None:
            why = why_missing(after, partner)
            compared.append(ComparedCell(key, name, after.hardware, old, new, why))
    if not any(cell.before and cell.after for cell in compared):
        text = f"nothing comparable: no cell was measured in both {before.title} and {after.title}"
        if not partners:
            text += first_difference(before, after, differing)
        raise NothingFoundError(text)
    return compared


def why_missing(after: Side, key: str) -> str | None:
    """Return why a cell has no result on the later side; None if it has one."""
    if key not in after.cells:
        return "not in the plan"
    if after.result(key) is None:
        return f"planned, not measured: the sweep is {after.sweep.state}"
    return None


def partners_of(
    before: Side,
    after: Side,
    differing: Sequence[str],
) -> dict[str, str]:
    """Return key before -> key after: of the same cell, or else of the only cell that differs only
    in the parameters `differing`. Raises UsageError if there are several."""
    partners = {key: key for key in before.cells if key in after.cells}
    if not differing:
        return partners
    others = alike(after, before, differing)
    for rest, keys in alike(before, after, differing).items():
        fitting = others.get(rest, [])
        if len(keys) == len(fitting) == 1:
            partners[keys[0]] = fitting[0]
        elif fitting:
            names = cell_names((before.cells | after.cells).values())
            several = ", ".join(names[key] for key in (*keys, *fitting))
            raise UsageError(
                f"several cells differ only in {', '.join(differing)}: {several}; compare"
                " sweeps that have one of them each"
            )
    return partners


def parameters_with(
    before: Side,
    after: Side,
    by: str,
) -> list[str]:
    """Return the parameters in which partners may differ: `by` and what follows it."""
    cells = [*before.cells.values(), *after.cells.values()]
    settings = [flatten(cell.params()) for cell in cells]
    names = dict.fromkeys(chain.from_iterable(params for params in settings if by in params))
    following = [by]
    following += [name for name in names if equals(name, by, settings)]
    if is_below(by, ["model.module"]):
        for name in FOLLOWERS:
            if not partners_of(before, after, following):
                following.append(name)
    return following


def equals(name: str, by: str, cells: Iterable[Parameters]) -> bool:
    """Return whether a setting has the value of `by` in every cell that has it: a model's cache
    size follows bs."""
    return all(params[name] == params.get(by) for params in cells if name in params)


def alike(
    side: Side,
    other: Side,
    differing: Collection[str],
) -> dict[Hashable, list[str]]:
    """Return the keys of the cells that the other side lacks, by all their parameters except those
    in which cells may differ."""

    def rest(key: str) -> Hashable:
        return frozenset(parameters_without(side.cells[key].params(), differing).items())

    return grouped((key for key in side.cells if key not in other.cells), rest)


def parameters_without(params: Mapping[str, Any], omitted: Collection[str]) -> Parameters:
    """Return dotted path -> value of a cell's parameters, without the omitted ones and what is
    below them."""
    known = all_parameters(params)
    return {name: known[name] for name in known if not is_below(name, omitted)}


def names_without(by: str | None, cells: Mapping[str, Cell]) -> dict[str, str]:
    """Return key -> a unique name for each cell, without the parameter `by`."""
    if by is None:
        return cell_names(cells.values())
    identities = []
    for cell in cells.values():
        identity = cell.identity()
        changes: dict[str, Any] = {"params": parameters_without(identity.params, [by])}
        if hasattr(identity, by):
            changes[by] = type(getattr(identity, by))()  # empty, or 0
        identities.append(replace(identity, **changes))
    return dict(zip(cells, row_names(identities), strict=True))


def is_below(name: str, parameters: Collection[str]) -> bool:
    parents = tuple(f"{parent}." for parent in parameters)
    return f"{name}.".startswith(parents)


# --- differences ---


def first_difference(
    before: Side,
    after: Side,
    differing: Sequence[str],
) -> str:
    """Return in which parameters the first cells of both sides differ, and whether `--across`
    accepts them, as the end of a message; empty if a side has no cell."""
    if not before.cells or not after.cells:
        return ""
    old, *_ = before.cells.values()
    new, *_ = after.cells.values()
    texts = parameter_differences(old, new, differing)
    text = f"; their first cells differ in {listed(list(texts.values()), MOST_DIFFERENCES)}"
    groups = dict.fromkeys(name.partition(".")[0] for name in texts)
    if groups.keys() <= {*ACROSS}:
        text += f"; --across {','.join([*differing, *groups])} compares them anyway"
    return text


def parameter_differences(
    old: Cell,
    new: Cell,
    across: Collection[str] = (),
) -> dict[str, str]:
    """Return the parameters in which two cells differ, except those of `across`, with both values
    as text."""
    before = parameters_without(old.params(), across)
    after = parameters_without(new.params(), across)
    texts = {}
    for name in before | after:
        old_value = before.get(name)
        new_value = after.get(name)
        if old_value != new_value:
            texts[name] = f"{name} {old_value} → {new_value}"
    return texts


def differences(
    before: Side,
    after: Side,
    across: Sequence[str],
) -> list[str]:
    """Return the differences between the sides as texts: parameters that the user accepts
    (`across`), hardware, software, flags, protocol and machine."""
    parameters: dict[str, None] = {}
    for key, other in partners_of(before, after, across).items():
        of_cell = parameter_differences(before.cells[key], after.cells[other])
        parameters |= dict.fromkeys(of_cell.values())
    texts = list(parameters)
    for diff in diff_conditions(before.conditions, after.conditions):
        name = diff.name
        if diff.kind == "machine":
            # an unrecorded machine may be the same
            if None in (*diff.before, *diff.after):
                continue
            name = diff.label
        elif diff.kind == "protocol":
            # the name of a protocol has no effect
            if name == "name":
                continue
            name = f"protocol.{name}"
        texts.append(diff.text(name, "→", "not set"))
    return texts


def software_changed(before: Iterable[Environment], after: Iterable[Environment]) -> str | None:
    """Return the first software version of `after` that `before` did not have, as text."""
    old = [Conditions(environment, {}, {}) for environment in before]
    new = [Conditions(environment, {}, {}) for environment in after]
    for diff in diff_conditions(old, new):
        if diff.kind == "software" and not set(diff.after) <= set(diff.before):
            return diff.text(diff.name, "→", "not set")
    return None
