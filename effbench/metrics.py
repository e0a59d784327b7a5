"""Every metric of the view `results`, declared once: name, unit, direction, format, how it is compared.

Standard library only. Reports, `show`, `compare` and the docs all read this table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Better(StrEnum):
    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"  # a description, not a score


@dataclass(frozen=True)
class Metric:
    """`compare`: `ratio` (interval of a ratio), `exact` (any change counts), `bound` (one value a sweep), `none`.

    `interval`: columns of the lower and upper bound of its 95 % confidence interval.
    """

    name: str
    title: str
    unit: str
    better: Better
    compare: str
    help: str
    digits: int = 3
    interval: tuple[str, str] | None = None

    def format(self, value: float | int | None) -> str:
        """`value` for a person: significant digits and a unit; an em dash for nothing."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "—"
        if math.isinf(value):
            return "∞"
        if self.unit == "bytes":
            return format_bytes(value)
        if self.unit == "×":
            return f"{value:.2f}×"
        if self.unit == "":
            return f"{value:.{self.digits}g}"
        return f"{significant(value, self.digits)} {self.unit}"


def significant(value: float, digits: int) -> str:
    """`value` with so many significant digits and never an exponent below a million."""
    if value == 0 or abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def format_bytes(value: float) -> str:
    """Bytes in binary units: `1536` is `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{significant(value, 3)} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def ratio_text(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """`1.052 (1.047–1.057)`; without bounds the ratio alone; of nothing a dash."""
    if ratio is None:
        return ""
    if low is None or high is None:
        return f"{ratio:.3f}"
    return f"{ratio:.3f} ({low:.3f}–{high:.3f})" if high < 1000 else f"{ratio:.3g} ({low:.3g}–{high:.3g})"


def percent(value: float) -> str:
    """A relative size as a share of a hundred: `1.2 %`, `34 %`."""
    if not math.isfinite(value) or value >= 10:
        return "more than tenfold" if value >= 10 else "?"
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def _m(name, title, unit, better, compare, help, digits=3, interval=None):
    return Metric(name, title, unit, Better(better), compare, help, digits, interval)


_ALL = (
    _m(
        "latency_ms",
        "latency",
        "ms",
        "lower",
        "ratio",
        "synchronise, host clock, call, synchronise: what one request sees; "
        "geometric mean over trials of the median within each",
        interval=("latency_ci_low_ms", "latency_ci_high_ms"),
    ),
    _m("latency_min_ms", "fastest latency", "ms", "lower", "none", "the fastest single call of all trials"),
    _m(
        "latency_p95_ms",
        "95th percentile latency",
        "ms",
        "lower",
        "none",
        "geometric mean over trials of the 95th percentile within each",
    ),
    _m(
        "period_ms",
        "period",
        "ms",
        "lower",
        "ratio",
        "CUDA events around back-to-back calls, a call: what a saturated stream sees; CUDA only",
        interval=("period_ci_low_ms", "period_ci_high_ms"),
    ),
    _m(
        "throughput_per_s",
        "throughput",
        "samples/s",
        "higher",
        "none",
        "bs (of a stream its mean size) ÷ period (÷ latency where there is no period)",
    ),
    _m(
        "speedup",
        "speedup",
        "×",
        "higher",
        "ratio",
        "baseline's latency ÷ this latency, same sweep and environment",
        interval=("speedup_ci_low", "speedup_ci_high"),
    ),
    _m(
        "gpu_busy_ms",
        "GPU busy",
        "ms",
        "lower",
        "ratio",
        "time in which kernels, copies or fills ran (union of their intervals), a call; from a profiled pass",
    ),
    _m("kernels", "kernels", "", "lower", "exact", "kernels, copies and fills that one call runs on the GPU"),
    _m(
        "gpu_idle_fraction",
        "GPU idle fraction",
        "",
        "lower",
        "none",
        "1 - busy ÷ period: share of a saturated stream's time in which no kernel runs",
    ),
    _m(
        "enqueue_ms",
        "enqueue time",
        "ms",
        "lower",
        "none",
        "host time until a call returns, before the GPU is done; geometric mean over trials of the median",
    ),
    _m(
        "compile_cold_s",
        "compile, cold cache",
        "s",
        "lower",
        "bound",
        "from handing the module over to its last preparing call, with an empty compile cache; imports excluded",
    ),
    _m("compile_warm_s", "compile, warm cache", "s", "lower", "bound", "the same with the cell's own cache filled"),
    _m(
        "first_call_s",
        "time to the first output",
        "s",
        "lower",
        "bound",
        "preparation and first call together; slowest of the trials, so with a cold cache",
    ),
    _m(
        "break_even_calls",
        "break-even",
        "calls",
        "lower",
        "none",
        "calls until the preparation has paid for itself against the baseline; NULL where that is never or not sure",
    ),
    _m(
        "build_peak_allocated_bytes",
        "peak allocated, building",
        "bytes",
        "lower",
        "none",
        "torch's peak of allocated device memory while the module and its inputs were made",
    ),
    _m(
        "prepare_peak_allocated_bytes",
        "peak allocated, preparing",
        "bytes",
        "lower",
        "none",
        "torch's peak of allocated device memory while the mode was prepared, settling calls included",
    ),
    _m(
        "peak_allocated_bytes",
        "peak allocated",
        "bytes",
        "lower",
        "ratio",
        "torch's peak of allocated device memory in steady state; a graph's pool is not part of it",
    ),
    _m(
        "peak_reserved_bytes",
        "peak reserved",
        "bytes",
        "lower",
        "ratio",
        "torch's peak of reserved device memory in steady state, graph pools included",
    ),
    _m("graph_pool_bytes", "graph pool", "bytes", "lower", "ratio", "device memory in private (graph) pools"),
    _m(
        "process_gpu_bytes",
        "process on GPU",
        "bytes",
        "lower",
        "none",
        "NVML's figure for the whole process, context included",
    ),
    _m(
        "memory_ratio",
        "memory ratio",
        "×",
        "higher",
        "none",
        "baseline's peak reserved ÷ this peak reserved: above 1 is less memory than the baseline",
    ),
    _m("energy_mj", "energy a call", "mJ", "lower", "ratio", "NVML's energy counter over back-to-back calls, a call"),
    _m("rel_error", "relative error", "", "lower", "bound", "‖output - eager‖ ÷ ‖eager‖, worst output and input set"),
    _m("graph_breaks", "graph breaks", "", "lower", "exact", "Dynamo's count"),
    _m("recompiles", "recompiles", "", "lower", "exact", "Dynamo's count of compilations beyond the first of a frame"),
    _m(
        "cudagraph_skips",
        "CUDA graph skips",
        "",
        "lower",
        "exact",
        "Inductor's count of graphs it ran without a CUDA graph",
    ),
    _m(
        "flops",
        "FLOPs",
        "",
        "neither",
        "none",
        "floating-point operations of one eager call in matrix products, convolutions and attention; "
        "operators that torch's counter does not know count as none",
    ),
    _m(
        "min_bytes",
        "least bytes",
        "bytes",
        "neither",
        "none",
        "lower bound of the bytes that one call moves: what it reads of weights, buffers and inputs once, "
        "what it writes to them, and its outputs",
    ),
    _m(
        "roofline_fraction",
        "roofline fraction",
        "",
        "higher",
        "none",
        "the larger of FLOPs ÷ matrix rate and least bytes ÷ copy bandwidth of this machine, ÷ period: "
        "1 is as fast as it can; above 1 the bytes came from a cache",
    ),
    _m("unsteady_trials", "unsteady trials", "", "lower", "none", "trials whose warm-up ended before it was steady"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
#: metric -> the columns of its 95 % confidence interval
INTERVALS = {metric.name: metric.interval for metric in _ALL if metric.interval}
