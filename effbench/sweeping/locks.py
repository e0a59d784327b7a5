"""One lock a device and machine, whoever the user: two effbench processes never measure on the same GPU at once."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from effbench.errors import WorkerError

ELSEWHERE = "or set TMPDIR to another folder (the same for all users of this machine)"
#: O_NONBLOCK: opening a named pipe would wait for its other end
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass
class Lock:
    """A lock that is held."""

    descriptor: int

    def release(self) -> None:
        os.close(self.descriptor)


def folder() -> Path:
    """Return the folder of the lock files, which all users of the machine share; make it if it is missing.

    Raises WorkerError if it is no real folder, or if somebody else could replace the lock files in it.
    """
    path = Path("effbench-locks")
    try:
        path = Path(tempfile.gettempdir()) / path
        path.mkdir(exist_ok=True)
        descriptor = os.open(path, FLAGS | os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if path.is_symlink() or path.is_file():
            raise WorkerError(f"{path} is not a folder, so it cannot hold lock files; remove it, {ELSEWHERE}") from None
        raise WorkerError(f"cannot use {path} for lock files ({error.strerror}); {ELSEWHERE[3:]}") from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.getuid():
            os.fchmod(descriptor, 0o1777)
        elif found.st_uid != 0 and not found.st_mode & stat.S_ISVTX:
            raise WorkerError(
                f"{path} belongs to another user, who can replace the lock files in it (uid {found.st_uid}, mode "
                f"{stat.S_IMODE(found.st_mode):o}); ask for `chmod 1777 {path}`, {ELSEWHERE}"
            )
    finally:
        os.close(descriptor)
    return path


def try_lock(path: Path) -> Lock | None:
    """Lock this file, made if it is missing; None if somebody else has it. Raises WorkerError if it cannot be opened.

    The file is neither followed through a link nor changed.
    """
    try:
        descriptor = _open(path)
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        how = f"remove it, let all users write to {path.parent}"
        raise WorkerError(f"cannot open the lock file {path} ({why}); {how}, {ELSEWHERE}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise WorkerError(f"{path} is not a regular file, so it cannot be a lock; remove it, {ELSEWHERE}")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # else it was removed meanwhile: others lock another file
            return Lock(descriptor)
    except BlockingIOError:
        pass
    except OSError as error:
        os.close(descriptor)
        raise WorkerError(f"cannot lock {path} ({error.strerror}); {ELSEWHERE[3:]}") from None
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _open(path: Path) -> int:
    """Open the file, made if it is missing. It may belong to another user: reading is enough for a lock."""
    try:
        descriptor = os.open(path, FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        try:
            return os.open(path, FLAGS | os.O_RDWR)
        except PermissionError:
            return os.open(path, FLAGS | os.O_RDONLY)
    os.fchmod(descriptor, 0o666)
    return descriptor
