"""Run an experiment: measure what its sweeps lack, run its checks, judge its claims, and store the
verdicts.

Cells that are compared with each other (all modes of one case) come from one sweep, because a
speedup across sweeps would compare two sessions. So a case that no sweep measured completely is
measured again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from effbench.cell import Cell, Environment, Status
from effbench.config import Config, quoted
from effbench.errors import ConfigError, suggest
from effbench.experiments.definition import Claim, Experiment
from effbench.experiments.figures import ClaimError, Facts, Missing
from effbench.experiments.frames import frame_of
from effbench.experiments.judge import Judgement, as_json, bounds, judge
from effbench.launcher import cells as plan
from effbench.launcher.launch import hydra_sweep
from effbench.launcher.overrides import key_of
from effbench.message import CheckRequest, ProbeRequest
from effbench.store.decisions import ClaimVerdict
from effbench.store.store import Store
from effbench.store.sweeps import recorded_here_first
from effbench.sweeping.client import ForkServer
from effbench.sweeping.matrix import excluded
from effbench.sweeping.plan import Settings
from effbench.sweeping.pool import PROBE_TIMEOUT_S, probe, run_checks
from effbench.sweeping.run import Command

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
        return cls(
            server,
            Environment(**answer["environment"]).id,
            "this machine",
            bool(answer["gpus"]),
            answer,
        )

    @classmethod
    def stored(cls, server: ForkServer, row: Mapping[str, Any]) -> Machine:
        """Return the machine of a row of the table `environment`."""
        name = f"{row['gpu_name'] or row['cpu_name']}, torch {row['torch_version']}"
        return cls(server, row["id"], name, row["gpu_name"] is not None)


@dataclass
class Run:
    """An experiment on a machine. `overrides`: the user's, which change the question. `rows`: sweep
    -> rows in order of its cells; `reused`: how many rows were measured before; `checks`: name ->
    status, reason, facts.

    If `interrupted` or `missing` (sweeps that are not stored) is set, nothing was judged.
    `mistakes`: errors of claims that use something that does not exist.
    """

    experiment: Experiment
    machine: Machine
    db: str
    overrides: Sequence[str] = ()
    fresh: bool = False
    quiet: bool = False
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    reused: int = 0
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    interrupted: bool = False
    missing: str | None = None
    mistakes: list[str] = field(default_factory=list)

    @property
    def on_cpu(self) -> bool:
        return not self.machine.has_cuda or any(
            word.split("=") == ["device", "cpu"] for word in self.overrides
        )

    def is_asked(self, name: str) -> bool:
        """Return whether a sweep or a check is needed: without a GPU not if only claims about CUDA
        use it. A sweep that no claim uses is needed, because it may have tables."""
        names = {name, "rows"} if name in self.experiment.sweeps else {name}
        claims = [claim for claim in self.experiment.claims if names & set(claim.inputs)]
        return any(not (self.on_cpu and claim.needs) for claim in claims) or (
            not claims and "rows" in names
        )

    def execute(self) -> Run:
        """Measure what is missing (nothing for a machine with stored results), judge the claims,
        store the verdicts; return self.

        Raises EffbenchError for errors before a sweep's first trial; failed trials and checks only
        get a status.
        """
        check_settings(self.overrides)
        self.gather()
        if self.interrupted or self.missing:
            return self
        self.judgements = [self.judge(claim) for claim in self.experiment.claims]
        with Store.open(self.db, mode="write") as store:
            if probed := self.machine.probed:
                store.add_environment(Environment(**probed["environment"]), probed["details"])
            store.add_verdicts(
                self.machine.environment_id, [*map(self.verdict_row, self.judgements)]
            )
        return self

    def gather(self) -> None:
        """Collect the rows of the sweeps, then the facts of the checks, measured or stored."""
        experiment, machine = self.experiment, self.machine
        for name in filter(self.is_asked, experiment.sweeps):
            words = command_of(experiment, name, self.overrides, self.db)
            quiet = self.quiet or not machine.probed
            hydra_sweep(
                words, quiet=quiet, conductor=partial(self.sweep, name), server=machine.server
            )
            if self.interrupted or self.missing:
                return
        checks = list(filter(self.is_asked, experiment.checks))
        if machine.probed:
            device, path = "cpu" if self.on_cpu else "auto", experiment.path.resolve()
            requests = [CheckRequest(f"{path}:{name}", {}, device) for name in checks]
            for name, done in zip(
                checks, run_checks(requests, machine.server, machine.probed["gpus"]), strict=True
            ):
                self.checks[name] = {key: done[key] for key in ("status", "reason", "facts")}
            return
        with Store.open(self.db, mode="read") as store:
            for row in store.verdicts():  # oldest first
                if (row["experiment"], row["environment_id"]) == (
                    experiment.name,
                    machine.environment_id,
                ):
                    self.checks |= (row["measured"] or {}).get("evidence", {})
        if lacking := sorted(set(checks) - self.checks.keys()):
            self.missing = f"the facts of {', '.join(lacking)} were not gathered"

    def sweep(self, name: str, jobs: Sequence[plan.Job], command: Command) -> None:
        """Collect the rows of one sweep, after measuring what is missing. Hydra's launcher calls it
        like `conduct`."""
        parts, settings = plan.split(jobs)
        server, environment_id, has_cuda = (
            self.machine.server,
            self.machine.environment_id,
            self.machine.has_cuda,
        )
        if self.machine.probed:
            answer = probe(server, parts, settings.baseline_mode)
            environment_id, has_cuda = Environment(**answer["environment"]).id, bool(answer["gpus"])
        else:
            probe(server, parts, settings.baseline_mode, modes_only=True)
        cells = plan.resolve(parts, has_cuda)
        matched, _ = excluded(cells, settings.exclude)
        kept = [cell for cell in cells if cell not in matched]
        keys = {cell.key: position for position, cell in enumerate(kept)}
        with Store.open(settings.db, mode="write" if self.machine.probed else "read") as store:
            stored = partial(stored_rows, store, kept, environment_id, settings)
            if self.fresh:
                rows = []
            elif self.machine.probed:
                rows = stored(settings.timeout_s, accepts_marked=False)
            else:
                rows = stored()
            self.reused += len(rows)
            lacking = keys.keys() - {row["cell_key"] for row in rows}
            if lacking and not self.machine.probed:
                which = f"{len(lacking)} of {len(keys)} cells of the sweep {name}"
                self.missing = f"{which} were not measured with these settings"
            elif lacking:
                left = [job for job, cell in zip(jobs, cells, strict=True) if cell.key in lacking]
                self.interrupted = plan.conduct(left, command).state == "interrupted"
                rows = stored()
        self.rows[name] = sorted(rows, key=lambda row: keys[row["cell_key"]])

    def rows_of(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a sweep, or of all sweeps (`rows`), each once: two sweeps may share a
        cell."""
        chosen = self.rows.values() if name == "rows" else [self.rows.get(name, [])]
        return list(
            {(row["sweep_id"], row["cell_key"]): row for rows in chosen for row in rows}.values()
        )

    def input(self, name: str) -> Any:
        """Return the argument of a claim's function for a parameter: a frame of rows, or a check's
        facts."""
        if name not in self.experiment.checks:
            return frame_of(self.rows_of(name), self.experiment.swept)
        check = self.checks[name]
        is_ok = check["status"] == Status.OK
        return (
            Facts(check["facts"] or {})
            if is_ok
            else Missing(f"{check['status']}: {check['reason']}")
        )

    def judge(self, claim: Claim) -> Judgement:
        """Judge a claim. A mistake in it does not affect other claims."""
        if self.on_cpu and claim.needs:
            return Judgement(claim, ClaimVerdict.NOT_MEASURABLE, claim.not_measurable or NO_CUDA)
        try:
            return judge(claim, {name: self.input(name) for name in claim.inputs})
        except ClaimError as error:
            self.mistakes.append(f"{self.experiment.path}: claim {claim.id}: {error}")
            return Judgement(claim, ClaimVerdict.NOT_MEASURED, f"it cannot be judged: {error}")

    def verdict_row(self, judgement: Judgement) -> dict[str, Any]:
        """Return a row of `claim_verdict`, without its environment and time."""
        claim = judgement.claim
        names = [name for name in claim.inputs if name not in self.experiment.checks]
        sweeps = sorted({row["sweep_id"] for name in names for row in self.rows_of(name)})
        overrides = [word for word in self.overrides if key_of(word) != "device"] if sweeps else []
        parts = [part for part in judgement.parts if part.label]
        measured = {
            **bounds(judgement.value),
            "unit": claim.unit,
            "parts": [
                {"label": part.label, "holds": part.holds.holds, **bounds(part.value)}
                for part in parts
            ],
            "also": judgement.also,
            "sweeps": sweeps,
            "overrides": overrides,
            "evidence": {name: self.checks[name] for name in claim.inputs if name in self.checks},
        }
        return {
            "claim": claim.id,
            "experiment": self.experiment.name,
            "sweep_id": sweeps[-1] if sweeps else None,
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
    title = experiment.name if len(experiment.sweeps) == 1 else f"{experiment.name}/{name}"
    words = [
        *experiment.sweeps[name],
        f"sweep.name={title}",
        "on_failure=ignore",
        f"db={quoted(db)}",
    ]
    keys = {word: str(key_of(word)) for word in words}
    given = {str(key_of(word)) for word in overrides}
    replaced = given | {key for key in keys.values() if key.partition(".")[0] in given & GROUPS}
    return ["-m", *(word for word, key in keys.items() if key not in replaced), *overrides]


def stored_rows(
    store: Store,
    cells: Sequence[Cell],
    environment_id: str,
    settings: Settings,
    timeout_s: float = 0,
    accepts_marked: bool = True,
) -> list[dict[str, Any]]:
    """Return the rows of the complete cases, each from the newest sweep that measured it with the
    same protocol in this environment. A failed cell is complete after any number of rounds, unless
    it timed out after less than this time. `accepts_marked`: so is a marked one; otherwise it can
    be measured again, perhaps on a quieter host."""
    cases: dict[str, set[str]] = {}
    for cell in cells:
        cases.setdefault(cell.comparison_key, set()).add(cell.key)
    complete: list[dict[str, Any]] = []
    for sweep in recorded_here_first(store.sweeps()):
        protocol = {"eliminate": None} | sweep.protocol  # older sweeps lack it
        if not cases or (protocol, sweep.baseline_mode) != (
            vars(settings.protocol),
            settings.baseline_mode,
        ):
            continue
        rows = {}
        for row in store.results(sweep.id):
            # a cell may end before the last round if its interval is narrow enough
            ended = row["trials"] >= sweep.rounds or sweep.state == "completed"
            if row["marked"] and not accepts_marked:
                continue
            if row["environment_id"] == environment_id and (
                ended or not Status(row["status"]).is_measured
            ):
                rows[row["cell_key"]] = row
        if late := [key for key, row in rows.items() if row["status"] == Status.TIMEOUT]:
            recorded = store.history(sweep.id, environment_id)
            for key in late:
                if max(trial.wall_s or 0 for trial in recorded[key]) < timeout_s:
                    del rows[key]
        for case in [case for case, keys in cases.items() if keys <= rows.keys()]:
            complete += [rows[key] for key in cases.pop(case)]
    return complete
