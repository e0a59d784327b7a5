"""From configurations to cells: validated, resolved for this machine, each once, in the order of the matrix."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from effbench import config as schema
from effbench import streams
from effbench.cell import Cell
from effbench.errors import ConfigError
from effbench.models.spec import parse_inputs
from effbench.store.sweeps import CONFIRMING
from effbench.sweeping.interpreters import Unit

#: Top-level keys that define a cell.
CELL_KEYS = ("model", "bs", "stream", "mode", "dtype", "phase", "training", "device", "numerics", "env")
#: Those that say under which interpreter it runs. All others are settings of the whole sweep.
INTERPRETER_KEYS = ("python", "folder")
SWEPT_KEYS = CELL_KEYS + INTERPRETER_KEYS


@dataclass(frozen=True)
class Settings:
    """What holds for the whole sweep, as plain values of the configuration."""

    sweep: dict[str, Any]
    protocol: dict[str, Any]
    executor: dict[str, Any]
    isolation: str
    timeout_s: float
    baseline_mode: str
    resume: str | None
    artifacts: list[str]
    on_failure: str
    db: str

    @classmethod
    def with_defaults(cls, **given: Any) -> Settings:
        """Those that are given, all others as the configuration has them: for a sweep that no command line describes.

        Of `sweep`, `protocol` and `executor` a part may be given.
        """
        values = dataclasses.asdict(schema.Config())
        names = [field.name for field in dataclasses.fields(cls)]
        nested = {name: values[name] | value for name, value in given.items() if isinstance(value, dict)}
        return cls(**{name: values[name] for name in names} | given | nested)


def split(configs: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], Settings]:
    """The part of each configuration that says what runs where (SWEPT_KEYS), and the settings that all share.

    Raises ConfigError for an invalid value, and for a setting of the sweep that was itself swept.
    """
    cells, settings = [], None
    for config in configs:
        validate(config)
        cells.append({key: config[key] for key in SWEPT_KEYS})
        found = {key: value for key, value in config.items() if key not in SWEPT_KEYS}
        if settings is None:
            settings = found
        elif settings != found:
            key = difference(settings, found)
            raise ConfigError(f"{key} holds for a whole sweep and cannot be swept: choose one value, or run two sweeps")
    if settings is None:
        raise ConfigError("the sweep is empty: no cell is left of these overrides")
    return cells, Settings(**settings)


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The dotted name of the first setting that differs; a group's own where another option of it was chosen."""
    key = next(key for key in one if one[key] != other[key])
    if key == "protocol" and one[key]["name"] != other[key]["name"]:
        return key
    if isinstance(one[key], dict) and one[key].keys() == other[key].keys():
        return f"{key}.{difference(one[key], other[key])}"
    return key


def validate(config: dict[str, Any]) -> None:
    """Everything that types alone do not say. Raises ConfigError."""
    check_keys(config)
    check_finite(config)
    one_of("dtype", config["dtype"], schema.DTYPES)
    one_of("phase", config["phase"], schema.PHASES)
    training = config["training"]
    one_of("training.optimizer", training["optimizer"], schema.OPTIMIZERS)
    one_of("training.implementation", training["implementation"], schema.IMPLEMENTATIONS)
    if training["lr"] <= 0:
        raise ConfigError(f"training.lr must be above 0, got {training['lr']:g}")
    one_of("device", config["device"], schema.DEVICES)
    one_of("isolation", config["isolation"], schema.ISOLATIONS)
    if not isinstance(config["artifacts"], list):
        raise ConfigError(f"artifacts={config['artifacts']} is no list: use brackets, as 'artifacts=[trace,code]'")
    for kind in config["artifacts"]:
        one_of("artifacts", kind, schema.ARTIFACTS)
    one_of("on_failure", config["on_failure"], schema.ON_FAILURE)
    one_of("numerics.matmul_precision", config["numerics"]["matmul_precision"], schema.MATMUL_PRECISIONS)
    at_least("bs", config["bs"], 1)
    if streams.check(config["stream"]) != streams.NONE and config["phase"] == "training":
        raise ConfigError("phase=training takes one batch size: leave stream at none, or phase at inference")
    at_least("protocol.rounds", config["protocol"]["rounds"], 1)
    at_least("protocol.input_sets", config["protocol"]["input_sets"], 1)
    at_least("protocol.check_steps", config["protocol"]["check_steps"], 1)
    at_least("protocol.min_samples", config["protocol"]["min_samples"], 2)
    at_least("protocol.max_samples", config["protocol"]["max_samples"], 2)
    at_least("protocol.max_warmup_calls", config["protocol"]["max_warmup_calls"], 1)
    at_least("protocol.warmup_calls", config["protocol"]["warmup_calls"], 0)
    at_least("protocol.attempts", config["protocol"]["attempts"], 1)
    enough = config["protocol"]["enough_interval"]
    if enough is not None and enough <= 0:
        raise ConfigError(f"protocol.enough_interval must be above 0 (or null: all rounds are run), got {enough:g}")
    if config["protocol"]["max_samples"] < config["protocol"]["min_samples"]:
        raise ConfigError(
            f"protocol.max_samples={config['protocol']['max_samples']} is below "
            f"protocol.min_samples={config['protocol']['min_samples']}"
        )
    if config["protocol"]["budget_s"] <= 0:
        raise ConfigError(f"protocol.budget_s must be above 0 seconds, got {config['protocol']['budget_s']:g}")
    at_least("executor.foreign_wait_s", config["executor"]["foreign_wait_s"], 0)
    at_least("executor.lock_timeout_s", config["executor"]["lock_timeout_s"], 0)
    for key in ("min_time_s", "target_interval", "warmup_s", "min_block_ms", "load_s"):
        at_least(f"protocol.{key}", config["protocol"][key], 0)
    if config["sweep"]["name"] == "last":
        raise ConfigError(
            "sweep.name=last would be hidden by the newest sweep, which `last` means: choose another name"
        )
    if (config["sweep"]["name"] or "").startswith(CONFIRMING):
        raise ConfigError(
            f"sweep.name must not begin with {CONFIRMING!r}: so begin the re-runs of effbench check --confirm"
        )
    if config["model"]["tolerance"] is not None and config["model"]["tolerance"] <= 0:
        raise ConfigError(f"model.tolerance must be above 0, got {config['model']['tolerance']:g}")
    if config["timeout_s"] <= 0:
        raise ConfigError(f"timeout_s must be above 0 seconds, got {config['timeout_s']:g}")
    gpus = config["executor"]["gpus"]
    if gpus != "auto" and not (isinstance(gpus, list) and gpus and all(isinstance(gpu, int) for gpu in gpus)):
        raise ConfigError(f"executor.gpus is {gpus!r}: use auto or a list of indices such as [0,1]")
    module = config["model"]["module"]
    if not isinstance(module, dict) or not isinstance(module.get("_target_"), str):
        raise ConfigError(
            "model.module._target_ names the nn.Module to build, for example my_pkg.Net or nets/mine.py:Net"
        )
    mode = config["mode"]
    if not isinstance(mode, dict) or not isinstance(mode.get("_target_"), str) or not isinstance(mode.get("name"), str):
        raise ConfigError("a mode's YAML needs name and _target_, both text (docs/extending.md)")
    if not config["model"]["inputs"]:
        raise ConfigError("the model has no inputs: describe them, for example 'model.inputs.x.shape=[16]'")
    parse_inputs(config["model"]["inputs"])
    check_variables(config["env"])


def check_keys(config: dict[str, Any]) -> None:
    """An added key (`+protocol.round=3`) would otherwise be taken silently."""
    nodes = {
        "": schema.Config,
        "model": schema.Model,
        "protocol": schema.Protocol,
        "executor": schema.Executor,
        "numerics": schema.Numerics,
        "stream": schema.Stream,
        "training": schema.Training,
        "sweep": schema.SweepSettings,
    }
    for node, kind in nodes.items():
        known = [f.name for f in dataclasses.fields(kind)]
        found = config[node] if node else config
        for key in found:
            if key not in known:
                raise ConfigError(f"unknown setting {node + '.' if node else ''}{key}; allowed: {', '.join(known)}")
        for key in known:
            if key not in found:
                raise ConfigError(f"{node + '.' if node else ''}{key} was taken out, and every sweep needs it")


def check_variables(env: Any) -> None:
    """`env` maps names to plain values; a dot in a name makes a mapping of it."""
    if not isinstance(env, dict):
        raise ConfigError(f"env is {env!r}; it maps environment variables to values: env.OMP_NUM_THREADS=1")
    for name, value in env.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(f"env.{name} is {value!r}: an environment variable takes text or a number, as env.FOO=1")


def variable(value: Any) -> str:
    """An environment variable's text, as it was typed: `true` is read as a boolean."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_finite(value: Any, name: str = "") -> None:
    """NaN and infinities have no canonical JSON, and no setting means anything by them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            check_finite(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            check_finite(inner, name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(
            f"{name}={value} is no finite number; a word needs quotes inside quotes: '{name}=\"{value}\"'"
        )


def one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value} is not allowed; choose one of {', '.join(allowed)}")


def at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")


def resolve(cells: Sequence[dict[str, Any]], has_cuda: bool) -> list[Cell]:
    """Cells for this machine: `auto` decided, names given, duplicates dropped, order kept."""
    found: dict[str, Cell] = {}
    names: dict[str, str] = {}
    for cell in cells:
        device = ("cuda" if has_cuda else "cpu") if cell["device"] == "auto" else cell["device"]
        dtype = cell["dtype"]
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        model = {key: value for key, value in cell["model"].items() if key != "description"}
        target = model["module"]["_target_"]
        # a list: their order is that of forward's arguments, and JSON objects have none
        model["inputs"] = [{"name": name, **spec} for name, spec in model["inputs"].items()]
        model["name"] = model["name"] or target.replace(":", ".").rpartition(".")[2]
        mode = {key: value for key, value in cell["mode"].items() if key != "description"}
        if names.setdefault(model["name"], target) != target:
            raise ConfigError(f"two modules share the name {model['name']}: give one of them another with model.name=")
        env = {key: variable(value) for key, value in cell["env"].items()}
        stream = streams.resolve(cell.get("stream"))
        bs = cell["bs"] if stream is None else streams.batch_size(stream["sizes"], cell["bs"])
        training = cell["training"] if cell["phase"] == "training" else None  # keys of inference cells know none
        done = Cell(model, bs, mode, dtype, cell["phase"], device, cell["numerics"], env, stream, training)
        found.setdefault(done.key, done)
    return list(found.values())


def round_order(units: Sequence[Unit], seed: int, round: int) -> list[Unit]:
    """All cells in this round's random order: drift of the machine then hits every mode alike.

    The interpreters of a cell stand next to each other, forwards and backwards by turns (A-B, B-A, A-B …): trials of
    one round are pairs, and drift within a pair favours neither.
    """
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(unit.cell.key, []).append(unit)
    order = list(groups.values())
    random.Random(f"{seed}/{round}").shuffle(order)
    return [unit for group in order for unit in (group[::-1] if round % 2 else group)]
