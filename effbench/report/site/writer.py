"""Files of the site: each replaced in one step; those of an earlier site that are no longer part of it are removed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

MANIFEST = "site.json"


class Writer:
    """Writes below the folder `out`, which is made. Every path is relative to it, with slashes.

    The list of files is kept in `site.json`, so that the next site removes what it does not write again, and nothing
    that is not effbench's.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.written: dict[str, int] = {}  # path -> bytes
        out.mkdir(parents=True, exist_ok=True)

    def text(self, path: str, text: str) -> None:
        self.bytes(path, text.encode("utf-8", "replace"))

    def bytes(self, path: str, content: bytes) -> None:
        target = self.out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(target)
        self.written[path] = len(content)

    def copy(self, path: str, source: Path) -> None:
        self.bytes(path, source.read_bytes())

    def data(self, path: str, value: Any) -> str:
        """`value` as a script that hands it to the page: `fetch` does not work from disk. NaN is null. Returns the
        path, as `effbench.load` takes it."""
        self.json(path, json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
        return path

    def json(self, path: str, text: str) -> None:
        self.text(path, f"effbench.put({text});\n")

    def close(self) -> None:
        """Remove what an earlier site left, then write the list."""
        manifest = self.out / MANIFEST
        for path in _listed(manifest) - self.written.keys():
            old = self.out / path
            if old.is_file() and old.resolve().is_relative_to(self.out.resolve()):
                old.unlink()
                _remove_empty(old.parent, self.out)
        draft = manifest.with_name(f".{MANIFEST}.{os.getpid()}")
        draft.write_text(json.dumps({"files": sorted(self.written)}, indent=0), encoding="utf-8")
        draft.replace(manifest)

    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.written.values())


def _listed(manifest: Path) -> set[str]:
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        return {str(path) for path in found["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # none yet, or not ours: nothing is removed


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_relative_to(root) and not any(folder.iterdir()):
        shutil.rmtree(folder)
        folder = folder.parent
