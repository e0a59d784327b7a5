"""Runs an experiment: its sweeps (less what is measured already), its checks, its claims; stores the verdicts."""

from __future__ import annotations

import math
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any

from effbench.cell import Environment, Status
from effbench.config import Config
from effbench.errors import ConfigError, UsageError
from effbench.experiments.definition import Claim, Experiment
from effbench.experiments.figures import ClaimError, Facts, Figure, Missing, Truth
from effbench.experiments.frames import frame_of
from effbench.experiments.judge import Judgement, judge
from effbench.experiments.reuse import measured_otherwise, stored_rows
from effbench.launcher import cells as plan
from effbench.launcher.cells import conduct
from effbench.launcher.errors import suggest
from effbench.launcher.launch import hydra_sweep
from effbench.launcher.overrides import key_of
from effbench.message import CheckRequest, ProbeRequest
from effbench.store.decisions import ClaimVerdict
from effbench.store.store import Store
from effbench.sweeping.checks import CheckOutcome, gather
from effbench.sweeping.client import ForkServer
from effbench.sweeping.plan import Settings
from effbench.sweeping.pool import PROBE_TIMEOUT_S, fit_modes, probe
from effbench.sweeping.progress import Progress
from effbench.sweeping.run import Command, Outcome

NO_CUDA = "needs a CUDA GPU, and there is none here"
#: Groups whose choice brings its own settings. Those of a model or mode stay: they are what the claims compare.
GROUPS = {"protocol", "stream", "executor"}


@dataclass
class Machine:
    """Where experiments run, probed once: its environment and its GPUs (none: they run on the CPU)."""

    server: ForkServer
    environment: Environment
    details: dict[str, Any]
    gpus: list[dict[str, Any]]

    @classmethod
    def probe(cls, server: ForkServer, device: str) -> Machine:
        answer = server.call("probe", ProbeRequest(device=device).to_json(), PROBE_TIMEOUT_S)
        return cls(server, Environment(**answer["environment"]), answer["details"], answer["gpus"])


@dataclass
class Swept:
    """The rows of one sweep of an experiment, and what their modes said. `reused`: rows that were not measured now."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    reused: int = 0

    @property
    def sweep_ids(self) -> list[str]:
        return sorted({row["sweep_id"] for row in self.rows})

    def take(self, store: Store, rows: list[dict[str, Any]], keys: Sequence[str], environment_id: str) -> None:
        """Take these rows, in the order of their cells' `keys`, with the facts of their trials."""
        order = {key: index for index, key in enumerate(keys)}
        self.rows = sorted(rows, key=lambda row: order[row["cell_key"]])
        for sweep_id in self.sweep_ids:
            own = {row["cell_key"] for row in self.rows if row["sweep_id"] == sweep_id}
            trials = [trial for trial in store.trials(sweep_id) if trial["environment_id"] == environment_id]
            self.facts |= facts_of(trial for trial in trials if trial["cell_key"] in own)


def facts_of(trials: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Cell key -> what its mode said in its ok trials: medians of numbers, else what the last trial said."""
    values: dict[str, dict[str, list[Any]]] = {}
    for trial in trials:
        if trial["status"] == Status.OK:
            for name, value in (trial["extra"] or {}).get("facts", {}).items():
                values.setdefault(trial["cell_key"], {}).setdefault(name, []).append(value)

    def middle(found: list[Any]) -> Any:
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
        return median(found) if is_number else found[-1]

    return {key: {name: middle(found) for name, found in facts.items()} for key, facts in values.items()}


@dataclass
class Run:
    """An experiment that was run or judged again. `interrupted`: nothing was judged. `skipped`: why nothing ran.
    `missing`: what a judgement of stored rows lacks. `mistakes`: of claims that ask for what does not exist.
    `overrides`: given by the user: they ask another question."""

    experiment: Experiment
    environment_id: str
    on_cpu: bool
    overrides: tuple[str, ...] = ()
    swept: dict[str, Swept] = field(default_factory=dict)
    checks: dict[str, CheckOutcome] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    interrupted: bool = False
    skipped: str | None = None
    missing: str | None = None
    mistakes: list[str] = field(default_factory=list)

    @property
    def sweeps(self) -> dict[str, Sequence[str]]:
        """Those to be run here: without a GPU not those that only claims about CUDA ask for."""
        experiment = self.experiment

        def means_something(name: str) -> bool:
            claims = [claim for claim in experiment.claims if {name, "rows"} & set(claim.inputs)]
            return not self.on_cpu or not claims or any(claim.needs != "cuda" for claim in claims)

        return {name: words for name, words in experiment.sweeps.items() if means_something(name)}

    def results(self, name: str) -> Swept:
        """The rows of a sweep, or of all sweeps (`rows`), each once: two sweeps may share a cell."""
        chosen = list(self.swept.values()) if name == "rows" else [self.swept.get(name, Swept())]
        rows = {(row["sweep_id"], row["cell_key"]): row for swept in chosen for row in swept.rows}
        return Swept(list(rows.values()), {key: facts for swept in chosen for key, facts in swept.facts.items()})

    def input(self, name: str) -> Any:
        """What a claim's function gets for a parameter: a frame of rows, or a check's facts."""
        if name in self.experiment.checks:
            outcome = self.checks[name]
            ran = outcome.status is Status.OK
            return Facts(outcome.facts or {}) if ran else Missing(f"{outcome.status}: {outcome.reason}")
        results = self.results(name)
        return frame_of(results.rows, self.experiment.swept, results.facts)

    def judge(self) -> None:
        """Judge all claims. A mistake in one costs that one alone."""
        for claim in self.experiment.claims:
            if self.skipped or (claim.needs == "cuda" and self.on_cpu):
                judgement = Judgement(claim.id, ClaimVerdict.NOT_MEASURABLE, claim.not_measurable or NO_CUDA)
            else:
                try:
                    judgement = judge(claim, {name: self.input(name) for name in claim.inputs})
                except ClaimError as error:
                    self.mistakes.append(f"{self.experiment.path}: claim {claim.id}: {error}")
                    judgement = Judgement(claim.id, ClaimVerdict.NOT_MEASURED, f"it cannot be judged: {error}")
            self.judgements.append(judgement)

    def verdict_rows(self) -> list[dict[str, Any]]:
        """Rows of `claim_verdict`, less their environment and time."""
        return [self.verdict_row(*pair) for pair in zip(self.experiment.claims, self.judgements, strict=True)]

    def verdict_row(self, claim: Claim, judgement: Judgement) -> dict[str, Any]:
        checks = {name: self.checks[name] for name in claim.inputs if name in self.checks}
        frames = [name for name in claim.inputs if name not in self.experiment.checks]
        sweeps = sorted({sweep_id for name in frames for sweep_id in self.results(name).sweep_ids})
        overrides = [word for word in self.overrides if key_of(word) not in ("device", "db")] if sweeps else []
        measured = {
            **bounds(judgement.value),
            "unit": judgement.unit,
            "parts": [
                {"label": part.label, "holds": part.holds.holds, **bounds(part.value)}
                for part in judgement.parts
                if part.label
            ],
            "also": dict(judgement.also),
            "sweeps": sweeps,
            "overrides": overrides,
            "evidence": {
                name: {"status": str(outcome.status), "reason": outcome.reason, "facts": outcome.facts}
                for name, outcome in checks.items()
            },
        }
        return {
            "claim": claim.id,
            "experiment": self.experiment.name,
            "sweep_id": sweeps[-1] if sweeps else None,
            "verdict": str(judgement.verdict),
            "reason": judgement.reason,
            "measured": as_json(measured),
        }


def bounds(value: Figure | None) -> dict[str, float]:
    return {} if value is None else {"value": value.value, "low": value.low, "high": value.high}


def as_json(value: Any) -> Any:
    """Figures, conditions and facts as JSON carries them; an infinite bound is no bound."""
    if isinstance(value, Missing):
        return None
    if isinstance(value, Figure):
        return as_json(value.value if value.is_exact else bounds(value))
    if isinstance(value, Truth):
        return value.holds
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def reproduce(
    experiment: Experiment,
    machine: Machine,
    db: str,
    overrides: Sequence[str] = (),
    fresh: bool = False,
    quiet: bool = False,
    on_check: Callable[[CheckOutcome], None] = lambda outcome: None,
) -> Run:
    """Run what is missing, judge the claims, store the verdicts. `overrides` are laid over those of every sweep.

    Raises EffbenchError for what is wrong before a sweep's first trial; trials and checks that fail are statuses, and a
    claim that cannot be judged is among `mistakes`.
    """
    if any(key_of(word) == "resume" for word in overrides):
        raise UsageError("reproduce runs only what is missing: omit resume")
    check_settings(overrides)
    on_cpu = not machine.gpus or any(word.partition("=")[::2] == ("device", "cpu") for word in overrides)
    run = Run(experiment, machine.environment.id, on_cpu, tuple(overrides))
    if experiment.needs == "cuda" and on_cpu:
        run.skipped = NO_CUDA
    else:
        for name, words in run.sweeps.items():
            conductor = Conductor(fresh)
            argv = command_of(experiment, name, words, overrides, db)
            hydra_sweep(argv, quiet=quiet, conductor=conductor, server=machine.server)
            run.swept[name] = conductor.swept
            if conductor.outcome and conductor.outcome.state == "interrupted":
                run.interrupted = True
                return run
        path = experiment.path.resolve()
        requests = [CheckRequest(f"{path}:{name}", {}, "cpu" if on_cpu else "auto") for name in experiment.checks]
        outcomes = gather(requests, machine.server, machine.gpus, on_outcome=on_check)
        run.checks = dict(zip(experiment.checks, outcomes, strict=False))
        run.interrupted = len(outcomes) < len(requests)
        if run.interrupted:
            return run
    run.judge()
    with Store.open(db, mode="write") as store:
        store.add_environment(machine.environment, machine.details)
        store.add_verdicts(machine.environment.id, run.verdict_rows())
    return run


def judge_stored(
    experiment: Experiment, environment: Mapping[str, Any], server: ForkServer, db: str, overrides: Sequence[str] = ()
) -> Run:
    """Judge an experiment by what was measured in this environment (a row of it), and store the verdicts.

    The facts of checks are those of the newest verdicts that rest on them. If a part was never measured, nothing is
    judged, and `missing` names it.
    """
    run = Run(experiment, environment["id"], environment["gpu_name"] is None, tuple(overrides))
    if experiment.needs == "cuda" and run.on_cpu:
        run.skipped = NO_CUDA
    else:
        for name, words in run.sweeps.items():
            conductor = Conductor(environment=environment)
            argv = command_of(experiment, name, words, overrides, db)
            hydra_sweep(argv, quiet=True, conductor=conductor, server=server)
            run.swept[name] = conductor.swept
            if conductor.missing:
                run.missing = f"of the sweep {name}, {conductor.missing}"
                return run
        with Store.open(db, mode="read") as store:
            run.checks = stored_checks(experiment, store.verdicts(), environment["id"])
        asked = {name for claim in experiment.claims for name in claim.inputs} & set(experiment.checks)
        if missing := sorted(asked - run.checks.keys()):
            run.missing = f"the facts of {', '.join(missing)} were not gathered"
            return run
    run.judge()
    with Store.open(db, mode="write") as store:
        store.add_verdicts(environment["id"], run.verdict_rows())
    return run


def stored_checks(
    experiment: Experiment, verdicts: Sequence[Mapping[str, Any]], environment_id: str
) -> dict[str, CheckOutcome]:
    """The outcomes of checks that the newest verdicts of this environment carry."""
    found: dict[str, CheckOutcome] = {}
    for row in verdicts:  # oldest first
        if (row["experiment"], row["environment_id"]) == (experiment.name, environment_id):
            for name, kept in (row["measured"] or {}).get("evidence", {}).items():
                if name in experiment.checks:
                    status, reason, facts = Status(kept["status"]), kept["reason"], kept["facts"]
                    found[name] = CheckOutcome(CheckRequest(name), status, reason, facts, 0.0)
    return found


class Conductor:
    """Stands in for `conduct`: measures only what is not measured yet. With `environment` (a row of it) nothing is
    measured, and `missing` says what was not."""

    def __init__(self, fresh: bool = False, environment: Mapping[str, Any] | None = None) -> None:
        self.fresh = fresh
        self.environment = environment
        self.swept = Swept()
        self.outcome: Outcome | None = None
        self.missing: str | None = None

    def __call__(
        self,
        jobs: Sequence[plan.Job],
        command: Command,
        server: ForkServer,
        progress: Progress,
        stop: threading.Event,
        extend: Outcome | None = None,
    ) -> Outcome | None:
        parts, settings = plan.split(jobs)
        if chosen := sorted({name for part in parts for name in plan.INTERPRETER_KEYS if part[name] is not None}):
            raise ConfigError(f"reproduce runs under its own interpreter: omit {' and '.join(chosen)}")
        if self.environment is None:
            answer = probe(server, parts, settings.baseline_mode)
            has_cuda, environment_id = bool(answer["gpus"]), Environment(**answer["environment"]).id
        else:
            fit_modes(server, parts, settings.baseline_mode)
            has_cuda, environment_id = self.environment["gpu_name"] is not None, self.environment["id"]
        cells = [plan.resolve([part], has_cuda)[0] for part in parts]
        known = {cell.key: cell for cell in cells}
        with Store.open(settings.db, mode="write" if self.environment is None else "read") as store:
            rows = [] if self.fresh else stored_rows(store, list(known.values()), environment_id, settings)
            missing = known.keys() - {row["cell_key"] for row in rows}
            if missing and self.environment is not None:
                self.missing = what_is_missing(store, missing, len(known), environment_id, settings)
        self.swept.reused = len(rows)
        if missing and self.environment is None:
            left = [job for job, cell in zip(jobs, cells, strict=True) if cell.key in missing]
            self.outcome = conduct(left, command, server, progress, stop, extend)
        with Store.open(settings.db, mode="read") as store:
            if self.outcome:
                rows += [row for row in store.results(self.outcome.sweep_id) if row["environment_id"] == environment_id]
            self.swept.take(store, rows, list(known), environment_id)
        latencies = {row["cell_key"]: row["latency_ms"] for row in rows}
        return self.outcome and replace(self.outcome, latencies=[latencies.get(cell.key) for cell in cells])


def what_is_missing(store: Store, missing: set[str], cells: int, environment_id: str, settings: Settings) -> str:
    """Name the cells that were not measured, and the overrides if they were measured in another way."""
    otherwise, words = measured_otherwise(store, missing, environment_id, settings)
    texts = []
    if otherwise:
        way = f"measured in another way: judge them with {shlex.join(words)}"
        texts.append(f"{len(otherwise)} of the {cells} cells were {way}")
    if rest := len(missing) - len(otherwise):
        texts.append(f"{rest} of the {cells} cells were not measured")
    return "; ".join(texts)


def check_settings(overrides: Sequence[str]) -> None:
    """Raises ConfigError for unknown settings, also if no sweep asks Hydra."""
    known = [setting.name for setting in fields(Config)]
    for word in overrides:
        name = re.split(r"[./@]", str(key_of(word)))[0]
        if name not in (*known, "hydra", "--config-dir"):
            raise ConfigError(f"unknown setting {name!r}{suggest(name, known)}; effbench --help lists all settings")


def command_of(experiment: Experiment, name: str, words: Sequence[str], overrides: Sequence[str], db: str) -> list[str]:
    """The words of this sweep: the experiment's, less what the user overrides."""
    title = experiment.name if len(experiment.sweeps) == 1 else f"{experiment.name}/{name}"
    own = [*words, f"sweep.name={title}", "on_failure=ignore", f'db="{db}"']
    given = {key_of(word) for word in overrides}
    left = [word for word in own if key_of(word) not in given]
    replaced = replaced_with_group(left, overrides)
    return ["-m", *(word for word in left if word not in replaced), *overrides]


def replaced_with_group(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The experiment's settings of a group that the user replaces: `protocol.rounds=3` was meant for the protocol that
    `protocol=quick` replaces. Not those that the user gives as well."""
    given = {key_of(word) for word in overrides}
    settings = [word for word in words if "." in (key_of(word) or "") and key_of(word) not in given]
    return [word for word in settings if str(key_of(word)).partition(".")[0] in given & GROUPS]
