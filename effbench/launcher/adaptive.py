"""Find the results that tell which mode a model should run in: those of a stored sweep, or of a short new one whose
rounds end for modes that are significantly slower than the best (conf/protocol/advise.yaml)."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from effbench.cell import Cell, Environment, Status
from effbench.config import Dtype, db_option
from effbench.errors import NothingFoundError, UsageError
from effbench.launcher.cells import Job, conduct, resolve, split
from effbench.launcher.launch import hydra_sweep
from effbench.stats.elimination import Race
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.sweeping import client
from effbench.sweeping.pool import probe
from effbench.sweeping.resume import resume_command
from effbench.sweeping.run import Command
from effbench.sweeping.schedule import race_of

#: Separate launches and CUDA graphs of eager's kernels and of Inductor's. Autotuning would take minutes.
CANDIDATES = "eager,cuda-graph,default,reduce-overhead,default+graph"
#: Facts of an environment that stored results must share with this machine.
ALIKE = ("gpu_name", "cpu_name", "torch_version")
#: Least trials of each mode in a stored sweep that did not eliminate modes.
LEAST_TRIALS = 3


@dataclass(frozen=True)
class Found:
    """The rows of one case in a sweep of a database (its name). `race`: of the cell keys; None if the sweep did not
    eliminate modes. `is_new`: it has just run."""

    database: str
    sweep: SweepInfo
    rows: list[dict[str, Any]]
    race: Race | None
    is_new: bool = False


def find(words: Sequence[str], server: client.ForkServer, fresh: bool, stored: bool, quiet: bool) -> Found:
    """Return stored results of the sweep of this command line, or run it. `fresh`: do not use stored ones; `stored`:
    measure nothing, and use results of any machine.

    Raises NothingFoundError if nothing may be measured, UsageError for several cases and for a missing GPU, and all
    errors of a sweep.
    """
    found: list[Found] = []

    def answer(jobs: Sequence[Job], command: Command) -> None:
        parts, settings = split(jobs)
        probed = probe(server, parts, settings.baseline_mode, modes_only=stored)
        here = None if stored else Environment(**probed["environment"])
        cells = resolve(parts, has_cuda=bool(probed["gpus"]))
        keys, metric = {cell.key for cell in cells}, settings.protocol["eliminate"]
        if len({cell.comparison_key for cell in cells}) > 1:
            raise UsageError("advise mode answers for one model at one batch size and dtype: give one value of each")
        kinds = every_kind(parts) if stored else [keys]
        with Store.open(settings.db, mode="read" if stored else "write") as store:
            sweeps = [] if fresh else [sweep for sweep in store.sweeps() if sweep.state == "completed"]
            looked = (look(store, sweep, of, metric, here, settings.timeout_s) for sweep in sweeps for of in kinds)
            found.extend(islice(filter(None, looked), 1))
            if not found and stored:
                raise NothingFoundError(nothing_stored(store, sweeps, cells))
            if not found and not probed["gpus"] and any(cell.device == "cuda" for cell in cells):
                how = "--stored accepts those of another machine"
                raise UsageError(f"this machine has no CUDA GPU, and {store.name} no results of it to use; {how}")
        if not found:
            outcome = conduct(jobs, command)
            if outcome.state == "interrupted":
                again = resume_command(outcome.sweep_id, outcome.db, masked_url(outcome.db))
                command.progress.note(f"interrupted; resume with: {again}, then ask again")
                raise KeyboardInterrupt
            with Store.open(settings.db, mode="read") as store:
                found.extend(filter(None, [look(store, store.find_sweep(outcome.sweep_id), keys, metric, is_new=True)]))

    hydra_sweep([*words], quiet=quiet or stored, conductor=answer, server=server)
    if not found:
        raise UsageError("these overrides run no sweep")
    return found[0]


def every_kind(parts: Sequence[dict[str, Any]]) -> list[frozenset[str]]:
    """Return the keys of the cells for each device and dtype that `auto` may mean, CUDA and its usual dtype first."""
    kinds = [{"device": device, "dtype": dtype.value} for device in ("cuda", "cpu") for dtype in Dtype]
    chosen = ([{k: kind.get(k, v) if v == "auto" else v for k, v in part.items()} for part in parts] for kind in kinds)
    return list(dict.fromkeys(frozenset(cell.key for cell in resolve(each, has_cuda=True)) for each in chosen))


def nothing_stored(store: Store, sweeps: Sequence[SweepInfo], cells: Sequence[Cell]) -> str:
    """Return an error that lists which modes of the model of the cells have results in these sweeps, and the command
    that answers from those with the same name, whatever their settings."""
    asked, modes = cells[0], ",".join(cell.mode_name for cell in cells)
    known: dict[str, dict[str, str]] = {}
    for row in (row for sweep in sweeps for row in store.results(sweep.id) if "stream" not in (row["params"] or {})):
        if row["model"] == asked.model_name and row["status"] not in (Status.NOISY, Status.TIMEOUT):
            kind = " ".join(f"{name}={row[name]}" for name in ("bs", "device", "dtype", "phase"))
            known.setdefault(kind, {}).setdefault(row["mode"], row["sweep_id"])
    near = {kind: of for kind, of in known.items() if f"bs={asked.bs} " in kind}
    lines = [f"stored: {kind} mode={','.join(of)}" for kind, of in (near or known).items()][:8]
    if near:
        (chosen, _), *_ = Counter(one for of in near.values() for one in of.values()).most_common(1)
        by_name = f"effbench advise mode --sweep {chosen} --model {shlex.quote(asked.model_name)} --bs {asked.bs}"
        lines.append(f"settings or rounds differ; to use these anyway: {by_name}{db_option(store.name)}")
    missing = f"{asked.model_name} bs={asked.bs} phase={asked.phase} mode={modes}"
    error = f"{store.name} has no complete results of {missing}: omit --stored to measure"
    return "\n".join([error, *(lines or ["stored of it: nothing"])])


def look(
    store: Store, sweep: SweepInfo, keys: Collection[str], metric: str, here: Environment | None = None,
    timeout_s: float = 0, is_new: bool = False,
) -> Found | None:  # fmt: skip
    """Return the results of exactly these cells in this sweep, of the hardware and torch version `here` (None: any);
    None if they are not sufficient (`is_new`: they need not be). `metric`: column of the time that counts; `timeout_s`:
    trials that ended after less time say nothing."""
    if not keys <= store.cell_overrides(sweep.id).keys():
        return None
    rows = [row for row in store.results(sweep.id) if row["cell_key"] in keys]
    is_adaptive = sweep.protocol.get("eliminate") == metric
    for one in store.environments(row["environment_id"] for row in rows):
        own = [row for row in rows if row["environment_id"] == one["id"]]
        least = 1 if is_adaptive else LEAST_TRIALS
        is_known = all(not Status(row["status"]).is_measured or row["trials"] >= least for row in own)
        is_whole = len(own) == len(keys) and is_known and all(row["status"] != Status.NOISY for row in own)
        recorded = {key: known for key, known in store.history(sweep.id, one["id"]).items() if key in keys}
        every = [trial for known in recorded.values() for trial in known]
        is_whole &= all(trial.status is not Status.TIMEOUT or (trial.wall_s or 0) >= timeout_s for trial in every)
        if is_new or (is_whole and (here is None or all(one[name] == getattr(here, name) for name in ALIKE))):
            return Found(store.name, sweep, own, race_of(recorded, sweep.protocol) if is_adaptive else None, is_new)
    return None
