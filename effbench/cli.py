"""The command line: a bare word is a subcommand, anything else goes to Hydra as overrides of a sweep."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from effbench import __version__
from effbench.errors import EffbenchError, UsageError, nearest
from effbench.printable import one_line, printable
from effbench.sweeping.interrupts import remembered

#: Subcommand -> module under effbench.commands; each has `HELP`, `add_arguments(parser)` and `run(args) -> exit code`.
COMMANDS = {
    "show": "show",
    "ls": "ls",
    "report": "report",
    "export": "export",
    "import": "imports",
    "doctor": "doctor",
    "reproduce": "reproduce",
    "claims": "claims",
    "compare": "compare",
    "baseline": "baseline",
    "check": "check",
    "advise": "advise",
    "history": "history",
    "db": "db",
}
INTERRUPTED = 130
#: Exit code of an error that effbench did not raise on purpose: neither a regression (1) nor nothing found (3).
UNEXPECTED = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with the codes of docs/reference/commands.md."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what its encoding lacks must not end a sweep
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Do what `argv` says and return the exit code. Errors go to stderr in one or two lines."""
    try:
        with remembered():
            return do(argv)
    except EffbenchError as error:
        return report_error(error, str(error), argv, error.exit_code)
    except KeyboardInterrupt:
        print("effbench: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # how rich says the same
            return 0
        raise
    except Exception as error:  # a defect of effbench, or a database that somebody has edited
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.EIO):
            # the reader of our output has left, as `| head` does, or its terminal was closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return INTERRUPTED if error.errno == errno.EIO else 0
        return report_error(error, unexpected(error, argv), argv, UNEXPECTED)


def do(argv: list[str]) -> int:
    if not argv:
        raise UsageError(
            "nothing to do. Say what to sweep, for example: effbench -m mode=eager,default bs=1,8\n"
            f"or a command: {', '.join(COMMANDS)}; effbench --help shows all settings."
        )
    if argv == ["--version"]:
        print(f"effbench {__version__}")
        return 0
    return run_command(argv[0], argv[1:]) if is_bare_word(argv[0]) else run_sweep(argv)


def report_error(error: BaseException, message: str, argv: Sequence[str], code: int) -> int:
    """Print the message to stderr, without passwords, and return `code`. EFFBENCH_DEBUG=1 raises the error instead."""
    if os.environ.get("EFFBENCH_DEBUG") == "1":
        raise error
    from effbench.store.secrets import masked_text

    print(f"effbench: {printable(masked_text(message, argv))}", file=sys.stderr)
    return code


def unexpected(error: Exception, argv: Sequence[str]) -> str:
    """Return two lines about an error that effbench did not raise on purpose: what and where it is, and what to do."""
    package = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(package)]
    where = f"effbench/{Path(frames[-1].filename).relative_to(package)}:{frames[-1].lineno}"
    hint = "; `effbench db check` finds damaged rows of a database" if argv[0] in COMMANDS and argv[0] != "db" else ""
    return (
        f"unexpected {type(error).__name__} at {where}: {one_line(error, 300)}\n"
        f"EFFBENCH_DEBUG=1 shows the traceback{hint}"
    )


def is_bare_word(argument: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w-]*", argument) is not None


def run_command(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f"did you mean `effbench {near}`?" if near else f"commands: {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command {name!r}; {hint}")
    from effbench.commands.options import Parser

    module = importlib.import_module(f"effbench.commands.{COMMANDS[name]}")
    parser = Parser(prog=f"effbench {name}", description=module.HELP)
    module.add_arguments(parser)
    return module.run(parser.parse_args(words))


def run_sweep(argv: list[str]) -> int:
    """Run a sweep (or Hydra's own --help, --cfg, --info …) with live progress; end with the table of its results."""
    from effbench.launcher.launch import hydra_sweep

    outcome = hydra_sweep(argv)
    if outcome is None:  # --help and its like
        return 0
    from effbench.commands.show import end_of_sweep

    return end_of_sweep(outcome)
