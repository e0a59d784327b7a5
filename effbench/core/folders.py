"""Folders of the user: home, caches and state, also for a user without a home; paths that compilers
can read."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from effbench.core.errors import ConfigError

#: Characters of a path that every compiler, linker and search path takes as they are.
PLAIN = re.compile(r"[A-Za-z0-9/._+@%=^~-]*")
#: Temporary folders to try if that of TMPDIR has other characters.
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")


def home_folder() -> Path | None:
    """Return the user's home folder; None if neither HOME nor the user database names one, as in a
    container that runs under any user id."""
    try:
        return Path.home().absolute()
    except RuntimeError:
        return None


def expand_user(path: str, setting: str) -> str:
    """Return the path with its leading `~` or `~user` replaced by that home folder. Raises
    ConfigError if that user has no home folder. `setting`: what names the path."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        user = path.partition("/")[0]
        raise ConfigError(
            f"{setting}={path}: {user} has no home folder; set HOME, or write ./{path} for a folder"
            " of this name"
        ) from None


def cache_home() -> Path:
    """Return effbench's folder in the user's cache folder, or below the temporary folder if no home
    can be written.

    Raises ConfigError if neither can be used.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named).absolute() / "effbench"
    home = home_folder()
    if home is not None and is_writable(home / ".cache" / "effbench"):
        return home / ".cache" / "effbench"
    return temporary_home("XDG_CACHE_HOME") / "cache" / "effbench"


def is_writable(folder: Path) -> bool:
    """Return whether files can be created in the folder, or the folder itself if it is missing."""
    existing = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def temporary_home(setting: str) -> Path:
    """Return this user's own folder below the temporary folder; create it if it is missing.

    Raises ConfigError, which proposes to set HOME or the variable `setting`, if it cannot be
    created or another user could write to it.
    """
    advice = f"set HOME or {setting} to a folder of your own"
    try:
        path = own_folder(Path(tempfile.gettempdir()))
    except OSError as error:
        raise ConfigError(
            f"this user has no home folder, and no temporary one ({error}); {advice}"
        ) from None
    if path is None:
        raise ConfigError(
            f"this user has no home folder, and {own_name()} in TMPDIR belongs to another user;"
            f" {advice}"
        )
    return path


def own_name() -> str:
    return f"effbench-{os.getuid()}"


def own_folder(parent: Path) -> Path | None:
    """Return this user's own folder in a folder of all users; create it if it is missing. Return
    None if another user has created it, or could write to it. Raises OSError."""
    path = parent / own_name()
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    is_own = (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    )
    if not is_own:
        return None
    return path


def worker_variables() -> dict[str, str]:
    """Return the variables that libraries in workers need if the user has no name, or no home that
    can be used.

    Without them, Python's `getpass.getuser` raises, and `~` becomes a folder of this name in the
    working directory.
    """
    variables: dict[str, str] = {}
    home = home_folder()
    if home is None or not home.is_dir():
        variables["HOME"] = str(temporary_home("XDG_CACHE_HOME"))
    elif (
        not os.environ.get("XDG_CACHE_HOME")
        and not is_writable(home / ".cache")
        and not (home / ".cache").exists()
    ):
        variables["XDG_CACHE_HOME"] = str(cache_home().parent)
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        variables["USER"] = f"uid{os.getuid()}"
    return variables


# --- paths that compilers can read ---


def is_plain(path: str | os.PathLike[str]) -> bool:
    """Return whether a compiler's command line and a search path can contain this path as it is."""
    return PLAIN.fullmatch(os.fspath(path)) is not None


def plain_path(folder: Path, setting: str) -> Path:
    """Return a path of this folder that compilers can read: its own, or that of a link to it.

    Inductor does not quote all paths in the commands of the C++ compiler, so a space in one ends
    every compilation. Raises ConfigError, which proposes to choose another folder with `setting`,
    if no link can be created.
    """
    folder = folder.absolute()
    if is_plain(folder):
        return folder
    for links in link_folders():
        try:
            return linked(links, folder)
        except OSError:  # such as a full disk: try the next one
            continue
    raise ConfigError(
        f"C++ compilers cannot read the path {folder}: it has characters other than letters, digits"
        f" and . _ - + / = @\nchoose another folder with {setting}"
    )


def link_folders() -> Iterator[Path]:
    """Yield folders of this user for links, with plain paths."""
    for parent in dict.fromkeys([tempfile.gettempdir(), *TEMPORARY]):
        if not is_plain(parent) or not Path(parent).is_dir():
            continue
        try:
            own = own_folder(Path(parent))
        except OSError:
            continue
        if own is not None:
            yield own / "links"


def linked(links: Path, folder: Path) -> Path:
    """Return a link to the folder; create both if they are missing. Raises OSError."""
    # torch cannot create a folder through a link that leads nowhere
    folder.mkdir(parents=True, exist_ok=True)
    links.mkdir(mode=0o700, exist_ok=True)
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    link = links / name
    if not link.is_symlink() or link.readlink() != folder:
        draft = links / f".{name}-{os.getpid()}-{threading.get_ident()}"
        draft.unlink(missing_ok=True)
        draft.symlink_to(folder, target_is_directory=True)
        draft.replace(link)  # another process may be doing the same
    return link
