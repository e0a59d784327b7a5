"""`effbench coldstart`: measure what the first answer of a fresh process costs in each mode, and
which cache saves it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from effbench.analysis.coldstart import cold_starts_of
from effbench.cli import options
from effbench.cli.advise import sweep_now
from effbench.cli.show import reasons
from effbench.core.cell import COLDSTART, Cell, Status, Trial
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import LabelledResults, label_rows
from effbench.core.message import TrialRequest
from effbench.core.metrics import METRICS
from effbench.core.printable import listed, one_line
from effbench.core.settings import db_option
from effbench.core.table import Table, as_json, markdown_text
from effbench.core.terminal import escape
from effbench.render.coldstart import portability_table, sentences, tables
from effbench.render.marks import SIGN, explain_marks, signed
from effbench.render.tables import rows_of
from effbench.store.secrets import masked_url
from effbench.store.store import Store

HELP = (
    "Measure what the first answer of a fresh process costs in each mode, and which cache saves it:"
    " for MODEL by a short sweep, without MODEL from a stored one."
)
#: Overrides of the sweep, unless their settings are given. Eager compiles nothing.
DEFAULTS = (
    "mode=eager,default,reduce-overhead",
    "cache=none,folder,bundle",
    "exclude=[{mode:eager,cache:[folder,bundle]}]",
    "protocol=quick",
    "protocol.rounds=3",
    "sweep.name=coldstart",
)
#: The same with --changes. What a cache is worth is the same in each round.
CHANGE_DEFAULTS = (
    "mode=default",
    "cache=folder,bundle",
    "coldstart.change=none,folder,bs,rank,gpu,constant",
    "protocol=quick",
    "sweep.name=coldstart",
)
#: The same with --make and --try.
FOLDER_DEFAULTS = ("mode=default", "cache=bundle", "protocol=quick")
#: Value of `cache` -> the line of a program that uses it.
LOADING = {
    "bundle": 'torch.compiler.load_cache_artifacts(open("{folder}/bundle.bin", "rb").read())',
    "package": 'model = torch._inductor.aoti_load_package("{folder}/package.pt2")',
}
#: What describes the cache in a folder.
MADE = "made.json"
#: Fields of the trial that programs get.
TRIED = (
    "status",
    "reason",
    "cold_s",
    "latency_ms",
    "cache_bytes",
    "cache_reuse",
    "disturbance",
)
#: Values of `cache_reuse`, and what they mean.
WHOLE, NONE = "whole", "none"
REUSES = {
    WHOLE: "The cache holds",
    "part": "A part of the cache was used",
    NONE: "The cache was not used",
}
#: Most reasons of misses that a line names.
MOST_REASONS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="MODEL [OVERRIDE]",
        help="model to measure, as in model=MODEL, and overrides as in a sweep: bs=8"
        " mode=eager,default cache=none,bundle",
    )
    add(
        "--changes",
        action="store_true",
        help="show what a cache is still worth after a change: of its folder, the batch size, the"
        " rank in a process group, the GPU, a constant in the model",
    )
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument("--make", metavar="DIR", help="write the cache of one mode to a new folder")
    folder.add_argument(
        "--try",
        dest="tried",
        metavar="DIR",
        help="start with the cache in this folder; exit with 1 unless all of it is used",
    )
    options.add_config_dir(parser)
    add("--sweep", metavar="ID|NAME|last", help=f"{options.WHICH_SWEEP} (default: last)")
    options.add_format(parser, "markdown", "json")


def run(args: argparse.Namespace) -> int:
    folder = args.make or args.tried
    if folder:
        return use_folder(args, Path(folder))
    sweep_id, db = args.sweep or "last", args.db
    if args.words:
        defaults = CHANGE_DEFAULTS if args.changes else DEFAULTS
        outcome = sweep_now(words_of(args, defaults), args)
        sweep_id, db = outcome.sweep_id, outcome.db
    with Store.open(db, mode="read") as store:
        sweep = store.find_sweep(sweep_id)
        rows = label_rows(row for row in rows_of(store, sweep) if row.phase == COLDSTART)
        facts = store.trial_facts(sweep.id, (COLDSTART,))
    report = report_of(rows)
    if args.changes:  # the table has the reasons
        report = Report([], [portability_table(rows, facts)], [])
    if not any(table.rows for table in report.tables):
        why = "; ".join(reasons(rows)) or "effbench coldstart MODEL measures some"
        raise NothingFoundError(f"sweep {sweep.id} has no such cold starts: {why}")
    report.lines.extend(filter(None, [explain_marks(rows)]))
    report.lines.append(f"sweep {sweep.id}{db_option(masked_url(db))}")
    write(report, args)
    return 0


@dataclass(frozen=True)
class Report:
    """What the command prints: sentences, then tables, then further lines."""

    sentences: list[str]
    tables: list[Table]
    lines: list[str]


def report_of(rows: LabelledResults) -> Report:
    """Return what each cold start costs and when it pays."""
    starts = cold_starts_of(rows)
    if not starts:
        return Report([], [], [])
    return Report(sentences(starts), tables(starts), reasons(rows))


def write(report: Report, args: argparse.Namespace) -> None:
    if args.format == "json":
        rows = report.tables[0].records()
        document = {"sentences": report.sentences, "rows": rows, "lines": report.lines}
        options.write(as_json(document), args)
        return
    if args.format == "markdown":
        parts = list(map(markdown_text, report.sentences))
        parts += [table.render("markdown").rstrip() for table in report.tables]
        parts += map(markdown_text, report.lines)
        options.write("\n\n".join(parts), args)
        return
    with options.console(args) as console:
        for sentence in report.sentences:
            console.print_line(escape(sentence), "bold")
        for table in report.tables:
            console.print(f"\n{table.caption}", style="dim")
            table.print(console)
        for line in report.lines:
            console.print_line(escape(line), "dim")


# --- the words of the sweep ---


def words_of(args: argparse.Namespace, defaults: Sequence[str]) -> list[str]:
    """Return the overrides of the sweep: `defaults`, unless they are given, then the words. Raises
    UsageError unless the words name one model."""
    models = [word for word in args.words if "=" not in word and not word.startswith("~")]
    if len(models) != 1 or args.sweep:
        raise UsageError(
            "coldstart measures one model, as in effbench coldstart mlp bs=8; without MODEL,"
            " --sweep SWEEP selects stored results"
        )
    overrides = [word for word in args.words if word not in models]
    words = [f"model={models[0]}", f"phase={COLDSTART}", *options.place_of(args)]
    return [*words, *missing_defaults(defaults, overrides), *overrides]


def missing_defaults(defaults: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the defaults of settings that no override has."""
    from effbench.config.overrides import parse

    given = {word.key: word.value for word in map(parse, overrides)}
    modes = given.get("mode", "eager").split(",")
    has_own_caches = "cache" in given or "eager" not in modes
    missing = []
    for default in defaults:
        word = parse(default)
        if word.key == "exclude" and has_own_caches:
            continue
        if word.key not in given and word.section not in given:
            missing.append(default)
    return missing


# --- a folder with a cache ---


def use_folder(args: argparse.Namespace, folder: Path) -> int:
    """Make a cache in the folder, or start with the one that is in it; print how soon a process
    answers, and return 1 if that failed or not all of the cache was used."""
    is_made = (folder / MADE).exists()
    if args.make and is_made:
        raise UsageError(f"--make: {folder} already holds a cache; name a new folder")
    if args.tried and not is_made:
        raise UsageError(
            f"--try: {folder} holds no cache; effbench coldstart MODEL --make {folder} makes one"
        )
    cell, trial = started_once(words_of(args, FOLDER_DEFAULTS), folder)
    missed = trial.extra.get(COLDSTART, {}).get("missed", [])
    lines = [folder_sentence(trial, missed)]
    if trial.disturbance is not None:
        lines.append(f"{SIGN} measured on a disturbed machine: {trial.disturbance}.")
    if args.make and trial.status.is_measured:
        lines.append(f"To start with it: {LOADING[str(cell.cache)].format(folder=folder)}")
    if args.format == "json":
        data = {name: getattr(trial, name) for name in TRIED}
        options.write(as_json(data | {"sentence": lines[0], "missed": missed}), args)
    else:
        options.write("\n".join(map(one_line, lines)), args)
    return int(trial.status is not Status.OK or not holds(trial))


def started_once(words: Sequence[str], folder: Path) -> tuple[Cell, Trial]:
    """Run one cold start of the only cell of these overrides, and return the cell and the trial,
    which is not recorded. It uses the cache in the folder, or makes it in an empty folder. Raises
    EffbenchError if the cell cannot run."""
    from effbench.config.cells import prepare
    from effbench.config.launch import jobs_of
    from effbench.config.overrides import read
    from effbench.run.compile_caches import make_cache_folders
    from effbench.run.devices import slots_of, wait_for_device
    from effbench.run.interrupts import StoppedError, stop_on_ctrl_c
    from effbench.run.pool import gpus_of, open_servers
    from effbench.run.sweep import Command

    command = Command(["coldstart", *words], {})
    matrix = prepare(jobs_of(read(words)))
    settings = matrix.settings
    if len(matrix.runs) != 1 or matrix.runs[0].cell.cache not in LOADING:
        raise UsageError(
            "--make and --try take one mode, one batch size, and cache=bundle or cache=package"
        )
    if matrix.runs[0].cell.change == "constant":
        raise UsageError("--make and --try take no coldstart.change=constant; see --changes")
    make_cache_folders(settings)
    try:
        with (
            stop_on_ctrl_c(command.stop),
            open_servers(matrix.runs, settings.baseline_mode, command.stop) as servers,
        ):
            (run,) = matrix.plan(servers, command).distinct_runs()
            cell = run.cell
            slot = slots_of(gpus_of(servers), [cell])[0]
            request = TrialRequest(
                cell=cell.params(),
                protocol=asdict(settings.protocol),
                gpu_uuid=slot.uuid,
                cache_dir=str(folder.resolve()),
                cores=slot.cores,
            )
            with wait_for_device(slot, command.stop):
                task = servers[run.interpreter].server.complete(
                    COLDSTART,
                    request.to_json(),
                    settings.timeout_s,
                    {**slot.env, **cell.env},
                    command.stop,
                )
    except StoppedError:
        raise KeyboardInterrupt from None
    if task.stopped:
        raise KeyboardInterrupt
    return cell, task.record(cell.key, 0)


def holds(trial: Trial) -> bool:
    """Return whether a process used all that its cache has, which need not save all compiling."""
    return trial.cache_reuse != NONE and not trial.cache_misses


def folder_sentence(trial: Trial, missed: Sequence[str]) -> str:
    """Return how much of a cache a process used and how soon it answered, or why it failed."""
    if not trial.status.is_measured:
        return f"The process with this cache ended as {trial.status}: {trial.reason}"
    size = METRICS["cache_bytes"].format(trial.cache_bytes)
    seconds = signed(METRICS["cold_s"].format(trial.cold_s), trial.disturbance is not None)
    reuse = str(trial.cache_reuse)
    if holds(trial):
        reuse = WHOLE
    text = f"{REUSES[reuse]} ({size}): the first answer came after {seconds}"
    if missed:
        text += f"; missed: {listed(missed, MOST_REASONS)}"
    return text
