"""Explanations of the difference between two cells as text and JSON: `print_reports`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any

import msgspec

from effbench.analysis.cell_pairs import CellPair
from effbench.analysis.explain import Explanation, NotTracedError, Term
from effbench.analysis.kernel_changes import KernelChange
from effbench.core.cell import COLDSTART
from effbench.core.labels import grouped
from effbench.core.printable import listed
from effbench.core.table import Column, Record, Shown, Table
from effbench.core.terminal import Console, escape
from effbench.render.bottlenecks import failure_of
from effbench.render.marks import Estimate, explain_marks, signed
from effbench.stats.intervals import Interval
from effbench.store.secrets import masked
from effbench.store.store import Store
from effbench.store.summary import PAIRS

#: Most rows of kernels, and most cells that a line names.
MOST_KERNELS, MOST_CELLS = 12, 3
#: Characters of a waterfall besides its bars and the names of the sides, and of its longest bar.
OTHER_COLUMNS = 66
SHORTEST_BAR, LONGEST_BAR = 8, 40


@dataclass(frozen=True)
class PairReport:
    """What explains the difference of two cells. `explanation`: None for the reason `why_not`."""

    pair: CellPair
    explanation: Explanation | None
    why_not: str = ""

    @property
    def is_marked(self) -> bool:
        return bool(self.pair.first.marked or self.pair.second.marked)

    def signed(self, text: str) -> str:
        return signed(text, self.is_marked)

    @property
    def sentence(self) -> str:
        text = self.why_not
        if self.explanation is not None:
            text = " ".join(filter(None, [self.explanation.sentence, self.paired_speedup]))
        return self.signed(f"{self.pair.cell}: {text}")

    @property
    def paired_speedup(self) -> str:
        """A sentence with the speedup from pairs, if the times are marked: a disturbance can hit
        one side's times alone, but hits both sides of a pair. Otherwise empty."""
        first, second = self.pair.first, self.pair.second
        is_same_point = first.sweep_id == second.sweep_id and first.labels == second.labels
        is_paired = first.is_baseline and is_same_point and second.speedup_from == PAIRS
        if not self.is_marked or not is_paired:
            return ""
        speedup = Estimate.of(second, "speedup")
        text = f"Timed in turn in one process, the speedup is {speedup.text}"
        if speedup.interval:
            text += f" ({speedup.interval})"
        return f"{text}."

    def record(self) -> dict[str, Any]:
        """Return everything as plain data; times in ms per call, differences are B - A."""
        pair = self.pair
        record: dict[str, Any] = {
            "cell": pair.cell,
            "a": pair.first_name,
            "b": pair.second_name,
            "sentence": self.sentence,
            "marked": self.is_marked,
        }
        explanation = self.explanation
        if explanation is not None:
            record |= {
                "cause": explanation.cause,
                "a_ms": explanation.first.latency_ms,
                "b_ms": explanation.second.latency_ms,
                "difference_ms": explanation.latency.ms,
                "terms": explanation.terms,
                "kernels": explanation.kernel_changes,
                "host": explanation.host_changes,
            }
        return dict(msgspec.to_builtins(record))

    def tables(self, width: int) -> Iterator[Table]:
        """Yield the waterfall, the kernels that differ most, and what the host did, for a console
        of this width."""
        explanation = self.explanation
        if explanation is None:
            return
        digits = explanation.digits
        changes = explanation.kernel_changes
        kernels = []
        for change in changes[:MOST_KERNELS]:
            if round(change.ms, digits):
                kernels.append(row_of(label_of(change), change, digits))
        noun = "operators" if explanation.second.device == "cpu" else "kernels"
        works = [row_of(work.name, work, digits) for work in explanation.host_changes]
        yield self.table("part of the latency", waterfall(explanation, digits, width))
        yield self.table(f"{noun} that differ ({len(kernels)} of {len(changes)} kinds)", kernels)
        yield self.table("what the host did meanwhile", works)

    def table(self, title: str, rows: Sequence[Record]) -> Table:
        columns = [
            Column("label", title),
            Column("first", f"{self.pair.first_name} ms", numeric=True),
            Column("second", f"{self.pair.second_name} ms", numeric=True),
            Column("difference", numeric=True),
            Column("interval", "95 %", numeric=True, optional=True),
            Column("bar", "", optional=True),
        ]
        return Table(columns, rows)


def report_of(store: Store, pair: CellPair) -> PairReport:
    """Return the explanation of a pair, or the reason why it has no explanation."""
    sides = []
    for row, name in ((pair.first, pair.first_name), (pair.second, pair.second_name)):
        if not row.status.is_measured:
            return PairReport(pair, None, f"{name} is {failure_of(row)}")
        sides.append(store.traces(row.sweep_id, row.cell_key, row.environment_id))
    try:
        explanation = Explanation.of(sides[0], sides[1], (pair.first_name, pair.second_name))
    except NotTracedError as error:
        if pair.second.phase == COLDSTART:
            return PairReport(pair, None, str(error))
        sweep = store.find_sweep(pair.second.sweep_id)
        command = shlex.join(["effbench", "-m", *masked(sweep.overrides)])
        return PairReport(pair, None, f"{error}; to measure again: {command}")
    return PairReport(pair, explanation)


def waterfall(explanation: Explanation, digits: int, width: int) -> Sequence[Record]:
    """Return rows from the latency of the first side to that of the second one, with bars that
    continue each other, for a console of this width."""
    latency = explanation.latency
    first, second = explanation.first.name, explanation.second.name
    terms = explanation.terms
    levels = list(accumulate((term.ms.value for term in terms), initial=latency.first_ms))
    room = width - OTHER_COLUMNS - len(first) - len(second)
    scale = min(max(room, SHORTEST_BAR), LONGEST_BAR) / (max(levels) or 1.0)
    steps = zip(
        [first, *(term.name for term in terms), second],
        [latency, *terms, latency],
        [0.0, *levels[:-1], 0.0],
        [*levels, latency.second_ms],
        strict=True,
    )
    rows = []
    for title, term, start_ms, end_ms in steps:
        row = row_of(title, term, digits)
        row["interval"] = half_width(term.ms, digits)
        row["bar"] = bar(start_ms, end_ms, scale)
        rows.append(row)
    rows[0] |= {"second": "", "difference": "", "interval": ""}
    return rows


def label_of(change: KernelChange) -> str:
    """Return `3 fused into matrix products: elementwise gelu`."""
    names = dict.fromkeys(filter(None, [change.first_name, change.second_name]))
    return f"{change.count} {change.what}: {' → '.join(names)}"


def row_of(label: str, times: Term | KernelChange, digits: int) -> dict[str, Any]:
    """Return a row with the times on both sides, and their difference."""
    ms = times.second_ms - times.first_ms
    tone = "bad" if ms > 0 else "good"
    return {
        "label": label,
        "first": f"{times.first_ms:z.{digits}f}",
        "second": f"{times.second_ms:z.{digits}f}",
        "difference": Shown(ms, f"{ms:+z.{digits}f}", tone),
    }


def half_width(ms: Interval, digits: int) -> str:
    if ms.low is None or ms.high is None:
        return ""
    return f"± {(ms.high - ms.low) / 2:.{digits}f}"


def bar(start_ms: float, end_ms: float, scale: float) -> str:
    """Return a bar between two times, lighter if it leads to the left. `scale`: characters per
    ms."""
    first, last = sorted(round(ms * scale) for ms in (start_ms, end_ms))
    sign = "█" if end_ms > start_ms else "▒"
    return "·" * first + (sign * (last - first) or "▏")


def report_lines(reports: Sequence[PairReport]) -> list[str]:
    """Return a line for each pair that has an explanation, then one for each reason why others have
    none."""
    lines = []
    unknown = []
    for report in reports:
        if report.explanation is None:
            unknown.append(report)
        else:
            lines.append(report.sentence)
    for reason, alike in grouped(unknown, attrgetter("why_not")).items():
        lines.append(f"{listed([report.pair.cell for report in alike], MOST_CELLS)}: {reason}")
    return lines


def print_reports(reports: Sequence[PairReport], console: Console) -> None:
    """Print a sentence for each pair, and the tables of the first one that has any."""
    explained = [report for report in reports if report.explanation is not None]
    lines = report_lines(reports)
    if explained and len(reports) > 1:
        cell = explained[0].pair.cell
        lines.append(f"Tables of {cell}; settings such as bs=8 choose another cell:")
    for line in lines:
        console.print_line(escape(line))
    for main in explained[:1]:
        for table in filter(attrgetter("rows"), main.tables(console.width)):
            console.print()
            table.print(console)
    rows = []
    for report in explained:
        if report.is_marked:
            rows += [report.pair.first, report.pair.second]
    if rows:
        console.print_line(escape(explain_marks(rows)))
