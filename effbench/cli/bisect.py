"""`effbench bisect`: find which of several settings, or which commit, makes two configurations
differ."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from effbench.analysis.bisect import Difference, Names, Probe, minimal_set, suspects
from effbench.analysis.cell_pairs import labelled_rows, rows_with
from effbench.analysis.duet import FLOOR
from effbench.analysis.limits import COMPARED
from effbench.cli import duet, options
from effbench.core.cell import Status, Trial
from effbench.core.errors import UsageError
from effbench.core.folders import cache_home
from effbench.core.labels import flatten
from effbench.core.printable import count, one_line
from effbench.core.quantities import percent, ratio_text
from effbench.core.table import Column, Shown, Table, as_json
from effbench.core.terminal import escape, terminal
from effbench.run.git import git
from effbench.run.resume import refusal
from effbench.store.secrets import masked
from effbench.store.store import Store

if TYPE_CHECKING:
    from effbench.run.client import ForkServer

HELP = (
    "Find which setting or commit makes two configurations differ: in speed, in another metric, or"
    " because one of them fails. Each probe compares A with a mixture of A and B by duets."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "words",
        nargs="+",
        metavar="A B [OVERRIDE]",
        help="configurations of one cell: overrides in quotes, such as default 'mode=default"
        " mode.options={combo_kernels:true,freezing:true}', or with sweep=SWEEP a stored cell; then"
        " overrides of both, such as model=mlp bs=8",
    )
    add(
        "--commits",
        metavar="GOOD..BAD",
        help="instead of A and B: commits of the current folder's repository, from which trials"
        " import the model",
    )
    add(
        "--metric",
        type=options.metric_of([name for name in COMPARED if hasattr(Trial, name)]),
        default="latency_ms",
        metavar="NAME",
        help="what differs (default: %(default)s)",
    )
    add(
        "--at-least",
        type=float,
        default=80,
        metavar="PERCENT",
        help="part of the difference that the answer explains (default: %(default)s)",
    )
    add("--resume", action="store_true", help="use probes of earlier runs of this command")
    options.add_config_dir(parser)
    options.add_format(parser, "json")


def run(args: argparse.Namespace) -> int:
    from effbench.run.client import ForkServer

    if args.commits:
        with commits_of(args.commits) as commits:
            Bisection(args, commits).run()
        return 0
    sides = [settings_of(overrides_of(text, args.db)) for text in args.words[:2]]
    if len(sides) < 2:
        raise UsageError("bisect takes A and B, or --commits; see effbench bisect --help")
    del args.words[:2]
    changes = changes_between(*sides)
    with closing(ForkServer()) as server:  # one for all probes
        Bisection(args, changes, server).run()
    return 0


@dataclass(frozen=True)
class Changes:
    """What may cause a difference: settings, or commits. `first`: the overrides of A; `overrides`:
    returns those of A with some of these settings, or those of a commit."""

    names: Names
    first: list[str]
    overrides: Callable[[Names], list[str]]
    are_commits: bool = False


@dataclass
class Bisection:
    """A search among changes. `args`: of the command; its words are the overrides of both sides.
    `difference`: what is to be explained, None before it was measured."""

    args: argparse.Namespace
    changes: Changes
    server: ForkServer | None = None
    probes: list[Probe] = field(default_factory=list)
    difference: Difference | None = None

    def run(self) -> None:
        """Find the cause and write the answer. Raises EffbenchError if A and B cannot be compared,
        and KeyboardInterrupt."""
        names = self.changes.names
        are_commits = self.changes.are_commits
        find = suspects if are_commits else minimal_set
        whole = names[-1:] if are_commits else names
        difference = Difference(self.args.metric, self.args.at_least / 100, self.probe(whole))
        cause: Names = ()
        answer = difference.why_none
        if answer is None:
            self.difference = difference
            cause = find(names, lambda tried: difference.explained_by(self.probe(tried)))
            needed = cause[-1:] if are_commits else cause
            *_, probe = (probe for probe in self.probes if probe.names == needed)
            everything = ""
            if len(cause) < len(names):
                everything = f"all {count(len(names), 'commit' if are_commits else 'setting')}"
            joint = " or " if are_commits else " with "
            text = joint.join(map("`{}`".format, cause))
            answer = difference.sentence(text, probe, everything)
        self.report(answer, cause)

    def probe(self, names: Names) -> Probe:
        """Compare A with these changes. Raises as `run` does."""
        metric = self.args.metric
        if self.args.format == "table" and self.args.out is None:  # like a sweep's progress
            console = terminal()
            console.print_line(f"probe {len(self.probes) + 1}: {escape(' '.join(names))}", "bold")
        words = ["sweep.name=bisect", *self.args.words]
        floor = FLOOR
        if self.difference:
            floor = self.difference.floor
            if self.difference.is_of_status:
                words.append("protocol.rounds=1")
        args = argparse.Namespace(**{**vars(self.args), "words": words})
        sides = self.changes.first, self.changes.overrides(names)
        try:
            resumed = recorded(args, *sides)
            outcome, (answer,) = duet.measure(args, *sides, {metric: floor}, resumed, self.server)
        except UsageError as error:  # a mixture that is no configuration
            if self.difference is None:
                raise
            failed = Trial("", 0, Status.UNSUPPORTED, str(error))
            self.probes.append(Probe(names, failed, failed))
        else:
            if outcome.state != "completed":
                raise KeyboardInterrupt("the same command with --resume goes on")
            self.probes.append(Probe.of(names, answer.duets, metric, outcome.sweep_id))
        return self.probes[-1]

    def report(self, answer: str, cause: Names) -> None:
        """Write the answer, then the probes."""
        columns = [
            Column("changed"),
            Column("ratio", "÷ A", numeric=True),
            Column("explains", numeric=True),
            Column("status"),
            Column("sweep"),
        ]
        rows = []
        for probe in self.probes:
            ratio = part = Shown(None, "")
            if probe.test:
                mark = "~" if probe.is_marked else ""
                text = mark + ratio_text(probe.test.ratio, probe.test.low, probe.test.high)
                ratio = Shown(probe.test.ratio, text)
            if probe.test and self.difference and not self.difference.is_of_status:
                explained = self.difference.part_of(probe)
                part = Shown(explained, percent(explained))
            status = ": ".join(filter(None, [probe.after.status, probe.after.reason]))
            rows.append((" ".join(probe.names), ratio, part, one_line(status), probe.sweep_id))
        table = Table.of(columns, rows)
        if self.args.format == "json":
            document = {"sentence": answer, "cause": cause, "probes": table.records()}
            options.write(as_json(document), self.args)
            return
        with options.console(self.args) as console:
            console.print_line(escape(answer), "bold")
            table.print(console)


def recorded(args: argparse.Namespace, first: Sequence[str], second: Sequence[str]) -> str:
    """Return the id of an earlier sweep of these duets if --resume is given; `null` without one."""
    command = masked(duet.command_of(args, first, second))
    if args.resume:
        with Store.open(args.db, mode="read") as store:
            for sweep in store.sweeps():
                if sweep.command == command and refusal(sweep) is None:
                    return str(sweep.id)
    return "null"


# --- settings ---


def overrides_of(text: str, db: str) -> list[str]:
    """Return the overrides of a side; with sweep=SWEEP those of the stored cell that it chooses.
    Raises UsageError unless there is one, of this user."""
    overrides = options.side_of(text)
    wanted = dict(override.split("=", 1) for override in overrides)
    if "sweep" not in wanted:
        return overrides
    with Store.open(db, mode="read") as store:
        sweep = store.find_sweep(wanted["sweep"])
        rows = rows_with(labelled_rows(store, [sweep.id]), {**wanted, "sweep": sweep.id})
        stored = store.cell_overrides(sweep.id)
    why = refusal(sweep)
    if len(rows) != 1:
        why = f"{text!r} fits {count(len(rows), 'cell')} of sweep {sweep.id}; choose one"
    if why is not None:
        raise UsageError(why)
    return [word for word in stored[rows[0].cell_key] or () if not word.startswith("--")]


def settings_of(overrides: Sequence[str]) -> dict[str, str]:
    """Return key -> override. Each key of a mapping, as in `mode.options={a:1,b:2}`, is a setting
    of its own. Raises UsageError for an override with several values."""
    from effbench.config.overrides import parse

    settings = {}
    for word in map(parse, overrides):
        value = word.override.value()
        if word.override.is_sweep_override():
            raise UsageError(f"{word.text}: A and B are one cell each, so give one value")
        if not isinstance(value, dict) or "[" in word.text:
            settings[word.key] = word.text
            continue
        for name, inner in flatten(value, f"{word.override.get_key_element()}.").items():
            settings[name.lstrip("+")] = f"{name}={json.dumps(inner)}"
    return settings


def changes_between(first: Mapping[str, str], second: Mapping[str, str]) -> Changes:
    """Return the settings in which B differs from A. Raises UsageError without any."""
    keys = {}
    for key in {**first, **second}:
        if first.get(key) != second.get(key):
            keys[second.get(key) or f"without {first[key]}"] = key
    if not keys:
        raise UsageError("bisect: A and B have the same settings; change one of them")

    def overrides(names: Names) -> list[str]:
        mixed: dict[str, str | None] = {**first}
        for name in names:
            mixed[keys[name]] = second.get(keys[name])
        return [*filter(None, mixed.values())]

    return Changes(tuple(keys), [*first.values()], overrides)


# --- commits ---


@contextmanager
def commits_of(span: str) -> Iterator[Changes]:
    """Yield the commits of GOOD..BAD, which are checked out when their overrides are asked for, and
    removed at the end. Raises UsageError."""
    form = "--format=%h %s"
    first, _, last = span.partition("..")
    good = git(".", "log", "-1", form, first)
    later = git(".", "log", "--first-parent", "--reverse", form, span)
    if not good or not later:
        expected = "GOOD..BAD, commits of the current folder's repository"
        named = filter(None, (first, last))
        unknown = [name for name in named if git(".", "log", "-1", form, name) is None]
        if unknown:
            expected += f", which has no {' and no '.join(unknown)}"
        raise UsageError(f"--commits={span}: expected {expected}")
    inside = git(".", "rev-parse", "--show-prefix") or ""
    trees = {}

    def overrides(names: Names) -> list[str]:
        revision, *_ = names[0].split()
        tree = trees[revision] = cache_home() / "bisect" / revision
        add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(tree))
        if not tree.exists() and git(".", *add, revision, timeout_s=600) is None:
            raise UsageError(f"git cannot check out {names[0]} at {tree}")
        return [f"folder={tree / inside}"]

    try:
        commits = tuple(later.splitlines())
        yield Changes(commits, overrides((good,)), overrides, are_commits=True)
    finally:
        for tree in trees.values():
            git(".", "worktree", "remove", "--force", str(tree))
