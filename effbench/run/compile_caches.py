"""The folders of compile caches during a sweep."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from effbench.core.errors import ConfigError
from effbench.core.folders import cache_home, check_plain, expand_user
from effbench.run.plan import Settings


def cache_folder(configured: str | None) -> Path:
    """Return the folder of compile caches during a sweep."""
    if not configured:
        return cache_home() / "compile"
    return Path(expand_user(configured, "executor.cache_dir")).resolve()


def make_cache_folders(settings: Settings) -> None:
    """Create the folders of compile caches.

    Raises ConfigError if one cannot be written or read: torch would not start with it, or every
    compiled cell would fail.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        make_cache_folder(cache_home() / "inductor", "XDG_CACHE_HOME")
    make_cache_folder(cache_folder(settings.executor.cache_dir), "executor.cache_dir")


def make_cache_folder(folder: Path, setting: str) -> Path:
    """Create a folder of compile caches and return it; see `make_cache_folders`."""
    check_plain(folder, setting)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ConfigError(
            f"compile caches cannot be written to {folder}; name another folder with {setting}"
        )
    return folder


def sweep_cache(settings: Settings, sweep_id: str) -> Path:
    """Return the folder of the compile caches of a sweep."""
    return cache_folder(settings.executor.cache_dir) / sweep_id
