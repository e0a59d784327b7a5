"""Which CPU cores a trial may run on: each GPU's trials get physical cores of their own, near it if that is known."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from effbench.errors import ConfigError

#: With so many physical cores a GPU, the first is left to the sweep itself and to the system; with fewer, but as many
#: hardware threads, only its first thread is.
SPARE_FROM = 4
TOPOLOGY = Path("/sys/devices/system/cpu")


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
    setting: Any,
    gpus: Sequence[dict[str, Any]],
    usable: Collection[int] | None = None,
    topology: Path = TOPOLOGY,
) -> list[list[int] | None]:
    """Return the cores for the trials of each GPU, in order; None: wherever the kernel puts them.

    All hardware threads of a physical core go to the same GPU. `gpus` are those of the probe's answer; `near_cores` is
    the kernel's list for the GPU's bus. GPUs near the same cores share them evenly. If the near cores of two GPUs
    overlap in part, all GPUs share all cores. Fewer physical cores than GPUs are not shared out at all.
    """
    wanted = wanted_cores(setting, os.sched_getaffinity(0) if usable is None else usable)
    if wanted is None:
        return [None] * len(gpus)
    cores = physical_cores(wanted, topology)
    near = [tuple(core for core in cores if set(core) & set(near_cores(gpu))) or tuple(cores) for gpu in gpus]
    if any(set(one) & set(other) and one != other for one in near for other in near):
        near = [tuple(cores)] * len(gpus)  # no even shares of sets that overlap in part
    shares: list[list[int] | None] = []
    for index, mine in enumerate(near):
        sharing = [other for other, theirs in enumerate(near) if set(theirs) & set(mine)]
        place, count = sharing.index(index), len(sharing)
        size = len(mine) // count
        if size == 0:
            shares.append(None)
            continue
        share = mine[place * size : (place + 1) * size]
        threads = sorted(thread for core in share for thread in core)
        # the very first core also serves the sweep, its fork server and most interrupts
        if setting == "auto" and len(threads) >= SPARE_FROM and share[0] == cores[0]:
            spare = share[0] if size >= SPARE_FROM else share[0][:1]
            threads = [thread for thread in threads if thread not in spare]
        shares.append(threads)
    return shares


def physical_cores(usable: Collection[int], topology: Path = TOPOLOGY) -> list[tuple[int, ...]]:
    """Return the usable hardware threads of each physical core, by first thread.

    A thread is a core of its own if the kernel does not list its siblings, as in some containers.
    """
    cores: list[tuple[int, ...]] = []
    left = set(usable)
    for thread in sorted(left):
        if thread in left:
            try:
                siblings = parse_cores((topology / f"cpu{thread}" / "topology" / "thread_siblings_list").read_text())
            except (OSError, ValueError):
                siblings = []
            core = {thread, *siblings} & left
            cores.append(tuple(sorted(core)))
            left -= core
    return cores


def near_cores(gpu: dict[str, Any]) -> list[int]:
    try:
        return parse_cores(gpu.get("near_cores") or "")
    except ValueError:  # a machine that does not say
        return []
