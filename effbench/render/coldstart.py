"""Sentences and tables about cold starts: what the first answer of a fresh process costs, from
which request on a mode pays, and what a cache is worth after a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.analysis.coldstart import (
    CACHE,
    ColdStart,
    cache_of,
    case_of,
    change_of,
    cold_starts_of,
    fastest,
)
from effbench.core.cell import COLDSTART, NO_CACHE, NO_CHANGE, JsonObject
from effbench.core.labels import LabelledResult, LabelledResults, grouped
from effbench.core.metrics import COLD_PARTS, METRICS
from effbench.core.printable import count, duration, listed
from effbench.core.table import Column, Shown, Table
from effbench.render.bottlenecks import failure_of
from effbench.render.marks import Estimate, signed
from effbench.render.tables import label_columns
from effbench.store.values import ResultKey

#: Labels that are columns of their own, or the same in all rows.
OTHER_COLUMNS = (CACHE, "phase", "coldstart.change")
#: Value of `cache` -> what a process starts with.
CACHES = {
    NO_CACHE: "no cache",
    "folder": "a copied folder",
    "bundle": "a bundle",
    "package": "a package",
}
#: Value of `coldstart.change` -> what differs from when the cache was made.
CHANGES = {
    NO_CHANGE: "nothing",
    "folder": "another folder for the cache",
    "bs": "another batch size",
    "rank": "an input with another number of dimensions",
    "gpu": "another GPU",
    "constant": "a constant in the model's code",
}
#: Seconds below which a part is 0.00 in the table.
LEAST_S = 0.005
#: Most reasons of misses that a cell names.
MOST_REASONS = 3


@dataclass(frozen=True)
class ColdReport:
    """The answer as sentences, the tables behind it, further lines, and the same content for
    JSON."""

    sentences: list[str]
    tables: list[Table]
    lines: list[str]
    data: JsonObject


def report_of(rows: LabelledResults) -> ColdReport:
    """Return what the cold starts among these rows cost, and when they pay. The tables have no row
    if there are none."""
    starts = cold_starts_of(rows)
    texts = sentences(starts)
    tables = [cost_table(starts), parts_table(starts)]
    data = {"sentences": texts, "starts": [record_of(start) for start in starts]}
    return ColdReport(texts, tables, omitted(rows), data)


def report_of_changes(rows: LabelledResults, facts: Mapping[ResultKey, JsonObject]) -> ColdReport:
    """Return what caches are worth after each change; see `portability_table`."""
    table = portability_table(rows, facts)
    return ColdReport([], [table], [], {"changes": table.records()})


# --- sentences ---


def sentences(starts: Sequence[ColdStart]) -> list[str]:
    """Return a sentence for each case: the soonest first answer of its fastest mode, what that
    saves, and when it pays."""
    by_case = grouped(starts, lambda start: start.case)
    lines = []
    for case, of_case in by_case.items():
        text = sentence(of_case)
        if len(by_case) > 1:
            text = f"{case}: {text}"
        lines.append(text)
    return lines


def sentence(starts: Sequence[ColdStart]) -> str:
    """Return `With a bundle (1.9 MiB) default answers after 9.10 s instead of 22.3 s; eager after
    2.40 s; it pays from 5,300 requests (40 s of uptime) on.`"""
    chosen = fastest(starts)
    if chosen is None:
        return f"{starts[0].mode} answers after {seconds_of(starts[0].row)}."
    text = f"{chosen.mode} answers after {seconds_of(chosen.row)}"
    if chosen.cache != NO_CACHE:
        size = METRICS["cache_bytes"].format(chosen.row.cache_bytes)
        text = f"With {CACHES[chosen.cache]} ({size}) {text}"
        if chosen.uncached is not None:
            text += f" instead of {seconds_of(chosen.uncached)}"
    clauses = [text]
    reference = chosen.reference
    if reference is not None:
        clauses.append(f"{reference.mode_label} after {seconds_of(reference)}")
        clauses.append(payment(chosen))
    return f"{'; '.join(clauses)}."


def payment(start: ColdStart) -> str:
    """Return from which request on a mode pays, or why it never does, as a clause."""
    if start.requests is None or start.uptime_s is None:
        return f"it never pays: {start.never or 'its calls are hardly faster'}"
    requests = signed(count(start.requests, "request"), start.is_marked)
    return f"it pays from {requests} ({duration(start.uptime_s)} of uptime) on"


def seconds_of(row: LabelledResult) -> str:
    return Estimate.of(row, "cold_s").text


def omitted(rows: LabelledResults) -> list[str]:
    """Return a line for each reason why results are no cold start, with the cells."""
    without = [row for row in rows if not row.is_ok or row.cold_s is None]
    by_reason = grouped(without, failure_of)
    return [
        f"{listed([row.name for row in of_reason], MOST_REASONS)}: {reason}"
        for reason, of_reason in by_reason.items()
    ]


# --- tables ---


def cost_table(starts: Sequence[ColdStart]) -> Table:
    """Return a table with a row for each mode and cache: what the first answer costs, and when that
    pays."""
    columns = [
        *start_columns(starts),
        Column("cold_s", "first answer", numeric=True),
        Column("latency_ms", "latency", numeric=True),
        Column("requests", "pays from request", numeric=True, optional=True),
        Column("uptime_s", "uptime", numeric=True, optional=True),
        Column("cache_bytes", "cache size", numeric=True, optional=True),
        Column("cache_reuse", "reused", optional=True),
    ]
    rows = []
    for start in starts:
        row = labels_of(start)
        for metric in ("cold_s", "latency_ms", "cache_bytes"):
            row[metric] = Estimate.of(start.row, metric).shown
        row |= {
            "requests": requests_shown(start),
            "uptime_s": uptime_shown(start),
            "cache_reuse": start.row.cache_reuse,
        }
        rows.append(row)
    return Table(columns, rows, caption="The first answer of a fresh process, and when it pays")


def parts_table(starts: Sequence[ColdStart]) -> Table:
    """Return a table with a row for each mode and cache: the seconds of each part of the first
    answer. Parts that take no time anywhere are omitted."""
    columns = start_columns(starts)
    for part in COLD_PARTS:
        columns.append(Column(part, title_of(part), numeric=True, optional=True))
    rows = []
    for start in starts:
        row = labels_of(start)
        for part in COLD_PARTS:
            value = start.row.value(part)
            text = "" if value is None or value < LEAST_S else f"{value:.2f}"
            row[part] = Shown(value, text)
        rows.append(row)
    return Table(columns, rows, caption="Where the seconds of the first answer go")


def start_columns(starts: Sequence[ColdStart]) -> list[Column]:
    labels = dict.fromkeys(name for start in starts for name in start.row.labels)
    columns = label_columns((name for name in labels if name not in OTHER_COLUMNS), once=True)
    return [*columns, Column("mode"), Column("cache")]


def labels_of(start: ColdStart) -> dict[str, Any]:
    return start.row.labels | {"mode": start.mode, "cache": start.cache}


def requests_shown(start: ColdStart) -> Shown:
    """Return from how many requests on a mode pays; `never` with the reason on hover."""
    if start.reference is None or start.is_reference:
        return Shown(None, "")
    if start.requests is None:
        return Shown(None, "never", hint=start.never)
    return Shown(start.requests, signed(f"{start.requests:,}", start.is_marked))


def uptime_shown(start: ColdStart) -> Shown:
    if start.uptime_s is None:
        return Shown(None, "")
    return Shown(start.uptime_s, signed(duration(start.uptime_s), start.is_marked))


def title_of(part: str) -> str:
    """Return `first call` for the metric `cold start: first call`."""
    return METRICS[part].title.partition(": ")[2]


def portability_table(rows: LabelledResults, facts: Mapping[ResultKey, JsonObject]) -> Table:
    """Return a table with a row for each change since the cache was made, and a column for each
    cache: how much of it a fresh process used, after how long it answered, and why parts missed.
    `facts`: what `Store.trial_facts` returns for COLDSTART."""
    with_cache = [row for row in rows if cache_of(row) != NO_CACHE]
    caches = dict.fromkeys(map(cache_of, with_cache))
    by_change = grouped(with_cache, lambda row: (case_of(row), row.mode_label))
    columns = [Column("mode"), Column("change", "changed since the cache was made")]
    for cache in caches:
        columns.append(Column(cache, wide=True))
    records = []
    for (_, mode), of_change in by_change.items():
        record: dict[str, Any] = {"mode": mode, "change": CHANGES[change_of(of_change[0])]}
        for row in of_change:
            key = ResultKey(row.cell_key, row.environment_id)
            record[cache_of(row)] = reuse_shown(row, facts.get(key, {}).get(COLDSTART, {}))
        records.append(record)
    return Table(columns, records, caption="What a cache is worth after a change")


def reuse_shown(row: LabelledResult, facts: JsonObject) -> Shown:
    """Return `whole, 2.31 s`, with the reasons of misses; the status of a row that is not ok."""
    if not row.is_ok or row.cache_reuse is None:
        return Shown(None, str(row.status), "status", row.reason or "")
    reasons = listed(facts.get("missed", []), MOST_REASONS)
    return Shown(row.cache_reuse, f"{row.cache_reuse}, {seconds_of(row)}", details=reasons)


def record_of(start: ColdStart) -> dict[str, Any]:
    """Return a cold start as plain data."""
    row = start.row
    return {
        **row.labels,
        "mode": start.mode,
        "cache": start.cache,
        "cold_s": row.cold_s,
        "cold_ci_low_s": row.cold_ci_low_s,
        "cold_ci_high_s": row.cold_ci_high_s,
        **{part: row.value(part) for part in COLD_PARTS},
        "latency_ms": row.latency_ms,
        "requests": start.requests,
        "uptime_s": start.uptime_s,
        "never": start.never,
        "cache_bytes": row.cache_bytes,
        "cache_reuse": row.cache_reuse,
        "marked": start.is_marked,
    }
