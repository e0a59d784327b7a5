"""What distinguishes environments: how two of them differ, and short names for those of one sweep.

With `python=` or `folder=` a sweep has several environments; their flags hold the path of the interpreter
(`interpreter`) and its working directory (`folder`). Standard library only.
"""

from __future__ import annotations

import re
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
    sides = (_facts(before), _facts(after))
    names = dict.fromkeys(name for side in sides for facts in side for name in facts)
    kinds = ("hardware", "software", "flag", "protocol", "machine")
    found = []
    for kind, name, label in sorted(names, key=lambda one: (kinds.index(one[0]), one[1] if one[0] == "flag" else "")):
        values = [tuple(dict.fromkeys(facts.get((kind, name, label)) for facts in side)) for side in sides]
        if {str(value) for value in values[0]} != {str(value) for value in values[1]}:
            found.append(Difference(kind, name, label, *values))
    return found


def _facts(side: Sequence[Where]) -> list[dict[tuple[str, str, str], Any]]:
    """(kind, name, label) -> value, for each environment of a side."""
    found = []
    for sweep, environment in side:
        facts = {("hardware", name, label): environment.get(name) for name, label in _HARDWARE.items()}
        facts |= {("software", name, label): environment.get(name) for name, label in SOFTWARE.items()}
        facts |= {("flag", name, name): value for name, value in sorted((environment["flags"] or {}).items())}
        protocol = sweep["protocol"] or {}
        facts |= {
            ("protocol", name, "protocol" if name == "name" else f"protocol {name}"): value
            for name, value in sorted(protocol.items(), key=lambda item: (item[0] != "name", item[0]))
        }
        host = sweep["host"] or {}
        facts |= {("machine", name, label): host.get(name) for name, label in MACHINE.items()}
        found.append(facts)
    return found


def changes_between(before: Where, after: Where) -> list[str]:
    """Return one text a difference of two points of a series, such as `torch 2.11 -> 2.13`."""
    return [
        one.text(one.label, "->", "none")
        for one in diff_environments([before], [after])
        # interpreter and folder are part of the series
        if not (one.kind == "flag" and one.name in COLUMNS)
    ]


def separating(low: Sequence[Where], high: Sequence[Where]) -> list[str]:
    """Return what is never the same on both levels of a series, such as `host a | b`."""
    apart = [
        one
        for one in diff_environments(low, high)
        if not {str(value or "none") for value in one.before} & {str(value or "none") for value in one.after}
        and (one.kind in ("hardware", "software") or one.name in ("hostname", "name"))
    ]  # fmt: skip
    apart.sort(key=lambda one: (one.kind != "machine", one.kind == "protocol"))
    return [one.text(one.label, "|", "none") for one in apart]


# --- names ---


def names_by(environments: Iterable[Mapping[str, Any]], by: str) -> dict[str, str]:
    """Return environment id -> short name of its interpreter (`by` is python) or folder (`by` is folder)."""
    rows = list(environments)
    paths = [(row["flags"] or {}).get(FLAGS[by]) for row in rows]
    return dict(zip((row["id"] for row in rows), short_names(paths, OWN[by]), strict=True))


def labels(environments: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return environment id -> its short names as `interpreter` and `folder`, each only if the versions alone do not
    distinguish the environments."""
    rows = list(environments)
    told = {row["id"]: tuple(row[name] for name in TELLING) for row in rows}
    added: dict[str, dict[str, str]] = {}
    for by in ("folder", "python"):
        names = names_by(rows, by)
        more = {one: (*told[one], name) for one, name in names.items()}
        asked = {(row["flags"] or {}).get(FLAGS[by]) for row in rows}
        if len(asked) > 1 and len(set(more.values())) > len(set(told.values())):
            told = more
            added[FLAGS[by]] = names
    return {row["id"]: {flag: names[row["id"]] for flag, names in added.items()} for row in rows}


def labelled(rows: Iterable[dict[str, Any]], environments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the view with `labels` as further columns, by which tables and figures distinguish them."""
    known = labels(environments)
    return [row | known.get(row["environment_id"], {}) for row in rows]


def short_names(paths: Sequence[str | None], none: str) -> list[str]:
    """The shortest part of each path that tells it from the others: of `/venvs/a/bin/python` and `/venvs/b/bin/python`
    `a` and `b`. `none` stands for None."""
    distinct = list(dict.fromkeys(path for path in paths if path is not None))
    parts = [PurePath(path).parts for path in distinct]
    for shorten in (_root_of_python, tuple):
        candidates: list[tuple[str, ...]] = [shorten(one) for one in parts]
        if len(set(candidates)) == len(parts):
            break
    while len(candidates) > 1 and all(len(one) > 2 for one in candidates) and len({one[-1] for one in candidates}) == 1:
        candidates = [one[:-1] for one in candidates]
    names = {path: str(PurePath(*_telling(one, candidates))) for path, one in zip(distinct, candidates, strict=True)}
    return [none if path is None else names[path] for path in paths]


def _root_of_python(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The environment's folder of an interpreter in its `bin`; other paths as they are."""
    is_python = len(parts) > 3 and parts[-2] == "bin" and re.fullmatch(r"python[\d.]*", parts[-1])
    return parts[:-2] if is_python else parts


def _telling(own: tuple[str, ...], all_parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """As many of its last parts as no other ends with; all where one is the end of another."""
    for count in range(1, len(own)):
        if sum(one[-count:] == own[-count:] for one in all_parts) == 1:
            return own[-count:]
    return own
