"""`effbench -m resume=last`: the stored command again, with the sweep to go on with filled in."""

from __future__ import annotations

import re
import shlex

from effbench.config import Config
from effbench.errors import UsageError
from effbench.store.store import Store
from effbench.sweeping import trust

#: Options that decide what the overrides mean: they are stored and replayed with them.
CONFIG_OPTIONS = ("--config-dir", "--config-path", "--config-name")


def expand(words: list[str], trust_imported: bool = False) -> tuple[list[str], list[str]]:
    """The arguments for Hydra, and what of them is stored with the sweep: its overrides and CONFIG_OPTIONS.

    `words` are arranged: an option is one word, options come first. With `resume=REF` the stored words of that sweep
    are added, less those that are given again; REF becomes the sweep's id.

    Raises UsageError for an imported sweep without `trust_imported`: its words are those of someone else.
    """
    given = {name: argument for argument in words if (name := key_of(argument))}
    reference = value_of(given.get("resume"))
    if reference in (None, "null"):
        if trust_imported:
            raise UsageError(f"{trust.FLAG} goes with resume=: effbench -m resume=ID {trust.FLAG}")
        return words, list(given.values())
    db = value_of(given.get("db")) or Config.db
    with Store.open(db, mode="read") as store:
        sweep = store.find_sweep(reference)
        if sweep.imported_at is not None:
            if not trust_imported:
                raise UsageError(trust.refusal(sweep))
            trust.announce(sweep, store.planned(sweep.id), sweep.overrides)
    # it goes on in the database where it was found; the stored word may name another, and has no password
    replayed = [word for word in sweep.overrides if key_of(word) not in {*given, "db"}]
    together = [*replayed, *(word for word in words if key_of(word) != "resume"), f"resume={sweep.id}"]
    return sorted(together, key=lambda word: not word.startswith("-")), sweep.overrides


def command(sweep_id: str, db: str, name: str, is_imported: bool = False) -> str:
    """Return the command that continues the sweep. `db`: as it was given; `name`: for a person, without a password."""
    words = ["effbench", "-m", f"resume={sweep_id}"]
    if db != Config.db:
        words.append(f"db={name}" if re.fullmatch(r"[A-Za-z0-9_./:@+-]+", name) else f'db="{name}"')
    return shlex.join([*words, *([trust.FLAG] if is_imported else [])])


def key_of(argument: str) -> str | None:
    """`model` of `model=mlp`, `model.module.width` of `+model.module.width=3`; None for options but CONFIG_OPTIONS."""
    if argument.startswith("-"):
        option = argument.partition("=")[0]
        return option if option in CONFIG_OPTIONS else None
    match = re.match(r"[+~]{0,2}([\w./@:+-]+?)(=|$)", argument)
    return match[1] if match else None


def value_of(argument: str | None) -> str | None:
    """What stands behind the first equals sign, without quotes."""
    return None if argument is None else argument.partition("=")[2].strip("'\"")
