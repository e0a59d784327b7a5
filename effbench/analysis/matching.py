"""Decide which results of two sides are compared: read the sides, match their cells, and list how
the sides differ.

`pairs_of` decides which cells are compared; `verdicts.judge` gives their verdicts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any

from effbench.analysis.limits import CellFacts
from effbench.core.cell import Cell, Conditions, StoredEnvironment, digest
from effbench.core.environments import FLAGS, OWN, diff_conditions, names_by
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import Parameters, cell_names, flatten, grouped, row_names
from effbench.core.printable import listed
from effbench.store.sides import CellResult
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
#: Start of the reason why a marked figure has no verdict.
DISTURBED = "host disturbed"
#: Compilations per side after which kernels that differ between the sides, but not within one, are
#: no coincidence.
LEAST_COMPILATIONS = 3
NO_RESULT = CellResult("")


@dataclass(frozen=True)
class Location:
    """Where trials ran. A word of OWN stands for an interpreter or folder that was not chosen."""

    hardware: str
    interpreter: str
    folder: str

    @classmethod
    def of(cls, environment: StoredEnvironment) -> Location:
        return cls(
            environment.hardware,
            environment.interpreter or OWN["python"],
            environment.folder or OWN["folder"],
        )


@dataclass
class Side:
    """A sweep, or its part in these environments. `cells`: by key, in the order of the plan;
    `results`: by key and environment id; `host`: what the sweep records about its machine."""

    title: str
    label: str | None
    cells: dict[str, Cell]
    results: dict[ResultKey, CellResult]
    environments: dict[str, StoredEnvironment]
    protocol: Mapping[str, Any] = field(default_factory=dict)
    state: str = "completed"
    host: Mapping[str, Any] = field(default_factory=dict)

    @property
    def machines(self) -> dict[Location, list[str]]:
        """Location -> ids of its environments: two, for example, if the sweep was resumed after a
        software update."""
        return grouped(self.environments, lambda key: Location.of(self.environments[key]))

    @property
    def hardware(self) -> str:
        """The hardware of a side that ran on one machine."""
        first, *_ = self.environments.values()
        return first.hardware

    @property
    def conditions(self) -> list[Conditions]:
        """The conditions in each environment."""
        environments = self.environments.values()
        return [Conditions(known, self.protocol, self.host) for known in environments]

    def within(self, environment_ids: Collection[str]) -> Side:
        """Return the part of this side in these environments."""
        kept = {key: known for key, known in self.environments.items() if key in environment_ids}
        return replace(self, environments=kept)

    def result(self, key: str | None) -> CellResult | None:
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
        return (self.host.get("environments") or {}).get(environment_id) or {}


@dataclass(frozen=True)
class Kernels:
    """How the kernels of two sides differ, as text, and among which ones the compiler may choose by
    chance."""

    difference: str | None
    by_chance: frozenset[str]


@dataclass(frozen=True)
class CellPair:
    """A cell on both sides. `before`, `after`: None without a result, and then `why` may give the
    reason. `about`: what exceptions match. `differs`: the cells differ."""

    key: str
    name: str
    about: CellFacts
    before: CellResult | None
    after: CellResult | None
    why: str | None = None
    differs: bool = False

    @property
    def marks(self) -> dict[str, str]:
        """`before` or `now` -> why the times of this side are marked."""
        before, now = (side.disturbance for side in self.sides)
        marks = {"before": before, "now": now}
        return {when: why for when, why in marks.items() if why}

    @property
    def disturbance(self) -> str | None:
        """Why the times of a side are marked: `host disturbed now: busy for 83 % of the timing`;
        None if they are not."""
        marks = self.marks
        if not marks:
            return None
        *_, latest = marks.values()
        return f"{DISTURBED} {' and '.join(marks)}: {latest}"

    @property
    def is_launch_bound(self) -> bool:
        return any(side.bound == "launch" for side in self.sides)

    @property
    def sides(self) -> tuple[CellResult, CellResult]:
        """The results before and after; a side without a result has no figures."""
        return self.before or NO_RESULT, self.after or NO_RESULT

    def rounds_of(self, metric: str) -> int:
        """Return the number of rounds in which both sides have a figure of the metric."""
        old, new = (side.figures.get(metric, {}) for side in self.sides)
        shared = old.keys() & new.keys()
        return sum(None not in (old[number], new[number]) for number in shared)

    @cached_property
    def kernels(self) -> Kernels:
        """There is no chance if each side has one choice, in all of LEAST_COMPILATIONS or in a cell
        of its own."""
        old, new = (side.kernels for side in self.sides)
        caches = [set(side.compilations.values()) - {None} for side in self.sides]
        count = min(map(len, caches))
        are_sure = max(len(old), len(new)) <= 1 and (self.differs or count >= LEAST_COMPILATIONS)
        difference = None
        if old and new and old != new and count and not self.differs:
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
    recorded = info.host.get("environments") or ()
    turns = {key: turn for turn, key in enumerate(recorded, 1)}
    environments = sorted(
        store.environments_of(info.id),
        key=lambda known: turns.get(known.id, 0),
    )
    title = info.id
    if info.name:
        title += f" ({info.name})"
    return Side(
        title,
        info.label,
        {cell.key: cell for cell in store.planned(info.id)},
        store.sides(info.id),
        {known.id: known for known in environments},
        info.protocol,
        info.state,
        info.host,
    )


# --- machines ---


def machine_names(machines: Iterable[Location]) -> dict[Location, str]:
    """Return a name for each machine: its hardware, plus interpreter and folder if these differ
    between machines."""
    machines = list(machines)
    shown = ["hardware"]
    for part in ("interpreter", "folder"):
        if len({getattr(machine, part) for machine in machines}) > 1:
            shown.append(part)
    names = {}
    for machine in machines:
        parts = [getattr(machine, part) for part in shown]
        names[machine] = " ".join(parts)
    return names


def matching(text: str, names: Iterable[str]) -> list[str]:
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
    words: dict[str, set[str]] = {}
    for side in sides:
        for key, known in side.environments.items():
            words[key] = {*astuple(Location.of(known)), known.torch_version}
    wanted = set(matching(on, set().union(*words.values())))
    chosen = [key for key, known_as in words.items() if known_as & wanted]
    if not chosen:
        raise NothingFoundError(nothing_on(sides, on))
    limited = []
    for side in sides:
        part = side.within(chosen)
        limited.append(part if part.environments else side)
    return limited


def nothing_on(sides: Sequence[Side], on: str) -> str:
    """Return that no trial ran there, and where the trials ran."""
    titles = " or ".join(dict.fromkeys(side.title for side in sides))
    machines = machine_names(machine for side in sides for machine in side.machines)
    places = ", ".join(machines.values()) or "nothing yet"
    return f"no trial of {titles} on {on!r}; trials ran on {places}"


def on_one_machine(
    before: Side,
    after: Side,
    across: Collection[str] = (),
) -> tuple[Side, Side]:
    """Return both sides, limited to the machine that is compared. Raises NothingFoundError if a
    side has no trial or the hardware differs, UsageError if it is ambiguous which machines to
    compare."""
    for side in (before, after):
        if not side.environments:
            raise NothingFoundError(f"{side.title} has no trial yet: there is nothing to compare")
    shared = before.machines.keys() & after.machines.keys()
    before = _only_machine(before, shared)
    after = _only_machine(after, shared)
    if before.hardware != after.hardware and "hardware" not in across:
        raise NothingFoundError(
            f"not comparable: {before.hardware} and {after.hardware}; --across hardware compares"
            " them anyway"
        )
    return before, after


def _only_machine(side: Side, shared: Collection[Location]) -> Side:
    """Return the part of a side on the only machine that both sides share, or else on its only
    one."""
    machines = [machine for machine in side.machines if machine in (shared or side.machines)]
    if len(machines) > 1:
        known = ", ".join(machine_names(machines).values())
        raise UsageError(
            f"{side.title} ran on several kinds of hardware or interpreters: {known}; choose one"
            " with --on"
        )
    return side.within(side.machines[machines[0]])


# --- parts of one sweep ---


def split(whole: Side, by: str) -> dict[str, Side]:
    """Return value of `by` -> the part of the sweep with this value. Raises UsageError for an
    unknown parameter."""
    parts: dict[str, Side] = {}
    if by in BY_ENVIRONMENT:
        short_names = names_by(whole.environments.values(), by) if by in FLAGS else {}
        for key, environment in whole.environments.items():
            name = short_names.get(key) or str(getattr(environment, by))
            part = parts.setdefault(name, replace(whole, environments={}))
            part.environments[key] = environment
            if by == "folder":  # the sweep's label describes only one folder
                part.label = whole.recorded_facts(key).get("git_description") or part.label
        return parts
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
        paths = typed_paths(
            value,
            by,
            part.host.get("folder"),
        )
        for key, environment in part.environments.items():
            # an interpreter that was not chosen has no flag
            flag = environment.flags.get(FLAGS[by])
            if paths & {flag, part.recorded_facts(key).get(by)}:
                return name
    return value


def typed_paths(
    text: str,
    by: str,
    folder: str | None,
) -> set[str]:
    """Return the absolute paths that `text` may mean as a value of python= or folder=, as
    `interpreters.resolve` makes them here, or in the `folder` in which the sweep began."""
    path = os.path.expanduser(text)  # noqa: PTH111 - Path would drop the ./ that marks a path
    places = [path, os.path.join(folder or "", path)]  # noqa: PTH118
    if by == "folder":
        return {os.path.realpath(place) for place in places}
    places = [*places, shutil.which(path) or path]
    # links are not followed, because that would lead out of a virtual environment
    return {os.path.abspath(place) for place in places}  # noqa: PTH100


def parameter(cell: Cell, by: str) -> str | None:
    """Return the text of a cell's parameter, of a mode or model its name; None if it has none."""
    known = {**flatten(cell.params()), **cell.params()}
    if by not in known:
        return None
    value = known[by]
    if isinstance(value, Mapping) and "name" in value:
        value = value["name"]
    return str(value)


# --- cells ---


def pairs_of(
    before: Side,
    after: Side,
    across: Sequence[str] = (),
    by: str | None = None,
) -> list[CellPair]:
    """Return the matched cells of both sides (`on_one_machine`) that were measured on one of them.

    `across`, `by`: parameters in which matched cells may differ; names omit `by`, and what follows
    it may differ, too. Raises NothingFoundError, which names the difference, if no cell was
    measured on both sides, and UsageError if a cell has several partners."""
    differing = across
    if by is not None:
        differing = parameters_with(before, after, by)
    partners = partners_of(before, after, differing)
    cells = dict(before.cells)
    others: dict[str, str | None] = {key: partners.get(key) for key in cells}
    matched = set(partners.values())
    for key, cell in after.cells.items():
        if key not in matched:
            cells.setdefault(key, cell)
            others[key] = key
    names = names_without(by, cells)
    pairs = []
    for key, other in others.items():
        old = before.result(key)
        new = after.result(other)
        if old is None and new is None:
            continue
        pair = CellPair(
            key,
            names[key],
            CellFacts.of(cells[key], after.hardware),
            old,
            new,
            why_missing(after, other),
            differs=key != other,
        )
        pairs.append(pair)
    if not any(pair.before and pair.after for pair in pairs):
        text = f"nothing comparable: no cell was measured in both {before.title} and {after.title}"
        if not partners:
            text += first_difference(before, after, differing)
        raise NothingFoundError(text)
    return pairs


def why_missing(after: Side, key: str | None) -> str | None:
    """Return why a cell has no result on the later side; None if it has one."""
    if key is None:
        return "not in the plan"
    if after.result(key) is None:
        return f"planned, not measured: the sweep is {after.state}"
    return None


def partners_of(
    before: Side,
    after: Side,
    differing: Sequence[str],
) -> dict[str, str]:
    """Return key before -> key after: of the same cell, or else of the only cell that differs only
    in the parameters `differing`. Raises UsageError if there are several."""
    partners = {key: key for key in before.cells if key in after.cells}
    may_differ = [name for name in differing if name != "hardware"]
    if not may_differ:
        return partners
    others = alike(after, before, may_differ)
    for rest, keys in alike(before, after, may_differ).items():
        fitting = others.get(rest, [])
        if len(keys) == len(fitting) == 1:
            partners[keys[0]] = fitting[0]
        elif fitting:
            cells = before.cells | after.cells
            names = cell_names(cells.values())
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
    cells = [flatten(cell.params()) for cell in (*before.cells.values(), *after.cells.values())]
    names = dict.fromkeys(name for params in cells if by in params for name in params)
    following = [by, *(name for name in names if equals(name, by, cells))]
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
) -> dict[str, list[str]]:
    """Return the keys of the cells that the other side lacks, by a digest of all their parameters
    except those in which cells may differ."""

    def rest(key: str) -> str:
        params = flatten(side.cells[key].params())
        kept = [name for name in sorted(params) if not is_below(name, differing)]
        return digest({name: params[name] for name in kept})

    return grouped((key for key in side.cells if key not in other.cells), rest)


def names_without(by: str | None, cells: Mapping[str, Cell]) -> dict[str, str]:
    """Return key -> a unique name for each cell, without the parameter `by`."""
    identities = []
    for cell in cells.values():
        identity = cell.identity()
        if by is not None:
            params = flatten(identity.params)
            kept = {name: params[name] for name in params if not is_below(name, [by])}
            identity = replace(identity, params=kept)
            if hasattr(identity, by):
                empty: dict[str, Any] = {by: 0 if by == "bs" else ""}
                identity = replace(identity, **empty)
        identities.append(identity)
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
    before = flatten(old.params())
    after = flatten(new.params())
    texts = {}
    for name in before | after:
        old_value = before.get(name)
        new_value = after.get(name)
        if old_value != new_value and not is_below(name, across):
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


def software_changed(before: Side, after: Side) -> str | None:
    """Return the first software version of `after` that `before` did not have, as text."""
    for diff in diff_conditions(before.conditions, after.conditions):
        if diff.kind != "software":
            continue
        if not set(diff.after) <= set(diff.before):
            return diff.text(diff.name, "→", "not set")
    return None
