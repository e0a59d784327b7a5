"""Turn Hydra's jobs into cells: validate them, resolve them for this machine, and run them as one
sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from effbench import streams
from effbench.cell import LATER_NUMERICS, Cell, canonical_json
from effbench.config import sections
from effbench.errors import ConfigError
from effbench.launcher.expectations import check_bounds
from effbench.launcher.overrides import key_of, overrides_of_cell
from effbench.models.catalog import LIBRARIES
from effbench.models.presets import canonical
from effbench.models.spec import length_dims, parse_inputs
from effbench.printable import count, one_line
from effbench.store.sweeps import CONFIRMING
from effbench.sweeping import forecast, interpreters
from effbench.sweeping.matrix import check_rules, excluded, parse_shard, shards
from effbench.sweeping.plan import CellRun, Settings
from effbench.sweeping.pool import NETWORK, Pools
from effbench.sweeping.run import (
    Asked,
    Command,
    Outcome,
    check_baseline,
    open_pools,
    open_sweep,
)

#: Top-level keys of the whole sweep; all others define a cell or its interpreter.
OF_SWEEP = [field.name for field in dataclasses.fields(Settings)]
INTERPRETER_KEYS = ("python", "folder")
SECTIONS = dict(sections())
#: Sections with the settings of the phase of the same name.
OF_PHASES = ("training", "generate")
#: Settings of a model that define its cells. The others are there to be referred to by
#: `model.module`.
OF_CELLS = ("name", "module", "inputs", "tolerance", "allow_nonfinite")
#: Library -> example of a network.
EXAMPLES = {"torchvision": "resnet50", "timm": "vit_base_patch16_224", "transformers": "bert-base"}
#: Settings of networks by name -> the models that have them, unless all three do.
ONLY_OF = {
    **dict.fromkeys(("task", "seq", "config"), "transformers"),
    **dict.fromkeys(("image_size", "kwargs"), "torchvision or timm"),
}


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
        forecast.print_plan(matrix.settings, pools, matrix.plan(pools, command), command)


@dataclass(frozen=True)
class Matrix:
    """The jobs of a sweep: the parameters of each one's cell (`parts`), with its interpreter
    (`asked`)."""

    settings: Settings
    jobs: Sequence[Job]
    parts: Sequence[dict[str, Any]]
    asked: Asked

    def plan(self, pools: Pools, command: Command) -> list[CellRun | None]:
        """Return the cell run of each job, None for one that is not planned. `pools`: of the probed
        interpreters. Note the matrix and its overrides in `command`."""
        has_cuda = any(pool.gpus for pool in pools.values())
        cells = resolve(self.parts, has_cuda)
        check_baseline(self.settings, cells)
        kept = select(cells, self.settings, command)
        self.check_devices(has_cuda, command.matrix)
        options = [word for word in command.overrides if word.startswith("--")]
        for job, part, cell in zip(self.jobs, self.parts, cells, strict=True):
            if cell in kept and cell.key not in command.of_cells:
                words = overrides_of_cell(job.overrides, dropped_keys(job, part))
                command.of_cells[cell.key] = [*options, *words]
        return [
            CellRun(cell, interpreter) if cell in kept else None
            for cell, (interpreter, _) in zip(cells, self.asked, strict=True)
        ]

    def check_devices(self, has_cuda: bool, cells: Sequence[Cell]) -> None:
        """Raise ConfigError for settings that need a GPU if there is none."""
        is_elsewhere = self.settings.executor.name == "slurm"
        if not (has_cuda or is_elsewhere) and all(cell.device == "cuda" for cell in cells):
            raise ConfigError(
                "device=cuda, but torch sees no GPU here: use device=cpu, or see effbench doctor"
            )
        if self.settings.protocol.eliminate == "period_ms" and all(
            cell.device == "cpu" for cell in cells
        ):
            raise ConfigError(
                "protocol.eliminate=period_ms needs CUDA: on the CPU only the latency is measured"
            )


def dropped_keys(job: Job, part: dict[str, Any]) -> set[str]:
    """Return the keys of a job's overrides that have no effect on its cell: settings that only
    other modes have were removed from the baseline, and those of other phases are unused."""
    dropped = {f"mode.{name}" for name in job.config["mode"].keys() - part["mode"].keys()}
    for key in filter(None, map(key_of, job.overrides)):
        phase = key.partition(".")[0]
        if phase in OF_PHASES and phase != part["phase"]:
            dropped.add(key)
    return dropped


def prepare(jobs: Sequence[Job], command: Command) -> Matrix:
    """Return the matrix of these jobs."""
    parts, settings = split(jobs)
    for word in command.overrides:
        key = key_of(word) or ""
        phase = key.partition(".")[0]
        if phase in OF_PHASES and all(part["phase"] != phase for part in parts):
            raise ConfigError(
                f"{word} has no effect, because no cell has phase={phase}; add phase={phase}"
            )
        if key == "model.seq" and all(map(is_generated, parts)):  # no error: stored sweeps have it
            why = (
                "phase=generate makes a cache slot for each token of generate.prompt and"
                " generate.new_tokens"
            )
            command.progress.note(f"warning: {word} has no effect: {why}")
    interpreter = cache(interpreters.resolve)
    asked = [(interpreter(part["python"], part["folder"]), part) for part in parts]

    return Matrix(settings, jobs, parts, asked)


def select(cells: Sequence[Cell], settings: Settings, command: Command) -> set[Cell]:
    """Return the cells to plan: those that no rule of `exclude` matches and that are in the shard.
    Note these numbers in `command`. Raises ConfigError if no cell or no baseline remains."""
    matched, unused = excluded(cells, settings.exclude)
    for rule in unused:
        command.progress.note(one_line(f"warning: exclude: no cell matches the rule {rule}"))
    whole = [cell for cell in dict.fromkeys(cells) if cell not in matched]
    if not whole:
        raise ConfigError(
            "exclude matches every cell, so nothing is left to run; remove or narrow a rule"
        )
    if matched:
        check_baseline(settings, whole, " after exclude")
        baseline = settings.baseline_mode
        with_baseline = {cell.comparison_key for cell in whole if cell.mode_name == baseline}
        without = {
            cell.comparison_key for cell in matched if cell.mode_name == baseline
        } - with_baseline
        if lost := sum(cell.comparison_key in without for cell in whole):
            note = (
                f"warning: exclude removes the {baseline} baseline of {count(lost, 'cell')}: no"
                " speedups"
            )
            command.progress.note(note)
    command.excluded.extend(matched)
    command.matrix.extend(whole)
    if settings.shard is None:
        return set(whole)
    index, number = parse_shard(settings.shard)
    if not (part := shards(whole, number)[index - 1]):
        raise ConfigError(
            f"shard={settings.shard} is empty: the matrix has {count(len(whole), 'cell')}"
        )
    return set(part)


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
        part = {key: value for key, value in job.config.items() if key not in OF_SWEEP}
        parts.append(generating(canonically_named(part)))
        if key := next((key for key in OF_SWEEP if job.config[key] != first[key]), None):
            raise ConfigError(
                f"{key} applies to a whole sweep and cannot be swept: choose one value or run two"
                " sweeps"
            )
    return parts, Settings.with_defaults(**{key: first[key] for key in OF_SWEEP})


def is_generated(part: dict[str, Any]) -> bool:
    """Return whether a network of transformers generates tokens in this part."""
    return part["phase"] == "generate" and part["model"]["module"].get("library") == "transformers"


def canonically_named(part: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a cell with effbench's name for a network that has several, so that all
    give the same cell."""
    model = part["model"]
    module = model["module"]
    if not is_library_network(module):
        return part
    arch = canonical(module["library"], module["arch"])
    name = arch if model["name"] == module["arch"] else model["name"]
    return {**part, "model": {**model, "name": name, "module": {**module, "arch": arch}}}


def is_library_network(module: dict[str, Any]) -> bool:
    return (
        module.get("_target_") == NETWORK
        and module.get("library") in LIBRARIES
        and isinstance(module.get("arch"), str)
    )


def generating(part: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a cell. If phase=generate, a network of transformers becomes a decode step
    with a cache of as many slots as a request has tokens, like that of transformers' own
    `generate`."""
    model, settings = part["model"], part["generate"]
    if not is_generated(part):
        return part
    module = {
        **model["module"],
        "task": "decode",
        "seq": settings["prompt"] + settings["new_tokens"],
    }
    return {**part, "model": {**model, "module": module}}


def validate(config: dict[str, Any], valid: set[int], words: Sequence[str]) -> None:
    """Raise ConfigError for an invalid configuration, as far as its types do not prevent it.
    `valid`: the ids of sections (shared by jobs) that are skipped because they are valid; this
    configuration's are added. `words`: the overrides, for messages."""
    # Hydra accepts any added key, such as `+protocol.round=3`
    for section, known in SECTIONS.items():
        prefix, node = (f"{section}.", config[section]) if section else ("", config)
        if id(node) in valid:
            continue
        if unknown := [key for key in node if key not in known]:
            raise ConfigError(f"unknown setting {prefix}{unknown[0]}; allowed: {', '.join(known)}")
        if missing := [key for key in known if key not in node]:
            raise ConfigError(
                f"{prefix}{missing[0]} was removed, but every sweep requires it; omit the ~"
                " override"
            )
        for key in known:
            check_bounds(f"{prefix}{key}", node[key])
    new = {key: value for key, value in config.items() if id(value) not in valid}
    try:
        canonical_json(new)
    except ValueError:
        how = "to use them as text, put quotes inside quotes: 'model.name=\"nan\"'"
        raise ConfigError(f"nan and inf are not allowed as numbers; {how}") from None
    phase, task = config["phase"], config["model"]["task"]
    check_grad_mode(phase, config["numerics"]["grad_mode"])
    if streams.check(config["stream"]) != streams.NONE and phase != "inference":
        raise ConfigError(f"phase={phase} cannot run a stream; use stream=none or phase=inference")
    rate, fewest = config["stream"].get("rate"), config["protocol"]["min_samples"]
    if rate is not None and (requests := rate * config["protocol"]["budget_s"]) < fewest:
        why = (
            f"gives {requests:.3g} requests in protocol.budget_s, fewer than"
            f" protocol.min_samples={fewest}"
        )
        raise ConfigError(f"stream.rate={rate:g} {why}; set a longer budget or a higher rate")
    if phase == "generate" and task not in (None, "decode"):
        raise ConfigError(f"phase=generate needs model.task=decode, got {task}; omit model.task")
    protocol, model, mode, env = (new.get(name) for name in ("protocol", "model", "mode", "env"))
    if protocol and protocol["max_samples"] < protocol["min_samples"]:
        raise ConfigError("protocol.max_samples must be at least protocol.min_samples")
    name, gpus = config["sweep"]["name"] or "", config["executor"]["gpus"]
    if name == "last" or name.startswith(CONFIRMING):
        use = "the newest sweep" if name == "last" else "reruns by effbench check --confirm"
        raise ConfigError(f"sweep.name={name} is reserved for {use}: choose another name")
    if gpus != "auto" and not (
        isinstance(gpus, list) and gpus and all(isinstance(gpu, int) for gpu in gpus)
    ):
        how = "Example: 'executor.gpus=[0,1]'"
        raise ConfigError(
            f"executor.gpus: expected auto or a list of indices of GPUs, got {gpus!r}. {how}"
        )
    check_rules(config["exclude"])
    if config["shard"] is not None and parse_shard(config["shard"]) and not name:
        raise ConfigError(
            "shard requires sweep.name: give all shards the same, and import them as one sweep"
        )
    if model and (
        not isinstance(model["module"], dict)
        or not isinstance(model["module"].get("_target_"), str)
    ):
        raise ConfigError(
            "model.module._target_ is missing: give the nn.Module to build, for example my_pkg.Net"
            " or nets/mine.py:Net"
        )
    for key in ("name", "_target_") if "mode" in new else ():
        value = mode.get(key) if isinstance(mode, dict) else None
        if not isinstance(value, str):
            chosen = next((word for word in words if word.startswith("mode=")), "mode")
            problem = "is missing" if value is None else f"must be text, got {value!r}"
            raise ConfigError(
                f"{chosen}: {key} {problem}; the YAML of a mode requires name and _target_"
            )
    if model:
        check_model(model)
    plain = isinstance(env, dict) and all(
        isinstance(value, str | int | float) for value in env.values()
    )
    if "env" in new and not plain:
        raise ConfigError(
            f"env: expected texts or numbers by names without dots, got {env!r}. Example: env.FOO=1"
        )
    # the trial would use another GPU than the locked one
    if "env" in new and "CUDA_VISIBLE_DEVICES" in env:
        raise ConfigError(
            "env.CUDA_VISIBLE_DEVICES: effbench sets it for each trial; select GPUs with"
            " executor.gpus"
        )
    valid.update(id(value) for value in new.values() if isinstance(value, dict))


def check_grad_mode(phase: str, grad_mode: str) -> None:
    """Raise ConfigError for a setting that this phase cannot follow."""
    if phase == "training" and grad_mode != "auto":
        how = "omit numerics.grad_mode, or choose another phase"
        raise ConfigError(
            f"numerics.grad_mode={grad_mode}: phase=training always records gradients; {how}"
        )


def check_model(model: dict[str, Any]) -> None:
    """Raise ConfigError for a library without the name of a network, for invalid inputs, and for
    settings that the model's module does not use."""
    module = model["module"]
    if (
        module["_target_"] == NETWORK
        and module.get("arch") is None
        and module.get("library") in EXAMPLES
    ):
        library = module["library"]
        example = f"model.arch={EXAMPLES[library]}"
        raise ConfigError(
            f"model={library} needs the name of a network: {example}; `effbench models {library}`"
            " lists them"
        )
    if model["inputs"] == {}:
        raise ConfigError(
            "the model has no inputs: describe them, for example 'model.inputs.x.shape=[16]'"
        )
    if model["inputs"] is not None:
        parse_inputs(model["inputs"])
    for name in SECTIONS["model"].keys() - {*OF_CELLS, "description"}:
        if model[name] not in (None, {}) and model["module"].get(name) != model[name]:
            what = f"model.{name} has no effect on the model {model['name']}"
            models = ONLY_OF.get(name, "torchvision, timm or transformers")
            raise ConfigError(f"{what}: it is for model={models}; see effbench models")


def resolve(parts: Sequence[dict[str, Any]], has_cuda: bool) -> list[Cell]:
    """Return the cell of each part, with values for `auto` on this machine and with a name for each
    model.

    Raises ConfigError if two modules have the same name.
    """
    cells = []
    modules: dict[str, str] = {}
    for part in parts:
        device = ("cuda" if has_cuda else "cpu") if part["device"] == "auto" else part["device"]
        dtype = part["dtype"]
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        model = {key: part["model"][key] for key in OF_CELLS if key in part["model"]}
        target = model["module"]["_target_"]
        # a list, because it keeps the order of forward's arguments, unlike sorted JSON objects
        model["inputs"] = [{"name": name, **spec} for name, spec in (model["inputs"] or {}).items()]
        model["name"] = model["name"] or target.replace(":", ".").rpartition(".")[2]
        mode = {key: value for key, value in part["mode"].items() if key != "description"}
        if modules.setdefault(model["name"], target) != target:
            raise ConfigError(
                f"two modules have the name {model['name']}: give each its own, "
                "such as 'model.name=${model.module._target_}'"
            )
        # Hydra parses `true` as a boolean
        env = {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in part["env"].items()
        }
        stream = streams.resolve(part.get("stream"))
        bs = part["bs"]
        if stream and "dim" in stream:
            if part["model"]["inputs"]:  # else the module describes them, once it is built
                length_dims(
                    parse_inputs(part["model"]["inputs"]), stream["dim"], max(stream["sizes"])
                )
        elif stream:
            bs = streams.batch_size(stream["sizes"], bs)
        numerics = dict(part["numerics"])
        for name, default in LATER_NUMERICS.items():
            if name in numerics and numerics[name] == default:
                del numerics[name]
        # must not affect keys of cells of other phases
        settings = {name: part[name] for name in OF_PHASES if name == part["phase"]}
        settings["threads"] = part.get("threads")
        cells.append(
            Cell(model, bs, mode, dtype, part["phase"], device, numerics, env, stream, **settings)
        )
    return cells
