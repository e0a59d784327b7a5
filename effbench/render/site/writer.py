"""Files of the site: replaced atomically, and removed if a new site no longer has them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from effbench.core.outputs import create_folder, replacing
from effbench.store.values import as_json_value

#: An object for the scripts of a page.
Json = dict[str, Any]
MANIFEST = "site.json"
_COMPACT = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    separators=(",", ":"),
)


class Writer:
    """Writes into the folder `out`, creating it. Paths are relative to it, with slashes.

    `site.json` lists the files, so that the next site can remove those that it does not write
    again, and no others.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.written: dict[str, int] = {}  # path -> bytes
        create_folder(out)
        # list no files yet, so that a new site may replace this one if writing fails
        if not is_site(out):
            _write_list(out, [])

    def text(self, path: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        target = self.out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(content)
        self.written[path] = len(content)

    def data(self, path: str, value: Any) -> None:
        """Write `value` as a script that passes it to the page, because `fetch` does not work from
        disk."""
        self.text(path, f"effbench.put({as_json(value)});\n")

    def close(self) -> None:
        """Remove files that only an earlier site had, then write the list of files."""
        for path in set(_listed(self.out) or ()) - self.written.keys():
            old = self.out / path
            if old.is_file() and old.resolve().is_relative_to(self.out.resolve()):
                old.unlink()
                with suppress(OSError):  # not empty
                    os.removedirs(old.parent)
        _write_list(self.out, sorted(self.written))

    def size(self) -> int:
        """Return the total size of the files in bytes."""
        return sum(self.written.values())


def as_json(value: Any) -> str:
    """Return compact JSON; numbers that are not finite become null, and unknown types text."""
    with suppress(TypeError, ValueError):  # nearly all values need no conversion
        return _COMPACT.encode(value)
    return _COMPACT.encode(as_json_value(value))


def is_site(folder: Path) -> bool:
    """Return whether the folder has effbench's list of files."""
    return _listed(folder) is not None


def _write_list(out: Path, files: list[str]) -> None:
    with replacing(out / MANIFEST) as file:
        file.write(json.dumps({"files": files}, indent=0).encode())


def _listed(folder: Path) -> list[str] | None:
    """Return the list of files, or None if it is missing or not effbench's."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(manifest, dict) and isinstance(manifest.get("files"), list):
        return list(map(str, manifest["files"]))
    return None
