"""Recognise the files that effbench itself writes, which change no code although git may track
them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

#: A database, with the files that SQLite keeps next to it, and artifacts of a sweep.
OWN_FILES = re.compile(
    r"\.db(-wal|-shm|-journal)?$|(^|/)artifacts/(\d{8}-\d{6}-[0-9a-f]{4}|shards-[0-9a-f]{12})/"
)
#: List of files in the folder of a site.
SITE_LIST = "site.json"


def without_own_outputs(root: Path, names: Iterable[str]) -> list[str]:
    """Return the names of files, relative to `root`, that are no output of effbench: databases,
    sites and artifacts."""
    return [name for name in names if not OWN_FILES.search(name) and not is_page(root, name)]


def is_page(root: Path, name: str) -> bool:
    """Return whether the file is in the folder of a site; a README and hidden files in it are the
    user's."""
    path = root / name
    if path.name.startswith((".", "README")):
        return False
    return any(is_site(folder) for folder in path.parents if folder.is_relative_to(root))


def is_site(folder: Path) -> bool:
    """Return whether the folder has effbench's list of files."""
    with suppress(OSError, ValueError):
        manifest = json.loads((folder / SITE_LIST).read_text(encoding="utf-8"))
        return isinstance(manifest, dict) and isinstance(manifest.get("files"), list)
    return False
