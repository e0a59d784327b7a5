"""The two sides of a comparison: read, matched cell by cell, and how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.cell import digest
from effbench.comparison.verdicts import Pair
from effbench.environments import FLAGS, OWN, diff_environments, hardware_of, names_by
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import flatten, row_names
from effbench.store.sides import CellResult
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: What may differ only if the user says so: of the machine, and of the cell.
ACROSS = ("hardware", "dtype", "numerics")
ABOUT = ("model", "bs", "mode", "dtype", "phase", "device")
#: What `--by` takes besides the parameters of cells.
BY_ENVIRONMENT = ("python", "folder", "torch_version", "triton_version", "driver_version", "cuda_version", "gpu_name")
#: Hardware, interpreter and folder; words of OWN stand for those that were not chosen.
Machine = tuple[str, str, str]


@dataclass
class Side:
    """A sweep, or the part of one in these environments. `cells` (by key) are in the order of the plan, `results` by
    key and environment id; `host`: what the sweep records of its machine."""

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
        """The environments by machine; a sweep that was resumed after an update has two on one."""
        found: dict[Machine, list[str]] = {}
        for key, row in self.environments.items():
            found.setdefault(machine_of(row), []).append(key)
        return found

    def within(self, environment_ids: Collection[str]) -> Side:
        """Return the part that was measured in these environments."""
        environments = {key: row for key, row in self.environments.items() if key in environment_ids}
        return replace(self, environments=environments)

    def result(self, key: str | None) -> CellResult | None:
        """Return the cell's result; the last one if it has several environments."""
        found = [self.results[key, one] for one in self.environments if (key, one) in self.results]
        return found[-1] if found else None

    @property
    def where(self) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Sweep and environment, for each environment."""
        return [({"protocol": self.protocol, "host": self.host}, row) for row in self.environments.values()]


def load(store: Store, info: SweepInfo) -> Side:
    """Return a sweep as one side of a comparison."""
    cells = {cell["key"]: cell for cell in store.planned_cells(info.id)}
    # in the order in which the user gave them, if the sweep records it
    order = list(info.host.get("environments") or ())
    rows = sorted(store.environments_of(info.id), key=lambda row: order.index(row["id"]) if row["id"] in order else -1)
    environments = {row["id"]: row for row in rows}
    title = f"{info.id} ({info.name})" if info.name else info.id
    return Side(title, info.label, cells, store.sides(info.id), environments, info.protocol, info.state, info.host)


# --- machines ---


def machine_of(environment: Mapping[str, Any]) -> Machine:
    flags = environment["flags"] or {}
    return hardware_of(environment), *(flags.get(flag) or OWN[by] for by, flag in FLAGS.items())


def machine_names(machines: Iterable[Machine]) -> dict[Machine, str]:
    """Return a name for each machine: its hardware, and interpreter and folder if they tell machines apart."""
    machines = list(machines)
    shown = [0, *(place for place in (1, 2) if len({machine[place] for machine in machines}) > 1)]
    return {machine: " ".join(machine[place] for place in shown) for machine in machines}


def matching(text: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` that `text` means, ignoring case: in full or without the maker (`L4` is `NVIDIA L4`, not
    `NVIDIA L40S`); if there is none, those that contain it."""
    names, wanted = list(dict.fromkeys(names)), text.strip().lower()
    in_full = [name for name in names if name.lower() == wanted or name.lower().endswith(f" {wanted}")]
    return in_full or [name for name in names if wanted in name.lower()]


def chosen_on(sides: Sequence[Side], on: str | None) -> list[Side]:
    """Return the sides, each limited to the environments that `on` names if it has any. Raises NothingFoundError if
    it names nothing."""
    if on is None:
        return list(sides)
    rows = {key: row for side in sides for key, row in side.environments.items()}
    names = {key: {*machine_of(row), row["torch_version"] or ""} for key, row in rows.items()}
    wanted = matching(on, (name for known in names.values() for name in known))
    fitting = [[key for key in side.environments if not names[key].isdisjoint(wanted)] for side in sides]
    if not any(fitting):
        titles = " nor ".join(side.title for side in sides)
        known = ", ".join(machine_names(map(machine_of, rows.values())).values())
        raise NothingFoundError(f"{titles}: no trial on {on!r}; there is {known or 'none at all'}")
    return [side.within(ids) if ids else side for side, ids in zip(sides, fitting, strict=True)]


def on_one_machine(before: Side, after: Side, across: Collection[str] = ()) -> tuple[Side, Side]:
    """Return both sides without the environments that are not compared. Raises NothingFoundError if a side has no trial
    or the hardware differs, UsageError if it is ambiguous which environments belong together."""
    old, new = before.machines, after.machines
    for side, machines in ((before, old), (after, new)):
        if not machines:
            raise NothingFoundError(f"{side.title} has no trial yet: there is nothing to compare")
    shared = [machine for machine in old if machine in new]
    for title, machines in [("each side", shared)] if shared else [(before.title, old), (after.title, new)]:
        if len(machines) > 1:
            names = ", ".join(machine_names(machines).values())
            raise UsageError(f"{title} ran on several kinds of hardware or interpreters: {names}; choose one with --on")
    one, other = (shared * 2) or (next(iter(old)), next(iter(new)))
    if one[0] != other[0] and "hardware" not in across:
        raise NothingFoundError(f"not comparable: {one[0]} against {other[0]}; --across hardware compares them anyway")
    return before.within(old[one]), after.within(new[other])


# --- parts of one sweep ---


def split(whole: Side, by: str) -> dict[str, Side]:
    """Return value of `by` -> the part of the sweep that has it. Raises UsageError for an unknown parameter."""
    parts: dict[str, Side] = {}
    if by not in BY_ENVIRONMENT:
        for key, value in parameter_names(whole.cells, by).items():
            parts.setdefault(value, replace(whole, cells={})).cells[key] = whole.cells[key]
        if not parts:
            known = ", ".join(BY_ENVIRONMENT)
            raise UsageError(f"no cell of {whole.title} has a parameter {by!r}; environments differ in {known}")
        return parts
    named = names_by(whole.environments.values(), by) if by in FLAGS else {}
    for key, row in whole.environments.items():
        part = parts.setdefault(named.get(key) or str(row[by]), replace(whole, environments={}))
        part.environments[key] = row
        if by == "folder":  # the sweep's label is that of one folder
            facts = (whole.host.get("environments") or {}).get(key) or {}
            part.label = facts.get("git_description") or part.label
    return parts


def parameter_names(cells: Mapping[str, Mapping[str, Any]], by: str) -> dict[str, str]:
    """Return cell key -> its value of a parameter as text, for the cells that have it. A value with a name (a mode) is
    called by it, with its other settings if two share the name."""
    known = {key: {**flatten(row["params"]), **row["params"]} for key, row in cells.items()}
    values = {key: params[by] for key, params in known.items() if by in params}
    named = {key: value["name"] for key, value in values.items() if isinstance(value, Mapping) and "name" in value}
    names = {key: str(named.get(key, value)) for key, value in values.items()}
    variants = Counter(name for name, _ in {(names[key], str(value)) for key, value in values.items()})
    for key, name in names.items():
        if variants[name] > 1:
            rest = {one: item for one, item in values[key].items() if one not in ("name", "description", "_target_")}
            names[key] = f"{name} {rest}"
    return names


# --- cells ---


def pairs_of(before: Side, after: Side, across: Collection[str] = (), by: str | None = None) -> list[Pair]:
    """Return every cell of both sides (`on_one_machine`), matched; they differ in the parameter `by`, which names omit.
    Raises NothingFoundError, which names the difference, if no cell was measured on both."""
    partners = partners_of(before, after, [by] if by else across)
    matched = [(key, partners.get(key)) for key in before.cells]
    known = set(partners.values())
    matched += [(None, key) for key in after.cells if key not in known]
    names = names_of({key or other: before.cells.get(key) or after.cells[other] for key, other in matched}, by)
    hardware = next(iter(after.machines))[0]
    pairs = []
    for key, other in matched:
        old, new = before.result(key), after.result(other)
        if old is None and new is None:
            continue  # planned on a side, measured on none
        why = None
        if new is None:
            why = "not in the plan" if other is None else f"planned, not measured: the sweep is {after.state}"
        rows = [side.cells[one] for side, one in ((before, key), (after, other)) if one is not None]
        about = {name: rows[0][name] for name in ABOUT} | {"hardware": hardware}
        if differing := {name: rows[-1][name] for name in ABOUT if rows[-1][name] != rows[0][name]}:
            about["after"] = differing
        pairs.append(Pair(key or other, names[key or other], about, old, new, why))
    if not any(pair.before and pair.after for pair in pairs):
        raise NothingFoundError(nothing_shared(before, after, across))
    return pairs


def names_of(cells: Mapping[str, Mapping[str, Any]], by: str | None = None) -> dict[str, str]:
    """Return key -> a unique name for each cell, without the parameter `by`."""
    rows = [dict(row) for row in cells.values()]
    for row in rows if by else ():
        row["params"] = {name: value for name, value in flatten(row["params"]).items() if not is_below(name, [by])}
        if by in ABOUT:
            row[by] = None
    return dict(zip(cells, row_names(rows), strict=True))


def partners_of(before: Side, after: Side, across: Collection[str]) -> dict[str, str]:
    """Return key before -> key after: the same cell, else one that differs in nothing but `across`."""
    found = {key: key for key in before.cells if key in after.cells}
    names = [name for name in across if name != "hardware"]
    left = {without(row["params"], names): key for key, row in after.cells.items() if names and key not in found}
    for key, row in before.cells.items() if left else ():
        if key not in found and (other := left.pop(without(row["params"], names), None)):
            found[key] = other
    return found


def without(params: Mapping[str, Any], names: Collection[str]) -> str:
    """Return the key of a cell that does not have these parameters, nor what lies below them."""
    return digest({name: value for name, value in sorted(flatten(params).items()) if not is_below(name, names)})


def is_below(name: str, parameters: Collection[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in parameters)


# --- differences ---


def nothing_shared(before: Side, after: Side, across: Collection[str]) -> str:
    """Explain why there is nothing to compare, if it is a difference of ACROSS with that one."""
    for name in () if partners_of(before, after, across) else ("dtype", "numerics"):
        if texts := accepted_differences(before, after, [*across, name]):
            words = ",".join([*across, name])
            return f"not comparable: the cells differ in {', '.join(texts)}; --across {words} compares them anyway"
    return f"nothing comparable: no cell was measured in both {before.title} and {after.title}"


def accepted_differences(before: Side, after: Side, across: Collection[str]) -> list[str]:
    """Return in which parameters matched cells differ, as text."""
    texts: dict[str, None] = {}
    for key, other in partners_of(before, after, across).items():
        if key != other:
            old, new = flatten(before.cells[key]["params"]), flatten(after.cells[other]["params"])
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            texts |= dict.fromkeys(f"{name} {old.get(name)} → {new.get(name)}" for name in names)
    return list(texts)


def differences(before: Side, after: Side, across: Collection[str]) -> list[str]:
    """Return how the sides differ besides their figures, as text: in the parameters that the user accepts (`across`),
    hardware, software, flags, protocol and machine."""
    texts = accepted_differences(before, after, across)
    for one in diff_environments(before.where, after.where):
        # a sweep that does not record its machine is not known to differ; the name of a protocol changes nothing
        is_unknown = one.kind == "machine" and None in (*one.before, *one.after)
        if not is_unknown and (one.kind, one.name) != ("protocol", "name"):
            name = {"protocol": f"protocol.{one.name}", "machine": one.label}.get(one.kind, one.name)
            texts.append(one.text(name, "→", "not set"))
    return texts


def software_changed(before: Side, after: Side) -> str | None:
    """Return the first software version of `after` that `before` did not have, as text."""
    for one in diff_environments(before.where, after.where):
        if one.kind == "software" and not set(one.after) <= set(one.before):
            return one.text(one.name, "→", "not set")
    return None
