"""Differences between environments, and short names for the environments of a sweep.

With `python=` or `folder=` a sweep has several environments, whose flags hold the paths of
interpreter and folder.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, TypeVar

from effbench.core.cell import Conditions, Result, StoredEnvironment

Key = TypeVar("Key", bound=Hashable)
#: Setting -> the environment flag that holds it, which is also the name of its column.
FLAGS = {"python": "interpreter", "folder": "folder"}
#: Short name of a setting that was not given.
OWN = {"python": "own", "folder": "here"}
#: Field of an environment -> its name in prose.
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
#: Kind -> its facts with their names in prose; those of the machine are recorded by a sweep.
LABELS = {
    "hardware": {"gpu_name": "GPU", "gpu_memory_bytes": "GPU memory"},
    "software": SOFTWARE,
    "machine": {"hostname": "host", "kernel": "kernel", "effbench": "effbench"},
}


@dataclass(frozen=True)
class Difference:
    """A fact about a sweep's machine and software that differs between two sides. `kind`: one of
    KINDS; `label`: its name in prose; `before`, `after`: its values on each side, None if
    unknown."""

    kind: str
    name: str
    label: str
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    def text(self, name: str, arrow: str, unset: str) -> str:
        """Return `torch 2.11 -> 2.13` with this name and arrow; `unset` replaces an unknown
        value."""
        texts = []
        for values in (self.before, self.after):
            distinct = {unset if value is None else str(value) for value in values}
            texts.append(", ".join(sorted(distinct)))
        return f"{name} {texts[0]} {arrow} {texts[1]}"


def diff_conditions(before: Sequence[Conditions], after: Sequence[Conditions]) -> list[Difference]:
    """Return all differences in hardware, software, flags, protocol and machine between two
    sides."""
    differences = []
    for kind in KINDS:
        old = [facts_of(conditions, kind) for conditions in before]
        new = [facts_of(conditions, kind) for conditions in after]
        for name, label in labels_of(kind, set[str]().union(*old, *new)).items():
            old_values = tuple(dict.fromkeys(known.get(name) for known in old))
            new_values = tuple(dict.fromkeys(known.get(name) for known in new))
            if set(map(str, old_values)) != set(map(str, new_values)):
                differences.append(Difference(kind, name, label, old_values, new_values))
    return differences


def facts_of(conditions: Conditions, kind: str) -> Mapping[str, Any]:
    """Return the facts of this kind, and others, by name."""
    if kind == "flag":
        return conditions.environment.flags
    if kind == "protocol":
        return conditions.protocol
    if kind == "machine":
        return conditions.host
    return vars(conditions.environment)


def labels_of(kind: str, names: Set[str]) -> Mapping[str, str]:
    """Return name -> name in prose of the facts of this kind, in the order of their differences.
    `names`: of flags or of settings of the protocol, whose own name comes first."""
    if kind == "flag":
        return {name: name for name in sorted(names)}
    if kind == "protocol":
        settings = {name: f"protocol {name}" for name in sorted(names - {"name"})}
        return {"name": "protocol"} | settings
    return LABELS[kind]


def changes_between(before: Conditions, after: Conditions) -> list[str]:
    """Return the differences between two points of a series as texts such as `torch 2.11 -> 2.13`.
    Interpreter and folder identify the series, so they are omitted."""
    return [
        diff.text(diff.label, "->", "none")
        for diff in diff_conditions([before], [after])
        if diff.kind != "flag" or diff.name not in FLAGS.values()
    ]


# --- names ---


def names_by(environments: Iterable[StoredEnvironment], by: str) -> dict[str, str]:
    """Return environment id -> short name of its interpreter (`by="python"`) or folder
    (`by="folder"`)."""
    paths = {environment.id: environment.flags.get(FLAGS[by]) for environment in environments}
    return dict(zip(paths, short_names(list(paths.values()), OWN[by]), strict=True))


def labels(flags: Mapping[Key, Mapping[str, str | None]]) -> dict[Key, dict[str, str]]:
    """Return the key of each environment -> its short names as `interpreter` and `folder`, as far
    as these differ. `flags`: key -> the environment's flags."""
    added: dict[Key, dict[str, str]] = {key: {} for key in flags}
    for by, flag in FLAGS.items():
        names = short_names([known.get(flag) for known in flags.values()], OWN[by])
        if len(set(names)) > 1:
            for words, name in zip(added.values(), names, strict=True):
                words[flag] = name
    return added


def labelled(rows: Iterable[Result], environments: Iterable[StoredEnvironment]) -> list[Result]:
    """Return results with these `labels`, so that tables and figures can distinguish them."""
    known: dict[str, Any] = labels({row.id: row.flags for row in environments})
    if not any(known.values()):
        return list(rows)
    return [replace(row, **known[row.environment_id]) for row in rows]


def short_names(paths: Sequence[str | None], none: str) -> list[str]:
    """Return a short name that distinguishes each path: `a` and `b` for `/venvs/a/bin/python` and
    `/venvs/b/bin/python`; the whole path if no part of it does. None becomes `none`."""
    distinct = list(dict.fromkeys(path for path in paths if path is not None))
    known = dict(zip(distinct, distinguishing_names(distinct), strict=True))
    return [none if path is None else known[path] for path in paths]


def distinguishing_names(paths: Sequence[str]) -> Sequence[str]:
    """Return the last part of each path that differs from those of the others, or the paths."""
    folders = [environment_folder(PurePath(path)) for path in paths]
    if len(set(folders)) < len(paths):
        folders = [PurePath(path) for path in paths]
    while len(folders) > 1 and len({folder.name for folder in folders}) == 1:
        folders = [folder.parent for folder in folders]
    names = [folder.name for folder in folders]
    if not all(names) or len(set(names)) < len(names):
        return paths
    return names


def environment_folder(interpreter: PurePath) -> PurePath:
    """Return the folder of a virtual environment, by which its interpreter is known; any other path
    as it is."""
    if interpreter.match("bin/python*"):
        return interpreter.parents[1]
    return interpreter
