"""`effbench -m resume=last`: the stored command again, with the sweep to go on with filled in."""

from __future__ import annotations

import re

from effbench.config import Config
from effbench.store.store import Store


def expand(argv: list[str]) -> tuple[list[str], list[str]]:
    """The arguments for Hydra, and the overrides among them as they are stored with the sweep.

    With `resume=REF` the overrides of that sweep come first, less those that are given again; REF becomes the sweep's
    id. Without it `argv` is returned as it is.
    """
    given = {name: argument for argument in argv if (name := key_of(argument))}
    reference = value_of(given.get("resume"))
    if reference in (None, "null"):
        return argv, list(given.values())
    db = value_of(given.get("db")) or Config.db
    store = Store.open(db, mode="read")
    try:
        sweep = store.find_sweep(reference)
    finally:
        store.close()
    stored = [override for override in sweep.overrides if key_of(override) not in given]
    rest = [argument for argument in argv if key_of(argument) != "resume"]
    return [*stored, *rest, f"resume={sweep.id}"], stored


def key_of(argument: str) -> str | None:
    """`model` of `model=mlp`, `model.module.width` of `+model.module.width=3`; None for options."""
    match = re.match(r"[+~]{0,2}([\w./@:+-]+?)(=|$)", argument)
    return match[1] if match and not argument.startswith("-") else None


def value_of(argument: str | None) -> str | None:
    """What stands behind the first equals sign, without quotes."""
    return None if argument is None else argument.partition("=")[2].strip("'\"")
