"""Judges claims by what a database holds and measures nothing: a condition was changed, or another machine measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from effbench.cell import Status
from effbench.launcher import cells as plan
from effbench.launcher.launch import hydra_sweep
from effbench.message import EvidenceRequest
from effbench.reproduce.experiment import Experiment
from effbench.reproduce.reuse import look, measured_otherwise
from effbench.reproduce.run import (
    NO_CUDA,
    Reproduction,
    Swept,
    command_of,
    judge_all,
    means_nothing_on_cpu,
    spoken_of,
    unmeasurable,
    verdict_rows,
)
from effbench.store.store import Store
from effbench.sweep.client import ForkServer
from effbench.sweep.evidence import EvidenceOutcome
from effbench.sweep.pool import fit_modes
from effbench.sweep.run import Command


class Looking:
    """In the place of `conduct`: the rows of one environment (a row of `environment`) that are there already."""

    def __init__(self, environment: Mapping[str, Any]) -> None:
        self.environment = environment
        self.swept = Swept()
        self.missing = 0
        self.cells = 0
        self.otherwise: tuple[set[str], list[str]] = set(), []

    def __call__(
        self,
        configs: Sequence[dict[str, Any]],
        _command: Command,
        server: ForkServer,
        *_others: Any,
        **_more: Any,
    ) -> None:
        parts, settings = plan.split(configs)
        fit_modes(server, parts, settings.baseline_mode)  # takes out of the baseline what only other modes have
        has_cuda = self.environment["gpu_name"] is not None
        cells = {cell.key: cell for part in parts for cell in plan.resolve([part], has_cuda)}
        with Store.open(settings.db, mode="read") as store:
            found = look(store, list(cells.values()), self.environment["id"], settings)
            self.swept.take(store, found.rows, list(cells), self.environment["id"])
            if found.missing:
                self.otherwise = measured_otherwise(store, found.missing, self.environment["id"], settings)
        self.swept.reused, self.missing, self.cells = len(found.rows), len(found.missing), len(cells)


def judge_stored(
    experiment: Experiment, environment: Mapping[str, Any], server: ForkServer, db: str, overrides: Sequence[str] = ()
) -> Reproduction | str:
    """Judge the experiment by what was measured in this environment (a row of it), and store the verdicts.

    Evidence is that of the newest verdicts that rest on it. Where a part was never measured whole, nothing is judged:
    the text says what is missing.
    """
    done = Reproduction(experiment, environment["id"], tuple(overrides))
    on_cpu = environment["gpu_name"] is None
    if experiment.needs == "cuda" and on_cpu:
        done.skipped = NO_CUDA
        done.judgements = [unmeasurable(claim, NO_CUDA) for claim in experiment.claims]
    else:
        for name, words in experiment.sweeps.items():
            if on_cpu and means_nothing_on_cpu(experiment, name):
                continue
            looking = Looking(environment)
            hydra_sweep(
                command_of(experiment, name, words, overrides, db), quiet=True, conductor=looking, server=server
            )
            if looking.missing:
                return what_is_missing(name, looking)
            done.swept[name] = looking.swept
        with Store.open(db, mode="read") as store:
            done.evidence = gathered(experiment, store.verdicts(), environment["id"])
        if missing := [name for name in asked_for(experiment) if name not in done.evidence]:
            return f"its evidence {', '.join(missing)} was not gathered"
        judge_all(done, on_cpu)
    with Store.open(db, mode="write") as store:
        store.add_verdicts(environment["id"], verdict_rows(done))
    return done


def what_is_missing(name: str, looking: Looking) -> str:
    """Of one sweep, and what to give where it was measured in another way."""
    of_all = f"of the {looking.cells} cells of its sweep {name} were"
    keys, words = looking.otherwise
    said = []
    if keys:
        said.append(f"{len(keys)} {of_all} measured in another way: judge them with {shlex.join(words)}")
    if rest := looking.missing - len(keys):
        said.append(f"{rest} {of_all} not measured")
    return "; ".join(said)


def asked_for(experiment: Experiment) -> list[str]:
    """Pieces of evidence that a claim speaks of: verdicts carry no others."""
    names = {name for claim in experiment.claims for name in spoken_of(claim)}
    return [name for name in experiment.evidence if f"evidence.{name}" in names]


def gathered(
    experiment: Experiment, verdicts: Sequence[Mapping[str, Any]], environment_id: str
) -> dict[str, EvidenceOutcome]:
    """The pieces of evidence that the newest verdicts of this environment carry."""
    found: dict[str, EvidenceOutcome] = {}
    for row in verdicts:  # oldest first
        if (row["experiment"], row["environment_id"]) != (experiment.name, environment_id):
            continue
        for name, said in (row["measured"] or {}).get("evidence", {}).items():
            if piece := experiment.evidence.get(name):
                request = EvidenceRequest(piece.target, dict(piece.settings), "auto")
                found[name] = EvidenceOutcome(request, Status(said["status"]), said["reason"], said["facts"], 0.0)
    return found
