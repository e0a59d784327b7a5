"""`effbench advise mode`: recommend the mode to run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from effbench.analysis.advice import QUANTITIES, Question, recommend, rows_at, sweep_with
from effbench.analysis.predict import shipped
from effbench.cli import options
from effbench.cli.show import how_to_resume
from effbench.core.errors import UsageError
from effbench.core.labels import LabelledResult
from effbench.core.table import as_json
from effbench.core.terminal import escape
from effbench.render.advice import Advice, mode_advice, prediction_advice
from effbench.render.tables import rows_of
from effbench.store.store import Store

if TYPE_CHECKING:
    from effbench.config.overrides import Word
    from effbench.run.sweep import Outcome

HELP = (
    "Recommend the mode for a model at one batch size: for MODEL by a short sweep, without MODEL"
    " from a stored one."
)
#: Separate launches and CUDA graphs of eager's kernels and of Inductor's. Autotuning would take
#: minutes.
CANDIDATES = "eager,cuda-graph,default,reduce-overhead,default+graph"
#: Rounds of a short sweep.
ROUNDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=["mode"], help="recommend a mode")
    add(
        "words",
        nargs="*",
        metavar="MODEL [OVERRIDE]",
        help="model to measure, as in model=MODEL, and overrides as in a sweep: bs=8"
        " mode=eager,default dtype=float32",
    )
    add(
        "--predict",
        action="store_true",
        help="run MODEL once in eager and predict the latencies of other modes",
    )
    options.add_config_dir(parser)
    add(
        "--sweep",
        metavar="ID|NAME|last",
        help=f"{options.WHICH_SWEEP} (default: last; with --model, the sweep with most of its"
        " results)",
    )
    add("--model", metavar="NAME", help="model of the sweep (default: the only one)")
    add(
        "--metric",
        default="latency",
        choices=[*QUANTITIES],
        help="cost of a call (default: latency)",
    )
    add(
        "--memory",
        type=float,
        metavar="GIB",
        help="limit of peak reserved memory, in GiB",
    )
    options.add_format(parser, "json")
    number = options.at_least(1)
    add("--bs", type=number, metavar="N", help="batch size (default: the only one of the sweep)")
    add(
        "--calls",
        type=number,
        metavar="N",
        help="calls per preparation (default: ignore preparation)",
    )


def run(args: argparse.Namespace) -> int:
    if args.predict:
        advice = advise_by_prediction(args)
    else:
        advice = advise_model(args) if args.words else advise_mode(args)
    if args.format == "json":
        options.write(as_json(advice.data), args)
        return 0
    with options.console(args) as console:
        console.print_line(escape(advice.answer), "bold")
        advice.table.print(console)
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
    when = f"stored results of {sweep.started_at:%Y-%m-%d %H:%M} UTC, nothing was measured"
    return advice_from(rows, args, sweep.id, when)


def advice_from(
    rows: Sequence[LabelledResult], args: argparse.Namespace, sweep_id: str, when: str
) -> Advice:
    """Recommend a mode from these rows of a sweep; the last line says `when` and where they were
    measured."""
    memory_bytes = None
    if args.memory is not None:
        memory_bytes = round(args.memory * 2**30)
    advice = mode_advice(recommend(rows, Question(args.metric, args.calls, memory_bytes)))
    advice.data["sweep"] = sweep_id
    result = rows[0]
    advice.lines.append(f"{when} ({result.device}, {result.dtype}): sweep {sweep_id}")
    return advice


def advise_model(args: argparse.Namespace) -> Advice:
    """Recommend the mode of a model after a short sweep."""
    outcome = short_sweep("advise", ROUNDS, matrix_of(args), args)
    sweep_id = outcome.sweep_id
    with Store.open(outcome.db, mode="read") as store:
        rows = rows_at(rows_of(store, store.find_sweep(sweep_id)))
    return advice_from(rows, args, sweep_id, "measured now")


def advise_by_prediction(args: argparse.Namespace) -> Advice:
    """Predict the modes of a model from one trial in eager."""
    matrix = matrix_of(args)
    is_limited = args.calls or args.memory or args.metric != "latency"
    if is_limited or any(word.startswith("mode=") for word in args.words):
        raise UsageError(
            "--predict predicts latencies from eager: omit mode=, --calls, --memory, --metric"
        )
    outcome = short_sweep("predict", 1, [*matrix, "mode=eager"], args)
    with Store.open(outcome.db, mode="read") as store:
        eager = rows_at(rows_of(store, store.find_sweep(outcome.sweep_id)))[0]
        predictions = shipped().predict(eager, store.trials(outcome.sweep_id)[-1])
    return prediction_advice(eager, predictions)


def short_sweep(name: str, rounds: int, matrix: Sequence[str], args: argparse.Namespace) -> Outcome:
    """Run a sweep of this name, short unless the overrides have a protocol."""
    words = [f"sweep.name={name}"]
    if not any(word.startswith("protocol=") for word in matrix):
        words += ["protocol=quick", f"protocol.rounds={rounds}"]
    return sweep_now([*words, *matrix], args)


def sweep_now(words: Sequence[str], args: argparse.Namespace) -> Outcome:
    """Run the sweep of these overrides, whose failed cells are results, and return its outcome.
    Raises UsageError if they run no sweep, and KeyboardInterrupt if it was interrupted."""
    from effbench.config.launch import hydra_sweep

    is_quiet = args.format != "table" or args.out is not None
    outcome = hydra_sweep(["-m", "on_failure=ignore", *words], quiet=is_quiet)
    if outcome is None:
        raise UsageError("these overrides run no sweep")
    if outcome.state == "interrupted":
        print(f"interrupted; {how_to_resume(outcome)}", file=sys.stderr)
        raise KeyboardInterrupt
    return outcome


def matrix_of(args: argparse.Namespace) -> list[str]:
    """Return the overrides of the sweep. Raises UsageError for words and options that
    `check_words` refuses."""
    from effbench.config.overrides import parse

    models = [word for word in args.words if "=" not in word and not word.startswith("~")]
    overrides = [parse(word) for word in args.words if word not in models]
    check_words(args, models, overrides)
    matrix = [f"model={models[0]}"]
    if not args.predict and all(word.key != "mode" for word in overrides):
        matrix.append(f"mode={CANDIDATES}")
    if args.bs:
        matrix.append(f"bs={args.bs}")
    return [*matrix, *options.place_of(args), *(word.text for word in overrides)]


def check_words(args: argparse.Namespace, models: Sequence[str], overrides: Sequence[Word]) -> None:
    """Raise UsageError unless the words name one model and sweep nothing but modes, and no option
    that selects stored results is given."""
    if len(models) != 1 or args.sweep or args.model or not leave_one_model(overrides):
        raise UsageError(
            "advise mode measures one model at one batch size, as in effbench advise mode mlp bs=8;"
            " without MODEL, --sweep SWEEP --model NAME --bs N select stored results"
        )


def leave_one_model(overrides: Sequence[Word]) -> bool:
    """Return whether no override names a model, and none but that of the mode has several
    values."""
    others = [word for word in overrides if word.key != "mode"]
    return not any(word.key == "model" or word.override.is_sweep_override() for word in others)
