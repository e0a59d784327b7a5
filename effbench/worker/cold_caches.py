"""The caches of a cold start: a folder of compile caches, the bundle and the package that one fresh
process makes, and that others use."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER, BUNDLE, PACKAGE = "folder", "bundle", "package"


@dataclass(frozen=True)
class Versions:
    """What compiled code depends on. `gpu`: name of the GPU, None on the CPU."""

    torch: str
    triton: str | None
    cuda: str | None
    gpu: str | None

    def differences(self, now: Versions) -> list[str]:
        """Return what differs now, such as `torch 2.11.0, now 2.13.0`."""
        before, after = asdict(self), asdict(now)
        return [
            f"{name} {before[name]}, now {after[name]}"
            for name in before
            if before[name] != after[name]
        ]


@dataclass
class Made:
    """What a process that made caches found. `bytes`: by kind of cache; `keys`: what the keys of
    Inductor's cache consist of, for each graph."""

    versions: Versions
    bytes: dict[str, int]
    keys: list[dict[str, str]]


class ColdCaches:
    """The caches in a folder.

    `live/`: the folder of a process while it runs; `pristine/`: what the filling one left there;
    `bundle.bin`; `package.pt2`; `made.json`, which is written last.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pristine = folder / "pristine"
        self.bundle = folder / "bundle.bin"
        self.package = folder / "package.pt2"
        self.record = folder / "made.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process uses this folder, and keep it in this context."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def made(self) -> Made | None:
        """Return what the process found that made the caches; None if there are none."""
        if not self.record.is_file():
            return None
        data = json.loads(self.record.read_text())
        data["versions"] = Versions(**data["versions"])
        return Made(**data)

    @contextmanager
    def live(self, cache: str, is_moved: bool = False) -> Iterator[Path]:
        """Return the folder of a process in this context: empty, unless it starts with the cache
        `folder`. `is_moved`: at another place than when it was filled."""
        live = self.folder / ("moved" if is_moved else "live")
        shutil.rmtree(live, ignore_errors=True)
        if cache == FOLDER:
            shutil.copytree(self.pristine, live)
        else:
            live.mkdir()
        try:
            yield live
        finally:
            shutil.rmtree(live, ignore_errors=True)

    def keep(self, live: Path) -> None:
        """Keep what a process left in its folder, and the package apart from it."""
        shutil.rmtree(self.pristine, ignore_errors=True)
        for package in live.glob("*/*.pt2"):
            package.replace(self.package)
        shutil.copytree(live, self.pristine)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each kind of cache that there is."""
        sizes = {FOLDER: bytes_of(self.pristine)}
        for kind, path in ((BUNDLE, self.bundle), (PACKAGE, self.package)):
            if path.is_file():
                sizes[kind] = path.stat().st_size
        return sizes

    def write(self, made: Made) -> None:
        """Record that the caches are complete."""
        unfinished = self.record.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(made)))
        unfinished.replace(self.record)

    def clear(self) -> None:
        """Remove what an earlier process made that did not complete them."""
        self.bundle.unlink(missing_ok=True)
        self.package.unlink(missing_ok=True)


def bytes_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
