"""Find the results that tell which mode a model should run in: those of a stored sweep, or of a short new one whose
rounds end for modes that are significantly slower than the best (conf/protocol/advise.yaml)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from effbench.cell import Cell, Environment, Status
from effbench.config import DEFAULT_DB
from effbench.errors import NothingFoundError, UsageError
from effbench.launcher.cells import INTERPRETER_KEYS, Job, conduct, resolve, split
from effbench.launcher.launch import hydra_sweep
from effbench.launcher.overrides import key_of, quoted
from effbench.stats.elimination import Race
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.sweeping import client
from effbench.sweeping.pool import probe
from effbench.sweeping.progress import Progress
from effbench.sweeping.resume import resume_command
from effbench.sweeping.run import Command
from effbench.sweeping.schedule import race_of

#: Separate launches and CUDA graphs of eager's kernels, of Inductor's, and of those that autotuning chooses.
CANDIDATES = "eager,cuda-graph,default,reduce-overhead,compile+graph,max-autotune-no-cudagraphs"
#: Facts of an environment that stored results must share with this machine.
ALIKE = ("gpu_name", "cpu_name", "torch_version")
#: Least trials of each mode in a stored sweep that did not eliminate modes.
LEAST_TRIALS = 3
REFUSED = ("resume", "shard", *INTERPRETER_KEYS)


@dataclass(frozen=True)
class Found:
    """The rows of one case in a sweep. `race`: of the cell keys, None for a sweep that did not eliminate modes.
    `is_new`: it has just run. `commands`: run the full matrix, and write a report."""

    sweep: SweepInfo
    rows: list[dict[str, Any]]
    race: Race | None
    is_new: bool
    commands: list[str]


@dataclass
class Search:
    """A search for the results of one model. `overrides`: as in a sweep; `metric`: column of the time that counts.
    `fresh`: do not look for stored results; `stored`: do not measure, but accept the results of any machine."""

    model: str
    overrides: Sequence[str]
    metric: str
    db: str = DEFAULT_DB
    fresh: bool = False
    stored: bool = False
    quiet: bool = False
    found: Found | None = None

    def run(self) -> Found:
        """Return what was found. Raises NothingFoundError if nothing may be measured, UsageError for overrides that
        give several cases, and as a sweep does."""
        for word in self.overrides:
            if key_of(word) in REFUSED:
                raise UsageError(
                    f"advise mode takes no {key_of(word)}=; run such a sweep, and advise from it by --sweep"
                )
        own = ("protocol=advise", f"protocol.eliminate={self.metric}", "sweep.name=advise", "on_failure=ignore")
        words = ["-m", *self.words(*self.matrix, *own, f"db={quoted(self.db)}")]
        with closing(client.ForkServer()) as server:
            hydra_sweep(words, quiet=self.quiet or self.stored, conductor=self.conduct, server=server)
        if self.found is None:
            raise UsageError("advise mode: these overrides run no sweep")
        return self.found

    @property
    def matrix(self) -> list[str]:
        return [f"model={self.model}", f"mode={CANDIDATES}"]

    def words(self, *own: str) -> list[str]:
        """Return words without those whose key the user gives, then the user's."""
        given = {key_of(word) for word in self.overrides}
        return [*(word for word in own if key_of(word) not in given), *self.overrides]

    def conduct(
        self,
        jobs: Sequence[Job],
        command: Command,
        server: client.ForkServer,
        progress: Progress,
        *rest: Any,
        **more: Any,
    ) -> None:
        """Look for stored results, or run the sweep. Hydra's launcher calls this like `cells.conduct`."""
        parts, settings = split(jobs)
        answer = probe(server, parts, settings.baseline_mode, modes_only=self.stored)
        here = None if self.stored else Environment(**answer["environment"])
        cells = resolve(parts, has_cuda=bool(answer["gpus"]))
        if len({cell.comparison_key for cell in cells}) > 1:
            raise UsageError("advise mode answers for one model at one batch size and dtype: give one value of each")
        with Store.open(settings.db, mode="read" if self.stored else "write") as store:
            if not self.fresh:
                sweeps = (sweep for sweep in store.sweeps() if sweep.state == "completed")
                self.found = next(filter(None, (self.look(store, sweep, cells, here) for sweep in sweeps)), None)
            if self.found is None and self.stored:
                raise NothingFoundError(
                    f"{store.name} has no sufficient results of these modes: omit --stored to measure"
                )
            if self.found is None and not answer["gpus"] and any(cell.device == "cuda" for cell in cells):
                other = "--stored answers from the results of another machine, if there are some"
                raise UsageError(f"this machine has no CUDA GPU, and {store.name} has no results of it; {other}")
        if self.found is None:
            outcome = conduct(jobs, command, server, progress, *rest, **more)
            if outcome.state == "interrupted":
                again = resume_command(outcome.sweep_id, outcome.db, masked_url(outcome.db))
                progress.note(f"interrupted; resume with: {again}, then ask again")
                raise KeyboardInterrupt
            with Store.open(settings.db, mode="read") as store:
                self.found = self.look(store, store.find_sweep(outcome.sweep_id), cells, here, is_new=True)

    def look(
        self, store: Store, sweep: SweepInfo, cells: Sequence[Cell], here: Environment | None, is_new: bool = False
    ) -> Found | None:
        """Return the results of exactly these cells in this sweep; None if they are not sufficient (`is_new`: they are
        anyway). `here`: hardware and torch version; None: any."""
        keys = {cell.key for cell in cells}
        if not keys <= store.cell_overrides(sweep.id).keys():
            return None
        by_environment: dict[str, list[dict[str, Any]]] = {}
        for row in store.results(sweep.id):
            if row["cell_key"] in keys:
                by_environment.setdefault(row["environment_id"], []).append(row)
        is_adaptive = sweep.protocol.get("eliminate") == self.metric
        for one in store.environments(by_environment):
            rows = by_environment[one["id"]]
            is_known = len(rows) == len(keys) and all(is_sufficient(row, is_adaptive) for row in rows)
            is_alike = here is None or all(one[name] == getattr(here, name) for name in ALIKE)
            if is_alike and (is_known or is_new):
                recorded = {key: trials for key, trials in store.history(sweep.id, one["id"]).items() if key in keys}
                full = shlex.join(["effbench", "-m", *self.words(*self.matrix, *self.option("db={}"))])
                report = shlex.join(["effbench", "report", *self.option("--db", "{}"), "--sweep", sweep.id])
                state = race_of(recorded, sweep.protocol) if is_adaptive else None
                return Found(sweep, rows, state, is_new, [full, report])
        return None

    def option(self, *words: str) -> list[str]:
        """Return the words that choose the database, unless it is the default one."""
        return [] if self.db == DEFAULT_DB else [word.format(masked_url(self.db)) for word in words]


def is_sufficient(row: dict[str, Any], is_adaptive: bool) -> bool:
    status = Status(row["status"])
    return status is not Status.NOISY and (not status.is_measured or is_adaptive or row["trials"] >= LEAST_TRIALS)
