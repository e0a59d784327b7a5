"""The halves of a sweep: what was measured under several interpreters (`python=`, `folder=`), told apart by names.

An interpreter belongs to the environment. Where one was asked for, the environment's flags hold its path
(`interpreter`) and its working directory (`folder`). Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from effbench.errors import UsageError

#: Setting -> the flag of the environment that holds it, and what a row calls it.
FLAGS = {"python": "interpreter", "folder": "folder"}
#: What stands for a setting that was not given.
OWN = {"python": "own", "folder": "here"}
#: Columns of the view that say what an interpreter is, other than by its path.
TELLING = ("gpu_name", "torch_version", "python")


@dataclass(frozen=True)
class Half:
    """One environment: what was asked for (None: effbench's own interpreter, its working directory), and the short name
    of either among its fellows."""

    environment_id: str
    python: str | None
    folder: str | None
    names: Mapping[str, str]

    def name(self, by: str) -> str:
        """`by`: python or folder."""
        return self.names[by]


def halves(environments: Iterable[Mapping[str, Any]]) -> dict[str, Half]:
    """Environment id -> its half, of rows of `environment` (`Store.environments(ids)`)."""
    rows = list(environments)
    asked = {by: [(row["flags"] or {}).get(flag) for row in rows] for by, flag in FLAGS.items()}
    names = {by: dict(zip(paths, short_names(paths, OWN[by]), strict=True)) for by, paths in asked.items()}
    return {
        row["id"]: Half(
            row["id"], python, folder, {"python": names["python"][python], "folder": names["folder"][folder]}
        )
        for row, python, folder in zip(rows, asked["python"], asked["folder"], strict=True)
    }


def split(
    rows: Iterable[Mapping[str, Any]], environments: Iterable[Mapping[str, Any]], by: str
) -> dict[str, list[Mapping[str, Any]]]:
    """Rows with an `environment_id` (of `results` or of `trial`) by the short name of their python or folder, in the
    order in which these come first among the rows. Raises UsageError for another `by`."""
    if by not in FLAGS:
        raise UsageError(f"a sweep is split by {' or '.join(FLAGS)}, not by {by}")
    known = halves(environments)
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        parts.setdefault(known[row["environment_id"]].name(by), []).append(row)
    return parts


def labels(environments: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Environment id -> its short names as `interpreter` and `folder`, either only where the versions do not tell the
    environments apart already."""
    rows = list(environments)
    known = halves(rows)
    told = {row["id"]: tuple(row[name] for name in TELLING) for row in rows}
    added: list[str] = []
    for by in ("folder", "python"):
        more = {one: (*told[one], half.name(by)) for one, half in known.items()}
        asked = {getattr(half, by) for half in known.values()}
        if len(asked) > 1 and len(set(more.values())) > len(set(told.values())):
            told = more
            added.append(by)
    return {one: {FLAGS[by]: half.name(by) for by in added} for one, half in known.items()}


def labelled(rows: Iterable[dict[str, Any]], environments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the view with `labels` beside its columns: by these tables and figures keep the interpreters apart."""
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
    while len(candidates) > 1 and all(len(one) > 1 for one in candidates) and len({one[-1] for one in candidates}) == 1:
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
