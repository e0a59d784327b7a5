"""Differences between environments, and short names for the environments of a sweep.

With `python=` or `folder=` a sweep has several environments, whose flags hold the paths of
interpreter and folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from effbench.core.cell import Result

#: Setting -> the environment flag that holds it, which is also the name of its column.
FLAGS = {"python": "interpreter", "folder": "folder"}
#: Fields of a result that `labelled` may set.
COLUMNS = tuple(FLAGS.values())
#: Short name of a setting that was not given.
OWN = {"python": "own", "folder": "here"}
#: Columns of the view that describe an interpreter without its path.
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
#: Kinds of facts, in the order of their differences.
KINDS = ("hardware", "software", "flag", "protocol", "machine")
_PROTOCOL = {"name": "protocol"}
_HARDWARE = {"gpu_name": "GPU", "gpu_memory_bytes": "GPU memory"}
#: Facts that a sweep records about its machine -> their names in prose.
MACHINE = {"hostname": "host", "kernel": "kernel", "effbench": "effbench"}
#: A sweep (with `protocol` and `host`) and an environment in it.
Where = tuple[Mapping[str, Any], Mapping[str, Any]]


def hardware_of(environment: Mapping[str, Any]) -> str:
    """Return the name of the GPU, or of the CPU if there is no GPU."""
    name: str = environment["gpu_name"] or environment["cpu_name"]
    return name


@dataclass(frozen=True)
class Fact:
    """A fact about a sweep's machine and software. `kind`: one of KINDS; `label`: its name in
    prose."""

    kind: str
    name: str
    label: str

    def rank(self) -> tuple[int, str]:
        """Return the place among facts: kinds in their order, in which only flags and settings of
        the protocol are sorted, its name first."""
        is_sorted = self.kind in ("flag", "protocol") and self.name != "name"
        return KINDS.index(self.kind), self.name if is_sorted else ""


@dataclass(frozen=True)
class Difference(Fact):
    """A fact that differs between two sides. `before`, `after`: its values on each side, None if
    unknown."""

    before: tuple[Any, ...]
    after: tuple[Any, ...]

    def text(self, name: str, arrow: str, unset: str) -> str:
        """Return `torch 2.11 -> 2.13` with this name and arrow; `unset` replaces an unknown
        value."""
        before, after = (", ".join(texts(side, unset)) for side in (self.before, self.after))
        return f"{name} {before} {arrow} {after}"


def texts(values: Iterable[Any], unset: str) -> list[str]:
    return sorted({unset if value is None else str(value) for value in values})


def diff_environments(before: Sequence[Where], after: Sequence[Where]) -> list[Difference]:
    """Return all differences in hardware, software, flags, protocol and machine between two
    sides."""
    old = [facts_of(*where) for where in before]
    new = [facts_of(*where) for where in after]
    facts = dict.fromkeys(fact for known in (*old, *new) for fact in known)
    differences = []
    for fact in sorted(facts, key=Fact.rank):
        old_values = dict.fromkeys(known.get(fact) for known in old)
        new_values = dict.fromkeys(known.get(fact) for known in new)
        if set(map(str, old_values)) != set(map(str, new_values)):
            sides = tuple(old_values), tuple(new_values)
            differences.append(Difference(fact.kind, fact.name, fact.label, *sides))
    return differences


def facts_of(sweep: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[Fact, Any]:
    """Return fact -> value."""
    flags, protocol, host = environment["flags"] or {}, sweep["protocol"] or {}, sweep["host"] or {}
    facts: dict[Fact, Any] = {}
    for kind, names, values in (
        ("hardware", _HARDWARE, environment),
        ("software", SOFTWARE, environment),
        ("flag", {name: name for name in flags}, flags),
        ("protocol", {name: f"protocol {name}" for name in protocol} | _PROTOCOL, protocol),
        ("machine", MACHINE, host),
    ):
        for name, label in names.items():
            facts[Fact(kind, name, label)] = values.get(name)
    return facts


def changes_between(before: Where, after: Where) -> list[str]:
    """Return the differences between two points of a series as texts such as `torch 2.11 -> 2.13`.
    Interpreter and folder identify the series, so they are omitted."""
    diffs = diff_environments([before], [after])
    return [
        diff.text(diff.label, "->", "none")
        for diff in diffs
        if diff.kind != "flag" or diff.name not in COLUMNS
    ]


# --- names ---


def interpreter_of(environment: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return interpreter and folder of an environment, None if not given. Environments in which
    they are the same, such as nodes of a cluster, share the cells of a sweep."""
    flags = environment["flags"] or {}
    return tuple(flags.get(name) for name in COLUMNS)


def names_by(environments: Iterable[Mapping[str, Any]], by: str) -> dict[str, str]:
    """Return environment id -> short name of its interpreter (`by="python"`) or folder
    (`by="folder"`)."""
    paths = {row["id"]: (row["flags"] or {}).get(FLAGS[by]) for row in environments}
    return dict(zip(paths, short_names(list(paths.values()), OWN[by]), strict=True))


def labels(environments: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return environment id -> its short names as `interpreter` and `folder`, if needed to
    distinguish environments."""
    rows = list(environments)
    known = {row["id"]: tuple(row[name] for name in TELLING) for row in rows}
    added: dict[str, dict[str, str]] = {row["id"]: {} for row in rows}
    for by in ("folder", "python"):
        names = names_by(rows, by)
        more = {key: (*known[key], name) for key, name in names.items()}
        if len(set(names.values())) > 1 and len(set(more.values())) > len(set(known.values())):
            known = more
            added = {key: {**added[key], FLAGS[by]: name} for key, name in names.items()}
    return added


def labelled(rows: Iterable[Result], environments: Iterable[Mapping[str, Any]]) -> list[Result]:
    """Return results with these `labels`, so that tables and figures can distinguish them."""
    known = labels(environments)
    if not any(known.values()):
        return list(rows)
    named = []
    for row in rows:
        names: dict[str, Any] = known[row.environment_id]
        named.append(replace(row, **names))
    return named


def short_names(paths: Sequence[str | None], none: str) -> list[str]:
    """Return a short name that distinguishes each path: `a` and `b` for `/venvs/a/bin/python` and
    `/venvs/b/bin/python`. A single path is shortened to its last part, and None becomes `none`."""
    distinct = list(dict.fromkeys(path for path in paths if path is not None))
    folders = [environment_folder(PurePath(path)) for path in distinct]
    if len(set(folders)) < len(distinct):
        folders = list(map(PurePath, distinct))
    names: dict[str | None, str] = {None: none}
    for path, parts in zip(
        distinct, telling_parts([folder.parts for folder in folders]), strict=True
    ):
        names[path] = str(PurePath(*parts))
    return [names[path] for path in paths]


def environment_folder(interpreter: PurePath) -> PurePath:
    """Return the folder of a virtual environment, by which its interpreter is known; any other path
    as it is."""
    if interpreter.match("bin/python*"):
        return interpreter.parents[1]
    return interpreter


def telling_parts(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the parts of paths without those at the beginning and the end that all have in common;
    at least one part of each path remains."""
    first = count_shared(paths)
    reversed_ends = [parts[first:][::-1] for parts in paths]
    last = count_shared(reversed_ends)
    return [parts[first : len(parts) - last] for parts in paths]


def count_shared(paths: Sequence[tuple[str, ...]]) -> int:
    """Return how many leading parts all paths have in common, without the last part of any."""
    number = 0
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        number += 1
    return number
