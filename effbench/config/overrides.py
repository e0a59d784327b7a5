"""A sweep's command line: its options, and overrides in any order among them; `resume=` adds those
of a stored sweep."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from effbench import __version__
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


@lru_cache(maxsize=10_000)
def parse(text: str) -> Word:
    """Return the override with this text. Raises ConfigError."""
    try:
        (override,) = PARSER.parse_overrides([text])
    except OverrideParseException:
        raise refusals.cannot_parse(text) from None
    return Word(text, override.get_key_element().lstrip("+~"), override)


def key_of(text: str) -> str:
    """Return the key of an override, or the name of an option. Raises ConfigError."""
    if text.startswith("-"):
        return text.partition("=")[0]
    return parse(text).key


# --- command lines ---


@dataclass(frozen=True)
class CommandLine:
    """A sweep's command line. `options`: Hydra's, most of which print and run nothing, in their
    long form; `config_dir`: the folder of CONFIG_DIR."""

    options: Sequence[str]
    config_dir: str | None
    words: Sequence[Word]

    @property
    def prints_only(self) -> bool:
        """Whether an option makes Hydra print something instead of running a sweep."""
        return any(option != "--resolve" for option in self.options)

    def stored(self) -> dict[str, str]:
        """Return what a sweep stores, by key: its overrides and CONFIG_DIR. Of a key that is given
        twice, the last one counts."""
        texts = {}
        if self.config_dir is not None:
            texts[CONFIG_DIR] = f"{CONFIG_DIR}={self.config_dir}"
        return texts | {word.key: word.text for word in self.words}


class WordParser(argparse.ArgumentParser):
    """Parse a sweep's command line: Hydra's options, and overrides in any order among them."""

    def __init__(self) -> None:
        super().__init__(add_help=False)
        self.add_argument("words", nargs="*")
        self.add_argument(
            CONFIG_DIR,
            "-cd",
            action="append",
            default=[],
        )
        self.add_argument(
            "--multirun",
            "-m",
            action="store_const",
            const=None,
        )
        self.add_argument("--db", nargs="?", const="URL")
        # these print and run nothing
        self.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
        self.add_argument("--resolve", action="store_true")
        self.add_argument(
            "--info",
            "-i",
            nargs="?",
            const="all",
            choices=INFORMATION,
        )
        self.add_argument("--hydra-help", action="store_true")
        self.add_argument("--shell-completion", "-sc", action="store_true")
        self.add_argument("--version", action="version", version=f"effbench {__version__}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"{message}; effbench --help shows examples, effbench --hydra-help Hydra's options"
        )


def read(argv: Sequence[str]) -> CommandLine:
    """Return a command line. `-m` is omitted: every command line is a sweep. Raises UsageError for
    a word that is no option or override."""
    given = vars(WordParser().parse_intermixed_args(argv))
    words, folders, db = given.pop("words"), given.pop("config_dir"), given.pop("db")
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
    return CommandLine(options, config_dir, [parse(word) for word in words])


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


def refuse_hidden(config_dir: str) -> None:
    """Raise ConfigError for a file in this folder that Hydra would silently ignore, because
    effbench ships one of the same name."""
    folder = Path(config_dir)
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
    given = {word.key: word.value for word in line.words}
    reference = given.get("resume", "null")
    if reference == "null":
        return line
    sweep = sweep_to_resume(reference, given.get("db") or DEFAULT_DB)
    # continue in the database that holds the sweep: the stored db= may name another one, and has no
    # password
    dropped = {*given, "db", *REMOVED}
    config_dir = line.config_dir
    words = []
    for text in sweep.overrides:
        key = key_of(text)
        if key == CONFIG_DIR:
            config_dir = config_dir or text.partition("=")[2]
        elif key not in dropped:
            words.append(parse(text))
    words += [word for word in line.words if word.key != "resume"]
    words.append(parse(f"resume={sweep.id}"))
    return CommandLine(line.options, config_dir, words)


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
