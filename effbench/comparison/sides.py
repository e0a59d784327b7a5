"""Read the two sides of a comparison, match their cells, and list how the sides differ."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.cell import digest
from effbench.comparison.verdicts import Pair
from effbench.environments import FLAGS, OWN, diff_environments, hardware_of, names_by
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import flatten, grouped, override_text, row_names
from effbench.printable import listed
from effbench.store.sides import CellResult
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: What may differ only if the user allows it.
ACROSS = ("hardware", "dtype", "numerics")
ABOUT = ("model", "bs", "mode", "dtype", "phase", "device")
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
#: Parameter or section -> what follows it: shapes of inputs a module's width, names its
#: architecture, a network's cache the length of requests. A phase has settings of its own.
FOLLOWERS = {
    "model.module": ("model.inputs", "model.name"),
    "generate": ("model.module.seq",),
    "phase": ("training", "generate"),
}
#: Most differences that a message lists.
MOST_TEXTS = 5
#: Hardware, interpreter and folder; words of OWN stand for an interpreter or folder that was not
#: chosen.
Machine = tuple[str, str, str]


@dataclass
class Side:
    """A sweep, or its part in these environments. `cells`: by key, in the order of the plan;
    `results`: by key and environment id; `host`: what the sweep records about its machine."""

    title: str
    label: str | None
    cells: dict[str, Mapping[str, Any]]
    results: dict[tuple[str, str], CellResult]
    environments: dict[str, Mapping[str, Any]]
    protocol: Mapping[str, Any] = field(default_factory=dict)
    state: str = "completed"
    host: Mapping[str, Any] = field(default_factory=dict)

    @property
    def machines(self) -> dict[Machine, list[str]]:
        """Machine -> ids of its environments: two, for example, if the sweep was resumed after a
        software update."""
        return grouped(self.environments, lambda key: machine_of(self.environments[key]))

    def within(self, environment_ids: Collection[str]) -> Side:
        """Return the part of this side in these environments."""
        environments = {
            key: row for key, row in self.environments.items() if key in environment_ids
        }
        return replace(self, environments=environments)

    def result(self, key: str | None) -> CellResult | None:
        """Return the cell's result; the last one if it has several environments."""
        results = [
            self.results[key, env] for env in self.environments if (key, env) in self.results
        ]
        return results[-1] if results else None

    @property
    def where(self) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        """A pair of sweep facts and environment for each environment."""
        return [
            ({"protocol": self.protocol, "host": self.host}, row)
            for row in self.environments.values()
        ]


def load(store: Store, info: SweepInfo) -> Side:
    cells = {cell["key"]: cell for cell in store.planned_cells(info.id)}
    # in the user's order, if the sweep records it
    order = list(info.host.get("environments") or ())
    rows = sorted(
        store.environments_of(info.id),
        key=lambda row: order.index(row["id"]) if row["id"] in order else -1,
    )
    environments = {row["id"]: row for row in rows}
    title = f"{info.id} ({info.name})" if info.name else info.id
    return Side(
        title,
        info.label,
        cells,
        store.sides(info.id),
        environments,
        info.protocol,
        info.state,
        info.host,
    )


# --- machines ---


def machine_of(environment: Mapping[str, Any]) -> Machine:
    flags = environment["flags"] or {}
    return hardware_of(environment), *(flags.get(flag) or OWN[by] for by, flag in FLAGS.items())


def machine_names(machines: Iterable[Machine]) -> dict[Machine, str]:
    """Return a name for each machine: its hardware, plus interpreter and folder if these differ
    between machines."""
    machines = list(machines)
    shown = [0, *(place for place in (1, 2) if len({machine[place] for machine in machines}) > 1)]
    return {machine: " ".join(machine[place] for place in shown) for machine in machines}


def matching(text: str, names: Iterable[str]) -> list[str]:
    """Return the `names` that `text` matches, ignoring case: in full or without the maker (`L4` is
    `NVIDIA L4`, not `NVIDIA L40S`); if none does, the names that contain it."""
    names, wanted = list(dict.fromkeys(names)), text.strip().lower()
    in_full = [
        name for name in names if name.lower() == wanted or name.lower().endswith(f" {wanted}")
    ]
    return in_full or [name for name in names if wanted in name.lower()]


def chosen_on(sides: Sequence[Side], on: str | None) -> list[Side]:
    """Return the sides, each limited to its environments that match `on` if it has any. Raises
    NothingFoundError if nothing matches."""
    if on is None:
        return list(sides)
    rows = {key: row for side in sides for key, row in side.environments.items()}
    names = {key: {*machine_of(row), row["torch_version"] or ""} for key, row in rows.items()}
    wanted = matching(on, (name for known in names.values() for name in known))
    if not wanted:
        started = {side.host.get("folder") for side in sides}
        wanted = [
            path for by in FLAGS for folder in started for path in typed_paths(on, by, folder)
        ]
    fitting = [
        [key for key in side.environments if not names[key].isdisjoint(wanted)] for side in sides
    ]
    if not any(fitting):
        titles = " or ".join(dict.fromkeys(side.title for side in sides))
        known = ", ".join(machine_names(map(machine_of, rows.values())).values())
        raise NothingFoundError(
            f"no trial of {titles} on {on!r}; trials ran on {known or 'nothing yet'}"
        )
    return [side.within(ids) if ids else side for side, ids in zip(sides, fitting, strict=True)]


def on_one_machine(before: Side, after: Side, across: Collection[str] = ()) -> tuple[Side, Side]:
    """Return both sides, limited to the machine that is compared. Raises NothingFoundError if a
    side has no trial or the hardware differs, UsageError if it is ambiguous which machines to
    compare."""
    old, new = before.machines, after.machines
    for side, machines in ((before, old), (after, new)):
        if not machines:
            raise NothingFoundError(f"{side.title} has no trial yet: there is nothing to compare")
    shared = [machine for machine in old if machine in new]
    for title, machines in (
        [("each side", shared)] if shared else [(before.title, old), (after.title, new)]
    ):
        if len(machines) > 1:
            names = ", ".join(machine_names(machines).values())
            raise UsageError(
                f"{title} ran on several kinds of hardware or interpreters: {names}; choose one"
                " with --on"
            )
    first, second = (shared * 2) or (next(iter(old)), next(iter(new)))
    if first[0] != second[0] and "hardware" not in across:
        raise NothingFoundError(
            f"not comparable: {first[0]} and {second[0]}; --across hardware compares them anyway"
        )
    return before.within(old[first]), after.within(new[second])


# --- parts of one sweep ---


def split(whole: Side, by: str) -> dict[str, Side]:
    """Return value of `by` -> the part of the sweep with this value. Raises UsageError for an
    unknown parameter."""
    parts: dict[str, Side] = {}
    if by not in BY_ENVIRONMENT:
        for key, value in parameter_names(whole.cells, by).items():
            parts.setdefault(value, replace(whole, cells={})).cells[key] = whole.cells[key]
        if not parts:
            known = f"a parameter, such as bs or model.module.width, or {', '.join(BY_ENVIRONMENT)}"
            raise UsageError(f"no cell of {whole.title} has a parameter {by!r}; use {known}")
        return parts
    named = names_by(whole.environments.values(), by) if by in FLAGS else {}
    for key, row in whole.environments.items():
        part = parts.setdefault(named.get(key) or str(row[by]), replace(whole, environments={}))
        part.environments[key] = row
        if by == "folder":  # the sweep's label describes only one folder
            facts = (whole.host.get("environments") or {}).get(key) or {}
            part.label = facts.get("git_description") or part.label
    return parts


def part_named(value: str, parts: Mapping[str, Side], by: str) -> str | None:
    """Return the part of `split` that a user means by this value: its name, or the path of its
    interpreter or folder, as the database stores it or as it was typed; None if no part has it."""
    if value in parts or by not in FLAGS:
        return value if value in parts else None
    for name, part in parts.items():
        for key, row in part.environments.items():
            recorded = (part.host.get("environments") or {}).get(key) or {}
            # an interpreter that was not chosen has no flag
            paths = {(row["flags"] or {}).get(FLAGS[by]), recorded.get(by)}
            if not paths.isdisjoint(typed_paths(value, by, part.host.get("folder"))):
                return name
    return None


def typed_paths(text: str, by: str, folder: str | None = None) -> set[str]:
    """Return the absolute paths that `text` may mean as a value of python= or folder=, as
    `interpreters.resolve` makes them here, or in the `folder` in which the sweep began."""
    path = os.path.expanduser(text)  # noqa: PTH111 - Path would drop the ./ that marks a path
    homes = [os.getcwd(), *([folder] if folder else [])]  # noqa: PTH109
    absolute = {os.path.normpath(os.path.join(home, path)) for home in homes}  # noqa: PTH118
    if by == "folder":
        return absolute | {os.path.realpath(name) for name in absolute}
    found = shutil.which(path)
    if found is None:
        return absolute
    # Path.resolve() would leave the virtual environment
    return absolute | {os.path.abspath(found)}  # noqa: PTH100


def full_name(cells: Mapping[str, Mapping[str, Any]], by: str) -> str:
    """Return `model.module.width` for `width` if it is the only parameter whose name ends like
    that, else `by`."""
    names = {name for row in cells.values() for name in (*row["params"], *flatten(row["params"]))}
    ending = [name for name in names if name.endswith(f".{by}")]
    return ending[0] if len(ending) == 1 and by not in (*BY_ENVIRONMENT, *names) else by


def parameter_names(cells: Mapping[str, Mapping[str, Any]], by: str) -> dict[str, str]:
    """Return cell key -> the text of a parameter, for the cells that have it. A value with a name
    (such as a mode) is shown as in tables, by its name plus the settings in which cells with this
    name differ that are otherwise the same: a model's cache size that follows bs does not count."""
    known = {key: {**flatten(row["params"]), **row["params"]} for key, row in cells.items()}
    values = {key: params[by] for key, params in known.items() if by in params}
    named = {
        key: flatten(value)
        for key, value in values.items()
        if isinstance(value, Mapping) and "name" in value
    }
    names = {
        key: str(named[key]["name"] if key in named else value) for key, value in values.items()
    }
    differing: dict[str, set[str]] = {}
    for (name, _), keys in grouped(
        named, lambda key: (names[key], without(cells[key]["params"], [by]))
    ).items():
        settings = [set(named[key].items()) for key in keys]
        shared = set.intersection(*settings)
        differing.setdefault(name, set()).update(
            setting for one in settings for setting, _ in one - shared
        )
    for key, settings in named.items():
        shown = [
            name
            for name in sorted(differing[names[key]] & settings.keys())
            if settings[name] is not None
        ]
        if shown:
            names[key] += (
                f" ({', '.join(f'{name}={override_text(settings[name])}' for name in shown)})"
            )
    return names


# --- cells ---


def pairs_of(
    before: Side, after: Side, across: Collection[str] = (), by: str | None = None
) -> list[Pair]:
    """Return the matched cells of both sides (`on_one_machine`). `by`: the parameter in which they
    differ, omitted from names. Raises NothingFoundError, which names the difference, if no cell was
    measured on both sides, and UsageError if a cell has several partners."""
    differing = [by, *followers(before, after, by)] if by else across
    partners = partners_of(before, after, differing)
    for follower in next(
        (names for part, names in FOLLOWERS.items() if by and is_below(by, [part])), ()
    ):
        if not partners:
            differing = [*differing, follower]
            partners = partners_of(before, after, differing)
    for old, new in alike(before, after, differing):
        if len(old) + len(new) > 2:
            cells = names_of(
                {key: before.cells.get(key) or after.cells[key] for key in (*old, *new)}
            )
            what = (
                f"several cells differ only in {', '.join(differing)}: {', '.join(cells.values())}"
            )
            raise UsageError(f"{what}; compare sweeps that have one of them each")
    matched = [(key, partners.get(key)) for key in before.cells]
    known = set(partners.values())
    matched += [(None, key) for key in after.cells if key not in known]
    names = names_of(
        {key or other: before.cells.get(key) or after.cells[other] for key, other in matched}, by
    )
    hardware = next(iter(after.machines))[0]
    pairs = []
    for key, other in matched:
        old, new = before.result(key), after.result(other)
        if old is None and new is None:
            continue  # planned, but measured on neither side
        why = None
        if new is None:
            why = (
                "not in the plan"
                if other is None
                else f"planned, not measured: the sweep is {after.state}"
            )
        rows = [side.cells[k] for side, k in ((before, key), (after, other)) if k is not None]
        about = {name: rows[0][name] for name in ABOUT} | {"hardware": hardware}
        if changed := {name: rows[-1][name] for name in ABOUT if rows[-1][name] != rows[0][name]}:
            about["after"] = changed
        pairs.append(
            Pair(key or other, names[key or other], about, old, new, why, differs=key != other)
        )
    if not any(pair.before and pair.after for pair in pairs):
        raise NothingFoundError(nothing_shared(before, after, across, by))
    return pairs


def names_of(cells: Mapping[str, Mapping[str, Any]], by: str | None = None) -> dict[str, str]:
    """Return key -> a unique name for each cell, without the parameter `by`."""
    rows = [dict(row) for row in cells.values()]
    for row in rows if by else ():
        row["params"] = {
            name: value
            for name, value in flatten(row["params"]).items()
            if not is_below(name, [by])
        }
        if by in ABOUT:
            row[by] = None
    return dict(zip(cells, row_names(rows), strict=True))


def partners_of(before: Side, after: Side, across: Collection[str]) -> dict[str, str]:
    """Return key before -> key after: of the same cell, or else of the only cell that differs only
    in `across`."""
    partners = {key: key for key in before.cells if key in after.cells}
    return partners | {
        old[0]: new[0] for old, new in alike(before, after, across) if len(old) == len(new) == 1
    }


def followers(before: Side, after: Side, by: str) -> list[str]:
    """Return the settings that equal `by` in every cell that has them: a model's cache size follows
    bs."""
    known = [flatten(row["params"]) for side in (before, after) for row in side.cells.values()]
    names = dict.fromkeys(name for params in known if by in params for name in params)
    return [
        name
        for name in names
        if name != by and all(it[name] == it.get(by) for it in known if name in it)
    ]


def alike(before: Side, after: Side, across: Collection[str]) -> list[tuple[list[str], list[str]]]:
    """Return the keys before and after of the cells that are not on both sides, grouped by what
    does not differ in `across`; without groups that only one side has."""
    names = [name for name in across if name != "hardware"]
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for place, (side, other) in enumerate(((before, after), (after, before)) if names else ()):
        for key in (key for key in side.cells if key not in other.cells):
            groups.setdefault(without(side.cells[key]["params"], names), ([], []))[place].append(
                key
            )
    return [(old, new) for old, new in groups.values() if old and new]


def without(params: Mapping[str, Any], names: Collection[str]) -> str:
    """Return a digest of a cell's parameters without the given ones and their nested settings."""
    return digest(
        {
            name: value
            for name, value in sorted(flatten(params).items())
            if not is_below(name, names)
        }
    )


def is_below(name: str, parameters: Collection[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parameters)


# --- differences ---


def nothing_shared(before: Side, after: Side, across: Collection[str], by: str | None) -> str:
    """Return why there is nothing to compare; name the difference of ACROSS that is the reason, if
    any, else the smallest difference between the first cell and those of the other side."""
    text = f"nothing comparable: no cell was measured in both {before.title} and {after.title}"
    differing = [by] if by else across
    if partners_of(before, after, differing):
        return text
    for name in () if by else ("dtype", "numerics"):
        if texts := accepted_differences(before, after, [*across, name]):
            words = ",".join([*across, name])
            return (
                f"not comparable: the cells differ in {', '.join(texts)}; --across {words} compares"
                " them anyway"
            )
    # of 10,000 × 10,000 cells, the most similar ones would take minutes to find
    first = [*before.cells.values()][:1]
    every = (
        parameter_differences(old, new, differing) for old in first for new in after.cells.values()
    )
    if not (texts := min(every, key=len, default=[])):
        return text
    return f"{text}; the first cell and the most similar one differ in {listed(texts, MOST_TEXTS)}"


def parameter_differences(
    old: Mapping[str, Any], new: Mapping[str, Any], across: Collection[str] = ()
) -> list[str]:
    """Return the parameters in which two cells differ, except those of `across`, as texts."""
    before, after = flatten(old["params"]), flatten(new["params"])
    names = [
        name
        for name in {**before, **after}
        if before.get(name) != after.get(name) and not is_below(name, across)
    ]
    return [f"{name} {before.get(name)} → {after.get(name)}" for name in names]


def accepted_differences(before: Side, after: Side, across: Collection[str]) -> list[str]:
    """Return the parameters in which matched cells differ, as texts."""
    pairs = [
        (key, other) for key, other in partners_of(before, after, across).items() if key != other
    ]
    texts = (parameter_differences(before.cells[key], after.cells[other]) for key, other in pairs)
    return list(dict.fromkeys(text for some in texts for text in some))


def differences(before: Side, after: Side, across: Collection[str]) -> list[str]:
    """Return the differences between the sides as texts: parameters that the user accepts
    (`across`), hardware, software, flags, protocol and machine."""
    texts = accepted_differences(before, after, across)
    for diff in diff_environments(before.where, after.where):
        # an unrecorded machine may be the same; the name of a protocol has no effect
        is_unknown = diff.kind == "machine" and None in (*diff.before, *diff.after)
        if not is_unknown and (diff.kind, diff.name) != ("protocol", "name"):
            name = {"protocol": f"protocol.{diff.name}", "machine": diff.label}.get(
                diff.kind, diff.name
            )
            texts.append(diff.text(name, "→", "not set"))
    return texts


def software_changed(before: Side, after: Side) -> str | None:
    """Return the first software version of `after` that `before` did not have, as text."""
    for diff in diff_environments(before.where, after.where):
        if diff.kind == "software" and not set(diff.after) <= set(diff.before):
            return diff.text(diff.name, "→", "not set")
    return None
