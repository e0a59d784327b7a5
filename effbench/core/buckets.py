"""Capture lists of inference servers: which batch sizes get a CUDA graph, and which graph runs a
batch."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from effbench.core.errors import ConfigError

#: Defaults of SGLang (2024 and 0.5.6) and vLLM 0.11.1 for a GPU with 80 GB and one request per row
#: (docs/how-to/serve.md).
LISTS: dict[str, tuple[int, ...]] = {
    "sglang-classic": (1, 2, 4, *range(8, 161, 8)),
    "sglang": (1, 2, 4, 8, 12, *range(16, 257, 8)),
    "vllm": (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)),
    "powers-of-two": tuple(2**power for power in range(13)),
}
EXACT = "exact"
PRESETS = (*LISTS, EXACT)


def capture_sizes(buckets: str | Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the batch sizes to capture, ascending, for batches of `sizes`. A preset is cut at the
    largest of `sizes`, which replaces the preset's next larger entry, as in servers. `exact`: the
    sizes that occur. A list of numbers is used unchanged. Raises ConfigError for an unknown preset
    or invalid sizes."""
    if buckets == EXACT:
        return sorted(set(sizes))
    if isinstance(buckets, str) and buckets in LISTS:
        largest = min(max(sizes), LISTS[buckets][-1])
        return [*(size for size in LISTS[buckets] if size < largest), largest]
    if (
        isinstance(buckets, list | tuple)
        and buckets
        and all(type(size) is int and size > 0 for size in buckets)
    ):
        return sorted(set(buckets))
    raise ConfigError(
        f"unknown buckets={buckets}; allowed: {', '.join(PRESETS)}, or a list such as [1,2,4,8]"
    )


def bucket_of(captured: Sequence[int], raw: int) -> int | None:
    """Return the smallest of the `captured` sizes (ascending) that holds `raw` rows; None if all
    are smaller."""
    index = bisect.bisect_left(captured, raw)
    if index < len(captured):
        return captured[index]
    return None


@dataclass(frozen=True)
class Usage:
    """How calls use a capture list. `fallbacks`: calls without a graph. `padding_waste`: padded
    rows ÷ all rows computed by graphs; None if no call used a graph."""

    calls: int
    fallbacks: int
    padding_waste: float | None


def usage(captured: Sequence[int], calls: Sequence[int]) -> Usage:
    """Return how `calls` (their batch sizes) use the `captured` sizes (ascending)."""
    fallbacks = rows = padded = 0
    for raw in calls:
        bucket = bucket_of(captured, raw)
        if bucket is None:
            fallbacks += 1
        else:
            rows += bucket
            padded += bucket - raw
    return Usage(len(calls), fallbacks, padded / rows if rows else None)
