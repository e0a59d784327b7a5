"""All figures of trials and results, each declared once: `TrialFigures` and `ResultFigures`.

A figure is a metric, which tables offer and comparisons may compare, or a fact, which only
describes. `Trial` and `Result` in core/cell.py inherit these fields. The tables at the end of this
file derive from the fields; the columns of the database, summaries, table headers and docs follow
the tables.

To add a metric, change in this order:

1. here: a field of `TrialFigures` with `metric(...)`, or with `fact(...)` if it describes single
   trials only; a field of the same name in `ResultFigures`, unless it is a fact, and `combine` or
   `interval`, without which results have no value;
2. where it is measured. NVML: `GpuState` and `Gpu.state` in `measure/gpu.py`, then
   `GpuWatch.record` in `measure/watch.py` (while the period is timed) or `RunningTrial.take_facts`;
   timers: `StepTimes.record` in `worker/step_times.py`;
   everything else: `worker/trial.py`;
3. `REVISIONS` in `store/schema.py`: a new number, so that `effbench db upgrade` adds the columns,
   and the digest in `tests/store/test_store_upkeep.py`;
4. `conf/check/default.yaml`, if `check` compares it by default;
5. run `python docs/tables.py`.

A unit that is new needs a line in `UNITS` of docs/tables.py, and a figure with an interval its
bounds in `ResultFigures`. `Metric` in core/quantities.py explains the arguments, and
docs/reference/extending.md says what else is possible.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import TypeAlias, get_args, get_type_hints

from effbench.core.quantities import (
    Better,
    Metric,
    fact,
    metric,
)

#: Types of figures; None: not measured, or it does not apply.
Number: TypeAlias = float | None
Whole: TypeAlias = int | None
Text: TypeAlias = str | None
Flag: TypeAlias = bool | None

HIGHER, NEITHER = Better.HIGHER, Better.NEITHER
_WARM_ONLY = "; without processes that compiled with an empty cache, if there are others"


@dataclass
class TrialFigures:
    """The figures of a trial. One that does not apply is None, never 0."""

    # --- facts of single trials ---

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
    collective_ms: Number = metric(
        "collectives",
        unit="ms",
        compare="ratio",
        combine="median",
        help="time per call in which collectives ran, which includes waiting for other ranks; from"
        " a profiled pass on rank 0",
    )
    exposed_collective_ms: Number = metric(
        "exposed collectives",
        unit="ms",
        compare="ratio",
        combine="median",
        help="the part of `collective_ms` in which no other kernel or operator ran",
    )
    rank_spread_ms: Number = metric(
        "spread of ranks",
        unit="ms",
        combine="median",
        help="time between the end of a call on its first rank and on its last; median of the"
        " trials' medians",
    )
    ranks: Whole = metric(
        "ranks",
        better=NEITHER,
        combine="max",
        help="processes with a device each that ran a trial together; NULL for `parallel=none`",
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
    cold_s: Number = metric(
        "cold start",
        unit="s",
        compare="ratio",
        interval=("cold_ci_low_s", "cold_ci_high_s"),
        help="time from the start of a fresh process to its first answer, with phase=coldstart;"
        " geometric mean of the trials",
    )
    cold_interpreter_s: Number = metric(
        "cold start: interpreter",
        unit="s",
        combine="median",
        help="from the start of the process to the program's first line",
    )
    cold_imports_s: Number = metric(
        "cold start: imports",
        unit="s",
        combine="median",
        help="importing torch and the modules of model and mode",
    )
    cold_device_s: Number = metric(
        "cold start: device",
        unit="s",
        combine="median",
        help="first use of CUDA; NULL on the CPU",
    )
    cold_build_s: Number = metric(
        "cold start: build",
        unit="s",
        combine="median",
        help="making the module with its weights and the inputs, on the device",
    )
    cold_load_s: Number = metric(
        "cold start: load",
        unit="s",
        combine="median",
        help="loading the bundle or the package",
    )
    cold_trace_s: Number = metric(
        "cold start: trace",
        unit="s",
        combine="median",
        help="Dynamo and AOTAutograd",
    )
    cold_compile_s: Number = metric(
        "cold start: compile",
        unit="s",
        combine="median",
        help="Inductor, Triton and the C++ compiler",
    )
    cold_autotune_s: Number = metric(
        "cold start: autotune",
        unit="s",
        combine="median",
        help="choosing kernels by timing them",
    )
    cold_capture_s: Number = metric(
        "cold start: capture",
        unit="s",
        combine="median",
        help="capturing CUDA graphs; also outside cold starts",
    )
    cold_first_call_s: Number = metric(
        "cold start: first call",
        unit="s",
        combine="median",
        help="the rest of preparing and of the first call",
    )
    steady_call: Whole = metric(
        "first steady call",
        unit="calls",
        combine="max",
        from_times=True,
        help="number of the first call of a fresh process that is as fast as later ones",
    )
    cache_bytes: Whole = metric(
        "cache size",
        unit="bytes",
        compare="ratio",
        combine="max",
        help="size of the bundle, the package, or the files of the folder",
    )
    cache_hits: Whole = metric(
        "cache hits",
        better=HIGHER,
        combine="max",
        help="parts of the compilation that a fresh process found in its cache",
    )
    cache_misses: Whole = metric(
        "cache misses",
        compare="exact",
        combine="max",
        help="parts that it compiled although it had a cache",
    )
    cache_reuse: Text = fact(
        "how much of the cache a fresh process used: `whole`, `part` or `none`; of several trials"
        " the least; NULL for `cache=none`"
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
    ranks_peak_allocated_bytes: Whole = metric(
        "peak allocated, all ranks",
        unit="bytes",
        compare="ratio",
        combine="warm",
        help="sum of `peak_allocated_bytes` over the ranks; other memory figures are those of the"
        " rank with the most" + _WARM_ONLY,
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


@dataclass(frozen=True, kw_only=True)
class ResultFigures:
    """The figures of a result: what the trials of a cell say together.

    A figure that trials declare under the same name needs no other declaration. `…_ci_low` and
    `…_ci_high` are the bounds of a metric's 95 % interval: `LogEstimate.interval` in
    stats/intervals.py computes them.
    """

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
        help="bs (or a stream's mean size; in data parallel training that of all ranks) ÷ period (÷"
        " latency without a period); NULL for arrivals and CPU streams",
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
        mark="speedup_disturbance",
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
        mark="speedup_disturbance",
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
    collective_ms: Number = None
    exposed_collective_ms: Number = None
    rank_spread_ms: Number = None
    ranks: Whole = None
    scaling_efficiency: Number = metric(
        "scaling efficiency",
        better=HIGHER,
        from_times=True,
        mark="scaling_disturbance",
        interval=("scaling_efficiency_ci_low", "scaling_efficiency_ci_high"),
        help="ideal ÷ measured time on several devices, of the period if there is one; ideal: the"
        " time with parallel=none, for tp divided by the number of devices; NULL without that cell"
        " in the sweep",
    )
    scaling_efficiency_ci_low: Number = None
    scaling_efficiency_ci_high: Number = None
    scaling_disturbance: Text = fact("why the scaling efficiency is marked; NULL if it is not")
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
    cold_s: Number = None
    cold_ci_low_s: Number = None
    cold_ci_high_s: Number = None
    cold_interpreter_s: Number = None
    cold_imports_s: Number = None
    cold_device_s: Number = None
    cold_build_s: Number = None
    cold_load_s: Number = None
    cold_trace_s: Number = None
    cold_compile_s: Number = None
    cold_autotune_s: Number = None
    cold_capture_s: Number = None
    cold_first_call_s: Number = None
    steady_call: Whole = None
    cache_bytes: Whole = None
    cache_hits: Whole = None
    cache_misses: Whole = None
    cache_reuse: Text = None
    break_even_calls: Whole = metric(
        "break-even",
        unit="calls",
        from_times=True,
        help="calls until the preparation, or the longer cold start, pays for itself against the"
        " baseline; NULL if never or not significant, and for arrivals and CPU streams",
    )
    build_peak_allocated_bytes: Whole = None
    prepare_peak_allocated_bytes: Whole = None
    peak_allocated_bytes: Whole = None
    ranks_peak_allocated_bytes: Whole = None
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


def declared_metrics(declaring: type[TrialFigures | ResultFigures]) -> dict[str, Metric]:
    """Return name -> metric of the fields that declare one, in their order."""
    types = get_type_hints(declaring)
    metrics = {}
    for field in dataclasses.fields(declaring):
        if "metric" in field.metadata:
            kind = get_args(types[field.name])[0]  # of `kind | None`
            metrics[field.name] = replace(field.metadata["metric"], name=field.name, kind=kind)
    return metrics


def metrics_of_results() -> tuple[Metric, ...]:
    """Return the quantities of a result in the order of its fields: its own ones, and those of
    trials that it has under the same name."""
    known = {metric.name: metric for metric in TRIAL_METRICS}
    known |= declared_metrics(ResultFigures)
    fields = dataclasses.fields(ResultFigures)
    return tuple(known[field.name] for field in fields if field.name in known)


def bounds_of(result: ResultFigures, name: str) -> tuple[float | None, float | None]:
    """Return the bounds of a metric's 95 % interval; None if it has none."""
    if name not in INTERVALS:
        return None, None
    low, high = INTERVALS[name]
    return result.value(low), result.value(high)


def why_marked(result: ResultFigures, name: str) -> str | None:
    """Return why a metric of a result is marked; None if it is not.

    Speedups have marks of their own: both sides of a pair meet the same host, which its times do
    not.
    """
    metric = METRICS[name]
    if result.value(name) is None or not metric.is_timed:
        return None
    reason: str | None = getattr(result, metric.mark)
    return reason


def figures_of_results() -> dict[str, type]:
    """Return column -> type of the metrics of results and the bounds of their intervals."""
    figures: dict[str, type] = {}
    for figure in RESULT_METRICS:
        for column in (figure.name, *(figure.interval or ())):
            figures[column] = figure.kind
    return figures


#: quantities that a trial records
TRIAL_METRICS = tuple(declared_metrics(TrialFigures).values())
#: quantities of a result: metrics, and what explains them
RESULT_METRICS = metrics_of_results()
#: metrics of results, by name: what `show`, `compare` and reports offer
METRICS = {metric.name: metric for metric in RESULT_METRICS if metric.title}
#: column of a result, in order -> type: these quantities and the intervals of metrics
RESULT_FIGURES = figures_of_results()
#: the parts of a cold start, in order
COLD_PARTS = tuple(name for name in METRICS if name.startswith("cold_") and name != "cold_s")
#: metrics of trials whose results have an interval over the trials
ESTIMATED = tuple(metric.name for metric in TRIAL_METRICS if metric.interval)
#: metric -> the columns of its 95 % confidence interval
INTERVALS = {metric.name: metric.interval for metric in METRICS.values() if metric.interval}
#: speedup -> the time that it compares; the first one is the headline. `pair_speedup` of a trial is
#: its speedup from pairs; `separate_speedup` of a result is that of separate processes, and
#: `busy_speedup` that of pairs on a busy host.
SPEEDUPS = {metric.name: metric.speedup_of for metric in METRICS.values() if metric.speedup_of}
