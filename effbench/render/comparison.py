"""Comparisons and checks as text: tables, Markdown, JSON, CSV and JUnit XML."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from effbench.analysis.compare import Compared
from effbench.analysis.limits import STATUS
from effbench.analysis.matching import DISTURBED
from effbench.analysis.verdicts import (
    COLUMNS,
    NOT_JUDGED,
    Change,
    Verdict,
    counted,
    counts,
    record,
)
from effbench.core.metrics import METRICS, percent, ratio_text
from effbench.core.printable import count, listed, one_line
from effbench.core.table import Column, Shown, Table, markdown_text
from effbench.core.table import as_json as json_text
from effbench.core.terminal import Console, escape

#: How to narrow intervals.
MORE_ROUNDS = "add rounds with effbench -m resume=SWEEP protocol.rounds=10"

FORMATS = ("markdown", "json", "csv", "junit")
#: Most failing rows, and most other rows, in a job summary.
MOST_ROWS = 50
#: Most cells that a line names.
MOST_NAMES = 5
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
#: Attribute of a suite -> the elements that it counts.
TOTALS = {"tests": "testcase", "failures": "failure", "skipped": "skipped", "errors": "error"}
#: Verdict -> its name for metrics that are not times.
MORE = {Verdict.SLOWER: "more", Verdict.FASTER: "less"}
Shows = Callable[[Change], str]


def word_of(change: Change) -> str:
    """Return the verdict: `slower`, `more` if the metric is not a time, or `not judged` if a figure
    is marked."""
    is_time = change.metric == STATUS or METRICS[change.metric].unit in ("ms", "s")
    if is_time or change.is_unjudged:
        return change.word
    return MORE.get(change.verdict, change.word)


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
    return Table(
        columns,
        [_row(change, cell_page) for change in changes],
        [record(change) for change in changes],
    )


def _row(change: Change, cell_page: str = "") -> dict[str, Any]:
    name = one_line(change.name)
    sign, tone = SIGNS[change.verdict]
    verdict = f"{sign} {word_of(change)}"
    if change.ignored:
        verdict += " (ignored)"
    cell: Shown | str = name
    if cell_page:
        tone += " nowrap"
        if change.verdict is not Verdict.MISSING:
            cell = Shown(name, name, "name linked", link=f"{cell_page}#cell={change.key}")
    detectable = ""
    if change.smallest_slowdown is not None:
        detectable = percent(change.smallest_slowdown)
        if change.smallest_slowdown < 10:
            detectable = f"≥ {detectable}"
    return {
        "verdict": Shown(change.verdict, verdict, tone),
        "cell": cell,
        "metric": change.metric,
        "before": figure_text(change, change.before, change.marked_before),
        "after": figure_text(change, change.after, change.marked_after),
        "ratio": ratio_text(change.ratio, change.low, change.high),
        "detectable": detectable,
        "why": one_line(change.reason or ""),
    }


def figure_text(change: Change, value: float | None, is_marked: bool) -> str:
    """Return the figure of one side, with `~` if it is marked; nothing in a row about a status."""
    if change.metric == STATUS:
        return ""
    text = METRICS[change.metric].format(value)
    if is_marked and value is not None:
        return f"~{text}"
    return text


def counts_text(compared: Compared) -> str:
    """Return the number of rows by verdict: `2 slower, 1 broken, 40 same`."""
    return counted(compared.changes) or "nothing to compare"


def heading(compared: Compared) -> str:
    """Return both sides with their labels, and the hardware."""
    sides = (
        f"{side.title} {side.label or ''}".strip() for side in (compared.before, compared.after)
    )
    return one_line(f"{' → '.join(sides)} · {compared.hardware}")


def summary_lines(compared: Compared) -> list[str]:
    """Return one line per mode, the detectable slowdowns, and the source of the limits."""
    lines = []
    for line in compared.modes:
        ratio = ratio_text(line.ratio, line.low, line.high)
        cells = f"{line.cells} of {count(line.of, 'cell')}"
        title = METRICS[line.metric].title
        lines.append(f"{line.phase} {line.mode}: {title} after ÷ before {ratio} over {cells}")
    detectable = sensitivity(compared)
    if detectable:
        lines.append(detectable)
    if compared.limits.source:
        lines.append(f"limits: {compared.limits.source}")
    return lines


def sensitivity(compared: Compared) -> str | None:
    """Return the latency slowdowns that these trials can detect; None if no latency was
    compared."""
    slowdowns = {}
    for change in compared.of("latency_ms"):
        if change.smallest_slowdown is not None:
            slowdowns[change.name] = change.smallest_slowdown
    if not slowdowns:
        return None
    worst = max(slowdowns, key=lambda name: slowdowns[name])
    return (
        "these trials detect a latency slowdown of"
        f" {percent(statistics.median(slowdowns.values()))} in the median cell,"
        f" {percent(slowdowns[worst])} in the worst ({one_line(worst)}); {MORE_ROUNDS}"
    )


def paragraphs(*parts: str) -> str:
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_text(text)}" for text in lines)


# --- documents ---


def visible(
    rows: Sequence[Change], everything: bool, is_gate: bool = False
) -> tuple[list[Change], str]:
    """Return the rows that people see, and the numbers of the others: `same` ones that do not fail
    on both sides, and `new` or `missing` ones if there are many, because the sweeps have different
    matrices. `everything` omits none; nor does a gate omit rows that make it fail."""
    numbers = Counter(change.verdict for change in rows)
    shown, omitted = [], []
    for change in rows:
        is_one_sided = change.verdict in (Verdict.NEW, Verdict.MISSING)
        is_one_of_many = is_one_sided and numbers[change.verdict] > MOST_UNMATCHED
        if everything or (is_gate and change.gates):
            shown.append(change)
        elif is_one_of_many or (change.verdict is Verdict.SAME and change.metric != STATUS):
            omitted.append(change)
        else:
            shown.append(change)
    return shown, counted(omitted)


@dataclass(frozen=True)
class Document:
    """A comparison in one of several formats. `rows`: those to report; `everything`: none of them
    may be omitted."""

    compared: Compared
    rows: Sequence[Change]
    everything: bool = False

    def render(self, fmt: str) -> str:
        """Return the document in one of FORMATS."""
        if fmt == "markdown":
            return self.markdown()
        if fmt == "json":
            return json_text(self.fields())
        if fmt == "junit":
            return self.junit()
        return Table([*map(Column, COLUMNS)], [*map(record, self.rows)]).render("csv")

    def print(self, console: Console, is_gate: bool = False) -> None:
        """Print title, differences, rows, a line for each mode, and the smallest change these
        sweeps can detect."""
        compared = self.compared
        console.print_line(escape(heading(compared)), "bold")
        for text in compared.differences:
            console.print_line(f"  {escape(text)}", "yellow")
        shown, omitted = visible(self.rows, self.everything, is_gate)
        if shown:
            console.print_table(table_of(shown))
        total = counts_text(compared)
        if omitted:
            total += f" (the table omits {omitted}; --all shows all rows)"
        for text in (total, *summary_lines(compared)):
            console.print_line(escape(text))
        for note in compared.notes:
            console.print_line(f"note: {escape(note)}", "yellow")

    def markdown(self) -> str:
        """Return a section for a pull request."""
        compared = self.compared
        shown, omitted = visible(self.rows, self.everything)
        return paragraphs(
            f"**{markdown_text(heading(compared))}**",
            bullets(compared.differences),
            counts_text(compared),
            table_of(shown).render("markdown") if shown else "",
            f"Omitted: {omitted}." if omitted else "",
            bullets([*summary_lines(compared), *compared.notes]),
        )

    def fields(self) -> dict[str, Any]:
        """Return sides, differences, modes and rows; docs/reference/api.md lists the fields."""
        compared = self.compared
        before, after = (
            {"sweep": side.title, "label": side.label, "state": side.state}
            for side in (compared.before, compared.after)
        )
        modes = []
        for line in compared.modes:
            fields = dict(vars(line))
            modes.append(fields | {"ci_low": fields.pop("low"), "ci_high": fields.pop("high")})
        return {
            "before": before,
            "after": after,
            "hardware": compared.hardware,
            "differences": compared.differences,
            "in_turns": compared.interleaved,
            "limits": compared.limits.source,
            "counts": counts(compared.changes),
            "modes": modes,
            "notes": compared.notes,
            "changes": [record(change) for change in self.rows],
        }

    def junit(self) -> str:
        return as_junit(self.compared, self.rows)


@dataclass(frozen=True)
class CheckDocument(Document):
    """A check in one of several formats. `baseline`: its name; `line`: the verdict; `shows`:
    returns the command that shows a row; `again`: the command that measures marked cells again,
    None if it could not."""

    baseline: str = ""
    line: str = ""
    shows: Shows = repr
    again: str | None = None

    @property
    def unjudged(self) -> list[str]:
        """A line about the cells that have no verdict because they are marked, if there are
        any."""
        rows = self.compared.unjudged.values()
        if not rows:
            return []
        names = listed([one_line(change.name) for change in rows], MOST_NAMES)
        cells = f"{len(rows)} of {count(len(self.compared.cells), 'cell')}"
        advice = "run the sweep again when the machine is quiet"
        if self.again:
            advice = f"measure them again: {self.again}"
        return [f"{NOT_JUDGED}: {DISTURBED} in {cells}: {names}; {advice}"]

    def commands(self, failing: Sequence[Change]) -> list[str]:
        """Return two lines per cell: a comment with its name, and the command that shows it."""
        names = {self.shows(change): f"# {one_line(change.name)}" for change in failing}
        return [text for command, name in names.items() for text in (name, command)]

    def print(self, console: Console, is_gate: bool = True) -> None:
        super().print(console, is_gate)
        commands = [f"  {text}" for text in self.commands(self.compared.failing)]
        for text in (*self.unjudged, self.line, *commands):
            console.print_line(escape(text))

    def markdown(self) -> str:
        """Return a section for a pull request or a job summary: verdict, failing rows and the
        commands that show them; other changes are folded."""
        compared = self.compared
        failing = [change for change in self.rows if change.gates]
        shown, omitted = visible(self.rows, self.everything, is_gate=True)
        others = [change for change in shown if not change.gates]
        sign = "✅" if compared.passed else "❌"
        sections = [
            f"## {sign} effbench: {markdown_text(self.line)}",
            markdown_text(heading(compared)),
            bullets(self.unjudged),
            bullets(compared.differences),
            first_rows(failing),
        ]
        if failing:
            # a name cannot end the block
            text = "\n".join(self.commands(failing[:MOST_ROWS])).replace("```", "'''")
            sections.append(folded("How to see each failing cell", f"```sh\n{text}\n```"))
        sections.append(bullets(summary_lines(compared)))
        if others:
            sections.append(folded(f"Not failing: {counted(others)}", first_rows(others)))
        if omitted:
            sections.append(f"Omitted: {omitted}.")
        sections.append(counts_text(compared))
        sections.append(bullets(f"note: {text}" for text in compared.notes))
        return paragraphs(*sections)

    def fields(self) -> dict[str, Any]:
        compared = self.compared
        again = None
        if compared.unjudged:
            again = self.again
        return super().fields() | {
            "baseline": self.baseline,
            "passed": compared.passed,
            "failing": [
                {"cell_key": row.key, "metric": row.metric, "command": self.shows(row)}
                for row in compared.failing
            ],
            "unchecked": compared.unchecked,
            "unjudged": [
                {"cell_key": row.key, "cell": row.name, "reason": row.disturbance}
                for row in compared.unjudged.values()
            ],
            "measure_again": again,
        }

    def junit(self) -> str:
        return as_junit(self.compared, self.rows, self.shows)


def not_checked(why: str, name: str) -> str:
    """Return the section for a check that could not run."""
    return paragraphs(
        f"## ❌ effbench: not checked against {markdown_text(name)}", markdown_text(why)
    )


def first_rows(rows: Sequence[Change]) -> str:
    if not rows:
        return ""
    omitted = len(rows) - MOST_ROWS
    more = f"{omitted} further rows are omitted here." if omitted > 0 else ""
    return paragraphs(table_of(rows[:MOST_ROWS]).render("markdown"), more).rstrip()


def folded(title: str, body: str) -> str:
    return f"<details><summary>{markdown_text(title)}</summary>\n\n{body}\n\n</details>"


def sentence(change: Change) -> str:
    """Return one line for a log: `latency_ms slower: 1.02 ms → 1.08 ms, 1.059 (1.051–1.067)`."""
    row = _row(change)
    parts = [f"{row['cell']}: {change.metric} {word_of(change)}"]
    if change.has_both:
        parts.append(f"{row['before']} → {row['after']}, {row['ratio']}".rstrip(", "))
    if row["why"]:
        parts.append(row["why"])
    return ": ".join(parts)


# --- JUnit ---


def as_junit(compared: Compared, changes: Iterable[Change], shows: Shows | None = None) -> str:
    """Return JUnit XML with one suite per cell and one test per metric. Rows that fail the check
    are failures. Ambiguous rows, cells without figures on both sides and unchecked hardware are
    skipped tests with a reason. `shows`: returns the command that shows a row."""
    root = ElementTree.Element("testsuites", name="effbench")
    suites: dict[str, ElementTree.Element] = {}
    measured = compared.judged | compared.unjudged.keys()

    def add_test(suite: str, name: str) -> ElementTree.Element:
        if suite not in suites:
            suites[suite] = ElementTree.SubElement(root, "testsuite", name=clean(suite))
        return ElementTree.SubElement(suites[suite], "testcase", classname=clean(suite), name=name)

    for change in changes:
        test, message = add_test(change.name, change.metric), clean(sentence(change))
        if change.gates:
            failure = ElementTree.SubElement(test, "failure", message=message, type=change.word)
            text = heading(compared)
            if shows:
                text += f"\n{shows(change)}"
            failure.text = clean(text)
        elif change.verdict in (Verdict.AMBIGUOUS, Verdict.MISSING) or change.key not in measured:
            ElementTree.SubElement(test, "skipped", message=message)
    for machine in compared.unchecked:
        message = clean(f"{machine}: not checked")
        ElementTree.SubElement(add_test(machine, "hardware"), "skipped", message=message)
    for element in (root, *root):
        for total, tag in TOTALS.items():
            element.set(total, str(len(list(element.iter(tag)))))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def clean(text: str) -> str:
    """Return the text without characters that XML 1.0 forbids."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
