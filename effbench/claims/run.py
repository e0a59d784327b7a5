"""Run an experiment: its sweeps and its checks, judge its claims, and store the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from effbench.claims.definition import Claim, Experiment
from effbench.claims.facts import facts_of
from effbench.claims.figures import NotMeasuredError
from effbench.claims.frames import frame_of
from effbench.claims.judge import Judgement, as_json, bounds, judge, unmeasured
from effbench.config.launch import hydra_sweep
from effbench.config.overrides import parse
from effbench.core.cell import Result, Status
from effbench.core.message import CheckRequest
from effbench.core.printable import describe
from effbench.core.settings import quoted
from effbench.run.checks import run_checks
from effbench.run.client import ForkServer
from effbench.run.probe import ProbedMachine
from effbench.store.schema import ClaimVerdict
from effbench.store.store import Store

NO_ROW = "no row was measured"
NO_CUDA = "needs a CUDA GPU, but this machine has none"
NO_SECOND_GPU = "needs two CUDA GPUs, but this machine has fewer"


@dataclass
class Reproduction:
    """An experiment on this machine, as `probed`; without GPUs, everything runs on the CPU.
    `overrides`: the user's, by key, which change the question. `results`: sweep -> results in order
    of its cells; `checks`: name -> status, reason, facts; `mistakes`: errors in claims."""

    experiment: Experiment
    server: ForkServer
    probed: ProbedMachine
    db: str
    overrides: Mapping[str, str]
    quiet: bool
    results: dict[str, list[Result]] = field(default_factory=dict)
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def execute(self) -> None:
        """Measure, judge the claims and store the verdicts.

        Raises EffbenchError for errors before a sweep's first trial, and KeyboardInterrupt if a
        sweep was interrupted; failed trials and checks only get a status.
        """
        claims = [claim for claim in self.experiment.claims if not self.lacking(claim)]
        needed = set(chain.from_iterable(claim.inputs for claim in claims))
        for name in self.experiment.sweeps:
            if needed & {name, "rows"}:
                self.results[name] = self.measure(name)
        self.check([name for name in self.experiment.checks if name in needed])
        self.judgements = [self.judge(claim) for claim in self.experiment.claims]
        verdicts = [self.verdict_row(judgement) for judgement in self.judgements]
        with Store.open(self.db, mode="write") as store:
            environment_id = store.add_environment(self.probed.environment, self.probed.details)
            store.add_verdicts(environment_id, verdicts)

    def lacking(self, claim: Claim) -> str | None:
        """Return which GPU that the claim needs this machine lacks; None if it has all."""
        if len(self.probed.gpus) >= claim.gpus:
            return None
        return NO_CUDA if claim.gpus == 1 else NO_SECOND_GPU

    # --- measure ---

    def measure(self, name: str) -> list[Result]:
        """Run a sweep of the experiment and return its results."""
        words = command_of(self.experiment, name, self.overrides, self.db)
        outcome = hydra_sweep(words, self.quiet, self.server)
        assert outcome is not None  # there are no options among the words
        if outcome.state == "interrupted":
            raise KeyboardInterrupt
        with Store.open(outcome.db, mode="read") as store:
            return store.results(outcome.sweep_id)

    def check(self, names: Sequence[str]) -> None:
        """Run these behaviour checks."""
        path = self.experiment.path.resolve()
        requests = [CheckRequest(f"{path}:{name}") for name in names]
        outcomes = run_checks(requests, self.server, self.probed.gpus)
        self.checks = dict(zip(names, outcomes, strict=True))

    # --- judge ---

    def results_of(self, name: str) -> list[Result]:
        """Return the results of a sweep, or of all sweeps (`rows`)."""
        if name == "rows":
            return list(chain.from_iterable(self.results.values()))
        return self.results.get(name, [])

    def input(self, name: str) -> Any:
        """Return the argument of a claim's function for a parameter: a frame of rows, or a check's
        facts. Raises NotMeasuredError."""
        if name in self.checks:
            check = self.checks[name]
            if check["status"] != Status.OK:
                raise NotMeasuredError(f"{check['status']}: {check['reason']}")
            return facts_of(check["facts"])
        results = self.results_of(name)
        if not results:
            raise NotMeasuredError(NO_ROW)
        return frame_of(results)

    def judge(self, claim: Claim) -> Judgement:
        """Judge a claim. A mistake in it does not affect other claims."""
        reason = claim.not_measurable or self.lacking(claim)
        if reason:
            return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, reason)
        try:
            return judge(claim, {name: self.input(name) for name in claim.inputs})
        except NotMeasuredError as error:
            return unmeasured(claim, str(error))
        except (Exception, SystemExit) as error:  # the user's function may raise anything
            mistake = describe(error)
        self.mistakes.append(f"{self.experiment.path}: claim {claim.id}: {mistake}")
        return unmeasured(claim, f"it cannot be judged: {mistake}")

    def verdict_row(self, judgement: Judgement) -> dict[str, Any]:
        """Return a row of `claim_verdict`, without its environment and time."""
        claim = judgement.claim
        results = chain.from_iterable(map(self.results_of, claim.inputs))
        sweeps = sorted({result.sweep_id for result in results})
        overrides = []
        if sweeps:
            overrides = [text for key, text in self.overrides.items() if key != "device"]
        parts = [{"label": text, "holds": holds} for text, holds in judgement.parts.items() if text]
        measured = {
            "statement": claim.text,
            "published": claim.published,
            **bounds(judgement.value),
            "unit": claim.unit,
            "parts": parts,
            "also": judgement.also,
            "sweeps": sweeps,
            "overrides": overrides,
            "evidence": {name: self.checks[name] for name in claim.inputs if name in self.checks},
        }
        return {
            "claim": claim.id,
            "experiment": self.experiment.name,
            "sweep_id": max(sweeps, default=None),
            "verdict": str(judgement.verdict),
            "reason": judgement.reason,
            "measured": as_json(measured),
        }


def command_of(
    experiment: Experiment,
    name: str,
    overrides: Mapping[str, str],
    db: str,
) -> list[str]:
    """Return the words of a sweep: the experiment's, without those that the user overrides. A group
    that the user chooses also replaces the experiment's settings in it: `protocol=quick` replaces
    `protocol.rounds=3`, which is meant for another protocol."""
    title = experiment.name
    if len(experiment.sweeps) > 1:
        title += f"/{name}"
    further = [f"sweep.name={title}", "on_failure=ignore", f"db={quoted(db)}"]
    words = ["-m"]
    for text in (*experiment.sweeps[name], *further):
        key = parse(text).key
        if overrides.keys().isdisjoint({key, key.partition(".")[0]}):
            words.append(text)
    return [*words, *overrides.values()]
