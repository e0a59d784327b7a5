"""Comparisons and checks: a table of changes, and documents with what surrounds it, for people and
programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any
from xml.etree import ElementTree

from effbench.analysis.compare import Compared
from effbench.analysis.limits import STATUS
from effbench.analysis.matching import Side
from effbench.analysis.verdicts import (
    COLUMNS,
    DISTURBED,
    NOT_JUDGED,
    Change,
    Verdict,
    record,
    tally,
)
from effbench.core.labels import grouped
from effbench.core.metrics import METRICS
from effbench.core.printable import count, listed, one_line, printable
from effbench.core.quantities import percent, ratio_text
from effbench.core.table import Column, Record, Shown, Table, as_json
from effbench.core.terminal import Console, escape
from effbench.render.marks import signed

FORMATS = ("markdown", "json", "csv", "junit")
#: Most cells that a line names.
MOST_NAMES = 5
#: Most changed rows, and most other rows, in the Markdown of a check: a comment has a limit.
MOST_ROWS = 50
#: Rows of cells that only one side has, to show; more are only counted.
MOST_UNMATCHED = 10
#: Verdict -> (sign, tone of the table): verdicts must be readable without colour.
SIGNS = {
    Verdict.BROKEN: ("✗", "bad"),
    Verdict.SLOWER: ("▲", "bad"),
    Verdict.MISSING: ("?", "status"),
    Verdict.AMBIGUOUS: ("~", "unsure"),
    Verdict.FIXED: ("✓", "good"),
    Verdict.FASTER: ("▼", "good"),
    Verdict.NEW: ("+", ""),
    Verdict.SAME: ("=", ""),
}
#: Verdict -> its name for metrics that are not times.
MORE = {Verdict.SLOWER: "more", Verdict.FASTER: "less"}


# --- the table ---


def table_of(changes: Sequence[Change], cell_page: str = "") -> Table:
    """Return changes as a table; CSV and JSON have the columns COLUMNS. `cell_page`: page that
    cells link to."""
    columns = [
        Column("verdict"),
        Column("cell", wide=not cell_page),
        Column("metric"),
        Column("before", numeric=True, optional=True),
        Column("after", numeric=True, optional=True),
        Column("ratio", "after ÷ before (95 %)", numeric=True, optional=True),
        Column("detectable", numeric=True, optional=True),
        Column("why", optional=True, wide=True),
    ]
    rows = [row_of(change, cell_page) for change in changes]
    return Table(columns, rows, [record(change) for change in changes])


def changed_table(changes: Sequence[Change]) -> Table:
    """Return changes with their causes as a table for Markdown."""
    table = table_of(changes)
    *columns, _, why = table.columns
    return replace(table, columns=[*columns, Column("cause", optional=True), why])


def row_of(change: Change, cell_page: str) -> Record:
    """Return a row of the table."""
    sign, tone = SIGNS[change.verdict]
    verdict = f"{sign} {word_of(change)}"
    if change.ignored:
        verdict += " (ignored)"
    cell = Shown(change.name, one_line(change.name))
    if cell_page:
        tone += " nowrap"
        if change.verdict is not Verdict.MISSING:
            cell = cell._replace(tone="name linked", href=f"{cell_page}#cell={change.key}")
    return {
        "verdict": Shown(change.verdict, verdict, tone),
        "cell": cell,
        "metric": change.metric,
        "before": before_text(change),
        "after": after_text(change),
        "ratio": ratio(change),
        "detectable": detectable(change.smallest_slowdown),
        "why": one_line(change.reason or ""),
        "cause": one_line(change.cause or ""),
    }


def detectable(slowdown: float | None) -> str:
    """Return the smallest slowdown that a test detects."""
    if slowdown is None:
        return ""
    if slowdown < 10:
        return f"≥ {percent(slowdown)}"
    return percent(slowdown)


def word_of(change: Change) -> str:
    """Return the verdict: `slower`, `more` if the metric is not a time, or `not judged` if a figure
    is marked."""
    if change.verdict in MORE and METRICS[change.metric].unit not in ("ms", "s"):
        return MORE[change.verdict]
    return change.word


def before_text(change: Change) -> str:
    return figure_text(change, change.before, change.marked_before)


def after_text(change: Change) -> str:
    return figure_text(change, change.after, change.marked_after)


def figure_text(change: Change, value: float | None, is_marked: bool) -> str:
    """Return the figure of one side, with `~` if it is marked; nothing in a row about a status."""
    if change.metric == STATUS:
        return ""
    return signed(METRICS[change.metric].format(value), is_marked and value is not None)


def ratio(change: Change) -> str:
    return ratio_text(change.ratio, change.low, change.high)


# --- lines ---


def sentence(change: Change) -> str:
    """Return one line for a log: `latency_ms slower: 1.02 ms → 1.08 ms, 1.059 (1.051–1.067)`."""
    parts = [f"{one_line(change.name)}: {change.metric} {word_of(change)}"]
    if change.has_both:
        figures = f"{before_text(change)} → {after_text(change)}, {ratio(change)}"
        parts.append(figures.rstrip(", "))
    for text in (change.reason, change.cause):
        if text:
            parts.append(one_line(text))
    return ": ".join(parts)


def cause_lines(changes: Sequence[Change]) -> list[str]:
    """Return a line for each cell whose cause is known."""
    return [one_line(f"{change.name}: {change.cause}") for change in changes if change.cause]


def counts_text(compared: Compared) -> str:
    """Return the number of rows by verdict: `2 slower, 1 broken, 40 same`."""
    return tally(compared.changes) or "nothing to compare"


def heading(compared: Compared) -> str:
    """Return both sides with their labels, and the hardware."""
    sides = compared.before, compared.after
    texts = [f"{side.title} {side.label or ''}".strip() for side in sides]
    return one_line(f"{' → '.join(texts)} · {compared.after.hardware}")


def summary_lines(compared: Compared) -> list[str]:
    """Return one line per mode, and the source of the limits."""
    lines = []
    for line in compared.modes:
        change = ratio_text(line.ratio, line.low, line.high)
        cells = f"{line.cells} of {count(line.of, 'cell')}"
        title = METRICS[line.metric].title
        lines.append(f"{line.phase} {line.mode}: {title} after ÷ before {change} over {cells}")
    if compared.limits.source:
        lines.append(f"limits: {compared.limits.source}")
    return lines


# --- documents ---


@dataclass(frozen=True)
class Document:
    """A comparison in one of several formats. `everything`: no row may be omitted. `unchecked`:
    hardware and interpreters of the later sweep that a check did not compare."""

    compared: Compared
    everything: bool = False
    unchecked: Sequence[str] = ()

    #: Of its Markdown.
    template = "compare.md.j2"
    #: Whether rows that make a check fail may not be omitted.
    is_gate = False

    @cached_property
    def numbers(self) -> Counter[Verdict]:
        """Verdict -> number of rows."""
        return self.compared.counts

    def is_visible(self, change: Change) -> bool:
        """Return whether people see a row: not `same` ones that do not fail on both sides, nor
        `new` or `missing` ones if there are many, because the sweeps have different matrices."""
        if self.everything or (self.is_gate and change.gates):
            return True
        if change.verdict in (Verdict.NEW, Verdict.MISSING):
            return self.numbers[change.verdict] <= MOST_UNMATCHED
        return change.verdict is not Verdict.SAME or change.metric == STATUS

    @property
    def visible(self) -> list[Change]:
        """The rows that people see."""
        return list(filter(self.is_visible, self.compared.changes))

    @property
    def omitted(self) -> str:
        """The numbers of the rows that people do not see."""
        return tally(change for change in self.compared.changes if not self.is_visible(change))

    def render(self, fmt: str) -> str:
        """Return the document in one of FORMATS."""
        if fmt == "json":
            return as_json(self.fields())
        if fmt == "csv":
            rows = [record(change) for change in self.compared.changes]
            return Table([Column(name) for name in COLUMNS], rows).render("csv")
        if fmt == "junit":
            return self.junit()
        return self.markdown()

    def markdown(self) -> str:
        """Return a section for a pull request or a job's summary: the verdict, what changed, and
        folded, everything else."""
        from effbench.render.templating import markdown  # slow to import

        most = len(self.compared.changes)
        if self.is_gate:
            most = MOST_ROWS
        return markdown(
            self.template,
            document=self,
            compared=self.compared,
            heading=heading(self.compared),
            counts=counts_text(self.compared),
            lines=summary_lines(self.compared),
            tally=tally,
            changed_table=changed_table,
            table_of=table_of,
            most=most,
        )

    def junit(self) -> str:
        """Return JUnit XML with one suite per cell and one test per metric. Rows that fail the
        check are failures. Ambiguous rows, cells without figures on both sides and unchecked
        hardware are skipped tests with a reason."""
        compared = self.compared
        measured = compared.measured
        root = ElementTree.Element("testsuites", name="effbench")
        for name, changes in grouped(compared.changes, attrgetter("name")).items():
            suite = ElementTree.SubElement(root, "testsuite", name=printable(name))
            for change in changes:
                test = ElementTree.SubElement(suite, "testcase", name=change.metric)
                is_open = change.verdict in (Verdict.AMBIGUOUS, Verdict.MISSING)
                message = sentence(change)
                if change.gates:
                    ElementTree.SubElement(test, "failure", type=change.word, message=message)
                elif is_open or change.key not in measured:
                    ElementTree.SubElement(test, "skipped", message=message)
        for machine in self.unchecked:
            suite = ElementTree.SubElement(root, "testsuite", name=printable(machine))
            test = ElementTree.SubElement(suite, "testcase", name="hardware")
            ElementTree.SubElement(test, "skipped", message=f"{printable(machine)}: not checked")
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"

    def print(self, console: Console) -> None:
        """Print title, differences, rows, and a line for each mode."""
        compared = self.compared
        console.print_line(escape(heading(compared)), "bold")
        for text in compared.differences:
            console.print_line(f"  {escape(text)}", "yellow")
        if self.visible:
            table_of(self.visible).print(console)
        for text in cause_lines(self.visible):
            console.print_line(escape(text))
        total = counts_text(compared)
        if self.omitted:
            total += f" (the table omits {self.omitted}; --all shows all rows)"
        for text in (total, *summary_lines(compared)):
            console.print_line(escape(text))
        for note in compared.notes:
            console.print_line(f"note: {escape(note)}", "yellow")

    def fields(self) -> dict[str, Any]:
        """Return sides, differences, modes and rows; docs/reference/api.md lists the fields."""
        compared = self.compared
        modes = [dict(vars(line)) for line in compared.modes]
        for mode in modes:
            mode |= {"ci_low": mode.pop("low"), "ci_high": mode.pop("high")}
        return {
            "before": side_fields(compared.before),
            "after": side_fields(compared.after),
            "hardware": compared.after.hardware,
            "differences": compared.differences,
            "in_turns": compared.interleaved,
            "limits": compared.limits.source,
            "counts": self.numbers,
            "modes": modes,
            "notes": compared.notes,
            "changes": [record(change) for change in compared.changes],
        }


def side_fields(side: Side) -> dict[str, Any]:
    return {"sweep": side.title, "label": side.label, "state": side.sweep.state}


@dataclass(frozen=True)
class CheckDocument(Document):
    """A check in one of several formats. `baseline`: its name; `line`: the verdict; `again`: the
    command that measures marked cells again, None if it could not; `hindrance`: why it cannot, if
    no note says so."""

    baseline: str = ""
    line: str = ""
    again: str | None = None
    hindrance: str | None = None

    template = "check.md.j2"
    is_gate = True

    @property
    def unjudged(self) -> list[str]:
        """A line about the cells that have no verdict because they are marked, if there are
        any."""
        rows = self.compared.unjudged.values()
        if not rows:
            return []
        names = listed([one_line(change.name) for change in rows], MOST_NAMES)
        cells = f"{len(rows)} of {count(len(self.compared.cells), 'cell')}"
        which = "the sweep"
        if any(change.marked_before for change in rows):
            which = "both sweeps"
        advice = f"run {which} again when the machine is quiet"
        if self.again:
            advice = f"measure them again: {self.again}"
        elif self.hindrance:
            advice += f" (--confirm cannot measure them: {one_line(self.hindrance)})"
        return [f"{NOT_JUDGED}: {DISTURBED} in {cells}: {names}; {advice}"]

    def print(self, console: Console) -> None:
        super().print(console)
        for text in (*self.unjudged, self.line):
            console.print_line(escape(text))

    def fields(self) -> dict[str, Any]:
        compared = self.compared
        unjudged = []
        for row in compared.unjudged.values():
            unjudged.append({"cell_key": row.key, "cell": row.name, "reason": row.disturbance})
        return super().fields() | {
            "baseline": self.baseline,
            "passed": compared.passed,
            "failing": [{"cell_key": row.key, "metric": row.metric} for row in compared.failing],
            "unchecked": self.unchecked,
            "unjudged": unjudged,
            "measure_again": self.again if unjudged else None,
        }
