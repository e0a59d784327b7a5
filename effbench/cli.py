"""The command line: a bare word is a subcommand, anything else goes to Hydra as overrides of a sweep."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from effbench import __version__
from effbench.errors import EffbenchError, UsageError
from effbench.printable import printable
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
NOTHING = (
    "effbench: nothing to do. Say what to sweep, for example: effbench -m mode=eager,default bs=1,8\n"
    f"or a command: {', '.join(COMMANDS)}; effbench --help shows all settings."
)
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with the codes of docs/commands.md."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Do what `argv` says and return the exit code. Errors go to stderr in one or two lines."""
    with remembered():
        return do(argv)


def do(argv: list[str]) -> int:
    try:
        if not argv:
            raise UsageError(NOTHING.removeprefix("effbench: "))
        if argv == ["--version"]:
            print(f"effbench {__version__}")
            return 0
        if is_bare_word(argv[0]):
            return run_command(argv[0], argv[1:])
        return run_sweep(argv)
    except EffbenchError as error:
        return report_error(error, error.exit_code)
    except KeyboardInterrupt:
        print("effbench: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # how rich says the same
            return 0
        raise


def report_error(error: BaseException, code: int) -> int:
    if os.environ.get("EFFBENCH_DEBUG") == "1":
        raise error
    print(f"effbench: {printable(error)}", file=sys.stderr)
    return code


def is_bare_word(argument: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w-]*", argument) is not None


def run_command(name: str, rest: list[str]) -> int:
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean `effbench {near[0]}`?" if near else f"commands: {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command {name!r}; {hint}")
    from effbench.commands.parser import Parser

    module = importlib.import_module(f"effbench.commands.{COMMANDS[name]}")
    parser = Parser(prog=f"effbench {name}", description=module.HELP)
    parser.error = lambda message: refuse(name, message)  # type: ignore[method-assign] - argparse prints its usage
    module.add_arguments(parser)
    return module.run(parser.parse_args(rest))


def refuse(name: str, message: str) -> NoReturn:
    raise UsageError(f"{name}: {message}; effbench {name} --help")


def config_folder() -> Path:
    """Where the configurations that ship with effbench are."""
    from effbench.config import shipped

    return shipped("conf")


def run_sweep(argv: list[str]) -> int:
    """A sweep (or Hydra's own --help, --cfg, --info …) with live progress; ends with the table of its results."""
    from effbench.sweeping.invoke import hydra_sweep

    outcome = hydra_sweep(argv, commands=COMMANDS)
    if outcome is None:  # --help and its like
        return 0
    from effbench.commands.show import end_of_sweep

    return end_of_sweep(outcome)
