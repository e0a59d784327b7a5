"""Small files of the kernel below a root folder. What is missing or cannot be read is unknown: None."""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path("/")


def text(path: Path) -> str | None:
    """The file without its last newline."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """The integer that the file holds; None for words such as `max`."""
    with contextlib.suppress(ValueError):
        return int(text(path) or "")
    return None


def fields(path: Path) -> dict[str, int]:
    """Lines such as `MemFree:  22821632 kB` or `nr_throttled 3`: the number by its name, without the unit."""
    found = {}
    for line in (text(path) or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2:
            with contextlib.suppress(ValueError):
                found[words[0]] = int(words[1])
    return found


def cgroups(root: Path, controller: str) -> list[Path]:
    """The folders of this process's control groups for `controller`, outermost first; both versions of cgroups."""
    mount = root / "sys/fs/cgroup"
    found = []
    for line in (text(root / "proc/self/cgroup") or "0::/").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        base: Path | None
        if not names:
            base = mount
        elif controller in names.split(","):
            base = next((mount / name for name in (controller, names) if (mount / name).is_dir()), None)
        else:
            continue
        if base is not None:
            group = base / path.strip("/")  # a container may see only its own group, mounted as the base
            found += [folder for folder in [*reversed(group.parents), group] if folder.is_relative_to(base)]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def in_first_pid_namespace(root: Path = ROOT) -> bool | None:
    """False in a container with PIDs of its own, from where processes outside cannot be seen."""
    try:
        return (root / "proc/self/ns/pid").readlink().name == "pid:[4026531836]"  # the kernel's fixed number
    except OSError:
        return None


def cpu_list(words: str | None) -> set[int]:
    """`0-3,8` is {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in (words or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found
