"""The structured configuration: every setting of a sweep, with type, default, unit and bounds.

A model's `module` and `inputs`, a mode's settings and `env` are open: a user adds keys without `+`.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

DEFAULT_DB = "results/effbench.db"
LOSSES = ("mean-square", "mean")  # any other value is an import path


def db_option(name: str) -> str:
    """Return ` --db NAME` for a command in a message; empty for the default database."""
    if name == DEFAULT_DB:
        return ""
    return f" --db {shlex.quote(name)}"


def db_setting(db: str, name: str | None = None) -> str:
    """Return ` db=NAME` for a sweep in a message, in quotes if Hydra needs them; empty if `db` is
    the default database. `name`: `db` without its password, if it has one."""
    value = quoted(db if name is None else name)
    if db == DEFAULT_DB:
        return ""
    return f" {shlex.quote(f'db={value}')}"


def quoted(text: str) -> str:
    """Return a text as the value of an override, with quotes if needed."""
    if re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./:@+-]*", text):
        return text
    # within quotes, a backslash is special only before a quote or at the end
    escaped = re.sub(
        r'(\\*)("|$)', lambda match: match[1] * 2 + ("\\" if match[2] else "") + match[2], text
    )
    return f'"{escaped}"'


# OmegaConf looks values up by the names of members, so these are equal to the values


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"


class Device(StrEnum):
    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


class Phase(StrEnum):
    inference = "inference"
    training = "training"
    generate = "generate"


class Optimizer(StrEnum):
    sgd = "sgd"
    adam = "adam"
    adamw = "adamw"


class Isolation(StrEnum):
    fork = "fork"
    spawn = "spawn"


class ExecutorName(StrEnum):
    local = "local"
    slurm = "slurm"


class OnFailure(StrEnum):
    fail = "fail"
    ignore = "ignore"


class Eliminate(StrEnum):
    latency_ms = "latency_ms"
    period_ms = "period_ms"


class Artifact(StrEnum):
    trace = "trace"
    code = "code"
    snapshot = "snapshot"
    graph = "graph"


class MatmulPrecision(StrEnum):
    highest = "highest"
    high = "high"
    medium = "medium"


class GradMode(StrEnum):
    auto = "auto"
    inference = "inference"
    no_grad = "no_grad"
    grad = "grad"


# names with hyphens cannot be written as a class
Implementation = StrEnum(
    "Implementation",
    {
        "for-loop": "for-loop",
        "foreach": "foreach",
        "fused": "fused",
        "capturable": "capturable",
    },
)
Quantize = StrEnum(
    "Quantize",
    {
        "int8-weight-only": "int8-weight-only",
        "int4-weight-only": "int4-weight-only",
        "float8-weight-only": "float8-weight-only",
        "float8": "float8",
    },
)


def number(
    default: float | None,
    least: float | None = None,
    above: float | None = None,
    most: float = 2**31 - 1,
) -> Any:
    """Return a numeric setting whose value must be at least `least`, or greater than `above`, and
    at most `most`, by default the largest integer of the database."""
    return field(default=default, metadata={"least": least, "above": above, "most": most})


def shipped(folder: str) -> Path:
    """Return the path of `conf` or `experiments`: inside the package in a wheel, next to it in a
    checkout."""
    package = Path(__file__).resolve().parent
    if (package / folder).is_dir():
        return package / folder
    return package.parent / folder


@dataclass
class Model:
    """A workload: an nn.Module and its inputs."""

    name: str | None = None  # name in results; null: last part of `model.module._target_`
    description: str = ""  # description for readers; not part of the cell
    module: Any = field(default_factory=dict)  # `_target_` and the constructor's arguments
    # inputs of `forward` by name; null: the module has an attribute `inputs`
    inputs: Any = field(default_factory=dict)
    # relative tolerance against eager; null: by dtype
    tolerance: float | None = number(None, above=0)
    allow_nonfinite: bool = False  # true: NaN and infinity in eager's output are not `incorrect`
    # settings of model=torchvision, timm and transformers, which `model.module` refers to:
    arch: str | None = None  # name of a network; `effbench models` lists them
    # transformers: `encode`, `logits`, `prefill` or `decode`; null: by architecture
    task: str | None = None
    # transformers: tokens of a sequence; slots of the cache of `decode`, which phase=generate sets
    # itself
    seq: int | None = number(None, least=1)
    # height and width of images; null: those of the published weights
    image_size: int | None = number(None, least=1)
    # false: random weights; true: published ones; or a folder or .safetensors file
    pretrained: Any = None
    # transformers: configuration, such as model.config.num_labels=10
    config: Any = field(default_factory=dict)
    # torchvision, timm: the constructor's arguments, by name
    kwargs: Any = field(default_factory=dict)


@dataclass
class Numerics:
    """Numeric flags, set before a trial does anything else; part of the cell."""

    tf32: bool = False  # TF32 in matrix products and cuDNN convolutions of float32
    # `torch.set_float32_matmul_precision`; below `highest` matrix products use TF32
    matmul_precision: MatmulPrecision = MatmulPrecision.highest
    # `torch.backends.cudnn.benchmark`: choose convolutions by timing them
    cudnn_benchmark: bool = False
    # store 4-d weights and inputs in the memory format `torch.channels_last`
    channels_last: bool = False
    # quantize linear layers with torchao: `int8-weight-only`, `int4-weight-only`,
    # `float8-weight-only`; `float8` also quantizes activations
    quantize: Quantize | None = None
    deterministic: bool = False  # `torch.use_deterministic_algorithms(True)`
    # how calls record gradients: `inference` mode, `no_grad` or `grad`; `auto`: the first of them
    # in which eager does the same as with `no_grad`; training always uses `grad`
    grad_mode: GradMode = GradMode.auto
    seed: int = 0  # seed of weights and inputs


@dataclass
class Stream:
    """A sequence of sizes instead of a single one; streams.KINDS lists the settings of each
    kind."""

    # kind of stream: `none`, `uniform`, `csv`, `arrivals`; set by `stream=`
    name: str = "none"
    length: int | None = None  # calls of one pass
    low: int | None = None  # smallest size
    high: int | None = None  # largest size
    rate: float | None = None  # `arrivals`: average requests per second
    # `uniform`, `csv`: dimension of the inputs that varies; null: the batch
    dim: int | None = None
    seed: int | None = None  # seed of a generated stream
    path: str | None = None  # `csv`: file, one size per line or a CSV with a heading
    column: str | None = None  # `csv`: heading of the column with the sizes


@dataclass
class Training:
    """Settings of a training step; part of the cell if phase=training."""

    optimizer: Optimizer = Optimizer.adam  # optimizer, with torch's defaults
    # implementation of the optimizer; `capturable` is `foreach` with a count of steps on the GPU
    implementation: Implementation = Implementation.fused
    lr: float = number(1e-4, above=0)  # learning rate, above 0
    # `mean-square`, `mean`, or the import path of a function(output, inputs) that returns a scalar
    loss: str = "mean-square"
    # true: set gradients to None before each step; false: fill them with zeros
    set_to_none: bool = True


@dataclass
class Generate:
    """Settings of a request that generates tokens; part of the cell if phase=generate."""

    prompt: int = number(128, least=1)  # tokens of the prompt
    new_tokens: int = number(128, least=2)  # tokens to generate


@dataclass
class SweepSettings:
    # name for `--sweep` and `resume=`; `history --name` follows all sweeps with this name
    name: str | None = None
    label: str | None = None  # free text; null: `git describe` of the working directory
    seed: int = 0  # seed of the random order of cells within each round


@dataclass
class Protocol:
    """How a cell is measured; not part of the cell."""

    name: str = "standard"  # name of the protocol in results
    rounds: int = number(5, least=1, most=10_000)  # trials per cell, each in its own process
    # fresh compile caches per compiling cell, which rounds use in turn
    compilations: int = number(2, least=1)
    # maximum seconds of timing per trial; on CUDA half for latency, half for period
    budget_s: float = number(5.0, above=0)
    # minimum seconds of each timer, unless its budget is shorter
    min_time_s: float = number(0.5, least=0)
    min_samples: int = number(30, least=2)  # minimum samples of each timer, at least 2
    # a timer stops when the median's 95 % interval is within ± this fraction
    target_interval: float = number(0.005, least=0)
    max_samples: int = number(100_000, least=2)  # maximum samples of each timer
    # minimum calls before timing; 3 if a call takes longer than `warmup_s`
    warmup_calls: int = number(10, least=0)
    warmup_s: float = number(0.2, least=0)  # minimum seconds before timing
    # seconds after which warm-up ends even if not steady
    max_warmup_s: float = number(2.0, least=0)
    min_block_ms: float = number(5.0, least=0)  # minimum length of a block of back-to-back calls
    # seconds of calls before the period is timed, while the GPU's power control settles
    load_s: float = number(0.3, least=0)
    input_sets: int = number(3, least=1)  # sets of inputs to rotate over
    check_steps: int = number(5, least=1)  # training: number of steps compared with eager's
    # stop a cell's rounds once its result is known within ± this fraction; null: run all rounds
    enough_interval: float | None = number(None, above=0)
    # stop the rounds of modes that are significantly slower than the best by `latency_ms` or
    # `period_ms`; null: never
    eliminate: Eliminate | None = None
    # the host counts as disturbed if fixed work takes longer than usual by more than this fraction
    # (CPU: if threads wait for a core for more than half of it); null: it is not watched
    host_tolerance: float | None = number(0.1, above=0)
    # a timer on a disturbed host may take this many times its budget to find undisturbed moments
    patience: float = number(2.0, least=1)
    # time two versions of a cell (`folder=`, `python=`) as duets: both processes alive, their calls
    # in turn
    duet: bool = True
    # profile each trial after timing, on CUDA: kernels, GPU busy time, FLOPs, bytes
    profile: bool = True


@dataclass
class Executor:
    # where trials run: `local`, or `slurm` for jobs of a cluster
    name: ExecutorName = ExecutorName.local
    gpus: Any = "auto"  # `auto`: all visible GPUs; or indices among them, such as [0,1]
    # CPU cores of trials, divided among the GPUs: `auto`, null (no pinning), `2-7`, [2,3]
    cores: Any = "auto"
    renew_server: bool = True  # on CUDA: a new fork server for each round
    # maximum seconds to wait for a foreign process on the GPU; then the trial is marked
    foreign_wait_s: float = number(30.0, least=0)
    # maximum seconds to wait for a device that another effbench uses; then the sweep stops
    lock_timeout_s: float = number(3600.0, least=0)
    # folder of compile caches; null: `effbench/compile` in the user's cache folder
    cache_dir: str | None = None
    keep_cache: bool = False  # true: keep the compile caches of a completed sweep
    partition: str | None = None  # SLURM: partition of the jobs; null: the cluster's default
    account: str | None = None  # SLURM: account to charge; null: the user's default
    # SLURM: devices of a job, for example `gpu:1` or `gpu:a100:2`; null: none
    gres: str | None = None
    # SLURM: CPU cores of a job; null: the cluster's default
    cpus: int | None = number(None, least=1)
    time_limit_min: int = number(60, least=1)  # SLURM: minutes after which a job is ended
    # SLURM: further options of sbatch by name, for example {qos: high, mem: 64G, exclusive: true}
    sbatch: Any = field(default_factory=dict)
    # SLURM: cells per job; null: one job for all cells that differ only in their mode
    cells_per_job: int | None = number(None, least=1)
    max_jobs: int = number(100, least=1)  # SLURM: maximum number of jobs in the queue at a time
    # SLURM: how often a trial is repeated after its job was lost
    job_retries: int = number(1, least=0)
    # SLURM: folder that all nodes share; null: `effbench/jobs` in the cache folder
    job_folder: str | None = None


@dataclass
class Config:
    model: Model = field(default_factory=Model)
    bs: int = number(1, least=1)  # batch size, at least 1
    stream: Stream = field(default_factory=Stream)
    mode: Any = field(default_factory=dict)  # `name`, `_target_` and the mode's own settings
    # dtype of weights and float inputs; `auto`: bfloat16 on CUDA, float32 on the CPU
    dtype: Dtype = Dtype.auto
    # `inference`: call the module; `training`: run training steps; `generate`: generate tokens
    phase: Phase = Phase.inference
    training: Training = field(default_factory=Training)
    generate: Generate = field(default_factory=Generate)
    # threads of torch on the CPU; null: one for each physical core that the trial may use
    threads: int | None = number(None, least=1)
    device: Device = Device.auto  # `auto`: cuda if torch sees a GPU, else cpu
    numerics: Numerics = field(default_factory=Numerics)
    # environment variables of the cell's process; such a cell runs in a fresh interpreter
    env: Any = field(default_factory=dict)
    # interpreter of the trials, a path or a name on `PATH`; null: the one that runs effbench
    python: str | None = None
    # working directory of the trials, importable in them; null: the current one
    folder: str | None = None
    sweep: SweepSettings = field(default_factory=SweepSettings)
    protocol: Protocol = field(default_factory=Protocol)
    executor: Executor = field(default_factory=Executor)
    # `fork`: fork trials from a server that has torch loaded; `spawn`: start a fresh interpreter
    # per trial
    isolation: Isolation = Isolation.fork
    # maximum wall time of a trial; then its process tree is killed
    timeout_s: float = number(900.0, above=0)
    baseline_mode: str = "eager"  # mode that speedups refer to
    # list of rules for cells that are not planned: values, patterns or comparisons by key of the
    # cell
    exclude: Any = None
    # `3/8`: run the third of eight parts of the matrix; requires `sweep.name`
    shard: str | None = None
    resume: str | None = None  # id, name, label or `last`: resume that sweep
    # files to keep from each cell's first trial
    artifacts: list[Artifact] = field(default_factory=list)
    on_failure: OnFailure = OnFailure.fail  # `fail`: exit code 1 if cells failed; `ignore`: 0
    db: str = DEFAULT_DB  # path, or SQLAlchemy URL of SQLite or PostgreSQL


def sections() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each section with a fixed set of settings ("" is the top level), and the
    names of its settings."""
    yield "", [setting.name for setting in dataclasses.fields(Config)]
    for setting in dataclasses.fields(Config):
        if dataclasses.is_dataclass(setting.default_factory):
            section = setting.default_factory
            yield setting.name, [inner.name for inner in dataclasses.fields(section)]


def register() -> None:
    """Add the typed configuration to Hydra's ConfigStore, unless it is there; users may add keys to
    its open nodes."""
    # here, because most commands need only the constants of this module
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    # another application of this process may use the name too
    known = store.repo.get("schema.yaml")
    if known and known.provider == "effbench":
        return
    schema = OmegaConf.structured(Config)
    OmegaConf.set_struct(schema, True)
    model = schema.model
    for open_node in (
        model.module,
        model.inputs,
        model.config,
        model.kwargs,
        schema.env,
        schema.mode,
        schema.executor.sbatch,
    ):
        OmegaConf.set_struct(open_node, False)
    store.store(name="schema", node=schema, provider="effbench")
