"""What the site is made of: rows and facts that someone else has read from a database."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from effbench.report.frame import prepare
from effbench.report.ledger import Entry
from effbench.report.site.changed import Changes
from effbench.report.site.past import Past


@dataclass(frozen=True)
class TrialFacts:
    """One trial: its row of the table `trial`, and timer -> float32 array of its raw samples in order."""

    row: Mapping[str, Any]
    samples: Mapping[str, Any]


@dataclass
class Subject:
    """One sweep on one hardware: what most pages are about.

    `sweep`, `environments`: rows as plain dicts; `rows`: the view `results`; `trials`: gives every trial, a cell's
    together; `changes`: against the sweep before it on this hardware; `unmeasured`: planned cells without a result,
    as rows of the view with what is known of them.
    """

    sweep: Mapping[str, Any]
    hardware: str
    rows: Sequence[Mapping[str, Any]]
    environments: Sequence[Mapping[str, Any]]
    trials: Callable[[], Iterable[TrialFacts]] = tuple
    changes: Changes = field(default_factory=Changes)
    unmeasured: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def tidy(self) -> pd.DataFrame:
        """`report.frame.prepare` of the rows."""
        return prepare(pd.DataFrame.from_records(list(self.rows)), self.baseline_mode)

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
    `calibrations`: environment id -> `ceilings`, `noise` and `measured_at`, of those that have any."""

    database: str
    subjects: Sequence[Subject]
    sweeps: Sequence[Mapping[str, Any]] = ()
    environments: Sequence[Mapping[str, Any]] = ()
    claims: Sequence[Entry] = ()
    history: Past | None = None
    calibrations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Subject]:
        return iter(self.subjects)
