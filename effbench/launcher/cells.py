"""Turn Hydra's jobs into cells: resolve them for this machine, and run them as one sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from effbench import streams
from effbench.cell import LATER_NUMERICS, Cell
from effbench.errors import ConfigError
from effbench.launcher.overrides import key_of, overrides_of_cell
from effbench.launcher.validation import OF_CELLS, validate
from effbench.models.catalog import LIBRARIES
from effbench.models.presets import canonical
from effbench.models.spec import length_dims, parse_inputs
from effbench.printable import count, one_line
from effbench.sweeping import dry_run, interpreters
from effbench.sweeping.plan import OF_SWEEP, CellRun, Settings, SweepPlan
from effbench.sweeping.pool import Pools
from effbench.sweeping.probe import NETWORK
from effbench.sweeping.progress import Progress
from effbench.sweeping.run import (
    Asked,
    Command,
    Outcome,
    check_baseline,
    open_pools,
    open_sweep,
)
from effbench.sweeping.selection import excluded, parse_shard, shards

INTERPRETER_KEYS = ("python", "folder")
#: Sections with the settings of the phase of the same name.
OF_PHASES = ("training", "generate")


@dataclass(frozen=True)
class Job:
    """A job of Hydra: its overrides, and the configuration composed from them, as plain values."""

    overrides: list[str]
    config: dict[str, Any]


def conduct(jobs: Sequence[Job], command: Command) -> Outcome:
    """Run or resume the sweep of these jobs; see `OpenSweep.run`."""
    matrix = prepare(jobs, command)
    with open_sweep(matrix.settings, matrix.asked, command) as sweep:
        return sweep.run(matrix.plan(sweep.pools, command))


def print_plan(jobs: Sequence[Job], command: Command) -> None:
    """Print the plan of the sweep that `conduct` would run."""
    matrix = prepare(jobs, command)
    with open_pools(matrix.asked, matrix.settings, command) as pools:
        dry_run.print_plan(matrix.settings, pools, matrix.plan(pools, command), command)


@dataclass(frozen=True)
class Matrix:
    """The jobs of a sweep: the parameters of each one's cell (`parts`), with its interpreter
    (`asked`)."""

    settings: Settings
    jobs: Sequence[Job]
    parts: Sequence[dict[str, Any]]
    asked: Asked

    def plan(self, pools: Pools, command: Command) -> SweepPlan:
        """Return what the sweep runs. `pools`: of the probed interpreters."""
        has_cuda = any(pool.gpus for pool in pools.values())
        cells = resolve(self.parts, has_cuda)
        check_baseline(self.settings, cells)
        selected = select(cells, self.settings, command.progress)
        check_devices(selected.matrix, self.settings, has_cuda)
        options = [word for word in command.overrides if word.startswith("--")]
        overrides: dict[str, list[str]] = {}
        runs: list[CellRun | None] = []
        for job, (interpreter, part), cell in zip(self.jobs, self.asked, cells, strict=True):
            if cell not in selected.planned:
                runs.append(None)
                continue
            runs.append(CellRun(cell, interpreter))
            if cell.key not in overrides:
                words = overrides_of_cell(job.overrides, dropped_keys(job, part))
                overrides[cell.key] = [*options, *words]
        return SweepPlan(runs, overrides, selected.matrix, selected.excluded)


def prepare(jobs: Sequence[Job], command: Command) -> Matrix:
    """Return the matrix of these jobs."""
    parts, settings = split(jobs)
    for word in command.overrides:
        check_effect(word, parts, command)
    interpreter = cache(interpreters.resolve)
    asked = [(interpreter(part["python"], part["folder"]), part) for part in parts]
    return Matrix(settings, jobs, parts, asked)


def check_effect(word: str, parts: Sequence[dict[str, Any]], command: Command) -> None:
    """Raise ConfigError for an override of a phase that no cell has; note one without effect."""
    key = key_of(word) or ""
    phase = key.partition(".")[0]
    if phase in OF_PHASES and all(part["phase"] != phase for part in parts):
        raise ConfigError(
            f"{word} has no effect, because no cell has phase={phase}; add phase={phase}"
        )
    if key == "model.seq" and all(map(is_generated, parts)):  # no error: stored sweeps have it
        command.progress.note(
            f"warning: {word} has no effect: phase=generate makes a cache slot for each token of"
            " generate.prompt and generate.new_tokens"
        )


def check_devices(matrix: Sequence[Cell], settings: Settings, has_cuda: bool) -> None:
    """Raise ConfigError if no cell of the matrix can be measured as the settings require."""
    devices = {cell.device for cell in matrix}
    is_elsewhere = settings.executor.name == "slurm"
    if devices == {"cuda"} and not has_cuda and not is_elsewhere:
        raise ConfigError(
            "device=cuda, but torch sees no GPU here: use device=cpu, or see effbench doctor"
        )
    if devices == {"cpu"} and settings.protocol.eliminate == "period_ms":
        raise ConfigError(
            "protocol.eliminate=period_ms needs CUDA: on the CPU only the latency is measured"
        )


def dropped_keys(job: Job, part: dict[str, Any]) -> set[str]:
    """Return the keys of a job's overrides that have no effect on its cell: settings that only
    other modes have were removed from the baseline, and those of other phases are unused."""
    dropped = {f"mode.{name}" for name in job.config["mode"].keys() - part["mode"].keys()}
    for word in job.overrides:
        key = key_of(word) or ""
        phase = key.partition(".")[0]
        if phase in OF_PHASES and phase != part["phase"]:
            dropped.add(key)
    return dropped


@dataclass(frozen=True)
class SelectedCells:
    """The cells of the matrix without the `excluded` ones (their number), and those of them to
    plan, which are in the shard."""

    matrix: Sequence[Cell]
    planned: set[Cell]
    excluded: int


def select(cells: Sequence[Cell], settings: Settings, progress: Progress) -> SelectedCells:
    """Return the cells to plan: those that no rule of `exclude` matches and that are in the shard.
    Raises ConfigError if no cell or no baseline remains."""
    matched, unused = excluded(cells, settings.exclude)
    for rule in unused:
        progress.note(one_line(f"warning: exclude: no cell matches the rule {rule}"))
    whole = [cell for cell in dict.fromkeys(cells) if cell not in matched]
    if not whole:
        raise ConfigError(
            "exclude matches every cell, so nothing is left to run; remove or narrow a rule"
        )
    if matched:
        check_baseline(settings, whole, " after exclude")
        lost = without_baseline(whole, matched, settings.baseline_mode)
        if lost:
            progress.note(
                f"warning: exclude removes the {settings.baseline_mode} baseline of"
                f" {count(lost, 'cell')}: no speedups"
            )
    if settings.shard is None:
        return SelectedCells(whole, set(whole), len(matched))
    index, number = parse_shard(settings.shard)
    part = shards(whole, number)[index - 1]
    if not part:
        raise ConfigError(
            f"shard={settings.shard} is empty: the matrix has {count(len(whole), 'cell')}"
        )
    return SelectedCells(whole, set(part), len(matched))


def without_baseline(whole: Sequence[Cell], matched: set[Cell], baseline: str) -> int:
    """Return how many of the cells lost their baseline to `exclude`."""
    kept = {cell.comparison_key for cell in whole if cell.mode_name == baseline}
    removed = {cell.comparison_key for cell in matched if cell.mode_name == baseline}
    return sum(cell.comparison_key in removed - kept for cell in whole)


def split(jobs: Sequence[Job]) -> tuple[list[dict[str, Any]], Settings]:
    """Return the swept part of each job, and the settings of the whole sweep. Raises ConfigError
    for invalid ones."""
    if not jobs:
        raise ConfigError(
            "the sweep is empty: these overrides give no cell; give each one at least one value"
        )
    parts, first = [], jobs[0].config
    valid: set[int] = set()
    for job in jobs:
        validate(job.config, valid, job.overrides)
        for key in OF_SWEEP:
            if job.config[key] != first[key]:
                raise ConfigError(
                    f"{key} applies to a whole sweep and cannot be swept: choose one value or run"
                    " two sweeps"
                )
        part = {key: value for key, value in job.config.items() if key not in OF_SWEEP}
        parts.append(as_generated(canonically_named(part)))
    return parts, Settings.with_defaults(**{key: first[key] for key in OF_SWEEP})


def with_module(part: dict[str, Any], name: str | None, **changed: Any) -> dict[str, Any]:
    """Return the part of a cell with a name of its model and changed settings of its module."""
    model = part["model"]
    return {**part, "model": {**model, "name": name, "module": {**model["module"], **changed}}}


def canonically_named(part: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a cell with effbench's name for a network that has several, so that all
    give the same cell."""
    model, module = part["model"], part["model"]["module"]
    library, given = module.get("library"), module.get("arch")
    is_network = module.get("_target_") == NETWORK and library in LIBRARIES
    if not is_network or not isinstance(given, str):
        return part
    arch = canonical(library, given)
    name = model["name"]
    if name == given:
        name = arch
    return with_module(part, name, arch=arch)


def is_generated(part: dict[str, Any]) -> bool:
    """Return whether a network of transformers generates tokens in this part."""
    library = part["model"]["module"].get("library")
    return bool(part["phase"] == "generate" and library == "transformers")


def as_generated(part: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a cell. If phase=generate, a network of transformers becomes a decode step
    with a cache of as many slots as a request has tokens, like that of transformers' own
    `generate`."""
    if not is_generated(part):
        return part
    slots = part["generate"]["prompt"] + part["generate"]["new_tokens"]
    return with_module(part, part["model"]["name"], task="decode", seq=slots)


def resolve(parts: Sequence[dict[str, Any]], has_cuda: bool) -> list[Cell]:
    """Return the cell of each part, with values for `auto` on this machine and with a name for each
    model.

    Raises ConfigError if two modules have the same name.
    """
    cells = []
    modules: dict[str, str] = {}
    for part in parts:
        cell = cell_of(part, has_cuda)
        target = cell.model["module"]["_target_"]
        if modules.setdefault(cell.model_name, target) != target:
            raise ConfigError(
                f"two modules have the name {cell.model_name}: give each its own, "
                "such as 'model.name=${model.module._target_}'"
            )
        cells.append(cell)
    return cells


def cell_of(part: dict[str, Any], has_cuda: bool) -> Cell:
    """Return the cell of a part. Raises ConfigError if its stream and its inputs do not fit."""
    device = part["device"]
    if device == "auto":
        device = "cuda" if has_cuda else "cpu"
    dtype = part["dtype"]
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    stream = streams.resolve(part.get("stream"))
    # must not affect keys of cells of other phases
    of_phase = {phase: part[phase] for phase in OF_PHASES if phase == part["phase"]}
    return Cell(
        model=model_of(part["model"]),
        bs=batch_size_of(part, stream),
        mode={key: value for key, value in part["mode"].items() if key != "description"},
        dtype=dtype,
        phase=part["phase"],
        device=device,
        numerics=numerics_of(part["numerics"]),
        env={key: text_of(value) for key, value in part["env"].items()},
        stream=stream,
        threads=part.get("threads"),
        **of_phase,
    )


def model_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's `model`, with a name."""
    model = {key: settings[key] for key in OF_CELLS if key in settings}
    # a list, because it keeps the order of forward's arguments, unlike sorted JSON objects
    inputs = model["inputs"] or {}
    model["inputs"] = [{"name": name, **spec} for name, spec in inputs.items()]
    if not model["name"]:
        model["name"] = model["module"]["_target_"].replace(":", ".").rpartition(".")[2]
    return model


def batch_size_of(part: dict[str, Any], stream: dict[str, Any] | None) -> int:
    """Return `bs` of a cell: the largest size of a stream of batch sizes, else the given one."""
    bs: int = part["bs"]
    if stream is None:
        return bs
    if "dim" not in stream:
        return streams.batch_size(stream["sizes"], bs)
    inputs = part["model"]["inputs"]
    if inputs:  # else the module describes them, once it is built
        length_dims(parse_inputs(inputs), stream["dim"], max(stream["sizes"]))
    return bs


def numerics_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's `numerics`, which omit later settings at their defaults."""
    missing = object()
    return {
        name: value
        for name, value in settings.items()
        if LATER_NUMERICS.get(name, missing) != value
    }


def text_of(value: object) -> str:
    """Return the value of an environment variable; Hydra parses `true` as a boolean."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
