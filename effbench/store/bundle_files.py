"""Bundles as JSON lines: a header, a line a record, and a last line that says that nothing is missing.

Blobs are base64, times ISO 8601 in UTC. Files may be compressed (gzip) and may be put one after another with `cat`.
"""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from effbench.errors import StoreError, UsageError
from effbench.store.bundle import Record, check_header, checked, header

GZIP = b"\x1f\x8b"


def write_lines(stream: IO[bytes], records: Iterable[Record], *, samples: bool) -> int:
    """Write a bundle; returns how many sweeps it holds."""
    stream.write(_line(header(samples)))
    sweeps = 0
    for record in records:
        sweeps += record.table == "sweep"
        stream.write(_line({"table": record.table, **record.values}))
    stream.write(_line({"end": True, "sweeps": sweeps}))
    return sweeps


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose file stands at `path` when all of it is written, and not before. `.gz` compresses."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            with path.open("wb") as stream:
                yield stream
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        try:
            with part.open("wb") as file:
                if path.suffix == ".gz":
                    with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6) as stream:
                        yield stream
                else:
                    yield file
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def read_lines(stream: IO[bytes], name: str) -> Iterator[Record]:
    """The records of a seekable stream. Raises StoreError that names the line for whatever is wrong with it.

    Its end is looked at first, so that a file that was cut off is refused before anything of it is used.
    """
    stream = unpacked(stream)
    require_end(stream, name)
    stream.seek(0)
    inside, sweeps = False, 0
    for where, said in lines(stream, name):
        if not inside:
            check_header(said, where)
            inside, sweeps = True, 0
        elif said.get("end") is True:
            if said.get("sweeps", sweeps) != sweeps:
                raise StoreError(f"{where}: {said['sweeps']} sweeps should stand above, and {sweeps} do: damaged")
            inside = False
        elif "format" in said:
            raise StoreError(f"{where}: a bundle begins before the one above has ended: it was cut off")
        else:
            table = said.pop("table", None)
            sweeps += table == "sweep"
            yield checked(table, said, where)
    if inside:
        raise StoreError(f"{name}: ends before its last line")


def unpacked(stream: IO[bytes]) -> IO[bytes]:
    """The stream, or what gzip made it from."""
    start = stream.read(2)
    stream.seek(0)
    return io.BufferedReader(gzip.GzipFile(fileobj=stream)) if start == GZIP else stream


def require_end(stream: IO[bytes], name: str) -> None:
    """Raise StoreError unless the last line is the one that ends a bundle, and the first a header."""
    first = last = b""
    end = 0
    for number, line in _numbered(stream, name):
        first = first or line
        last, end = line, number
    if not last:
        raise StoreError(f"{name} is empty; `effbench export --whole` writes what can be imported")
    check_header(_parsed(first, f"{name}, line 1", first=True), f"{name}, line 1")
    try:
        ended = _parsed(last, "").get("end") is True
    except StoreError:
        ended = False
    if not ended:
        raise StoreError(
            f"{name}, line {end}: cut off: the line that ends a bundle does not follow; nothing of it was imported"
        )


def lines(stream: IO[bytes], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _numbered(stream, name):
        where = f"{name}, line {number}"
        yield where, _parsed(line, where)


def _numbered(stream: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, counted from 1."""
    number = 0
    try:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, line
    except (OSError, EOFError) as error:  # gzip's own among them
        raise StoreError(f"{name}, after line {number}: damaged or cut off ({error})") from error


def _parsed(line: bytes, where: str, first: bool = False) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        if first:
            raise StoreError(
                f"{where}: not a file of whole sweeps; `effbench export --whole` writes what can be imported"
            ) from error
        raise StoreError(f"{where}: damaged: not JSON ({error})") from error
    if not isinstance(said, dict):
        raise StoreError(f"{where}: not a file of whole sweeps: a line is a JSON object")
    return said


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said, default=_plain, separators=(",", ":")).encode() + b"\n"


def _plain(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode()
    raise TypeError(f"no JSON for {type(value).__name__}")
