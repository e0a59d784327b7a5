"""The two sides of a comparison: which cells belong together, whether they may be compared, and how they differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.analysis.interpreters import OWN
from effbench.analysis.row_labels import flatten
from effbench.analysis.screen import Pair, Side
from effbench.cell import digest
from effbench.errors import NothingFoundError, UsageError

#: What may differ only where the user says so; of the cell, and of the machine.
ACROSS = ("hardware", "dtype", "numerics")
ABOUT = ("model", "bs", "mode", "dtype", "phase", "device")
SOFTWARE = ("torch_version", "triton_version", "cuda_version", "driver_version", "python", "cpu_name", "platform")
#: What a sweep says of its machine, and what it is called; a sweep that does not say it differs from none in it.
MACHINE = {"hostname": "host", "kernel": "kernel", "effbench": "effbench"}
#: Parameters that a message tells.
MOST_NAMES = 3
#: Settings of a protocol that describe it and change nothing.
_NAMES = ("name",)


@dataclass
class Half:
    """One side: a sweep, or a part of one.

    `cells`: key -> its row (model, bs, mode, dtype, phase, device, params) in the order of the plan. `sides`: (key,
    environment id) -> what is known of it. `environments`: id -> row. `state` of its sweep says why cells may lack;
    `host`: what the sweep says of its machine.
    """

    title: str
    label: str | None
    cells: dict[str, Mapping[str, Any]]
    sides: dict[tuple[str, str], Side]
    environments: dict[str, Mapping[str, Any]]
    protocol: Mapping[str, Any] = field(default_factory=dict)
    state: str = "completed"
    host: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seats(self) -> dict[tuple, list[str]]:
        """Hardware and interpreter -> the environments there; a sweep that was resumed after an update has two."""
        found: dict[tuple, list[str]] = {}
        for key, row in self.environments.items():
            found.setdefault(seat_of(row), []).append(key)
        return found

    def within(self, environment_ids: Collection[str]) -> Half:
        """The part that was measured in these environments."""
        environments = {key: row for key, row in self.environments.items() if key in environment_ids}
        return replace(
            self, environments=environments, sides={k: v for k, v in self.sides.items() if k[1] in environments}
        )

    def side(self, key: str, environment_ids: Sequence[str]) -> Side | None:
        """Of several environments the last counts."""
        found = [self.sides[key, one] for one in environment_ids if (key, one) in self.sides]
        return found[-1] if found else None


def hardware_of(environment: Mapping[str, Any]) -> str:
    return environment["gpu_name"] or environment["cpu_name"]


def meant(text: str, names: Iterable[str]) -> list[str]:
    """Those of `names` (of hardware, say) that `text` means, whatever its case: in full or without the maker (`L4` is
    `NVIDIA L4`, not `NVIDIA L40S`); where no name is that, those that it is part of."""
    names, wanted = list(dict.fromkeys(names)), text.strip().lower()
    in_full = [name for name in names if name.lower() == wanted or name.lower().endswith(f" {wanted}")]
    return in_full or [name for name in names if wanted in name.lower()]


def seat_of(environment: Mapping[str, Any]) -> tuple[str, str | None, str | None]:
    """Hardware, and the interpreter and folder where they were chosen."""
    flags = environment["flags"] or {}
    return hardware_of(environment), flags.get("interpreter"), flags.get("folder")


def pairs_of(before: Half, after: Half, names: Mapping[str, str], across: Collection[str] = ()) -> list[Pair]:
    """Every cell of both halves, matched; `names`: key -> how a cell is called.

    Raises NothingFoundError where no cell is shared or the hardware differs, naming the difference, UsageError where it
    is not clear which environments belong together. `across`: differences that the user accepts, of ACROSS.
    """
    old_seat, new_seat = seats_together(before, after, across)
    partners = partners_of(before.cells, after.cells, across)
    hardware = new_seat[0][0]
    pairs = []
    for key, row in before.cells.items():
        other = partners.get(key)
        old = before.side(key, old_seat[1])
        new = after.side(other, new_seat[1]) if other else None
        if old is None and new is None:
            continue  # planned on both sides or one, measured on none: nothing is known of it
        why = None
        if new is None:
            why = "not in the plan" if other is None else f"planned, not measured: the sweep is {after.state}"
        elif old is None:
            why = f"not measured before: that sweep is {before.state}"
        pairs.append(Pair(key, names[key], about_of(row, hardware, after.cells.get(other)), old, new, why))
    known = set(partners.values())
    for key, row in after.cells.items():
        new = after.side(key, new_seat[1])
        if key not in known and new is not None:
            pairs.append(Pair(key, names[key], about_of(row, hardware), None, new))
    if not any(pair.before and pair.after for pair in pairs):
        raise NothingFoundError(nothing_shared(before, after, across))
    return pairs


def about_of(row: Mapping[str, Any], hardware: str, partner: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What exceptions are tied to. `after`: what of it the other side's cell has otherwise, where it is another one."""
    otherwise = {name: partner[name] for name in ABOUT if partner[name] != row[name]} if partner else {}
    about = {**{name: row[name] for name in ABOUT}, "hardware": hardware}
    return about | ({"after": otherwise} if otherwise else {})


def seats_together(before: Half, after: Half, across: Collection[str]) -> tuple[tuple, tuple]:
    """The (seat, environment ids) of both sides that are compared. Raises as `pairs_of`."""
    old, new = before.seats, after.seats
    for half, seats in ((before, old), (after, new)):
        if not seats:
            raise NothingFoundError(f"{half.title} has no trial yet: there is nothing to compare")
    shared = [seat for seat in old if seat in new]
    if len(shared) == 1:
        return (shared[0], old[shared[0]]), (shared[0], new[shared[0]])
    if shared:
        raise UsageError(f"both sides ran on {len(shared)} kinds of hardware or interpreters: {said(shared)}; "
                         "choose one with --on")  # fmt: skip
    if len(old) > 1 or len(new) > 1:
        which, seats = (before, old) if len(old) > 1 else (after, new)
        raise UsageError(
            f"{which.title} ran on {len(seats)} kinds of hardware or interpreters: {said(seats)}; choose one with "
            "--on, or take its halves: effbench compare SWEEP --by python"
        )
    (one, old_ids), (other, new_ids) = next(iter(old.items())), next(iter(new.items()))
    if one[0] != other[0] and "hardware" not in across:
        raise NothingFoundError(
            f"not comparable: {one[0]} against {other[0]}; --across hardware compares them all the same"
        )
    return (one, old_ids), (other, new_ids)


def seated(before: Half, after: Half, across: Collection[str] = ()) -> tuple[Half, Half]:
    """Both sides without the environments that are not compared. Raises as `pairs_of`."""
    chosen = seats_together(before, after, across)
    return tuple(half.within(ids) for half, (_, ids) in zip((before, after), chosen, strict=True))


def said(seats: Iterable[tuple], among: Iterable[tuple] = ()) -> str:
    """Seats as text; an interpreter or folder that was not chosen has a name where another one was, on the same
    hardware, here or `among` all there are."""
    seats = list(seats)
    every = [*seats, *among]

    def name(seat: tuple, place: int, own: str) -> str | None:
        beside = any(other[place] for other in every if other[0] == seat[0])
        return seat[place] or (own if beside else None)

    texts = [[seat[0], *(name(seat, place, own) for place, own in enumerate(OWN.values(), 1))] for seat in seats]
    return ", ".join(" ".join(part for part in parts if part) for parts in texts)


def partners_of(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]], across: Collection[str]
) -> dict[str, str]:
    """Key before -> key after: the same cell, or, of what is left, one that differs in nothing but `across`."""
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


def without(params: Any, names: Collection[str]) -> str:
    """Hash of a cell but for these parameters (dotted)."""
    flat = flatten(json.loads(params) if isinstance(params, str) else params)
    kept = {key: value for key, value in flat.items() if not any(key == n or key.startswith(f"{n}.") for n in names)}
    return digest({key: kept[key] for key in sorted(kept)})


def nothing_shared(before: Half, after: Half, across: Collection[str]) -> str:
    """Why there is nothing to compare: what the cells differ in, if it is one of ACROSS."""
    for name in () if partners_of(before.cells, after.cells, across) else ("dtype", "numerics"):
        if name not in across and partners_of(before.cells, after.cells, [*across, name]):
            old, new = ({value_of(row, name) for row in half.cells.values()} for half in (before, after))
            differ = f"{', '.join(sorted(old))} against {', '.join(sorted(new))}"
            return f"not comparable: the cells differ in {name} ({differ}); --across {name} compares them all the same"
    apart = values_apart(before.cells.values(), after.cells.values())
    more = f": all differ in {', '.join(apart[:MOST_NAMES])}{', …' * (len(apart) > MOST_NAMES)}" if apart else ""
    return f"nothing comparable: no cell was measured in both {before.title} and {after.title}{more}"


def values_apart(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[str]:
    """The parameters in which every cell of one side differs from every cell of the other, with one value of each."""
    old, new = ([flatten(params_of(row)) for row in rows] for rows in (before, after))
    told = []
    for name in dict.fromkeys(
        name for params in [*old, *new] for name in params if name.rpartition(".")[2] != "_target_"
    ):
        sides = [list(dict.fromkeys(params.get(name) for params in side)) for side in (old, new)]
        if set(sides[0]).isdisjoint(sides[1]):
            first, second = ("not set" if values[0] is None else str(values[0]) for values in sides)
            told.append(f"{name} ({first} against {second})")
    return told


def params_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return json.loads(row["params"]) if isinstance(row["params"], str) else row["params"]


def value_of(row: Mapping[str, Any], name: str) -> str:
    value = params_of(row).get(name)
    return " ".join(f"{key}={item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)


def differences(before: Half, after: Half) -> list[str]:
    """What else differs between the two sides, to be told above the figures: software, flags, protocol, machine."""
    told = []
    for name in ("gpu_name", *SOFTWARE):
        told += [differs(name, *({one[name] for one in half.environments.values()} for half in (before, after)))]
    old, new = (flags_of(half) for half in (before, after))
    told += [differs(name, [old.get(name)], [new.get(name)]) for name in sorted(old.keys() | new.keys())]
    names = [name for name in {**before.protocol, **after.protocol} if name not in _NAMES]
    told += [differs(f"protocol.{name}", [before.protocol.get(name)], [after.protocol.get(name)]) for name in names]
    known = [name for name in MACHINE if None not in (before.host.get(name), after.host.get(name))]
    told += [differs(MACHINE[name], [before.host[name]], [after.host[name]]) for name in known]
    return [text for text in told if text]


def accepted(before: Half, after: Half, across: Collection[str]) -> list[str]:
    """What of `across` the cells that are compared differ in, to be told above the figures as well."""
    partners = partners_of(before.cells, after.cells, across)
    pairs = [(before.cells[key], after.cells[other]) for key, other in partners.items() if key != other]
    old, new = ([flatten(params_of(row)) for row in rows] for rows in (zip(*pairs, strict=True) if pairs else ((), ())))
    names = [
        name
        for name in dict.fromkeys(name for params in [*old, *new] for name in params)
        if any(one.get(name) != other.get(name) for one, other in zip(old, new, strict=True))
    ]
    told = [differs(name, *([params.get(name) for params in side] for side in (old, new))) for name in names]
    return [text for text in told if text]


def flags_of(half: Half) -> dict[str, str]:
    return {name: value for one in half.environments.values() for name, value in (one["flags"] or {}).items()}


def differs(name: str, before: Iterable[Any], after: Iterable[Any]) -> str | None:
    before, after = ({"not set" if value is None else str(value) for value in side} for side in (before, after))
    if before == after:
        return None
    return f"{name} {', '.join(sorted(before))} → {', '.join(sorted(after))}"
