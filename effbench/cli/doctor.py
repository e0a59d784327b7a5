"""`effbench doctor`: check what this machine can measure and what would disturb it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import groupby

from effbench.cli import options
from effbench.core.table import as_json
from effbench.core.terminal import escape, terminal
from effbench.doctor.checks import examine, probe_machine
from effbench.doctor.finding import Finding
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
    options.add_db(parser)
    options.add_format(parser, "json", default="text")


def run(args: argparse.Namespace) -> int:
    with closing(ForkServer()) as server:
        findings = examine(probe_machine(server, args.db))
    if args.format == "json":
        print(as_json({"findings": [asdict(finding) for finding in findings]}), end="")
    else:
        show(findings)
    return int(any(finding.level == "problem" for finding in findings))


def show(findings: Sequence[Finding]) -> None:
    console = terminal()
    for area, members in groupby(findings, key=lambda finding: finding.area):
        console.print(f"[bold]{escape(area)}[/]")
        for finding in members:
            console.print_line(f"{MARKS[finding.level]} {escape(finding.what)}")
            for word, text in (("effect", finding.effect), ("fix", finding.fix)):
                if text:
                    console.print_line(f"    [dim]{word}:[/] {escape(text)}")
    levels = [finding.level for finding in findings]
    console.print_line(f"problems: {levels.count('problem')}, warnings: {levels.count('warning')}")
