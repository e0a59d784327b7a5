"""Subcommand parser, and the arguments and output functions that several subcommands share."""

from __future__ import annotations

import argparse
import io
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from effbench.core import outputs
from effbench.core.errors import UsageError, suggest
from effbench.core.printable import printable
from effbench.core.settings import DEFAULT_DB, quoted
from effbench.core.terminal import PLAIN_WIDTH, Console, terminal

STDOUT = "/dev/stdout"
WHICH_SWEEP = "sweep: an id or its unique start, a name, a label that only one sweep has, or last"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are those of effbench."""

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("effbench ")
        raise UsageError(f"{name}: {message}; see effbench {name} --help")


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number of at least {least}, got {text!r}"
            )
        return int(text)

    return number


def metric_of(names: Collection[str]) -> Callable[[str], str]:
    """Return the type of an option that takes one of these metrics. Its error names the most
    similar metric, or all of them if none is similar."""

    def metric(text: str) -> str:
        if text not in names:
            hint = suggest(text, names) or f"; allowed: {', '.join(names)}"
            raise argparse.ArgumentTypeError(f"unknown metric {text!r}{hint}")
        return text

    return metric


def add_db(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--db",
        default=DEFAULT_DB,
        metavar="URL",
        help="database: a path or any SQLAlchemy URL (default: %(default)s)",
    )


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-dir", metavar="DIR", help="folder with your own YAML files")


def place_of(args: argparse.Namespace) -> list[str]:
    """Return the words of a sweep that name the folder of YAML files and the database."""
    words = []
    if args.config_dir:
        words.append(f"--config-dir={args.config_dir}")
    if args.db != DEFAULT_DB:
        words.append(f"db={quoted(args.db)}")
    return words


def add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sweep",
        default="last",
        metavar="ID|NAME|last",
        help=f"{WHICH_SWEEP} (default: %(default)s)",
    )


def add_sweeps(parser: argparse.ArgumentParser, default: str = "all") -> None:
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="ID|NAME|last",
        help=f"{WHICH_SWEEP}; may be repeated (default: {default})",
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="FILE", help="write to this file instead of standard output"
    )


def add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Add `--format` with these formats besides a table, and `--out`."""
    parser.add_argument(
        "--format", default="table", choices=["table", *formats], help="(default: %(default)s)"
    )
    add_out(parser)


def side_of(text: str) -> list[str]:
    """Return the overrides of a side of a comparison; a bare word is a mode. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation mark without its partner
        words = []
    if not words:
        raise UsageError(f"{text!r} is no override such as mode=default, and no mode")
    return [word if "=" in word else f"mode={word}" for word in words]


def is_stdout(out: str | None) -> bool:
    """Return whether this value of `--out` means standard output."""
    return out in (None, STDOUT)


def write(text: str, args: argparse.Namespace, option: str = "out") -> None:
    """Write to standard output, or to the file that `--out` (or another option) names; see
    `outputs.output`."""
    out = getattr(args, option)
    if is_stdout(out):
        # files and pipes get the data as it is
        if sys.stdout.isatty():
            text = printable(text)
        if not text.endswith("\n"):
            text += "\n"
        sys.stdout.write(text)
        return
    with outputs.output(Path(out)) as stream:
        stream.write(text.encode())


@contextmanager
def console(args: argparse.Namespace) -> Iterator[Console]:
    """Yield the terminal, or a console whose text is written to the file that `--out` names at the
    end."""
    if not args.out:
        yield terminal()
        return
    text = io.StringIO()
    yield Console(file=text, width=PLAIN_WIDTH)
    write(text.getvalue(), args)
