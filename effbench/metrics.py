"""All measured quantities: type, unit, direction, format, how to combine trials and how to compare
results.

The fields of `cell.Trial`, the columns of the database, summaries, table headers and docs derive
from this table. A new metric needs one row here and the code that measures it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache


class Better(StrEnum):
    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"  # describes, but does not rank


@dataclass(frozen=True)
class Metric:
    """A measured quantity. `compare`: `ratio` (interval of a ratio), `exact` (any change counts),
    `bound` (one value per sweep) or `none`. `interval`: columns of the bounds of its 95 %
    confidence interval. `of_trial`: whether each trial records it. `combine`: how trials form a
    result, `mean` (geometric), `max`, `min`, `warm` or `cold` (the largest of processes that did
    not, or did, compile with an empty cache, if any); None: `store.summary` computes it.
    `explains`: whether failed cells keep it. `as_change`: whether people read the ratio 1.54 as
    `+54 %`.
    """

    name: str
    title: str = ""
    unit: str = ""
    better: Better = Better.NEITHER
    compare: str = "none"
    help: str = ""
    interval: tuple[str, str] | None = None
    kind: type = float
    of_trial: bool = True
    combine: str | None = None
    explains: bool = False
    as_change: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether it depends on times, so that a disturbed host or GPU changes it: a time, an
        energy, a rate or a speedup."""
        return self.unit in ("ms", "s", "mJ", "samples/s", "tokens/s") or self.name in SPEEDUPS

    def format(self, value: float | int | None) -> str:
        """Return `value` as text with a unit and three significant digits; an em dash for None and
        NaN."""
        if is_missing(value):
            return "—"
        if math.isinf(value):
            return "∞"
        if self.unit == "bytes":
            return format_bytes(value)
        if self.kind is int and float(value).is_integer():
            return f"{value:,.0f} {self.unit}".rstrip()
        if self.as_change:
            return change_text(value)
        if self.unit == "×":
            return f"{value:.2f}×" if value >= 0.0995 else f"{significant(value, 2)}×"
        if self.unit == "":
            return f"{value:.3g}"
        return f"{significant(value, 3)} {self.unit}"


def is_missing(value: object) -> bool:
    """Return whether a value is None or NaN, which means unknown in a frame."""
    return value is None or (isinstance(value, float) and math.isnan(value))


@lru_cache(maxsize=2**16)  # a report shows a figure in several tables
def significant(value: float, digits: int) -> str:
    """Return `value` with this many significant digits, without an exponent from 0.0001 to a
    million."""
    if value == 0 or abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.{digits}g}"
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9996 has as many decimals as 1.00
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{decimals}f}"


def format_bytes(value: float) -> str:
    """Return bytes in binary units: `1536` is `1.5 KiB`."""
    if abs(value) < 1024:
        return f"{value:.0f} B"
    power = min(4, int(math.log2(abs(value)) // 10))
    return f"{significant(value / 1024**power, 3)} {' KMGT'[power]}iB"


def ratio_text(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return `1.052 (1.047–1.057)`, the ratio alone without bounds, or an empty text for None."""
    if ratio is None:
        return ""
    if low is None or high is None:
        return f"{ratio:.3f}"
    if high < 1000:
        return f"{ratio:.3f} ({low:.3f}–{high:.3f})"
    middle, least, most = (significant(value, 3) for value in (ratio, low, high))
    return f"{middle} ({least}–{most})"


def change_text(ratio: float) -> str:
    """Return a ratio as a change: `+54 %` for 1.54, `−2.1 %` for 0.979, `±0 %` for 1, `12×` from 10
    on."""
    if ratio >= 10:
        return f"{significant(ratio, 2)}×"
    change = 100 * (ratio - 1)
    text = f"{change:+.{1 if abs(change) < 9.95 else 0}f} %" if abs(change) >= 0.05 else "±0 %"
    return text.replace("-", "−")


def percent(value: float) -> str:
    """Return a fraction in per cent: `5.2 %` for 0.052, `34 %` for 0.34."""
    if value >= 10:
        return "more than tenfold"
    return f"{100 * value:.{1 if value < 0.0995 else 0}f} %"


LOWER, HIGHER = Better.LOWER, Better.HIGHER


def _bytes(
    name: str, title: str, help: str, compare: str = "none", combine: str = "warm"
) -> Metric:
    if combine == "warm":
        help += "; without processes that compiled with an empty cache, if there are others"
    return Metric(name, title, "bytes", LOWER, compare, help, kind=int, combine=combine)


def _count(name: str, title: str, help: str, explains: bool = True) -> Metric:
    return Metric(name, title, "", LOWER, "exact", help, kind=int, combine="max", explains=explains)


def _paired(name: str, pairs: str, what: str) -> tuple[Metric, ...]:
    return (
        Metric(name, help=f"{what}, as the median of pairs: neighbouring batches in one process"),
        Metric(f"{name}_low", help="lower bound of this median's 95 % interval within the process"),
        Metric(f"{name}_high", help="the upper bound"),
        Metric(
            f"{name}_disturbed",
            help="the median of pairs during which the host was disturbed; NULL without them",
        ),
        Metric(pairs, kind=int, help="number of these pairs"),
    )


#: All measured quantities in column order. Quantities without a title are recorded per trial but
#: are not metrics.
_ALL = (
    Metric("gpu_index", kind=int, help="index of the GPU among the visible ones"),
    Metric("gpu_uuid", kind=str, help="UUID of the GPU"),
    Metric("pid", kind=int, help="process that ran the trial"),
    Metric("wall_s", help="wall time of the trial, measured by the sweep"),
    Metric("overhead_s", help="wall time outside the listed phases"),
    Metric("build_s", help="time to make the module and its inputs"),
    Metric("prepare_s", help="time to prepare the mode"),
    Metric("compile_s", help="`prepare_s` and all settling calls; NULL if nothing compiles"),
    Metric("compile_cache", kind=str, help="`cold` or `warm`; NULL if nothing compiles"),
    Metric(
        "compilation",
        kind=int,
        help="number of the trial's compile cache, from 0; NULL if nothing compiles",
    ),
    Metric(
        "kernel_fingerprint",
        kind=str,
        help="hash of the kernels' names and launch shapes, `-tuned` if autotuned",
    ),
    Metric("check_s", help="time of eager's reference outputs and of the comparison"),
    Metric("warmup_s", help="time of the warm-up"),
    Metric("timing_s", help="time of both timers"),
    Metric("warmup_calls", kind=int, help="calls of the warm-up"),
    Metric("steady", kind=bool, help="whether calls were steady at the end of the warm-up"),
    Metric(
        "latency_median_low_ms",
        help=(
            "lower bound of the median's 95 % interval within the trial; if the trial is marked,"
            " also of the medians of its undisturbed and disturbed samples"
        ),
    ),
    Metric("latency_median_high_ms", help="the upper bound"),
    Metric("period_median_low_ms", help="the same bound of the period"),
    Metric("period_median_high_ms", help="the upper bound"),
    Metric("latency_samples", kind=int, help="timed calls"),
    Metric("period_samples", kind=int, help="timed blocks"),
    Metric("calls_per_block", kind=int, help="calls per block"),
    Metric(
        "input_copy_ms",
        help="copy into a manual CUDA graph's static inputs, per call; part of latency and period",
    ),
    Metric("discarded_blocks", kind=int, help="series of samples discarded after a disturbance"),
    Metric(
        "host_ms",
        help=(
            "time of a fixed piece of host work in this trial's quietest moments: the host's speed"
        ),
    ),
    Metric(
        "host_high_ms",
        help="the same in its slower moments, as far as the kernel saw no other process",
    ),
    Metric(
        "disturbance",
        kind=str,
        help=(
            "what disturbed the host or the GPU so much that too few samples are undisturbed: then"
            " all samples give the times, which are marked; NULL for times that are not marked"
        ),
    ),
    *_paired("pair_speedup", "pairs", "eager's latency ÷ this latency"),
    *_paired("pair_period_speedup", "period_pairs", "the same for the period"),
    Metric(
        "pair_disturbance",
        kind=str,
        help=(
            "what disturbed the host or the GPU during the pairs so much that too few are"
            " undisturbed; NULL for speedups that are not marked"
        ),
    ),
    Metric("threads", kind=int, help="torch's threads on the CPU"),
    Metric(
        "host",
        kind=str,
        help="name of this trial's host in a sweep that joins several hosts; NULL in all others",
    ),
    Metric("peak_host_bytes", kind=int, help="peak resident host memory of the process"),
    Metric("compute_floor_ms", help="`flops` ÷ this machine's matrix rate"),
    Metric("memory_floor_ms", help="`min_bytes` ÷ this machine's copy rate"),
    Metric("sm_clock_mhz", kind=int, help="median SM clock while the period was timed"),
    Metric("memory_clock_mhz", kind=int, help="median memory clock while the period was timed"),
    Metric("temperature_c", kind=int, help="median temperature while the period was timed"),
    Metric("power_w", help="median power while the period was timed"),
    Metric("clocks_event_reasons", kind=str, help="NVML's reasons for reduced clocks"),
    Metric("foreign_processes", kind=int, help="other processes on this GPU after timing"),
    Metric(
        "latency_ms",
        "latency",
        "ms",
        LOWER,
        "ratio",
        "time of one synchronised call by the host clock: what one request sees (stream=arrivals:"
        " from arrival on); geometric mean of trials' medians",
        interval=("latency_ci_low_ms", "latency_ci_high_ms"),
    ),
    Metric(
        "latency_min_ms",
        "fastest latency",
        "ms",
        LOWER,
        help="fastest single call of all trials",
        combine="min",
    ),
    Metric(
        "latency_p95_ms",
        "95th percentile latency",
        "ms",
        LOWER,
        "ratio",
        help="geometric mean of the trials' 95th percentiles",
        combine="mean",
    ),
    Metric(
        "latency_p99_ms",
        "99th percentile latency",
        "ms",
        LOWER,
        combine="mean",
        help="geometric mean of the trials' 99th percentiles",
    ),
    Metric(
        "period_ms",
        "period",
        "ms",
        LOWER,
        "ratio",
        "time per back-to-back call, by CUDA events: what a saturated stream sees; CUDA only",
        interval=("period_ci_low_ms", "period_ci_high_ms"),
    ),
    Metric(
        "ttft_ms",
        "time to first token",
        "ms",
        LOWER,
        "ratio",
        "generation: host time from the start of a request to its first token; geometric mean of"
        " the trials' medians",
        interval=("ttft_ci_low_ms", "ttft_ci_high_ms"),
    ),
    Metric(
        "tpot_ms",
        "time per output token",
        "ms",
        LOWER,
        "ratio",
        "generation: time between a token and the next; geometric mean of the trials' medians",
        interval=("tpot_ci_low_ms", "tpot_ci_high_ms"),
    ),
    Metric(
        "tpot_p99_ms",
        "99th percentile time per output token",
        "ms",
        LOWER,
        "ratio",
        help="geometric mean of the trials' 99th percentiles",
        combine="mean",
    ),
    Metric(
        "tokens_per_s",
        "tokens per second",
        "tokens/s",
        HIGHER,
        combine="mean",
        help="generation: bs × generated tokens ÷ latency of the whole request",
    ),
    Metric(
        "throughput_per_s",
        "throughput",
        "samples/s",
        HIGHER,
        help=(
            "bs (or a stream's mean size) ÷ period (÷ latency without a period); NULL for arrivals"
            " and CPU streams"
        ),
        of_trial=False,
    ),
    Metric(
        "speedup",
        "latency speedup",
        "×",
        HIGHER,
        "ratio",
        "baseline's latency ÷ this latency, same sweep and environment; from pairs if there"
        " are any",
        interval=("speedup_ci_low", "speedup_ci_high"),
        of_trial=False,
    ),
    Metric(
        "period_speedup",
        "period speedup",
        "×",
        HIGHER,
        "ratio",
        "the same for the period: back-to-back calls; CUDA only",
        interval=("period_speedup_ci_low", "period_speedup_ci_high"),
        of_trial=False,
    ),
    Metric(
        "speedup_from",
        kind=str,
        of_trial=False,
        help=(
            "`pairs`: batches of eager and of this mode in turn, in each process; `separate`: ratio"
            " of the means of separate processes"
        ),
    ),
    Metric(
        "speedup_disturbance",
        kind=str,
        of_trial=False,
        help="why the speedups are marked; NULL if they are not",
    ),
    Metric(
        "separate_speedup",
        "latency speedup of separate processes",
        "×",
        HIGHER,
        help="baseline's mean latency ÷ this mean latency, whether there are pairs or not",
        interval=("separate_speedup_ci_low", "separate_speedup_ci_high"),
        of_trial=False,
    ),
    Metric(
        "separate_period_speedup",
        "period speedup of separate processes",
        "×",
        HIGHER,
        help="the same for the period",
        interval=("separate_period_speedup_ci_low", "separate_period_speedup_ci_high"),
        of_trial=False,
    ),
    Metric(
        "busy_speedup",
        "latency speedup on a busy host",
        "×",
        HIGHER,
        help=(
            "the latency speedup of pairs during which the host was disturbed; NULL without such"
            " pairs"
        ),
        of_trial=False,
    ),
    Metric(
        "busy_period_speedup",
        "period speedup on a busy host",
        "×",
        HIGHER,
        help="the same for the period",
        of_trial=False,
    ),
    Metric(
        "gpu_busy_ms",
        "GPU busy",
        "ms",
        LOWER,
        "ratio",
        "time per call in which kernels, copies or fills ran (union of their intervals); from a"
        " profiled pass",
        interval=("gpu_busy_ci_low_ms", "gpu_busy_ci_high_ms"),
    ),
    _count("kernels", "kernels", "kernels, copies and fills per call on the GPU", explains=False),
    Metric(
        "gpu_idle_fraction",
        "GPU idle fraction",
        "",
        LOWER,
        help="1 - busy ÷ period: fraction of a saturated stream's time in which no kernel runs",
        of_trial=False,
    ),
    Metric(
        "enqueue_ms",
        "enqueue time",
        "ms",
        LOWER,
        combine="mean",
        help=(
            "host time until a call returns, before the GPU is done; geometric mean of the trials'"
            " medians"
        ),
    ),
    Metric(
        "bound",
        kind=str,
        help="bottleneck: `launch`, `memory`, `compute` or `latency`",
        of_trial=False,
    ),
    Metric(
        "compile_cold_s",
        "compile, cold cache",
        "s",
        LOWER,
        "bound",
        "time of preparing the mode and of all settling calls, with an empty compile cache; imports"
        " excluded",
        of_trial=False,
    ),
    Metric(
        "compile_warm_s",
        "compile, warm cache",
        "s",
        LOWER,
        "bound",
        "the same with a cache that the cell filled",
        of_trial=False,
    ),
    Metric(
        "first_call_s",
        "time to the first output",
        "s",
        LOWER,
        "bound",
        "preparation and first call together; slowest of the trials, therefore with a cold cache",
    ),
    Metric(
        "break_even_calls",
        "break-even",
        "calls",
        LOWER,
        kind=int,
        of_trial=False,
        help=(
            "calls until the preparation pays for itself against the baseline; NULL if never or not"
            " significant, and for arrivals and CPU streams"
        ),
    ),
    _bytes(
        "build_peak_allocated_bytes",
        "peak allocated, building",
        "torch's peak of allocated device memory while the module and its inputs were made",
        combine="max",
    ),
    _bytes(
        "prepare_peak_allocated_bytes",
        "peak allocated, preparing",
        "torch's peak of allocated device memory while the mode was prepared, settling calls"
        " included; of processes that compiled with an empty cache, if any",
        combine="cold",
    ),
    _bytes(
        "peak_allocated_bytes",
        "peak allocated",
        "torch's peak of allocated device memory in steady state, graph pools excluded",
        "ratio",
    ),
    _bytes(
        "peak_reserved_bytes",
        "peak reserved",
        "torch's peak of reserved device memory in steady state, graph pools included",
        "ratio",
    ),
    Metric(
        "peak_reserved_cold_bytes",
        "peak reserved, cold cache",
        "bytes",
        LOWER,
        "ratio",
        "the same in processes that compiled with an empty cache, as compiling leaves memory"
        " reserved",
        kind=int,
        of_trial=False,
    ),
    _bytes("graph_pool_bytes", "graph pool", "device memory in private (graph) pools", "ratio"),
    _bytes(
        "process_gpu_bytes",
        "process on GPU",
        "NVML's figure for the whole process, context included",
    ),
    Metric(
        "relative_memory",
        "memory against baseline",
        "×",
        LOWER,
        help="this peak reserved ÷ the baseline's: 1.54 is 54 % more memory",
        of_trial=False,
        as_change=True,
    ),
    Metric(
        "energy_mj",
        "energy per call",
        "mJ",
        LOWER,
        "ratio",
        "NVML's energy counter over back-to-back calls, per call",
        combine="mean",
    ),
    Metric(
        "rel_error",
        "relative error",
        "",
        LOWER,
        "bound",
        "‖output - eager‖ ÷ ‖eager‖, worst output and input set",
        combine="max",
        explains=True,
    ),
    Metric(
        "quantization_error",
        "quantization error",
        "",
        LOWER,
        "bound",
        "‖output - unquantized output‖ ÷ ‖unquantized output‖, both in eager mode; with"
        " `numerics.quantize`",
        combine="max",
        explains=True,
    ),
    _count("graph_breaks", "graph breaks", "Dynamo's count of graph breaks"),
    _count(
        "recompiles", "recompiles", "Dynamo's count of compilations after the first of each frame"
    ),
    _count(
        "cudagraph_skips",
        "CUDA graph skips",
        "Inductor's count of graphs that ran without a CUDA graph",
    ),
    Metric(
        "flops",
        "FLOPs",
        combine="max",
        help=(
            "floating-point operations of one eager call that torch's counter knows: matrix"
            " products, convolutions, attention"
        ),
    ),
    Metric(
        "min_bytes",
        "least bytes",
        "bytes",
        combine="max",
        help=(
            "lower bound of the bytes that one call moves: the weights, buffers and inputs that it"
            " reads (each once), its writes to them, and its outputs"
        ),
    ),
    Metric(
        "roofline_fraction",
        "roofline fraction",
        "",
        HIGHER,
        of_trial=False,
        help=(
            "the larger of FLOPs ÷ matrix rate and least bytes ÷ copy bandwidth of this machine, ÷"
            " period: 1 is the limit; above 1 the bytes came from a cache"
        ),
    ),
    Metric(
        "disturbed_fraction",
        "disturbed fraction",
        "",
        LOWER,
        combine="max",
        explains=True,
        help="fraction of the timed seconds in which the host was disturbed",
    ),
    Metric(
        "marked",
        kind=bool,
        of_trial=False,
        help=(
            "whether the times come from a disturbed host or GPU: a number to read with `~`, never"
            " a verdict; NULL without figures"
        ),
    ),
    Metric(
        "disturbance",
        kind=str,
        of_trial=False,
        help="why the times are marked; NULL if they are not",
    ),
    Metric(
        "compilations",
        "compilations",
        help="compile caches behind the figures; NULL if nothing compiles",
        kind=int,
        of_trial=False,
    ),
    Metric(
        "hosts",
        "hosts",
        help="hosts behind the figures of a joined sweep; NULL in all others",
        kind=int,
        of_trial=False,
    ),
    Metric(
        "unsteady_trials",
        "unsteady trials",
        "",
        LOWER,
        help="trials whose warm-up ended before calls were steady",
        kind=int,
        of_trial=False,
    ),
)

#: metrics of results, by name: what `show`, `compare` and reports offer
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL if metric.title}
#: quantities that a trial records
TRIAL_METRICS: tuple[Metric, ...] = tuple(metric for metric in _ALL if metric.of_trial)
#: metrics of trials whose results have an interval over the trials
ESTIMATED = tuple(metric.name for metric in TRIAL_METRICS if metric.interval)
#: metric -> the columns of its 95 % confidence interval
INTERVALS = {metric.name: metric.interval for metric in METRICS.values() if metric.interval}
#: metric of processes with a warm cache -> the same metric of processes that compiled with an empty
#: cache
COLD = {"peak_reserved_bytes": "peak_reserved_cold_bytes"}
#: speedup -> the time that it compares; the first one is the headline
SPEEDUPS = {"speedup": "latency_ms", "period_speedup": "period_ms"}


@dataclass(frozen=True)
class SpeedupColumns:
    """The columns of a result with one speedup: by `separate` processes, and on a `busy` host.

    `paired`: the column of a trial with its speedup from pairs.
    """

    paired: str
    separate: str
    busy: str


SPEEDUP_COLUMNS = {
    "speedup": SpeedupColumns("pair_speedup", "separate_speedup", "busy_speedup"),
    "period_speedup": SpeedupColumns(
        "pair_period_speedup", "separate_period_speedup", "busy_period_speedup"
    ),
}
#: quantities of a result: metrics, and what explains them
RESULT_METRICS: tuple[Metric, ...] = tuple(
    metric for metric in _ALL if metric.title or not metric.of_trial
)
#: column of a result, in order -> type: these quantities and the intervals of metrics
RESULT_FIGURES: dict[str, type] = {
    column: metric.kind
    for metric in RESULT_METRICS
    for column in (metric.name, *(metric.interval or ()))
}
