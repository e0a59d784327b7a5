"""Data files of cells: a page finds a cell's file by the first key of each file.

With many trials, several processes each write a part of every device sweep, while the main process writes the other
pages.
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

#: Most characters per file, unless a single cell has more.
LARGEST = 800_000
#: Trials of all device sweeps from which several processes write.
MANY_TRIALS = 2_000
MOST_PROCESSES = 4

#: Slug of a device sweep -> its files, as [first key, path] each.
Files = dict[str, list[list[str]]]
#: Input of the processes, which share the memory at their start.
_shared: tuple[Sequence[DeviceSweep], Writer]


@contextmanager
def cell_files(device_sweeps: Sequence[DeviceSweep], writer: Writer) -> Iterator[Callable[[], Files]]:
    """Start writing the cells; yield a function that waits for their files and returns them.

    The function raises the errors of the processes, and RuntimeError if a process was killed.
    """
    trials = sum(row["trials"] or 0 for device_sweep in device_sweeps for row in device_sweep.rows)
    parts = processes() if trials >= MANY_TRIALS else 1
    if parts == 1:
        yield cache(lambda: write_part(device_sweeps, writer, 0, 1))
        return
    for device_sweep in device_sweeps:
        device_sweep.labelled  # noqa: B018 - cached before the fork, so that the processes share it
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(parts, fork, _share, (device_sweeps, writer)) as pool:
        futures = [pool.submit(_write_shared, part, parts) for part in range(parts)]

        @cache
        def wait() -> Files:
            written_files: Files = {device_sweep.slug: [] for device_sweep in device_sweeps}
            for future in futures:
                files, written = future.result()
                writer.written.update(written)
                for slug, of_slug in files.items():
                    written_files[slug] += of_slug
            return written_files

        yield wait


def processes() -> int:
    """Return the number of processes to use; one on platforms where processes cannot share memory by forking."""
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


def _share(device_sweeps: Sequence[DeviceSweep], writer: Writer) -> None:
    global _shared
    writer.written.clear()
    _shared = (device_sweeps, writer)


def _write_shared(part: int, parts: int) -> tuple[Files, dict[str, int]]:
    device_sweeps, writer = _shared
    return write_part(device_sweeps, writer, part, parts), writer.written


def write_part(device_sweeps: Sequence[DeviceSweep], writer: Writer, part: int, parts: int) -> Files:
    """Write one part of the cells of every device sweep."""
    files = {}
    for device_sweep in device_sweeps:
        cells = cells_of(device_sweep, writer, part, parts)
        files[device_sweep.slug] = list(write_cells(writer, f"{device_sweep.slug}/", cells, part))
    return files


def write_cells(
    writer: Writer, folder: str, cells: Iterable[tuple[str, list[dict[str, Any]]]], part: int = 0
) -> Iterator[list[str]]:
    """Write cells to files of about LARGEST characters; yield [first key, path in `folder`] of each file.

    Keys must ascend, so that a page finds a key's file by the first keys. Raises ValueError if they do not.
    """
    texts: list[str] = []
    first, last, size, number = "", "", 0, 0

    def flush() -> list[str]:
        path = f"data/cells-{part}-{number}.js"
        writer.script(folder + path, "{" + ",\n".join(texts) + "}")
        return [first, path]

    for key, entries in cells:
        if key <= last:
            raise ValueError(f"cell keys must ascend: {key!r} follows {last!r}")
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
