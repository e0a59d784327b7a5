"""Which batch sizes get a CUDA graph, and which graph a batch takes: the policy of servers."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from effbench.errors import ConfigError

#: The defaults of SGLang of 2024 and 0.5.6 and of vLLM 0.11.1, for a GPU of 80 GB and one request a row
#: (docs/how-to/serve.md); `no-padding` is SGLang of 2024 with padding switched off.
LISTS: dict[str, tuple[int, ...]] = {
    "sglang-classic": (1, 2, 4, *range(8, 161, 8)),
    "sglang": (1, 2, 4, 8, 12, *range(16, 257, 8)),
    "vllm": (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)),
    "powers-of-two": tuple(2**power for power in range(13)),
    "no-padding": tuple(range(1, 33)),
}
EXACT = "exact"
PRESETS = (*LISTS, EXACT)


def capture_sizes(buckets: str | Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the sizes to capture, ascending, for batches of `sizes`. A preset ends at the largest of them, which
    replaces the first larger one of the list, as servers do; `no-padding` only ends there. `exact`: the sizes that
    occur. A list of numbers is used as it is. Raises ConfigError."""
    if not isinstance(buckets, str):
        given = list(buckets) if isinstance(buckets, Sequence) else []
        if not given or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in given):
            raise ConfigError(f"buckets is {given or buckets!r}; it takes sizes from 1, as [1,2,4,8], or a preset")
        return sorted(set(given))
    if buckets == EXACT:
        return sorted(set(sizes))
    if buckets not in LISTS:
        raise ConfigError(f"buckets={buckets} is no preset: give {', '.join(PRESETS)}, or a list: [1,2,4,8]")
    largest = max(sizes)
    kept = [size for size in LISTS[buckets] if size <= largest]
    if buckets != "no-padding" and largest < LISTS[buckets][-1] and largest not in kept:
        kept.append(largest)
    return kept


def bucket_of(captured: Sequence[int], raw: int) -> int | None:
    """Return the smallest captured size (ascending) that holds `raw` rows; None if it is above all of them."""
    place = bisect.bisect_left(captured, raw)
    return captured[place] if place < len(captured) else None


@dataclass(frozen=True)
class Usage:
    """The use of a capture list. `rows` and `padded_rows` are computed by graphs; `fallbacks`: calls without a graph;
    `by_bucket`: calls of each captured size."""

    calls: int
    fallbacks: int
    rows: int
    padded_rows: int
    by_bucket: dict[int, int]

    @property
    def padding_waste(self) -> float | None:
        """Padded rows ÷ all rows of graphs; None if no call used one."""
        return self.padded_rows / self.rows if self.rows else None


def usage(captured: Sequence[int], calls: Mapping[int, int]) -> Usage:
    """`calls`: raw size -> number of calls. `captured` is ascending."""
    by_bucket = dict.fromkeys(captured, 0)
    fallbacks = rows = padded = 0
    for raw, count in calls.items():
        bucket = bucket_of(captured, raw)
        if bucket is None:
            fallbacks += count
            continue
        by_bucket[bucket] += count
        rows += bucket * count
        padded += (bucket - raw) * count
    return Usage(sum(calls.values()), fallbacks, rows, padded, by_bucket)
