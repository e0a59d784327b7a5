"""The core types: what is measured (`Cell`), where (`Environment`), the outcome in one process
(`Trial`, `Status`) and the summary of all (`Summary`, and `Result` with its cell).

`Trial` and `Summary` declare each measured quantity once, as a field with its metric.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Self, TypeAlias

from effbench.core.disturbances import DisturbanceKind
from effbench.core.quantities import Better, fact, metric

JsonObject: TypeAlias = dict[str, Any]


class Status(StrEnum):
    """How a trial or a result ended, worst first: a result takes the worst status of its trials."""

    INCORRECT = "incorrect"  # output outside tolerance against eager
    CRASHED = "crashed"  # the process died
    TIMEOUT = "timeout"
    ERROR = "error"
    OOM = "oom"
    UNSUPPORTED = "unsupported"  # cannot run on this machine; not a failure
    DEGRADED = "degraded"  # it ran, but not as its mode's name promises: RunningTrial.judge
    OK = "ok"

    @property
    def is_failure(self) -> bool:
        """Whether a cell with this status makes a sweep exit with code 1."""
        return self in (Status.ERROR, Status.CRASHED, Status.TIMEOUT, Status.INCORRECT)

    @property
    def is_measured(self) -> bool:
        """Whether a trial with this status has measurements. Speedups are shown only for `ok`."""
        return self in (Status.OK, Status.DEGRADED)


SEVERITY = tuple(Status)
#: Numerics that the parameters of cells omit while they have these values, so that the keys of
#: older cells stay valid.
LATER_NUMERICS = {"channels_last": False, "quantize": None, "grad_mode": "auto"}


def canonical_json(value: Any) -> str:
    """Return compact JSON with sorted keys: equal values give equal text. Raises ValueError for NaN
    and infinity."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def encodable(text: str) -> str:
    r"""Return `text` with lone surrogates escaped (`\udcff`), because they cannot be printed or
    stored."""
    return text.encode("utf-8", "backslashreplace").decode()


def mode_settings(mode: JsonObject) -> JsonObject:
    """Return a mode's own settings, the keyword arguments of its constructor."""
    return {
        key: value for key, value in mode.items() if key not in ("name", "description", "_target_")
    }


@dataclass(frozen=True, eq=False)
class Cell:
    """One point of the matrix: what is run, but not how it is measured. `key` identifies it.

    `model` holds `name`, `module` (`_target_` and arguments), `inputs` (a list in the order of
    forward's arguments, each with its `name`), `tolerance` and `allow_nonfinite`; `mode` holds
    `name`, `_target_` and the mode's settings. `stream` is None if all calls have the same sizes;
    otherwise it holds what `streams.resolve` returns, and `bs` is the largest batch size.
    `training` and `generate` hold the settings of their phases, otherwise None. `threads` is None
    for one thread for each physical core. All values are plain JSON. `dtype` and `device` may be
    `auto` until the sweep is planned (`config.cells.resolve`).

    A new axis is a field of `settings.Config`, a field here that is None by default, a line in
    `config.cells.cell_of`, and the code in `worker/trial.py` that reads it; then run
    `python docs/tables.py`. Labels, `exclude` and reports need nothing. A field of `Numerics` needs
    a line in LATER_NUMERICS instead of the field and the line. See docs/reference/extending.md.
    """

    model: JsonObject
    bs: int
    mode: JsonObject
    dtype: str
    phase: str
    device: str
    numerics: JsonObject = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    stream: JsonObject | None = None
    training: JsonObject | None = None
    generate: JsonObject | None = None
    threads: int | None = None

    @cached_property
    def key(self) -> str:
        """SHA-256 of the cell's canonical JSON, in hex."""
        return digest(self.params())

    @cached_property
    def comparison_key(self) -> str:
        """SHA-256 of all but the mode: cells that share it are compared."""
        return digest({name: value for name, value in self.params().items() if name != "mode"})

    @property
    def model_name(self) -> str:
        name: str = self.model["name"]
        return name

    @property
    def mode_name(self) -> str:
        name: str = self.mode["name"]
        return name

    def params(self) -> JsonObject:
        """Return all parameters as plain JSON, without those that are None and LATER_NUMERICS:
        older keys stay valid.

        The values are the cell's own: do not change them.
        """
        values = {name: getattr(self, name) for name in CELL_FIELDS}
        values["numerics"] = {
            name: value
            for name, value in self.numerics.items()
            if name not in LATER_NUMERICS or LATER_NUMERICS[name] != value
        }
        return {name: value for name, value in values.items() if value is not None}

    def identity(self) -> Identity:
        """Return what labels and names need to know of this cell."""
        return Identity(
            model=self.model_name,
            bs=self.bs,
            mode=self.mode_name,
            dtype=self.dtype,
            phase=self.phase,
            device=self.device,
            params=self.params(),
            cell_key=self.key,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


CELL_FIELDS = tuple(parameter.name for parameter in dataclasses.fields(Cell))


@dataclass(frozen=True)
class Environment:
    """Fingerprint of hardware and software. Machines with the same fingerprint have the same id."""

    gpu_name: str | None
    gpu_memory_bytes: int | None
    driver_version: str | None
    cuda_version: str | None
    torch_version: str
    triton_version: str | None
    python: str
    cpu_name: str
    platform: str
    flags: dict[str, str] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """First 16 hex digits of the fingerprint's SHA-256."""
        return digest(self.fingerprint())[:16]

    def fingerprint(self) -> JsonObject:
        """Return the facts that identify the environment, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Environment)}

    @property
    def hardware(self) -> str:
        """The name of the GPU, or of the CPU if there is no GPU."""
        return self.gpu_name or self.cpu_name

    @property
    def interpreter(self) -> str | None:
        """The path that `python=` gave."""
        return self.flags.get("interpreter")

    @property
    def folder(self) -> str | None:
        """The path that `folder=` gave."""
        return self.flags.get("folder")


@dataclass(frozen=True)
class StoredEnvironment(Environment):
    """An environment of a database. `details`: further facts."""

    id: str = ""
    details: JsonObject = field(default_factory=dict)
    first_seen_at: datetime | None = None


@dataclass(frozen=True)
class Conditions:
    """An environment in which a sweep ran, with the protocol and the facts of the machine that the
    sweep records."""

    environment: Environment
    protocol: Mapping[str, Any]
    host: Mapping[str, Any]


#: Types of quantities; None: not measured, or it does not apply.
Number: TypeAlias = float | None
Whole: TypeAlias = int | None
Text: TypeAlias = str | None
Flag: TypeAlias = bool | None

HIGHER, NEITHER = Better.HIGHER, Better.NEITHER
_WARM_ONLY = "; without processes that compiled with an empty cache, if there are others"


@dataclass
class Trial:
    """The outcome of a cell in one process. A quantity that does not apply is None, never 0.

    `samples` maps a timer to its raw values in ms, in order: `latency_ms`, `period_ms`,
    `warmup_ms`; `_disturbed_ms` of these; and both members of the pairs.
    docs/reference/extending.md tells how to add a metric.
    """

    cell_key: str
    round: int
    status: Status
    reason: str | None = None
    attempt: int = 0
    phase: str | None = None  # the last phase entered; a failed trial failed in this phase
    started_at: str | None = None  # ISO 8601, UTC
    disturbance_kind: DisturbanceKind | None = None  # not stored: for the line of progress
    has_library_status: bool = False  # not stored: an error of cuBLAS, cuDNN or their like
    samples: dict[str, list[float]] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)

    # --- facts of the trial ---

    gpu_index: Whole = fact("index of the GPU among the visible ones")
    gpu_uuid: Text = fact("UUID of the GPU")
    pid: Whole = fact("process that ran the trial")
    wall_s: Number = fact("wall time of the trial, measured by the sweep")
    overhead_s: Number = fact("wall time outside the listed phases")
    build_s: Number = fact("time to make the module and its inputs")
    prepare_s: Number = fact("time to prepare the mode")
    compile_s: Number = fact("`prepare_s` and all settling calls; NULL if nothing compiles")
    compile_cache: Text = fact("`cold` or `warm`; NULL if nothing compiles")
    compilation: Whole = fact(
        "number of the trial's compile cache, from 0; NULL if nothing compiles"
    )
    kernel_fingerprint: Text = fact(
        "hash of the kernels' names and launch shapes, `-tuned` if autotuned"
    )
    check_s: Number = fact("time of eager's reference outputs and of the comparison")
    warmup_s: Number = fact("time of the warm-up")
    timing_s: Number = fact("time of both timers")
    warmup_calls: Whole = fact("calls of the warm-up")
    steady: Flag = fact("whether calls were steady at the end of the warm-up")
    latency_median_low_ms: Number = fact(
        "lower bound of the median's 95 % interval within the trial; if the trial is marked,"
        " also of the medians of its undisturbed and disturbed samples"
    )
    latency_median_high_ms: Number = fact("the upper bound")
    period_median_low_ms: Number = fact("the same bound of the period")
    period_median_high_ms: Number = fact("the upper bound")
    latency_samples: Whole = fact("timed calls")
    period_samples: Whole = fact("timed blocks")
    calls_per_block: Whole = fact("calls per block")
    input_copy_ms: Number = fact(
        "copy into a manual CUDA graph's static inputs, per call; part of latency and period"
    )
    discarded_blocks: Whole = fact("series of samples discarded after a disturbance")
    host_ms: Number = fact(
        "time of a fixed piece of host work in this trial's quietest moments: the host's speed"
    )
    host_high_ms: Number = fact(
        "the same in its slower moments, as far as the kernel saw no other process"
    )
    disturbance: Text = fact(
        "what disturbed the host or the GPU so much that too few samples are undisturbed: then"
        " all samples give the times, which are marked; NULL for times that are not marked"
    )
    pair_speedup: Number = fact(
        "eager's latency ÷ this latency, as the median of pairs: neighbouring batches in one"
        " process"
    )
    pair_speedup_low: Number = fact("lower bound of this median's 95 % interval within the process")
    pair_speedup_high: Number = fact("the upper bound")
    pair_speedup_disturbed: Number = fact(
        "the median of pairs during which the host was disturbed; NULL without them"
    )
    pairs: Whole = fact("number of these pairs")
    pair_period_speedup: Number = fact(
        "the same for the period, as the median of pairs: neighbouring batches in one process"
    )
    pair_period_speedup_low: Number = fact(
        "lower bound of this median's 95 % interval within the process"
    )
    pair_period_speedup_high: Number = fact("the upper bound")
    pair_period_speedup_disturbed: Number = fact(
        "the median of pairs during which the host was disturbed; NULL without them"
    )
    period_pairs: Whole = fact("number of these pairs")
    pair_disturbance: Text = fact(
        "what disturbed the host or the GPU during the pairs so much that too few are"
        " undisturbed; NULL for speedups that are not marked"
    )
    threads: Whole = fact("torch's threads on the CPU")
    host: Text = fact(
        "name of this trial's host in a sweep that joins several hosts; NULL in all others"
    )
    peak_host_bytes: Whole = fact("peak resident host memory of the process")
    sm_clock_mhz: Whole = fact("median SM clock while the period was timed")
    memory_clock_mhz: Whole = fact("median memory clock while the period was timed")
    temperature_c: Whole = fact("median temperature while the period was timed")
    power_w: Number = fact("median power while the period was timed")
    clocks_event_reasons: Text = fact("NVML's reasons for reduced clocks")
    foreign_processes: Whole = fact("other processes on this GPU after timing")

    # --- metrics ---

    latency_ms: Number = metric(
        "latency",
        unit="ms",
        compare="ratio",
        interval=("latency_ci_low_ms", "latency_ci_high_ms"),
        help="time of one synchronised call by the host clock: what one request sees"
        " (stream=arrivals: from arrival on); geometric mean of trials' medians",
    )
    latency_min_ms: Number = metric(
        "fastest latency",
        unit="ms",
        combine="min",
        help="fastest single call of all trials",
    )
    latency_p95_ms: Number = metric(
        "95th percentile latency",
        unit="ms",
        compare="ratio",
        combine="mean",
        help="geometric mean of the trials' 95th percentiles",
    )
    latency_p99_ms: Number = metric(
        "99th percentile latency",
        unit="ms",
        combine="mean",
        help="geometric mean of the trials' 99th percentiles",
    )
    period_ms: Number = metric(
        "period",
        unit="ms",
        compare="ratio",
        interval=("period_ci_low_ms", "period_ci_high_ms"),
        help="time per back-to-back call, by CUDA events: what a saturated stream sees; CUDA only",
    )
    ttft_ms: Number = metric(
        "time to first token",
        unit="ms",
        compare="ratio",
        interval=("ttft_ci_low_ms", "ttft_ci_high_ms"),
        help="generation: host time from the start of a request to its first token; geometric mean"
        " of the trials' medians",
    )
    tpot_ms: Number = metric(
        "time per output token",
        unit="ms",
        compare="ratio",
        interval=("tpot_ci_low_ms", "tpot_ci_high_ms"),
        help="generation: time between a token and the next; geometric mean of the trials' medians",
    )
    tpot_p99_ms: Number = metric(
        "99th percentile time per output token",
        unit="ms",
        compare="ratio",
        combine="mean",
        help="geometric mean of the trials' 99th percentiles",
    )
    tokens_per_s: Number = metric(
        "tokens per second",
        unit="tokens/s",
        better=HIGHER,
        combine="mean",
        help="generation: bs × generated tokens ÷ latency of the whole request",
    )
    gpu_busy_ms: Number = metric(
        "GPU busy",
        unit="ms",
        compare="ratio",
        interval=("gpu_busy_ci_low_ms", "gpu_busy_ci_high_ms"),
        help="time per call in which kernels, copies or fills ran (union of their intervals); from"
        " a profiled pass",
    )
    kernels: Whole = metric(
        "kernels",
        compare="exact",
        combine="max",
        help="kernels, copies and fills per call on the GPU",
    )
    enqueue_ms: Number = metric(
        "enqueue time",
        unit="ms",
        combine="mean",
        help="host time until a call returns, before the GPU is done; geometric mean of the trials'"
        " medians",
    )
    first_call_s: Number = metric(
        "time to the first output",
        unit="s",
        compare="bound",
        combine="max",
        caches=("cold", None),
        help="preparation and first call together; slowest of the trials with a cold cache, or of a"
        " mode that compiles nothing",
    )
    build_peak_allocated_bytes: Whole = metric(
        "peak allocated, building",
        unit="bytes",
        combine="max",
        help="torch's peak of allocated device memory while the module and its inputs were made",
    )
    prepare_peak_allocated_bytes: Whole = metric(
        "peak allocated, preparing",
        unit="bytes",
        combine="cold",
        help="torch's peak of allocated device memory while the mode was prepared, settling calls"
        " included; of processes that compiled with an empty cache, if any",
    )
    peak_allocated_bytes: Whole = metric(
        "peak allocated",
        unit="bytes",
        compare="ratio",
        combine="warm",
        help="torch's peak of allocated device memory in steady state, graph pools excluded"
        + _WARM_ONLY,
    )
    peak_reserved_bytes: Whole = metric(
        "peak reserved",
        unit="bytes",
        compare="ratio",
        combine="warm",
        help="torch's peak of reserved device memory in steady state, graph pools included"
        + _WARM_ONLY,
    )
    graph_pool_bytes: Whole = metric(
        "graph pool",
        unit="bytes",
        compare="ratio",
        combine="warm",
        help="device memory in private (graph) pools" + _WARM_ONLY,
    )
    process_gpu_bytes: Whole = metric(
        "process on GPU",
        unit="bytes",
        combine="warm",
        help="NVML's figure for the whole process, context included" + _WARM_ONLY,
    )
    energy_mj: Number = metric(
        "energy per call",
        unit="mJ",
        compare="ratio",
        combine="mean",
        help="NVML's energy counter over back-to-back calls, per call",
    )
    rel_error: Number = metric(
        "relative error",
        compare="bound",
        combine="max",
        explains=True,
        help="‖output - eager‖ ÷ ‖eager‖, worst output and input set",
    )
    quantization_error: Number = metric(
        "quantization error",
        compare="bound",
        combine="max",
        explains=True,
        help="‖output - unquantized output‖ ÷ ‖unquantized output‖, both in eager mode; with"
        " `numerics.quantize`",
    )
    graph_breaks: Whole = metric(
        "graph breaks",
        compare="exact",
        combine="max",
        explains=True,
        help="Dynamo's count of graph breaks",
    )
    recompiles: Whole = metric(
        "recompiles",
        compare="exact",
        combine="max",
        explains=True,
        help="Dynamo's count of compilations after the first of each frame",
    )
    cudagraph_skips: Whole = metric(
        "CUDA graph skips",
        compare="exact",
        combine="max",
        explains=True,
        help="Inductor's count of graphs that ran without a CUDA graph",
    )
    flops: Number = metric(
        "FLOPs",
        better=NEITHER,
        combine="max",
        help="floating-point operations of one eager call that torch's counter knows: matrix"
        " products, convolutions, attention",
    )
    disturbed_fraction: Number = metric(
        "disturbed fraction",
        combine="max",
        explains=True,
        help="fraction of the timed seconds in which the host was disturbed",
    )

    to_json = dataclasses.asdict

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the record that `to_json` serialized. Raises ValueError for any other data."""
        import msgspec  # here, because other interpreters import this module without it

        try:
            trial = msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        if trial.reason is not None:
            trial.reason = encodable(trial.reason)
        return trial


@dataclass
class StoredTrial(Trial):
    """A trial of a database, without its samples."""

    id: int = 0
    environment_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A cell, and the environment and sweep that measured it; both are empty if unknown.

    `interpreter` and `folder` are short names, set only if a sweep has several (see
    `environments.labelled`).
    """

    model: str
    bs: int
    mode: str
    dtype: str
    phase: str
    device: str
    params: JsonObject
    cell_key: str
    gpu_name: str | None = None
    torch_version: str = ""
    python: str = ""
    environment_id: str = ""
    sweep_id: str = ""
    interpreter: str = ""
    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the trials of a cell in one sweep and environment say together: a row of `result`.

    Quantities of a trial stand under their names; those without a declaration here are declared by
    `Trial`. `…_ci_low` and `…_ci_high` are the bounds of a metric's 95 % interval: store/summary.py
    chooses the trials, and `LogEstimate.interval` in stats/intervals.py computes the bounds.
    """

    status: Status
    reason: str | None
    trials: int
    latency_ms: Number = None
    latency_ci_low_ms: Number = None
    latency_ci_high_ms: Number = None
    latency_min_ms: Number = None
    latency_p95_ms: Number = None
    latency_p99_ms: Number = None
    period_ms: Number = None
    period_ci_low_ms: Number = None
    period_ci_high_ms: Number = None
    ttft_ms: Number = None
    ttft_ci_low_ms: Number = None
    ttft_ci_high_ms: Number = None
    tpot_ms: Number = None
    tpot_ci_low_ms: Number = None
    tpot_ci_high_ms: Number = None
    tpot_p99_ms: Number = None
    tokens_per_s: Number = None
    throughput_per_s: Number = metric(
        "throughput",
        unit="samples/s",
        better=HIGHER,
        help="bs (or a stream's mean size) ÷ period (÷ latency without a period); NULL for arrivals"
        " and CPU streams",
    )
    is_baseline: Flag = fact(
        "whether speedups compare with this cell: the first one in the plan with the sweep's"
        " baseline mode, of cells that differ only in their modes"
    )
    speedup: Number = metric(
        "latency speedup",
        unit="×",
        better=HIGHER,
        compare="ratio",
        speedup_of="latency_ms",
        interval=("speedup_ci_low", "speedup_ci_high"),
        help="baseline's latency ÷ this latency, same sweep and environment; from pairs if there"
        " are any",
    )
    speedup_ci_low: Number = None
    speedup_ci_high: Number = None
    period_speedup: Number = metric(
        "period speedup",
        unit="×",
        better=HIGHER,
        compare="ratio",
        speedup_of="period_ms",
        interval=("period_speedup_ci_low", "period_speedup_ci_high"),
        help="the same for the period: back-to-back calls; CUDA only",
    )
    period_speedup_ci_low: Number = None
    period_speedup_ci_high: Number = None
    speedup_from: Text = fact(
        "`pairs`: batches of eager and of this mode in turn, in each process, or in a joined sweep"
        " the speedups on its hosts; `separate`: ratio of the means of separate processes"
    )
    speedup_disturbance: Text = fact("why the speedups are marked; NULL if they are not")
    separate_speedup: Number = metric(
        "latency speedup of separate processes",
        unit="×",
        better=HIGHER,
        from_times=True,
        interval=("separate_speedup_ci_low", "separate_speedup_ci_high"),
        help="baseline's mean latency ÷ this mean latency, whether there are pairs or not",
    )
    separate_speedup_ci_low: Number = None
    separate_speedup_ci_high: Number = None
    separate_period_speedup: Number = metric(
        "period speedup of separate processes",
        unit="×",
        better=HIGHER,
        from_times=True,
        interval=("separate_period_speedup_ci_low", "separate_period_speedup_ci_high"),
        help="the same for the period",
    )
    separate_period_speedup_ci_low: Number = None
    separate_period_speedup_ci_high: Number = None
    busy_speedup: Number = metric(
        "latency speedup on a busy host",
        unit="×",
        better=HIGHER,
        help="the latency speedup of pairs during which the host was disturbed; NULL without such"
        " pairs",
    )
    busy_period_speedup: Number = metric(
        "period speedup on a busy host", unit="×", better=HIGHER, help="the same for the period"
    )
    gpu_busy_ms: Number = None
    gpu_busy_ci_low_ms: Number = None
    gpu_busy_ci_high_ms: Number = None
    kernels: Whole = None
    gpu_idle_fraction: Number = metric(
        "GPU idle fraction",
        from_times=True,
        help="1 - busy ÷ period: fraction of a saturated stream's time in which no kernel runs",
    )
    enqueue_ms: Number = None
    bound: Text = fact("bottleneck: `launch` or `gpu`")
    compile_cold_s: Number = metric(
        "compile, cold cache",
        unit="s",
        compare="bound",
        combine="mean",
        caches=("cold",),
        of="compile_s",
        help="time of preparing the mode and of all settling calls, with an empty compile cache;"
        " imports excluded",
    )
    compile_warm_s: Number = metric(
        "compile, warm cache",
        unit="s",
        compare="bound",
        combine="mean",
        caches=("warm",),
        of="compile_s",
        help="the same with a cache that the cell filled",
    )
    first_call_s: Number = None
    break_even_calls: Whole = metric(
        "break-even",
        unit="calls",
        from_times=True,
        help="calls until the preparation pays for itself against the baseline; NULL if never or"
        " not significant, and for arrivals and CPU streams",
    )
    build_peak_allocated_bytes: Whole = None
    prepare_peak_allocated_bytes: Whole = None
    peak_allocated_bytes: Whole = None
    peak_reserved_bytes: Whole = None
    peak_reserved_cold_bytes: Whole = metric(
        "peak reserved, cold cache",
        unit="bytes",
        compare="ratio",
        combine="max",
        caches=("cold",),
        of="peak_reserved_bytes",
        help="the same in processes that compiled with an empty cache, as compiling leaves memory"
        " reserved",
    )
    graph_pool_bytes: Whole = None
    process_gpu_bytes: Whole = None
    relative_memory: Number = metric(
        "memory against baseline",
        unit="×",
        as_change=True,
        help="this peak reserved ÷ the baseline's: 1.54 is 54 % more memory",
    )
    energy_mj: Number = None
    rel_error: Number = None
    quantization_error: Number = None
    graph_breaks: Whole = None
    recompiles: Whole = None
    cudagraph_skips: Whole = None
    flops: Number = None
    disturbed_fraction: Number = None
    marked: Flag = fact(
        "whether the times come from a disturbed host or GPU: a number to read with `~`, never"
        " a verdict; NULL without figures"
    )
    disturbance: Text = fact("why the times are marked; NULL if they are not")
    compilations: Whole = metric(
        "compilations",
        better=NEITHER,
        help="compile caches behind the figures; NULL if nothing compiles",
    )
    hosts: Whole = metric(
        "hosts",
        better=NEITHER,
        help="hosts behind the figures of a joined sweep; NULL in all others",
    )
    unsteady_trials: Whole = metric(
        "unsteady trials",
        help="trials whose warm-up ended before calls were steady",
    )

    def value(self, name: str) -> float | None:
        """Return a metric, or a bound of its interval, by its name; None if it is unknown."""
        value: float | None = getattr(self, name)
        return value


@dataclass(frozen=True, kw_only=True)
class Result(Summary, Identity):
    """The summary of a cell in a sweep and an environment: a row of the view `results`."""

    sweep_name: str | None
    label: str | None
    started_at: datetime
