"""Room on the disk, compile caches that were left behind, and the database."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from effbench.doctor.finding import Finding, counted, good, note, problem, warning
from effbench.errors import SchemaError, StoreError
from effbench.metrics import format_bytes
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.sweep.run import cache_folder

LEAST_FREE = 2 * 2**30


def findings(db: str) -> Iterator[Finding]:
    """`db`: a path or any SQLAlchemy URL."""
    folder, file = cache_folder(None), file_of(db)
    yield from room("compile caches", folder)
    if file is not None:
        yield from room("the database", file.parent)
    sweeps: list[SweepInfo] = []
    if file is not None and not exists(file):
        yield note(f"no database at {db} yet", "the first sweep makes it")
    else:
        try:
            with Store.open(db, mode="read") as store:
                sweeps = store.sweeps()
                yield good(f"database {store.name}: {counted(len(sweeps), 'sweep')}, schema up to date")
            if file is not None and not os.access(file, os.W_OK):
                yield problem(f"{file} is read-only", "no sweep can be recorded in it", "chmod, or another --db")
        except StoreError as error:
            what, _, mend = str(error).partition("\n")
            effect = "nothing can be read there, and no sweep recorded"
            yield problem(what, effect, mend or ("" if isinstance(error, SchemaError) else "another --db"))
    yield from leftovers(folder, sweeps)


def file_of(db: str) -> Path | None:
    """The file of a SQLite database; None for a server's, or for a URL that is none."""
    from effbench.store.connect import parse_url

    try:
        url = parse_url(db)
    except StoreError:  # Store.open() says it
        return None
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # below a folder that may not be read
        return False


def room(what: str, folder: Path) -> Iterator[Finding]:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if exists(path))
    free = shutil.disk_usage(existing).free
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        yield problem(f"no folder can be made in {existing} for {what}", "no sweep can run", "another folder, or chmod")
    elif free < LEAST_FREE:
        yield warning(
            f"{format_bytes(free)} free for {what} ({folder})",
            "a sweep may run out of room",
            "free some, or another folder (executor.cache_dir=, db=)",
        )
    else:
        yield good(f"{format_bytes(free)} free for {what} ({folder})")


def leftovers(folder: Path, sweeps: list[SweepInfo]) -> Iterator[Finding]:
    """Cache folders of sweeps that are not running. Each is named after its sweep."""
    known = {sweep.id: sweep for sweep in sweeps}
    found = [path for path in sorted(folder.glob("*")) if path.is_dir()]
    servers = running_servers() if found else 0
    left = [path for path in found if not may_run(known.get(path.name), servers)]
    if left:
        size = sum(size_of(path) for path in left)
        names = " ".join(str(path) for path in left[:3]) + (" …" if len(left) > 3 else "")
        kept = [path.name for path in left if path.name in known and known[path.name].state != "completed"]
        resumable = f"; {', '.join(kept[:3])} can be resumed, and would compile warm" if kept else ""
        yield note(
            f"compile caches of {counted(len(left), 'sweep')} that no longer run: {format_bytes(size)} in {folder}",
            "they take room on the disk" + resumable,
            f"rm -r {names}",
        )


def may_run(sweep: SweepInfo | None, servers: int) -> bool:
    """`sweep`: as the database knows it, None for one of another database. `servers`: fork servers on this machine."""
    if sweep is None:
        return servers > 0
    elsewhere = sweep.host.get("hostname") not in (None, socket.gethostname())  # the folder may be shared
    return sweep.state == "running" and (servers > 0 or elsewhere)


def running_servers(proc: Path = Path("/proc")) -> int:
    """effbench's fork servers on this machine that are not this process's own: every running sweep has one."""
    count = 0
    for path in proc.glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # gone meanwhile
            continue
        # its forked children have the same command line
        count += b"effbench.worker.server" in words and parent != str(os.getpid())
    return count


def size_of(folder: Path) -> int:
    """Bytes of all files in it."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(where) / name).lstat().st_size
            except OSError:  # gone meanwhile
                continue
    return total
