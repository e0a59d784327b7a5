"""Where artifacts are: next to the database."""

from __future__ import annotations

import os
from pathlib import Path

from effbench.store.connect import parse_url


def home(url: str | os.PathLike[str]) -> Path:
    """The folder that the names in `trial.extra["artifacts"]` are relative to: a SQLite file's own, else `results`."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return Path(parsed.database).parent
    return Path("results")


def name_of(sweep_id: str, cell_key: str = "") -> str:
    """The folder of a sweep's or a cell's artifacts, below `home`."""
    return f"artifacts/{sweep_id}/{cell_key[:12]}"
