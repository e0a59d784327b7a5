"""`effbench advise`: recommend the batch sizes to capture for a trace, or the mode to run."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Any

import yaml

from effbench import streams
from effbench.buckets import PRESETS, capture_sizes
from effbench.commands import options
from effbench.config import DEFAULT_DB, db_option, quoted
from effbench.errors import ConfigError, NothingFoundError, UsageError
from effbench.labels import ABSENT, LabelledRow
from effbench.metrics import INTERVALS, METRICS, SPEEDUPS, percent
from effbench.printable import one_line
from effbench.report.advice import (
    CALL,
    Costs,
    best_list,
    costs_of,
    evaluate,
    rank_modes,
    rows_at,
    sweep_with,
)
from effbench.report.reasons import outcome_of, reason
from effbench.report.tables import (
    TIMES,
    UNCLEAR,
    figure_texts,
    rows_of,
    speedup_table,
    speedup_text,
)
from effbench.stats.elimination import CLOSE, PROCESS_SD, Race
from effbench.stats.intervals import LogEstimate, is_less, log_difference, stored_log_mean
from effbench.store.secrets import masked
from effbench.store.store import Store
from effbench.store.summary import break_even_calls
from effbench.store.sweeps import SweepInfo
from effbench.table import Column, Shown, Table, as_json
from effbench.terminal import escape

HELP = (
    "Recommend the mode to run, or the batch sizes to capture (`advise mode` and `advise buckets`)."
)
MODE = (
    "Recommend the mode for a model at one batch size: from a stored sweep, or for MODEL also by a"
    " short new one."
)
milliseconds = METRICS["latency_ms"].format
#: A table, the lines below it (the first is the recommendation), and the same content for JSON.
Answer = tuple[Table, list[str], dict[str, Any]]


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
    return round(float(match[1]) * base ** " KMGT".index(match[2] or " "))


def run(args: argparse.Namespace) -> int:
    is_stored = args.what == "mode" and args.stored
    if is_stored:
        choose_stored(args)
    if args.what == "mode" and not is_stored and (args.words or args.fresh):
        try:
            table, lines, data = advise_model(args)
        except ConfigError as error:
            # names of imported results may belong to no YAML file here
            if str(error).startswith("unknown model"):
                raise ConfigError(
                    f"{error}\n--stored answers from stored results of any name"
                ) from error
            raise
    else:
        with Store.open(args.db, mode="read") as store:
            sweep = store.find_sweep(args.sweep)
            if args.what == "buckets":
                table, lines, data = advise_buckets(
                    args, rows_of(store, sweep), sweep.baseline_mode
                )
            else:
                rows = rows_at(rows_of(store, sweep), args.model, args.bs)
                race = race_in(store, sweep, [row.source for row in rows], CALL[args.metric])
                table, lines, data = advise_mode(args, rows, sweep.baseline_mode, race)
                data["sweep"] = sweep.id
                if is_stored:
                    lines.append(source_text(sweep, rows[0].source, is_new=False))
    if args.format == "json":
        options.write(as_json(data), args)
    else:
        with options.console(args) as console:
            console.print_line(escape(lines[0]), "bold")
            console.print_table(table, lines=True)
            for line in lines[1:]:
                console.print_line(escape(line), "dim")
    return 0


def read_trace(args: argparse.Namespace) -> Counter[int]:
    """Return batch size -> number of calls in the trace."""
    if args.trace:
        return Counter(streams.read_sizes(args.trace))
    kind, *words = args.stream
    try:
        given = {
            key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)
        }
    except yaml.YAMLError as error:
        raise UsageError(f"--stream {' '.join(args.stream)}: a value is not valid YAML") from error
    sizes = streams.batch_sizes({"name": kind, **streams.KINDS.get(kind, {}), **given})
    if sizes is None or kind == streams.ARRIVALS:
        raise UsageError(
            f"--stream {kind} has no batch sizes; choose another kind, or give --trace FILE"
        )
    return Counter(sizes)


def advise_buckets(args: argparse.Namespace, rows: list[dict[str, Any]], eager: str) -> Answer:
    """Find the best capture list for the trace, and compare it with those of inference servers."""
    trace = read_trace(args)
    costs, budget = costs_of(rows, args.model, args.mode, args.metric, eager), args.memory_budget
    if budget is not None and not costs.pool_bytes:
        raise NothingFoundError(f"{costs.mode} has no measured graph memory; omit --memory-budget")
    best = best_list(trace, costs, budget)
    if best is None:
        raise NothingFoundError(
            f"no list serves sizes up to {max(trace)}; {remedy(max(trace), costs, eager)}"
        )
    presets = {name: capture_sizes(name, list(trace)) for name in PRESETS}
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
        memory = METRICS["graph_pool_bytes"].format(option.memory_bytes) + (
            ", over budget" if is_too_much else ""
        )
        padding = ABSENT if option.padding_waste is None else percent(option.padding_waste)
        shown = {"graphs": len(option.sizes), "ratio": ratio, "padding": padding, "memory": memory}
        table.append(asdict(option) | shown)
    lines = [
        (
            f"capture: {best.sizes}"
            if best.sizes
            else "capture nothing: calls without a graph are fastest"
        ),
        (
            f"{costs.case}, {costs.mode}; {sum(trace.values())} calls of {min(trace)} to"
            f" {max(trace)} rows"
        ),
    ]
    if costs.is_marked:
        lines.append(
            "every time is marked (host disturbed): measure again when the machine is quiet"
        )
    elif costs.marked:
        sizes = one_line(sorted(costs.marked), 80)
        lines.append(f"times that do not count, because the host was disturbed: bs {sizes[1:-1]}")
    if best.unmeasured:
        lines.append(f"not measured, estimated from other sizes: {one_line(best.unmeasured, 80)}")
    data = {"model": costs.case, "mode": costs.mode, "metric": args.metric, "advised": asdict(best)}
    data["others"] = [asdict(option) for option in lists[1:]]
    return Table(columns, table), lines, data


def remedy(size: int, costs: Costs, eager: str) -> str:
    """Return what makes a capture list possible for batches of up to this size."""
    if size <= max(costs.graph_ms):  # a graph holds them, so only the memory limit is left
        return f"allow more memory, or measure {eager} at bs={size}"
    if size in costs.failed:
        return f"{costs.mode} failed at bs={size}; measure {eager} there"
    largest = max([*costs.graph_ms, *costs.eager_ms])
    return f"the largest size with an ok result is {largest}; measure bs={size}"


def choose_stored(args: argparse.Namespace) -> None:
    """Choose the sweep with most results of MODEL at its batch size. Raises UsageError for other
    overrides."""
    match = re.fullmatch(
        r"([^=]+?)(?: bs=(\d+))?", " ".join([*filter(None, [args.model]), *args.words])
    )
    if not match or args.sweep != "last":
        how = "for other settings, name a sweep: effbench advise mode --sweep SWEEP --model MODEL"
        raise UsageError(f"advise mode --stored takes one model, and bs=N; {how}")
    args.model, args.bs = match[1], int(match[2]) if match[2] else args.bs
    with Store.open(args.db, mode="read") as store:
        args.sweep = sweep_with(store, args.model, args.bs)


def advise_model(args: argparse.Namespace) -> Answer:
    """Recommend the mode of a model from stored results of this matrix, or after a short sweep."""
    from effbench.sweeping.client import ForkServer

    overrides = [word for word in args.words if "=" in word or word.startswith("~")]
    names = [*(word for word in args.words if word not in overrides), *filter(None, [args.model])]
    overrides += [f"--config-dir={args.config_dir}"] if args.config_dir else []
    if args.sweep != "last":
        raise UsageError(
            "advise mode: name the model of --sweep with --model NAME, without overrides"
        )
    if len(names) != 1:
        raise UsageError(
            f"advise mode: expected one model, got {len(names)}. Example: effbench advise mode mlp"
            " bs=8"
        )
    with closing(ForkServer()) as server:  # imports torch while Hydra is imported
        from effbench.launcher.adaptive import CANDIDATES, find
        from effbench.launcher.overrides import key_of

        matrix = [
            f"model={names[0]}",
            f"mode={CANDIDATES}",
            *([] if args.bs is None else [f"bs={args.bs}"]),
        ]
        given = {key_of(word) for word in overrides}
        if any(key and key.partition(".")[0] == "stream" for key in given):
            raise UsageError(
                "advise mode: a stream has no single batch size; omit it, or compare modes in a"
                " sweep"
            )
        if "model" in given:
            raise UsageError("advise mode: give the model once, as MODEL, without model=")
        if args.bs is not None and "bs" in given:
            raise UsageError("advise mode: give the batch size once, as bs=N or as --bs N")
        matrix = [word for word in matrix if key_of(word) not in given] + overrides
        db = [] if "db" in given or args.db == DEFAULT_DB else [f"db={quoted(args.db)}"]
        own = [
            "protocol=advise",
            f"protocol.eliminate={CALL[args.metric]}",
            "sweep.name=advise",
            "on_failure=ignore",
        ]
        own = [word for word in own if key_of(word) not in given]
        is_quiet = args.format == "json" or args.out is not None
        found = find(["-m", *own, *matrix, *db], server, args.fresh, is_quiet)
    table, lines, data = advise_mode(
        args, rows_at(found.rows), found.sweep.baseline_mode, found.race
    )
    commands = [shlex.join(masked(["effbench", "-m", *matrix, *db]))]
    commands.append(f"effbench report --sweep {found.sweep.id}{db_option(found.database)}")
    at = found.sweep.started_at
    data |= {
        "sweep": found.sweep.id,
        "measured_at": at,
        "is_new": found.is_new,
        "commands": commands,
    }
    source = source_text(found.sweep, found.rows[0], found.is_new)
    lines += [source, f"full matrix: {commands[0]}", f"report: {commands[1]}"]
    return table, lines, data


def source_text(sweep: SweepInfo, row: Mapping[str, Any], is_new: bool) -> str:
    """Return when the results were measured, and where: `measured now (cuda, bfloat16): sweep
    20270301-120000-1a2b`."""
    stored = f"stored results of {sweep.started_at:%Y-%m-%d %H:%M} UTC, nothing was measured"
    return (
        f"{'measured now' if is_new else stored} ({row['device']}, {row['dtype']}): sweep"
        f" {sweep.id}"
    )


def advise_mode(
    args: argparse.Namespace, at_size: list[LabelledRow], baseline_mode: str, race: Race | None
) -> Answer:
    """Rank the modes of one model at one batch size, with the reason. `race`: of these rows, if
    there was one."""
    case, bs = at_size[0].case, at_size[0].labels["bs"]
    ranked, close, excluded = rank_modes(
        at_size, CALL[args.metric], args.calls, args.memory, baseline_mode
    )
    ended = {mode["cell_key"]: mode["trials"] for mode in ranked}
    # if a round was measured again, the race would have gone otherwise with its new figure
    if race and (
        ended.keys() - race.estimates
        or any(ended.get(key, 0) > n for key, n in race.eliminated.items())
    ):
        race = None
    if race:
        if args.calls:
            best = with_preparation(race, ranked[0])
            others = [mode for mode in ranked[1:] if not mode["marked"]]
            close = [
                mode["mode"] for mode in others if not is_less(best, with_preparation(race, mode))
            ]
        else:  # a mode that was eliminated has few rounds and perhaps no interval, but does not tie
            ranked.sort(key=lambda mode: mode["cell_key"] in race.eliminated)
            left = [mode for mode in ranked[1:] if mode["cell_key"] not in race.eliminated]
            close = [
                mode["mode"] for mode in left if not mode["marked"] and not ranked[0]["marked"]
            ]
    columns = [
        Column("mode"),
        Column("call", f"{args.metric} per call", numeric=True),
        Column(
            "score_ms",
            f"per call with preparation ({args.calls or 0:,} calls)",
            numeric=True,
            format=milliseconds,
        ),
        *(Column(it, METRICS[it].title, numeric=True, optional=True) for it in SPEEDUPS),
        Column("preparation", numeric=True),
        Column(
            "break_even", "pays back after", numeric=True, format=METRICS["break_even_calls"].format
        ),
        Column(
            "memory_bytes", "memory", numeric=True, format=METRICS["peak_reserved_bytes"].format
        ),
        Column("trials", "rounds", numeric=True),
        Column("standing", "left out", optional=True),
    ]
    table = []
    base = next((mode for mode in ranked if mode["mode"] == baseline_mode), None)
    for mode in ranked:
        mode["standing"] = standing(race, mode) if race else ""
        if race and base is not None and base is not mode:
            mode |= raced(race, base, mode, CALL[args.metric])
        call, interval = figure_texts(
            CALL[args.metric], mode["call_ms"], mode["low_ms"], mode["high_ms"]
        )
        call = with_mark(call, mode["marked"])
        has_mark = mode["marked"] or bool(base and base["marked"] and base is not mode)
        speedups = {name: with_mark(speedup_text(mode, name), has_mark) for name in SPEEDUPS}
        preparation = seconds(mode["prepare_s"]) + (" (warm)" if mode["warm"] else "")
        shown = {"call": Shown(mode["call_ms"], call, sub=interval), "preparation": preparation}
        table.append(mode | shown | speedups)
    others = speedup_table(
        [row for row in at_size if row.mode not in excluded], "speedup", baseline_mode
    ).rows
    chosen, because, *more = reasons(ranked, close, args, baseline_mode, race)
    answer = f"Run {case} at bs {bs} with {chosen['mode']}: "
    doubts = marks_text(chosen, ranked)
    answer += "; ".join(
        filter(None, [*gains(chosen, ranked, args.metric, baseline_mode), because, doubts])
    )
    row = next((row for row in others if row.quantity == args.metric), others[0])
    why = reason(replace(row, leader=chosen["mode"], tied=close))
    best = [
        f"{outcome_of(row)} {row.quantity}"
        for row in others
        if row.best and row.quantity != args.metric
    ]
    lines = [f"{answer}.", *([f"why: {why}"] if why else []), *more, *([] if race else best)]
    lines += [f"excluded: {mode} ({text})" for mode, text in excluded.items()]
    data = {"answer": lines[0], "mode": chosen["mode"], "why": why, "model": case, "bs": bs}
    data |= {"metric": args.metric, "calls": args.calls, "modes": ranked}
    data |= {"too_close_to_call": close, "excluded": excluded}
    data["marked"] = {mode["mode"]: mode["disturbance"] for mode in ranked if mode["marked"]}
    return (
        Table([column for column in columns if args.calls or column.key != "score_ms"], table),
        lines,
        data,
    )


def race_in(
    store: Store, sweep: SweepInfo, rows: Sequence[Mapping[str, Any]], column: str
) -> Race | None:
    """Return the race of these rows of a sweep; None if it did not eliminate modes by the
    column."""
    if sweep.protocol.get("eliminate") != column:
        return None
    from effbench.sweeping.schedule import race_of

    history = store.history(sweep.id, rows[0]["environment_id"])
    return race_of(
        {row["cell_key"]: history.get(row["cell_key"], []) for row in rows}, sweep.protocol
    )


def standing(race: Race, mode: dict[str, Any]) -> str:
    """Return why a mode was eliminated: `after round 1: 1.34× the time (1.20–1.50×)`."""
    if mode["cell_key"] not in race.eliminated:
        return ""
    behind = log_difference(
        *(race.estimates[key] for key in (mode["cell_key"], race.leader))
    ).interval()
    value, bounds = figure_texts("speedup", behind.value, behind.low, behind.high)
    return f"after round {race.eliminated[mode['cell_key']]}: {value} the time ({bounds}×)"


def raced(
    race: Race, base: Mapping[str, Any], mode: Mapping[str, Any], column: str
) -> dict[str, float | None]:
    """Return the mode's speedup in `column` with its interval as the race has it: after a single
    round, too."""
    ratio, name = (
        log_difference(*(race.estimates[one["cell_key"]] for one in (base, mode))).interval(),
        TIMES[column],
    )
    return dict(zip((name, *INTERVALS[name]), (ratio.value, ratio.low, ratio.high), strict=True))


def with_preparation(race: Race, mode: Mapping[str, Any]) -> LogEstimate:
    """Return the logarithm of a mode's time per call with its preparation, which only the call
    makes uncertain."""
    call, score_ms = race.estimates[mode["cell_key"]], mode["score_ms"]
    error = None if call.error is None else call.error * mode["call_ms"] / score_ms
    return LogEstimate(math.log(score_ms), error, call.df)


def seconds(value: float) -> str:
    return "< 1 ms" if value < 0.001 else f"{value:.2g} s"


def gains(
    chosen: dict[str, Any], ranked: list[dict[str, Any]], metric: str, baseline_mode: str
) -> list[str]:
    """Return what a mode gains and costs: `3.10× (2.90–3.30×) the speed of eager in latency, 4.50×
    in period`, `preparation takes 0.4 s`, `needs 34 MiB more memory`."""
    base = next((mode for mode in ranked if mode["mode"] == baseline_mode), chosen)
    text = [f"preparation takes {seconds(chosen['prepare_s'])}"]
    if base is chosen:
        return text
    ratios = []
    for name, column in sorted(SPEEDUPS.items(), key=lambda item: item[1] != CALL[metric]):
        value, low, high = (chosen[each] for each in (name, *INTERVALS[name]))
        figure, bounds = figure_texts(name, value, low, high)
        figure = with_mark(figure, chosen["marked"] or base["marked"])
        if value is not None and not figure.endswith(UNCLEAR):
            of = (
                (f" ({bounds}×)" if bounds else "") + f" the speed of {base['mode']}"
                if not ratios
                else ""
            )
            ratios.append(f"{figure}{of} in {column.removesuffix('_ms')}")
    if more := (chosen["memory_bytes"] or 0) - (base["memory_bytes"] or 0):
        amount = METRICS["peak_reserved_bytes"].format(abs(more))
        direction = "less" if more < 0 else "more"
        text.append(f"needs {amount} {direction} memory")
    return [", ".join(ratios), *text]


def with_mark(text: str, is_marked: bool) -> str:
    """Return the text of a figure with `~` if it is marked."""
    return f"~{text}" if is_marked and text and not text.startswith("~") else text


def marks_text(chosen: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]]) -> str:
    """Return what the host's disturbance makes doubtful about the recommended mode and its
    rivals."""
    marked = [mode for mode in ranked if mode["marked"]]
    if not marked:
        return ""
    again = "measure again when the machine is quiet"
    if len(marked) == len(ranked):
        return f"every figure is marked (host disturbed), so nothing is significant: {again}"
    if chosen["marked"]:
        return (
            f"its own figure is marked (host disturbed), and the unmarked modes are slower: {again}"
        )
    rivals = ", ".join(f"{mode['mode']} ~{milliseconds(mode['call_ms'])}" for mode in marked)
    return f"not compared, because the host was disturbed: {rivals}; {again}"


def log_call(mode: Mapping[str, Any]) -> LogEstimate:
    """Return the logarithm of a ranked mode's time per call."""
    return stored_log_mean(
        *(mode.get(name) for name in ("call_ms", "low_ms", "high_ms", "trials", "compilations"))
    )


def reasons(
    ranked: list[dict[str, Any]],
    close: list[str],
    args: argparse.Namespace,
    baseline_mode: str,
    race: Race | None,
) -> tuple[Any, ...]:
    """Return the recommended mode, the reason, and lines on intervals and on calls from which other
    modes are better. Of modes that tie, it is the one with the shortest preparation; in a race
    without a tie, the fastest one."""
    best = ranked[0]
    ranked = [mode for mode in ranked if mode is best or not mode.get("marked")]
    over = f" over {args.calls:,} calls including preparation" if args.calls else ""
    if close:
        tied = [mode for mode in ranked if mode is best or mode["mode"] in close]
        is_open = race is not None and not race.is_tie
        is_once = race is None and best["low_ms"] is None
        chosen = best if is_open or is_once else min(tied, key=itemgetter("prepare_s"))
        names = ", ".join(mode["mode"] for mode in tied if mode is not chosen)
        if is_once:
            return (
                chosen,
                (
                    f"lowest {args.metric}{over} in one round, which gives no intervals:"
                    f" {names} may be as fast"
                ),
            )
        if is_open:
            # the race knows neither the preparation nor a limit of memory
            is_bounded = race.is_over and args.calls is None and args.memory is None
            bound = (
                f": at most {100 * (CLOSE - 1):.0f} % higher, with 95 % confidence"
                if is_bounded
                else ""
            )
            # stricter than a 95 % interval, because several modes and rounds are compared
            rounds = "one trial each does" if best["trials"] == 1 else f"{best['trials']} rounds do"
            return chosen, f"lowest {args.metric}{over}, but {rounds} not rule out {names}{bound}"
        return chosen, f"no significant winner: ties with {names}, and has the shortest preparation"
    lines, apart = [], ""
    if race and best["trials"] == 1 and len(ranked) > 1 and not args.calls:
        least = min(mode["call_ms"] for mode in ranked[1:]) / best["call_ms"]
        apart = f" in one trial per mode; all others took at least {least:.2f} times as long"
        lines.append(
            f"one trial per mode: intervals assume a spread of {100 * PROCESS_SD:g} % between"
            " processes"
        )
    for mode in ranked[1:]:
        # a mode with longer preparation than the best pays off if each call is significantly faster
        after = break_even_calls(
            mode["prepare_s"] - best["prepare_s"], best["call_ms"], mode["call_ms"]
        )
        # as the table has it
        after = mode["break_even"] if best["mode"] == baseline_mode else after
        is_tied = None not in (mode["high_ms"], best["low_ms"]) and not is_less(
            *map(log_call, (mode, best))
        )
        if after is not None and after > 0 and not is_tied:
            lines.append(
                f"{mode['mode']} is faster per call; from {after:,} calls on it beats"
                f" {best['mode']}"
            )
    return best, f"lowest {args.metric}{over}{apart}", *lines
