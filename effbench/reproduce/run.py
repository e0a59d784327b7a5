"""Runs an experiment: its sweeps (less what was measured already), its evidence, its claims."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any

from effbench.analysis.claims import Claim, Judgement, Part, Verdict, judge, speaks_of_rows, subjects
from effbench.analysis.estimate import ABSENT, Estimate, Vector
from effbench.analysis.expression import ExpressionError, names_in
from effbench.analysis.rows import Missing, Rows
from effbench.cell import Environment, Status
from effbench.config import Config
from effbench.errors import ConfigError, UsageError
from effbench.launcher import cells as plan
from effbench.launcher.cells import conduct
from effbench.launcher.errors import suggest
from effbench.launcher.launch import hydra_sweep
from effbench.launcher.overrides import key_of, value_of
from effbench.message import EvidenceRequest, ProbeRequest
from effbench.reproduce.experiment import Experiment
from effbench.reproduce.reuse import look
from effbench.store.store import Store
from effbench.sweep.client import ForkServer
from effbench.sweep.evidence import EvidenceOutcome, gather
from effbench.sweep.pool import PROBE_TIMEOUT_S, probe
from effbench.sweep.progress import Progress
from effbench.sweep.run import Command, Outcome

NO_CUDA = "needs a CUDA GPU, and there is none here"
#: Whose settings go with the choice. Those of a model or mode stay: they are what the claims compare, and another that
#: does not have them says so.
GROUPS = {"protocol", "stream", "executor"}


@dataclass
class Machine:
    """Where experiments run, learned once: its environment and its GPUs (none where they run on the CPU)."""

    server: ForkServer
    environment: Environment
    details: dict[str, Any]
    gpus: list[dict[str, Any]]

    @classmethod
    def learn(cls, server: ForkServer, device: str) -> Machine:
        answer = server.call("probe", ProbeRequest(device=device).to_json(), PROBE_TIMEOUT_S)
        return cls(server, Environment(**answer["environment"]), answer["details"], answer["gpus"])


@dataclass
class Swept:
    """What one sweep of an experiment gave. `reused`: how many rows were not measured now."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    reused: int = 0

    @property
    def sweep_ids(self) -> list[str]:
        return sorted({row["sweep_id"] for row in self.rows})

    def take(self, store: Store, rows: list[dict[str, Any]], keys: Sequence[str], environment_id: str) -> None:
        """These rows, in the order of their cells' `keys`, and what their modes said in this environment."""
        order = {key: index for index, key in enumerate(keys)}
        self.rows = sorted(rows, key=lambda row: order[row["cell_key"]])
        for sweep_id in self.sweep_ids:
            own = {row["cell_key"] for row in self.rows if row["sweep_id"] == sweep_id}
            trials = [trial for trial in store.trials(sweep_id) if trial["environment_id"] == environment_id]
            self.facts |= facts_of(trial for trial in trials if trial["cell_key"] in own)


@dataclass
class Reproduction:
    """An experiment that was run. `interrupted`: not to its end, and nothing was judged. `mistakes`: of claims that ask
    for what does not exist. `overrides`: what the user asked for otherwise, with which a verdict is another one's."""

    experiment: Experiment
    environment_id: str
    overrides: tuple[str, ...] = ()
    swept: dict[str, Swept] = field(default_factory=dict)
    evidence: dict[str, EvidenceOutcome] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    interrupted: bool = False
    skipped: str | None = None  # why nothing ran
    mistakes: list[str] = field(default_factory=list)

    def scope(self, sweep: str | None) -> Rows:
        """What the names of an expression mean over the rows of this sweep (None: of all) and all evidence."""
        chosen = list(self.swept.values()) if sweep is None else [self.swept.get(sweep, Swept())]
        # two sweeps may share a cell
        rows = {(row["sweep_id"], row["cell_key"]): row for one in chosen for row in one.rows}
        facts = {key: value for one in chosen for key, value in one.facts.items()}
        pieces = {name: facts_or_reason(outcome) for name, outcome in self.evidence.items()}
        return Rows(list(rows.values()), self.experiment.names, pieces, facts)


def facts_or_reason(outcome: EvidenceOutcome) -> Mapping[str, Any]:
    if outcome.status is Status.OK:
        return outcome.facts or {}
    return Missing(f"{outcome.status}: {outcome.reason}")


class Reusing:
    """In the place of `conduct`: only what is not measured yet is run."""

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.swept = Swept()
        self.outcome: Outcome | None = None

    def __call__(
        self,
        configs: Sequence[dict[str, Any]],
        command: Command,
        server: ForkServer,
        progress: Progress,
        stop: threading.Event,
        extend: Outcome | None = None,
    ) -> Outcome | None:
        parts, settings = plan.split(configs)
        if chosen := sorted({name for part in parts for name in plan.INTERPRETER_KEYS if part[name] is not None}):
            raise ConfigError(f"reproduce runs under its own interpreter: leave {' and '.join(chosen)} out")
        answer = probe(server, parts, settings.baseline_mode)
        has_cuda = bool(answer["gpus"])
        cells = [plan.resolve([part], has_cuda)[0] for part in parts]
        environment_id = Environment(**answer["environment"]).id
        with Store.open(settings.db, mode="write") as store:
            known = {cell.key: cell for cell in cells}
            found = None if self.fresh else look(store, list(known.values()), environment_id, settings)
        missing = known.keys() if found is None else found.missing
        left = [config for config, cell in zip(configs, cells, strict=True) if cell.key in missing]
        rows = list(found.rows) if found else []
        self.swept.reused = len(rows)
        if left:
            self.outcome = conduct(left, command, server, progress, stop, extend)
        with Store.open(settings.db, mode="read") as store:
            if self.outcome:
                rows += [row for row in store.results(self.outcome.sweep_id) if row["environment_id"] == environment_id]
            self.swept.take(store, rows, list(known), environment_id)
        found = {row["cell_key"]: row["latency_ms"] for row in rows}
        return self.outcome and replace(self.outcome, latencies=[found.get(cell.key) for cell in cells])


def facts_of(trials: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Cell key -> what its mode said in its ok trials: medians of numbers, else what the last trial said."""
    said: dict[str, dict[str, list[Any]]] = {}
    for trial in trials:
        if trial["status"] == Status.OK:
            for name, value in (trial["extra"] or {}).get("facts", {}).items():
                said.setdefault(trial["cell_key"], {}).setdefault(name, []).append(value)
    return {key: {name: middle(values) for name, values in facts.items()} for key, facts in said.items()}


def middle(values: Sequence[Any]) -> Any:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return median(numbers) if len(numbers) == len(values) else values[-1]


def reproduce(
    experiment: Experiment,
    machine: Machine,
    db: str,
    overrides: Sequence[str] = (),
    fresh: bool = False,
    quiet: bool = False,
    on_evidence: Callable[[EvidenceOutcome], None] = lambda outcome: None,
) -> Reproduction:
    """Run what is missing, judge the claims, store the verdicts.

    `overrides` are laid over those of every sweep. Raises EffbenchError for what is wrong before a sweep's first trial;
    trials and pieces of evidence that fail are statuses, and a claim that cannot be judged is among `mistakes`.
    """
    if any(key_of(word) == "resume" for word in overrides):
        raise UsageError("reproduce runs only what is missing, of itself: leave resume out")
    check_settings(overrides)
    check_evidence(experiment, machine.server)
    done = Reproduction(experiment, machine.environment.id, tuple(overrides))
    on_cpu = not machine.gpus or any(word.partition("=")[::2] == ("device", "cpu") for word in overrides)
    if experiment.needs == "cuda" and on_cpu:
        done.skipped = NO_CUDA
        done.judgements = [unmeasurable(claim, NO_CUDA) for claim in experiment.claims]
        keep(done, machine, db)
        return done
    for name, words in experiment.sweeps.items():
        if on_cpu and means_nothing_on_cpu(experiment, name):
            continue
        reusing = Reusing(fresh)
        argv = command_of(experiment, name, words, overrides, db)
        hydra_sweep(argv, quiet=quiet, conductor=reusing, server=machine.server)
        done.swept[name] = reusing.swept
        if reusing.outcome and reusing.outcome.state == "interrupted":
            done.interrupted = True
            return done
    requests = [
        EvidenceRequest(piece.target, dict(piece.settings), "cpu" if on_cpu else "auto")
        for piece in experiment.evidence.values()
    ]
    outcomes = gather(requests, machine.server, machine.gpus, on_outcome=on_evidence)
    done.evidence = dict(zip(experiment.evidence, outcomes, strict=False))
    done.interrupted = len(outcomes) < len(requests)
    if done.interrupted:
        return done
    judge_all(done, on_cpu)
    keep(done, machine, db)
    return done


def check_settings(overrides: Sequence[str]) -> None:
    """Raises ConfigError for what is no setting, also where no sweep will ask Hydra."""
    known = [name.name for name in fields(Config)]
    for word in overrides:
        name = re.split(r"[./@]", str(key_of(word)))[0]
        if name not in (*known, "hydra", "--config-dir"):
            raise ConfigError(f"unknown setting {name!r}{suggest(name, known)}; effbench --help lists all settings")


def check_evidence(experiment: Experiment, server: ForkServer) -> None:
    """Raises ConfigError for pieces that there are not, and for settings that they do not have."""
    if not experiment.evidence:
        return
    pieces = [{"target": piece.target, "settings": dict(piece.settings)} for piece in experiment.evidence.values()]
    answer = server.call("probe", ProbeRequest(device="cpu", evidence=pieces).to_json(), PROBE_TIMEOUT_S)
    for name, wrong in zip(experiment.evidence, answer["evidence"], strict=True):
        if wrong:
            raise ConfigError(f"{experiment.path}: evidence {name}: {wrong}")


def means_nothing_on_cpu(experiment: Experiment, sweep: str) -> bool:
    """Do only claims about CUDA ask for this sweep?"""
    askers = [claim for claim in experiment.claims if claim.sweep in (None, sweep)]
    return bool(askers) and all(claim.needs == "cuda" for claim in askers)


def judge_all(done: Reproduction, on_cpu: bool) -> None:
    done.judgements = [
        unmeasurable(claim, NO_CUDA) if claim.needs == "cuda" and on_cpu else judged(done, claim)
        for claim in done.experiment.claims
    ]


def judged(done: Reproduction, claim: Claim) -> Judgement:
    """A claim with a mistake costs itself alone: what was measured is judged by the others."""
    try:
        return judge(claim, done.scope(claim.sweep))
    except ExpressionError as error:
        done.mistakes.append(
            f"claim {claim.id} of {done.experiment.path}: {str(error).removeprefix(f'claim {claim.id}: ')}"
        )
        return Judgement(claim.id, Verdict.NOT_MEASURED, f"it cannot be judged: {error}")


def keep(done: Reproduction, machine: Machine, db: str) -> None:
    with Store.open(db, mode="write") as store:
        store.add_environment(machine.environment, machine.details)
        store.add_verdicts(machine.environment.id, verdict_rows(done))


def verdict_rows(done: Reproduction) -> list[dict[str, Any]]:
    pairs = zip(done.experiment.claims, done.judgements, strict=True)
    return [row_of(done, claim, judgement) for claim, judgement in pairs]


def unmeasurable(claim: Claim, reason: str) -> Judgement:
    return Judgement(claim.id, Verdict.NOT_MEASURABLE, claim.not_measurable or reason)


def command_of(experiment: Experiment, name: str, words: Sequence[str], overrides: Sequence[str], db: str) -> list[str]:
    """The words of this sweep: the experiment's, less what the user gives otherwise."""
    title = experiment.name if len(experiment.sweeps) == 1 else f"{experiment.name}/{name}"
    own = [*words, f"sweep.name={title}", "on_failure=ignore", f'db="{db}"']
    given = {key_of(word) for word in overrides}
    left = [word for word in own if key_of(word) not in given]
    gone = gone_with_their_group(left, overrides)
    return ["-m", *(word for word in left if word not in gone), *overrides]


def gone_with_their_group(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The experiment's settings of a group of which the user chooses another: `protocol.rounds=3` was meant for the
    protocol that `protocol=quick` replaces. Not those that the user gives as well."""
    given = {key_of(word) for word in overrides}
    chosen = given & GROUPS
    settings = [word for word in words if "." in (key_of(word) or "") and key_of(word) not in given]
    return [word for word in settings if str(key_of(word)).partition(".")[0] in chosen]


def database_of(overrides: Sequence[str], default: str) -> str:
    """`db=` among the overrides goes before the option."""
    return next((str(value_of(word)) for word in overrides if key_of(word) == "db"), default)


# --- what is stored ---


def row_of(done: Reproduction, claim: Claim, judgement: Judgement) -> dict[str, Any]:
    """A row of `claim_verdict`, less its environment and time."""
    about = spoken_of(claim)
    rows = done.scope(claim.sweep).rows if speaks_of_rows(about) else []
    sweeps = sorted({row["sweep_id"] for row in rows})
    used = {name: outcome for name, outcome in done.evidence.items() if f"evidence.{name}" in about}
    measured = {
        **numbers(judgement.value),
        "unit": judgement.unit,
        "parts": [{"label": part.label, "holds": part.truth, **numbers(part.value)} for part in labelled(judgement)],
        "also": {name: plain(value) for name, value in judgement.also.items()},
        "sweeps": sweeps,
        "overrides": [word for word in done.overrides if key_of(word) not in ("device", "db")] if rows else [],
        "evidence": {
            name: {"status": str(outcome.status), "reason": outcome.reason, "facts": outcome.facts}
            for name, outcome in used.items()
        },
    }
    return {
        "claim": claim.id,
        "experiment": done.experiment.name,
        "sweep_id": sweeps[-1] if sweeps else None,
        "verdict": str(judgement.verdict),
        "reason": judgement.reason,
        "measured": finite(measured),
    }


def spoken_of(claim: Claim) -> set[str]:
    """Names in its value, its conditions and its further figures."""
    return subjects(claim).union(*(names_in(text) for text in claim.also.values()))


def labelled(judgement: Judgement) -> list[Part]:
    return [part for part in judgement.parts if part.label]


def numbers(value: Estimate | None) -> dict[str, float]:
    return {} if value is None else {"value": value.value, "low": value.low, "high": value.high}


def plain(value: Any) -> Any:
    """A value of the language as JSON carries it."""
    if isinstance(value, Estimate):
        return value.value if value.is_exact else numbers(value)
    if isinstance(value, Vector | list | tuple):
        return [plain(item) for item in value]
    return None if value is ABSENT else value


def finite(value: Any) -> Any:
    """Without what JSON has no word for: an infinite bound is no bound."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
