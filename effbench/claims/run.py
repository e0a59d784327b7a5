"""Run an experiment: measure what its sweeps lack, run its checks, judge its claims, and store the
verdicts.

Cells that are compared with each other (all modes of one case) come from one sweep, because a
speedup across sweeps would compare two sessions. So a case that no sweep measured completely is
measured again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
from effbench.core.cell import Cell, Environment, Result, Status
from effbench.core.errors import ConfigError, suggest
from effbench.core.labels import grouped
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
from effbench.store.sweeps import SweepInfo, recorded_here_first

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

    # --- measure ---

    def collect_results(self, name: str, jobs: Sequence[plan.Job], command: Command) -> None:
        """Collect the results of one sweep, after measuring what is missing. Hydra's launcher calls
        it like `conduct`."""
        parts, settings = plan.split(jobs)
        answer = probe(self.server, parts, settings.baseline_mode)
        environment_id = Environment(**answer["environment"]).id
        cells = plan.resolve(parts, bool(answer["gpus"]))
        unwanted, _ = excluded(cells, settings.exclude)
        wanted = [cell for cell in cells if cell not in unwanted]
        keys = [cell.key for cell in wanted]
        with Store.open(settings.db, mode="write") as store:
            cached = partial(cached_results, store, wanted, environment_id, settings)
            results = []
            if not self.fresh:
                results = cached(accepts_marked=False)
            self.reused += len(results)
            lacking = set(keys) - {result.cell_key for result in results}
            if lacking:
                pairs = zip(cells, jobs, strict=True)
                left = [job for cell, job in pairs if cell.key in lacking]
                if plan.conduct(left, command).state == "interrupted":
                    raise KeyboardInterrupt
                results = cached()
        results.sort(key=lambda result: keys.index(result.cell_key))
        self.results[name] = results

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
            return frame_of(self.results_of(name), self.experiment.swept)
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
        checks = [name for name in claim.inputs if name in self.checks]
        sweeps: set[str] = set()
        for name in claim.inputs:
            sweeps.update(result.sweep_id for result in self.results_of(name))
        overrides = [word for word in self.overrides if key_of(word) != "device"]
        parts = [
            {"label": part.label, "holds": part.statement.holds, **bounds(part.value)}
            for part in judgement.parts
            if part.label
        ]
        measured = {
            **bounds(judgement.value),
            "unit": claim.unit,
            "parts": parts,
            "also": judgement.also,
            "sweeps": sorted(sweeps),
            "overrides": overrides if sweeps else [],
            "evidence": {name: evidence(self.checks[name]) for name in checks},
        }
        return {
            "claim": claim.id,
            "experiment": self.experiment.name,
            "sweep_id": max(sweeps, default=None),
            "verdict": str(judgement.verdict),
            "reason": judgement.reason,
            "measured": as_json(measured),
        }


def evidence(check: Mapping[str, Any]) -> dict[str, Any]:
    return {key: check[key] for key in ("status", "reason", "facts")}


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


def cached_results(
    store: Store,
    cells: Iterable[Cell],
    environment_id: str,
    settings: Settings,
    accepts_marked: bool = True,
) -> list[Result]:
    """Return the results of the complete cases, each from the newest sweep that measured it with
    the same protocol in this environment. `accepts_marked`: otherwise a marked case is measured
    again, perhaps on a quieter host."""
    cases = grouped(cells, lambda cell: cell.comparison_key)
    complete: list[Result] = []
    for sweep in recorded_here_first(store.sweeps()):
        if not is_comparable(sweep, settings):
            continue
        final = {}
        for result in store.results(sweep.id):
            is_wanted = result.environment_id == environment_id and is_final(result, sweep)
            if is_wanted and (accepts_marked or not result.marked):
                final[result.cell_key] = result
        for case, members in list(cases.items()):
            keys = [cell.key for cell in members]
            if final.keys() >= set(keys):
                complete += [final[key] for key in keys]
                del cases[case]
    return complete


def is_comparable(sweep: SweepInfo, settings: Settings) -> bool:
    wanted = vars(settings.protocol)
    protocol = {name: sweep.protocol.get(name) for name in wanted}
    return protocol == wanted and sweep.baseline_mode == settings.baseline_mode


def is_final(result: Result, sweep: SweepInfo) -> bool:
    """Return whether further trials would not have changed the result. A cell may end before the
    last round if its interval is narrow enough."""
    has_ended = sweep.state == "completed" or result.trials >= sweep.rounds
    return has_ended or not result.status.is_measured
