"""`effbench advise mode`: recommend the mode to run."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from contextlib import closing

from effbench.analysis.advice import QUANTITIES, Question, recommend, rows_at, sweep_with
from effbench.cli import options
from effbench.core.errors import UsageError
from effbench.core.labels import LabelledRow
from effbench.core.settings import db_option
from effbench.core.table import as_json
from effbench.core.terminal import escape
from effbench.render.advice import Advice, mode_advice
from effbench.render.tables import rows_of
from effbench.store.secrets import masked
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

HELP = (
    "Recommend the mode for a model at one batch size: for MODEL by a short sweep, unless this"
    " machine has stored results of it; without MODEL from a stored sweep."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(required=True, metavar="mode")
    mode = parts.add_parser("mode", description=HELP)
    mode.add_argument(
        "words",
        nargs="*",
        metavar="MODEL [OVERRIDE]",
        help="model to measure, as in model=MODEL, and overrides as in a sweep: bs=8"
        " mode=eager,default dtype=float32",
    )
    options.add_place(mode)
    mode.add_argument(
        "--fresh", action="store_true", help="measure MODEL even if there are stored results"
    )
    mode.add_argument(
        "--sweep",
        metavar="ID|NAME|last",
        help=f"{options.WHICH_SWEEP} (default: last; with --model, the sweep with most of its"
        " results)",
    )
    mode.add_argument("--model", metavar="NAME", help="model of the sweep (default: the only one)")
    mode.add_argument(
        "--metric",
        default="latency",
        choices=[*QUANTITIES],
        help="cost of a call (default: latency)",
    )
    mode.add_argument(
        "--memory",
        type=byte_size,
        metavar="SIZE",
        help="limit of peak reserved memory: 4GiB",
    )
    options.add_format(mode, "json")
    options.add_out(mode)
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
    advice = advise_model(args) if args.words or args.fresh else advise_mode(args)
    if args.format == "json":
        options.write(as_json(advice.data), args)
        return 0
    with options.console(args) as console:
        console.print_line(escape(advice.answer), "bold")
        console.print_table(advice.table)
        for line in advice.lines:
            console.print_line(escape(line), "dim")
    return 0


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
