"""Check a composed configuration, as far as its types do not prevent mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effbench import streams
from effbench.cell import canonical_json
from effbench.config import sections
from effbench.errors import ConfigError
from effbench.launcher.expectations import check_bounds
from effbench.models.spec import parse_inputs
from effbench.store.sweeps import CONFIRMING
from effbench.sweeping.probe import NETWORK
from effbench.sweeping.selection import check_rules, parse_shard

SECTIONS = dict(sections())
#: Settings of a model that define its cells. The others are there to be referred to by
#: `model.module`.
OF_CELLS = ("name", "module", "inputs", "tolerance", "allow_nonfinite")
#: Library -> example of a network.
EXAMPLES = {"torchvision": "resnet50", "timm": "vit_base_patch16_224", "transformers": "bert-base"}
#: Settings of networks by name -> the models that have them, unless all three do.
ONLY_OF = {
    "task": "transformers",
    "seq": "transformers",
    "config": "transformers",
    "image_size": "torchvision or timm",
    "kwargs": "torchvision or timm",
}


def validate(config: dict[str, Any], valid: set[int], words: Sequence[str]) -> None:
    """Raise ConfigError for an invalid configuration. `valid`: the ids of sections (shared by jobs)
    that are skipped because they are valid; this configuration's are added. `words`: the overrides,
    for messages."""
    for section, names in SECTIONS.items():
        node = config[section] if section else config
        if id(node) not in valid:
            check_section(section, node, names)
    new = {key: value for key, value in config.items() if id(value) not in valid}
    check_numbers(new)
    check_phase(config)
    check_arrivals(config["stream"], config["protocol"])
    check_sweep(config)
    check_gpus(config["executor"]["gpus"])
    check_rules(config["exclude"])
    if "protocol" in new:
        check_samples(config["protocol"])
    if "model" in new:
        check_model(config["model"])
    if "mode" in new:
        check_mode(config["mode"], words)
    if "env" in new:
        check_variables(config["env"])
    valid.update(id(value) for value in new.values() if isinstance(value, dict))


def check_section(section: str, node: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise ConfigError if a section has other settings than these, or a number out of bounds.
    Hydra accepts any added key, such as `+protocol.round=3`."""
    for key in node:
        if key not in names:
            setting = f"{section}.{key}".lstrip(".")
            raise ConfigError(f"unknown setting {setting}; allowed: {', '.join(names)}")
    for key in names:
        setting = f"{section}.{key}".lstrip(".")
        if key not in node:
            raise ConfigError(
                f"{setting} was removed, but every sweep requires it; omit the ~ override"
            )
        check_bounds(setting, node[key])


def check_numbers(config: dict[str, Any]) -> None:
    """Raise ConfigError for NaN and infinity."""
    try:
        canonical_json(config)
    except ValueError:
        how = "to use them as text, put quotes inside quotes: 'model.name=\"nan\"'"
        raise ConfigError(f"nan and inf are not allowed as numbers; {how}") from None


def check_phase(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings that this phase cannot follow."""
    phase, grad_mode = config["phase"], config["numerics"]["grad_mode"]
    if phase == "training" and grad_mode != "auto":
        raise ConfigError(
            f"numerics.grad_mode={grad_mode}: phase=training always records gradients; omit"
            " numerics.grad_mode, or choose another phase"
        )
    if streams.check(config["stream"]) != streams.NONE and phase != "inference":
        raise ConfigError(f"phase={phase} cannot run a stream; use stream=none or phase=inference")
    task = config["model"]["task"]
    if phase == "generate" and task not in (None, "decode"):
        raise ConfigError(f"phase=generate needs model.task=decode, got {task}; omit model.task")


def check_arrivals(stream: Mapping[str, Any], protocol: Mapping[str, Any]) -> None:
    """Raise ConfigError if too few requests arrive in the time of a trial."""
    rate, fewest = stream.get("rate"), protocol["min_samples"]
    if rate is None:
        return
    requests = rate * protocol["budget_s"]
    if requests < fewest:
        raise ConfigError(
            f"stream.rate={rate:g} gives {requests:.3g} requests in protocol.budget_s, fewer than"
            f" protocol.min_samples={fewest}; set a longer budget or a higher rate"
        )


def check_samples(protocol: Mapping[str, Any]) -> None:
    if protocol["max_samples"] < protocol["min_samples"]:
        raise ConfigError("protocol.max_samples must be at least protocol.min_samples")


def check_sweep(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a name of the sweep with another meaning, or an invalid shard."""
    name = config["sweep"]["name"] or ""
    if name == "last" or name.startswith(CONFIRMING):
        use = "reruns by effbench check --confirm"
        if name == "last":
            use = "the newest sweep"
        raise ConfigError(f"sweep.name={name} is reserved for {use}: choose another name")
    if config["shard"] is None:
        return
    parse_shard(config["shard"])
    if not name:
        raise ConfigError(
            "shard requires sweep.name: give all shards the same, and import them as one sweep"
        )


def check_gpus(gpus: object) -> None:
    """Raise ConfigError unless these are `auto` or indices of GPUs."""
    is_list = isinstance(gpus, list) and gpus and all(isinstance(gpu, int) for gpu in gpus)
    if gpus != "auto" and not is_list:
        raise ConfigError(
            f"executor.gpus: expected auto or a list of indices of GPUs, got {gpus!r}."
            " Example: 'executor.gpus=[0,1]'"
        )


def check_mode(mode: object, words: Sequence[str]) -> None:
    """Raise ConfigError for a mode without a name or a target."""
    for key in ("name", "_target_"):
        value = mode.get(key) if isinstance(mode, dict) else None
        if not isinstance(value, str):
            chosen = [word for word in words if word.startswith("mode=")] or ["mode"]
            problem = "is missing" if value is None else f"must be text, got {value!r}"
            raise ConfigError(
                f"{chosen[0]}: {key} {problem}; the YAML of a mode requires name and _target_"
            )


def check_variables(env: object) -> None:
    """Raise ConfigError for environment variables that are no texts, or that effbench sets."""
    is_plain = isinstance(env, dict) and all(
        isinstance(value, str | int | float) for value in env.values()
    )
    if not isinstance(env, dict) or not is_plain:
        raise ConfigError(
            f"env: expected texts or numbers by names without dots, got {env!r}. Example: env.FOO=1"
        )
    # the trial would use another GPU than the locked one
    if "CUDA_VISIBLE_DEVICES" in env:
        raise ConfigError(
            "env.CUDA_VISIBLE_DEVICES: effbench sets it for each trial; select GPUs with"
            " executor.gpus"
        )


def check_model(model: Mapping[str, Any]) -> None:
    """Raise ConfigError for a model without a module, a library without the name of a network,
    invalid inputs, and settings that the model's module does not use."""
    module = model["module"]
    if not isinstance(module, dict) or not isinstance(module.get("_target_"), str):
        raise ConfigError(
            "model.module._target_ is missing: give the nn.Module to build, for example my_pkg.Net"
            " or nets/mine.py:Net"
        )
    library = module.get("library")
    if module["_target_"] == NETWORK and module.get("arch") is None and library in EXAMPLES:
        raise ConfigError(
            f"model={library} needs the name of a network: model.arch={EXAMPLES[library]};"
            f" `effbench models {library}` lists them"
        )
    if model["inputs"] == {}:
        raise ConfigError(
            "the model has no inputs: describe them, for example 'model.inputs.x.shape=[16]'"
        )
    if model["inputs"] is not None:
        parse_inputs(model["inputs"])
    for name in SECTIONS["model"]:
        if name not in (*OF_CELLS, "description"):
            check_use(name, model)


def check_use(name: str, model: Mapping[str, Any]) -> None:
    """Raise ConfigError if a setting of the model is given, but not used by its module."""
    value = model[name]
    if value not in (None, {}) and model["module"].get(name) != value:
        models = ONLY_OF.get(name, "torchvision, timm or transformers")
        raise ConfigError(
            f"model.{name} has no effect on the model {model['name']}: it is for model={models};"
            " see effbench models"
        )
