"""Find the results that tell which mode a model should run in: those of a stored sweep, or of a
short new one whose rounds end for modes that are significantly slower than the best
(conf/protocol/advise.yaml)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.config.cells import Job, conduct, resolve, split
from effbench.config.launch import hydra_sweep
from effbench.core.cell import Environment, Result, Status, Trial
from effbench.core.errors import UsageError
from effbench.run import client
from effbench.run.probe import probe
from effbench.run.resume import resume_command
from effbench.run.rounds import race_of
from effbench.run.sweep import Command
from effbench.stats.elimination import Race
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo, recorded_here_first

#: Separate launches and CUDA graphs of eager's kernels and of Inductor's. Autotuning would take
#: minutes.
CANDIDATES = "eager,cuda-graph,default,reduce-overhead,default+graph"
#: Facts of an environment that stored results must share with this machine.
ALIKE = ("gpu_name", "cpu_name", "torch_version")
#: Least trials of each mode in a stored sweep that did not eliminate modes.
LEAST_TRIALS = 3


@dataclass(frozen=True)
class ModeResults:
    """The rows of one case in a sweep of a database (its name). `race`: of the cell keys; None if
    the sweep did not eliminate modes. `is_new`: it has just run."""

    database: str
    sweep: SweepInfo
    rows: list[Result]
    race: Race | None
    is_new: bool = False


@dataclass(frozen=True)
class Case:
    """The cells to choose from. `metric`: column of the time that counts; `timeout_s`: trials that
    ended after less time say nothing; `here`: the environment that results must resemble."""

    keys: frozenset[str]
    metric: str | None
    timeout_s: float
    here: Environment


def find(words: Sequence[str], server: client.ForkServer, fresh: bool, quiet: bool) -> ModeResults:
    """Return stored results of the sweep of this command line, or run it. `fresh`: do not use
    stored ones.

    Raises UsageError for several cases and for a missing GPU, and all errors of a sweep.
    """
    answers: list[ModeResults] = []

    def answer(jobs: Sequence[Job], command: Command) -> None:
        parts, settings = split(jobs)
        probed = probe(server, parts, settings.baseline_mode)
        has_cuda = bool(probed["gpus"])
        cells = resolve(parts, has_cuda)
        if len({cell.comparison_key for cell in cells}) > 1:
            raise UsageError(
                "advise mode answers for one model at one batch size and dtype: give one value of"
                " each"
            )
        case = Case(
            frozenset(cell.key for cell in cells),
            settings.protocol.eliminate,
            settings.timeout_s,
            Environment(**probed["environment"]),
        )
        with Store.open(settings.db, mode="write") as store:
            stored = None if fresh else find_stored(store, case)
            if stored is None and not has_cuda and any(cell.device == "cuda" for cell in cells):
                raise UsageError(
                    f"this machine has no CUDA GPU, and {store.name} no results of it to use;"
                    " --stored answers from those of another machine"
                )
        measured = stored or measure(jobs, command, settings.db, case)
        if measured is not None:
            answers.append(measured)

    hydra_sweep([*words], quiet=quiet, conductor=answer, server=server)
    if not answers:
        raise UsageError("these overrides run no sweep")
    return answers[0]


def measure(jobs: Sequence[Job], command: Command, db: str, case: Case) -> ModeResults | None:
    """Run the sweep of these jobs and return its results; None if there are none."""
    outcome = conduct(jobs, command)
    if outcome.state == "interrupted":
        again = resume_command(outcome.sweep_id, outcome.db, masked_url(outcome.db))
        command.progress.note(f"interrupted; resume with: {again}, then ask again")
        raise KeyboardInterrupt
    with Store.open(db, mode="read") as store:
        sweep = store.find_sweep(outcome.sweep_id)
        for measured in measured_cells(store, sweep, case):
            return ModeResults(store.name, sweep, measured.rows, measured.race(sweep), is_new=True)
    return None


def find_stored(store: Store, case: Case) -> ModeResults | None:
    """Return sufficient results of a completed sweep on hardware and torch like those here, if the
    database has any."""
    for sweep in recorded_here_first(store.sweeps()):
        if sweep.state != "completed":
            continue
        for measured in measured_cells(store, sweep, case):
            if measured.is_like(case.here) and measured.is_whole(case):
                return ModeResults(store.name, sweep, measured.rows, measured.race(sweep))
    return None


@dataclass(frozen=True)
class MeasuredCells:
    """Results and trials of the cells in one environment of a sweep. `is_adaptive`: the sweep has
    eliminated modes by this time."""

    environment: dict[str, Any]
    rows: list[Result]
    trials: dict[Hashable, Sequence[Trial]]
    is_adaptive: bool

    def is_like(self, here: Environment) -> bool:
        return all(self.environment[name] == getattr(here, name) for name in ALIKE)

    def is_whole(self, case: Case) -> bool:
        """Return whether every cell has results that tell how fast it is."""
        least = 1 if self.is_adaptive else LEAST_TRIALS
        for row in self.rows:
            is_few = row.status.is_measured and row.trials < least
            if is_few or row.marked:
                return False
        for trials in self.trials.values():
            for trial in trials:
                if trial.status is Status.TIMEOUT and (trial.wall_s or 0) < case.timeout_s:
                    return False
        return len(self.rows) == len(case.keys)

    def race(self, sweep: SweepInfo) -> Race | None:
        if self.is_adaptive:
            return race_of(self.trials, sweep.protocol)
        return None


def measured_cells(store: Store, sweep: SweepInfo, case: Case) -> Iterator[MeasuredCells]:
    """Yield the results of exactly these cells in each environment of the sweep, if it has all
    cells."""
    if not case.keys <= store.cell_overrides(sweep.id).keys():
        return
    rows = [row for row in store.results(sweep.id) if row.cell_key in case.keys]
    is_adaptive = sweep.protocol.get("eliminate") == case.metric
    for environment in store.environments(row.environment_id for row in rows):
        own = [row for row in rows if row.environment_id == environment["id"]]
        history = store.history(sweep.id, environment["id"])
        trials: dict[Hashable, Sequence[Trial]] = {
            key: done for key, done in history.items() if key in case.keys
        }
        yield MeasuredCells(environment, own, trials, is_adaptive)
