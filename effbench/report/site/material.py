"""What the site is made of: rows and facts that someone else has read from a database."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from effbench.analysis.swept import SweptRow, plain_rows, swept_rows
from effbench.report.claims import Entry
from effbench.report.frame import tidied
from effbench.report.site.changed import Changes
from effbench.report.site.past import Past


@dataclass(frozen=True)
class TrialFacts:
    """One trial: its row of the table `trial`, timer -> float32 array of its raw samples in order, and timer -> how
    many were taken, where that is more than are stored."""

    row: Mapping[str, Any]
    samples: Mapping[str, Any]
    taken: Mapping[str, int] = field(default_factory=dict)


def no_command(params: Mapping[str, Any], environment_id: str) -> tuple[str | None, str]:
    return None, "nobody said how"


@dataclass
class Subject:
    """One sweep on one hardware: what most pages are about.

    `sweep`, `environments`: rows as plain dicts; `rows`: the view `results`; `trials`: gives every trial, a cell's
    together in the order of their keys, each cell's by environment; `trials_in_parts(part, parts)`: a part of them, for
    another process; `command`: of a cell's parameters and an environment's id the command line that runs it again, or
    None and why there is none; `artifacts`: the folder that the names of trials' artifacts are relative to; `changes`:
    against the sweep before it on this hardware; `unmeasured`: planned cells without a result, as rows of the view
    with what is known of them.
    """

    sweep: Mapping[str, Any]
    hardware: str
    rows: Sequence[Mapping[str, Any]]
    environments: Sequence[Mapping[str, Any]]
    trials: Callable[[], Iterable[TrialFacts]] = tuple
    trials_in_parts: Callable[[int, int], Iterable[TrialFacts]] | None = None
    command: Callable[[Mapping[str, Any], str], tuple[str | None, str | None]] = no_command
    artifacts: Path | None = None
    changes: Changes = field(default_factory=Changes)
    unmeasured: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def labelled(self) -> list[SweptRow]:
        """The rows with what tells them apart, in reading order."""
        return swept_rows(plain_rows(self.rows))

    @cached_property
    def tidy(self) -> pd.DataFrame:
        """`report.frame.prepare` of the rows."""
        return tidied(self.labelled, self.baseline_mode)

    @property
    def baseline_mode(self) -> str:
        return str(self.sweep.get("baseline_mode") or "eager")

    @property
    def name(self) -> str:
        return str(self.sweep.get("name") or self.sweep.get("label") or self.sweep["id"])

    @cached_property
    def slug(self) -> str:
        """A folder's name that no name of a user can lead out of, or to another subject's."""
        readable = re.sub(r"[^a-z0-9]+", "-", f"{self.hardware} {self.sweep['id']}".lower()).strip("-")[:60]
        mark = hashlib.sha256(f"{self.hardware}\0{self.sweep['id']}".encode("utf-8", "replace")).hexdigest()[:6]
        return f"{readable}-{mark}".lstrip("-")


@dataclass
class Material:
    """`subjects`: the first is what a reader sees first; `sweeps`: rows of all, newest first; `environments`: all;
    `calibrations`: environment id -> `ceilings`, `noise` and `measured_at`, of those that have any; `db_override`:
    what a sweep's command needs to find the database (` db=…`, without its password), empty where it needs nothing.
    `later`: reads the rest of it (history, changes, claims), which takes a while and which no cell's page needs."""

    database: str
    subjects: Sequence[Subject]
    sweeps: Sequence[Mapping[str, Any]] = ()
    environments: Sequence[Mapping[str, Any]] = ()
    claims: Sequence[Entry] = ()
    history: Past | None = None
    calibrations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    db_override: str = ""
    later: Callable[[Material], None] | None = None

    def complete(self) -> None:
        """Read what was left for later, once."""
        later, self.later = self.later, None
        if later is not None:
            later(self)

    def __iter__(self) -> Iterator[Subject]:
        return iter(self.subjects)
