"""Prepare a sweep's command line for Hydra: allow any order of its words, and report errors in one
line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from effbench.config import DEFAULT_DB, shipped
from effbench.errors import ConfigError, UsageError
from effbench.store.connect import existing
from effbench.store.store import Store
from effbench.sweeping import resume

#: Options that affect what the overrides mean; they are stored and replayed with them.
CONFIG_OPTIONS = ("--config-dir", "--config-path", "--config-name")
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
#: Settings of older versions, which their stored sweeps may name.
REMOVED = ("protocol.max_warmup_calls", "executor.ahead")


def key_of(word: str) -> str | None:
    """Return the key of a word: `a.b` for `+a.b=3`. None for an option that is not in
    CONFIG_OPTIONS."""
    if word.startswith("-"):
        option = word.partition("=")[0]
        return option if option in CONFIG_OPTIONS else None
    match = re.match(r"[+~]{0,2}([\w./@:+-]+?)(=|$)", word)
    return match[1] if match else None


def value_of(word: str | None) -> str | None:
    """Return the text after the first equals sign, without quotes; None for None."""
    return None if word is None else word.partition("=")[2].strip("'\"")


def arrange(argv: Sequence[str]) -> list[str]:
    """Return the same words, options first, because Hydra's parser rejects `bs=1 -m mode=eager`.
    `-m` is added, except to --cfg and --info, which Hydra rejects with it. Raises UsageError for a
    word that is no option or override."""
    from hydra._internal.utils import get_args_parser

    def refuse(message: str) -> NoReturn:
        for word, following in zip(argv, [*argv[1:], "URL"], strict=False):
            if word == "--db" or word.startswith("--db="):
                raise UsageError(f"{message}; a sweep takes db={value_of(word) or following}")
        raise UsageError(
            f"{message}; effbench --help shows examples, effbench --hydra-help Hydra's options"
        )

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign] - argparse prints its usage and exits
    given = parser.parse_intermixed_args(argv)
    # argparse would take the last one
    if sum(word.partition("=")[0] in ("--config-dir", "-cd") for word in argv) > 1:
        raise UsageError("--config-dir is given twice: put all your YAML files into one folder")
    check_words(given.overrides)
    given.multirun = not (given.cfg or given.info or given.shell_completion)
    given.run = False
    options = []
    for action in parser._actions:
        value = getattr(given, action.dest, action.default)
        if action.option_strings and value != action.default:
            name = action.option_strings[0]
            options.append(name if value is True else f"{name}={value}")
    return [*options, *given.overrides]


def check_words(words: Sequence[str]) -> None:
    """Raise UsageError for words that are no overrides, in particular for the parts of an override
    without quotes: the shell splits it at spaces, and replaces braces."""
    for index, word in enumerate(words):
        before, following = words[index - 1] if index else "", words[index + 1 :]
        joined = joined_words(word, following) if is_open(word) else None
        if joined is not None:
            if before.endswith("="):
                joined = f"{before}{joined}"
            elif "=" not in joined:
                joined = f"model.inputs.x={joined}"
            raise UsageError(
                f"the shell splits an override at its spaces; quote it: {shlex.quote(joined)}"
            )
        if is_expanded(word, following):
            raise UsageError(
                "the shell replaces braces; quote the override:"
                f" {shlex.quote(with_braces(words, word))}"
            )
        if "=" in word or word.startswith("~"):
            continue
        if before.endswith(","):
            raise UsageError(f"{before} {word}: omit the space: {before}{word}")
        if re.search(r"[\[\]{}]", word):
            how = f"give it a key, and quote it: {shlex.quote(f'model.inputs.x={word}')}"
        else:
            how = (
                "write overrides as key=value, such as bs=8, and put a command first; see effbench"
                " --help"
            )
        raise UsageError(f"{word!r} is not an override; {how}")


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
    given = {name: value_of(word) for word in words if (name := key_of(word)) in CONFIG_OPTIONS}
    for folder in filter(None, [given.get("--config-dir")]):
        for path in sorted([*Path(folder).glob("*.yaml"), *Path(folder).glob("*/*.yaml")]):
            inside = path.relative_to(folder)
            ships = shipped("conf") / inside
            if ships.is_file() and ships.read_bytes() != path.read_bytes():
                is_option = len(inside.parts) > 1
                what = f"{path.parent.name}={path.stem}" if is_option else f"a file {path.name}"
                how = (
                    "rename the file"
                    if is_option
                    else "rename it and add --config-name=NAME, or use --config-path"
                )
                raise ConfigError(f"{path} would be ignored, because effbench ships {what}: {how}")
        for path in sorted(Path(folder).glob("*/*.yml")):
            if (shipped("conf") / path.parent.name).is_dir():  # a group
                raise ConfigError(
                    f"{path} would be ignored, because Hydra reads only .yaml: rename the file"
                )
        if (
            "--config-name" not in given
            and [*Path(folder).glob("*.yaml")]
            and not [*Path(folder).glob("*/**/*.yaml")]
        ):
            how = (
                "put them into folders such as model/ and mode/, and give the folder that contains"
                " these"
            )
            raise ConfigError(
                f"--config-dir={folder}: Hydra ignores YAML files that are directly in it; {how}"
            )


def expand(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments for Hydra, and the words to store with the sweep: its overrides and
    CONFIG_OPTIONS.

    `resume=REF` adds the stored words of that sweep, except keys that are given again, and REF
    becomes the sweep's id. Raises UsageError for an imported or another user's sweep, because
    another person chose its words.
    """
    given = {name: word for word in words if (name := key_of(word))}
    reference = value_of(given.get("resume"))
    if reference in (None, "null"):
        return words, list(given.values())
    db = value_of(given.get("db")) or DEFAULT_DB
    missing = (
        f"no database at {db} in the folder {Path.cwd()}, so there is no sweep to resume: "
        "change to the folder of the sweep, or name its database with db=PATH"
    )
    with existing(missing), Store.open(db, mode="read") as store:
        sweep = store.find_sweep(reference)
    refusal = resume.refusal(sweep)
    if refusal:
        raise UsageError(refusal)
    if sweep.command[:1] == ["duet"]:  # no matrix of overrides gives its two sides
        again = f"run it again: effbench {shlex.join(sweep.command)}"
        raise UsageError(f"sweep {sweep.id} is a duet, which cannot be resumed; {again}")
    shards = sweep.host.get("shards") or {}
    if len(shards) > 1 and "shard" not in given:
        left = [name for name, state in shards.items() if state != "completed"] or [*shards]
        add = " or ".join(f"shard={name}" for name in sorted(left))
        raise UsageError(f"sweep {sweep.id} has several shards; resume one of them: add {add}")
    # continue in the database that holds the sweep: the stored db= may name another one, and has no
    # password
    dropped = {*given, "db", *REMOVED}
    replayed = [word for word in sweep.overrides if key_of(word) not in dropped]
    for word in replayed:
        if key_of(word) == "--config-dir" and not Path(value_of(word) or "").is_dir():
            where = f"sweep {sweep.id} began in {sweep.host.get('folder')}"
            raise UsageError(
                f"{word}: no such folder here; {where}: resume it there, or add --config-dir=DIR"
            )
    together = [
        *replayed,
        *(word for word in words if key_of(word) != "resume"),
        f"resume={sweep.id}",
    ]
    return sorted(together, key=lambda word: not word.startswith("-")), sweep.overrides


def overrides_of_cell(words: Iterable[str], dropped: Collection[str] = ()) -> list[str]:
    """Return the words of a job that reproduce its cell, without settings of the sweep and without
    `dropped` keys."""
    kept = {word: key_of(word) or "" for word in words}
    return [
        word
        for word, key in kept.items()
        if key not in dropped and re.split(r"[./@]", key)[0] not in NOT_OF_CELLS
    ]
