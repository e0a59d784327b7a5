"""Files of the site, which are replaced atomically."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from effbench.core.outputs import create_folder, replacing
from effbench.store.values import as_json_value

#: An object for the scripts of a page.
Json = dict[str, Any]
#: List of the site's files, by which `run.git` knows that they are no code.
MANIFEST = "site.json"
_COMPACT = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    separators=(",", ":"),
)


class Writer:
    """Writes into the folder `out`, creating it. Paths are relative to it, with slashes."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.written: set[str] = set()  # paths
        create_folder(out)

    def text(self, path: str, text: str) -> None:
        target = self.out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(text.encode("utf-8", "replace"))
        self.written.add(path)

    def data(self, path: str, value: Any) -> None:
        """Write `value` as a script that passes it to the page, because `fetch` does not work from
        disk."""
        self.text(path, f"effbench.put({as_json(value)});\n")

    def close(self) -> None:
        """Write the list of files."""
        listed = json.dumps({"files": sorted(self.written)}, indent=0)
        with replacing(self.out / MANIFEST) as file:
            file.write(listed.encode())


def as_json(value: Any) -> str:
    """Return compact JSON; numbers that are not finite become null, and unknown types text."""
    with suppress(TypeError, ValueError):  # nearly all values need no conversion
        return _COMPACT.encode(value)
    return _COMPACT.encode(as_json_value(value))
