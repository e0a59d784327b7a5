"""`effbench doctor`: what this machine can measure, and what would disturb it; `--calibrate` measures both."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from typing import Any

from effbench.commands import options
from effbench.doctor import calibrate, calibrated, compile_options
from effbench.doctor.examine import PROBE_TIMEOUT_S, examine, within
from effbench.doctor.finding import Finding, counted
from effbench.doctor.noise import Interrupted
from effbench.errors import UsageError
from effbench.sweep.client import ForkServer
from effbench.terminal import Console, escape, terminal

HELP = (
    "What this machine can measure and what would disturb it; each finding with its effect and how to mend it. "
    "With --calibrate: measures what the machine can do and how its figures spread, and stores it."
)
MARKS = {"good": "[green]✓[/]", "note": "[blue]·[/]", "warning": "[yellow]![/]", "problem": "[red]✗[/]"}
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument("--format", default="text", choices=["text", "json"], help="(default: text)")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure the GPU's ceilings and the spread between processes (some minutes), and store them",
    )
    parser.add_argument(
        "--compile-options",
        action="store_true",
        help="list torch.compile's arguments, modes and options in the installed torch instead",
    )
    parser.add_argument("--quick", action="store_true", help="with --calibrate: a rough look of seconds")


def run(args: argparse.Namespace) -> int:
    if args.quick and not args.calibrate:
        raise UsageError("doctor: --quick goes with --calibrate; effbench doctor --help")
    if args.compile_options and args.calibrate:
        raise UsageError("doctor: --compile-options and --calibrate do different things: choose one")
    with closing(ForkServer()) as server:
        if args.compile_options:
            return tell_compile_options(args, server)
        seen = examine(server, args.db)
        if not args.calibrate:
            return tell(args, seen.findings, seen.calibration)
        # what is known from an earlier calibration is about to be replaced
        findings = [found for found in seen.findings if found.area != "calibration"]
        if seen.has_problem:
            code = tell(args, [found for found in findings if found.needs_attention], None)
            print("effbench: not calibrated: mend the problems (✗) first", file=sys.stderr)
            return code
        if args.format == "text":
            console = terminal()
            show(console, [found for found in findings if found.needs_attention])
            console.print(f"calibrating: {', then '.join(steps(seen.answer))}", highlight=False, soft_wrap=True)
        met = list(calibrate.measure_ceilings(server, args.db, seen.answer))
    try:
        noise, failures = calibrate.measure_noise(args.db, seen.answer, args.quick, quiet=args.format == "json")
    except Interrupted as error:
        print(f"effbench: interrupted: no noise was stored (trials so far: sweep {error})", file=sys.stderr)
        return INTERRUPTED
    calibration = calibrated.load(args.db, seen.environment_id)
    met += [*failures, *calibrated.findings(calibration, bool(seen.answer["gpus"]))]
    if args.format == "text":
        terminal().print(calibrated.table(noise))
    return tell(args, within("calibration", met), calibration)


def tell_compile_options(args: argparse.Namespace, server: ForkServer) -> int:
    answer = server.call("compile_options", {}, PROBE_TIMEOUT_S)
    print(json.dumps(answer, indent=2) if args.format == "json" else "\n".join(compile_options.lines(answer)))
    return 0


def steps(answer: dict[str, Any]) -> list[str]:
    """What a calibration does here, in words."""
    gpus = len(answer["gpus"])
    ceilings = [f"the ceilings of {counted(gpus, 'GPU')}"] if gpus else []
    return [*ceilings, "each cell against itself"]


def tell(args: argparse.Namespace, findings: Sequence[Finding], calibration: dict[str, Any] | None) -> int:
    """Print them as asked; the exit code: 1 with a problem among them."""
    if args.format == "json":
        found = {"findings": [asdict(finding) for finding in findings], "calibration": calibration}
        print(json.dumps(found, indent=2, default=datetime.isoformat))
    else:
        console = terminal()
        show(console, findings)
        console.print(summary(findings), highlight=False, soft_wrap=True)
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def show(console: Console, findings: Sequence[Finding]) -> None:
    area = None
    for finding in findings:
        if finding.area != area:
            area = finding.area
            console.print(f"[bold]{escape(area)}[/]")
        console.print(f"{MARKS[finding.level]} {escape(finding.what)}", highlight=False, soft_wrap=True)
        for word, text in (("effect", finding.effect), ("mend", finding.mend)):
            if text:
                console.print(f"    [dim]{word}:[/] {escape(text)}", highlight=False, soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """`1 problem, 2 warnings in 31 findings`."""
    levels = [finding.level for finding in findings]
    problems, warnings = (counted(levels.count(level), level) for level in ("problem", "warning"))
    return f"{problems}, {warnings} in {counted(len(levels), 'finding')}"
