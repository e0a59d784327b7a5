"""The user: name, home, and folder of caches; paths that compilers can read."""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path

from effbench.core.errors import ConfigError

#: Characters of a path that every compiler, linker and search path takes as they are.
PLAIN = re.compile(r"[\w/.+@%=^~-]*")


def current_user() -> str:
    """Return the name of the user who runs effbench; the number of a user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in containers that run with any number
        return str(os.getuid())


def expand_user(path: str, setting: str) -> str:
    """Return the path with its leading `~` or `~user` replaced by that home folder. Raises
    ConfigError if that user has no home folder. `setting`: what names the path."""
    try:
        return os.fspath(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        raise ConfigError(
            f"{setting}={path}: this user has no home folder; set HOME, or write ./{path} for a"
            " folder of this name"
        ) from None


def cache_home() -> Path:
    """Return effbench's folder in the user's cache folder.

    Raises ConfigError, which names the variable to set, if the user has no home folder, as in a
    container that runs under any user id, or if compilers cannot read the path.
    """
    try:
        home = Path.home()
    except RuntimeError:
        raise ConfigError(
            "this user has no home folder; set HOME to a folder of your own"
        ) from None
    folder = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache").absolute() / "effbench"
    check_plain(folder, "XDG_CACHE_HOME")
    return folder


def check_plain(folder: str | Path, setting: str) -> None:
    """Raise ConfigError, which proposes to choose another folder with `setting`, if a compiler's
    command line and a search path cannot contain this path as it is.

    Inductor does not quote all paths in the commands of the C++ compiler, so a space in one ends
    every compilation.
    """
    if not PLAIN.fullmatch(os.fspath(folder)):
        raise ConfigError(
            f"C++ compilers cannot read the path {folder}: it has characters other than letters,"
            f" digits and . _ - + / = @\nchoose another folder with {setting}"
        )
