"""A comparison as text: rows for a terminal, Markdown, JSON, CSV, JUnit XML."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

from effbench.analysis.mode_scores import UNCLEAR
from effbench.analysis.screen import COLUMNS, STATUS, Change, record
from effbench.analysis.statistics import is_clear
from effbench.analysis.verdicts import Verdict
from effbench.metrics import METRICS, percent, ratio_text
from effbench.printable import one_line

FORMATS = ("markdown", "json", "csv", "junit")
HEADINGS = ("verdict", "cell", "metric", "before", "after", "after ÷ before", "detectable", "why")
ALWAYS = ("verdict", "cell", "metric")
NUMERIC = (False, False, False, True, True, True, True, False)
#: Not by colour alone: a sign that also a plain terminal, a printout and a screen reader have.
SIGNS = {
    Verdict.BROKEN: "✗", Verdict.SLOWER: "▲", Verdict.MISSING: "?", Verdict.AMBIGUOUS: "~", Verdict.FIXED: "✓",
    Verdict.FASTER: "▼", Verdict.NEW: "+", Verdict.SAME: "=",
}  # fmt: skip
#: The name of a verdict where "slower" would be the wrong word.
MORE = {Verdict.SLOWER: "more", Verdict.FASTER: "less"}
_TIMES = ("ms", "s")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKDOWN = frozenset("|`*[]\\")


def word_of(change: Change) -> str:
    """`▲ slower`; of what is no time `▲ more`. An ignored row says so."""
    metric = METRICS.get(change.metric)
    is_time = metric is None or metric.unit in _TIMES
    word = str(change.verdict) if is_time else MORE.get(change.verdict, str(change.verdict))
    return f"{SIGNS[change.verdict]} {word}" + (" (ignored)" if change.ignored else "")


def cells_of(change: Change) -> list[str]:
    """One row of the table, as HEADINGS names its columns."""
    shows = change.smallest_slowdown
    return [
        word_of(change), one_line(change.name), change.metric, figure(change.metric, change.before),
        figure(change.metric, change.after), ratio_text(change.ratio, change.low, change.high),
        "" if shows is None else f"≥ {percent(shows)}" if shows < 10 else percent(shows), one_line(change.reason or ""),
    ]  # fmt: skip


def figure(metric: str, value: float | None) -> str:
    if metric == STATUS:
        return ""
    return METRICS[metric].format(value)


def counts_text(compared: Any) -> str:
    """`2 slower, 1 broken, 40 same`: rows by verdict."""
    return ", ".join(f"{number} {verdict}" for verdict, number in compared.counts.items()) or "nothing to compare"


def heading(compared: Any) -> str:
    """Both sides with their labels, and the hardware."""

    def side(half: Any) -> str:
        return f"{half.title} {half.label}" if half.label else half.title

    return one_line(f"{side(compared.before)} → {side(compared.after)} · {compared.hardware}")


def limits_line(compared: Any) -> list[str]:
    """Which limits held, where that is known."""
    return [f"limits: {compared.limits.source}"] if compared.limits.source else []


def mode_lines(compared: Any) -> list[str]:
    """`inference eager: latency 1.003 (0.998–1.008) over 12 cells`; of none `eager: latency – over 0 of 12 cells`."""
    phases = {line.phase for line in compared.modes}
    return [
        (f"{line.phase} " if len(phases) > 1 else "")
        + f"{line.mode}: {METRICS[line.metric].title} {mean_text(line.ratio, line.low, line.high)}"
        + f" over {line.cells} {'' if line.of in (None, line.cells) else f'of {line.of} '}"
        + f"cell{'s' * ((line.of or line.cells) != 1)}"
        for line in compared.modes
    ]


def mean_text(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return a geometric mean over cells as `ratio_text` does, or `unclear (0.60–29540)` if it cannot be quoted."""
    text = ratio_text(ratio, low, high) or "–"
    return text if is_clear(low, high) else f"{UNCLEAR} {text.partition(' ')[2]}"


def markdown(compared: Any, changes: Sequence[Change], left_out: int = 0) -> str:
    """A section for a pull request or a job summary."""
    lines = [f"**{escape(heading(compared))}**", "", *(f"- {escape(text)}" for text in compared.differences)]
    lines += [""] * bool(compared.differences)
    lines += [f"{counts_text(compared)}", ""]
    if changes:
        lines += [rows_table(changes), ""]
    if left_out:
        lines += [f"{left_out} rows that are the same are left out.", ""]
    said = [*mode_lines(compared), *filter(None, [sensitivity(compared)]), *limits_line(compared), *compared.notes]
    lines += [f"- {escape(text)}" for text in said]
    return "\n".join(lines).rstrip() + "\n"


def columns_used(rows: Sequence[Sequence[str]]) -> list[int]:
    """Places in HEADINGS of the columns that say something in these rows (as `cells_of` makes them)."""
    return [n for n, heading in enumerate(HEADINGS) if heading in ALWAYS or any(row[n] for row in rows)]


def rows_table(changes: Sequence[Change]) -> str:
    """A Markdown table of rows."""
    rows = [cells_of(change) for change in changes]
    used = columns_used(rows)
    lines = [[HEADINGS[n] for n in used], ["--:" if NUMERIC[n] else "---" for n in used]]
    lines += [[escape(row[n]) for n in used] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sensitivity(compared: Any) -> str | None:
    """What slowdown these trials would have shown: of the latency, in the middle and at worst; None where no latency
    was compared."""
    latencies = [change for change in compared.changes if change.metric == "latency_ms" and change.ratio is not None]
    if not latencies:
        return None
    known = sorted((one.smallest_slowdown, one.name) for one in latencies if one.smallest_slowdown is not None)
    if not known:
        return "one trial on a side: no verdict on a time is possible; use more rounds (protocol=standard has 5)"
    middle, (worst, name) = known[len(known) // 2][0], known[-1]
    how = "pairs of rounds" if compared.in_turns else "trials"
    return (
        f"these {how} show a slower latency from {percent(middle)} on in the middle, at worst from "
        f"{percent(worst)} on ({one_line(name)}); after ÷ before with its 95 % interval"
    )


def escape(text: str) -> str:
    """Names come from users: they must not end the table's cell, nor begin HTML, code, emphasis, a link or an image."""
    return "".join(f"&#{ord(c)};" if c in _MARKDOWN else _HTML.get(c, c) for c in one_line(text))


def as_json(compared: Any, changes: Iterable[Change], **more: Any) -> str:
    """Both sides, what differs, the rows and the modes; docs/regressions.md names the keys. `more`: further ones."""

    def side(half: Any) -> dict[str, Any]:
        return {"sweep": half.title, "label": half.label, "state": half.state}

    modes = [
        {"phase": m.phase, "mode": m.mode, "metric": m.metric, "ratio": finite(m.ratio), "ci_low": finite(m.low),
         "ci_high": finite(m.high), "cells": m.cells, "of": m.of}
        for m in compared.modes
    ]  # fmt: skip
    whole = {
        "before": side(compared.before), "after": side(compared.after), "hardware": compared.hardware,
        "differences": compared.differences, "in_turns": compared.in_turns, "limits": compared.limits.source,
        "counts": {str(verdict): number for verdict, number in compared.counts.items()},
        "modes": modes, "notes": compared.notes, "changes": [record(change) for change in changes],
    }  # fmt: skip
    whole |= more
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def as_csv(changes: Iterable[Change]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(record(change) for change in changes)
    return out.getvalue()


def as_junit(compared: Any, changes: Iterable[Change], shows: Callable[[Change], str] | None = None) -> str:
    """A test suite for each cell, a test for each of its metrics: what fails a check fails here, what is ambiguous, or
    missing and ignored, is skipped with the reason, as CI services show them; so is hardware that was not checked.
    `shows`: the command that shows a row."""
    cells: dict[str, list[Change]] = {}
    for change in changes:
        cells.setdefault(change.name, []).append(change)
    every = [change for own in cells.values() for change in own]
    root = ElementTree.Element("testsuites", name="effbench", **totals(every, len(compared.unchecked)))
    for name, own in cells.items():
        suite = ElementTree.SubElement(root, "testsuite", name=clean(name), **totals(own))
        for change in own:
            test = ElementTree.SubElement(suite, "testcase", classname=clean(name), name=change.metric)
            said = clean(sentence(change))
            if change.gates:
                failure = ElementTree.SubElement(test, "failure", message=said, type=str(change.verdict))
                failure.text = clean("\n".join([heading(compared), *([shows(change)] if shows else [])]))
            elif change.verdict in (Verdict.AMBIGUOUS, Verdict.MISSING):
                ElementTree.SubElement(test, "skipped", message=said)
    for seat in compared.unchecked:
        suite = ElementTree.SubElement(root, "testsuite", name=clean(seat), **totals([], 1))
        test = ElementTree.SubElement(suite, "testcase", classname=clean(seat), name="hardware")
        ElementTree.SubElement(test, "skipped", message=f"{clean(seat)}: not checked")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def totals(changes: Sequence[Change], unchecked: int = 0) -> dict[str, str]:
    failures = sum(change.gates for change in changes)
    skipped = sum(change.verdict in (Verdict.AMBIGUOUS, Verdict.MISSING) and not change.gates for change in changes)
    tests, skipped = len(changes) + unchecked, skipped + unchecked
    return {"tests": str(tests), "failures": str(failures), "skipped": str(skipped), "errors": "0"}


def sentence(change: Change) -> str:
    """One line for a log: `latency_ms slower: 1.02 ms → 1.08 ms, 1.059 (1.051–1.067)`."""
    _, name, metric, before, after, ratio, _, reason = cells_of(change)
    parts = [f"{metric} {change.verdict}"]
    if change.before is not None and change.after is not None:
        parts.append(f"{before} → {after}, {ratio}".rstrip(", "))
    if reason:
        parts.append(reason)
    return f"{name}: " + ": ".join(parts)


def clean(text: str) -> str:
    """Without what XML 1.0 has no way to write."""
    return "".join(c for c in text if c in "\t\n\r" or 0x20 <= ord(c) <= 0xD7FF or (0xE000 <= ord(c) <= 0x10FFFF
                   and ord(c) not in (0xFFFE, 0xFFFF)))  # fmt: skip
