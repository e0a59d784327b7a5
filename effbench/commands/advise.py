"""`effbench advise`: recommend the batch sizes to capture for a trace, or the mode to run."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import asdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import yaml

from effbench import streams
from effbench.buckets import EXACT, LISTS, capture_sizes
from effbench.commands import options
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import ABSENT
from effbench.metrics import INTERVALS, METRICS, percent
from effbench.printable import one_line
from effbench.report.advice import CALL, best_list, costs_of, evaluate, rank_modes, rows_of_case, the_only
from effbench.report.reasons import outcome_of, reason
from effbench.report.tables import SPEEDUPS, figure_texts, speedup_table, speedup_text
from effbench.stats.elimination import Race
from effbench.stats.intervals import log_difference
from effbench.store.store import Store
from effbench.store.summary import break_even_calls
from effbench.table import Column, Shown, Table, as_json
from effbench.terminal import escape

if TYPE_CHECKING:
    from effbench.launcher.adaptive import Found

HELP = "Recommend the batch sizes to capture (buckets) or the mode to run (mode), from measured results."
MODE = "Recommend the mode for a model at one batch size: from a stored sweep, or for MODEL also by a short new one."
milliseconds = METRICS["latency_ms"].format
#: A table, the lines below it (the first is the recommendation), and the same content for JSON.
Answer = tuple[Table, list[str], dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="what", required=True, metavar="WHAT", help="buckets or mode")
    buckets = parts.add_parser("buckets", description="Recommend the fastest capture list for a trace of batch sizes.")
    mode = parts.add_parser("mode", description=MODE)
    words = "model to measure unless results of it are stored, as in model=MODEL, and overrides as in a sweep"
    mode.add_argument("words", nargs="*", metavar="MODEL [OVERRIDE]", help=f"{words}: mode=eager,default dtype=float32")
    measuring = mode.add_mutually_exclusive_group()
    measuring.add_argument("--fresh", action="store_true", help="measure MODEL even if there are stored results")
    stored = "measure nothing; answer from the stored results of MODEL on any machine"
    measuring.add_argument("--stored", action="store_true", help=stored)
    for part in (buckets, mode):
        options.add_db(part)
        options.add_sweep(part)
        part.add_argument("--model", metavar="NAME", help="model of the sweep (default: the only one)")
        part.add_argument("--metric", default="latency", choices=[*CALL], help="cost of a call (default: latency)")
        part.add_argument("--format", default="table", choices=["table", "json"], help="(default: table)")
        options.add_out(part)
    source = buckets.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", metavar="FILE", help="file with one batch size per line, or CSV with a column bs")
    source.add_argument("--stream", nargs="+", metavar=("KIND", "KEY=VALUE"), help="generate a trace: uniform high=32")
    buckets.add_argument("--mode", default="cuda-graph", help="mode whose figures are used (default: %(default)s)")
    buckets.add_argument("--memory-budget", type=byte_size, metavar="SIZE", help="memory limit for all graphs: 2GiB")
    mode.add_argument("--bs", type=int, metavar="N", help="batch size (default: the only one of the sweep)")
    mode.add_argument("--calls", type=int, metavar="N", help="calls per preparation (default: ignore preparation)")
    mode.add_argument("--memory", type=byte_size, metavar="SIZE", help="limit of peak reserved memory: 4GiB")


def byte_size(text: str) -> int:
    """Return the bytes of `512`, `512MiB`, `2G` (binary) or `2GB` (decimal)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"expected a size in bytes, got {text!r}. Examples: 512MiB, 2GiB, 1.5GB, 4096")
    base = 1000 if match[3] == "B" else 1024
    return round(float(match[1]) * base ** " KMGT".index(match[2] or " "))


def run(args: argparse.Namespace) -> int:
    if args.what == "mode" and (args.words or args.fresh or args.stored):
        table, lines, data = advise_model(args)
    else:
        with Store.open(args.db, mode="read") as store:
            sweep = store.find_sweep(args.sweep)
            rows = options.rows_of(store, sweep)
        advise = advise_buckets if args.what == "buckets" else advise_mode
        table, lines, data = advise(args, rows, sweep.baseline_mode)
    if args.format == "json":
        options.write(as_json(data), args)
    else:
        with options.console(args) as console:
            if "answer" in data:  # above its evidence
                console.print_line(escape(lines.pop(0)), "bold")
            console.print(console.fitted(table) or table.rich(width=console.width, stacked=True, gap=1))
            for line in lines:
                console.print_line(escape(line), "bold" if line is lines[0] and "answer" not in data else "dim")
    return 0


def read_trace(args: argparse.Namespace) -> Counter[int]:
    """Return batch size -> number of calls in the trace."""
    if args.trace:
        return Counter(streams.read_sizes(args.trace))
    kind, *words = args.stream
    given = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}
    sizes = streams.sizes_of({"name": kind, **streams.KINDS.get(kind, {}), **given})
    if sizes is None:
        raise UsageError("--stream none has no batch sizes; choose another kind, or give --trace FILE")
    return Counter(sizes)


def advise_buckets(args: argparse.Namespace, rows: list[dict[str, Any]], eager: str) -> Answer:
    """Find the best capture list for the trace, and compare it with those of inference servers."""
    trace = read_trace(args)
    costs, budget = costs_of(rows, args.model, args.mode, args.metric, eager), args.memory_budget
    if budget is not None and not costs.pool_bytes:
        raise NothingFoundError(f"{costs.mode} has no measured graph memory; omit --memory-budget")
    best = best_list(trace, costs, budget)
    if best is None:
        raise NothingFoundError(f"no list serves sizes up to {max(trace)}; measure {eager}, or allow more memory")
    presets = {name: capture_sizes(name, list(trace)) for name in (*LISTS, EXACT)}
    presets |= {"no graph": []} if costs.eager_ms else {}
    lists = [best, *(evaluate(name, sizes, trace, costs) for name, sizes in presets.items())]
    columns = [
        Column("name", "capture list"),
        Column("graphs", numeric=True),
        Column("latency_ms", f"{args.metric} per call", numeric=True, format=milliseconds),
        Column("ratio", "relative to advised", numeric=True),
        Column("padding", numeric=True),
        Column("fallbacks", "without a graph", numeric=True, format=percent),
        Column("memory", numeric=True),
    ]
    table = []
    for option in lists:
        ratio = f"{option.latency_ms / best.latency_ms:.3f}×" if option.latency_ms else ABSENT
        is_too_much = budget is not None and (option.memory_bytes or 0) > budget
        memory = METRICS["graph_pool_bytes"].format(option.memory_bytes) + (", over budget" if is_too_much else "")
        padding = ABSENT if option.padding_waste is None else percent(option.padding_waste)
        shown = {"graphs": len(option.sizes), "ratio": ratio, "padding": padding, "memory": memory}
        table.append(asdict(option) | shown)
    lines = [
        f"capture: {best.sizes}" if best.sizes else "capture nothing: calls without a graph are fastest",
        f"{costs.case}, {costs.mode}; {sum(trace.values())} calls of {min(trace)} to {max(trace)} rows",
    ]
    if best.unmeasured:
        lines.append(f"not measured, estimated from other sizes: {one_line(best.unmeasured, 80)}")
    data = {"model": costs.case, "mode": costs.mode, "metric": args.metric, "advised": asdict(best)}
    data["others"] = [asdict(option) for option in lists[1:]]
    return Table(columns, table), lines, data


def advise_model(args: argparse.Namespace) -> Answer:
    """Recommend the mode of a model from stored results of it, or after a short sweep."""
    from effbench.launcher.adaptive import Search
    from effbench.launcher.overrides import key_of, value_of

    overrides = [word for word in args.words if "=" in word or word.startswith(("-", "~"))]
    names = [word for word in args.words if word not in overrides]
    names += [args.model] if args.model else []
    if len(names) != 1:
        raise UsageError(
            f"advise mode takes one model, got {', '.join(names) or 'none'}: effbench advise mode mlp bs=8"
        )
    given = {key_of(word): value_of(word) for word in overrides}
    db = given.get("db") or args.db
    overrides = [word for word in overrides if key_of(word) != "db"]
    overrides += [f"bs={args.bs}"] if args.bs is not None else []
    is_quiet = args.format == "json" or args.out is not None
    search = Search(names[0], overrides, CALL[args.metric], db, args.fresh, args.stored, is_quiet)
    found = search.run()
    args.model = args.bs = None  # the rows are of one case
    return advise_mode(args, found.rows, found.sweep.baseline_mode, found)


def advise_mode(
    args: argparse.Namespace, rows: list[dict[str, Any]], baseline_mode: str, found: Found | None = None
) -> Answer:
    """Rank the modes of one model at one batch size, with the reason. `found`: how the rows were found for a model."""
    if args.calls is not None and args.calls < 1:
        raise UsageError(f"--calls: expected at least 1, got {args.calls}")
    case = rows_of_case(rows, args.model)
    sizes = sorted({row.labels["bs"] for row in case})
    bs = the_only(sizes, "--bs") if args.bs is None else args.bs
    if bs not in sizes:
        raise NothingFoundError(f"bs={bs} was not measured; measured: {', '.join(map(str, sizes))}")
    at_size = [row for row in case if row.labels["bs"] == bs]
    ranked, close, excluded = rank_modes(at_size, CALL[args.metric], args.calls, args.memory, baseline_mode)
    race = found.race if found else None
    if race:
        # a mode with fewer rounds does not tie because it has no interval
        left = [mode for mode in ranked if mode["cell_key"] not in race.eliminated]
        ranked = ranked if args.calls else sorted(ranked, key=lambda mode: mode["cell_key"] in race.eliminated)
        close = [mode["mode"] for mode in left[1:]] if ranked[0] in left else []
        ranked = [mode | {"standing": standing(race, mode, ranked[0], close)} for mode in ranked]
    columns = [
        Column("mode"),
        Column("call", f"{args.metric} per call", numeric=True),
        Column("score_ms", f"per call with preparation ({args.calls or 0:,} calls)", numeric=True, format=milliseconds),
        *(Column(it, METRICS[it].title, numeric=True, optional=True) for it in SPEEDUPS),
        Column("preparation", numeric=True),
        Column("break_even", "pays back after", numeric=True, format=METRICS["break_even_calls"].format),
        Column("memory_bytes", "memory", numeric=True, format=METRICS["peak_reserved_bytes"].format),
        Column("trials", "rounds", numeric=True),
        Column("standing", optional=True),
    ]
    table = []
    for mode in ranked:
        call, interval = figure_texts(CALL[args.metric], mode["call_ms"], mode["low_ms"], mode["high_ms"])
        preparation = f"{mode['prepare_s']:.3g} s" + (" (warm)" if mode["warm"] else "")
        shown = {"call": Shown(mode["call_ms"], call, sub=interval), "preparation": preparation}
        table.append(mode | shown | {it: speedup_text(mode, it) for it in SPEEDUPS})
    others = speedup_table([row for row in at_size if row.mode not in excluded], "speedup", baseline_mode)
    lines = reasons(ranked, close, args, baseline_mode)
    if not race:
        lines += [
            f"{outcome_of(row)} {row.quantity}" for row in others.rows if row.best and row.quantity != args.metric
        ]
    lines += [f"excluded: {mode} ({why})" for mode, why in excluded.items()]
    data = {"model": case[0].case, "bs": bs, "metric": args.metric, "calls": args.calls, "modes": ranked}
    data |= {"too_close_to_call": close, "excluded": excluded}
    if found:
        chosen, tie = choice(ranked, close, race, args)
        base = next((row.mode for row in at_size if row.base_mode == baseline_mode), None)
        base = next((mode for mode in ranked if mode["mode"] == base), None)
        words = [f"Run {case[0].case} at bs {bs} with {chosen['mode']}{gains(chosen, base, race, args.metric)}", tie]
        row = next((row for row in others.rows if row.quantity == args.metric), others.rows[0])
        row.leader, row.tied = chosen["mode"], close
        facts = {"answer": "; ".join(filter(None, words)) + ".", "mode": chosen["mode"], "why": reason(row)}
        facts |= {"sweep": found.sweep.id, "measured_at": found.sweep.started_at, "is_new": found.is_new}
        data = facts | data | {"commands": found.commands}
        when = f"{found.sweep.started_at:%Y-%m-%d %H:%M} UTC"
        source = "measured now" if found.is_new else f"measured on {when}, nothing was measured now"
        why = [f"why: {facts['why']}"] if facts["why"] else []
        full, report = found.commands
        lines = [facts["answer"], *why, *lines[1:], f"{source}: sweep {found.sweep.id}"]
        lines += [f"full matrix: {full}", f"report: {report}"]
    return Table([column for column in columns if args.calls or column.key != "score_ms"], table), lines, data


def standing(race: Race, mode: dict[str, Any], best: dict[str, Any], close: list[str]) -> str:
    """Return how a mode stands in the race: `out after round 1: 1.34× (1.20–1.50) the time`."""
    if mode["cell_key"] not in race.eliminated:
        return "best" if mode is best else "ties" if race.is_over else "not told apart" if mode["mode"] in close else ""
    estimates = [race.estimates[each["cell_key"]] for each in (mode, best)]
    behind = log_difference(*estimates).interval()
    value, bounds = figure_texts("speedup", behind.value, behind.low, behind.high)
    return f"out after round {race.eliminated[mode['cell_key']]}: {value} ({bounds}) the time"


def choice(
    ranked: list[dict[str, Any]], close: list[str], race: Race | None, args: argparse.Namespace
) -> tuple[dict[str, Any], str]:
    """Return the mode to run and, if others tie with it, a clause about them. Of modes that tie, the one with the
    shortest preparation; the fastest one if a race has only not told them apart."""
    if not close:
        return ranked[0], f"lowest {args.metric} over {args.calls:,} calls with preparation" if args.calls else ""
    tied = [mode for mode in ranked if mode is ranked[0] or mode["mode"] in close]
    is_tie = race is None or race.is_over
    chosen = min(tied, key=itemgetter("prepare_s")) if is_tie else ranked[0]
    names = ", ".join(mode["mode"] for mode in tied if mode is not chosen)
    return chosen, f"{names} {'tie' if is_tie else 'may tie'} with it" + " and prepare longer" * is_tie


def gains(chosen: dict[str, Any], base: dict[str, Any] | None, race: Race | None, metric: str) -> str:
    """Return what the mode gains and costs: `: 3.10× (2.90–3.30) the speed of eager in latency, 4.50× in period;
    preparation takes 0.4 s; needs 34 MiB more memory`."""
    first = next(name for name, column in SPEEDUPS.items() if column == CALL[metric])
    ratios = []
    for name in sorted(SPEEDUPS, key=lambda name: name != first):
        if base is None or base is chosen or chosen[name] is None:
            continue
        known = [chosen[each] for each in (name, *INTERVALS[name])]
        if race and name == first:
            ratio = log_difference(*(race.estimates[mode["cell_key"]] for mode in (base, chosen))).interval()
            known = [ratio.value, ratio.low, ratio.high]
        value, bounds = figure_texts(name, *known)
        of = f" the speed of {base['mode']}" if name == first else ""
        ratios.append(
            f"{value}{f' ({bounds})' * bool(bounds) * (name == first)}{of} in {METRICS[SPEEDUPS[name]].title}"
        )
    text = [", ".join(ratios)] if ratios else ["no other mode is faster"] * (base is chosen)
    text.append(f"preparation takes {chosen['prepare_s']:.2g} s")
    if base is not chosen and base and None not in (base["memory_bytes"], chosen["memory_bytes"]):
        more = chosen["memory_bytes"] - base["memory_bytes"]
        memory = METRICS["peak_reserved_bytes"].format(abs(more))
        text.append(f"needs {memory} {'more' if more > 0 else 'less'} memory" if more else "needs no more memory")
    return ": " + "; ".join(text)


def reasons(ranked: list[dict[str, Any]], close: list[str], args: argparse.Namespace, baseline_mode: str) -> list[str]:
    """Return the recommended mode with the reason, and from how many calls on other modes are better."""
    best = ranked[0]
    if close:
        tied = [mode for mode in ranked if mode is best or mode["mode"] in close]
        cheapest = min(tied, key=itemgetter("prepare_s"))["mode"]
        names = ", ".join(mode["mode"] for mode in tied)
        return [f"no significant winner: {names} tie; {cheapest} has the shortest preparation"]
    over = f" over {args.calls:,} calls including preparation" if args.calls else ""
    lines = [f"run {best['mode']}: lowest {args.metric}{over}"]
    for mode in ranked[1:]:
        # a mode with longer preparation than the best pays off if each call is significantly faster
        after = break_even_calls(mode["prepare_s"] - best["prepare_s"], best["call_ms"], mode["call_ms"])
        after = mode["break_even"] if best["mode"] == baseline_mode else after  # as the table has it
        is_tied = None not in (mode["high_ms"], best["low_ms"]) and mode["high_ms"] >= best["low_ms"]
        if after is not None and not is_tied:
            lines.append(f"{mode['mode']} is faster per call; from {after:,} calls on it beats {best['mode']}")
    return lines
