"""The command line: a bare word selects a subcommand; any other arguments are Hydra overrides of a
sweep."""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import re
import select
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from effbench import __version__
from effbench.cli.overview import GROUPS, overview
from effbench.core.errors import INTERRUPTED, EffbenchError, UsageError, nearest
from effbench.core.logs import printed, without_verbose
from effbench.core.printable import one_line, printable
from effbench.core.warning_filters import print_instead_of_raising

#: Subcommand -> module under effbench.cli; each has `HELP`, `add_arguments(parser)` and
#: `run(args) -> exit code`.
COMMANDS = {name: name for group in GROUPS.values() for name in group} | {"import": "imports"}
#: Options of Hydra that run nothing, and settings for other fork servers than effbench's own.
WITHOUT_SERVER = r"(--hydra-help|-c|--cfg|-i|--info|-sc|--shell-completion)(=|$)|(python|folder)="
#: Exit code of unexpected errors; 1 means a regression or failed cells, 3 means that no data
#: matches.
UNEXPECTED = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with one of the codes in docs/reference/commands.md."""
    print_instead_of_raising()
    for stream in (sys.stdout, sys.stderr):
        # a character that the encoding lacks must not end a sweep
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if argv is None:
        argv = sys.argv[1:]
    code = run(list(argv))
    gc.freeze()  # the search for cycles at exit takes a tenth of a report's time
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run the command `argv` and return the exit code. Errors go to stderr in one or two lines."""
    words = without_verbose(argv)
    log = printed() if words != argv else nullcontext()
    try:
        with log:
            return do(words)
    except EffbenchError as error:
        return report_error(error, str(error), argv, error.exit_code)
    except KeyboardInterrupt as interrupt:
        print_error("; ".join(["effbench: interrupted", *interrupt.args]))
        return INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich turns a broken pipe into SystemExit
            return 0
        raise
    except OSError as error:
        unread = list(filter(is_unread, (sys.stdout, sys.stderr)))
        if error.errno != errno.EPIPE or not unread:
            return report_error(error, failed_access(error), argv, UNEXPECTED)
        discard(unread)
        return 0
    except Exception as error:  # a bug in effbench, or a database that was edited by hand
        return report_error(error, unexpected(error), argv, UNEXPECTED)


def do(argv: list[str]) -> int:
    if not argv:
        raise UsageError(
            "nothing to do: give overrides to run a sweep, for example: effbench -m"
            f" mode=eager,default bs=1,8\nor a command: {', '.join(COMMANDS)}; effbench --help"
            " shows examples"
        )
    if argv == ["--version"]:
        print(f"effbench {__version__}")
        return 0
    is_command = is_bare_word(argv[0])
    # commands have a help of their own
    if argv[0] == "help" or (not is_command and {"-h", "--help"}.intersection(argv)):
        print(overview(), end="")
        return 0
    if is_command:
        return run_command(argv[0], argv[1:])
    return run_sweep(argv)


def report_error(error: BaseException, message: str, argv: Sequence[str], code: int) -> int:
    """Print the message (with EFFBENCH_DEBUG=1 the traceback) to stderr, without passwords, and
    return `code`."""
    from effbench.store.secrets import masked_text

    if os.environ.get("EFFBENCH_DEBUG") == "1":
        message = "".join(traceback.format_exception(error))
    print_error(f"effbench: {printable(masked_text(message, argv))}")
    return code


def print_error(text: str) -> None:
    """Print the text to stderr, unless nobody can read it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard([sys.stderr])


def is_unread(stream: TextIO) -> bool:
    """Return whether the reader of this output has exited, such as `head`."""
    poll = select.poll()
    try:
        poll.register(stream, 0)
    except (OSError, ValueError):  # a stream in memory, or a closed one
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def discard(streams: Iterable[TextIO]) -> None:
    """Discard the rest of these outputs: Python would report at exit that it cannot be written."""
    with Path(os.devnull).open("w") as nowhere:
        for stream in streams:
            with suppress(ValueError):  # a closed stream
                os.dup2(nowhere.fileno(), stream.fileno())


def failed_access(error: OSError) -> str:
    """Return a message about a file or connection that cannot be read or written."""
    what = error.filename or f"a file or connection (in {place_of(error)})"
    reason = error.strerror or one_line(error, 300)
    return f"cannot read or write {what}: {reason}\nEFFBENCH_DEBUG=1 shows the traceback"


def unexpected(error: Exception) -> str:
    """Return two lines about an unexpected error: its type, location and message, then what to
    do."""
    return (
        f"unexpected {type(error).__name__} at {place_of(error)}: {one_line(error, 300)}\n"
        "EFFBENCH_DEBUG=1 shows the traceback"
    )


def place_of(error: Exception) -> str:
    """Return the innermost line of effbench's code that the error went through."""
    package = Path(__file__).parents[1]
    places = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(package):
            places.append(f"{path.relative_to(package.parent)}:{frame.lineno}")
    return places[-1]


def is_bare_word(argument: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w-]*", argument) is not None


def run_command(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f"commands: {', '.join(COMMANDS)}"
        if near:
            hint = f"did you mean `effbench {near}`?"
        raise UsageError(f"unknown command {name!r}; {hint}")
    # at the default, a fifth of a report's time is spent on searching its rows for cycles
    gc.set_threshold(1_000_000)
    module = importlib.import_module(f"effbench.cli.{COMMANDS[name]}")
    # also options between positional arguments: `reproduce O10 --db o.db bs=1`
    code: int = module.run(parser_of(name).parse_intermixed_args(words))
    return code


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command. All commands but `models` read a database."""
    from effbench.cli.options import Parser, add_db

    module = importlib.import_module(f"effbench.cli.{COMMANDS[name]}")
    more = "effbench --help lists all commands; docs/reference/commands.md explains them."
    parser = Parser(prog=f"effbench {name}", description=module.HELP, epilog=more)
    module.add_arguments(parser)
    if name != "models":
        add_db(parser)
    return parser


def run_sweep(argv: list[str]) -> int:
    """Run a sweep with live progress and print its results, or only what an option such as --cfg
    asks for."""
    from effbench.run.client import ForkServer

    # the server imports torch while Hydra is imported and composes the cells
    is_needed = not any(re.match(WITHOUT_SERVER, word) for word in argv)
    with closing(ForkServer()) if is_needed else nullcontext() as server:
        from effbench.config.launch import hydra_sweep

        outcome = hydra_sweep(argv, server=server)
    if outcome is None:  # for example --cfg
        return 0
    from effbench.cli.show import end_of_sweep

    return end_of_sweep(outcome)
