"""What distinguishes environments: how two of them differ, and short names for those of one sweep.

With `python=` or `folder=` a sweep has several; their flags hold the paths of interpreter and working directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

#: Setting -> the flag of the environment that holds it, and the name of its column.
FLAGS = {"python": "interpreter", "folder": "folder"}
#: What `labelled` may add to a row.
COLUMNS = tuple(FLAGS.values())
#: Stands for a setting that was not given.
OWN = {"python": "own", "folder": "here"}
#: Columns of the view that describe an interpreter other than by its path.
TELLING = ("gpu_name", "torch_version", "python")
#: Column of an environment -> its name in prose.
SOFTWARE = {
    "torch_version": "torch",
    "triton_version": "Triton",
    "cuda_version": "CUDA",
    "driver_version": "driver",
    "python": "Python",
    "cpu_name": "CPU",
    "platform": "platform",
}
_HARDWARE = {"gpu_name": "GPU", "gpu_memory_bytes": "GPU memory"}
#: What a sweep records of its machine.
MACHINE = {"hostname": "host", "kernel": "kernel", "effbench": "effbench"}
#: A sweep (with `protocol` and `host`) and an environment in it.
Where = tuple[Mapping[str, Any], Mapping[str, Any]]


def hardware_of(environment: Mapping[str, Any]) -> str:
    """Return the name of the GPU, without one that of the CPU."""
    return environment["gpu_name"] or environment["cpu_name"]


class Difference(NamedTuple):
    """A fact with another value on each side. `kind`: hardware, software, flag, protocol or machine; `label`: the name
    of it in prose; `before`, `after`: its values, None if unknown."""

    kind: str
    name: str
    label: str
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    def text(self, name: str, arrow: str, unset: str) -> str:
        """Return `torch 2.11 -> 2.13` for these choices of words."""
        sides = (
            ", ".join(sorted({unset if value is None else str(value) for value in side}))
            for side in (self.before, self.after)
        )
        return f"{name} {f' {arrow} '.join(sides)}"


def diff_environments(before: Sequence[Where], after: Sequence[Where]) -> list[Difference]:
    """Return every difference in hardware, software, flags, protocol and machine between two sides."""
    sides = [[_facts(*where) for where in side] for side in (before, after)]
    kinds = ("hardware", "software", "flag", "protocol", "machine")

    def place(fact: tuple[str, str, str]) -> tuple:
        kind, name, _ = fact
        return kinds.index(kind), (name != "name", name) if kind in ("flag", "protocol") else ()

    found = []
    for fact in sorted(dict.fromkeys(fact for side in sides for facts in side for fact in facts), key=place):
        values = [tuple(dict.fromkeys(facts.get(fact) for facts in side)) for side in sides]
        if set(map(str, values[0])) != set(map(str, values[1])):
            found.append(Difference(*fact, *values))
    return found


def _facts(sweep: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[tuple[str, str, str], Any]:
    """Return (kind, name, label) -> value."""
    flags, protocol, host = environment["flags"] or {}, sweep["protocol"] or {}, sweep["host"] or {}
    facts = {("hardware", name, label): environment.get(name) for name, label in _HARDWARE.items()}
    facts |= {("software", name, label): environment.get(name) for name, label in SOFTWARE.items()}
    facts |= {("flag", name, name): value for name, value in flags.items()}
    facts |= {("protocol", name, f"protocol {name}"): v for name, v in protocol.items() if name != "name"}
    facts |= {("protocol", "name", "protocol"): protocol.get("name")}
    return facts | {("machine", name, label): host.get(name) for name, label in MACHINE.items()}


def changes_between(before: Where, after: Where) -> list[str]:
    """Return one text a difference of two points of a series, such as `torch 2.11 -> 2.13`. Interpreter and folder are
    part of the series."""
    found = diff_environments([before], [after])
    return [one.text(one.label, "->", "none") for one in found if one.kind != "flag" or one.name not in COLUMNS]


def separating(low: Sequence[Where], high: Sequence[Where]) -> list[str]:
    """Return what is never the same on both levels of a series, such as `host a | b`."""
    apart = [
        one
        for one in diff_environments(low, high)
        if {str(value or "none") for value in one.before}.isdisjoint(str(value or "none") for value in one.after)
        and (one.kind in ("hardware", "software") or one.name in ("hostname", "name"))
    ]
    apart.sort(key=lambda one: (one.kind != "machine", one.kind == "protocol"))
    return [one.text(one.label, "|", "none") for one in apart]


# --- names ---


def names_by(environments: Iterable[Mapping[str, Any]], by: str) -> dict[str, str]:
    """Return environment id -> short name of its interpreter (`by` is python) or folder (`by` is folder)."""
    paths = {row["id"]: (row["flags"] or {}).get(FLAGS[by]) for row in environments}
    return dict(zip(paths, short_names(list(paths.values()), OWN[by]), strict=True))


def labels(environments: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return environment id -> its short names as `interpreter` and `folder`, each only if the versions alone do not
    distinguish the environments."""
    rows = list(environments)
    known = {row["id"]: tuple(row[name] for name in TELLING) for row in rows}
    added: dict[str, dict[str, str]] = {row["id"]: {} for row in rows}
    for by in ("folder", "python"):
        names = names_by(rows, by)
        more = {one: (*known[one], name) for one, name in names.items()}
        if len(set(names.values())) > 1 and len(set(more.values())) > len(set(known.values())):
            known = more
            added = {one: {**added[one], FLAGS[by]: name} for one, name in names.items()}
    return added


def labelled(rows: Iterable[dict[str, Any]], environments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the view with `labels` as further columns, by which tables and figures distinguish them."""
    known = labels(environments)
    return [row | known.get(row["environment_id"], {}) for row in rows]


def short_names(paths: Sequence[str | None], none: str) -> list[str]:
    """Return what tells each path from the others: of `/venvs/a/bin/python` and `/venvs/b/bin/python` `a` and `b`, of
    one path alone its last part. `none` stands for None."""
    whole = {path: PurePath(path) for path in paths if path is not None}
    # an interpreter is known by the folder of its virtual environment
    roots = {path: one.parents[1] if one.match("bin/python*") else one for path, one in whole.items()}
    parts = {path: one.parts for path, one in (roots if len(set(roots.values())) == len(whole) else whole).items()}
    if len(parts) == 1:
        parts = {path: one[-1:] for path, one in parts.items()}
    for end, kept in ((0, slice(1, None)), (-1, slice(None, -1))):  # drop what all begin with, then what all end with
        while min(map(len, parts.values()), default=0) > 1 and len({one[end] for one in parts.values()}) == 1:
            parts = {path: one[kept] for path, one in parts.items()}
    return [none if path is None else str(PurePath(*parts[path])) for path in paths]
