"""`effbench advise`: which batch sizes to capture for a trace of batches, and which mode to run."""

from __future__ import annotations

import argparse
import itertools
import re
from collections import Counter
from dataclasses import asdict
from typing import Any, NamedTuple

from effbench import streams
from effbench.buckets import EXACT, LISTS, capture_sizes
from effbench.commands import options
from effbench.errors import NothingFoundError, UsageError
from effbench.metrics import format_bytes
from effbench.report import advice, mode_scores
from effbench.report.advice import CALL, ListAdvice, Memory, Points, listed, points, rows_of_case
from effbench.report.mode_scores import ModeAdvice
from effbench.report.tables import NO_INTERVAL
from effbench.store.store import Store
from effbench.store.summary import break_even_calls
from effbench.table import Column, Table, as_json, markdown_text
from effbench.terminal import escape, terminal

HELP = "Advice out of measured results: which batch sizes to capture (buckets), which mode to run (mode)."
FORMATS = ("table", "json", "markdown")
GUESS = "a guess"  # instead of a ratio
SLACK = 0.01  # a list of less memory that is at most this much slower is shown as well
UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}


class Answer(NamedTuple):
    """A table with lines below it, the first of them the advice; `data` is the same for JSON."""

    table: Table
    lines: list[str]
    data: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="what", required=True, metavar="WHAT", help="buckets or mode")
    buckets = parts.add_parser("buckets", description="The capture list that makes a trace of batch sizes fastest.")
    mode = parts.add_parser("mode", description="The mode to run a model in at one batch size.")
    for part in (buckets, mode):
        options.add_db(part)
        options.add_sweep(part)
        part.add_argument("--model", metavar="NAME", help="whose results (default: the only model of the sweep)")
        part.add_argument("--metric", default="latency", choices=[*CALL], help="what a call costs (default: latency)")
        part.add_argument("--format", default="table", choices=FORMATS, help="(default: table)")
        options.add_out(part)
    source = buckets.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", metavar="FILE", help="batch sizes, one a line, or a CSV with a column bs")
    source.add_argument("--stream", nargs="+", metavar=("KIND", "KEY=VALUE"), help="a generated trace: uniform high=32")
    buckets.add_argument("--mode", default="cuda-graph", help="mode of the graphs' figures (default: %(default)s)")
    buckets.add_argument(
        "--memory-budget", type=byte_size, metavar="SIZE", help="of all graphs, as 2GiB (default: none)"
    )
    buckets.add_argument("--pool", default="shared", choices=["shared", "private"], help="(default: %(default)s)")
    buckets.add_argument(
        "--per-graph", type=byte_size, default=advice.PER_GRAPH_BYTES, metavar="SIZE",
        help="memory of each graph besides its pool (default: 2MiB)",
    )  # fmt: skip
    mode.add_argument("--bs", type=int, metavar="N", help="batch size (default: the only one of the sweep)")
    mode.add_argument("--calls", type=positive, metavar="N", help="calls after one preparation (default: uncounted)")
    mode.add_argument("--memory", type=byte_size, metavar="SIZE", help="most peak reserved memory, as 4GiB")


def byte_size(text: str) -> int:
    """Bytes of `512`, `512MiB`, `2G` (binary) or `2GB` (decimal)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not found or found[2] not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes; allowed: 512MiB, 2GiB, 1.5GB, 4096")
    return round(float(found[1]) * UNITS[found[2]])


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of calls; allowed: whole numbers from 1")
    return int(text)


def run(args: argparse.Namespace) -> int:
    trace = read_trace(args) if args.what == "buckets" else None
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        rows = options.rows_of(store, sweep)
    if trace is not None:
        answer = advise_buckets(args, points(rows, args.model, args.mode, args.metric, sweep.baseline_mode), trace)
    else:
        answer = advise_mode(args, rows, sweep.baseline_mode)
    first, *rest = answer.lines
    if args.format == "json":
        options.write(as_json(answer.data), args)
    elif args.format == "markdown":
        bullets = "".join(f"- {markdown_text(line)}\n" for line in answer.lines)
        options.write(f"{answer.table.render('markdown')}\n{bullets}", args)
    elif args.out:
        options.write(answer.table.render("terminal") + "\n".join(answer.lines), args)
    else:
        console = terminal()
        console.print(answer.table.rich(lines=True))
        console.print_line(f"[bold]{escape(first)}[/]")
        for line in rest:
            console.print_line(escape(line), "dim")
    return 0


def read_trace(args: argparse.Namespace) -> Counter[int]:
    """Return the calls by batch size."""
    if args.trace:
        return Counter(streams.read_sizes(args.trace))
    kind, *words = args.stream
    settings = {"name": kind, **streams.KINDS.get(kind, {})}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--stream {kind}: expected KEY=VALUE, got {word!r}. Example: high=32")
        try:
            settings[key] = value if key in ("path", "column") else float(value) if key == "share" else int(value)
        except ValueError as error:
            raise UsageError(f"--stream {kind}: {word!r} needs a number") from error
    sizes = streams.sizes_of(settings)
    if sizes is None:
        raise UsageError(
            "--stream none has no batch sizes: choose uniform, bursty, decode or csv, or give --trace FILE"
        )
    return Counter(sizes)


def advise_buckets(args: argparse.Namespace, measured: Points, trace: Counter[int]) -> Answer:
    """Compare the advised list with those of servers on the same trace."""
    costs = measured.costs
    memory = Memory(args.memory_budget, args.pool == "shared", args.per_graph)
    if args.memory_budget is not None and costs.pool_bytes is None:
        raise NothingFoundError(f"no memory of graphs was measured for {measured.mode}: omit --memory-budget")
    lists = advice.best_lists(trace, costs, memory, (0.0, SLACK))
    if not lists:
        raise NothingFoundError(cannot_serve(measured, trace, memory))
    advised = lists[0]
    others = [frugal for frugal in lists[1:] if frugal.sizes != advised.sizes]
    frugal_lines = [f"{frugal.name}: {frugal.sizes}" for frugal in others]
    presets = {name: capture_sizes(name, list(trace)) for name in (*LISTS, EXACT)} | (
        {"no graph": []} if costs.eager_ms else {}
    )
    others += [advice.evaluate(name, sizes, trace, costs, memory) for name, sizes in presets.items()]
    columns = [Column("capture list")]
    columns += [
        Column(title, numeric=True)
        for title in ("graphs", f"{args.metric} a call", "against advised", "padding", "without a graph", "memory")
    ]
    keys = [column.key for column in columns]
    rows = [dict(zip(keys, list_texts(found, advised), strict=True)) for found in (advised, *others)]
    graphs = "one pool for all: the largest graph's" if memory.shared else "a pool each: the sum"
    budget = "no budget" if memory.budget_bytes is None else f"budget {format_bytes(memory.budget_bytes)}"
    lines = [
        *measure_first(measured, advised),
        f"capture: {advised.sizes}" if advised.sizes else "capture nothing: eager is the fastest that fits",
        *frugal_lines,
        f"{measured.case}, {measured.mode}; trace of {sum(trace.values())} calls, sizes {min(trace)} to {max(trace)}",
        f"memory: {graphs} and {format_bytes(memory.per_graph_bytes)} a graph; {budget}"
        if costs.pool_bytes
        else "memory: no pool was measured for this mode",
        *falling(measured, args.metric),
        *(f"advised: {doubt}" for doubt in advised.doubts),
        *(
            f"{other.name}: {doubt}"
            for other in others
            for doubt in other.doubts
            if "guess" in doubt or "failed" in doubt
        ),
        *(f"not measured: {reason}" for reason in measured.missing),
    ]
    if not advised.guessed and any(other.guessed for other in others):
        lines.append(f"{GUESS}: not ranked, as it rests on figures above the largest measured size")
    data = {
        "model": measured.case,
        "mode": measured.mode,
        "metric": args.metric,
        "calls": sum(trace.values()),
        "memory": asdict(memory),
        "advised": asdict(advised),
        "others": [asdict(other) for other in others],
        "missing": measured.missing,
    }
    return Answer(Table(columns, rows), lines, data)


def list_texts(found: ListAdvice, advised: ListAdvice) -> list[str]:
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


def measure_first(measured: Points, advised: ListAdvice) -> list[str]:
    """If calls are larger than everything measured, no list is known to be better than another."""
    if not advised.guessed:
        return []
    largest, guess = advised.guessed[-1], f"the time of a call of {listed(advised.guessed)} rows is a guess"
    if largest in measured.costs.failed:
        return [f"{guess}, and so is the list: bs={largest} was measured, and failed"]
    return [f"measure bs={largest} first, in {measured.mode} and without a graph: {guess}, and so is the list"]


def falling(measured: Points, metric: str) -> list[str]:
    """A larger batch that is faster may be a better kernel, or noise that the advice then builds upon."""
    steps = itertools.pairwise(measured.costs.graph_ms.points)
    found = [f"{small} to {large}" for (small, slow), (large, fast) in steps if fast < slow]
    steadier = "; --metric period has less noise" if metric == "latency" else ""
    return [f"the {metric} falls from bs {', '.join(found)}: a better kernel, or noise{steadier}"] if found else []


def cannot_serve(measured: Points, trace: Counter[int], memory: Memory) -> str:
    largest, most = measured.costs.graph_ms.sizes[-1], max(trace)
    if most > largest:
        return (
            f"the trace goes to {most}, {measured.mode} was measured to bs={largest}, and there is no eager result: "
            f"measure bs={most} as well"
        )
    return (
        f"no list fits into {format_bytes(memory.budget_bytes)}, and there is no eager result to run without a graph: "
        "allow more, or measure eager"
    )


def advise_mode(args: argparse.Namespace, rows: list[dict[str, Any]], baseline_mode: str) -> Answer:
    """Rank the modes of one model at one batch size, with the reason."""
    case = rows_of_case(rows, args.model)
    sizes = sorted({row.labels["bs"] for row in case})
    if args.bs is None and len(sizes) > 1:
        raise UsageError(f"several batch sizes were measured: {', '.join(map(str, sizes))}; choose one with --bs")
    bs = sizes[0] if args.bs is None else args.bs
    at_size = [row for row in case if row.labels["bs"] == bs]
    if not at_size:
        raise NothingFoundError(f"bs={bs} was not measured; measured: {', '.join(map(str, sizes))}")
    found = mode_scores.advise_mode(at_size, CALL[args.metric], args.calls, args.memory, baseline_mode)
    with_preparation = [Column("score", f"with preparation, {args.calls:,} calls", numeric=True)] if args.calls else []
    columns = [
        Column("mode"),
        Column("call", f"{args.metric} a call", numeric=True),
        Column("interval", numeric=True),
        *with_preparation,
        Column("speedup", f"against {baseline_mode}", numeric=True),
        Column("preparation", numeric=True),
        Column("break_even", "pays back after", numeric=True),
        Column("memory", numeric=True),
    ]
    table = [
        {
            "mode": mode.mode,
            "call": f"{mode.call_ms:.4g} ms",
            "interval": "—" if None in (mode.low_ms, mode.high_ms) else f"{mode.low_ms:.4g}–{mode.high_ms:.4g} ms",
            "score": f"{mode.score_ms:.4g} ms",
            "speedup": "—" if mode.speedup is None else f"{mode.speedup:.2f}×",
            "preparation": f"{mode.prepare_s:.3g} s" + (" (warm)" if mode.warm else ""),
            "break_even": "—" if mode.break_even is None else f"{mode.break_even:,} calls",
            "memory": "—" if mode.memory_bytes is None else format_bytes(mode.memory_bytes),
        }
        for mode in found.ranked
    ]
    lines = [*reasons(found, args), *found.doubts, *(f"out: {mode} ({why})" for mode, why in found.excluded.items())]
    data = {
        "model": at_size[0].case,
        "bs": bs,
        "metric": args.metric,
        "calls": args.calls,
        "best": found.best.mode,
        "too_close_to_call": found.close,
        "modes": [asdict(mode) for mode in found.ranked],
        "excluded": found.excluded,
        "doubts": found.doubts,
    }
    return Answer(Table(columns, table), lines, data)


def reasons(found: ModeAdvice, args: argparse.Namespace) -> list[str]:
    """Say in a line or two why the best is the best."""
    best = found.best
    if found.close:
        tied = [mode for mode in found.ranked if mode.mode in (best.mode, *found.close)]
        cheapest = min(tied, key=lambda mode: mode.prepare_s)
        names = ", ".join([best.mode, *found.close])
        return [f"no significant winner: {names} tie; {cheapest.mode} has the least preparation of them"]
    over = "" if args.calls is None else f" over {args.calls:,} calls with its preparation"
    unsure = len(found.ranked) > 1 and any(mode.low_ms is None for mode in found.ranked[:2])
    lines = [f"run {best.mode}: least {args.metric}{over}" + (f" ({NO_INTERVAL})" if unsure else "")]
    for mode in found.ranked[1:]:
        # more preparation than the best has, paid back by what each call saves against it
        after = break_even_calls(mode.prepare_s - best.prepare_s, best.call_ms, mode.call_ms)
        if after is not None:
            lines.append(f"{mode.mode} is faster a call; from {after:,} calls on it is better than {best.mode}")
    return lines
