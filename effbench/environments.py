"""Differences between environments, and short names for the environments of a sweep.

With `python=` or `folder=` a sweep has several environments, whose flags hold the paths of
interpreter and folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

#: Setting -> the environment flag that holds it, which is also the name of its column.
FLAGS = {"python": "interpreter", "folder": "folder"}
#: Columns that `labelled` may add to a row.
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
_HARDWARE = {"gpu_name": "GPU", "gpu_memory_bytes": "GPU memory"}
#: Facts that a sweep records about its machine -> their names in prose.
MACHINE = {"hostname": "host", "kernel": "kernel", "effbench": "effbench"}
#: A sweep (with `protocol` and `host`) and an environment in it.
Where = tuple[Mapping[str, Any], Mapping[str, Any]]


def hardware_of(environment: Mapping[str, Any]) -> str:
    """Return the name of the GPU, or of the CPU if there is no GPU."""
    return environment["gpu_name"] or environment["cpu_name"]


class Difference(NamedTuple):
    """A fact that differs between two sides. `kind`: hardware, software, flag, protocol or machine;
    `label`: its name in prose; `before`, `after`: its values on each side, None if unknown."""

    kind: str
    name: str
    label: str
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    def text(self, name: str, arrow: str, unset: str) -> str:
        """Return `torch 2.11 -> 2.13` with this name and arrow; `unset` replaces an unknown
        value."""
        sides = (
            ", ".join(sorted({unset if value is None else str(value) for value in side}))
            for side in (self.before, self.after)
        )
        return f"{name} {f' {arrow} '.join(sides)}"


def diff_environments(before: Sequence[Where], after: Sequence[Where]) -> list[Difference]:
    """Return all differences in hardware, software, flags, protocol and machine between two
    sides."""
    sides = [[_facts(*where) for where in side] for side in (before, after)]
    kinds = ("hardware", "software", "flag", "protocol", "machine")

    def rank(fact: tuple[str, str, str]) -> tuple:
        kind, name, _ = fact
        return kinds.index(kind), (name != "name", name) if kind in ("flag", "protocol") else ()

    differences = []
    for fact in sorted(
        dict.fromkeys(fact for side in sides for facts in side for fact in facts), key=rank
    ):
        values = [tuple(dict.fromkeys(facts.get(fact) for facts in side)) for side in sides]
        if set(map(str, values[0])) != set(map(str, values[1])):
            differences.append(Difference(*fact, *values))
    return differences


def _facts(
    sweep: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[tuple[str, str, str], Any]:
    """Return (kind, name, label) -> value."""
    flags, protocol, host = environment["flags"] or {}, sweep["protocol"] or {}, sweep["host"] or {}
    facts = {("hardware", name, label): environment.get(name) for name, label in _HARDWARE.items()}
    facts |= {("software", name, label): environment.get(name) for name, label in SOFTWARE.items()}
    facts |= {("flag", name, name): value for name, value in flags.items()}
    facts |= {
        ("protocol", name, f"protocol {name}"): v for name, v in protocol.items() if name != "name"
    }
    facts |= {("protocol", "name", "protocol"): protocol.get("name")}
    return facts | {("machine", name, label): host.get(name) for name, label in MACHINE.items()}


def changes_between(before: Where, after: Where) -> list[str]:
    """Return the differences between two points of a series as texts such as `torch 2.11 -> 2.13`.
    Interpreter and folder identify the series, so they are omitted."""
    diffs = diff_environments([before], [after])
    return [
        diff.text(diff.label, "->", "none")
        for diff in diffs
        if diff.kind != "flag" or diff.name not in COLUMNS
    ]


def separating(low: Sequence[Where], high: Sequence[Where]) -> list[str]:
    """Return the facts that have no value in common on the two levels of a series, such as `host a
    | b`."""
    differences = [
        diff
        for diff in diff_environments(low, high)
        if {str(value or "none") for value in diff.before}.isdisjoint(
            str(value or "none") for value in diff.after
        )
        and (diff.kind in ("hardware", "software") or diff.name in ("hostname", "name"))
    ]
    differences.sort(key=lambda diff: (diff.kind != "machine", diff.kind == "protocol"))
    return [diff.text(diff.label, "|", "none") for diff in differences]


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


def labelled(
    rows: Iterable[dict[str, Any]], environments: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return rows of the view with `labels` as further columns, so that tables and figures can
    distinguish them."""
    known = labels(environments)
    return [row | known.get(row["environment_id"], {}) for row in rows]


def short_names(paths: Sequence[str | None], none: str) -> list[str]:
    """Return a short name that distinguishes each path: `a` and `b` for `/venvs/a/bin/python` and
    `/venvs/b/bin/python`. A single path is shortened to its last part, and None becomes `none`."""
    whole = {path: PurePath(path) for path in paths if path is not None}
    # an interpreter is known by the folder of its virtual environment
    roots = {
        path: pure.parents[1] if pure.match("bin/python*") else pure for path, pure in whole.items()
    }
    parts = {
        path: pure.parts
        for path, pure in (roots if len(set(roots.values())) == len(whole) else whole).items()
    }
    if len(parts) == 1:
        parts = {path: names[-1:] for path, names in parts.items()}
    # drop the common prefix, then the common suffix
    for end, kept in ((0, slice(1, None)), (-1, slice(None, -1))):
        while (
            min(map(len, parts.values()), default=0) > 1
            and len({names[end] for names in parts.values()}) == 1
        ):
            parts = {path: names[kept] for path, names in parts.items()}
    return [none if path is None else str(PurePath(*parts[path])) for path in paths]
