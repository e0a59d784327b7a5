"""The CPU cores of this machine, as the kernel lists them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def parse_cores(text: str) -> list[int]:
    """Return the cores of a list in the kernel's notation, ascending: 0, 1, 2, 3, 8 for `0-3,8`.
    Raises ValueError."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return sorted(cores)


def physical_cores(usable: Collection[int], topology: Path = TOPOLOGY) -> list[tuple[int, ...]]:
    """Return the usable hardware threads of each physical core; one thread per core if the kernel
    lists no siblings."""
    cores: list[tuple[int, ...]] = []
    left = set(usable)
    for thread in sorted(left):
        if thread not in left:
            continue
        try:
            siblings = parse_cores(
                (topology / f"cpu{thread}" / "topology" / "thread_siblings_list").read_text()
            )
        except (OSError, ValueError):
            siblings = []
        core = {thread, *siblings} & left
        cores.append(tuple(sorted(core)))
        left -= core
    return cores
