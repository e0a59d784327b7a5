"""The words of a sweep's command line, before Hydra reads them: any order, and errors of one line."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from effbench.config import shipped
from effbench.errors import ConfigError, UsageError, nearest


def arrange(argv: list[str], commands: Collection[str]) -> list[str]:
    """The same words with options before overrides: Hydra's parser does not take `bs=1 -m mode=eager`.

    Every command is a sweep here: `-m` is added where it is missing, and left out beside --cfg or --info (Hydra allows
    only one of them). Raises UsageError for an unknown option and for a word that is no override; `commands` are those
    to suggest.
    """
    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign] - argparse prints its usage and exits
    given = parser.parse_intermixed_args(argv)
    for word in given.overrides:
        if "=" not in word and not word.startswith("~"):
            raise UsageError(misplaced(word, commands))
    given.multirun = not (given.cfg or given.info or given.shell_completion)
    given.run = False
    options = [option for action in parser._actions if (option := as_given(action, given))]
    return [*options, *given.overrides]


def as_given(action: argparse.Action, given: argparse.Namespace) -> str | None:
    """The option as one word, None where it was not given."""
    value = getattr(given, action.dest, action.default)
    if not action.option_strings or value == action.default:
        return None
    name = action.option_strings[0]
    return name if value is True else f"{name}={value}"


def refuse(message: str) -> NoReturn:
    raise UsageError(f"{message}; effbench --help shows what can be set, effbench --hydra-help Hydra's options")


def misplaced(word: str, commands: Collection[str]) -> str:
    """What to say about a word that is no override."""
    if near := nearest(word, commands):
        return f"{word!r} is no override; a command comes first, with arguments of its own: effbench {near} --help"
    return f"{word!r} is no override: an override is key=value, such as bs=8; effbench --help shows all settings"


def refuse_hidden(words: Sequence[str]) -> None:
    """Hydra takes what ships before a file of --config-dir with the same name, without a word: what was edited there
    would not be what is measured. Raises ConfigError."""
    for word in words:
        option, _, folder = word.partition("=")
        if option != "--config-dir":
            continue
        for own in sorted(Path(folder).glob("*/*.yaml")):
            ships = shipped("conf") / own.relative_to(folder)
            if ships.is_file() and ships.read_bytes() != own.read_bytes():
                group, name = own.parent.name, own.stem
                raise ConfigError(f"{own} would not be read, as effbench has a {group}={name} itself: rename it")
