"""Decide which results of two sides are compared: read the sides, match their cells, and list how
the sides differ."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any

from effbench.analysis.limits import CellFacts
from effbench.core.cell import Cell, Conditions, Identity, StoredEnvironment, digest
from effbench.core.environments import FLAGS, OWN, diff_conditions, names_by
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import flatten, grouped, row_names
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
        interpreter = environment.interpreter or OWN["python"]
        return cls(environment.hardware, interpreter, environment.folder or OWN["folder"])


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
            if ResultKey(key, environment_id) in self.results:
                return self.results[ResultKey(key, environment_id)]
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
        marks = {}
        for when, side in zip(("before", "now"), self.sides, strict=True):
            if side.disturbance:
                marks[when] = side.disturbance
        return marks

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
        """The result before and after; one without figures if there is none."""
        return self.before or NO_RESULT, self.after or NO_RESULT

    @cached_property
    def kernels(self) -> Kernels:
        """There is no chance if each side has one choice, in all of LEAST_COMPILATIONS or in a cell
        of its own."""
        old, new = (side.kernels for side in self.sides)
        count = min(len(set(side.compilations.values()) - {None}) for side in self.sides)
        are_sure = max(len(old), len(new)) <= 1 and (self.differs or count >= LEAST_COMPILATIONS)
        by_chance: frozenset[str] = frozenset()
        if not are_sure:
            by_chance = old | new
        if not old or not new or old == new or not count or self.differs:
            return Kernels(None, by_chance)
        if are_sure:
            return Kernels(f"other kernels in each of {count} compilations", by_chance)
        return Kernels("the compiler chose other kernels, unless the code changed", by_chance)


def load(store: Store, info: SweepInfo) -> Side:
    """Return a whole sweep as a side."""
    environments = {known.id: known for known in store.environments_of(info.id)}
    # in the user's order, if the sweep records it
    turns = {key: turn for turn, key in enumerate(info.host.get("environments") or (), 1)}
    ordered = sorted(environments, key=lambda key: turns.get(key, 0))
    title = info.id
    if info.name:
        title += f" ({info.name})"
    return Side(
        title,
        info.label,
        {cell.key: cell for cell in store.planned(info.id)},
        store.sides(info.id),
        {key: environments[key] for key in ordered},
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
    return {machine: " ".join(getattr(machine, part) for part in shown) for machine in machines}


def matching(text: str, names: Iterable[str]) -> list[str]:
    """Return the `names` that `text` matches, ignoring case: in full or without the maker (`L4` is
    `NVIDIA L4`, not `NVIDIA L40S`); if none does, the names that contain it."""
    wanted = text.strip().lower()
    lowered = {name: name.lower() for name in names}
    in_full = [name for name, low in lowered.items() if low == wanted or low.endswith(f" {wanted}")]
    return in_full or [name for name, low in lowered.items() if wanted in low]


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
    chosen = [key for key, selecting in words.items() if selecting & wanted]
    if not chosen:
        raise NothingFoundError(nothing_on(sides, on))
    fitting = [side.within(chosen) for side in sides]
    return [part if part.environments else side for side, part in zip(sides, fitting, strict=True)]


def nothing_on(sides: Sequence[Side], on: str) -> str:
    """Return that no trial ran there, and where the trials ran."""
    titles = " or ".join(dict.fromkeys(side.title for side in sides))
    machines = machine_names(machine for side in sides for machine in side.machines)
    places = ", ".join(machines.values()) or "nothing yet"
    return f"no trial of {titles} on {on!r}; trials ran on {places}"


def on_one_machine(before: Side, after: Side, across: Collection[str] = ()) -> tuple[Side, Side]:
    """Return both sides, limited to the machine that is compared. Raises NothingFoundError if a
    side has no trial or the hardware differs, UsageError if it is ambiguous which machines to
    compare."""
    for side in (before, after):
        if not side.environments:
            raise NothingFoundError(f"{side.title} has no trial yet: there is nothing to compare")
    shared = [machine for machine in before.machines if machine in after.machines]
    if shared:
        old = new = _only_machine("each side", shared)
    else:
        old = _only_machine(before.title, before.machines)
        new = _only_machine(after.title, after.machines)
    if old.hardware != new.hardware and "hardware" not in across:
        raise NothingFoundError(
            f"not comparable: {old.hardware} and {new.hardware}; --across hardware compares them"
            " anyway"
        )
    return before.within(before.machines[old]), after.within(after.machines[new])


def _only_machine(title: str, machines: Iterable[Location]) -> Location:
    first, *others = machines
    if others:
        known = ", ".join(machine_names([first, *others]).values())
        raise UsageError(
            f"{title} ran on several kinds of hardware or interpreters: {known}; choose one with"
            " --on"
        )
    return first


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


def part_named(value: str, parts: Mapping[str, Side], by: str) -> str:
    """Return the part of `split` that has this value: its name, or the path of its interpreter or
    folder, as the database stores it or as it was typed; the value if no part has it."""
    if value in parts or by not in FLAGS:
        return value
    for name, part in parts.items():
        paths = typed_paths(value, by, part.host.get("folder"))
        for key, environment in part.environments.items():
            # an interpreter that was not chosen has no flag
            flag = environment.flags.get(FLAGS[by])
            if paths & {flag, part.recorded_facts(key).get(by)}:
                return name
    return value


def typed_paths(text: str, by: str, folder: str | None = None) -> set[str]:
    """Return the absolute paths that `text` may mean as a value of python= or folder=, as
    `interpreters.resolve` makes them here, or in the `folder` in which the sweep began."""
    path = os.path.expanduser(text)  # noqa: PTH111 - Path would drop the ./ that marks a path
    paths = {os.path.abspath(path)}  # noqa: PTH100 - Path.resolve() would follow links
    if folder is not None:
        paths.add(os.path.normpath(os.path.join(folder, path)))  # noqa: PTH118
    if by == "folder":
        return paths | {os.path.realpath(name) for name in paths}
    program = shutil.which(path)
    if program is not None:
        paths.add(os.path.abspath(program))  # noqa: PTH100
    return paths


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


@dataclass(frozen=True)
class Matching:
    """Two sides whose cells may differ in these parameters."""

    before: Side
    after: Side
    differing: Sequence[str] = ()

    @classmethod
    def by(cls, before: Side, after: Side, by: str) -> Matching:
        """Return the sides, which differ in the parameter `by` and in what follows it."""
        matched = cls(before, after, [by, *_equal_settings(before, after, by)])
        if is_below(by, ["model.module"]):
            for name in FOLLOWERS:
                if not matched.partners:
                    matched = cls(before, after, [*matched.differing, name])
        return matched

    @cached_property
    def partners(self) -> dict[str, str]:
        """Key before -> key after: of the same cell, or else of the only cell that differs only in
        what may differ. Raises UsageError if there are several."""
        before = self.before.cells
        after = self.after.cells
        partners = {key: key for key in before if key in after}
        may_differ = [name for name in self.differing if name != "hardware"]
        if not may_differ:
            return partners
        others = alike(after, before, may_differ)
        for rest, keys in alike(before, after, may_differ).items():
            fitting = others.get(rest, [])
            if len(keys) == len(fitting) == 1:
                partners[keys[0]] = fitting[0]
            elif fitting:
                names = names_of({**before, **after})
                several = ", ".join(names[key] for key in (*keys, *fitting))
                raise UsageError(
                    f"several cells differ only in {', '.join(self.differing)}: {several}; compare"
                    " sweeps that have one of them each"
                )
        return partners

    def differences(self) -> list[str]:
        """Return the parameters in which matched cells differ, as texts."""
        texts: dict[str, None] = {}
        for key, other in self.partners.items():
            old = self.before.cells[key]
            new = self.after.cells[other]
            if key != other:
                texts |= dict.fromkeys(parameter_differences(old, new).values())
        return list(texts)

    def pairs(self, by: str | None) -> list[CellPair]:
        """Return the cells that were measured on a side. `by`: the parameter that names omit."""
        before = self.before.cells
        after = self.after.cells
        matched = set(self.partners.values())
        others: dict[str, str | None] = {key: self.partners.get(key) for key in before}
        others |= {key: key for key in after if key not in matched}
        cells = {key: before.get(key) or after[key] for key in others}
        names = names_of(cells, by)
        hardware = next(iter(self.after.machines)).hardware
        pairs = []
        for key, other in others.items():
            pair = CellPair(
                key,
                names[key],
                CellFacts.of(cells[key], hardware),
                self.before.result(key),
                self.after.result(other),
                differs=key != other,
            )
            if other is None:
                pair = replace(pair, why="not in the plan")
            elif pair.after is None:
                pair = replace(pair, why=f"planned, not measured: the sweep is {self.after.state}")
            pairs.append(pair)
        return [pair for pair in pairs if pair.before or pair.after]


def pairs_of(
    before: Side, after: Side, across: Sequence[str] = (), by: str | None = None
) -> list[CellPair]:
    """Return the matched cells of both sides (`on_one_machine`). `by`: the parameter in which they
    differ, omitted from names. Raises NothingFoundError, which names the difference, if no cell was
    measured on both sides, and UsageError if a cell has several partners."""
    if by is None:
        allowed = matched = Matching(before, after, across)
    else:
        allowed = Matching(before, after, [by])
        matched = Matching.by(before, after, by)
    pairs = matched.pairs(by)
    if not any(pair.before and pair.after for pair in pairs):
        raise NothingFoundError(nothing_shared(allowed))
    return pairs


def names_of(cells: Mapping[str, Cell], by: str | None = None) -> dict[str, str]:
    """Return key -> a unique name for each cell, without the parameter `by`."""
    identities = [cell.identity() for cell in cells.values()]
    if by is not None:
        identities = [_without_parameter(identity, by) for identity in identities]
    return dict(zip(cells, row_names(identities), strict=True))


def _without_parameter(identity: Identity, by: str) -> Identity:
    params = flatten(identity.params)
    kept = {name: params[name] for name in params if not is_below(name, [by])}
    changes: dict[str, Any] = {"params": kept}
    if hasattr(identity, by):
        changes[by] = 0 if by == "bs" else ""
    return replace(identity, **changes)


def _equal_settings(before: Side, after: Side, by: str) -> list[str]:
    """Return the settings that equal `by` in every cell that has them: a model's cache size follows
    bs."""
    cells = [flatten(cell.params()) for side in (before, after) for cell in side.cells.values()]
    equal = {name: True for params in cells if by in params for name in params}
    for params in cells:
        for name in equal.keys() & params.keys():
            equal[name] &= params[name] == params.get(by)
    return [name for name, is_equal in equal.items() if is_equal and name != by]


def alike(
    cells: Mapping[str, Cell], others: Collection[str], names: Collection[str]
) -> dict[str, list[str]]:
    """Return the keys of the cells that are not among the `others`, by all their parameters except
    these."""
    alone = [key for key in cells if key not in others]
    return grouped(alone, lambda key: without(cells[key].params(), names))


def without(params: Mapping[str, Any], names: Collection[str]) -> str:
    """Return a digest of a cell's parameters without the given ones and their nested settings."""
    flat = flatten(params)
    return digest({name: flat[name] for name in sorted(flat) if not is_below(name, names)})


def is_below(name: str, parameters: Collection[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parameters)


# --- differences ---


def nothing_shared(allowed: Matching) -> str:
    """Return why there is nothing to compare: the parameters in which the first cell and the most
    similar one of the other side differ, and whether `--across` accepts them."""
    before = allowed.before
    after = allowed.after
    text = f"nothing comparable: no cell was measured in both {before.title} and {after.title}"
    if allowed.partners or not before.cells or not after.cells:
        return text
    # of 10,000 × 10,000 cells, the most similar ones would take minutes to find
    first, *_ = before.cells.values()
    every = [parameter_differences(first, cell, allowed.differing) for cell in after.cells.values()]
    fewest = min(every, key=len)
    different = listed(list(fewest.values()), MOST_DIFFERENCES)
    text += f"; the first cell and the most similar one differ in {different}"
    across = {path.partition(".")[0]: None for path in fewest}
    if across.keys() | {*allowed.differing} <= {*ACROSS}:
        names = ",".join([*allowed.differing, *across])
        text += f"; --across {names} compares them anyway"
    return text


def parameter_differences(old: Cell, new: Cell, across: Collection[str] = ()) -> dict[str, str]:
    """Return the parameters in which two cells differ, except those of `across`, with both values
    as text."""
    before = flatten(old.params())
    after = flatten(new.params())
    return {
        name: f"{name} {before.get(name)} → {after.get(name)}"
        for name in {**before, **after}
        if before.get(name) != after.get(name) and not is_below(name, across)
    }


def differences(before: Side, after: Side, across: Sequence[str]) -> list[str]:
    """Return the differences between the sides as texts: parameters that the user accepts
    (`across`), hardware, software, flags, protocol and machine."""
    texts = Matching(before, after, across).differences()
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
        if diff.kind == "software" and not set(diff.after) <= set(diff.before):
            return diff.text(diff.name, "→", "not set")
    return None
