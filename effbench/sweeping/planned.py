"""The record of a sweep before its first trial (begun anew, or found again with the same plan) and after its last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.cell import Cell
from effbench.config import Config
from effbench.errors import ConfigError, ResumeError, StoreError
from effbench.store import connect, secrets
from effbench.store.store import Store
from effbench.sweeping import host, plan, resume
from effbench.sweeping.interpreters import Interpreter, Unit, cells_of
from effbench.sweeping.progress import Progress
from effbench.sweeping.sites import Sites


@dataclass
class Command:
    """What the user typed: all of it, and the overrides among it."""

    argv: list[str]
    overrides: list[str]


def begin(
    store: Store, settings: plan.Settings, command: Command, units: Sequence[Unit], sites: Sites, progress: Progress
) -> str:
    """The id of a new sweep, or of the one to be resumed after its plan was found to be the same."""
    cells = cells_of(units)
    if settings.resume is None:
        here = Path.cwd()
        return store.begin_sweep(
            name=settings.sweep["name"],
            label=settings.sweep["label"] or host.git_description(here),
            command=secrets.masked(command.argv),
            overrides=secrets.masked_db(command.overrides),
            protocol=settings.protocol,
            baseline_mode=settings.baseline_mode,
            seed=settings.sweep["seed"],
            git_revision=host.git_revision(here),
            host=host.facts() | {"environments": facts_of(sites)},
            plan=cells,
            rounds=settings.protocol["rounds"],
        )
    info = store.find_sweep(settings.resume)
    check_same_plan(info, store.planned(info.id), cells, settings)
    check_same_interpreters(info, sites)
    for change in changes(store, info, sites):
        progress.note(change)
    store.note_environments(info.id, facts_of(sites))
    store.finish_sweep(info.id, "running")
    return info.id


def end(store: Store, sweep_id: str, state: str, db: str, failure: StoreError | None = None) -> None:
    """Record how the sweep ended. `failure`: what the database did with a trial.

    If the database file was moved, deleted or replaced, all that was recorded is saved in another. Raises StoreError
    that names the command to continue with, for this and for all that the database could not store.
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
        raise StoreError(f"{failure}\nContinue with: {resume.command(sweep_id, db, name)}") from failure


def facts_of(sites: Sites) -> dict[str, dict[str, Any]]:
    """Environment id -> facts of its interpreter: what `host["environments"]` of a sweep holds."""
    return {site.environment.id: interpreter.facts() for interpreter, site in sites.items()}


def check_same_plan(info: Any, planned: list[Cell], cells: list[Cell], settings: plan.Settings) -> None:
    """Raises ResumeError that names the first difference."""
    before, now = {cell.key: cell for cell in planned}, {cell.key: cell for cell in cells}
    gone = [cell for key, cell in before.items() if key not in now]
    new = [cell for key, cell in now.items() if key not in before]
    how = "resume without overrides, or start a new sweep without resume="
    if gone or new:
        parts = [
            f"{len(found)} {what} (first: {found[0]} on {found[0].device})"
            for found, what in ((gone, "cells missing"), (new, "cells more"))
            if found
        ]
        raise ResumeError(f"sweep {info.id} was planned otherwise: {', '.join(parts)}; {how}")
    pairs = {f"protocol.{key}": (info.protocol.get(key, value), value) for key, value in settings.protocol.items()}
    pairs["baseline_mode"] = (info.baseline_mode, settings.baseline_mode)
    pairs["sweep.seed"] = (info.seed, settings.sweep["seed"])
    for key, old in (("name", info.name), ("label", info.label)):
        pairs[f"sweep.{key}"] = (old, settings.sweep[key] or old)
    for key, (old, new) in pairs.items():
        if old != new:
            raise ResumeError(f"sweep {info.id} has {key}={old}, not {new}; {how}")


def check_same_interpreters(info: Any, sites: Sites) -> None:
    """Raises ResumeError where others were asked for. A sweep of before they were recorded has its own one."""
    recorded = info.host.get("environments") or {}
    before = {Interpreter.from_facts(facts) for facts in recorded.values()} or {Interpreter()}
    if before != set(sites):
        was, now = (" and ".join(sorted(map(str, one))) for one in (before, sites))
        how = "resume without overrides, or start a new sweep without resume="
        raise ResumeError(f"sweep {info.id} ran under {was}, not {now}; {how}")


def changes(store: Store, info: Any, sites: Sites) -> Iterator[str]:
    """Where the trials to come are not of what was measured before."""
    if not info.trials:
        return
    recorded = info.host.get("environments") or {}
    for interpreter, site in sites.items():
        of = f" of {interpreter}" if len(sites) > 1 else ""
        before, now = recorded.get(site.environment.id), interpreter.facts()
        # where it was planned, but not a trial was recorded, nothing differs
        known = before is not None if recorded else bool(store.recorded(info.id, site.environment.id))
        if not known:
            yield f"hardware or software{of} differs from that of the recorded trials: all cells run anew here"
        elif before and before["git_description"] != now["git_description"]:
            was = f"{before['git_description']}, and is at {now['git_description']}"
            yield f"the folder{of} was at {was}: the trials to come are of other code than those recorded"
        elif before and before.get("git_changes", now["git_changes"]) != now["git_changes"]:
            yield f"the folder{of} was changed since, at the same commit: the trials to come are of other code"


def check_baseline(settings: plan.Settings, cells: list[Cell]) -> None:
    """A baseline that was named must be there; the default, eager, may be left out of a sweep. Raises ConfigError."""
    modes = sorted({cell.mode_name for cell in cells})
    if settings.baseline_mode not in (*modes, Config.baseline_mode):
        raise ConfigError(
            f"baseline_mode={settings.baseline_mode} is not among the modes of this sweep: {', '.join(modes)}"
        )
