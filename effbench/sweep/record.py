"""The record of a sweep before its first trial (new, or found again with the same plan) and after its last."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import effbench
from effbench.cell import Cell
from effbench.config import Config
from effbench.errors import ConfigError, ResumeError, StoreError
from effbench.store import connect, liveness, secrets
from effbench.store.store import Store
from effbench.sweep.interpreters import Interpreter, git_description, git_revision
from effbench.sweep.plan import CellRun, Settings, cells_of
from effbench.sweep.pool import Pools
from effbench.sweep.progress import Progress
from effbench.sweep.trust import resume_command

HOW_TO_RESUME = "resume without overrides, or start a new sweep without resume="


@dataclass(frozen=True)
class Command:
    """What the user typed, and the overrides among it. `of_cells`: by cell key, the overrides that plan the cell."""

    argv: Sequence[str]
    overrides: Sequence[str]
    of_cells: Mapping[str, list[str]] = field(default_factory=dict)


def begin(
    store: Store, settings: Settings, command: Command, runs: Sequence[CellRun], pools: Pools, progress: Progress
) -> str:
    """Return the id of a new sweep, or of the one to resume. Raises ResumeError if its plan is another."""
    cells = cells_of(runs)
    if settings.resume is None:
        here = Path.cwd()
        return store.begin_sweep(
            name=settings.sweep["name"],
            label=settings.sweep["label"] or git_description(here),
            command=secrets.masked([*command.argv]),
            overrides=secrets.masked_db([*command.overrides]),
            protocol=settings.protocol,
            baseline_mode=settings.baseline_mode,
            seed=settings.sweep["seed"],
            git_revision=git_revision(here),
            host=host_facts() | {"environments": environment_facts(pools)},
            plan=cells,
            rounds=settings.protocol["rounds"],
            cell_overrides=command.of_cells,
        )
    info = store.find_sweep(settings.resume)
    check_same_plan(info, store.planned(info.id), cells, settings)
    check_same_interpreters(info, pools)
    for change in changes(store, info, pools):
        progress.note(change)
    store.note_environments(info.id, environment_facts(pools))
    store.finish_sweep(info.id, "running")
    return info.id


def end(store: Store, sweep_id: str, state: str, db: str, failure: StoreError | None = None) -> None:
    """Record how the sweep ended. `failure`: why the database could not store a trial.

    If the database file was moved, deleted or replaced, save all that was recorded in another file. Raises StoreError
    that names the command to continue with, for this and for everything that the database could not store.
    """
    try:
        store.finish_sweep(sweep_id, state)
    except StoreError as error:
        failure = failure or error
    name = store.name
    if store.is_moved():
        db = name = str(store.rescue(sweep_id))
        failure = StoreError(f"{connect.moved(store.name)}; all that was recorded is in {name}")
    if failure is not None:
        raise StoreError(f"{failure}\nContinue with: {resume_command(sweep_id, db, name)}") from failure


def host_facts() -> dict[str, Any]:
    """Return facts about where a sweep was started that do not define its environment."""
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "cpu_count": os.cpu_count(),
        "effbench": effbench.__version__,
        "executable": sys.executable,
        "folder": str(Path.cwd()),
        "process": liveness.identity(),
    }


def environment_facts(pools: Pools) -> dict[str, dict[str, Any]]:
    """Return environment id -> facts of its interpreter: the value of `host["environments"]` of a sweep."""
    return {pool.environment.id: interpreter.facts() for interpreter, pool in pools.items()}


def check_same_plan(info: Any, planned: list[Cell], cells: list[Cell], settings: Settings) -> None:
    """Raise ResumeError that names the first difference."""
    before, now = {cell.key: cell for cell in planned}, {cell.key: cell for cell in cells}
    gone = [cell for key, cell in before.items() if key not in now]
    new = [cell for key, cell in now.items() if key not in before]
    if gone or new:
        parts = [
            f"{len(differing)} {what} (first: {differing[0]} on {differing[0].device})"
            for differing, what in ((gone, "cells missing"), (new, "cells more"))
            if differing
        ]
        raise ResumeError(f"sweep {info.id} has another plan: {', '.join(parts)}; {HOW_TO_RESUME}")
    pairs = {f"protocol.{key}": (info.protocol.get(key, value), value) for key, value in settings.protocol.items()}
    pairs["baseline_mode"] = (info.baseline_mode, settings.baseline_mode)
    pairs["sweep.seed"] = (info.seed, settings.sweep["seed"])
    for key, old in (("name", info.name), ("label", info.label)):
        pairs[f"sweep.{key}"] = (old, settings.sweep[key] or old)
    for key, (old, new) in pairs.items():
        if old != new:
            raise ResumeError(f"sweep {info.id} has {key}={old}, not {new}; {HOW_TO_RESUME}")


def check_same_interpreters(info: Any, pools: Pools) -> None:
    """Raise ResumeError if others were given. A sweep without a record of them ran under effbench's own."""
    recorded = info.host.get("environments") or {}
    before = {Interpreter.from_facts(facts) for facts in recorded.values()} or {Interpreter()}
    if before != set(pools):
        was, now = (" and ".join(sorted(map(str, some))) for some in (before, pools))
        raise ResumeError(f"sweep {info.id} ran under {was}, not {now}; {HOW_TO_RESUME}")


def changes(store: Store, info: Any, pools: Pools) -> Iterator[str]:
    """Yield why the trials to come differ from those recorded."""
    if not info.trials:
        return
    recorded = info.host.get("environments") or {}
    for interpreter, pool in pools.items():
        of = f" of {interpreter}" if len(pools) > 1 else ""
        before, now = recorded.get(pool.environment.id), interpreter.facts()
        # an environment that was planned, but has no trial, has not changed
        known = before is not None if recorded else bool(store.recorded(info.id, pool.environment.id))
        if not known:
            yield f"hardware or software{of} differs from that of the recorded trials: all cells run anew here"
        elif before and before["git_description"] != now["git_description"]:
            was = f"{before['git_description']}, and is at {now['git_description']}"
            yield f"the folder{of} was at {was}: the trials to come measure other code than those recorded"
        elif before and before.get("git_changes", now["git_changes"]) != now["git_changes"]:
            yield f"the folder{of} was changed since, at the same commit: the trials to come measure other code"


def check_baseline(settings: Settings, cells: Sequence[Cell]) -> None:
    """Raise ConfigError if the baseline is not in the sweep; only the default, eager, may be missing."""
    modes = sorted({cell.mode_name for cell in cells})
    if settings.baseline_mode not in (*modes, Config.baseline_mode):
        raise ConfigError(
            f"baseline_mode={settings.baseline_mode} is not among the modes of this sweep: {', '.join(modes)}"
        )
