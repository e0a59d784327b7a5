"""A sweep's command line: its options, and overrides in any order among them; `resume=` adds those
of a stored sweep."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from effbench.config import refusals
from effbench.core.errors import ConfigError, UsageError
from effbench.core.settings import DEFAULT_DB, shipped
from effbench.run import resume
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: The option that affects what the overrides mean: it is stored and replayed with them.
CONFIG_DIR = "--config-dir"
#: What `--info` prints.
INFORMATION = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
#: Settings of older versions, which stored sweeps may have.
REMOVED = ("protocol.max_warmup_calls", "executor.ahead")
PARSER = OverridesParser.create()


# --- words ---


@dataclass(frozen=True)
class Word:
    """An override. `key`: `a.b` of `+a.b=3`; `override`: what Hydra reads in the text."""

    text: str
    key: str
    override: Override = field(compare=False)

    @property
    def section(self) -> str:
        """The first part of the key: `a` of `+a.b=3`."""
        return re.split(r"[./@]", self.key)[0]

    @property
    def value(self) -> str:
        """The text after the first equals sign, without quotes."""
        return self.text.partition("=")[2].strip("'\"")

    @property
    def is_for_hydra(self) -> bool:
        """Whether it changes Hydra's own configuration: `hydra/sweeper=…`, `hydra.verbose=…`."""
        return bool(self.override.is_hydra_override())


@lru_cache(maxsize=10_000)
def parse(text: str) -> Word:
    """Return the override with this text. Raises ConfigError."""
    try:
        (override,) = PARSER.parse_overrides([text])
    except OverrideParseException:
        raise refusals.cannot_parse(text) from None
    return Word(text, override.get_key_element().lstrip("+~"), override)


# --- command lines ---


@dataclass(frozen=True)
class CommandLine:
    """A sweep's command line. `options`: Hydra's, most of which print and run nothing, in their
    long form; `config_dir`: the folder of CONFIG_DIR; `is_dry_run`: print the plan, run nothing."""

    options: Sequence[str]
    config_dir: str | None
    words: Sequence[Word]
    is_dry_run: bool

    @property
    def prints_only(self) -> bool:
        """Whether an option makes Hydra print something instead of running a sweep."""
        return any(option != "--resolve" for option in self.options)

    @property
    def values(self) -> dict[str, str]:
        """Key -> value of each override. Of a key that is given twice, the last one counts."""
        return {word.key: word.value for word in self.words}

    def stored(self) -> dict[str, str]:
        """Return what a sweep stores, by key: its overrides and CONFIG_DIR. Of a key that is given
        twice, the last one counts."""
        texts = {}
        if self.config_dir is not None:
            texts[CONFIG_DIR] = f"{CONFIG_DIR}={self.config_dir}"
        return texts | {word.key: word.text for word in self.words}


class WordParser(argparse.ArgumentParser):
    """A parser whose errors are those of effbench."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"{message}; effbench --help shows examples, effbench --hydra-help Hydra's options"
        )


def read(argv: Sequence[str]) -> CommandLine:
    """Return a command line. `-m` is omitted: every command line is a sweep. Raises UsageError for
    a word that is no option or override."""
    parser = WordParser(add_help=False)
    add = parser.add_argument
    add("words", nargs="*")
    add(CONFIG_DIR, "-cd", action="append", default=[])
    add("--multirun", "-m", action="store_const", const=None)
    add("--db", nargs="?", const="URL")
    add("--dry-run", action="store_true")
    # with these, Hydra prints and runs nothing
    add("--cfg", "-c", choices=["job", "hydra", "all"])
    add("--resolve", action="store_true")
    add("--info", "-i", nargs="?", const="all", choices=INFORMATION)
    add("--hydra-help", action="store_true")
    add("--shell-completion", "-sc", action="store_true")
    given = vars(parser.parse_intermixed_args(argv))
    words, folders, db = given.pop("words"), given.pop("config_dir"), given.pop("db")
    is_dry_run = given.pop("dry_run")
    if db is not None:
        raise UsageError(f"--db is an option of commands; a sweep takes db={db}")
    if len(folders) > 1:
        raise UsageError("--config-dir is given twice: put all your YAML files into one folder")
    for word in words:
        check_word(word)
    options = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            options.append(option)
        elif value:
            options.append(f"{option}={value}")
    config_dir = folders[0] if folders else None
    return CommandLine(options, config_dir, [*map(parse, words)], is_dry_run)


def check_word(word: str) -> None:
    """Raise UsageError for a word that is no override, in particular for a part of one without
    quotes, which the shell splits at its spaces."""
    if any(word.count(opening) > word.count(closing) for opening, closing in ("[]", "{}", "()")):
        raise UsageError(
            f"{word!r}: the shell splits an override at its spaces; quote it, as in"
            " 'model.inputs.x={shape: [64], dtype: float32}'"
        )
    if "=" not in word and not word.startswith("~"):
        raise UsageError(
            f"{word!r} is not an override; write overrides as key=value or key=value,value, such"
            " as bs=1,8, and put a command first; see effbench --help"
        )


def check_folder(config_dir: str) -> None:
    """Raise ConfigError for a missing folder, and for a file in it that Hydra would silently
    ignore, because effbench ships one of the same name."""
    folder = Path(config_dir)
    if not folder.is_dir():
        raise ConfigError(
            f"--config-dir={config_dir}: the folder {folder.absolute()} was not found"
        )
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]):
        ships = shipped("conf") / path.relative_to(folder)
        if ships.is_file() and ships.read_bytes() != path.read_bytes():
            raise ConfigError(
                f"{path} would be ignored, because effbench ships this file: rename the file"
            )


# --- sweeps to resume ---


def expand(line: CommandLine) -> CommandLine:
    """Return the command line of a sweep. `resume=REF` adds the stored words of that sweep, except
    keys that are given again, and REF becomes the sweep's id. Raises UsageError for a sweep that
    cannot be resumed here."""
    given = line.values
    reference = given.get("resume", "null")
    if reference == "null":
        return line
    sweep = sweep_to_resume(reference, given.get("db") or DEFAULT_DB)
    stored = read(sweep.overrides)
    # continue in the database that holds the sweep: the stored db= may name another one, and has no
    # password
    dropped = {*given, "db", *REMOVED}
    words = [word for word in stored.words if word.key not in dropped]
    words += [word for word in line.words if word.key != "resume"]
    words.append(parse(f"resume={sweep.id}"))
    return replace(line, config_dir=line.config_dir or stored.config_dir, words=words)


def sweep_to_resume(reference: str, db: str) -> SweepInfo:
    """Return the sweep with this id, name or label in a database. Raises UsageError if it cannot be
    resumed: another person chose its words, or it is a duet."""
    with Store.open(db, mode="read") as store:
        sweep: SweepInfo = store.find_sweep(reference)
    refusal = resume.refusal(sweep)
    if refusal:
        raise UsageError(refusal)
    if sweep.command[:1] == ["duet"]:  # no matrix of overrides gives its two sides
        again = f"run it again: effbench {shlex.join(sweep.command)}"
        raise UsageError(f"sweep {sweep.id} is a duet, which cannot be resumed; {again}")
    return sweep
