"""The structured configuration: every setting of a sweep, with type, default, unit and bounds.

A model's `module` and `inputs`, a mode's settings and `env` are open: a user adds keys without `+`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

DEFAULT_DB = "results/effbench.db"
LOSSES = ("mean-square", "mean")  # any other is a path


def choice(name: str, *values: str) -> type[StrEnum]:
    """Return an enum whose names and values are these texts."""
    return StrEnum(name, {value: value for value in values}, module=__name__)


Dtype = choice("Dtype", "auto", "float32", "bfloat16", "float16", "float64")
Device = choice("Device", "auto", "cuda", "cpu")
Phase = choice("Phase", "inference", "training")
Optimizer = choice("Optimizer", "sgd", "adam", "adamw")
Implementation = choice("Implementation", "for-loop", "foreach", "fused", "capturable")
Isolation = choice("Isolation", "fork", "spawn")
OnFailure = choice("OnFailure", "fail", "ignore")
Artifact = choice("Artifact", "trace", "code", "snapshot", "graph")
MatmulPrecision = choice("MatmulPrecision", "highest", "high", "medium")


def number(default: float | None, least: float | None = None, above: float | None = None) -> Any:
    """Return a setting whose value must be at least `least`, or larger than `above`."""
    return field(default=default, metadata={"least": least, "above": above})


def shipped(folder: str) -> Path:
    """Return `conf` or `experiments`: in the wheel inside the package, in a checkout next to it."""
    package = Path(__file__).resolve().parent
    return package / folder if (package / folder).is_dir() else package.parent / folder


@dataclass
class Model:
    """A workload: an nn.Module and its inputs; docs/models.md describes `module` and `inputs`."""

    name: str | None = None  # label in results; null: last part of module._target_
    description: str = ""
    module: Any = field(default_factory=dict)
    inputs: Any = field(default_factory=dict)
    tolerance: float | None = number(None, above=0)  # relative; null: by dtype
    allow_nonfinite: bool = False


@dataclass
class Numerics:
    """Numeric flags, set before anything runs in a trial; part of the cell."""

    tf32: bool = False  # TF32 in matrix products and convolutions of float32 tensors
    matmul_precision: MatmulPrecision = MatmulPrecision.highest  # torch.set_float32_matmul_precision
    cudnn_benchmark: bool = False
    deterministic: bool = False
    seed: int = 0


@dataclass
class Stream:
    """A sequence of batch sizes instead of one (docs/streams.md); streams.KINDS lists the settings of each kind."""

    name: str = "none"  # none, uniform, bursty, decode, csv
    length: int | None = None
    low: int | None = None
    high: int | None = None
    seed: int | None = None
    spell: int | None = None
    share: float | None = None
    tokens: int | None = None
    path: str | None = None
    column: str | None = None


@dataclass
class Training:
    """What a training step does (docs/training.md); part of the cell if phase=training."""

    optimizer: Optimizer = Optimizer.adam
    implementation: Implementation = Implementation.foreach
    lr: float = number(1e-4, above=0)
    loss: str = "mean-square"  # mean-square, mean, or the path of a callable(output, inputs) that gives a scalar
    set_to_none: bool = True  # how gradients are zeroed before each step


@dataclass
class SweepSettings:
    name: str | None = None
    label: str | None = None  # null: git description of the working directory
    seed: int = 0  # of the random order within each round


@dataclass
class Protocol:
    """How a cell is measured (docs/measuring.md); not part of the cell."""

    name: str = "standard"
    rounds: int = number(5, least=1)  # trials of each cell, each in a process of its own
    budget_s: float = number(5.0, above=0)  # most seconds of timing in a trial, latency and period together
    min_time_s: float = number(0.5, least=0)  # least seconds of each timer
    min_samples: int = number(30, least=2)  # least samples of each timer
    target_interval: float = number(0.005, least=0)  # stop when the median's 95 % interval is this narrow, relative
    max_samples: int = number(100_000, least=2)  # most samples of each timer
    warmup_calls: int = number(10, least=0)  # least calls before timing
    warmup_s: float = number(0.2, least=0)  # least seconds before timing
    max_warmup_calls: int = number(300, least=1)
    min_block_ms: float = number(5.0, least=0)  # least length of a block of back-to-back calls
    load_s: float = number(0.3, least=0)  # seconds of back-to-back calls before the period is timed
    input_sets: int = number(3, least=1)  # inputs rotate over so many sets
    check_steps: int = number(5, least=1)  # training: steps that are compared with eager
    enough_interval: float | None = number(None, above=0)  # a cell's rounds end early at this relative 95 % interval
    attempts: int = number(2, least=1)  # tries of a round whose trial is noisy
    profile: bool = True  # a profiled pass at the end of each trial, on CUDA


@dataclass
class Executor:
    name: str = "local"
    gpus: Any = "auto"  # auto: all visible; or a list of indices, e.g. [0,1]
    cores: Any = "auto"  # CPU cores for trials on GPUs, divided among them; null: no pinning; or 2-7, or [2,3]
    renew_server: bool = True  # on CUDA: a fork server of its own for the trials of each round
    foreign_wait_s: float = number(30.0, least=0)  # longest wait for another process to stop using a GPU
    lock_timeout_s: float = number(3600.0, least=0)  # longest wait for a GPU that another effbench process uses
    cache_dir: str | None = None  # compile caches; null: effbench/compile below the user's cache folder
    keep_cache: bool = False  # keep the compile caches of a finished sweep


@dataclass
class Config:
    model: Model = field(default_factory=Model)
    bs: int = number(1, least=1)
    stream: Stream = field(default_factory=Stream)
    mode: Any = field(default_factory=dict)
    dtype: Dtype = Dtype.auto  # auto: bfloat16 on CUDA, float32 on CPU
    phase: Phase = Phase.inference
    training: Training = field(default_factory=Training)
    device: Device = Device.auto  # auto: cuda if there is one, else cpu
    numerics: Numerics = field(default_factory=Numerics)
    env: Any = field(default_factory=dict)  # environment variables of the cell's process; forces isolation=spawn
    python: str | None = None  # interpreter of the trials; null: the one that runs effbench
    folder: str | None = None  # working directory whose modules the trials import; null: this one
    sweep: SweepSettings = field(default_factory=SweepSettings)
    protocol: Protocol = field(default_factory=Protocol)
    executor: Executor = field(default_factory=Executor)
    isolation: Isolation = Isolation.fork  # fork: from a server with torch preloaded; spawn: a fresh interpreter each
    timeout_s: float = number(900.0, above=0)  # longest wall time of a trial
    baseline_mode: str = "eager"
    resume: str | None = None  # a sweep's id, name or `last`: continue where it stopped
    artifacts: list[Artifact] = field(default_factory=list)  # saved from each cell's first trial
    on_failure: OnFailure = OnFailure.fail  # fail: exit 1 when cells failed; ignore: exit 0
    db: str = DEFAULT_DB  # a path or any SQLAlchemy URL


def sections() -> Iterator[tuple[str, dict[str, dataclasses.Field]]]:
    """Yield each closed part of the configuration ("" is the top) with its settings by name."""
    top = {setting.name: setting for setting in dataclasses.fields(Config)}
    yield "", top
    for name, setting in top.items():
        if dataclasses.is_dataclass(setting.default_factory):
            yield name, {inner.name: inner for inner in dataclasses.fields(setting.default_factory)}


def register() -> None:
    """Put the typed configuration into Hydra's ConfigStore, with the nodes that users may extend left open."""
    from hydra.core.config_store import ConfigStore

    schema = OmegaConf.structured(Config)
    OmegaConf.set_struct(schema, True)
    for open_node in (schema.model.module, schema.model.inputs, schema.env, schema.mode):
        OmegaConf.set_struct(open_node, False)
    ConfigStore.instance().store(name="schema", node=schema, provider="effbench")
