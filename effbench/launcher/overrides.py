"""A sweep's command line: its options and overrides in any order, with errors in one line."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from effbench import __version__
from effbench.config import DEFAULT_DB, shipped
from effbench.errors import ConfigError, UsageError
from effbench.store.connect import existing
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.sweeping import resume

#: Options that affect what the overrides mean; they are stored and replayed with them.
CONFIG_OPTIONS = ("--config-dir", "--config-path", "--config-name")
#: Options of Hydra that print and run nothing.
PRINTING = ("--cfg", "--info", "--hydra-help", "--shell-completion")
#: Options with one value, and those that print.
OPTIONS = ("--config-path", "--config-name", "--package", "--resolve", *PRINTING)
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


def check_environment(name: str, text: str, choices: Iterable[Any]) -> None:
    """Raise UsageError for an environment variable whose text Hydra changes: it reads 12.10 as the
    number 12.1. `text`: the override; `choices`: its parsed values."""
    given = text.partition("=")[2].strip()
    for choice in choices:
        is_mapping = isinstance(choice, dict)
        for value in choice.values() if is_mapping else [choice]:
            passed = str(value).lower() if isinstance(value, bool) else str(value)
            is_kept = re.search(rf"(?<![\w.+-]){re.escape(passed)}(?![\w.])", given) is not None
            if is_kept or not isinstance(value, int | float):
                continue
            exact = "quote it, as in '\"12.10\"'"
            if not is_mapping and "," not in given:
                exact = f"write {name}='\"{given}\"'"
            raise UsageError(f"{text} would set {passed}, because Hydra reads a value; {exact}")


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
    given = WordParser().parse_intermixed_args(argv)
    if given.db is not None:
        raise UsageError(f"--db is an option of commands; a sweep takes db={given.db}")
    if len(given.config_dir or ()) > 1:
        raise UsageError("--config-dir is given twice: put all your YAML files into one folder")
    check_words(given.overrides)
    options = [f"--config-dir={folder}" for folder in given.config_dir or ()]
    for name, value in vars(given).items():
        option = f"--{name.replace('_', '-')}"
        if option in OPTIONS and value is True:
            options.append(option)
        elif option in OPTIONS and value:
            options.append(f"{option}={value}")
    return [*options, *given.overrides]


def prints_only(words: Iterable[str]) -> bool:
    """Return whether an option makes Hydra print something instead of running a sweep."""
    return any(word.partition("=")[0] in PRINTING for word in words)


def check_words(words: Sequence[str]) -> None:
    """Raise UsageError for words that are no overrides, in particular for the parts of an override
    without quotes: the shell splits it at spaces, and replaces braces."""
    before = ""
    for index, word in enumerate(words):
        following = words[index + 1 :]
        refuse_split(word, before, following)
        if is_expanded(word, following):
            how = shlex.quote(with_braces(words, word))
            raise UsageError(f"the shell replaces braces; quote the override: {how}")
        if "=" not in word and not word.startswith("~"):
            raise no_override(word, before)
        before = word


def refuse_split(word: str, before: str, following: Sequence[str]) -> None:
    """Raise UsageError if the shell has split an override at its spaces, and this is a part of
    it."""
    joined = joined_words(word, following)
    if not is_open(word) or joined is None:
        return
    if before.endswith("="):
        joined = f"{before}{joined}"
    elif "=" not in joined:
        joined = f"model.inputs.x={joined}"
    raise UsageError(f"the shell splits an override at its spaces; quote it: {shlex.quote(joined)}")


def no_override(word: str, before: str) -> UsageError:
    """Return the error for a word without a key. `before`: the word before it."""
    if before.endswith(","):
        return UsageError(f"{before} {word}: omit the space: {before}{word}")
    if re.search(r"[\[\]{}]", word):
        how = f"give it a key, and quote it: {shlex.quote(f'model.inputs.x={word}')}"
    else:
        how = (
            "write overrides as key=value, such as bs=8, and put a command first; see effbench"
            " --help"
        )
    return UsageError(f"{word!r} is not an override; {how}")


def is_open(text: str) -> bool:
    """Return whether the text has an opening bracket without its closing one."""
    return any(text.count(opening) > text.count(closing) for opening, closing in ("[]", "{}", "()"))


def joined_words(word: str, following: Sequence[str]) -> str | None:
    """Return the word with those of `following` that close its brackets; None if they do not."""
    joined = word
    for other in following:
        joined = f"{joined} {other}"
        if not is_open(joined):
            return joined
    return None


def is_expanded(word: str, following: Sequence[str]) -> bool:
    """Return whether the shell has made this word and the next one from braces:
    `key={shape:[4],low:0}` becomes `key=shape:[4] key=low:0`."""
    key, equals, value = word.partition("=")
    if not equals or not re.match(r"\w+:", value):
        return False
    return any(re.match(rf"{re.escape(key)}=\w+:", other) for other in following)


def with_braces(words: Sequence[str], word: str) -> str:
    """Return the override from whose braces the shell has made `word` and other words."""
    key = word.partition("=")[0]
    values = [other.partition("=")[2] for other in words if other.partition("=")[0] == key]
    names = [value.partition(":")[0] for value in values]
    if len(set(names)) < len(names):  # of braces in braces, the shell repeats the outer part
        return f"{key}={{…}}"
    return f"{key}={{{','.join(values)}}}"


def refuse_hidden(words: Iterable[str]) -> None:
    """Raise ConfigError for files in --config-dir that Hydra would silently ignore: those with the
    name of a shipped file, options outside the folder of their group, and options that end with
    `.yml`."""
    given = options_in(words)
    if not given.get("--config-dir"):
        return
    folder = Path(given["--config-dir"])
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]):
        refuse_shipped_name(path, folder)
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


def refuse_shipped_name(path: Path, folder: Path) -> None:
    """Raise ConfigError if a file of the user has the name of another file that effbench ships."""
    name = path.relative_to(folder)
    ships = shipped("conf") / name
    if not ships.is_file() or ships.read_bytes() == path.read_bytes():
        return
    what, how = f"{path.parent.name}={path.stem}", "rename the file"
    if len(name.parts) == 1:
        what = f"a file {path.name}"
        how = "rename it and add --config-name=NAME, or use --config-path"
    raise ConfigError(f"{path} would be ignored, because effbench ships {what}: {how}")


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
    for word in words:
        if key_of(word) == "--config-dir" and not Path(value_of(word) or "").is_dir():
            where = f"sweep {sweep.id} began in {sweep.host.get('folder')}"
            raise UsageError(
                f"{word}: no such folder here; {where}: resume it there, or add --config-dir=DIR"
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
    kept = {word: key_of(word) or "" for word in words}
    return [
        word
        for word, key in kept.items()
        if key not in dropped and re.split(r"[./@]", key)[0] not in NOT_OF_CELLS
    ]
