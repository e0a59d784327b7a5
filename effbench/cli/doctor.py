"""`effbench doctor`: check what this machine can measure and what would disturb it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing

from effbench.core.terminal import escape, terminal
from effbench.doctor.checks import Finding, examine
from effbench.run.client import ForkServer

HELP = (
    "Check what this machine can measure and what would disturb it; list each finding with its"
    " effect and fix."
)
MARKS = {
    "good": "[green]✓[/]",
    "note": "[blue]·[/]",
    "warning": "[yellow]![/]",
    "problem": "[red]✗[/]",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: it takes only a database."""


def run(args: argparse.Namespace) -> int:
    with closing(ForkServer()) as server:
        findings = examine(server, args.db)
    problems = show(findings)
    return int(problems > 0)


def show(findings: Mapping[str, Sequence[Finding]]) -> int:
    """Print the findings of each area; return the number of problems."""
    console = terminal()
    levels = []
    for area, members in findings.items():
        if members:
            console.print(f"[bold]{escape(area)}[/]")
        for finding in members:
            levels.append(finding.level)
            console.print_line(f"{MARKS[finding.level]} {escape(finding.what)}")
            for word, text in (("effect", finding.effect), ("fix", finding.fix)):
                if text:
                    console.print_line(f"    [dim]{word}:[/] {escape(text)}")
    problems = levels.count("problem")
    console.print_line(f"problems: {problems}, warnings: {levels.count('warning')}")
    return problems
