"""The settings of a sweep: each is a field here, with its type, bounds, default and meaning.

The command line, its errors and the table in docs/reference/settings.md derive from the fields;
`config.compose` checks values with msgspec. A setting whose default is a mapping is open: a user
adds keys to it.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

DEFAULT_DB = "results/effbench.db"
LOSSES = ("mean-square",)  # any other value is an import path
#: The largest integer of the database.
LARGEST = 2**31 - 1

Integer: TypeAlias = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
AtLeast1: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST)]
TwoOrMore: TypeAlias = Annotated[int, Meta(ge=2, le=LARGEST)]
Rounds: TypeAlias = Annotated[int, Meta(ge=1, le=10_000)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
OneOrMore: TypeAlias = Annotated[float, Meta(ge=1)]
#: Processes at once; batch sizes that are prepared.
UpTo64: TypeAlias = Annotated[int, Meta(ge=1, le=64)]
UpTo16: TypeAlias = Annotated[int, Meta(ge=1, le=16)]
#: Calls of one pass of a stream; requests per second.
Calls: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
Rate: TypeAlias = Annotated[float, Meta(ge=0, le=100_000)]
LargestSize: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Names: TypeAlias = dict[str, Any]


class OnFailure(StrEnum):
    fail = "fail"
    ignore = "ignore"


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
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f'"{escaped}"'


def shipped(folder: str) -> Path:
    """Return the path of `conf` or `experiments`: inside the package in a wheel, next to it in a
    checkout."""
    package = Path(__file__).resolve().parents[1]
    if (package / folder).is_dir():
        return package / folder
    return package.parent / folder


@dataclass
class Model:
    """A workload: an nn.Module and its inputs."""

    name: str | None = None  # name in results; null: last part of `model.module._target_`
    description: str = ""  # description for readers; not part of the cell
    # `_target_` and the constructor's arguments
    module: Names = field(default_factory=dict)
    # inputs of `forward` by name; null: the module has an attribute `inputs`
    inputs: Names | None = field(default_factory=dict)
    # relative tolerance against eager; null: by dtype
    tolerance: Positive | None = None
    allow_nonfinite: bool = False  # true: NaN and infinity in eager's output are not `incorrect`
    # how attention is computed, where the model has the choice; `flash`: only by FlashAttention's
    # kernels; null: the model's
    attention: Literal["eager", "sdpa", "flash", "flex"] | None = None
    # settings of torchvision, timm, transformers and diffusers, which `model.module` refers to:
    arch: str | None = None  # name of a network; `effbench models` lists them
    # transformers: what to call; null: by architecture
    task: Literal["encode", "logits", "prefill", "decode"] | None = None
    # transformers: tokens of a sequence; slots of the cache of `decode`, which phase=generate sets
    # itself; diffusers: tokens of the prompt
    seq: AtLeast1 | None = None
    # height and width of images; null: the library's
    image_size: AtLeast1 | None = None
    # diffusers: height and width in pixels; null: the pipeline's, as for the following two
    resolution: AtLeast1 | None = None
    frames: AtLeast1 | None = None  # diffusers: frames of a video
    steps: AtLeast1 | None = None  # diffusers: calls for an image or video, to count those
    # transformers, diffusers: configuration, such as model.config.num_layers=10
    config: Names = field(default_factory=dict)
    # torchvision, timm: the constructor's arguments, by name
    kwargs: Names = field(default_factory=dict)


@dataclass
class Numerics:
    """Numeric flags, set before a trial does anything else; part of the cell."""

    tf32: bool = False  # TF32 in matrix products and cuDNN convolutions of float32
    # `torch.set_float32_matmul_precision`; below `highest` matrix products use TF32
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    # `torch.backends.cudnn.benchmark`: choose convolutions by timing them
    cudnn_benchmark: bool = False
    # store 4-d weights and inputs in the memory format `torch.channels_last`
    channels_last: bool = False
    # quantize linear layers with torchao; `float8` also quantizes activations
    quantize: (
        Literal["int8-weight-only", "int4-weight-only", "float8-weight-only", "float8"] | None
    ) = None
    deterministic: bool = False  # `torch.use_deterministic_algorithms(True)`
    # how calls record gradients: `inference` mode, `no_grad` or `grad`; `auto`: the first of them
    # in which eager does the same as with `no_grad`; training always uses `grad`
    grad_mode: Literal["auto", "inference", "no_grad", "grad"] = "auto"
    seed: Integer = 0  # seed of weights and inputs


@dataclass
class Stream:
    """A sequence of batch sizes instead of a single one; streams.KINDS lists the settings of each
    kind."""

    # kind of stream, set by `stream=`
    name: Literal["none", "uniform", "csv", "arrivals"] = "none"
    length: Calls | None = None  # calls of one pass
    low: LargestSize | None = None  # smallest size
    high: LargestSize | None = None  # largest size
    rate: Rate | None = None  # `arrivals`: average requests per second
    seed: Integer | None = None  # seed of a generated stream
    path: str | None = None  # `csv`: file with one size per line


@dataclass
class Training:
    """Settings of a training step; part of the cell if phase=training."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adam"  # optimizer, with torch's defaults
    # implementation of the optimizer; `capturable` is `foreach` with a count of steps on the GPU
    implementation: Literal["for-loop", "foreach", "fused", "capturable"] = "fused"
    lr: Positive = 1e-4  # learning rate, above 0
    # `mean-square`, or the import path of a function(output, inputs) that returns a scalar
    loss: str = "mean-square"
    # true: set gradients to None before each step; false: fill them with zeros
    set_to_none: bool = True


@dataclass
class Generate:
    """Settings of a request that generates tokens; part of the cell if phase=generate."""

    prompt: AtLeast1 = 128  # tokens of the prompt
    new_tokens: TwoOrMore = 128  # tokens to generate


@dataclass
class ColdStart:
    """Settings of a fresh process; part of the cell if phase=coldstart."""

    # what differs from when the cache was made: place of the folder, batch size, rank in a process
    # group, GPU, or a constant in the module
    change: Literal["none", "folder", "bs", "rank", "gpu", "constant"] = "none"
    processes: UpTo64 = 1  # fresh processes that start at once
    # batch sizes to prepare before the first answer: bs, 2·bs, 4·bs …
    sizes: UpTo16 = 1


@dataclass
class SweepSettings:
    # name for `--sweep` and `resume=`; `history --name` follows all sweeps with this name
    name: str | None = None
    label: str | None = None  # free text; null: `git describe` of the working directory
    seed: Integer = 0  # seed of the random order of cells within each round


@dataclass
class Protocol:
    """How a cell is measured; not part of the cell."""

    name: str = "standard"  # name of the protocol in results
    rounds: Rounds = 5  # trials per cell, each in its own process
    # fresh compile caches per compiling cell, which rounds use in turn
    compilations: AtLeast1 = 2
    # maximum seconds of timing per trial; on CUDA half for latency, half for period
    budget_s: Positive = 5.0
    min_time_s: NotNegative = 0.5  # minimum seconds of each timer, unless its budget is shorter
    min_samples: TwoOrMore = 30  # minimum samples of each timer, at least 2
    # a timer stops when the median's 95 % interval is within ± this fraction
    target_interval: NotNegative = 0.005
    max_samples: TwoOrMore = 100_000  # maximum samples of each timer
    # minimum calls before timing; 3 once they take `max_warmup_s`
    warmup_calls: Natural = 10
    warmup_s: NotNegative = 0.2  # minimum seconds before timing
    max_warmup_s: NotNegative = 2.0  # seconds after which warm-up ends even if not steady
    min_block_ms: NotNegative = 5.0  # minimum length of a block of back-to-back calls
    # seconds of calls before the period is timed, while the GPU's power control settles
    load_s: NotNegative = 0.3
    input_sets: AtLeast1 = 3  # sets of inputs to rotate over
    check_steps: AtLeast1 = 5  # training: number of steps compared with eager's
    # stop a cell's rounds once its result is known within ± this fraction; null: run all rounds
    enough_interval: Positive | None = None
    # the host counts as disturbed if fixed work takes longer than usual by more than this fraction
    # (CPU: if threads wait for a core for more than half of it); null: 0.1, but disturbed samples
    # are not discarded
    host_tolerance: Positive | None = 0.1
    # a timer on a disturbed host may take this many times its budget to find undisturbed moments
    patience: OneOrMore = 2.0
    # time two versions of a cell (`folder=`, `python=`) as duets: both processes alive, their calls
    # in turn
    duet: bool = True
    # after timing, trace what runs in a call; on CUDA also kernels, GPU busy time, FLOPs, bytes
    profile: bool = True


@dataclass
class Executor:
    # where trials run: `local`, or `slurm` for jobs of a cluster
    name: Literal["local", "slurm"] = "local"
    renew_server: bool = True  # on CUDA: a new fork server for each round
    # seconds (at least 1) to wait for a foreign process on the GPU; then the trial is marked
    foreign_wait_s: NotNegative = 30.0
    # maximum seconds to wait for a device that another effbench uses; then the sweep stops
    lock_timeout_s: NotNegative = 3600.0
    # folder of compile caches; null: `effbench/compile` in the user's cache folder
    cache_dir: str | None = None
    keep_cache: bool = False  # true: keep the compile caches of a completed sweep
    partition: str | None = None  # SLURM: partition of the jobs; null: the cluster's default
    account: str | None = None  # SLURM: account to charge; null: the user's default
    # SLURM: devices of a job, for example `gpu:1` or `gpu:a100:2`; null: none
    gres: str | None = None
    cpus: AtLeast1 | None = None  # SLURM: CPU cores of a job; null: the cluster's default
    time_limit_min: AtLeast1 = 60  # SLURM: minutes after which a job is ended
    # SLURM: further options of sbatch by name, for example {qos: high, mem: 64G, exclusive: true}
    sbatch: Names = field(default_factory=dict)
    # SLURM: folder that all nodes share; null: `effbench/jobs` in the cache folder
    job_folder: str | None = None


@dataclass
class Config:
    """All settings of a job of a sweep: one cell, and how it is measured.

    docs/reference/extending.md tells how to add an axis.
    """

    model: Model = field(default_factory=Model)
    bs: AtLeast1 = 1  # batch size, at least 1
    stream: Stream = field(default_factory=Stream)
    # `name`, `_target_` and the mode's own settings
    mode: Names = field(default_factory=dict)
    # dtype of weights and float inputs; `auto`: bfloat16 on CUDA, float32 on the CPU
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    # `inference`: call the module; `training`: run training steps; `generate`: generate tokens;
    # `coldstart`: start a fresh process and call the module
    phase: Literal["inference", "training", "generate", "coldstart"] = "inference"
    training: Training = field(default_factory=Training)
    generate: Generate = field(default_factory=Generate)
    coldstart: ColdStart = field(default_factory=ColdStart)
    # phase=coldstart: what a fresh process starts with: nothing, a `folder` of compile caches, the
    # same as one file (`bundle`), or the `package` of mode=aot-inductor; null: `none`
    cache: Literal["none", "folder", "bundle", "package"] | None = None
    # threads of torch on the CPU; null: one for each physical core that the trial may use
    threads: AtLeast1 | None = None
    device: Literal["auto", "cuda", "cpu"] = "auto"  # `auto`: cuda if torch sees a GPU, else cpu
    # `none`: one device; `tp2`: tensor parallel over two; `ddp2`, `fsdp2`: data parallel training
    parallel: str = "none"
    numerics: Numerics = field(default_factory=Numerics)
    # environment variables of the cell's process; such a cell runs in a fresh interpreter
    env: dict[str, str | int | float | bool] = field(default_factory=dict)
    # interpreter of the trials, a path or a name on `PATH`; null: the one that runs effbench
    python: str | None = None
    # working directory of the trials, importable in them; null: the current one
    folder: str | None = None
    sweep: SweepSettings = field(default_factory=SweepSettings)
    protocol: Protocol = field(default_factory=Protocol)
    executor: Executor = field(default_factory=Executor)
    # `fork`: fork trials from a server that has torch loaded; `spawn`: start a fresh interpreter
    # per trial
    isolation: Literal["fork", "spawn"] = "fork"
    # maximum wall time of a trial; then its process tree is killed
    timeout_s: Positive = 900.0
    baseline_mode: str = "eager"  # mode that speedups refer to
    # list of rules for cells that are not planned: values or comparisons by key of the cell
    exclude: Any = None
    resume: str | None = None  # id, name, label or `last`: resume that sweep
    # `fail`: exit code 1 if cells failed; `ignore`: 0
    on_failure: Literal["fail", "ignore"] = "fail"
    db: str = DEFAULT_DB  # path, or SQLAlchemy URL of SQLite or PostgreSQL


@dataclass(frozen=True)
class Setting:
    """A setting that has a value. `kind`: its type with its bounds."""

    name: str
    kind: Any
    default: Any

    @property
    def is_open(self) -> bool:
        """Whether a user adds keys to it, such as `env.FOO`."""
        return isinstance(self.default, dict)


def settings_of(section: Any, prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a section and of those in it, with full names."""
    kinds = typing.get_type_hints(section, include_extras=True)
    defaults = section()
    for setting in dataclasses.fields(section):
        name, kind = f"{prefix}{setting.name}", kinds[setting.name]
        if dataclasses.is_dataclass(kind):
            yield from settings_of(kind, f"{name}.")
        else:
            yield Setting(name, kind, getattr(defaults, setting.name))


#: Name such as `protocol.rounds` -> the setting.
SETTINGS = {setting.name: setting for setting in settings_of(Config)}
#: The sections, such as `protocol`, in which all settings are known.
SECTIONS = sorted({name.partition(".")[0] for name in SETTINGS if "." in name})
