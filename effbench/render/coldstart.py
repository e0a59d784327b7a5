"""Sentences and tables about cold starts: what the first answer of a fresh process costs, from
which request on a mode pays, and what a cache is worth after a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effbench.analysis.coldstart import ColdStart, cache_of, case_of, change_of, fastest
from effbench.core.cell import COLDSTART, NO_CACHE, JsonObject
from effbench.core.images import in_images
from effbench.core.labels import LabelledResult, LabelledResults, grouped
from effbench.core.metrics import COLD_PARTS, METRICS
from effbench.core.printable import count, duration, listed
from effbench.core.table import Column, Record, Shown, Table
from effbench.render.marks import Estimate, signed
from effbench.render.tables import label_columns
from effbench.store.values import ResultKey

#: Labels without a column: they have one of their own, or are the same in all rows.
WITHOUT_COLUMN = ("cache", "phase", "coldstart.change")
#: Value of `cache` -> what a process starts with.
CACHES = {"folder": "a copied folder", "bundle": "a bundle", "package": "a package"}
#: Value of `coldstart.change` -> what differs from when the cache was made.
CHANGES = {
    "none": "nothing",
    "folder": "the cache's folder",
    "bs": "the batch size",
    "rank": "the rank in a process group",
    "gpu": "the GPU",
    "constant": "a constant in the model's code",
}
#: Parts that take less are not shown.
LEAST_S = 0.005
#: Reasons of misses that a cell names before it counts the rest.
MOST_REASONS = 3
#: The variable that keeps torch from testing the CPU's vector instructions when it loads a package.
ISA_VARIABLE = "TORCHINDUCTOR_VEC_ISA_OK"
#: A package that loads for longer has compiled test programs; without them it takes up to 2 s.
SLOW_LOAD_S = 3.0


# --- sentences ---


def sentences(starts: Sequence[ColdStart]) -> list[str]:
    """Return a sentence for each case."""
    by_case = grouped(starts, lambda start: case_of(start.row))
    lines = []
    for case, of_case in by_case.items():
        name = f"{case}: " if len(by_case) > 1 else ""
        lines.append(name + sentence(of_case))
    slow = [start.row for start in starts if loads_slowly(start)]
    if slow:
        lines.append(explain_slow_loading(slow))
    return lines


def loads_slowly(start: ColdStart) -> bool:
    """Return whether torch tested the CPU's vector instructions before it loaded a package."""
    row = start.row
    if start.cache != "package" or ISA_VARIABLE in row.params["env"]:
        return False
    return (row.cold_load_s or 0.0) > SLOW_LOAD_S


def explain_slow_loading(rows: Sequence[LabelledResult]) -> str:
    """Return what makes packages load slowly, and how to avoid it."""
    longest = max(row.cold_load_s or 0.0 for row in rows)
    # 0 turns off vector instructions, too, which code for a GPU does not need
    value = 1 if rows[0].device == "cpu" else 0
    return (
        f"Loading a package takes up to {longest:.1f} s, in which torch compiles test programs for"
        f" the CPU's vector instructions. {ISA_VARIABLE}={value} avoids this."
    )


def sentence(starts: Sequence[ColdStart]) -> str:
    """Return `With a bundle (1.9 MiB) default answers after 9.10 s instead of 22.3 s; eager after
    2.40 s; it pays from 5,300 requests (40 s of uptime) on.`"""
    chosen = fastest(starts)
    text = f"{chosen.row.mode_label} answers after {seconds_of(chosen.row)}"
    if chosen.cache != NO_CACHE:
        size = METRICS["cache_bytes"].format(chosen.row.cache_bytes)
        text = f"With {CACHES[chosen.cache]} ({size}) {text}"
        if chosen.uncached is not None:
            text += f" instead of {seconds_of(chosen.uncached)}"
    reference = chosen.reference
    if reference is not None and not chosen.is_reference:
        text += f"; {reference.mode_label} after {seconds_of(reference)}; {payment(chosen)}"
    return f"{text}."


def payment(start: ColdStart) -> str:
    """Return from which request on a mode pays, or why it never does, as a clause."""
    if start.requests is None or start.uptime_s is None:
        return f"it {marked(start, 'never')} pays: {start.never}"
    requests = marked(start, count(start.requests, "request"))
    requests += in_images(start.row, start.requests)
    uptime = marked(start, duration(start.uptime_s))
    return f"it pays from {requests} ({uptime} of uptime) on"


def seconds_of(row: LabelledResult) -> str:
    return Estimate.of(row, "cold_s").text


def marked(start: ColdStart, text: str) -> str:
    """Return a text about a start and its reference, with a sign if either is marked."""
    is_marked = any(row.disturbance for row in (start.row, start.reference) if row is not None)
    return signed(text, is_marked)


# --- tables ---


def tables(starts: Sequence[ColdStart]) -> list[Table]:
    """Return two tables with a row for each mode and cache: what the first answer costs and when it
    pays; and the seconds of its parts, without those that take no time."""
    rows = [record_of(start) for start in starts]
    labels = [name for name in starts[0].row.labels if name not in WITHOUT_COLUMN]
    names = [*label_columns(labels, once=True), Column("mode"), Column("cache")]
    costs = [
        Column("cold_s", "first answer", numeric=True),
        Column("latency_ms", "latency", numeric=True),
        Column("requests", "pays from request", numeric=True, optional=True),
        Column("uptime_s", "uptime", numeric=True, optional=True),
        Column("cache_bytes", "cache size", numeric=True, optional=True),
        Column("cache_reuse", "reused", optional=True),
    ]
    parts = [Column(part, title_of(part), numeric=True, optional=True) for part in COLD_PARTS]
    # programs get both
    data = Table([*names, *costs, *parts], rows).records()
    return [
        Table([*names, *costs], rows, data, caption="The first answer, and when a mode pays"),
        Table([*names, *parts], rows, caption="Seconds of the parts of the first answer"),
    ]


def record_of(start: ColdStart) -> Record:
    """Return a row of both tables."""
    row = start.row
    record: dict[str, Any] = {**row.labels, "mode": row.mode_label, "cache": start.cache}
    for metric in ("cold_s", "latency_ms", "cache_bytes"):
        record[metric] = Estimate.of(row, metric).shown
    for part in COLD_PARTS:
        seconds = row.value(part)
        text = ""
        if seconds is not None and seconds >= LEAST_S:
            text = signed(f"{seconds:.2f}", row.disturbance is not None)
        record[part] = Shown(seconds, text)
    requests, uptime = "", ""
    if start.requests is not None and start.uptime_s is not None:
        requests = marked(start, f"{start.requests:,}")
        uptime = marked(start, duration(start.uptime_s))
    elif start.never:
        requests = marked(start, "never")
    record["requests"] = Shown(start.requests, requests, hint=start.never)
    record["uptime_s"] = Shown(start.uptime_s, uptime)
    record["cache_reuse"] = row.cache_reuse
    return record


def title_of(part: str) -> str:
    """Return `first call` for the metric `cold start: first call`."""
    return METRICS[part].title.partition(": ")[2]


def portability_table(rows: LabelledResults, facts: Mapping[ResultKey, JsonObject]) -> Table:
    """Return a table with a row for each change since the cache was made, and a column for each
    cache: how much of it a fresh process used, when it answered, and why parts missed. `facts`:
    what `Store.trial_facts` returns for COLDSTART."""
    with_cache = [row for row in rows if cache_of(row) != NO_CACHE]
    columns = [Column("mode"), Column("change", "changed since the cache was made")]
    columns += [Column(cache, wide=True) for cache in dict.fromkeys(map(cache_of, with_cache))]
    records = []
    by_change = grouped(with_cache, lambda row: (case_of(row), row.mode_label))
    for (_, mode), of_change in by_change.items():
        record: dict[str, Any] = {"mode": mode, "change": CHANGES[change_of(of_change[0])]}
        for row in of_change:
            key = ResultKey(row.cell_key, row.environment_id)
            missed = facts.get(key, {}).get(COLDSTART, {}).get("missed", [])
            record[cache_of(row)] = reuse_shown(row, missed)
        records.append(record)
    return Table(columns, records, caption="What a cache is worth after a change")


def reuse_shown(row: LabelledResult, missed: Sequence[str]) -> Shown:
    """Return `part, 2.31 s` with the reasons of misses, or the status of a row that is not ok."""
    if not row.is_ok:
        return Shown(None, str(row.status), "status", row.reason or "")
    text = f"{row.cache_reuse}, {seconds_of(row)}"
    details = ""
    if missed:
        details = f"missed: {listed(missed, MOST_REASONS)}"
    return Shown(row.cache_reuse, text, details=details)
