"""Recognise the files that effbench itself writes, which change no code although git may track
them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from effbench.config import DEFAULT_DB

#: Endings of the files that SQLite keeps next to a database.
LOGS = ("-wal", "-shm", "-journal")
#: List of files in the folder of a site.
SITE_LIST = "site.json"
#: Folder of a sweep's artifacts.
ARTIFACTS = re.compile(r"(^|/)artifacts/(\d{8}-\d{6}-[0-9a-f]{4}|shards-[0-9a-f]{12})/")
#: SQLite files consist of pages, the smallest of which have this size.
PAGE_BYTES = 512


def without_own_outputs(root: Path, names: Iterable[str], caches: Iterable[Path] = ()) -> list[str]:
    """Return the names of files, relative to `root`, that are no output of effbench: databases and
    their logs, sites, artifacts, and files below the `caches`."""
    cache_folders = [folder.resolve() for folder in caches]
    return [name for name in names if not _is_own_output(root, name, cache_folders)]


def _is_own_output(root: Path, name: str, caches: Iterable[Path]) -> bool:
    path = root / name
    if ARTIFACTS.search(name) or any(path.is_relative_to(folder) for folder in caches):
        return True
    if _is_page(path, root):
        return True
    for ending in LOGS:
        if name.endswith(ending):
            path = path.with_name(path.name.removesuffix(ending))
    return is_database(path)


def is_database(path: Path) -> bool:
    """Return whether the file is a database of effbench, or was one with the default name that has
    been deleted."""
    if not path.exists():
        return path.match(DEFAULT_DB)
    if not path.is_file() or path.stat().st_size == 0 or path.stat().st_size % PAGE_BYTES:
        return False
    # never with open(): closing the file would release the locks that SQLite holds on it in this
    # process
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened,
    ):
        found = opened.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'sweep_cell'"
        )
        return found.fetchone() == (1,)
    return False


def _is_page(path: Path, root: Path) -> bool:
    """Return whether the file is in the folder of a site; a README and hidden files in it are the
    user's."""
    if path.name.startswith((".", "README")):
        return False
    return any(_is_site(folder) for folder in path.parents if folder.is_relative_to(root))


def _is_site(folder: Path) -> bool:
    """Return whether the folder has effbench's list of files."""
    with suppress(OSError, ValueError):
        manifest = json.loads((folder / SITE_LIST).read_text(encoding="utf-8"))
        return isinstance(manifest, dict) and isinstance(manifest.get("files"), list)
    return False
