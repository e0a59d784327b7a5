"""Artifacts of trials as files of the site, so that links to them hold wherever the site is taken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from effbench.cell import digest
from effbench.metrics import format_bytes
from effbench.report.site.writer import Writer

#: Ends of names that no browser runs; another file stays where it is.
KINDS = (".json.gz", ".json", ".py", ".txt", ".log", ".dot", ".pickle")
#: Bytes of one file, and of all that one process copies for a subject: traces and snapshots can be very large.
LARGEST = 4 * 2**20
MOST = 64 * 2**20


class Files:
    """Copies into `folder` (of the site, ending in a slash or empty) what lies below `home`."""

    def __init__(self, writer: Writer, folder: str, home: Path | None) -> None:
        self.writer = writer
        self.folder = folder
        self.home = home
        self.room = MOST

    def links(self, names: Iterable[str]) -> list[list[str | None]]:
        """[name, link relative to the page or None, why there is none] of each."""
        return [[name, *self._link(name)] for name in names]

    def _link(self, name: str) -> tuple[str | None, str | None]:
        if self.home is None:
            return None, "not there"
        try:
            path = (self.home / name).resolve()
            if not path.is_relative_to(self.home.resolve()) or not path.is_file():
                return None, "not there"
            size = path.stat().st_size
        except (OSError, ValueError):  # removed meanwhile, or no name of a file: too long, a null character
            return None, "not there"
        # another page's address is told by the whole name: two cells have files of one name
        target = f"files/{digest(name)[:12]}-{re.sub(r'[^A-Za-z0-9._-]', '_', path.name)[-60:]}"
        if not path.name.endswith(KINDS) or size > LARGEST or size > self.room:
            return None, f"{format_bytes(size)}, left beside the database"
        try:
            self.writer.copy(self.folder + target, path)
        except FileNotFoundError:  # removed meanwhile
            return None, "not there"
        self.room -= size
        return target, None
