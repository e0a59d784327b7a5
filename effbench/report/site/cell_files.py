"""Files with the data of cells: a page finds a cell by the first key of each file.

Of many trials several processes write them, each a part of every device sweep, while the command's own process writes
the other pages.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

from effbench.report.data import DeviceSweep
from effbench.report.site.cell_data import cells_of
from effbench.report.site.writer import Writer, as_json

#: Characters of a file; a cell alone may have more.
LARGEST = 800_000
#: Trials of all device sweeps from which on several processes write.
MANY_TRIALS = 2_000
MOST_PROCESSES = 4

#: Slug of a device sweep -> its files, as [first key, path] each.
Files = dict[str, list[list[str]]]
#: What the processes work on: they share what is in memory as they start.
_shared: tuple[Sequence[DeviceSweep], Writer]


@contextmanager
def cell_files(device_sweeps: Sequence[DeviceSweep], writer: Writer) -> Iterator[Callable[[], Files]]:
    """Begin to write the cells; yield a function that waits for their files.

    The function raises what a process raised, and RuntimeError for a process that was killed.
    """
    trials = sum(row["trials"] or 0 for one in device_sweeps for row in one.rows)
    parts = processes() if trials >= MANY_TRIALS else 1
    if parts == 1:
        yield cache(lambda: write_part(device_sweeps, writer, 0, 1))
        return
    for one in device_sweeps:
        one.labelled  # noqa: B018 - before the processes begin, which share it
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(parts, fork, _share, (device_sweeps, writer)) as pool:
        futures = [pool.submit(_write_shared, part, parts) for part in range(parts)]

        @cache
        def wait() -> Files:
            found: Files = {one.slug: [] for one in device_sweeps}
            for future in futures:
                files, written = future.result()
                writer.written.update(written)
                for slug, own in files.items():
                    found[slug] += own
            return found

        yield wait


def processes() -> int:
    """Return how many are useful here: one on platforms where a process cannot share what is in memory."""
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


def _share(device_sweeps: Sequence[DeviceSweep], writer: Writer) -> None:
    global _shared
    writer.written.clear()
    _shared = (device_sweeps, writer)


def _write_shared(part: int, parts: int) -> tuple[Files, dict[str, int]]:
    device_sweeps, writer = _shared
    return write_part(device_sweeps, writer, part, parts), writer.written


def write_part(device_sweeps: Sequence[DeviceSweep], writer: Writer, part: int, parts: int) -> Files:
    """Write a part of the cells of every device sweep."""
    return {
        one.slug: list(write_cells(writer, f"{one.slug}/", cells_of(one, writer, part, parts), part))
        for one in device_sweeps
    }


def write_cells(
    writer: Writer, folder: str, cells: Iterable[tuple[str, list[dict[str, Any]]]], part: int = 0
) -> Iterator[list[str]]:
    """Write cells in files of about LARGEST characters; yield for each its first key and its path in `folder`.

    Keys come in ascending order, so that a page finds the file of a key by the first ones. Raises ValueError otherwise.
    """
    texts: list[str] = []
    first, last, size, number = "", "", 0, 0

    def flush() -> list[str]:
        path = f"data/cells-{part}-{number}.js"
        writer.script(folder + path, "{" + ",\n".join(texts) + "}")
        return [first, path]

    for key, entries in cells:
        if key <= last:
            raise ValueError(f"cells come in the order of their keys, each once: {key!r} after {last!r}")
        last = key
        text = f"{json.dumps(key)}:{as_json(entries)}"
        if texts and size + len(text) > LARGEST:
            yield flush()
            texts, size, number = [], 0, number + 1
        first = first if texts else key
        texts.append(text)
        size += len(text)
    if texts:
        yield flush()
