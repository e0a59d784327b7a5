"""Run an experiment: measure what its sweeps lack, run its checks, judge its claims, and store the
verdicts.

The cells of a sweep are compared with each other, so they are measured together: a sweep is reused
whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from effbench.claims.definition import Claim, Experiment
from effbench.claims.facts import facts_of, no_facts
from effbench.claims.frames import frame_of
from effbench.claims.judge import Judgement, as_json, bounds, judge
from effbench.config import cells as plan
from effbench.config.launch import hydra_sweep
from effbench.config.overrides import key_of
from effbench.core.cell import Environment, Result, Status
from effbench.core.errors import ConfigError, suggest
from effbench.core.message import CheckRequest, ProbeRequest
from effbench.core.printable import describe
from effbench.core.settings import Config, quoted
from effbench.run.checks import run_checks
from effbench.run.client import ForkServer
from effbench.run.plan import Settings
from effbench.run.probe import PROBE_TIMEOUT_S, probe
from effbench.run.selection import excluded
from effbench.run.sweep import Command
from effbench.store.decisions import ClaimVerdict
from effbench.store.store import Store
from effbench.store.sweeps import recorded_here_first

NO_CUDA = "needs a CUDA GPU, but this machine has none"
#: Groups whose choice replaces the experiment's settings in them. The claims compare settings of
#: models and modes.
GROUPS = {"protocol", "stream", "executor"}
#: Settings of a sweep that an experiment refuses: it always resumes, and runs in effbench's own
#: interpreter.
REFUSED = ("resume", "shard", *plan.INTERPRETER_KEYS)


def probe_machine(server: ForkServer, device: str) -> dict[str, Any]:
    """Return the `environment`, its `details` and the `gpus` of this machine."""
    answer: dict[str, Any] = server.call(
        "probe", ProbeRequest(device=device).to_json(), PROBE_TIMEOUT_S
    )
    return answer


@dataclass
class Reproduction:
    """An experiment on this machine, which `probed` describes. `overrides`: the user's, which
    change the question. `results`: sweep -> results in order of its cells; `reused`: how many were
    measured before; `checks`: name -> status, reason, facts; `mistakes`: errors in claims."""

    experiment: Experiment
    server: ForkServer
    probed: Mapping[str, Any]
    db: str
    overrides: Sequence[str] = ()
    fresh: bool = False
    quiet: bool = False
    results: dict[str, list[Result]] = field(default_factory=dict)
    reused: int = 0
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    @property
    def on_cpu(self) -> bool:
        return not self.probed["gpus"] or "device=cpu" in self.overrides

    def execute(self) -> None:
        """Measure what is missing, judge the claims and store the verdicts.

        Raises EffbenchError for errors before a sweep's first trial, and KeyboardInterrupt if a
        sweep was interrupted; failed trials and checks only get a status.
        """
        check_settings(self.overrides)
        for name in self.asked(self.experiment.sweeps):
            words = command_of(self.experiment, name, self.overrides, self.db)
            collect = partial(self.collect_results, name)
            hydra_sweep(words, self.quiet, conductor=collect, server=self.server)
        self.collect_facts()
        self.judgements = [self.judge(claim) for claim in self.experiment.claims]
        verdicts = [self.verdict_row(judgement) for judgement in self.judgements]
        environment = Environment(**self.probed["environment"])
        with Store.open(self.db, mode="write") as store:
            store.add_environment(environment, self.probed["details"])
            store.add_verdicts(environment.id, verdicts)

    def asked(self, names: Iterable[str]) -> list[str]:
        """Return the sweeps or checks among these names that a claim needs; without a GPU, claims
        about CUDA need none."""
        used: set[str] = set()
        for claim in self.experiment.claims:
            if not (self.on_cpu and claim.needs):
                used.update(claim.inputs)
        if "rows" in used:
            used |= self.experiment.sweeps.keys()
        return [name for name in names if name in used]

    # --- measure ---

    def collect_results(self, name: str, jobs: Sequence[plan.Job], command: Command) -> None:
        """Collect the results of one sweep, after measuring it if no earlier one is as good.
        Hydra's launcher calls it like `conduct`."""
        cells, settings = plan.split(jobs)
        machine = probe(self.server, cells, settings.baseline_mode)
        environment = machine.environment
        cells = plan.resolve([machine.adapted(cell) for cell in cells], bool(machine.gpus))
        unwanted, _ = excluded(cells, settings.exclude)
        keys = [cell.key for cell in cells if cell not in unwanted]
        with Store.open(settings.db, mode="write") as store:
            reused = None if self.fresh else earlier(store, keys, environment.id, settings)
            if reused is not None:
                self.results[name] = reused
                self.reused += len(reused)
                return
            outcome = plan.conduct(jobs, command)
            if outcome.state == "interrupted":
                raise KeyboardInterrupt
            self.results[name] = in_order(store.results(outcome.sweep_id), keys, environment.id)

    def collect_facts(self) -> None:
        """Run the checks."""
        names = self.asked(self.experiment.checks)
        path = self.experiment.path.resolve()
        device = "cpu" if self.on_cpu else "auto"
        requests = [CheckRequest(f"{path}:{name}", {}, device) for name in names]
        outcomes = run_checks(requests, self.server, self.probed["gpus"])
        self.checks = dict(zip(names, outcomes, strict=True))

    # --- judge ---

    def results_of(self, name: str) -> list[Result]:
        """Return the results of a sweep, or of all sweeps (`rows`), each once: two sweeps may share
        a cell."""
        names = list(self.results) if name == "rows" else [name]
        unique = {}
        for sweep in names:
            for result in self.results.get(sweep, ()):
                unique[result.sweep_id, result.cell_key] = result
        return list(unique.values())

    def input(self, name: str) -> Any:
        """Return the argument of a claim's function for a parameter: a frame of rows, or a check's
        facts."""
        if name not in self.experiment.checks:
            return frame_of(self.results_of(name))
        check = self.checks[name]
        if check["status"] == Status.OK:
            return facts_of(check["facts"] or {})
        return no_facts(f"{check['status']}: {check['reason']}")

    def judge(self, claim: Claim) -> Judgement:
        """Judge a claim. A mistake in it does not affect other claims."""
        if self.on_cpu and claim.needs:
            reason = claim.not_measurable or NO_CUDA
            return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, reason)
        try:
            inputs = {name: self.input(name) for name in claim.inputs}
            return judge(claim, inputs)
        except (Exception, SystemExit) as error:  # the user's function may raise anything
            mistake = describe(error)
        self.mistakes.append(f"{self.experiment.path}: claim {claim.id}: {mistake}")
        reason = f"it cannot be judged: {mistake}"
        return Judgement(claim, ClaimVerdict.NOT_MEASURED, reason)

    def verdict_row(self, judgement: Judgement) -> dict[str, Any]:
        """Return a row of `claim_verdict`, without its environment and time."""
        claim = judgement.claim
        results = [result for name in claim.inputs for result in self.results_of(name)]
        sweeps = sorted({result.sweep_id for result in results})
        parts = []
        for part in judgement.parts:
            if part.label:
                holds = {"label": part.label, "holds": part.statement.holds}
                parts.append(holds | bounds(part.value))
        evidence = {}
        for name in claim.inputs:
            if name in self.checks:
                check = self.checks[name]
                evidence[name] = {key: check[key] for key in ("status", "reason", "facts")}
        overrides = [word for word in self.overrides if sweeps and key_of(word) != "device"]
        measured = {
            "statement": claim.text,
            "published": claim.published,
            **bounds(judgement.value),
            "unit": claim.unit,
            "parts": parts,
            "also": judgement.also,
            "sweeps": sweeps,
            "overrides": overrides,
            "evidence": evidence,
        }
        return {
            "claim": claim.id,
            "experiment": self.experiment.name,
            "sweep_id": max(sweeps, default=None),
            "verdict": str(judgement.verdict),
            "reason": judgement.reason,
            "measured": as_json(measured),
        }


def check_settings(overrides: Sequence[str]) -> None:
    """Raise ConfigError for unknown settings; Hydra checks them only if there is a sweep."""
    known = [setting.name for setting in fields(Config) if setting.name not in REFUSED]
    for word in overrides:
        name = re.split(r"[./@]", str(key_of(word)))[0]
        if name not in (*known, "hydra", "--config-dir"):
            raise ConfigError(
                f"reproduce takes no setting {name!r}{suggest(name, known)}; it takes"
                f" {', '.join(known)}"
            )


def command_of(experiment: Experiment, name: str, overrides: Sequence[str], db: str) -> list[str]:
    """Return the words of a sweep: the experiment's, without those that the user overrides. A group
    that the user chooses also replaces the experiment's settings in it: `protocol=quick` replaces
    `protocol.rounds=3`, which is meant for another protocol."""
    title = experiment.name
    if len(experiment.sweeps) > 1:
        title += f"/{name}"
    further = [f"sweep.name={title}", "on_failure=ignore", f"db={quoted(db)}"]
    overridden = {str(key_of(word)) for word in overrides}
    words = ["-m"]
    for word in (*experiment.sweeps[name], *further):
        key = str(key_of(word))
        group, _, _ = key.partition(".")
        if key not in overridden and group not in overridden & GROUPS:
            words.append(word)
    return [*words, *overrides]


def earlier(
    store: Store, keys: Sequence[str], environment_id: str, settings: Settings
) -> list[Result] | None:
    """Return the results of the newest completed sweep that measured all these cells with the same
    protocol in this environment, on a quiet host; None without one."""
    wanted = vars(settings.protocol)
    for sweep in recorded_here_first(store.sweeps()):
        protocol = {name: sweep.protocol.get(name) for name in wanted}
        is_same = protocol == wanted and sweep.baseline_mode == settings.baseline_mode
        if not is_same or sweep.state != "completed":
            continue
        results = in_order(store.results(sweep.id), keys, environment_id)
        is_marked = any(result.marked for result in results)
        if len(results) == len(keys) and not is_marked:
            return results
    return None


def in_order(results: Iterable[Result], keys: Collection[str], environment_id: str) -> list[Result]:
    """Return the results of these cells in this environment, in their order."""
    by_key = {r.cell_key: r for r in results if r.environment_id == environment_id}
    return [by_key[key] for key in keys if key in by_key]
