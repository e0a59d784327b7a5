"""Files of the site: each replaced in one step; those of an earlier site that are no longer part of it are removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plotly.utils import PlotlyJSONEncoder

from effbench.outputs import replacing

MANIFEST = "site.json"


class Writer:
    """Writes below the folder `out`, which is made. Every path is relative to it, with slashes.

    The list of files is kept in `site.json`, so that the next site removes what it does not write again, and nothing
    that is not effbench's.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.written: dict[str, int] = {}  # path -> bytes
        claim(out)

    def bytes(self, path: str, content: bytes) -> None:
        target = self.out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(content)
        self.written[path] = len(content)

    def text(self, path: str, text: str) -> None:
        self.bytes(path, text.encode("utf-8", "replace"))

    def copy(self, path: str, source: Path) -> None:
        self.bytes(path, source.read_bytes())

    def data(self, path: str, value: Any) -> None:
        """Write `value` as a script that hands it to the page: `fetch` does not work from disk."""
        self.script(path, as_json(value))

    def script(self, path: str, text: str) -> None:
        """Write JSON as a script that hands it to the page."""
        self.text(path, f"effbench.put({text});\n")

    def close(self) -> None:
        """Remove what an earlier site left, then write the list."""
        for path in set(_listed(self.out) or ()) - self.written.keys():
            old = self.out / path
            if old.is_file() and old.resolve().is_relative_to(self.out.resolve()):
                old.unlink()
                _remove_empty(old.parent, self.out)
        _write_list(self.out, sorted(self.written))

    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(self.written.values())


def as_json(value: Any) -> str:
    """Return compact JSON; what is not finite is null, numpy and pandas values and times are converted."""
    return json.dumps(value, cls=PlotlyJSONEncoder, ensure_ascii=False, separators=(",", ":"))


def claim(out: Path) -> None:
    """Make the folder of a site, with an empty list of files: if writing fails, the next site may still replace it."""
    out.mkdir(parents=True, exist_ok=True)
    if not is_site(out):
        _write_list(out, [])


def is_site(folder: Path) -> bool:
    """Return whether the folder is a site of effbench, by its list of files."""
    return _listed(folder) is not None


def _write_list(out: Path, files: list[str]) -> None:
    with replacing(out / MANIFEST) as file:
        file.write(json.dumps({"files": files}, indent=0).encode())


def _listed(folder: Path) -> list[str] | None:
    """Return the list of files; None if there is none, or it is not ours: nothing is removed then."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    files = found.get("files") if isinstance(found, dict) else None
    return list(map(str, files)) if isinstance(files, list) else None


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_relative_to(root) and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
