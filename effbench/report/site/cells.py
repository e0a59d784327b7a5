"""What the site says of one cell in one environment: results, trials, samples, kernels, errors, facts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from effbench.analysis.swept import plain
from effbench.metrics import INTERVALS, METRICS
from effbench.printable import excerpt
from effbench.report.site.material import TrialFacts
from effbench.report.site.packing import packed


@dataclass(frozen=True)
class Fact:
    """A column of `trial` as it stands beside those of other trials."""

    name: str
    title: str
    unit: str = ""
    part: str = ""

    def plain(self) -> list[str]:
        return [self.title, self.unit, self.part]


def _facts(part: str, *items: tuple[str, str] | tuple[str, str, str]) -> list[Fact]:
    return [Fact(name, title, *unit, part=part) for name, title, *unit in items]


#: What trials are compared by, in reading order.
FACTS = (
    *_facts("trial", ("round", "round"), ("attempt", "attempt"), ("status", "status"), ("phase", "last phase")),
    *_facts(
        "time", ("latency_ms", "latency, median", "ms"), ("latency_median_low_ms", "its 95 % interval, low", "ms"),
        ("latency_median_high_ms", "its 95 % interval, high", "ms"), ("latency_min_ms", "latency, fastest", "ms"),
        ("latency_p95_ms", "latency, 95th percentile", "ms"), ("latency_samples", "latency samples"),
        ("enqueue_ms", "enqueue", "ms"), ("period_ms", "period, median", "ms"), ("period_samples", "period samples"),
        ("calls_per_block", "calls in a block"), ("input_copy_ms", "copy of inputs", "ms"),
    ),
    *_facts(
        "steadiness", ("warmup_calls", "warm-up calls"), ("steady", "steady after warm-up"),
        ("discarded_blocks", "discarded blocks"), ("foreign_processes", "foreign processes on the GPU"),
        ("clocks_event_reasons", "clocks event reasons"), ("sm_clock_mhz", "SM clock", "MHz"),
        ("memory_clock_mhz", "memory clock", "MHz"), ("temperature_c", "temperature", "°C"), ("power_w", "power", "W"),
        ("energy_mj", "energy a call", "mJ"),
    ),
    *_facts(
        "preparation", ("compile_s", "compile", "s"), ("compile_cache", "compile cache"), ("prepare_s", "prepare", "s"),
        ("first_call_s", "first output", "s"),
    ),
    *_facts(
        "GPU", ("gpu_busy_ms", "GPU busy", "ms"), ("kernels", "kernels"), ("flops", "FLOPs"),
        ("min_bytes", "least bytes", "bytes"), ("compute_floor_ms", "compute floor", "ms"),
        ("memory_floor_ms", "memory floor", "ms"),
    ),
    *_facts(
        "memory", ("build_peak_allocated_bytes", "peak allocated, building", "bytes"),
        ("prepare_peak_allocated_bytes", "peak allocated, preparing", "bytes"),
        ("peak_allocated_bytes", "peak allocated", "bytes"), ("peak_reserved_bytes", "peak reserved", "bytes"),
        ("graph_pool_bytes", "graph pool", "bytes"), ("process_gpu_bytes", "process on GPU", "bytes"),
        ("peak_host_bytes", "peak on the host", "bytes"),
    ),
    *_facts(
        "counters", ("rel_error", "relative error"), ("graph_breaks", "graph breaks"), ("recompiles", "recompiles"),
        ("cudagraph_skips", "CUDA graph skips"),
    ),
    *_facts(
        "seconds", ("wall_s", "wall", "s"), ("overhead_s", "overhead", "s"), ("build_s", "build", "s"),
        ("check_s", "check", "s"), ("warmup_s", "warm-up", "s"), ("timing_s", "timing", "s"),
    ),
    *_facts(
        "where", ("gpu_index", "GPU index"), ("gpu_uuid", "GPU"), ("pid", "process"), ("started_at", "started (UTC)"),
    ),
)  # fmt: skip
_VALUES = itemgetter(*(fact.name for fact in FACTS))
_STARTED = next(index for index, fact in enumerate(FACTS) if fact.name == "started_at")
#: Parts of `extra` that have a place of their own.
_ELSEWHERE = frozenset({"profile", "traceback", "log", "artifacts"})
_LONG = 60
#: Characters of a key in links: enough to find it.
SHORT_KEY = 16


def short_key(key: str) -> str:
    """The start of a hash; another key as it is."""
    is_hash = len(key) == 64 and all(character in "0123456789abcdef" for character in key)
    return key[:SHORT_KEY] if is_hash else key


def address(row: Mapping[str, Any], several: bool) -> str:
    """What follows the page's name in the address of a result's cell; `several`: there is more than one environment."""
    where = f"&env={quote(row['environment_id'], safe='')}" if several else ""
    return f"#cell={quote(short_key(row['cell_key']), safe='')}{where}"


def results(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Metric -> its value, text and interval's text (None without one); only metrics that the result has."""
    found: dict[str, list[Any]] = {}
    for name, metric in METRICS.items():
        value = plain(row.get(name))
        if value is None:
            continue
        bounds = [plain(row.get(column)) for column in INTERVALS.get(name, ())]
        interval = None
        if bounds and None not in bounds and bounds[0] < bounds[1]:
            interval = f"{metric.format(bounds[0])} to {metric.format(bounds[1])}"
        found[name] = [value, metric.format(value), interval]
    return found


def trial_values(row: Mapping[str, Any]) -> list[Any]:
    """The values of FACTS."""
    values = list(_VALUES(row))
    started = values[_STARTED]
    values[_STARTED] = None if started is None else f"{started:%Y-%m-%d %H:%M:%S}"
    return values


def samples(trials: Sequence[TrialFacts]) -> dict[str, dict[str, Any]]:
    """Timer -> `packing.packed` of the trials that have it, `trials`: which these are, `taken`: how many there were."""
    timers = dict.fromkeys(timer for trial in trials for timer in trial.samples)
    found = {}
    for timer in timers:
        having = [
            index for index, trial in enumerate(trials) if timer in trial.samples and len(trial.samples[timer]) > 0
        ]
        if having:
            arrays = [trials[index].samples[timer] for index in having]
            taken = [
                int(trials[index].taken.get(timer, len(array))) for index, array in zip(having, arrays, strict=True)
            ]
            found[timer] = {"trials": having, "taken": taken} | packed(arrays)
    return found


def kernels(trials: Iterable[TrialFacts]) -> dict[str, Any] | None:
    """The largest kernels of the profiled passes: [name, calls, ms, share, passes], each a mean over the passes that
    list it. None without a pass."""
    passes = [profile for trial in trials if (profile := trial.row["extra"].get("profile"))]
    if not passes:
        return None
    sums: dict[str, list[float]] = {}
    for one in passes:
        for kernel in one["top"]:
            total = sums.setdefault(kernel["name"], [0.0, 0.0, 0.0, 0])
            total[0] += kernel["count"]
            total[1] += kernel["ms"]
            total[2] += kernel["share"]
            total[3] += 1
    rows = [[name, count / n, ms / n, share / n, n] for name, (count, ms, share, n) in sums.items()]
    rows.sort(key=lambda row: -row[2] * row[4])
    return {
        "passes": len(passes),
        "calls": passes[0].get("calls"),
        "in_graphs": max((one.get("kernels_in_graphs") or 0 for one in passes), default=0),
        "rows": rows,
    }


def errors(trials: Sequence[TrialFacts]) -> list[dict[str, Any]]:
    """What went wrong, each once with the trials (their positions) that say it: `reason`, `traceback`, `log`."""
    found: dict[tuple, dict[str, Any]] = {}
    for index, trial in enumerate(trials):
        row, extra = trial.row, trial.row["extra"]
        said = {"status": row["status"], "reason": row["reason"], "phase": row["phase"]}
        said |= {name: excerpt(str(extra[name])) for name in ("traceback", "log") if extra.get(name)}
        if row["status"] == "ok" and len(said) == 3 and not row["reason"]:
            continue
        key = tuple(str(value) for value in said.values())
        found.setdefault(key, said | {"trials": []})["trials"].append(index)
    return list(found.values())


def more(trials: Sequence[TrialFacts]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """What `extra` holds beside that: short values as name -> one a trial (None without), and longer ones as name ->
    text, or a list of texts where trials differ."""
    flat = [_flat(trial.row["extra"]) for trial in trials]
    short: dict[str, list[Any]] = {}
    long: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in flat for name in one):
        values = [one.get(name) for one in flat]
        if str in set(map(type, values)) and any(isinstance(value, str) and len(value) > _LONG for value in values):
            texts = list(dict.fromkeys(str(value) for value in values if value is not None))
            long[name] = texts if len(texts) > 1 else texts[0]
        else:
            short[name] = values
    return short, long


def _flat(extra: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in extra.items():
        if not prefix and key in _ELSEWHERE:
            continue
        name = prefix + key
        if isinstance(value, (int, float)):
            found[name] = value
        elif isinstance(value, dict):
            # an open set of texts, such as reasons with their counts: one fact, not one for each
            if any(" " in inner for inner in value):
                found[name] = "\n".join(f"{inner}: {_text(item)}" for inner, item in value.items())
            else:
                found |= _flat(value, f"{name}.")
        elif isinstance(value, list):
            if value:
                found[name] = ("\n" if any(not _is_short(item) for item in value) else ", ").join(map(_text, value))
        elif value is not None:
            found[name] = value
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_short(value: Any) -> bool:
    return not isinstance(value, list | dict) and len(str(value)) <= 24
