"""From composed jobs to cells: validated, resolved for this machine, and run as one sweep."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from effbench import streams
from effbench.cell import Cell, canonical_json
from effbench.config import sections
from effbench.errors import ConfigError
from effbench.launcher.overrides import overrides_of_cell
from effbench.models.spec import parse_inputs
from effbench.store.sweeps import CONFIRMING
from effbench.sweeping import interpreters
from effbench.sweeping.client import ForkServer
from effbench.sweeping.plan import CellRun, Settings
from effbench.sweeping.pool import Pools
from effbench.sweeping.progress import Progress
from effbench.sweeping.run import Command, Outcome, check_baseline, run_sweep

#: Top-level keys of the whole sweep; all others define a cell, or say under which interpreter it runs.
OF_SWEEP = [field.name for field in dataclasses.fields(Settings)]
INTERPRETER_KEYS = ("python", "folder")


@dataclass(frozen=True)
class Job:
    """One of Hydra's jobs: its overrides, and the configuration that they compose to, as plain values."""

    overrides: list[str]
    config: dict[str, Any]


def conduct(
    jobs: Sequence[Job],
    command: Command,
    server: ForkServer | None,
    progress: Progress,
    stop: threading.Event,
    extend: Outcome | None = None,
) -> Outcome:
    """Run (or resume) the sweep of these jobs; see `run_sweep`."""
    parts, settings = split(jobs)
    chosen = [interpreters.resolve(part["python"], part["folder"]) for part in parts]

    def plan(pools: Pools) -> list[CellRun]:
        cells = resolve(parts, has_cuda=any(pool.gpus for pool in pools.values()))
        check_baseline(settings, cells)
        options = [word for word in command.overrides if word.startswith("--")]
        for job, part, cell in zip(jobs, parts, cells, strict=True):
            # the baseline may lack settings that only other modes have
            dropped = {f"mode.{name}" for name in job.config["mode"].keys() - part["mode"].keys()}
            command.of_cells.setdefault(cell.key, [*options, *overrides_of_cell(job.overrides, dropped)])
        return list(map(CellRun, cells, chosen))

    asked = list(zip(chosen, parts, strict=True))
    return run_sweep(settings, asked, plan, command, server, progress, stop, extend)


def split(jobs: Sequence[Job]) -> tuple[list[dict[str, Any]], Settings]:
    """Return the part of each job that is swept, and the settings that all share. Raises ConfigError."""
    parts, settings = [], None
    for job in jobs:
        validate(job.config)
        parts.append({key: value for key, value in job.config.items() if key not in OF_SWEEP})
        of_sweep = {key: job.config[key] for key in OF_SWEEP}
        if settings is None:
            settings = of_sweep
        elif settings != of_sweep:
            key = next(key for key in settings if settings[key] != of_sweep[key])
            raise ConfigError(f"{key} holds for a whole sweep and cannot be swept: choose one value, or run two sweeps")
    if settings is None:
        raise ConfigError("the sweep is empty: these overrides leave no cell")
    return parts, Settings(**settings)


def validate(config: dict[str, Any]) -> None:
    """Raise ConfigError for what types alone do not exclude."""
    for section, known in sections():  # an added key (`+protocol.round=3`) would otherwise be accepted silently
        prefix, node = (f"{section}.", config[section]) if section else ("", config)
        if unknown := [key for key in node if key not in known]:
            raise ConfigError(f"unknown setting {prefix}{unknown[0]}; allowed: {', '.join(known)}")
        if missing := [key for key in known if key not in node]:
            raise ConfigError(f"{prefix}{missing[0]} was taken out, and every sweep needs it")
        for key, setting in known.items():
            value, least, above = node[key], setting.metadata.get("least"), setting.metadata.get("above")
            if value is not None and ((least is not None and value < least) or (above is not None and value <= above)):
                limit = f"at least {least:g}" if above is None else f"above {above:g}"
                unit = " seconds" if key.endswith("_s") else ""
                raise ConfigError(f"{prefix}{key} must be {limit}{unit}, got {value:g}")
    try:
        canonical_json(config)
    except ValueError:
        how = "a word of this kind needs quotes inside quotes: 'model.name=\"nan\"'"
        raise ConfigError(f"nan and inf are not allowed as numbers; {how}") from None
    protocol, model, mode, gpus = config["protocol"], config["model"], config["mode"], config["executor"]["gpus"]
    if protocol["max_samples"] < protocol["min_samples"]:
        raise ConfigError("protocol.max_samples is below protocol.min_samples")
    if streams.check(config["stream"]) != streams.NONE and config["phase"] == "training":
        raise ConfigError("phase=training takes one batch size: leave stream at none, or phase at inference")
    name = config["sweep"]["name"] or ""
    if name == "last" or name.startswith(CONFIRMING):
        use = "the newest sweep" if name == "last" else "the re-runs of effbench check --confirm"
        raise ConfigError(f"sweep.name={name} is reserved for {use}: choose another name")
    if gpus != "auto" and not (isinstance(gpus, list) and gpus and all(isinstance(gpu, int) for gpu in gpus)):
        raise ConfigError(f"executor.gpus is {gpus!r}: use auto or a list of indices such as [0,1]")
    if not isinstance(model["module"], dict) or not isinstance(model["module"].get("_target_"), str):
        raise ConfigError(
            "model.module._target_ names the nn.Module to build, for example my_pkg.Net or nets/mine.py:Net"
        )
    if not isinstance(mode, dict) or not all(isinstance(mode.get(key), str) for key in ("name", "_target_")):
        raise ConfigError("a mode's YAML needs name and _target_, both text (docs/reference/extending.md)")
    if not model["inputs"]:
        raise ConfigError("the model has no inputs: describe them, for example 'model.inputs.x.shape=[16]'")
    parse_inputs(model["inputs"])
    env = config["env"]
    if not isinstance(env, dict) or not all(isinstance(value, str | int | float) for value in env.values()):
        raise ConfigError(f"env is {env!r}: it maps variables to text or numbers, as env.FOO=1; a name has no dot")


def resolve(parts: Sequence[dict[str, Any]], has_cuda: bool) -> list[Cell]:
    """Return the cell of each part for this machine, with `auto` decided and names given.

    Raises ConfigError if two modules share a name.
    """
    cells = []
    modules: dict[str, str] = {}
    for part in parts:
        device = ("cuda" if has_cuda else "cpu") if part["device"] == "auto" else part["device"]
        dtype = part["dtype"]
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        model = {key: value for key, value in part["model"].items() if key != "description"}
        target = model["module"]["_target_"]
        # a list: their order is that of forward's arguments, and JSON objects have none
        model["inputs"] = [{"name": name, **spec} for name, spec in model["inputs"].items()]
        model["name"] = model["name"] or target.replace(":", ".").rpartition(".")[2]
        mode = {key: value for key, value in part["mode"].items() if key != "description"}
        if modules.setdefault(model["name"], target) != target:
            raise ConfigError(f"two modules share the name {model['name']}: give one of them another with model.name=")
        # `true` is read as a boolean
        env = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in part["env"].items()}
        stream = streams.resolve(part.get("stream"))
        bs = part["bs"] if stream is None else streams.batch_size(stream["sizes"], part["bs"])
        training = part["training"] if part["phase"] == "training" else None  # keys of inference cells know none
        cells.append(Cell(model, bs, mode, dtype, part["phase"], device, part["numerics"], env, stream, training))
    return cells
