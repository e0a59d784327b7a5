"""Resume a sweep: the command, who may do so, and what must be as it was."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effbench.core import folders
from effbench.core.cell import Trial
from effbench.core.errors import ResumeError
from effbench.core.printable import count, one_line
from effbench.core.settings import db_setting
from effbench.run.interpreters import Facts, Interpreter
from effbench.run.plan import CellRun, Settings, SweepPlan
from effbench.run.pool import Servers, environment_ids
from effbench.run.selection import typed
from effbench.store.sweeps import SweepInfo

if TYPE_CHECKING:
    from effbench.run.executors.job_files import JobStore
    from effbench.run.progress import Progress
    from effbench.store.store import Store

ROUNDS = "protocol.rounds"


def resume_command(sweep_id: str, db: str, name: str) -> str:
    """Return the command that resumes the sweep. `db`: the given setting; `name`: `db` without its
    password."""
    return shlex.join(["effbench", "-m", f"resume={sweep_id}"]) + db_setting(db, name)


def refusal(sweep: SweepInfo) -> str | None:
    """Return why effbench does not run the sweep, None if this user began it here. Sweeps of others
    are data: whoever wrote them chose the code that they name."""
    user = sweep.host.get("user")
    if sweep.imported_at is not None:
        origin = "was imported"
    elif user not in (None, folders.current_user()):  # older versions do not name their user
        origin = f"was begun by the user {one_line(user)}"
    else:
        return None
    return f"sweep {sweep.id} {origin}, so it is data: effbench shows it but runs nothing of it"


def take_up(
    store: Store,
    settings: Settings,
    plan: SweepPlan,
    facts: Mapping[str, Facts],
    progress: Progress,
) -> str:
    """Resume a sweep and return its id. Raises ResumeError as `same_sweep` does, and if it is still
    running."""
    info = same_sweep(store, settings, plan, facts, progress)
    grown: dict[str, Any] = {}
    rounds = settings.protocol.rounds
    if rounds > info.rounds:
        more = count(rounds - info.rounds, "more round")
        progress.note(f"sweep {info.id} gets {more}: {rounds} in total")
        kept = [word for word in info.overrides if word.lstrip("+").partition("=")[0] != ROUNDS]
        grown = {
            "rounds": rounds,
            "protocol": {**info.protocol, "rounds": rounds},
            "overrides": [*kept, f"{ROUNDS}={rounds}"],
        }
    store.resume_sweep(info.id, **grown)
    return info.id


def same_sweep(
    store: Store,
    settings: Settings,
    plan: SweepPlan,
    facts: Mapping[str, Facts],
    progress: Progress,
) -> SweepInfo:
    """Return the sweep to resume, and note what has changed. `facts`: of the environments; empty if
    they are not known yet. Raises ResumeError if it has other cells or interpreters, or if trials
    were measured or judged otherwise; it may have fewer rounds."""
    assert settings.resume is not None
    info = store.find_sweep(settings.resume)
    before, now = set(store.planned(info.id)), set(plan.cells())
    if before != now:
        numbers = f"{count(len(before - now), 'cell')} missing, {len(now - before)} additional"
        raise different(info, f"a different plan: {numbers}")
    for name, (old, new) in compared_settings(info, settings, facts).items():
        may_differ = name == ROUNDS and new > old
        if old != new and not may_differ:
            raise different(info, f"{name}={typed(old)}, not {typed(new)}")
    for change in changes(info, facts):
        progress.note(change)
    return info


def different(info: SweepInfo, difference: str) -> ResumeError:
    return ResumeError(
        f"sweep {info.id} has {difference}; only protocol.rounds may grow: resume without other"
        " overrides, or start a new sweep without resume="
    )


def compared_settings(
    info: SweepInfo, settings: Settings, facts: Mapping[str, Facts]
) -> dict[str, tuple[Any, Any]]:
    """Return name -> the recorded and the new value of each setting that may not change."""
    pairs = {"baseline_mode": (info.baseline_mode, settings.baseline_mode)}
    for name, value in vars(settings.sweep).items():
        if value is not None:
            pairs[f"sweep.{name}"] = (getattr(info, name), value)
    for name, value in vars(settings.protocol).items():
        setting = f"protocol.{name}".removesuffix(".name")
        pairs[setting] = (info.protocol.get(name, value), value)
    if facts and info.interpreters:
        pairs["interpreters"] = (interpreters_text(info.interpreters), interpreters_text(facts))
    return pairs


def interpreters_text(facts: Mapping[str, Facts]) -> str:
    return " and ".join(sorted({str(Interpreter.from_facts(known)) for known in facts.values()}))


def facts_here(settings: Settings, servers: Servers) -> dict[str, Facts]:
    """Return the facts to record about the interpreter of each environment on this machine; those
    of a cluster are not known before its jobs run."""
    if settings.executor.name == "slurm":
        return {}
    return {key: interpreter.facts() for interpreter, key in environment_ids(servers).items()}


def recorded_trials(
    store: Store | JobStore,
    sweep_id: str,
    environments: Mapping[Interpreter, str],
    runs: Sequence[CellRun],
) -> dict[CellRun, list[Trial]]:
    """Return the recorded trials of each of these runs (last attempts). `environments`: the id of
    the environment of each interpreter."""
    histories = {
        interpreter: store.history(sweep_id, environment_id)
        for interpreter, environment_id in environments.items()
    }
    return {run: histories[run.interpreter].get(run.cell.key, []) for run in runs}


def changes(info: SweepInfo, facts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield notes on how new trials will differ from the recorded ones. `facts`: current value of
    `host["environments"]`."""
    if not info.trials:
        return
    for environment_id, now in facts.items():
        interpreter = Interpreter.from_facts(now)
        before = info.interpreters.get(environment_id)
        if before is None:
            yield (
                f"hardware or software of {interpreter} has changed since the recorded trials: all"
                " cells run again"
            )
        elif any(before.get(name) != now[name] for name in ("git_description", "git_changes")):
            was = f"was {before.get('git_description')}, now {now['git_description']}"
            yield (
                f"the folder of {interpreter} has changed ({was}): new trials measure different"
                " code than the recorded ones"
            )
