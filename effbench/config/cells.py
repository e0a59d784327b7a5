"""Turn the configurations of jobs into cells, and run them as one sweep.

docs/reference/extending.md tells how to add an axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from effbench.config.compose import Job
from effbench.config.overrides import CONFIG_DIR
from effbench.config.validation import validate
from effbench.core import streams
from effbench.core.cell import COLDSTART, NO_CACHE, Cell
from effbench.core.errors import ConfigError
from effbench.core.labels import override_text
from effbench.core.parallel import Parallel
from effbench.core.printable import one_line
from effbench.core.settings import Config
from effbench.models.catalog import LIBRARIES
from effbench.models.presets import DENOISERS, DenoiserPreset, canonical
from effbench.run import dry_run, interpreters
from effbench.run.plan import OF_SWEEP, CellRun, Settings, SweepPlan
from effbench.run.pool import Servers, open_servers
from effbench.run.probe import NETWORK
from effbench.run.progress import Progress
from effbench.run.selection import excluded
from effbench.run.sweep import (
    Command,
    Outcome,
    check_baseline,
    has_gpus,
    open_sweep,
)

#: Sections with the settings of a phase -> the phase, usually of the same name.
OF_PHASES = {
    "training": "training",
    "generate": "generate",
    COLDSTART: COLDSTART,
    "cache": COLDSTART,
}
#: Settings that are not needed to rerun a cell; its interpreter is stored with its environment.
NOT_OF_CELLS = (
    "baseline_mode",
    "db",
    "resume",
    "sweep",
    "exclude",
    "python",
    "folder",
)


def conduct(jobs: Sequence[Job], command: Command) -> Outcome:
    """Run or resume the sweep of these jobs; see `OpenSweep.run`."""
    matrix = prepare(jobs)
    with open_sweep(matrix.settings, matrix.runs, command) as sweep:
        return sweep.run(matrix.plan(sweep.servers, command))


def print_plan(jobs: Sequence[Job], command: Command) -> None:
    """Print the plan of the sweep that `conduct` would run."""
    matrix = prepare(jobs)
    settings = matrix.settings
    with open_servers(
        matrix.runs,
        settings.baseline_mode,
        command.stop,
        command.server,
    ) as servers:
        plan = matrix.plan(servers, command)
        dry_run.print_plan(settings, servers, plan, command)


@dataclass(frozen=True)
class SweepMatrix:
    """The jobs of a sweep, and the run of each one's cell, in which device and dtype may still be
    `auto`."""

    settings: Settings
    jobs: Sequence[Job]
    runs: Sequence[CellRun]

    def plan(self, servers: Servers, command: Command) -> SweepPlan:
        """Return what the sweep runs."""
        has_cuda = has_gpus(self.settings, servers)
        adapted = [servers[run.interpreter].machine.adapted(run.cell) for run in self.runs]
        cells = resolve(adapted, has_cuda)
        selected = select(cells, self.settings, command.progress)
        check_devices(selected, self.settings, has_cuda)
        options = [text for key, text in command.overrides.items() if key == CONFIG_DIR]
        overrides: dict[str, list[str]] = {}
        runs: list[CellRun | None] = []
        for job, cell, run in zip(self.jobs, cells, self.runs, strict=True):
            if cell not in selected:
                runs.append(None)
                continue
            runs.append(replace(run, cell=cell))
            overrides.setdefault(cell.key, [*options, *overrides_of_cell(job, cell)])
        return SweepPlan(runs, overrides, excluded=len(set(cells)) - len(selected))


def prepare(jobs: Sequence[Job]) -> SweepMatrix:
    """Return the matrix of these jobs. Raises ConfigError for invalid ones."""
    cells, settings = split(jobs)
    check_effect(jobs)
    interpreter = cache(interpreters.resolve)
    runs = [
        CellRun(cell, interpreter(job.config.python, job.config.folder))
        for job, cell in zip(jobs, cells, strict=True)
    ]
    return SweepMatrix(settings, jobs, runs)


def split(jobs: Sequence[Job]) -> tuple[list[Cell], Settings]:
    """Return the cell of each job, in which device and dtype may still be `auto`, and the settings
    of the whole sweep. Raises ConfigError for invalid ones."""
    if not jobs:
        raise ConfigError(
            "the sweep is empty: these overrides give no cell; give each one at least one value"
        )
    first = jobs[0].config
    cells = []
    for job in jobs:
        validate(job)
        for name in OF_SWEEP:
            if getattr(job.config, name) != getattr(first, name):
                raise ConfigError(
                    f"{name} applies to a whole sweep and cannot be swept: choose one value or run"
                    " two sweeps"
                )
        cells.append(cell_of(job.config))
    return cells, Settings.of(first)


def parallel_of(config: Config) -> str | None:
    """Return the cell's value of `parallel`, None for one device. Raises ConfigError."""
    if Parallel.parse(config.parallel) is None:
        return None
    return config.parallel


def cell_of(config: Config) -> Cell:
    """Return the cell of a configuration, in which device and dtype may be `auto`. Raises
    ConfigError for an invalid stream."""
    of_phase: dict[str, Any] = {}
    if config.phase in OF_PHASES:  # must not affect keys of cells of other phases
        of_phase[config.phase] = dict(vars(getattr(config, config.phase)))
    if config.phase == COLDSTART:
        of_phase["cache"] = config.cache or NO_CACHE
    return Cell(
        model=model_of(config),
        bs=config.bs,
        mode={key: value for key, value in config.mode.items() if key != "description"},
        dtype=config.dtype,
        phase=config.phase,
        device=config.device,
        numerics=dict(vars(config.numerics)),
        env={key: override_text(value) for key, value in config.env.items()},
        stream=streams.resolve(vars(config.stream)),
        threads=config.threads,
        parallel=parallel_of(config),
        **of_phase,
    )


def model_of(config: Config) -> dict[str, Any]:
    """Return a cell's `model`, with a name."""
    model = config.model
    name = model.name or model.module["_target_"].replace(":", ".").rpartition(".")[2]
    module = module_of(config)
    if name == model.module.get("arch"):
        name = module["arch"]
    # a list, because it keeps the order of forward's arguments, unlike sorted JSON objects
    inputs = [{"name": input_name, **spec} for input_name, spec in (model.inputs or {}).items()]
    described = {
        "name": name,
        "module": module,
        "inputs": inputs,
        "tolerance": model.tolerance,
        "allow_nonfinite": model.allow_nonfinite,
    }
    if model.attention is not None:  # keys of older cells stay valid
        described["attention"] = model.attention
    return described


def module_of(config: Config) -> dict[str, Any]:
    """Return the settings of a cell's module, with those that follow from others."""
    module = dict(config.model.module)
    arch, library = module.get("arch"), module.get("library")
    if module["_target_"] == NETWORK and library in LIBRARIES and isinstance(arch, str):
        # all names of a network give the same cell
        module["arch"] = canonical(library, arch)
    if config.phase == "generate" and library == "transformers":
        # as many slots as a request has tokens, like the cache of transformers' own `generate`
        slots = config.generate.prompt + config.generate.new_tokens
        module |= {"task": "decode", "seq": slots}
    if library == "diffusers":
        preset = DENOISERS.get(str(module["arch"]), DenoiserPreset())
        for setting in ("resolution", "frames", "steps"):
            module[setting] = module.get(setting) or getattr(preset, setting)
    return module


def resolve(cells: Sequence[Cell], has_cuda: bool) -> list[Cell]:
    """Return these cells with values for `auto` on this machine. Raises ConfigError if two modules
    have the same name."""
    resolved = []
    modules: dict[str, str] = {}
    for cell in cells:
        device, dtype = cell.device, cell.dtype
        if device == "auto":
            device = "cuda" if has_cuda else "cpu"
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        target = cell.model["module"]["_target_"]
        if modules.setdefault(cell.model_name, target) != target:
            raise ConfigError(
                f"two modules have the name {cell.model_name}: give each its own, "
                "such as 'model.name=${model.module._target_}'"
            )
        resolved.append(replace(cell, device=device, dtype=dtype))
    return resolved


# --- which cells are planned ---


def check_effect(jobs: Sequence[Job]) -> None:
    """Raise ConfigError for an override of a phase that no cell has."""
    phases = {job.config.phase for job in jobs}
    for word in jobs[0].words:  # the others set the same keys
        phase = OF_PHASES.get(word.section)
        if phase is not None and phase not in phases:
            raise ConfigError(
                f"{word.text} has no effect, because no cell has phase={phase}; add phase={phase}"
            )


def check_devices(cells: Iterable[Cell], settings: Settings, has_cuda: bool) -> None:
    """Raise ConfigError if no cell can be measured as the settings require."""
    devices = {cell.device for cell in cells}
    if devices == {"cuda"} and not has_cuda and settings.executor.name != "slurm":
        raise ConfigError(
            "device=cuda, but torch sees no GPU here: use device=cpu, or see effbench doctor"
        )


def overrides_of_cell(job: Job, cell: Cell) -> list[str]:
    """Return the overrides of a job that reproduce its cell: without settings of the sweep, those
    of other phases, and those that only other modes have, which were removed from the baseline."""
    of_others = [section for section, phase in OF_PHASES.items() if phase != cell.phase]
    unused = {*NOT_OF_CELLS, *of_others}
    dropped = {f"mode.{name}" for name in job.config.mode.keys() - cell.mode.keys()}
    return [
        word.text for word in job.words if word.section not in unused and word.key not in dropped
    ]


def select(cells: Sequence[Cell], settings: Settings, progress: Progress) -> set[Cell]:
    """Return the cells to plan: those that no rule of `exclude` matches. Raises ConfigError if no
    cell or no baseline remains."""
    matched, unused = excluded(cells, settings.exclude)
    for rule in unused:
        progress.note(one_line(f"warning: exclude: no cell matches the rule {rule}"))
    selected = set(cells) - matched
    if not selected:
        raise ConfigError(
            "exclude matches every cell, so nothing is left to run; remove or narrow a rule"
        )
    check_baseline(settings, selected, " after exclude" if matched else "")
    return selected
