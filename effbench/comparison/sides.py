"""The two sides of a comparison: read, matched cell by cell, and how they differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.cell import digest
from effbench.comparison.verdicts import Pair
from effbench.environments import FLAGS, OWN, Difference, diff_environments, names_by
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import flatten
from effbench.store.sides import CellResult
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: What may differ only if the user says so: of the cell, and of the machine.
ACROSS = ("hardware", "dtype", "numerics")
ABOUT = ("model", "bs", "mode", "dtype", "phase", "device")
#: What `--by` takes besides the parameters of cells.
BY_ENVIRONMENT = ("python", "folder", "torch_version", "triton_version", "driver_version", "cuda_version", "gpu_name")
#: Parameters that a message names.
MOST_NAMES = 3
#: Hardware, and the interpreter and folder if they were chosen.
Machine = tuple[str, str | None, str | None]


@dataclass
class Side:
    """A sweep, or a part of one.

    `cells`: key -> its row (model, bs, mode, dtype, phase, device, params) in the order of the plan. `results`: (key,
    environment id) -> its result. `environments`: id -> row. `state` of its sweep explains missing cells; `host`: what
    the sweep records of its machine.
    """

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
        results = {key: result for key, result in self.results.items() if key[1] in environments}
        return replace(self, environments=environments, results=results)

    def result(self, key: str) -> CellResult | None:
        """Return the cell's result; the last one if it has several environments."""
        found = [self.results[key, one] for one in self.environments if (key, one) in self.results]
        return found[-1] if found else None

    @property
    def where(self) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Sweep and environment, for each environment."""
        return [({"protocol": self.protocol, "host": self.host}, row) for row in self.environments.values()]


def load(store: Store, info: SweepInfo) -> Side:
    """Return a sweep as one side of a comparison."""
    cells = {cell.key: cell._asdict() for cell in store.planned_cells(info.id)}
    # in the order in which the user gave them, if the sweep records it
    order = list(info.host.get("environments") or ())
    rows = sorted(store.environments_of(info.id), key=lambda row: order.index(row["id"]) if row["id"] in order else -1)
    environments = {row["id"]: row for row in rows}
    name = f" ({info.name})" if info.name else ""
    return Side(
        f"{info.id}{name}", info.label, cells, store.sides(info.id), environments, info.protocol, info.state, info.host
    )


# --- machines ---


def hardware_of(environment: Mapping[str, Any]) -> str:
    return environment["gpu_name"] or environment["cpu_name"]


def machine_of(environment: Mapping[str, Any]) -> Machine:
    flags = environment["flags"] or {}
    return hardware_of(environment), flags.get("interpreter"), flags.get("folder")


def matching(text: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` (of hardware, say) that `text` means, ignoring case: in full or without the maker (`L4`
    is `NVIDIA L4`, not `NVIDIA L40S`); if there is none, those that contain it."""
    names, wanted = list(dict.fromkeys(names)), text.strip().lower()
    in_full = [name for name in names if name.lower() == wanted or name.lower().endswith(f" {wanted}")]
    return in_full or [name for name in names if wanted in name.lower()]


def machine_names(machines: Iterable[Machine], among: Iterable[Machine] = ()) -> str:
    """Return machines as text. An interpreter or folder that was not chosen is named if another one was chosen on the
    same hardware, here or `among` all."""
    machines = list(machines)
    every = [*machines, *among]

    def name(machine: Machine, place: int, own: str) -> str | None:
        chosen = any(other[place] for other in every if other[0] == machine[0])
        return machine[place] or (own if chosen else None)

    texts = [[one[0], *(name(one, place, own) for place, own in enumerate(OWN.values(), 1))] for one in machines]
    return ", ".join(" ".join(part for part in parts if part) for parts in texts)


def chosen_on(sides: Sequence[Side], on: str | None, across: Collection[str] = ()) -> list[Side]:
    """Return the sides, each limited to the environments that `on` names if it has any. Raises NothingFoundError if it
    names nothing, or hardware that one side did not run on (unless the user compares `across` it)."""
    if on is None:
        return list(sides)

    def names(row: Mapping[str, Any]) -> set[str]:
        chosen = {(row["flags"] or {}).get(flag) or OWN[by] for by, flag in FLAGS.items()}
        return {hardware_of(row), row["torch_version"], *chosen} - {None}

    rows = [row for side in sides for row in side.environments.values()]
    wanted = matching(on, (name for row in rows for name in names(row)))
    fitting = [[key for key, row in side.environments.items() if not names(row).isdisjoint(wanted)] for side in sides]
    if not any(fitting):
        titles = " nor ".join(side.title for side in sides)
        there = machine_names(dict.fromkeys(machine_of(row) for row in rows))
        raise NothingFoundError(f"{titles}: no trial on {on!r}; there is {there or 'none at all'}")
    lacking = [side for side, ids in zip(sides, fitting, strict=True) if not ids]
    if lacking and "hardware" not in across and not {hardware_of(row) for row in rows}.isdisjoint(wanted):
        own = ", ".join(dict.fromkeys(hardware_of(row) for row in lacking[0].environments.values()))
        raise NothingFoundError(f"{lacking[0].title} has no trial on {on!r}; it ran on {own or 'nothing yet'}")
    return [side.within(ids) if ids else side for side, ids in zip(sides, fitting, strict=True)]


def on_one_machine(before: Side, after: Side, across: Collection[str] = ()) -> tuple[Side, Side]:
    """Return both sides without the environments that are not compared.

    Raises NothingFoundError if a side has no trial or the hardware differs, UsageError if it is ambiguous which
    environments belong together. `across`: differences that the user accepts, of ACROSS.
    """
    old, new = before.machines, after.machines
    for side, machines in ((before, old), (after, new)):
        if not machines:
            raise NothingFoundError(f"{side.title} has no trial yet: there is nothing to compare")
    shared = [machine for machine in old if machine in new]
    if len(shared) > 1:
        raise UsageError(
            f"both sides ran on {len(shared)} kinds of hardware or interpreters: {machine_names(shared)}; "
            "choose one with --on"
        )
    for side, machines in ((before, old), (after, new)):
        if not shared and len(machines) > 1:
            raise UsageError(
                f"{side.title} ran on {len(machines)} kinds of hardware or interpreters: {machine_names(machines)}; "
                "choose one with --on, or compare its parts: effbench compare SWEEP --by python"
            )
    one, other = (shared * 2) or (next(iter(old)), next(iter(new)))
    if one[0] != other[0] and "hardware" not in across:
        raise NothingFoundError(f"not comparable: {one[0]} against {other[0]}; --across hardware compares them anyway")
    return before.within(old[one]), after.within(new[other])


# --- parts of one sweep ---


def split(whole: Side, by: str) -> dict[str, Side]:
    """Return value of `by` -> the part of the sweep that has it. Raises UsageError for an unknown parameter."""
    return _by_environment(whole, by) if by in BY_ENVIRONMENT else _by_parameter(whole, by)


def _by_environment(whole: Side, by: str) -> dict[str, Side]:
    flagged = any((row["flags"] or {}).get("interpreter") for row in whole.environments.values())
    # if no interpreter was chosen at all, the version of Python distinguishes them
    named = names_by(whole.environments.values(), by) if by == "folder" or (by == "python" and flagged) else {}
    groups: dict[str, list[str]] = {}
    for key, row in whole.environments.items():
        groups.setdefault(named.get(key) or str(row[by]), []).append(key)
    parts = {value: whole.within(ids) for value, ids in groups.items()}
    for value, side in parts.items() if by == "folder" else ():
        for key in groups[value]:  # the sweep's label is that of one folder
            facts = (whole.host.get("environments") or {}).get(key) or {}
            side.label = facts.get("git_description") or side.label
    return parts


def _by_parameter(whole: Side, by: str) -> dict[str, Side]:
    """The cells with each value, under keys that omit it, in the order of the plan."""
    found: dict[str, Side] = {}
    for key, value in parameter_names(whole.cells, by).items():
        side = found.setdefault(value, replace(whole, cells={}, results={}))
        shared = without(whole.cells[key]["params"], [by])
        side.cells[shared] = whole.cells[key]
        for environment in whole.environments:
            if (key, environment) in whole.results:
                side.results[shared, environment] = whole.results[key, environment]
    if not found:
        raise UsageError(
            f"no cell of {whole.title} has a parameter {by!r}; environments differ in {', '.join(BY_ENVIRONMENT)}"
        )
    return found


def parameter_names(cells: Mapping[str, Mapping[str, Any]], by: str) -> dict[str, str]:
    """Return cell key -> its value of a parameter as text, for the cells that have it. A value with a name (a mode) is
    called by it, with its other settings if two share the name."""
    values = {}
    for key, row in cells.items():
        params = row["params"]
        value = params[by] if by in params else flatten(params).get(by, params)
        if value is not params:
            values[key] = value
    variants: dict[str, set[str]] = {}
    for value in values.values():
        if isinstance(value, Mapping) and "name" in value:
            variants.setdefault(str(value["name"]), set()).add(str(value))

    def text(value: Any) -> str:
        if not (isinstance(value, Mapping) and "name" in value):
            return str(value)
        rest = {name: item for name, item in value.items() if name not in ("name", "description", "_target_")}
        return str(value["name"]) if len(variants[str(value["name"])]) == 1 else f"{value['name']} {rest}"

    return {key: text(value) for key, value in values.items()}


# --- cells ---


def pairs_of(before: Side, after: Side, names: Mapping[str, str], across: Collection[str] = ()) -> list[Pair]:
    """Return every cell of both sides, matched; `names`: key -> name of a cell. The sides are `on_one_machine`.

    Raises NothingFoundError, which names the difference, if no cell was measured on both.
    """
    partners = partners_of(before.cells, after.cells, across)
    hardware = next(iter(after.machines))[0]
    pairs = []
    for key, row in before.cells.items():
        other = partners.get(key)
        old, new = before.result(key), after.result(other) if other else None
        if old is None and new is None:
            continue  # planned on a side, measured on none
        why = None
        if new is None:
            why = "not in the plan" if other is None else f"planned, not measured: the sweep is {after.state}"
        elif old is None:
            why = f"not measured before: that sweep is {before.state}"
        pairs.append(Pair(key, names[key], about_of(row, hardware, after.cells.get(other)), old, new, why))
    known = set(partners.values())
    for key, row in after.cells.items():
        if key not in known and (new := after.result(key)) is not None:
            pairs.append(Pair(key, names[key], about_of(row, hardware), None, new))
    if not any(pair.before and pair.after for pair in pairs):
        raise NothingFoundError(nothing_shared(before, after, across))
    return pairs


def about_of(row: Mapping[str, Any], hardware: str, partner: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what exceptions match. `after`: how the other side's cell differs, if it is another one."""
    about = {name: row[name] for name in ABOUT}
    other = {name: partner[name] for name in ABOUT if partner[name] != row[name]} if partner else {}
    return {**about, "hardware": hardware, **({"after": other} if other else {})}


def partners_of(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]], across: Collection[str]
) -> dict[str, str]:
    """Return key before -> key after: the same cell, else one that differs in nothing but `across`."""
    found = {key: key for key in before if key in after}
    dropped = [name for name in across if name in ("dtype", "numerics")]
    if dropped:
        left: dict[str, str] = {}
        for key, row in after.items():
            if key not in found:
                left.setdefault(without(row["params"], dropped), key)
        for key, row in before.items():
            if key not in found and (other := left.pop(without(row["params"], dropped), None)):
                found[key] = other
    return found


def without(params: Mapping[str, Any] | str, names: Collection[str]) -> str:
    """Return the key of a cell that does not have these parameters, nor what lies below them."""
    flat = flatten(json.loads(params) if isinstance(params, str) else params)
    kept = {
        name: value
        for name, value in flat.items()
        if not any(name == dropped or name.startswith(f"{dropped}.") for dropped in names)
    }
    return digest(dict(sorted(kept.items())))


def nothing_shared(before: Side, after: Side, across: Collection[str]) -> str:
    """Explain why there is nothing to compare: what the cells differ in, if it is one of ACROSS."""
    old, new = (
        [flatten(params_of(row)) | {"numerics": as_text(params_of(row).get("numerics"))} for row in side.cells.values()]
        for side in (before, after)
    )
    for name in () if partners_of(before.cells, after.cells, across) else ("dtype", "numerics"):
        if name not in across and partners_of(before.cells, after.cells, [*across, name]):
            differ = " against ".join(", ".join(sorted({str(row.get(name)) for row in side})) for side in (old, new))
            return f"not comparable: the cells differ in {name} ({differ}); --across {name} compares them anyway"
    names = (name for row in [*old, *new] for name in row if name != "numerics" and not name.endswith("_target_"))
    apart = []
    for name in dict.fromkeys(names):
        values = [list(dict.fromkeys(row.get(name) for row in side)) for side in (old, new)]
        if set(values[0]).isdisjoint(values[1]):
            first, second = ("not set" if side[0] is None else str(side[0]) for side in values)
            apart.append(f"{name} ({first} against {second})")
    more = f": all differ in {', '.join(apart[:MOST_NAMES])}{', …' * (len(apart) > MOST_NAMES)}" if apart else ""
    return f"nothing comparable: no cell was measured in both {before.title} and {after.title}{more}"


def params_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return json.loads(row["params"]) if isinstance(row["params"], str) else row["params"]


def as_text(value: Any) -> str:
    return " ".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)


def differences(before: Side, after: Side, across: Collection[str]) -> list[str]:
    """Return how the sides differ besides their figures, as text: in the parameters that the user accepts (`across`),
    hardware, software, flags, protocol and machine."""
    partners = partners_of(before.cells, after.cells, across)
    pairs = [
        (flatten(params_of(before.cells[key])), flatten(params_of(after.cells[other])))
        for key, other in partners.items()
        if key != other
    ]
    told = []
    for name in dict.fromkeys(name for pair in pairs for params in pair for name in params):
        values = [tuple(params.get(name) for params in side) for side in zip(*pairs, strict=True)]
        if values[0] != values[1] and {*map(str, values[0])} != {*map(str, values[1])}:
            told.append(Difference("parameter", name, name, *values).text(name, "→", "not set"))
    for one in diff_environments(before.where, after.where):
        # a sweep that does not record its machine differs from none in it; a name alone changes nothing
        unknown = one.kind == "machine" and None in (*one.before, *one.after)
        if not unknown and (one.kind, one.name) != ("protocol", "name"):
            name = {"protocol": f"protocol.{one.name}", "machine": one.label}.get(one.kind, one.name)
            told.append(one.text(name, "→", "not set"))
    return told


def software_changed(before: Side, after: Side) -> str | None:
    """Return the first software version of `after` that `before` did not have, as text."""
    for one in diff_environments(before.where, after.where):
        if one.kind == "software" and not set(one.after) <= set(one.before):
            return one.text(one.name, "→", "not set")
    return None
