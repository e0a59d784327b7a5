"""Run an experiment: measure what its sweeps lack, run its checks, judge its claims, and store the
verdicts.

Cells that are compared with each other (all modes of one case) come from one sweep, because a
speedup across sweeps would compare two sessions. So a case that no sweep measured completely is
measured again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from effbench.cell import Cell, Environment, Result, Status
from effbench.config import Config, quoted
from effbench.errors import ConfigError, suggest
from effbench.experiments.definition import Claim, Experiment
from effbench.experiments.facts import facts_of, no_facts
from effbench.experiments.figures import ClaimError
from effbench.experiments.frames import frame_of
from effbench.experiments.judge import Judgement, as_json, bounds, judge
from effbench.labels import grouped
from effbench.launcher import cells as plan
from effbench.launcher.launch import hydra_sweep
from effbench.launcher.overrides import key_of
from effbench.message import CheckRequest, ProbeRequest
from effbench.store.decisions import ClaimVerdict
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo, recorded_here_first
from effbench.sweeping.checks import run_checks
from effbench.sweeping.client import ForkServer
from effbench.sweeping.plan import Settings
from effbench.sweeping.probe import PROBE_TIMEOUT_S, probe
from effbench.sweeping.run import Command
from effbench.sweeping.selection import excluded

if TYPE_CHECKING:
    import pandas as pd

#: A row of the table `claim_verdict`, or a check's outcome.
Row = dict[str, Any]
NO_CUDA = "needs a CUDA GPU, but this machine has none"
#: Groups whose choice replaces the experiment's settings in them. The claims compare settings of
#: models and modes.
GROUPS = {"protocol", "stream", "executor"}
#: Settings of a sweep that an experiment refuses: it always resumes, and runs in effbench's own
#: interpreter.
REFUSED = ("resume", "shard", *plan.INTERPRETER_KEYS)


@dataclass(frozen=True)
class Machine:
    """The machine of the judged results: this one (`probed`: the probe's answer), or that of stored
    results."""

    server: ForkServer
    environment_id: str
    name: str
    has_cuda: bool
    probed: Mapping[str, Any] | None = None

    @classmethod
    def here(cls, server: ForkServer, device: str) -> Machine:
        answer = server.call("probe", ProbeRequest(device=device).to_json(), PROBE_TIMEOUT_S)
        environment = Environment(**answer["environment"])
        return cls(server, environment.id, "this machine", bool(answer["gpus"]), answer)

    @classmethod
    def stored(cls, server: ForkServer, row: Mapping[str, Any]) -> Machine:
        """Return the machine of a row of the table `environment`."""
        name = f"{row['gpu_name'] or row['cpu_name']}, torch {row['torch_version']}"
        return cls(server, row["id"], name, row["gpu_name"] is not None)

    @classmethod
    def all_stored(cls, server: ForkServer, db: str) -> list[Machine]:
        with Store.open(db, mode="read") as store:
            return [cls.stored(server, row) for row in store.environments()]


@dataclass
class Run:
    """An experiment on a machine. `overrides`: the user's, which change the question. `rows`: sweep
    -> rows in order of its cells; `reused`: how many rows were measured before; `checks`: name ->
    status, reason, facts.

    If `interrupted` or `missing` (what is not stored) is set, nothing was judged.
    `mistakes`: errors of claims that use something that does not exist.
    """

    experiment: Experiment
    machine: Machine
    db: str
    overrides: Sequence[str] = ()
    fresh: bool = False
    quiet: bool = False
    rows: dict[str, list[Result]] = field(default_factory=dict)
    reused: int = 0
    checks: dict[str, Row] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    interrupted: bool = False
    missing: str = ""
    mistakes: list[str] = field(default_factory=list)

    @property
    def on_cpu(self) -> bool:
        return not self.machine.has_cuda or "device=cpu" in self.overrides

    def is_asked(self, name: str) -> bool:
        """Return whether a sweep or a check is needed: without a GPU not if only claims about CUDA
        use it. A sweep that no claim uses is needed, because it may have tables."""
        is_sweep = name in self.experiment.sweeps
        names = {name}
        if is_sweep:
            names.add("rows")
        claims = [claim for claim in self.experiment.claims if names & set(claim.inputs)]
        if not claims:
            return is_sweep
        return any(not (self.on_cpu and claim.needs) for claim in claims)

    def execute(self) -> Run:
        """Measure what is missing (nothing for a machine with stored results), judge the claims,
        store the verdicts; return self.

        Raises EffbenchError for errors before a sweep's first trial; failed trials and checks only
        get a status.
        """
        check_settings(self.overrides)
        for name in filter(self.is_asked, self.experiment.sweeps):
            if not (self.interrupted or self.missing):
                words = command_of(self.experiment, name, self.overrides, self.db)
                quiet = self.quiet or not self.machine.probed
                collect = partial(self.collect_rows, name)
                hydra_sweep(words, quiet, conductor=collect, server=self.machine.server)
        if not (self.interrupted or self.missing):
            self.collect_facts()
        if self.interrupted or self.missing:
            return self
        self.judgements = [self.judge(claim) for claim in self.experiment.claims]
        verdicts = [self.verdict_row(judgement) for judgement in self.judgements]
        with Store.open(self.db, mode="write") as store:
            probed = self.machine.probed
            if probed:
                store.add_environment(Environment(**probed["environment"]), probed["details"])
            store.add_verdicts(self.machine.environment_id, verdicts)
        return self

    # --- measure ---

    def collect_rows(self, name: str, jobs: Sequence[plan.Job], command: Command) -> None:
        """Collect the rows of one sweep, after measuring what is missing. Hydra's launcher calls it
        like `conduct`."""
        parts, settings = plan.split(jobs)
        machine = self.machine
        is_stored = machine.probed is None
        environment_id = machine.environment_id
        has_cuda = machine.has_cuda
        answer = probe(machine.server, parts, settings.baseline_mode, modes_only=is_stored)
        if not is_stored:
            environment_id = Environment(**answer["environment"]).id
            has_cuda = bool(answer["gpus"])
        cells = plan.resolve(parts, has_cuda)
        unwanted, _ = excluded(cells, settings.exclude)
        wanted = [cell for cell in cells if cell not in unwanted]
        keys = [cell.key for cell in wanted]
        with Store.open(settings.db, mode="read" if is_stored else "write") as store:
            cached = partial(cached_rows, store, wanted, environment_id, settings)
            rows = []
            if is_stored:
                rows = cached()
            elif not self.fresh:
                rows = cached(settings.timeout_s, accepts_marked=False)
            self.reused += len(rows)
            lacking = set(keys) - {row.cell_key for row in rows}
            if lacking and is_stored:
                which = f"{len(lacking)} of {len(wanted)} cells of the sweep {name}"
                self.missing = f"{which} were not measured with these settings"
            elif lacking:
                self.measure(lacking, dict(zip(cells, jobs, strict=True)), command)
                rows = cached()
        self.rows[name] = sorted(rows, key=lambda row: keys.index(row.cell_key))

    def measure(
        self, keys: Collection[str], jobs: Mapping[Cell, plan.Job], command: Command
    ) -> None:
        left = [job for cell, job in jobs.items() if cell.key in keys]
        self.interrupted = plan.conduct(left, command).state == "interrupted"

    def collect_facts(self) -> None:
        """Collect the facts of the checks, measured or stored."""
        checks = list(filter(self.is_asked, self.experiment.checks))
        machine = self.machine
        if machine.probed:
            path = self.experiment.path.resolve()
            device = "cpu" if self.on_cpu else "auto"
            requests = [CheckRequest(f"{path}:{name}", {}, device) for name in checks]
            outcomes = run_checks(requests, machine.server, machine.probed["gpus"])
            self.checks = dict(zip(checks, outcomes, strict=True))
            return
        subject = (self.experiment.name, machine.environment_id)
        with Store.open(self.db, mode="read") as store:
            for row in store.verdicts():  # oldest first
                if (row["experiment"], row["environment_id"]) == subject and row["measured"]:
                    self.checks |= row["measured"].get("evidence", {})
        lacking = sorted(set(checks) - self.checks.keys())
        if lacking:
            self.missing = f"the facts of {', '.join(lacking)} were not gathered"

    # --- judge ---

    def rows_of(self, name: str) -> list[Result]:
        """Return the rows of a sweep, or of all sweeps (`rows`), each once: two sweeps may share a
        cell."""
        names = list(self.rows) if name == "rows" else [name]
        unique = {}
        for sweep in names:
            for row in self.rows.get(sweep, ()):
                unique[row.sweep_id, row.cell_key] = row
        return list(unique.values())

    def frame(self, name: str, with_marks: bool = False) -> pd.DataFrame:
        return frame_of(self.rows_of(name), self.experiment.swept, with_marks)

    def input(self, name: str) -> Any:
        """Return the argument of a claim's function for a parameter: a frame of rows, or a check's
        facts."""
        if name not in self.experiment.checks:
            return self.frame(name)
        check = self.checks[name]
        if check["status"] == Status.OK:
            return facts_of(check["facts"] or {})
        return no_facts(f"{check['status']}: {check['reason']}")

    def judge(self, claim: Claim) -> Judgement:
        """Judge a claim. A mistake in it does not affect other claims."""
        if self.on_cpu and claim.needs:
            return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, claim.not_measurable or NO_CUDA)
        try:
            return judge(claim, {name: self.input(name) for name in claim.inputs})
        except ClaimError as error:
            self.mistakes.append(f"{self.experiment.path}: claim {claim.id}: {error}")
            return Judgement(claim, ClaimVerdict.NOT_MEASURED, f"it cannot be judged: {error}")

    def verdict_row(self, judgement: Judgement) -> Row:
        """Return a row of `claim_verdict`, without its environment and time."""
        claim = judgement.claim
        evidence, sweeps = {}, set()
        for name in claim.inputs:
            if name in self.checks:
                check = self.checks[name]
                evidence[name] = {key: check[key] for key in ("status", "reason", "facts")}
            sweeps |= {row.sweep_id for row in self.rows_of(name)}
        measured = {
            **bounds(judgement.value),
            "unit": claim.unit,
            "parts": [
                {"label": part.label, "holds": part.outcome.holds, **bounds(part.value)}
                for part in judgement.parts
                if part.label
            ],
            "also": judgement.also,
            "sweeps": sorted(sweeps),
            "overrides": [],
            "evidence": evidence,
        }
        if sweeps:
            overrides = [word for word in self.overrides if key_of(word) != "device"]
            measured["overrides"] = overrides
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


def cached_rows(
    store: Store,
    cells: Iterable[Cell],
    environment_id: str,
    settings: Settings,
    timeout_s: float = 0,
    accepts_marked: bool = True,
) -> list[Result]:
    """Return the rows of the complete cases, each from the newest sweep that measured it with the
    same protocol in this environment. A failed cell is complete after any number of rounds, unless
    it timed out after less than this time. `accepts_marked`: so is a marked one; otherwise it can
    be measured again, perhaps on a quieter host."""
    cases = grouped(cells, lambda cell: cell.comparison_key)
    complete: list[Result] = []
    for sweep in recorded_here_first(store.sweeps()):
        protocol = {"eliminate": None} | sweep.protocol  # older sweeps lack it
        if protocol != vars(settings.protocol) or sweep.baseline_mode != settings.baseline_mode:
            continue
        rows = final_rows(store, sweep, environment_id)
        remove_early_timeouts(rows, store, sweep.id, timeout_s)
        if not accepts_marked:
            rows = {key: row for key, row in rows.items() if not row.marked}
        for case, members in list(cases.items()):
            keys = [cell.key for cell in members]
            if rows.keys() >= set(keys):
                complete += [rows[key] for key in keys]
                del cases[case]
    return complete


def final_rows(store: Store, sweep: SweepInfo, environment_id: str) -> dict[str, Result]:
    """Return cell key -> row of the cells that need no further round."""
    rows = {}
    for row in store.results(sweep.id):
        # a cell may end before the last round if its interval is narrow enough
        has_ended = sweep.state == "completed" or row.trials >= sweep.rounds
        is_final = has_ended or not row.status.is_measured
        if row.environment_id == environment_id and is_final:
            rows[row.cell_key] = row
    return rows


def remove_early_timeouts(
    rows: dict[str, Result], store: Store, sweep_id: str, timeout_s: float
) -> None:
    """Remove the rows of cells that timed out after less than this time."""
    late = [row for row in rows.values() if row.status is Status.TIMEOUT]
    if not late:
        return
    history = store.history(sweep_id, late[0].environment_id)
    for row in late:
        key = row.cell_key
        if max(trial.wall_s or 0 for trial in history[key]) < timeout_s:
            del rows[key]
