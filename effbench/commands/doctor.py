"""`effbench doctor`: check what this machine can measure and what would disturb it; `--calibrate`
measures both."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime
from itertools import groupby

from effbench.commands import options
from effbench.doctor import calibration
from effbench.doctor.checks import PROBE_TIMEOUT_S, examine
from effbench.doctor.finding import Finding, Machine
from effbench.errors import UsageError
from effbench.sweeping.client import ForkServer
from effbench.terminal import escape, terminal

HELP = (
    "Check what this machine can measure and what would disturb it; list each finding with its"
    " effect and fix. With --calibrate, also measure the GPU's ceilings and the noise between"
    " processes, and store them."
)
MARKS = {
    "good": "[green]✓[/]",
    "note": "[blue]·[/]",
    "warning": "[yellow]![/]",
    "problem": "[red]✗[/]",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument(
        "--format", default="text", choices=["text", "json"], help="(default: text)"
    )
    both = "measure and store the GPU's ceilings and the noise between processes; takes minutes"
    parser.add_argument("--calibrate", action="store_true", help=both)
    parser.add_argument(
        "--quick", action="store_true", help="with --calibrate: a rough calibration in seconds"
    )


def run(args: argparse.Namespace) -> int:
    if args.quick and not args.calibrate:
        raise UsageError("doctor: --quick needs --calibrate; add it or omit --quick")
    is_json = args.format == "json"
    with closing(ForkServer()) as server:
        findings, machine = examine(server, Machine(args.db))
        if not args.calibrate:
            return show(findings, machine, is_json)
        # those about an earlier calibration are obsolete
        findings = [finding for finding in findings if finding.area != "calibration"]
        findings = [finding for finding in findings if finding.needs_attention]
        if any(finding.level == "problem" for finding in findings):
            code = show(findings, machine, is_json)
            print("effbench: not calibrated: fix the problems (✗) first", file=sys.stderr)
            return code
        answer = machine.probed
        measured = [*calibration.measure_ceilings(server, args.db, answer)]
        host = server.call("check", calibration.HOST.to_json(), PROBE_TIMEOUT_S)["facts"]
    measured += calibration.measure_noise(args.db, answer, args.quick, is_json, host)
    measured += calibration.stored(machine)
    findings += [replace(finding, area="calibration") for finding in measured]
    return show(findings, machine, is_json)


def show(findings: Sequence[Finding], machine: Machine, is_json: bool) -> int:
    """Print the findings; return the exit code: 1 if one is a problem, else 0."""
    levels = [finding.level for finding in findings]
    code = 1 if "problem" in levels else 0
    if is_json:
        known = calibration.load(machine) if machine.answer else {}
        answer = {"findings": [*map(asdict, findings)], "calibration": known or None}
        print(json.dumps(answer, indent=2, default=datetime.isoformat))
        return code
    console = terminal()
    for area, members in groupby(findings, key=lambda finding: finding.area):
        console.print(f"[bold]{escape(area)}[/]")
        for finding in members:
            console.print_line(f"{MARKS[finding.level]} {escape(finding.what)}")
            for word, text in (("effect", finding.effect), ("fix", finding.fix)):
                if text:
                    console.print_line(f"    [dim]{word}:[/] {escape(text)}")
    console.print_line(f"problems: {levels.count('problem')}, warnings: {levels.count('warning')}")
    return code
