"""Which CPU cores a trial may run on: each GPU's trials get cores of their own, near it where that is known."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from effbench.errors import ConfigError

#: With so many cores a GPU, the first is left to the sweep itself and to the system.
SPARE_FROM = 4


def parse_cores(text: str) -> list[int]:
    """`0-3,8` is 0, 1, 2, 3, 8 (the kernel's own notation). Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if last and int(last) < int(first):
            raise ValueError(f"{part} ends before it begins")
        found |= set(range(int(first), int(last or first) + 1))
    return sorted(found)


def wanted_cores(setting: Any, usable: Collection[int]) -> list[int] | None:
    """What `executor.cores` means here: the cores to share out, or None for no pinning. Raises ConfigError."""
    if setting is None:
        return None
    if setting == "auto":
        return sorted(usable)
    try:
        wanted = (
            parse_cores(str(setting)) if isinstance(setting, str | int) else sorted({int(core) for core in setting})
        )
    except (ValueError, TypeError):
        raise ConfigError(f"executor.cores is {setting!r}: use auto, null, or cores such as 2-7 or [2,3]") from None
    if not wanted or (missing := sorted(set(wanted) - set(usable))):
        raise ConfigError(f"executor.cores names {missing if wanted else 'none'}; usable here: {sorted(usable)}")
    return wanted


def share_out(
    setting: Any, gpus: Sequence[dict[str, Any]], usable: Collection[int] | None = None
) -> list[list[int] | None]:
    """Cores for the trials of each GPU, in order; None: wherever the kernel puts them.

    `gpus` are those of the probe's answer; `near_cores` of one is the list that the kernel gives for its bus. GPUs
    that are near the same cores share them out evenly; where some are near only a part of what others are, all of them
    share all. Fewer cores than GPUs are not shared out at all.
    """
    cores = wanted_cores(setting, os.sched_getaffinity(0) if usable is None else usable)
    if cores is None:
        return [None] * len(gpus)
    near = [tuple(core for core in near_cores(gpu) if core in cores) or tuple(cores) for gpu in gpus]
    if any(set(one) & set(other) and one != other for one in near for other in near):
        near = [tuple(cores)] * len(gpus)  # no even shares of sets that overlap in part
    shares: list[list[int] | None] = []
    for index, mine in enumerate(near):
        beside = [other for other, theirs in enumerate(near) if set(theirs) & set(mine)]
        place, count = beside.index(index), len(beside)
        size = len(mine) // count
        if size == 0:
            shares.append(None)
            continue
        share = list(mine[place * size : (place + 1) * size])
        # the very first core also serves the sweep, its fork server and most interrupts
        spare = setting == "auto" and size >= SPARE_FROM and share[0] == min(cores)
        shares.append(share[1:] if spare else share)
    return shares


def near_cores(gpu: dict[str, Any]) -> list[int]:
    try:
        return parse_cores(gpu.get("near_cores") or "")
    except ValueError:  # a machine that does not say
        return []
