"""What a check found, as Markdown for a job's summary or a comment on a pull request, and as text for logs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from effbench.analysis.screen import STATUS, Change
from effbench.analysis.verdicts import Verdict
from effbench.printable import one_line
from effbench.report.comparison import (
    counts_text,
    escape,
    heading,
    limits_line,
    mode_lines,
    rows_table,
    sensitivity,
    sentence,
)

#: Rows of a job's summary, of those that fail and of the others: beyond this nobody reads on.
MOST_ROWS = 50


def plain(line: str, failed: Sequence[Change], shows: Callable[[Change], str]) -> list[str]:
    """For a terminal: the line that says it, and for each row that fails the command that shows it."""
    lines = [line]
    for command, changes in by_command(failed, shows).items():
        lines += [*(f"  {sentence(change)}" for change in changes), f"    {command}"]
    return lines


def markdown(
    compared: Any, rows: Sequence[Change], failed: Sequence[Change], line: str, shows: Callable[[Change], str],
    everything: bool = False,
) -> str:  # fmt: skip
    """A section: passed or not, what fails and how it is shown, then, folded, what else changed. `rows`: those to be
    told; `line`: as `verdict_line` says it; `everything`: also the rows that are the same."""
    telling = [change for change in rows if change.gates]
    others = [c for c in rows if not c.gates and (everything or c.verdict is not Verdict.SAME or c.metric == STATUS)]
    parts = [f"## {'❌' if failed else '✅'} effbench: {escape(line)}", escape(heading(compared))]
    parts += ["\n".join(f"- {escape(text)}" for text in compared.differences)] if compared.differences else []
    if telling:
        parts += [rows_table(telling[:MOST_ROWS]), *more(telling)]
    if failed:
        parts.append(folded("How to see each of them", commands_block(failed[:MOST_ROWS], shows)))
    if others:
        found = Counter(change.verdict for change in others)
        said = ", ".join(f"{number} {verdict}" for verdict, number in found.items())
        parts.append(
            folded(f"What fails nothing: {said}", "\n\n".join([rows_table(others[:MOST_ROWS]), *more(others)]))
        )
    lines = [*mode_lines(compared), *filter(None, [sensitivity(compared)])]
    parts += ["\n".join(f"- {escape(text)}" for text in lines)] if lines else []
    parts.append("; ".join([counts_text(compared), *map(escape, limits_line(compared))]))
    parts += ["\n".join(f"- note: {escape(text)}" for text in compared.notes)] if compared.notes else []
    return "\n\n".join(parts) + "\n"


def not_checked(why: str, name: str) -> str:
    """The section where there is nothing to judge."""
    return f"## ❌ effbench: not checked against {escape(name)}\n\n{escape(why)}\n"


def more(rows: Sequence[Change]) -> list[str]:
    return [f"{len(rows) - MOST_ROWS} further rows are left out here."] if len(rows) > MOST_ROWS else []


def commands_block(failed: Sequence[Change], shows: Callable[[Change], str]) -> str:
    lines = []
    for command, changes in by_command(failed, shows).items():
        lines += [*(f"# {one_line(f'{one.name}: {one.metric} {one.verdict}')}" for one in changes), command]
    text = "\n".join(lines)
    # longer than any run of backticks in it: nothing in it can end the block
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}sh\n{text}\n{fence}"


def folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n\n{body}\n\n</details>"


def by_command(failed: Sequence[Change], shows: Callable[[Change], str]) -> dict[str, list[Change]]:
    """Command -> the rows that it shows, in their order: a cell's metrics have one."""
    found: dict[str, list[Change]] = {}
    for change in failed:
        found.setdefault(shows(change), []).append(change)
    return found
