"""Which results tell in which mode a model should run? Those of a stored sweep, or of a short new
one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from effbench.config.cells import Job, conduct, resolve, split
from effbench.config.launch import hydra_sweep
from effbench.config.overrides import key_of
from effbench.core.cell import Environment, Result
from effbench.core.errors import UsageError
from effbench.core.labels import grouped
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
    """Return stored results of the cells of these overrides, or run a short sweep of them. `fresh`:
    do not use stored ones.

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
                stored = find_stored(store, keys, machine.environment)
            if stored is None and not has_cuda and any(cell.device == "cuda" for cell in cells):
                raise UsageError(
                    f"this machine has no CUDA GPU, and {store.name} no results of it to use;"
                    " `effbench advise mode --model NAME` answers from those of another machine"
                )
        measured = stored or measure(
            jobs,
            command,
            settings.db,
            keys,
        )
        if measured is not None:
            answers.append(measured)

    short = ["-m", "sweep.name=advise", "on_failure=ignore"]
    if "protocol" not in map(key_of, words):
        short += ["protocol=quick", f"protocol.rounds={ROUNDS}"]
    hydra_sweep(
        [*short, *words],
        quiet=quiet,
        conductor=answer,
        server=server,
    )
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
        for rows in results_by_environment(store, sweep, keys):
            return ModeResults(
                store.name,
                sweep,
                rows,
                is_new=True,
            )
    return None


def find_stored(store: Store, keys: set[str], here: Environment) -> ModeResults | None:
    """Return sufficient results of these cells in a completed sweep on hardware and torch like
    those here, if the database has any."""
    for sweep in recorded_here_first(store.sweeps()):
        if sweep.state != "completed":
            continue
        for rows in results_by_environment(store, sweep, keys):
            (environment,) = store.environments([rows[0].environment_id])
            is_like = all(getattr(environment, name) == getattr(here, name) for name in ALIKE)
            if is_like and len(rows) == len(keys) and all(map(is_sufficient, rows)):
                return ModeResults(store.name, sweep, rows)
    return None


def is_sufficient(row: Result) -> bool:
    """Return whether a result tells how fast its mode is."""
    return not row.marked and (row.trials >= ROUNDS or not row.status.is_measured)


def results_by_environment(
    store: Store, sweep: SweepInfo, keys: set[str]
) -> Iterable[list[Result]]:
    """Return the results of exactly these cells in each environment of the sweep, none if it lacks
    a cell."""
    if not keys <= store.cell_overrides(sweep.id).keys():
        return []
    rows = [row for row in store.results(sweep.id) if row.cell_key in keys]
    return grouped(rows, lambda row: row.environment_id).values()
