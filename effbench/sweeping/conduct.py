"""One sweep from its configurations to its last trial: probe, plan, record, resume, end."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.cell import Cell, Environment, mode_settings
from effbench.config import LOSSES, Config
from effbench.errors import ConfigError, ResumeError
from effbench.message import ProbeRequest
from effbench.store import artifacts, secrets
from effbench.store.store import Store
from effbench.sweeping import host, plan
from effbench.sweeping.ceilings import measure_missing
from effbench.sweeping.cores import share_out, wanted_cores
from effbench.sweeping.progress import Progress
from effbench.sweeping.schedule import Job, Schedule, Slot, jobs_of, with_retries
from effbench.sweeping.servers import Servers
from effbench.sweeping.workers import ForkServer

PROBE_TIMEOUT_S = 300.0
OWN_MODELS = "effbench.models."


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended. `state`: completed or interrupted. `latencies`: median latency in ms by the configuration's
    position, None where it has none."""

    sweep_id: str
    environment_id: str
    db: str
    state: str
    on_failure: str
    latencies: list[float | None]


@dataclass
class Command:
    """What the user typed: all of it, and the overrides among it."""

    argv: list[str]
    overrides: list[str]


def conduct(
    configs: Sequence[dict[str, Any]],
    command: Command,
    server: ForkServer,
    progress: Progress,
    stop: threading.Event,
    extend: Outcome | None = None,
) -> Outcome:
    """Run (or resume) the sweep of these configurations.

    `extend`: an earlier outcome of the same invocation, whose sweep goes on with these cells (sweepers that choose the
    next cells by the results of the last). Raises EffbenchError for anything that is wrong before the first trial;
    nothing is recorded then.
    """
    parts, settings = plan.split(configs)
    store = Store.open(settings.db, mode="write")
    try:
        answer = probe(server, parts, settings.baseline_mode)
        cells = plan.resolve(parts, has_cuda=bool(answer["gpus"]))
        check_baseline(settings, cells)
        environment = Environment(**answer["environment"])
        slots = slots_of(answer["gpus"], cells, settings.executor)
        environment_id = store.add_environment(environment, answer["details"])
        if extend is None:
            sweep_id = begin(store, settings, command, cells)
        else:
            sweep_id = extend.sweep_id
            store.extend_sweep(sweep_id, cells)
        recorded = store.recorded(sweep_id, environment_id)
        history = store.history(sweep_id, environment_id) if recorded else {}
        if settings.resume and not recorded and store.trials(sweep_id):
            progress.note("hardware or software differs from that of the recorded trials: all cells run anew here")
        jobs = jobs_of(cells, settings.protocol["rounds"], settings.sweep["seed"], recorded)
        jobs = with_retries(jobs, cells, history, settings.protocol["attempts"])
        preload(server, cells)
        gpus = [slot.gpu for slot in slots if slot.gpu]
        if gpus and jobs and settings.protocol["profile"]:
            lock_timeout_s = settings.executor["lock_timeout_s"]
            reason = measure_missing(server, store, environment_id, gpus, lock_timeout_s=lock_timeout_s)
            if reason:
                progress.note(f"this GPU's ceilings could not be measured: {reason}; no roofline in these results")
        known = store.calibration(environment_id)
        cache_root = cache_folder(settings.executor["cache_dir"]) / sweep_id / environment_id
        schedule = Schedule(
            servers=Servers(
                server,
                lambda fresh: preload(fresh, cells),
                renew=settings.executor["renew_server"] and bool(gpus),
                last_round=settings.protocol["rounds"] - 1,
            ),
            slots=slots,
            protocol=settings.protocol,
            timeout_s=settings.timeout_s,
            isolation=settings.isolation,
            lock_timeout_s=settings.executor["lock_timeout_s"],
            cache_root=cache_root,
            record=lambda trial: store.record(sweep_id, environment_id, trial),
            observer=progress,
            foreign_wait_s=settings.executor["foreign_wait_s"],
            ceilings=known and known["ceilings"],
            artifacts=lambda job: wanted_artifacts(job, settings, sweep_id),
            history=history,
            stop=stop,
        )
        state = "failed"
        try:
            with progress.showing(sweep_id, settings, cells, jobs, slots), stop_on_ctrl_c(stop):
                schedule.run(jobs)
            state = "interrupted" if stop.is_set() else "completed"
        except KeyboardInterrupt:  # a second Ctrl-C
            state = "interrupted"
            raise
        finally:
            store.finish_sweep(sweep_id, state)
            if state == "completed" and not settings.executor["keep_cache"]:
                shutil.rmtree(cache_root.parent, ignore_errors=True)
        found = {row["cell_key"]: row["latency_ms"] for row in store.results(sweep_id)}
        keys = [plan.resolve([part], has_cuda=bool(answer["gpus"]))[0].key for part in parts]
        latencies = [found.get(key) for key in keys]
        return Outcome(sweep_id, environment_id, settings.db, state, settings.on_failure, latencies)
    finally:
        store.close()


def wanted_artifacts(job: Job, settings: plan.Settings, sweep_id: str) -> dict[str, Any] | None:
    """What the trial shall leave behind, and where: in a cell's first round alone."""
    if not settings.artifacts or job.round > 0:
        return None
    name = artifacts.name_of(sweep_id, job.cell.key)
    folder = (artifacts.home(settings.db) / name).absolute()
    return {"kinds": settings.artifacts, "folder": str(folder), "name": name}


def probe(server: ForkServer, parts: Sequence[dict[str, Any]], baseline_mode: str) -> dict[str, Any]:
    """Import every target once, in a child; learn the environment; fit the modes' settings.

    Raises ConfigError for what cannot be imported and for a setting that a mode does not have.
    """
    modules = dict.fromkeys(part["model"]["module"]["_target_"] for part in parts)
    named = (part["training"]["loss"] for part in parts if part["phase"] == "training")
    losses = dict.fromkeys(loss for loss in named if loss not in LOSSES)
    modules |= losses
    modes = {str(part["mode"]): part["mode"] for part in parts}
    device = "cpu" if all(part["device"] == "cpu" for part in parts) else "auto"
    answer = server.call("probe", ProbeRequest(list(modules), list(modes.values()), device).to_json(), PROBE_TIMEOUT_S)
    for loss in losses:
        answer["errors"] = [said.replace(f"_target_={loss}", f"training.loss={loss}") for said in answer["errors"]]
    known = dict(zip(modes, answer["settings"], strict=True))
    if errors := answer["errors"] or fit_settings(parts, known, baseline_mode):
        more = f" (and {len(errors) - 2} more like these)" if len(errors) > 2 else ""
        raise ConfigError("\n".join(errors[:2]) + more)
    return answer


def fit_settings(parts: Sequence[dict[str, Any]], known: dict[str, list[str] | None], baseline_mode: str) -> list[str]:
    """Take from the baseline what only other modes have (`mode=eager,default mode.fullgraph=true`), so that it stands
    beside them. Returns what is wrong with the settings of all others."""
    errors = {}
    elsewhere = {name for names in known.values() for name in names or ()}
    for part in parts:
        mode, names = part["mode"], known[str(part["mode"])]
        unknown = [name for name in mode_settings(mode) if names is not None and name not in names]
        if mode["name"] == baseline_mode and elsewhere.issuperset(unknown):
            part["mode"] = {key: value for key, value in mode.items() if key not in unknown}
            continue
        for name in unknown:
            has = ", ".join(names or ()) or "none"
            errors[f"mode {mode['name']} has no setting {name!r}; it has: {has}"] = None
    return list(errors)


def preload(server: ForkServer, cells: Sequence[Cell]) -> None:
    """Have the server import effbench's own model modules (and so torchvision, transformers) once for all trials.

    A user's modules are imported in each trial: what they do on import must not touch the server.
    """
    targets = {cell.model["module"]["_target_"] for cell in cells if not cell.env}
    own = sorted({target.rpartition(".")[0] for target in targets if target.startswith(OWN_MODELS)})
    if own:
        server.call("preload", {"modules": own}, PROBE_TIMEOUT_S)


def slots_of(gpus: list[dict[str, Any]], cells: Sequence[Cell], executor: dict[str, Any]) -> list[Slot]:
    """The GPUs to use, each with its cores, and the CPU where a cell asks for it or there is no GPU."""
    wanted, cores = executor["gpus"], executor["cores"]
    if wanted != "auto":
        known = {gpu["index"]: gpu for gpu in gpus}
        if missing := [index for index in wanted if index not in known]:
            raise ConfigError(f"executor.gpus names {missing}; visible here: {sorted(known) or 'no GPU'}")
        gpus = [known[index] for index in wanted]
    devices = {cell.device for cell in cells}
    slots = []
    if "cuda" in devices:
        shares = share_out(cores, gpus)
        slots = [
            Slot(f"GPU {gpu['index']}", "cuda", gpu, share and tuple(share))
            for gpu, share in zip(gpus, shares, strict=True)
        ]
    if "cpu" in devices or not slots:
        # a CPU cell has all cores unless some are named: its threads are what is measured
        own = None if cores == "auto" else wanted_cores(cores, os.sched_getaffinity(0))
        slots.append(Slot("CPU", "cpu", cores=own and tuple(own)))
    return slots


def begin(store: Store, settings: plan.Settings, command: Command, cells: list[Cell]) -> str:
    """The id of a new sweep, or of the one to be resumed after its plan was found to be the same."""
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
            host=host.facts(),
            plan=cells,
            rounds=settings.protocol["rounds"],
        )
    info = store.find_sweep(settings.resume)
    check_same_plan(info, store.planned(info.id), cells, settings)
    store.finish_sweep(info.id, "running")
    return info.id


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


def check_baseline(settings: plan.Settings, cells: list[Cell]) -> None:
    """A baseline that was named must be there; the default, eager, may be left out of a sweep. Raises ConfigError."""
    modes = sorted({cell.mode_name for cell in cells})
    if settings.baseline_mode not in (*modes, Config.baseline_mode):
        raise ConfigError(
            f"baseline_mode={settings.baseline_mode} is not among the modes of this sweep: {', '.join(modes)}"
        )


def cache_folder(configured: str | None) -> Path:
    """Where compile caches live while a sweep runs."""
    if configured:
        return Path(configured).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "effbench" / "compile"


@contextmanager
def stop_on_ctrl_c(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) asks the sweep to stop; a second Ctrl-C is Python's usual one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
