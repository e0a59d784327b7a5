"""Check a configuration, as far as the types of its settings do not prevent mistakes."""

from __future__ import annotations

from effbench.config.compose import Job
from effbench.core import streams
from effbench.core.errors import ConfigError
from effbench.core.settings import Config, Model, Protocol, Stream
from effbench.models.catalog import LIBRARIES, check_name
from effbench.models.presets import canonical
from effbench.models.spec import parse_inputs
from effbench.run.probe import NETWORK
from effbench.run.selection import check_rules
from effbench.store.sweeps import is_rerun

#: Settings of a model that are there to be referred to by `model.module`.
OF_NETWORKS = (
    "arch",
    "task",
    "seq",
    "image_size",
    "resolution",
    "frames",
    "steps",
    "config",
    "kwargs",
)


def validate(job: Job) -> None:
    """Raise ConfigError for an invalid configuration of a job."""
    config = job.config
    check_phase(config)
    check_arrivals(config.stream, config.protocol)
    name = config.sweep.name or ""
    if name == "last" or is_rerun(name):
        raise ConfigError(f"sweep.name={name} is reserved by effbench: choose another name")
    check_rules(config.exclude)
    check_model(config.model)
    check_network(config)
    check_mode(job)
    # the trial would use another GPU than the locked one
    if "CUDA_VISIBLE_DEVICES" in config.env:
        raise ConfigError(
            "env.CUDA_VISIBLE_DEVICES: effbench sets it for each trial; select GPUs by setting it"
            " for effbench itself"
        )
    if config.protocol.max_samples < config.protocol.min_samples:
        raise ConfigError("protocol.max_samples must be at least protocol.min_samples")


def check_phase(config: Config) -> None:
    """Raise ConfigError for settings that this phase cannot follow."""
    phase, grad_mode, task = config.phase, config.numerics.grad_mode, config.model.task
    if phase == "training" and grad_mode != "auto":
        raise ConfigError(
            f"numerics.grad_mode={grad_mode}: phase=training always records gradients; omit"
            " numerics.grad_mode, or choose another phase"
        )
    if phase != "inference" and config.stream.name != streams.NONE:
        raise ConfigError(f"phase={phase} cannot run a stream; use stream=none or phase=inference")
    if phase == "generate" and task not in (None, "decode"):
        raise ConfigError(f"phase=generate needs model.task=decode, got {task}; omit model.task")


def check_arrivals(stream: Stream, protocol: Protocol) -> None:
    """Raise ConfigError if too few requests arrive in the time of a trial."""
    if stream.rate is None:
        return
    requests = stream.rate * protocol.budget_s
    if requests < protocol.min_samples:
        raise ConfigError(
            f"stream.rate={stream.rate:g} gives {requests:.3g} requests in protocol.budget_s, fewer"
            f" than protocol.min_samples={protocol.min_samples}; set a longer budget or a higher"
            " rate"
        )


def check_mode(job: Job) -> None:
    """Raise ConfigError for a mode without a name or a target."""
    for key in ("name", "_target_"):
        if not isinstance(job.config.mode.get(key), str):
            chosen = [word.text for word in job.words if word.key == "mode"] or ["mode"]
            raise ConfigError(
                f"{chosen[0]}: {key} is missing or no text; the YAML of a mode requires name and"
                " _target_"
            )


def check_network(config: Config) -> None:
    """Raise ConfigError for an unknown name of a network. Trials would find it, but only after an
    import of seconds. Another interpreter may have other names."""
    module = config.model.module
    arch, library = module.get("arch"), module.get("library")
    if config.python or config.folder or module["_target_"] != NETWORK:
        return
    if isinstance(arch, str) and library in LIBRARIES:
        check_name(library, canonical(library, arch))


def check_model(model: Model) -> None:
    """Raise ConfigError for a model without a module, a library without the name of a network,
    invalid inputs, and settings that the model's module does not use."""
    module = model.module
    if not isinstance(module.get("_target_"), str):
        raise ConfigError(
            "model.module._target_ is missing: give the nn.Module to build, for example my_pkg.Net"
            " or nets/mine.py:Net"
        )
    library = module.get("library")
    if module["_target_"] == NETWORK and module.get("arch") is None and library in LIBRARIES:
        raise ConfigError(
            f"model={library} needs the name of a network: model.arch=NAME;"
            f" `effbench models {library}` lists them"
        )
    if model.inputs == {}:
        raise ConfigError(
            "the model has no inputs: describe them, for example 'model.inputs.x.shape=[16]'"
        )
    if model.inputs is not None:
        parse_inputs(model.inputs)
    for name in OF_NETWORKS:
        value = getattr(model, name)
        if value not in (None, {}) and module.get(name) != value:
            raise ConfigError(
                f"model.{name} has no effect: the module of the model {model.name} does not take"
                " it; see effbench models"
            )
