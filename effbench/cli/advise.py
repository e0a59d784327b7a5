"""`effbench advise`: recommend the batch sizes to capture for a trace, or the mode to run."""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

from effbench.analysis.advice import QUANTITIES, Question, recommend, rows_at, sweep_with
from effbench.analysis.capture_lists import Costs, best_list, costs_of, evaluate
from effbench.cli import options
from effbench.core.buckets import PRESETS, capture_sizes
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import LabelledRow
from effbench.core.settings import db_option
from effbench.core.streams import read_sizes
from effbench.core.table import as_json
from effbench.core.terminal import escape
from effbench.render.advice import Advice, lists_advice, mode_advice
from effbench.render.tables import rows_of
from effbench.store.secrets import masked
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

HELP = (
    "Recommend the mode to run, or the batch sizes to capture (`advise mode` and `advise buckets`)."
)
MODE = (
    "Recommend the mode for a model at one batch size: for MODEL by a short sweep, unless this"
    " machine has stored results of it; without MODEL from a stored sweep."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(
        dest="what", required=True, metavar="WHAT", help="buckets or mode"
    )
    buckets = parts.add_parser(
        "buckets", description="Recommend the fastest capture list for a trace of batch sizes."
    )
    mode = parts.add_parser("mode", description=MODE)
    mode.add_argument(
        "words",
        nargs="*",
        metavar="MODEL [OVERRIDE]",
        help="model to measure, as in model=MODEL, and overrides as in a sweep: bs=8"
        " mode=eager,default dtype=float32",
    )
    options.add_db(buckets)
    options.add_place(mode)
    mode.add_argument(
        "--fresh", action="store_true", help="measure MODEL even if there are stored results"
    )
    for part in (buckets, mode):
        part.add_argument(
            "--sweep",
            metavar="ID|NAME|last",
            help=f"{options.WHICH_SWEEP} (default: last; with `mode --model`, the sweep with most"
            " of its results)",
        )
        part.add_argument(
            "--model", metavar="NAME", help="model of the sweep (default: the only one)"
        )
        part.add_argument(
            "--metric",
            default="latency",
            choices=[*QUANTITIES],
            help="cost of a call (default: latency)",
        )
        part.add_argument(
            "--memory",
            type=byte_size,
            metavar="SIZE",
            help="limit of all graphs (buckets) or of peak reserved memory (mode): 4GiB",
        )
        options.add_format(part, "json")
        options.add_out(part)
    buckets.add_argument(
        "--trace",
        metavar="FILE",
        required=True,
        help="file with one batch size per line, or CSV with a column bs",
    )
    buckets.add_argument(
        "--mode", default="cuda-graph", help="mode whose figures are used (default: %(default)s)"
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
    if args.what == "buckets":
        advice = advise_buckets(args)
    elif args.words or args.fresh:
        advice = advise_model(args)
    else:
        advice = advise_mode(args)
    if args.format == "json":
        options.write(as_json(advice.data), args)
        return 0
    with options.console(args) as console:
        console.print_line(escape(advice.answer), "bold")
        console.print_table(advice.table)
        for line in advice.lines:
            console.print_line(escape(line), "dim")
    return 0


# --- buckets ---


def advise_buckets(args: argparse.Namespace) -> Advice:
    """Find the best capture list for the trace, and compare it with those of inference servers."""
    question = Question(args.metric, memory_bytes=args.memory)
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep or "last")
        rows, eager = rows_of(store, sweep), sweep.baseline_mode
    trace = Counter(read_sizes(args.trace))
    costs = costs_of(rows, args.model, args.mode, question, eager)
    if question.memory_bytes is not None and not costs.pool_bytes:
        raise NothingFoundError(f"{costs.mode} has no measured graph memory; omit --memory")
    best = best_list(trace, costs, question.memory_bytes)
    if best is None:
        raise NothingFoundError(
            f"no list serves sizes up to {max(trace)}; {remedy(max(trace), costs, eager)}"
        )
    presets = {name: capture_sizes(name, list(trace)) for name in PRESETS}
    if costs.eager_ms:
        presets["no graph"] = []
    others = [evaluate(name, sizes, trace, costs) for name, sizes in presets.items()]
    return lists_advice(best, others, trace, costs, question)


def remedy(size: int, costs: Costs, eager: str) -> str:
    """Return what makes a capture list possible for batches of up to this size."""
    if size <= max(costs.graph_ms):  # a graph holds them, so only the memory limit is left
        return f"allow more memory, or measure {eager} at bs={size}"
    if size in costs.failed:
        return f"{costs.mode} failed at bs={size}; measure {eager} there"
    largest = max([*costs.graph_ms, *costs.eager_ms])
    return f"the largest size with an ok result is {largest}; measure bs={size}"


# --- mode ---


def advise_mode(args: argparse.Namespace) -> Advice:
    """Recommend a mode from a stored sweep."""
    reference = args.sweep or "last"
    with Store.open(args.db, mode="read") as store:
        if args.model and not args.sweep:
            reference = sweep_with(store, args.model, args.bs)
        sweep = store.find_sweep(reference)
        rows = rows_at(rows_of(store, sweep), args.model, args.bs)
    return advice_from(rows, sweep, args)


def advice_from(
    rows: Sequence[LabelledRow], sweep: SweepInfo, args: argparse.Namespace, is_new: bool = False
) -> Advice:
    """Recommend a mode from these rows of a sweep; the last line says when and where they were
    measured."""
    advice = mode_advice(recommend(rows, Question(args.metric, args.calls, args.memory)))
    advice.data["sweep"] = sweep.id
    when = f"stored results of {sweep.started_at:%Y-%m-%d %H:%M} UTC, nothing was measured"
    if is_new:
        when = "measured now"
    result = rows[0].result
    advice.lines.append(f"{when} ({result.device}, {result.dtype}): sweep {sweep.id}")
    return advice


def advise_model(args: argparse.Namespace) -> Advice:
    """Recommend the mode of a model from stored results of this matrix, or after a short sweep."""
    from effbench.run.client import ForkServer

    with closing(ForkServer()) as server:  # imports torch while Hydra is imported
        from effbench.config.short_sweep import find

        matrix = matrix_of(args)
        is_quiet = args.format == "json" or args.out is not None
        results = find(matrix, server, args.fresh, is_quiet)
    advice = advice_from(rows_at(results.rows), results.sweep, args, results.is_new)
    commands = [
        shlex.join(masked(["effbench", "-m", *matrix])),
        f"effbench report --sweep {results.sweep.id}{db_option(results.database)}",
    ]
    advice.data |= {
        "measured_at": results.sweep.started_at,
        "is_new": results.is_new,
        "commands": commands,
    }
    advice.lines += [f"full matrix: {commands[0]}", f"report: {commands[1]}"]
    return advice


def matrix_of(args: argparse.Namespace) -> list[str]:
    """Return the overrides of the full matrix. Raises UsageError unless they name one model, and
    no option that selects stored results is given."""
    from effbench.config.overrides import key_of
    from effbench.config.short_sweep import CANDIDATES

    models = [word for word in args.words if "=" not in word and not word.startswith("~")]
    overrides = [word for word in args.words if word not in models]
    keys = set(map(key_of, overrides))
    if len(models) != 1 or "model" in keys or args.sweep or args.model:
        raise UsageError(
            "advise mode measures one model at one batch size, as in effbench advise mode mlp bs=8;"
            " without MODEL, --sweep SWEEP --model NAME --bs N select stored results"
        )
    matrix = [f"model={models[0]}"]
    if "mode" not in keys:
        matrix.append(f"mode={CANDIDATES}")
    if args.bs:
        matrix.append(f"bs={args.bs}")
    return [*matrix, *options.place_of(args), *overrides]
