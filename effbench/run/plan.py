"""The plan of a sweep: its settings, and its cells with their interpreters.

If a cell runs under several interpreters, its trials of a round are compared with each other. They
form a group that runs on one slot: two of them as a duet, if the cell allows it, else sequentially.
So do the two cells of a duet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from effbench.core.cell import Cell, Trial
from effbench.core.meeting import ALONE, DUET
from effbench.core.settings import Config, Executor, Protocol, SweepSettings
from effbench.run.duets import StoppingRule
from effbench.run.interpreters import HERE, Interpreter
from effbench.store.sweeps import SweepInfo

# --- settings ---


@dataclass(frozen=True)
class Settings:
    """Settings of the whole sweep."""

    sweep: SweepSettings
    protocol: Protocol
    executor: Executor
    isolation: str
    timeout_s: float
    baseline_mode: str
    exclude: list[dict[str, Any]] | None
    resume: str | None
    on_failure: str
    db: str

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return those of a job's configuration."""
        return cls(**{name: getattr(config, name) for name in OF_SWEEP})

    @classmethod
    def with_defaults(cls, **given: Any) -> Self:
        """Return settings with these plain values and defaults for all others, also within a
        section. Names that only other versions know are ignored. Raises msgspec.ValidationError for
        a value that is not allowed."""
        return cls.of(msgspec.convert(given, Config))

    @property
    def compilations(self) -> int:
        """The number of compile caches that the rounds of a cell use in turn."""
        return min(self.protocol.compilations, self.protocol.rounds)


#: Top-level settings of the whole sweep; all others define a cell or its interpreter.
OF_SWEEP = tuple(field.name for field in dataclasses.fields(Settings))
#: Settings that a sweep does not store with the others: they have a column, or belong to one run.
NOT_STORED = ("protocol", "db", "resume")


def stored_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as the sweep stores them."""
    values = dataclasses.asdict(settings)
    return {key: value for key, value in values.items() if key not in NOT_STORED}


def recorded_settings(sweep: SweepInfo) -> Settings:
    """Return the settings with which a sweep ran; defaults for those that an older version did not
    store."""
    stored = dict(sweep.host.get("settings") or {})
    stored |= {"protocol": sweep.protocol, "baseline_mode": sweep.baseline_mode}
    return Settings.with_defaults(**stored)


# --- what runs ---


@dataclass(frozen=True)
class CellRun:
    """A cell under an interpreter, with one trial per round. `partner`: the other cell of a duet of
    two cells."""

    cell: Cell
    interpreter: Interpreter = HERE
    partner: Cell | None = field(default=None, compare=False)

    @property
    def compared(self) -> frozenset[Cell | None]:
        """What all runs share that are compared with each other, under all interpreters."""
        return frozenset([self.cell, self.partner])

    @property
    def group(self) -> Hashable:
        """What all runs share whose trials of a round run together."""
        return self.compared, self.cell.device


def cells_of(runs: Iterable[CellRun]) -> list[Cell]:
    """Return the distinct cells of these runs, in order."""
    return list(dict.fromkeys(run.cell for run in runs))


def interpreters_of(runs: Iterable[CellRun]) -> list[Interpreter]:
    """Return the distinct interpreters of these runs, in order."""
    return list(dict.fromkeys(run.interpreter for run in runs))


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep runs.

    `runs`: the cell run of each combination of settings, None for one that is excluded.
    `overrides`: cell key -> the overrides that reproduce the cell. `excluded`: the number of cells
    that `exclude` removes. `duet_rule`: when the rounds of duets end; None: as all others.
    """

    runs: Sequence[CellRun | None]
    overrides: Mapping[str, list[str]] = field(default_factory=dict)
    excluded: int = 0
    duet_rule: StoppingRule | None = None

    def distinct_runs(self) -> list[CellRun]:
        return list(dict.fromkeys(filter(None, self.runs)))

    def cells(self) -> list[Cell]:
        return cells_of(self.distinct_runs())


def is_of_duet(trial: Trial) -> bool:
    """Return whether the trial was timed in turn with the other member of a duet."""
    duet = trial.extra.get(DUET)
    return isinstance(duet, dict) and ALONE not in duet
