"""Which results tell in which mode a model should run? Those of a stored sweep, or of a short new
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from effbench.config.cells import Job, conduct, resolve, split
from effbench.config.launch import hydra_sweep
from effbench.core.cell import Environment, Result, Status, Trial
from effbench.core.errors import UsageError
from effbench.run import client
from effbench.run.probe import probe
from effbench.run.resume import resume_command
from effbench.run.sweep import Command
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo, recorded_here_first

#: Separate launches and CUDA graphs of eager's kernels and of Inductor's. Autotuning would take
#: minutes.
CANDIDATES = "eager,cuda-graph,default,reduce-overhead,default+graph"
#: Rounds of a short sweep, and the least trials of each mode in a stored one.
ROUNDS = 3
#: Facts of an environment that stored results must share with this machine.
ALIKE = ("gpu_name", "cpu_name", "torch_version")


@dataclass(frozen=True)
class ModeResults:
    """The rows of one case in a sweep of a database (its name). `is_new`: it has just run."""

    database: str
    sweep: SweepInfo
    rows: list[Result]
    is_new: bool = False


def find(words: Sequence[str], server: client.ForkServer, fresh: bool, quiet: bool) -> ModeResults:
    """Return stored results of the sweep of this command line, or run it. `fresh`: do not use
    stored ones.

    Raises UsageError for several cases and for a missing GPU, and all errors of a sweep.
    """
    answers: list[ModeResults] = []

    def answer(jobs: Sequence[Job], command: Command) -> None:
        cells, settings = split(jobs)
        machine = probe(server, cells, settings.baseline_mode)
        has_cuda = bool(machine.gpus)
        cells = resolve([machine.adapted(cell) for cell in cells], has_cuda)
        if len({cell.comparison_key for cell in cells}) > 1:
            raise UsageError(
                "advise mode answers for one model at one batch size and dtype: give one value of"
                " each"
            )
        keys = {cell.key for cell in cells}
        with Store.open(settings.db, mode="write") as store:
            stored = None
            if not fresh:
                stored = find_stored(store, keys, machine.environment, settings.timeout_s)
            if stored is None and not has_cuda and any(cell.device == "cuda" for cell in cells):
                raise UsageError(
                    f"this machine has no CUDA GPU, and {store.name} no results of it to use;"
                    " --stored answers from those of another machine"
                )
        measured = stored or measure(jobs, command, settings.db, keys)
        if measured is not None:
            answers.append(measured)

    hydra_sweep([*words], quiet=quiet, conductor=answer, server=server)
    if not answers:
        raise UsageError("these overrides run no sweep")
    return answers[0]


def measure(jobs: Sequence[Job], command: Command, db: str, keys: set[str]) -> ModeResults | None:
    """Run the sweep of these jobs and return its results; None if there are none."""
    outcome = conduct(jobs, command)
    if outcome.state == "interrupted":
        again = resume_command(outcome.sweep_id, outcome.db, masked_url(outcome.db))
        command.progress.note(f"interrupted; resume with: {again}, then ask again")
        raise KeyboardInterrupt
    with Store.open(db, mode="read") as store:
        sweep = store.find_sweep(outcome.sweep_id)
        for measured in measured_cells(store, sweep, keys):
            return ModeResults(store.name, sweep, measured.rows, is_new=True)
    return None


def find_stored(
    store: Store, keys: set[str], here: Environment, timeout_s: float
) -> ModeResults | None:
    """Return sufficient results of these cells in a completed sweep on hardware and torch like
    those here, if the database has any. `timeout_s`: the limit of a trial here."""
    for sweep in recorded_here_first(store.sweeps()):
        if sweep.state != "completed":
            continue
        for measured in measured_cells(store, sweep, keys):
            is_whole = len(measured.rows) == len(keys) and measured.is_sufficient(timeout_s)
            if is_whole and measured.is_like(here):
                return ModeResults(store.name, sweep, measured.rows)
    return None


@dataclass(frozen=True)
class MeasuredCells:
    """Results and trials of the cells in one environment of a sweep."""

    environment: Environment
    rows: list[Result]
    trials: list[Trial]

    def is_like(self, here: Environment) -> bool:
        return all(getattr(self.environment, name) == getattr(here, name) for name in ALIKE)

    def is_sufficient(self, timeout_s: float) -> bool:
        """Return whether every result tells how fast its mode is."""
        for row in self.rows:
            is_few = row.status.is_measured and row.trials < ROUNDS
            if is_few or row.marked:
                return False
        for trial in self.trials:
            # with more time, it might have ended well
            if trial.status is Status.TIMEOUT and (trial.wall_s or 0) < timeout_s:
                return False
        return True


def measured_cells(store: Store, sweep: SweepInfo, keys: set[str]) -> Iterator[MeasuredCells]:
    """Yield the results of exactly these cells in each environment of the sweep, if it has all
    cells."""
    if not keys <= store.cell_overrides(sweep.id).keys():
        return
    rows = [row for row in store.results(sweep.id) if row.cell_key in keys]
    for environment in store.environments(row.environment_id for row in rows):
        own = [row for row in rows if row.environment_id == environment.id]
        history = store.history(sweep.id, environment.id)
        trials = [trial for key in keys for trial in history.get(key, [])]
        yield MeasuredCells(environment, own, trials)
