"""Find the results that tell which mode a model should run in: those of a stored sweep, or of a
short new one whose rounds end for modes that are significantly slower than the best
(conf/protocol/advise.yaml)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from effbench.cell import Environment, Status
from effbench.errors import UsageError
from effbench.launcher.cells import Job, conduct, resolve, split
from effbench.launcher.launch import hydra_sweep
from effbench.stats.elimination import Race
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo, recorded_here_first
from effbench.sweeping import client
from effbench.sweeping.pool import probe
from effbench.sweeping.resume import resume_command
from effbench.sweeping.rounds import race_of
from effbench.sweeping.run import Command

#: Separate launches and CUDA graphs of eager's kernels and of Inductor's. Autotuning would take
#: minutes.
CANDIDATES = "eager,cuda-graph,default,reduce-overhead,default+graph"
#: Facts of an environment that stored results must share with this machine.
ALIKE = ("gpu_name", "cpu_name", "torch_version")
#: Least trials of each mode in a stored sweep that did not eliminate modes.
LEAST_TRIALS = 3


@dataclass(frozen=True)
class Found:
    """The rows of one case in a sweep of a database (its name). `race`: of the cell keys; None if
    the sweep did not eliminate modes. `is_new`: it has just run."""

    database: str
    sweep: SweepInfo
    rows: list[dict[str, Any]]
    race: Race | None
    is_new: bool = False


def find(words: Sequence[str], server: client.ForkServer, fresh: bool, quiet: bool) -> Found:
    """Return stored results of the sweep of this command line, or run it. `fresh`: do not use
    stored ones.

    Raises UsageError for several cases and for a missing GPU, and all errors of a sweep.
    """
    found: list[Found] = []

    def answer(jobs: Sequence[Job], command: Command) -> None:
        parts, settings = split(jobs)
        probed = probe(server, parts, settings.baseline_mode)
        here = Environment(**probed["environment"])
        cells = resolve(parts, has_cuda=bool(probed["gpus"]))
        keys, metric = {cell.key for cell in cells}, settings.protocol.eliminate
        if len({cell.comparison_key for cell in cells}) > 1:
            raise UsageError(
                "advise mode answers for one model at one batch size and dtype: give one value of"
                " each"
            )
        with Store.open(settings.db, mode="write") as store:
            every = [] if fresh else recorded_here_first(store.sweeps())
            sweeps = [sweep for sweep in every if sweep.state == "completed"]
            looked = (
                look(store, sweep, keys, metric, here, settings.timeout_s) for sweep in sweeps
            )
            found.extend(islice(filter(None, looked), 1))
            if not found and not probed["gpus"] and any(cell.device == "cuda" for cell in cells):
                how = "--stored answers from those of another machine"
                raise UsageError(
                    f"this machine has no CUDA GPU, and {store.name} no results of it to use; {how}"
                )
        if not found:
            outcome = conduct(jobs, command)
            if outcome.state == "interrupted":
                again = resume_command(outcome.sweep_id, outcome.db, masked_url(outcome.db))
                command.progress.note(f"interrupted; resume with: {again}, then ask again")
                raise KeyboardInterrupt
            with Store.open(settings.db, mode="read") as store:
                found.extend(
                    filter(
                        None,
                        [
                            look(
                                store, store.find_sweep(outcome.sweep_id), keys, metric, is_new=True
                            )
                        ],
                    )
                )

    hydra_sweep([*words], quiet=quiet, conductor=answer, server=server)
    if not found:
        raise UsageError("these overrides run no sweep")
    return found[0]


def look(
    store: Store,
    sweep: SweepInfo,
    keys: Collection[str],
    metric: str,
    here: Environment | None = None,
    timeout_s: float = 0,
    is_new: bool = False,
) -> Found | None:
    """Return the results of exactly these cells in this sweep, of the hardware and torch version
    `here` (None: any); None if they are not sufficient (`is_new`: they need not be). `metric`:
    column of the time that counts; `timeout_s`: trials that ended after less time say nothing."""
    if not keys <= store.cell_overrides(sweep.id).keys():
        return None
    rows = [row for row in store.results(sweep.id) if row["cell_key"] in keys]
    is_adaptive = sweep.protocol.get("eliminate") == metric
    for one in store.environments(row["environment_id"] for row in rows):
        own = [row for row in rows if row["environment_id"] == one["id"]]
        least = 1 if is_adaptive else LEAST_TRIALS
        is_known = all(
            not Status(row["status"]).is_measured or row["trials"] >= least for row in own
        )
        is_whole = len(own) == len(keys) and is_known and all(not row["marked"] for row in own)
        recorded = {
            key: known for key, known in store.history(sweep.id, one["id"]).items() if key in keys
        }
        every = [trial for known in recorded.values() for trial in known]
        is_whole &= all(
            trial.status is not Status.TIMEOUT or (trial.wall_s or 0) >= timeout_s
            for trial in every
        )
        if is_new or (
            is_whole and (here is None or all(one[name] == getattr(here, name) for name in ALIKE))
        ):
            race = race_of(recorded, sweep.protocol) if is_adaptive else None
            return Found(store.name, sweep, own, race, is_new)
    return None
