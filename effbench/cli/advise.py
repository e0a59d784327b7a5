"""`effbench advise`: recommend the batch sizes to capture for a trace, or the mode to run."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from effbench.cli import options
from effbench.core import streams
from effbench.core.buckets import PRESETS, capture_sizes
from effbench.core.cell import Result
from effbench.core.errors import ConfigError, NothingFoundError, UsageError
from effbench.core.labels import ABSENT
from effbench.core.metrics import INTERVALS, METRICS, SPEEDUPS, bounds_of, percent
from effbench.core.printable import one_line
from effbench.core.settings import DEFAULT_DB, db_option, quoted
from effbench.core.table import Column, Shown, Table, as_json
from effbench.core.terminal import escape
from effbench.render.advice import (
    CALL,
    Candidate,
    Question,
    Recommendation,
    recommend,
    rows_at,
    sweep_with,
)
from effbench.render.capture_lists import CaptureList, Costs, best_list, costs_of, evaluate
from effbench.render.tables import TIMES, Estimate, rows_of
from effbench.store.secrets import masked
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

HELP = (
    "Recommend the mode to run, or the batch sizes to capture (`advise mode` and `advise buckets`)."
)
MODE = (
    "Recommend the mode for a model at one batch size: from a stored sweep, or for MODEL also by a"
    " short new one."
)
milliseconds = METRICS["latency_ms"].format
MEASURE_AGAIN = "measure again when the machine is quiet"


@dataclass
class Advice:
    """The answer in one sentence, a table, further lines, and the same content for JSON."""

    answer: str
    table: Table
    lines: list[str]
    data: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(
        dest="what", required=True, metavar="WHAT", help="buckets or mode"
    )
    buckets = parts.add_parser(
        "buckets", description="Recommend the fastest capture list for a trace of batch sizes."
    )
    mode = parts.add_parser("mode", description=MODE)
    words = (
        "model to measure unless results of it are stored, as in model=MODEL, and overrides as in a"
        " sweep"
    )
    mode.add_argument(
        "words",
        nargs="*",
        metavar="MODEL [OVERRIDE]",
        help=f"{words}: mode=eager,default dtype=float32",
    )
    mode.add_argument("--config-dir", metavar="DIR", help="folder with your own YAML files")
    measuring = mode.add_mutually_exclusive_group()
    measuring.add_argument(
        "--fresh", action="store_true", help="measure MODEL even if there are stored results"
    )
    stored = (
        "measure nothing; answer from the sweep with most results of MODEL (and bs=N), on any"
        " machine"
    )
    measuring.add_argument("--stored", action="store_true", help=stored)
    for part in (buckets, mode):
        options.add_db(part)
        options.add_sweep(part)
        part.add_argument(
            "--model", metavar="NAME", help="model of the sweep (default: the only one)"
        )
        part.add_argument(
            "--metric", default="latency", choices=[*CALL], help="cost of a call (default: latency)"
        )
        part.add_argument(
            "--format", default="table", choices=["table", "json"], help="(default: table)"
        )
        options.add_out(part)
    source = buckets.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace", metavar="FILE", help="file with one batch size per line, or CSV with a column bs"
    )
    source.add_argument(
        "--stream",
        nargs="+",
        metavar=("KIND", "KEY=VALUE"),
        help="generate a trace: uniform high=32",
    )
    buckets.add_argument(
        "--mode", default="cuda-graph", help="mode whose figures are used (default: %(default)s)"
    )
    buckets.add_argument(
        "--memory-budget", type=byte_size, metavar="SIZE", help="memory limit for all graphs: 2GiB"
    )
    number = options.at_least(1)
    mode.add_argument(
        "--bs", type=number, metavar="N", help="batch size (default: the only one of the sweep)"
    )
    mode.add_argument(
        "--calls",
        type=number,
        metavar="N",
        help="calls per preparation (default: ignore preparation)",
    )
    mode.add_argument(
        "--memory", type=byte_size, metavar="SIZE", help="limit of peak reserved memory: 4GiB"
    )


def byte_size(text: str) -> int:
    """Return the bytes of `512`, `512MiB`, `2G` (binary) or `2GB` (decimal)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(
            f"expected a size in bytes, got {text!r}. Examples: 512MiB, 2GiB, 1.5GB, 4096"
        )
    base = 1000 if match[3] == "B" else 1024
    return round(float(match[1]) * float(base ** " KMGT".index(match[2] or " ")))


def run(args: argparse.Namespace) -> int:
    advice = advise_buckets(args) if args.what == "buckets" else advise_mode(args)
    if args.format == "json":
        options.write(as_json(advice.data), args)
        return 0
    with options.console(args) as console:
        console.print_line(escape(advice.answer), "bold")
        console.print_table(advice.table, lines=True)
        for line in advice.lines:
            console.print_line(escape(line), "dim")
    return 0


# --- buckets ---


def read_trace(args: argparse.Namespace) -> Counter[int]:
    """Return batch size -> number of calls in the trace."""
    if args.trace:
        return Counter(streams.read_sizes(args.trace))
    kind, *words = args.stream
    pairs = (word.partition("=")[::2] for word in words)
    try:
        settings = {key: yaml.safe_load(value) for key, value in pairs}
    except yaml.YAMLError as error:
        raise UsageError(f"--stream {' '.join(args.stream)}: a value is not valid YAML") from error
    sizes = streams.batch_sizes({"name": kind, **streams.KINDS.get(kind, {}), **settings})
    if sizes is None or kind == streams.ARRIVALS:
        raise UsageError(
            f"--stream {kind} has no batch sizes; choose another kind, or give --trace FILE"
        )
    return Counter(sizes)


def advise_buckets(args: argparse.Namespace) -> Advice:
    """Find the best capture list for the trace, and compare it with those of inference servers."""
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        rows, eager = rows_of(store, sweep), sweep.baseline_mode
    trace, budget = read_trace(args), args.memory_budget
    costs = costs_of(rows, args.model, args.mode, args.metric, eager)
    if budget is not None and not costs.pool_bytes:
        raise NothingFoundError(f"{costs.mode} has no measured graph memory; omit --memory-budget")
    best = best_list(trace, costs, budget)
    if best is None:
        raise NothingFoundError(
            f"no list serves sizes up to {max(trace)}; {remedy(max(trace), costs, eager)}"
        )
    presets = {name: capture_sizes(name, list(trace)) for name in PRESETS}
    if costs.eager_ms:
        presets["no graph"] = []
    others = [evaluate(name, sizes, trace, costs) for name, sizes in presets.items()]
    answer = "capture nothing: calls without a graph are fastest"
    if best.sizes:
        answer = f"capture: {best.sizes}"
    calls = f"{sum(trace.values())} calls of {min(trace)} to {max(trace)} rows"
    lines = [f"{costs.case}, {costs.mode}; {calls}"]
    if costs.marked:
        sizes = one_line(sorted(costs.marked), 80)
        lines.append(f"marked (host disturbed): bs {sizes[1:-1]}; {MEASURE_AGAIN}")
    if best.unmeasured:
        lines.append(f"not measured, estimated from other sizes: {one_line(best.unmeasured, 80)}")
    data = {
        "model": costs.case,
        "mode": costs.mode,
        "metric": args.metric,
        "advised": asdict(best),
        "others": [asdict(other) for other in others],
    }
    return Advice(answer, table_of_lists([best, *others], args.metric, budget), lines, data)


def table_of_lists(lists: Sequence[CaptureList], metric: str, budget: int | None) -> Table:
    """Return a table of capture lists; the first one is the advised one."""
    columns = [
        Column("name", "capture list"),
        Column("graphs", numeric=True),
        Column("latency_ms", f"{metric} per call", numeric=True, format=milliseconds),
        Column("ratio", "relative to advised", numeric=True),
        Column("padding", numeric=True),
        Column("fallbacks", "without a graph", numeric=True, format=percent),
        Column("memory", numeric=True),
    ]
    best_ms = lists[0].latency_ms or math.nan
    rows = []
    for option in lists:
        row = asdict(option) | {"graphs": len(option.sizes), "ratio": ABSENT, "padding": ABSENT}
        if option.latency_ms:
            row["ratio"] = f"{option.latency_ms / best_ms:.3f}×"
        if option.padding_waste is not None:
            row["padding"] = percent(option.padding_waste)
        row["memory"] = METRICS["graph_pool_bytes"].format(option.memory_bytes)
        if budget is not None and (option.memory_bytes or 0) > budget:
            row["memory"] += ", over budget"
        rows.append(row)
    return Table(columns, rows)


def remedy(size: int, costs: Costs, eager: str) -> str:
    """Return what makes a capture list possible for batches of up to this size."""
    if size <= max(costs.graph_ms):  # a graph holds them, so only the memory limit is left
        return f"allow more memory, or measure {eager} at bs={size}"
    if size in costs.failed:
        return f"{costs.mode} failed at bs={size}; measure {eager} there"
    largest = max([*costs.graph_ms, *costs.eager_ms])
    return f"the largest size with an ok result is {largest}; measure bs={size}"


# --- mode: the results ---


def advise_mode(args: argparse.Namespace) -> Advice:
    """Recommend a mode from a stored sweep, or for a model also by a short new one."""
    if args.stored:
        choose_stored(args)
    elif args.words or args.fresh:
        try:
            return advise_model(args)
        except ConfigError as error:
            # names of imported results may belong to no YAML file here
            if not str(error).startswith("unknown model"):
                raise
            how = "--stored answers from stored results of any name"
            raise ConfigError(f"{error}\n{how}") from error
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        rows = rows_at(rows_of(store, sweep), args.model, args.bs)
    question = Question(args.metric, args.calls, args.memory)
    advice = render(recommend(rows, question))
    advice.data["sweep"] = sweep.id
    if args.stored:
        advice.lines.append(source_text(sweep, rows[0].result, is_new=False))
    return advice


def choose_stored(args: argparse.Namespace) -> None:
    """Choose the sweep with most results of MODEL at its batch size. Raises UsageError for other
    overrides."""
    words = " ".join([*filter(None, [args.model]), *args.words])
    match = re.fullmatch(r"([^=]+?)(?: bs=(\d+))?", words)
    if not match or args.sweep != "last":
        how = "for other settings, name a sweep: effbench advise mode --sweep SWEEP --model MODEL"
        raise UsageError(f"advise mode --stored takes one model, and bs=N; {how}")
    args.model = match[1]
    if match[2]:
        args.bs = int(match[2])
    with Store.open(args.db, mode="read") as store:
        args.sweep = sweep_with(store, args.model, args.bs)


def advise_model(args: argparse.Namespace) -> Advice:
    """Recommend the mode of a model from stored results of this matrix, or after a short sweep."""
    from effbench.run.client import ForkServer

    with closing(ForkServer()) as server:  # imports torch while Hydra is imported
        from effbench.config.short_sweep import find

        asked = overrides_of(args)
        is_quiet = args.format == "json" or args.out is not None
        results = find(["-m", *asked.shortening, *asked.words], server, args.fresh, is_quiet)
    rows = rows_at(results.rows)
    question = Question(args.metric, args.calls, args.memory)
    advice = render(recommend(rows, question))
    commands = [
        shlex.join(masked(["effbench", "-m", *asked.words])),
        f"effbench report --sweep {results.sweep.id}{db_option(results.database)}",
    ]
    advice.data |= {
        "sweep": results.sweep.id,
        "measured_at": results.sweep.started_at,
        "is_new": results.is_new,
        "commands": commands,
    }
    advice.lines += [
        source_text(results.sweep, rows[0].result, results.is_new),
        f"full matrix: {commands[0]}",
        f"report: {commands[1]}",
    ]
    return advice


@dataclass(frozen=True)
class ShortSweep:
    """`words`: overrides of the full matrix; `shortening`: further ones of the short sweep."""

    words: list[str]
    shortening: list[str]


def overrides_of(args: argparse.Namespace) -> ShortSweep:
    """Return the overrides of a command line. Raises UsageError for words that do not fit."""
    from effbench.config.overrides import key_of
    from effbench.config.short_sweep import CANDIDATES, ROUNDS

    overrides = [word for word in args.words if "=" in word or word.startswith("~")]
    models = [word for word in args.words if word not in overrides]
    if args.model:
        models.append(args.model)
    if args.config_dir:
        overrides.append(f"--config-dir={args.config_dir}")
    overridden = {str(key_of(word)) for word in overrides}

    def missing(*words: str) -> list[str]:
        return [word for word in words if str(key_of(word)) not in overridden]

    check_words(args, models, overridden)
    bs = [] if args.bs is None else [f"bs={args.bs}"]
    db = [] if args.db == DEFAULT_DB else missing(f"db={quoted(args.db)}")
    shortening = missing("sweep.name=advise", "on_failure=ignore")
    if "protocol" not in overridden:
        shortening += ["protocol=quick", *missing(f"protocol.rounds={ROUNDS}")]
    return ShortSweep(
        words=[*missing(f"model={models[0]}", f"mode={CANDIDATES}", *bs), *overrides, *db],
        shortening=shortening,
    )


def check_words(args: argparse.Namespace, models: Sequence[str], overridden: set[str]) -> None:
    """Raise UsageError for words that do not fit. `overridden`: keys of the overrides."""
    why = ""
    if args.sweep != "last":
        why = "name the model of --sweep with --model NAME, without overrides"
    elif len(models) != 1:
        why = f"expected one model, got {len(models)}. Example: effbench advise mode mlp bs=8"
    elif any(key.partition(".")[0] == "stream" for key in overridden):
        why = "a stream has no single batch size; omit it, or compare modes in a sweep"
    elif "model" in overridden:
        why = "give the model once, as MODEL, without model="
    elif args.bs is not None and "bs" in overridden:
        why = "give the batch size once, as bs=N or as --bs N"
    if why:
        raise UsageError(f"advise mode: {why}")


def source_text(sweep: SweepInfo, result: Result, is_new: bool) -> str:
    """Return when the results were measured, and where: `measured now (cuda, bfloat16): sweep
    20270301-120000-1a2b`."""
    when = f"stored results of {sweep.started_at:%Y-%m-%d %H:%M} UTC, nothing was measured"
    if is_new:
        when = "measured now"
    return f"{when} ({result.device}, {result.dtype}): sweep {sweep.id}"


# --- mode: the answer ---


def render(advice: Recommendation) -> Advice:
    """Return a recommendation with its evidence."""
    question, row, chosen = advice.question, advice.rows[0], advice.mode
    case, bs = row.case, row.labels["bs"]
    clauses = [*gains(advice), advice.because()]
    marked = {
        candidate.mode: candidate.result.disturbance
        for candidate in advice.ranked
        if candidate.is_marked
    }
    if chosen.is_marked:
        clauses.append(f"its figure is marked (host disturbed); {MEASURE_AGAIN}")
    elif marked:
        names = ", ".join(marked)
        clauses.append(f"not compared, because the host was disturbed: {names}; {MEASURE_AGAIN}")
    answer = f"Run {case} at bs {bs} with {chosen.mode}: {'; '.join(clauses)}."
    why = advice.why()
    lines = [f"why: {why}"] if why else []
    lines += [f"excluded: {mode} ({text})" for mode, text in advice.excluded.items()]
    data = {
        "answer": answer,
        "mode": chosen.mode,
        "why": why,
        "model": case,
        "bs": bs,
        "metric": question.metric,
        "calls": question.calls,
        "modes": [record(candidate, question.column) for candidate in advice.ranked],
        "too_close_to_call": [candidate.mode for candidate in advice.ties],
        "excluded": advice.excluded,
        "marked": marked,
    }
    return Advice(answer, table_of_modes(advice), lines, data)


def record(candidate: Candidate, column: str) -> dict[str, Any]:
    """Return a mode for JSON."""
    result = candidate.result
    low, high = bounds_of(result, column)
    names = [name for metric in SPEEDUPS for name in (metric, *INTERVALS[metric])]
    return {
        "mode": candidate.mode,
        "call_ms": candidate.call_ms,
        "low_ms": low,
        "high_ms": high,
        "score_ms": candidate.score_ms,
        "prepare_s": candidate.prepare_s,
        "warm": candidate.is_warm,
        "break_even": candidate.break_even,
        "memory_bytes": result.peak_reserved_bytes,
        **{name: result.value(name) for name in names},
        "trials": result.trials,
        "compilations": result.compilations,
        "cell_key": result.cell_key,
        "disturbance": result.disturbance,
        "marked": candidate.is_marked,
    }


def table_of_modes(advice: Recommendation) -> Table:
    question = advice.question
    columns = [
        Column("mode"),
        Column("call", f"{question.metric} per call", numeric=True),
        Column(
            "score_ms",
            f"per call with preparation ({question.calls or 0:,} calls)",
            numeric=True,
            format=milliseconds,
        ),
        *(Column(name, METRICS[name].title, numeric=True, optional=True) for name in SPEEDUPS),
        Column("preparation", numeric=True),
        Column(
            "break_even", "pays back after", numeric=True, format=METRICS["break_even_calls"].format
        ),
        Column(
            "memory_bytes", "memory", numeric=True, format=METRICS["peak_reserved_bytes"].format
        ),
        Column("rounds", numeric=True),
    ]
    rows = []
    for candidate in advice.ranked:
        call, interval = texts_of(advice, candidate, question.column)
        preparation = seconds(candidate.prepare_s)
        if candidate.is_warm:
            preparation += " (warm)"
        rows.append(
            {
                "mode": candidate.mode,
                "call": Shown(candidate.call_ms, call, sub=interval),
                "score_ms": candidate.score_ms,
                **{name: texts_of(advice, candidate, name)[0] for name in SPEEDUPS},
                "preparation": preparation,
                "break_even": candidate.break_even,
                "memory_bytes": candidate.result.peak_reserved_bytes,
                "rounds": candidate.result.trials,
            }
        )
    if not question.calls:
        columns = [column for column in columns if column.key != "score_ms"]
    return Table(columns, rows)


def texts_of(advice: Recommendation, candidate: Candidate, name: str) -> tuple[str, str]:
    """Return a figure of a mode and its interval; empty without one. A speedup is marked if the
    baseline is."""
    result, base = candidate.result, advice.base
    if result.value(name) is None:
        return "", ""
    is_marked = candidate.is_marked
    if name in SPEEDUPS:
        is_marked = candidate is not base and (is_marked or (base is not None and base.is_marked))
    estimate = Estimate.of(result, name, is_marked)
    return estimate.text, estimate.interval


def seconds(value: float) -> str:
    if value < 0.001:
        return "< 1 ms"
    return f"{value:.2g} s"


def gains(advice: Recommendation) -> list[str]:
    """Return what a mode gains and costs: `3.10× (2.90–3.30×) the speed of eager in latency`,
    `preparation takes 0.4 s`."""
    chosen, base = advice.mode, advice.base
    costs = [f"preparation takes {seconds(chosen.prepare_s)}"]
    if base is None or base is chosen:
        return costs
    text, interval = texts_of(advice, chosen, TIMES[advice.question.column])
    if not text:
        return costs
    bounds = f" ({interval}×)" if interval else ""
    return [f"{text}{bounds} the speed of {base.mode} in {advice.question.metric}", *costs]
