"""A sweep's command line: its options, and overrides in any order among them; `resume=` adds those
of a stored sweep."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from effbench import __version__
from effbench.core.errors import ConfigError, UsageError
from effbench.core.settings import DEFAULT_DB, shipped
from effbench.run import resume
from effbench.store.connect import existing
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: The option that affects what the overrides mean: it is stored and replayed with them.
CONFIG_DIR = "--config-dir"
#: Options of Hydra that print and run nothing.
PRINTING = ("--cfg", "--info", "--hydra-help", "--shell-completion")
#: What `--info` prints.
INFORMATION = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
#: Settings of older versions, which stored sweeps may have.
REMOVED = ("protocol.max_warmup_calls", "executor.ahead")
#: Settings that are not needed to rerun a cell; its interpreter is stored with its environment.
NOT_OF_CELLS = (
    "baseline_mode",
    "db",
    "resume",
    "sweep",
    "exclude",
    "shard",
    "hydra",
    "python",
    "folder",
)


def key_of(word: str) -> str | None:
    """Return the key of a word: `a.b` for `+a.b=3`. None for an option except CONFIG_DIR."""
    if word.startswith("-"):
        return CONFIG_DIR if word.startswith(f"{CONFIG_DIR}=") else None
    match = re.match(r"[+~]{0,2}([\w./@:+-]+?)(=|$)", word)
    if not match:
        return None
    return match[1]


def keys_of(words: Iterable[str]) -> set[str]:
    """Return the keys of these words."""
    return {key for key in map(key_of, words) if key is not None}


def value_of(word: str | None) -> str | None:
    """Return the text after the first equals sign, without quotes; None for None."""
    if word is None:
        return None
    return word.partition("=")[2].strip("'\"")


class WordParser(argparse.ArgumentParser):
    """Parse a sweep's command line: Hydra's options, and overrides in any order among them."""

    def __init__(self) -> None:
        super().__init__(add_help=False)
        self.add_argument("overrides", nargs="*")
        self.add_argument("--config-dir", "-cd", action="append")
        self.add_argument("--multirun", "-m", action="store_const", const=None)
        self.add_argument("--db", nargs="?", const="URL")
        # these print and run nothing
        self.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
        self.add_argument("--resolve", action="store_true")
        self.add_argument("--info", "-i", nargs="?", const="all", choices=INFORMATION)
        self.add_argument("--hydra-help", action="store_true")
        self.add_argument("--shell-completion", "-sc", action="store_true")
        self.add_argument("--version", action="version", version=f"effbench {__version__}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"{message}; effbench --help shows examples, effbench --hydra-help Hydra's options"
        )


def arrange(argv: Sequence[str]) -> list[str]:
    """Return the options in their long form, then the overrides. `-m` is omitted: every command
    line is a sweep. Raises UsageError for a word that is no option or override."""
    given = vars(WordParser().parse_intermixed_args(argv))
    overrides, folders = given.pop("overrides"), given.pop("config_dir") or []
    if given["db"] is not None:
        raise UsageError(f"--db is an option of commands; a sweep takes db={given['db']}")
    if len(folders) > 1:
        raise UsageError("--config-dir is given twice: put all your YAML files into one folder")
    for word in overrides:
        check_word(word)
    options = [f"--config-dir={folder}" for folder in folders]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value:
            options.append(option if value is True else f"{option}={value}")
    return [*options, *overrides]


def prints_only(words: Iterable[str]) -> bool:
    """Return whether an option makes Hydra print something instead of running a sweep."""
    return any(word.partition("=")[0] in PRINTING for word in words)


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


def refuse_hidden(words: Iterable[str]) -> None:
    """Raise ConfigError for a file in --config-dir that Hydra would silently ignore, because
    effbench ships one of the same name."""
    given = config_dir(words)
    if given is None:
        return
    folder = Path(given)
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]):
        ships = shipped("conf") / path.relative_to(folder)
        if ships.is_file() and ships.read_bytes() != path.read_bytes():
            raise ConfigError(
                f"{path} would be ignored, because effbench ships this file: rename the file"
            )


def config_dir(words: Iterable[str]) -> str | None:
    """Return the folder of CONFIG_DIR; None without it."""
    for word in words:
        if key_of(word) == CONFIG_DIR:
            return word.partition("=")[2]
    return None


def expand(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of a sweep, and those to store with it: its overrides and CONFIG_DIR.

    `resume=REF` adds the stored words of that sweep, except keys that are given again, and REF
    becomes the sweep's id. Raises UsageError for a sweep that cannot be resumed here.
    """
    given = {key_of(word): word for word in words}
    given.pop(None, None)  # options that are not stored
    reference = value_of(given.get("resume"))
    if reference is None or reference == "null":
        return words, list(given.values())
    sweep = sweep_to_resume(reference, value_of(given.get("db")) or DEFAULT_DB)
    if "shard" not in given:
        refuse_shards(sweep)
    # continue in the database that holds the sweep: the stored db= may name another one, and has no
    # password
    dropped = {*given, "db", *REMOVED}
    replayed = [word for word in sweep.overrides if key_of(word) not in dropped]
    own = [word for word in words if key_of(word) != "resume"]
    together = [*replayed, *own, f"resume={sweep.id}"]
    return sorted(together, key=lambda word: not word.startswith("-")), sweep.overrides


def sweep_to_resume(reference: str, db: str) -> SweepInfo:
    """Return the sweep with this id, name or label in a database. Raises UsageError if it cannot be
    resumed: another person chose its words, or it is a duet."""
    missing = (
        f"no database at {db} in the folder {Path.cwd()}, so there is no sweep to resume: "
        "change to the folder of the sweep, or name its database with db=PATH"
    )
    with existing(missing), Store.open(db, mode="read") as store:
        sweep: SweepInfo = store.find_sweep(reference)
    refusal = resume.refusal(sweep)
    if refusal:
        raise UsageError(refusal)
    if sweep.command[:1] == ["duet"]:  # no matrix of overrides gives its two sides
        again = f"run it again: effbench {shlex.join(sweep.command)}"
        raise UsageError(f"sweep {sweep.id} is a duet, which cannot be resumed; {again}")
    return sweep


def refuse_shards(sweep: SweepInfo) -> None:
    """Raise UsageError for a sweep of several shards, of which one must be chosen."""
    shards = sweep.host.get("shards") or {}
    if len(shards) < 2:
        return
    left = [name for name, state in shards.items() if state != "completed"] or list(shards)
    choice = " or ".join(f"shard={name}" for name in sorted(left))
    raise UsageError(f"sweep {sweep.id} has several shards; resume one of them: add {choice}")


def overrides_of_cell(words: Iterable[str], dropped: Collection[str] = ()) -> list[str]:
    """Return the words of a job that reproduce its cell, without settings of the sweep and without
    `dropped` keys."""
    kept = []
    for word in words:
        key = key_of(word) or ""
        if key not in dropped and re.split(r"[./@]", key)[0] not in NOT_OF_CELLS:
            kept.append(word)
    return kept
