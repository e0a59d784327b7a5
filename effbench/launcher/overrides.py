"""The words of a sweep's command line before Hydra reads them: in any order, and with one-line errors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from effbench.config import DEFAULT_DB, shipped
from effbench.errors import ConfigError, UsageError
from effbench.store.store import Store
from effbench.sweeping import resume

#: Options that decide what the overrides mean: they are stored and replayed with them.
CONFIG_OPTIONS = ("--config-dir", "--config-path", "--config-name")
#: Settings that a cell does not need when it runs again; its interpreter is stored with its environment.
NOT_OF_CELLS = ("db", "resume", "sweep", "hydra", "python", "folder")


def key_of(word: str) -> str | None:
    """Return `model.module.width` of `+model.module.width=3`; None for an option that is not of CONFIG_OPTIONS."""
    if word.startswith("-"):
        option = word.partition("=")[0]
        return option if option in CONFIG_OPTIONS else None
    match = re.match(r"[+~]{0,2}([\w./@:+-]+?)(=|$)", word)
    return match[1] if match else None


def value_of(word: str | None) -> str | None:
    """Return what follows the first equals sign, without quotes."""
    return None if word is None else word.partition("=")[2].strip("'\"")


def arrange(argv: Sequence[str]) -> list[str]:
    """Return the same words, options first: Hydra's parser does not take `bs=1 -m mode=eager`. `-m` is added, except to
    --cfg and --info, with which Hydra does not allow it. Raises UsageError for what is no option and no override."""
    from hydra._internal.utils import get_args_parser

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{message}; effbench --help shows what can be set, effbench --hydra-help Hydra's options")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign] - argparse prints its usage and exits
    given = parser.parse_intermixed_args(argv)
    for word in given.overrides:
        if "=" not in word and not word.startswith("~"):
            how = "an override is key=value, such as bs=8, and a command comes first; see effbench --help"
            raise UsageError(f"{word!r} is no override; {how}")
    given.multirun = not (given.cfg or given.info or given.shell_completion)
    given.run = False
    options = []
    for action in parser._actions:
        value = getattr(given, action.dest, action.default)
        if action.option_strings and value != action.default:
            name = action.option_strings[0]
            options.append(name if value is True else f"{name}={value}")
    return [*options, *given.overrides]


def refuse_hidden(words: Iterable[str]) -> None:
    """Raise ConfigError if a file of --config-dir has the name of one that ships: Hydra would silently ignore it."""
    folders = [value_of(word) for word in words if key_of(word) == "--config-dir"]
    for folder in filter(None, folders):
        for own in sorted(Path(folder).glob("*/*.yaml")):
            ships = shipped("conf") / own.relative_to(folder)
            if ships.is_file() and ships.read_bytes() != own.read_bytes():
                group, name = own.parent.name, own.stem
                raise ConfigError(f"{own} would not be read, as effbench has a {group}={name} itself: rename it")


def expand(words: list[str], trust_imported: bool = False) -> tuple[list[str], list[str]]:
    """Return the arguments for Hydra, and those that are stored with the sweep: its overrides and CONFIG_OPTIONS.

    For `resume=REF` the stored words of that sweep are added, without those that are given again; REF becomes its id.
    Raises UsageError for an imported sweep without `trust_imported`: another person chose its words.
    """
    given = {name: word for word in words if (name := key_of(word))}
    reference = value_of(given.get("resume"))
    if reference in (None, "null"):
        if trust_imported:
            raise UsageError(f"{resume.FLAG} goes with resume=: effbench -m resume=ID {resume.FLAG}")
        return words, list(given.values())
    db = value_of(given.get("db")) or DEFAULT_DB
    with Store.open(db, mode="read") as store:
        sweep = store.find_sweep(reference)
        if sweep.imported_at is not None:
            if not trust_imported:
                raise UsageError(resume.refusal(sweep))
            resume.announce(sweep, store.planned(sweep.id), sweep.overrides)
    # it continues in the database where it was found; the stored word may name another, and has no password
    replayed = [word for word in sweep.overrides if key_of(word) not in {*given, "db"}]
    together = [*replayed, *(word for word in words if key_of(word) != "resume"), f"resume={sweep.id}"]
    return sorted(together, key=lambda word: not word.startswith("-")), sweep.overrides


def overrides_of_cell(words: Iterable[str], dropped: Collection[str] = ()) -> list[str]:
    """Return which of a job's words plan its cell again, without settings of the sweep and those that are `dropped`."""
    kept = {word: key_of(word) or "" for word in words}
    return [word for word, key in kept.items() if key not in dropped and re.split(r"[./@]", key)[0] not in NOT_OF_CELLS]


def quoted(text: str) -> str:
    """Return a text as an override's value."""
    if re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./+-]*", text):
        return text
    # within quotes a backslash counts only before a quote, or at the end
    escaped = re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ("\\" if match[2] else "") + match[2], text)
    return f'"{escaped}"'
