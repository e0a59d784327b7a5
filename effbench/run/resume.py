"""Resume a sweep: the command, who may do so, and what must be as it was."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effbench.core.cell import Cell
from effbench.core.errors import ResumeError
from effbench.core.printable import count, one_line
from effbench.core.settings import db_setting
from effbench.run.compile_caches import sweep_cache
from effbench.run.interpreters import HERE, Facts, Interpreter
from effbench.run.plan import Settings, SweepPlan
from effbench.run.selection import parse_shard, shards
from effbench.store import liveness
from effbench.store.sweeps import SweepInfo, processes

if TYPE_CHECKING:
    from effbench.run.progress import Progress
    from effbench.store.store import Store

HOW_TO_RESUME = "resume without overrides, or start a new sweep without resume="
ROUNDS = "protocol.rounds"
ONLY_ROUNDS = (
    f"only {ROUNDS} may grow. Resume without this override, or start a new sweep without resume="
)


def resume_command(sweep_id: str, db: str, name: str, shard: str | None = None) -> str:
    """Return the command that resumes the sweep, or its `shard`. `db`: the given setting; `name`:
    `db` without its password."""
    words = ["effbench", "-m", f"resume={sweep_id}"]
    if shard:
        words.append(f"shard={shard}")
    return shlex.join(words) + db_setting(db, name)


def refusal(sweep: SweepInfo) -> str | None:
    """Return why effbench does not run the sweep, None if this user began it here. Sweeps of others
    are data: whoever wrote them chose the code that they name."""
    # sweeps of older versions do not name their user
    users = (None, liveness.current_user())
    user = sweep.host.get("user")
    if sweep.imported_at is not None:
        origin = "was imported"
    elif user not in users:
        origin = f"was begun by the user {one_line(user)}"
    else:
        return None
    return f"sweep {sweep.id} {origin}, so it is data: effbench shows it but runs nothing of it"


def take_up(
    store: Store,
    info: SweepInfo,
    settings: Settings,
    plan: SweepPlan,
    facts: dict[str, Facts],
    progress: Progress,
) -> None:
    """Resume a sweep. `facts`: of the environments. Raises ResumeError if its plan differs, or if
    it is still running."""
    running = processes(info.host, settings.shard) if info.state == "running" else []
    for process in filter(liveness.is_running, running):
        raise ResumeError(
            f"sweep {info.id} is still running in process {process['pid']}; wait for its end, or"
            " end it first"
        )
    check_same_sweep(store, info, settings, plan, facts, progress)
    add_rounds(store, info, settings, progress)
    store.note_environments(info.id, facts)
    store.finish_sweep(info.id, "running", settings.shard)


def check_same_sweep(
    store: Store,
    info: SweepInfo,
    settings: Settings,
    plan: SweepPlan,
    facts: dict[str, Facts],
    progress: Progress,
) -> None:
    """Raise ResumeError if the plan or the interpreters differ from those of the recorded sweep;
    note what has changed. `facts`: of the environments; empty if they are not known yet."""
    check_same_plan(info, store.planned(info.id), plan, settings)
    if facts:
        check_same_interpreters(info, map(Interpreter.from_facts, facts.values()))
    for change in changes(info, facts):
        progress.note(change)


def add_rounds(store: Store, info: SweepInfo, settings: Settings, progress: Progress) -> None:
    """Store the rounds that these settings add to the sweep, if any."""
    rounds = settings.protocol.rounds
    if rounds <= info.rounds:
        return
    more = count(rounds - info.rounds, "more round")
    progress.note(f"sweep {info.id} gets {more}: {rounds} in total")
    has_caches = sweep_cache(settings, info.id).exists()
    overrides = with_rounds(info.overrides, rounds)
    protocol = {**info.protocol, "rounds": rounds}
    store.add_rounds(info.id, protocol, overrides, starts_part=not has_caches)


def check_same_plan(
    info: SweepInfo, recorded: Sequence[Cell], plan: SweepPlan, settings: Settings
) -> None:
    """Raise ResumeError if this plan differs from the recorded one."""
    names = info.host.get("shards") or ()  # others may have been imported
    if names and settings.shard not in (None, *names):
        raise ResumeError(
            f"sweep {info.id} has no shard {settings.shard}, only {', '.join(sorted(names))}"
        )
    expected = set(plan.cells())
    for index, number in map(parse_shard, names):
        expected.update(shards(plan.matrix, number)[index - 1])
    missing, more = len(set(recorded) - expected), len(expected - set(recorded))
    if missing or more:
        difference = f"{count(missing, 'cell')} missing, {more} additional"
        raise ResumeError(f"sweep {info.id} has a different plan: {difference}; {HOW_TO_RESUME}")
    check_same_protocol(info, vars(settings.protocol))
    check_same_facts(info, settings)


def check_same_protocol(info: SweepInfo, protocol: Mapping[str, Any]) -> None:
    """Raise ResumeError if this protocol differs from the recorded one by more than additional
    rounds."""
    for key, new in protocol.items():
        old = info.protocol.get(key, new)
        if old != new and key != "rounds":
            setting = f"protocol.{key}".removesuffix(".name")
            raise ResumeError(
                f"sweep {info.id} has {setting}={plain(old)}, not {plain(new)}: trials that are"
                f" measured differently have no common figures, so {ONLY_ROUNDS}"
            )
    rounds = protocol["rounds"]
    if rounds < info.rounds:
        raise ResumeError(
            f"sweep {info.id} has {count(info.rounds, 'round')}, more than {rounds}: omit {ROUNDS},"
            f" or give more than {info.rounds} to add rounds"
        )
    if rounds > info.rounds and info.host.get("shards"):
        raise ResumeError(
            f"sweep {info.id} has shards, so it cannot get more rounds: all shards of a sweep have"
            " the same rounds. Start a new sweep"
        )


def check_same_facts(info: SweepInfo, settings: Settings) -> None:
    """Raise ResumeError if baseline, seed, name or label differ from the recorded ones."""
    pairs = {
        "baseline_mode": (info.baseline_mode, settings.baseline_mode),
        "sweep.seed": (info.seed, settings.sweep.seed),
        "sweep.name": (info.name, settings.sweep.name or info.name),
        "sweep.label": (info.label, settings.sweep.label or info.label),
    }
    for key, (old, new) in pairs.items():
        if old != new:
            raise ResumeError(
                f"sweep {info.id} has {key}={plain(old)}, not {plain(new)}; {HOW_TO_RESUME}"
            )


def plain(value: Any) -> str:
    """Return a value as it is typed."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def with_rounds(overrides: Iterable[str], rounds: int) -> list[str]:
    """Return the overrides of a sweep with this number of rounds."""
    kept = [word for word in overrides if word.lstrip("+").partition("=")[0] != ROUNDS]
    return [*kept, f"{ROUNDS}={rounds}"]


def compilation_of(round: int, compilations: int, first_rounds: Sequence[int]) -> int:
    """Return the number of the compile cache that trials of this round use. `compilations`: caches
    of each part of the sweep; `first_rounds`: first round of each part."""
    part = sum(first <= round for first in first_rounds) - 1
    return part * compilations + (round - first_rounds[part]) % compilations


def check_same_interpreters(info: SweepInfo, interpreters: Iterable[Interpreter]) -> None:
    """Raise ResumeError if the sweep ran under different interpreters."""
    recorded = info.host.get("environments") or {}
    before = {Interpreter.from_facts(facts) for facts in recorded.values()} or {HERE}
    interpreters = set(interpreters)
    if before != interpreters:
        was, now = names_of(before), names_of(interpreters)
        raise ResumeError(f"sweep {info.id} ran under {was}, not {now}; {HOW_TO_RESUME}")


def names_of(interpreters: Iterable[Interpreter]) -> str:
    return " and ".join(sorted(map(str, interpreters)))


def changes(info: SweepInfo, facts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield notes on how new trials will differ from the recorded ones. `facts`: current value of
    `host["environments"]`."""
    if not info.trials:
        return
    recorded = info.host.get("environments") or {}
    for environment_id, now in facts.items():
        of = ""
        if len(facts) > 1:
            of = f" of {Interpreter.from_facts(now)}"
        before = recorded.get(environment_id)
        if before is None:
            yield (
                f"hardware or software{of} has changed since the recorded trials: all cells run"
                " again"
            )
        elif any(before.get(name) != now[name] for name in ("git_description", "git_changes")):
            was = f"was {before.get('git_description')}, now {now['git_description']}"
            yield (
                f"the folder{of} has changed ({was}): new trials measure different code than the"
                " recorded ones"
            )
