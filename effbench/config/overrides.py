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

#: Options that affect what the overrides mean; they are stored and replayed with them.
CONFIG_OPTIONS = ("--config-dir", "--config-path", "--config-name")
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
    """Return the key of a word: `a.b` for `+a.b=3`. None for an option that is not in
    CONFIG_OPTIONS."""
    if word.startswith("-"):
        option = word.partition("=")[0]
        if option in CONFIG_OPTIONS:
            return option
        return None
    match = re.match(r"[+~]{0,2}([\w./@:+-]+?)(=|$)", word)
    if not match:
        return None
    return match[1]


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
        self.add_argument("--config-path", "-cp")
        self.add_argument("--config-name", "-cn")
        self.add_argument("--multirun", "-m", action="store_true")
        self.add_argument("--run", "-r", action="store_true")
        self.add_argument("--db", nargs="?", const="URL")
        # these print and run nothing
        self.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
        self.add_argument("--package", "-p")
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
        if option in ("--multirun", "--run") or not value:
            continue
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
    """Raise ConfigError for files in --config-dir that Hydra would silently ignore: those with the
    name of a shipped file, options outside the folder of their group, and options that end with
    `.yml`."""
    given = options_in(words)
    if not given.get("--config-dir"):
        return
    folder = Path(given["--config-dir"])
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]):
        ships = shipped("conf") / path.relative_to(folder)
        if ships.is_file() and ships.read_bytes() != path.read_bytes():
            how = "rename the file"
            if path.parent == folder:
                how = f"{how} and add --config-name=NAME, or use --config-path"
            raise ConfigError(f"{path} would be ignored, because effbench ships this file: {how}")
    for path in sorted(folder.glob("*/*.yml")):
        if (shipped("conf") / path.parent.name).is_dir():  # a group
            raise ConfigError(
                f"{path} would be ignored, because Hydra reads only .yaml: rename the file"
            )
    has_options = any(folder.glob("*/**/*.yaml"))
    if "--config-name" not in given and any(folder.glob("*.yaml")) and not has_options:
        raise ConfigError(
            f"--config-dir={folder}: Hydra ignores YAML files that are directly in it; put them"
            " into folders such as model/ and mode/, and give the folder that contains these"
        )


def options_in(words: Iterable[str]) -> dict[str, str]:
    """Return option -> value of CONFIG_OPTIONS."""
    pairs = (word.partition("=") for word in words)
    return {name: value for name, _, value in pairs if name in CONFIG_OPTIONS}


def expand(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of a sweep, and those to store with it: its overrides and CONFIG_OPTIONS.

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
    refuse_missing_folder(replayed, sweep)
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


def refuse_missing_folder(words: Iterable[str], sweep: SweepInfo) -> None:
    """Raise UsageError if the folder with YAML files of a sweep is not here."""
    folder = options_in(words).get("--config-dir")
    if folder is not None and not Path(folder).is_dir():
        raise UsageError(
            f"--config-dir={folder}: no such folder here; sweep {sweep.id} began in"
            f" {sweep.host.get('folder')}: resume it there, or add --config-dir=DIR"
        )


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
