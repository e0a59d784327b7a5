"""`effbench advise`: which batch sizes to capture for a trace of batches, and which mode to run."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from effbench import streams
from effbench.analysis.advice import PER_GRAPH_BYTES, ListAdvice, Memory, best_lists, evaluate, listed
from effbench.analysis.cost_curve import CALL, Points, points, rows_of_case
from effbench.analysis.mode_advice import Choice, ModeAdvice, advise_mode
from effbench.analysis.summary import break_even_calls
from effbench.buckets import EXACT, LISTS, capture_sizes
from effbench.commands import options
from effbench.errors import NothingFoundError, UsageError
from effbench.metrics import format_bytes
from effbench.printable import one_line
from effbench.report.tables import NO_INTERVAL
from effbench.store.store import Store
from effbench.terminal import PLAIN_WIDTH, Console, escape, terminal

HELP = "Advice out of measured results: which batch sizes to capture (buckets), which mode to run (mode)."
FORMATS = ("table", "json", "markdown")
GUESS = "a guess"  # in the place of a ratio
SLACK = 0.01  # so much above the least latency, a lighter list is shown as well
UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}


@dataclass(frozen=True)
class Sheet:
    """Texts under headings, lines below them, and the same as data."""

    headings: list[str]
    rows: list[list[str]]
    lines: list[str]
    data: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="what", required=True, metavar="WHAT", help="buckets or mode")
    buckets = parts.add_parser("buckets", description="The capture list that makes a trace of batch sizes fastest.")
    mode = parts.add_parser("mode", description="The mode to run a model in at one batch size.")
    for part in (buckets, mode):
        part.error = lambda message: parser.error(message)  # type: ignore[method-assign] - in effbench's own words
        options.add_db(part)
        options.add_sweep(part)
        part.add_argument("--model", metavar="NAME", help="whose results (default: the only model of the sweep)")
        part.add_argument("--metric", default="latency", choices=[*CALL], help="what a call costs (default: latency)")
        part.add_argument("--format", default="table", choices=FORMATS, help="(default: table)")
        options.add_out(part)
    source = buckets.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", metavar="FILE", help="batch sizes, one a line, or a CSV with a column bs")
    source.add_argument("--stream", nargs="+", metavar=("KIND", "KEY=VALUE"), help="a generated trace: uniform high=32")
    buckets.add_argument("--mode", default="cuda-graph", help="whose figures a graph has (default: %(default)s)")
    buckets.add_argument(
        "--memory-budget", type=byte_size, metavar="SIZE", help="of all graphs, as 2GiB (default: none)"
    )
    buckets.add_argument("--pool", default="shared", choices=["shared", "private"], help="(default: %(default)s)")
    buckets.add_argument(
        "--per-graph", type=byte_size, default=PER_GRAPH_BYTES, metavar="SIZE",
        help="what each graph takes beside its pool (default: 2MiB)",
    )  # fmt: skip
    mode.add_argument("--bs", type=int, metavar="N", help="batch size (default: the only one of the sweep)")
    mode.add_argument("--calls", type=positive, metavar="N", help="calls after one preparation (default: uncounted)")
    mode.add_argument("--memory", type=byte_size, metavar="SIZE", help="most peak reserved memory, as 4GiB")


def byte_size(text: str) -> int:
    """Bytes of `512`, `512MiB`, `2G` (binary) or `2GB` (decimal)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not found or found[2] not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size in bytes; allowed: 512MiB, 2GiB, 1.5GB, 4096")
    return round(float(found[1]) * UNITS[found[2]])


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of calls from 1")
    return int(text)


def run(args: argparse.Namespace) -> int:
    trace = trace_of(args) if args.what == "buckets" else None
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        rows = options.rows_of(store, sweep)
    if trace is not None:
        sheet = buckets_sheet(args, points(rows, args.model, args.mode, args.metric, sweep.baseline_mode), trace)
    else:
        sheet = mode_sheet(args, rows, sweep.baseline_mode)
    if args.format == "json":
        options.write(json.dumps(sheet.data, indent=2), args)
    elif args.format == "markdown":
        options.write(markdown(sheet), args)
    elif args.out:
        text = io.StringIO()
        draw(Console(file=text, width=PLAIN_WIDTH), sheet)
        options.write(text.getvalue(), args)
    else:
        draw(terminal(), sheet)
    return 0


def trace_of(args: argparse.Namespace) -> Counter[int]:
    """Batch size -> calls."""
    if args.trace:
        return Counter(streams.read_sizes(args.trace))
    kind, *words = args.stream
    settings = {"name": kind, **streams.KINDS.get(kind, {})}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--stream {kind}: {word!r} is no KEY=VALUE, as high=32")
        try:
            settings[key] = value if key in ("path", "column") else float(value) if key == "share" else int(value)
        except ValueError as error:
            raise UsageError(f"--stream {kind}: {word!r} needs a number") from error
    sizes = streams.sizes_of(settings)
    if sizes is None:
        raise UsageError("--stream none is no trace: choose uniform, bursty, decode or csv, or give --trace FILE")
    return Counter(sizes)


def buckets_sheet(args: argparse.Namespace, measured: Points, trace: Counter[int]) -> Sheet:
    """The advised list beside those of servers, on the same trace."""
    costs = measured.costs
    memory = Memory(args.memory_budget, args.pool == "shared", args.per_graph)
    if args.memory_budget is not None and costs.pool_bytes is None:
        raise NothingFoundError(f"no memory of graphs was measured for {measured.mode}: leave --memory-budget away")
    found = best_lists(trace, costs, memory, (0.0, SLACK))
    if not found:
        raise NothingFoundError(nothing_serves(measured, trace, memory))
    advised, frugal = found
    frugals = [frugal] if frugal.sizes != advised.sizes else []
    presets = {name: capture_sizes(name, list(trace)) for name in (*LISTS, EXACT)}
    others = [evaluate(name, sizes, trace, costs, memory) for name, sizes in presets.items()]
    if costs.eager_ms:
        others.append(evaluate("no graph", [], trace, costs, memory))
    headings = [
        "capture list",
        "graphs",
        f"{args.metric} a call",
        "against advised",
        "padding",
        "without a graph",
        "memory",
    ]
    rows = [list_row(one, advised) for one in (advised, *frugals, *others)]
    graphs = "one pool for all: the largest graph's" if memory.shared else "a pool each: the sum"
    budget = "no budget" if memory.budget_bytes is None else f"budget {format_bytes(memory.budget_bytes)}"
    lines = [
        *measure_first(measured, advised),
        f"capture: {advised.sizes}" if advised.sizes else "capture nothing: eager is the fastest that fits",
        *(f"{one.name}: {one.sizes}" for one in frugals),
        f"{measured.case}, {measured.mode}; trace of {sum(trace.values())} calls, sizes {min(trace)} to {max(trace)}",
        f"memory: {graphs} and {format_bytes(memory.per_graph_bytes)} a graph; {budget}"
        if costs.pool_bytes
        else "memory: no pool was measured for this mode",
        *falls(measured, args.metric),
        *(f"advised: {doubt}" for doubt in advised.doubts),
        *(
            f"{one.name}: {doubt}"
            for one in (*frugals, *others)
            for doubt in one.doubts
            if "guess" in doubt or "failed" in doubt
        ),
        *(f"not measured: {reason}" for reason in measured.missing),
    ]
    if not advised.guessed and any(one.guessed for one in others):
        lines.append(f"{GUESS}: not ranked, as it rests on figures above the largest measured size")
    data = {
        "model": measured.case,
        "mode": measured.mode,
        "metric": args.metric,
        "calls": sum(trace.values()),
        "memory": asdict(memory),
        "advised": asdict(advised),
        "others": [asdict(one) for one in (*frugals, *others)],
        "missing": measured.missing,
    }
    return Sheet(headings, rows, lines, data)


def measure_first(measured: Points, advised: ListAdvice) -> list[str]:
    """Where calls lie above all that was measured, no list is known to be better than another."""
    if not advised.guessed:
        return []
    largest = advised.guessed[-1]
    if largest in measured.costs.failed:
        return [
            f"what a call of {listed(advised.guessed)} rows costs is a guess, and so is the list: bs={largest} was "
            "measured, and failed"
        ]
    return [
        f"measure bs={largest} first, in {measured.mode} and without a graph: what a call of "
        f"{listed(advised.guessed)} rows costs is a guess, and so is the list"
    ]


def falls(measured: Points, metric: str) -> list[str]:
    """A larger batch that is faster may be a better kernel, or noise that the advice then builds upon."""
    steps = itertools.pairwise(measured.costs.graph_ms.points)
    found = [f"{small} to {large}" for (small, slow), (large, fast) in steps if fast < slow]
    steadier = "; --metric period has less noise" if metric == "latency" else ""
    return [f"the {metric} falls from bs {', '.join(found)}: a better kernel, or noise{steadier}"] if found else []


def nothing_serves(measured: Points, trace: Counter[int], memory: Memory) -> str:
    largest = measured.costs.graph_ms.sizes[-1]
    if max(trace) > largest:
        return (
            f"the trace goes to {max(trace)}, {measured.mode} was measured to bs={largest}, and there is no eager "
            "result: "
            f"measure bs={max(trace)} as well"
        )
    return (
        f"no list fits into {format_bytes(memory.budget_bytes)}, and there is no eager result to run without a graph: "
        "allow more, or measure eager"
    )


def list_row(found: ListAdvice, advised: ListAdvice) -> list[str]:
    ratio = "—"
    if found.guessed or advised.guessed:
        ratio = GUESS
    elif found.latency_ms is not None and advised.latency_ms:
        ratio = f"{found.latency_ms / advised.latency_ms:.3f}×"
    needed = "unknown" if found.memory_bytes is None else format_bytes(found.memory_bytes)
    return [
        found.name,
        str(len(found.sizes)),
        "unknown" if found.latency_ms is None else f"{found.latency_ms:.4g} ms",
        ratio,
        "—" if found.padding_waste is None else f"{100 * found.padding_waste:.1f} %",
        f"{100 * found.fallbacks:.1f} %",
        needed if found.fits else f"{needed}, too much",
    ]


def mode_sheet(args: argparse.Namespace, rows: list[dict[str, Any]], baseline_mode: str) -> Sheet:
    """The modes of one model at one batch size, best first, and why."""
    case = rows_of_case(rows, args.model)
    sizes = sorted({row.labels["bs"] for row in case})
    if args.bs is None and len(sizes) > 1:
        raise UsageError(f"several batch sizes were measured: {', '.join(map(str, sizes))}; choose one with --bs")
    bs = sizes[0] if args.bs is None else args.bs
    own = [row for row in case if row.labels["bs"] == bs]
    if not own:
        raise NothingFoundError(f"bs={bs} was not measured; there are: {', '.join(map(str, sizes))}")
    found = advise_mode(own, args.metric, args.calls, args.memory, baseline_mode)
    headings = [
        "mode",
        f"{args.metric} a call",
        "interval",
        f"against {baseline_mode}",
        "preparation",
        "pays back after",
        "memory",
    ]
    if args.calls:
        headings.insert(3, f"with preparation, {args.calls:,} calls")
    lines = [*reason(found, args), *found.doubts]
    lines += [f"out: {mode} ({why})" for mode, why in found.excluded.items()]
    data = {
        "model": own[0].case,
        "bs": bs,
        "metric": args.metric,
        "calls": args.calls,
        "best": found.best.mode,
        "too_close_to_call": found.close,
        "modes": [asdict(one) for one in found.ranked],
        "excluded": found.excluded,
        "doubts": found.doubts,
    }
    return Sheet(headings, [mode_row(one, args.calls) for one in found.ranked], lines, data)


def mode_row(one: Choice, calls: int | None) -> list[str]:
    interval = "—" if one.low_ms is None or one.high_ms is None else f"{one.low_ms:.4g}–{one.high_ms:.4g} ms"
    row = [
        one.mode,
        f"{one.call_ms:.4g} ms",
        interval,
        "—" if one.speedup is None else f"{one.speedup:.2f}×",
        f"{one.prepare_s:.3g} s" + (" (warm)" if one.warm else ""),
        "—" if one.break_even is None else f"{one.break_even:,} calls",
        "—" if one.memory_bytes is None else format_bytes(one.memory_bytes),
    ]
    if calls:
        row.insert(3, f"{one.score_ms:.4g} ms")
    return row


def reason(found: ModeAdvice, args: argparse.Namespace) -> list[str]:
    """Why the best is the best, in a line or two."""
    best = found.best
    if found.close:
        return [
            f"no significant winner: {', '.join([best.mode, *found.close])} tie; "
            f"{cheapest(found).mode} has the least preparation of them"
        ]
    over = "" if args.calls is None else f" over {args.calls:,} calls with its preparation"
    unsure = len(found.ranked) > 1 and any(one.low_ms is None for one in found.ranked[:2])
    said = [f"run {best.mode}: least {args.metric}{over}" + (f" ({NO_INTERVAL})" if unsure else "")]
    for one in found.ranked[1:]:
        # more preparation than the best has, paid back by what each call saves against it
        after = break_even_calls(one.prepare_s - best.prepare_s, best.call_ms, one.call_ms)
        if after is not None:
            said.append(f"{one.mode} is faster a call; from {after:,} calls on it is better than {best.mode}")
    return said


def cheapest(found: ModeAdvice) -> Choice:
    return min(
        (one for one in found.ranked if one.mode in (found.best.mode, *found.close)), key=lambda one: one.prepare_s
    )


def markdown(sheet: Sheet) -> str:
    rule = ["---", *["---:"] * (len(sheet.headings) - 1)]
    rows = (sheet.headings, rule, *sheet.rows)
    lines = [f"| {' | '.join(one_line(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"- {one_line(line)}" for line in sheet.lines)]) + "\n"


def draw(console: Console, sheet: Sheet) -> None:
    table = Table(header_style="bold", pad_edge=False)
    for place, heading in enumerate(sheet.headings):
        table.add_column(escape(heading), justify="right" if place else "left")
    for row in sheet.rows:
        table.add_row(*map(escape, row))
    console.print(table)
    first, *rest = sheet.lines
    console.print(f"[bold]{escape(first)}[/]", highlight=False, soft_wrap=True)
    for line in rest:
        console.print(escape(line), style="dim", highlight=False, soft_wrap=True)
