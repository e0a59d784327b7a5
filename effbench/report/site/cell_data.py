"""What the page of a cell shows of its trials: facts, samples, kernels, errors, and artifacts as files of the site."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from effbench.cell import digest
from effbench.metrics import INTERVALS, METRICS, format_bytes
from effbench.printable import excerpt
from effbench.report.data import Trial
from effbench.report.site.writer import Writer

#: Columns of `trial` that trials are compared by, in reading order, by part of the table.
PARTS = {
    "trial": ("round", "attempt", "status", "phase"),
    "time": (
        "latency_ms", "latency_median_low_ms", "latency_median_high_ms", "latency_min_ms", "latency_p95_ms",
        "latency_samples", "enqueue_ms", "period_ms", "period_samples", "calls_per_block", "input_copy_ms",
    ),
    "steadiness": (
        "warmup_calls", "steady", "discarded_blocks", "foreign_processes", "clocks_event_reasons", "sm_clock_mhz",
        "memory_clock_mhz", "temperature_c", "power_w", "energy_mj",
    ),
    "preparation": ("compile_s", "compile_cache", "prepare_s", "first_call_s"),
    "GPU": ("gpu_busy_ms", "kernels", "flops", "min_bytes", "compute_floor_ms", "memory_floor_ms"),
    "memory": (
        "build_peak_allocated_bytes", "prepare_peak_allocated_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
        "graph_pool_bytes", "process_gpu_bytes", "peak_host_bytes",
    ),
    "counters": ("rel_error", "graph_breaks", "recompiles", "cudagraph_skips"),
    "seconds": ("wall_s", "overhead_s", "build_s", "check_s", "warmup_s", "timing_s"),
    "where": ("gpu_index", "gpu_uuid", "pid", "started_at"),
}  # fmt: skip
#: Ends of names of columns -> units.
UNITS = {"ms": "ms", "s": "s", "mhz": "MHz", "c": "°C", "w": "W", "mj": "mJ", "bytes": "bytes"}
#: Titles of columns that are neither a metric's nor the name in words.
TITLES = {
    "phase": "last phase", "latency_ms": "latency, median", "period_ms": "period, median",
    "latency_median_low_ms": "its 95 % interval, low", "latency_median_high_ms": "its 95 % interval, high",
    "steady": "steady after warm-up", "foreign_processes": "foreign processes on the GPU", "sm_clock_mhz": "SM clock",
    "peak_host_bytes": "peak on the host", "gpu_index": "GPU index", "gpu_uuid": "GPU", "pid": "process",
    "started_at": "started (UTC)",
}  # fmt: skip


def _fact(name: str, part: str) -> tuple[str, str, str, str]:
    stem, _, end = name.rpartition("_")
    unit = UNITS.get(end, "") if stem else ""
    title = METRICS[name].title if name in METRICS else (stem if unit else name).replace("_", " ")
    return name, TITLES.get(name, title), unit, part


#: Column of `trial`, title, unit, part of the table.
FACTS = [_fact(name, part) for part, names in PARTS.items() for name in names]
_VALUES = itemgetter(*(name for name, *_ in FACTS))
_STARTED = [name for name, *_ in FACTS].index("started_at")
#: Parts of `extra` that have a place of their own.
_ELSEWHERE = frozenset({"profile", "traceback", "log", "artifacts"})
#: Texts from this length on are no column of a table.
_LONG = 60
#: Points of one trial and timer that are drawn in order; fewer if a cell has many trials.
POINTS = 200
MOST_POINTS = 6000
FEWEST_POINTS = 25
BINS = 48
#: Share of the points that the bins cover; what lies above is counted together.
COVERED = 0.99
#: Ends of names that no browser runs; another file stays where it is.
KINDS = (".json.gz", ".json", ".py", ".txt", ".log", ".dot", ".pickle")
#: Bytes of one file, and of all that one process copies for a device sweep: traces and snapshots can be very large.
LARGEST = 4 * 2**20
MOST = 64 * 2**20


def results(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return metric -> its value, text and interval's text (None without one); only metrics that the result has."""
    found: dict[str, list[Any]] = {}
    for name, metric in METRICS.items():
        value = row.get(name)
        if value is None:
            continue
        bounds = [row.get(column) for column in INTERVALS.get(name, ())]
        interval = None
        if bounds and None not in bounds and bounds[0] < bounds[1]:
            interval = f"{metric.format(bounds[0])} to {metric.format(bounds[1])}"
        found[name] = [value, metric.format(value), interval]
    return found


def of_trials(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return everything that follows from the trials of a cell."""
    rows = [row for row, _ in trials]
    short, long = more(rows)
    return {
        "trials": [trial_values(row) for row in rows],
        "short": short,
        "long": long,
        "samples": samples([timers for _, timers in trials]),
        "kernels": kernels(rows),
        "errors": errors(rows),
    }


def trial_values(row: Mapping[str, Any]) -> list[Any]:
    """Return the values of FACTS."""
    values = list(_VALUES(row))
    started = values[_STARTED]
    values[_STARTED] = None if started is None else f"{started:%Y-%m-%d %H:%M:%S}"
    return values


def samples(trials: Sequence[Mapping[str, tuple[int, Any]]]) -> dict[str, dict[str, Any]]:
    """Return timer -> `packed` of the trials that have it, `trials`: which these are, `taken`: how many there were."""
    found = {}
    for timer in dict.fromkeys(timer for timers in trials for timer in timers):
        having = {
            place: timers[timer] for place, timers in enumerate(trials) if timer in timers and len(timers[timer][1])
        }
        if having:
            taken, arrays = zip(*having.values(), strict=True)
            found[timer] = {"trials": list(having), "taken": list(map(int, taken))} | packed(arrays)
    return found


def kernels(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the largest kernels of the profiled passes: [name, calls, ms, share, passes], each a mean over the passes
    that list it. None without a pass."""
    passes = [profile for row in rows if (profile := row["extra"].get("profile"))]
    if not passes:
        return None
    sums: dict[str, list[float]] = {}
    for kernel in (kernel for one in passes for kernel in one["top"]):
        added = (kernel["count"], kernel["ms"], kernel["share"], 1)
        sums[kernel["name"]] = [a + b for a, b in zip(sums.get(kernel["name"], (0.0, 0.0, 0.0, 0)), added, strict=True)]
    means = [[name, count / n, ms / n, share / n, n] for name, (count, ms, share, n) in sums.items()]
    means.sort(key=lambda row: -row[2] * row[4])
    return {
        "passes": len(passes),
        "calls": passes[0].get("calls"),
        "in_graphs": max((one.get("kernels_in_graphs") or 0 for one in passes), default=0),
        "rows": means,
    }


def errors(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what went wrong, each once with its trials (their positions): `reason`, `traceback`, `log`."""
    found: dict[tuple, dict[str, Any]] = {}
    for index, row in enumerate(rows):
        extra = row["extra"]
        facts = {"status": row["status"], "reason": row["reason"], "phase": row["phase"]}
        facts |= {name: excerpt(str(extra[name])) for name in ("traceback", "log") if extra.get(name)}
        if row["status"] == "ok" and len(facts) == 3 and not row["reason"]:
            continue
        key = tuple(str(value) for value in facts.values())
        found.setdefault(key, facts | {"trials": []})["trials"].append(index)
    return list(found.values())


def more(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return what else `extra` holds: short values as name -> one a trial (None without), and longer ones as name ->
    text, or a list of texts if trials differ."""
    flat = [_flat(row["extra"]) for row in rows]
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


def evenly(stored: int, shown: int) -> np.ndarray:
    """Return which of the stored samples are shown, both ends among them; cell_samples.js does the same."""
    return np.arange(shown) * (stored - 1) // max(1, shown - 1)


def packed(arrays: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the samples of T trials as few bytes; `arrays`: the stored ones of each, float32.

    `stored`, `shown` (T): how many. `points`: those that are shown, trial after trial, as base64 of little-endian
    float32. `counts` (T, BINS + 1): of all that are stored and finite, in BINS equal bins from `low` to `high`, then
    those above; a row is empty where nothing is finite.
    """
    most = min(POINTS, max(FEWEST_POINTS, MOST_POINTS // len(arrays)))
    shown = [min(most, len(array)) for array in arrays]
    points = np.concatenate([array[evenly(len(array), many)] for array, many in zip(arrays, shown, strict=True)])
    found: dict[str, Any] = {
        "stored": [len(array) for array in arrays],
        "shown": shown,
        "points": base64.b64encode(points.astype("<f4", copy=False).tobytes()).decode("ascii"),
    }
    return found | _histogram(arrays, points)


def _histogram(arrays: Sequence[np.ndarray], points: np.ndarray) -> dict[str, Any]:
    sizes = [len(array) for array in arrays]
    pool = np.concatenate(arrays)
    trial = np.repeat(np.arange(len(sizes)) * (BINS + 1), sizes)
    finite = np.isfinite(pool)
    if not finite.all():
        pool, trial, points = pool[finite], trial[finite], points[np.isfinite(points)]
    if not len(pool) or not len(points):
        return {"low": None, "high": None, "counts": [[] for _ in sizes]}
    low = float(pool.min())
    place = int(COVERED * (len(points) - 1))
    high = float(np.partition(points, place)[place])
    if high <= low:
        high = low + max(abs(low) * 1e-6, 1e-12)
    places = ((pool.astype(np.float64) - low) * (BINS / (high - low))).astype(np.int64)
    # the highest bin holds its upper end
    places[(places == BINS) & (pool <= high)] = BINS - 1
    np.minimum(places, BINS, out=places)
    counts = np.bincount(places + trial, minlength=len(sizes) * (BINS + 1))
    return {"low": low, "high": high, "counts": counts.reshape(len(sizes), BINS + 1).tolist()}


class ArtifactFiles:
    """Copies artifacts below `home` into `folder` of the site, so that links hold wherever the site is taken."""

    def __init__(self, writer: Writer, folder: str, home: Path | None) -> None:
        self.writer = writer
        self.folder = folder
        self.home = home
        self.room = MOST

    def links(self, trials: Iterable[Trial]) -> list[list[str | None]]:
        """Return [name, link relative to the page or None, reason for None] for each artifact of the trials."""
        names = (str(name) for row, _ in trials for name in row["extra"].get("artifacts") or ())
        return [[name, *self._link(name)] for name in dict.fromkeys(names)]

    def _link(self, name: str) -> tuple[str | None, str | None]:
        if self.home is None:
            return None, "not there"
        try:
            path = (self.home / name).resolve()
            if not path.is_relative_to(self.home.resolve()) or not path.is_file():
                return None, "not there"
            size = path.stat().st_size
        except (OSError, ValueError):  # removed meanwhile, or no name of a file: too long, a null character
            return None, "not there"
        # the name is made unique by the whole path: two cells have files of one name
        target = f"files/{digest(name)[:12]}-{re.sub(r'[^A-Za-z0-9._-]', '_', path.name)[-60:]}"
        if not path.name.endswith(KINDS) or size > LARGEST or size > self.room:
            return None, f"{format_bytes(size)}, left beside the database"
        try:
            self.writer.copy(self.folder + target, path)
        except FileNotFoundError:  # removed meanwhile
            return None, "not there"
        self.room -= size
        return target, None
