"""Bundles as JSON lines: a header, a line a record, and a last line that says that nothing is missing or was changed.

Blobs are base64, times ISO 8601 in UTC. Files may be compressed (gzip) and may be put one after another with `cat`.
The last line has the SHA-256 of the lines above it, each without white space at its ends and with one line feed.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from effbench.errors import StoreError
from effbench.outputs import unpacked
from effbench.store.bundle import Record, check_header, checked, header

END_FIELDS = {"end", "sweeps", "sha256"}
#: longer than any last line
_END_BYTES = 300


def write_lines(stream: IO[bytes], records: Iterable[Record], *, samples: bool) -> int:
    """Write a bundle; returns how many sweeps it holds."""
    digest, sweeps = hashlib.sha256(), 0

    def write(said: dict[str, Any]) -> None:
        line = _line(said)
        digest.update(line)
        stream.write(line)

    write(header(samples))
    for record in records:
        sweeps += record.table == "sweep"
        write({"table": record.table, **record.values})
    stream.write(_line({"end": True, "sweeps": sweeps, "sha256": digest.hexdigest()}))
    return sweeps


def read_lines(stream: IO[bytes], name: str) -> Iterator[Record]:
    """The records of a seekable stream. Raises StoreError that names the line for whatever is wrong with it.

    All of it is looked at first, so that a file that was cut off or changed is refused before anything of it is used.
    """
    stream = unpacked(stream)
    require_whole(stream, name)
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


def require_whole(stream: IO[bytes], name: str) -> None:
    """Raise StoreError unless the first line is a header, the last one ends a bundle, and all are what was written."""
    digest, first, number, ended = hashlib.sha256(), True, 0, False
    for number, line in _numbered(stream, name):
        if first:
            check_header(_parsed(line, f"{name}, line 1", first=True), f"{name}, line 1")
            first = False
        said = _end_of(line)
        ended = said is not None
        if said is None:
            digest.update(line.strip() + b"\n")
            continue
        if said.keys() - END_FIELDS or said.get("sha256", digest.hexdigest()) != digest.hexdigest():
            stream.seek(0)
            for _ in lines(stream, name):  # which line it is, where one is no JSON any more
                pass
            raise StoreError(
                f"{name}, line {number}: the lines above are not those that were written (their sha256 is another): "
                "damaged or edited; nothing of it was imported"
            )
        digest = hashlib.sha256()
    if first:
        raise StoreError(f"{name} is empty; `effbench export --whole` writes what can be imported")
    if not ended:
        raise StoreError(
            f"{name}, line {number}: cut off: the line that ends a bundle does not follow; nothing of it was imported"
        )


def _end_of(line: bytes) -> dict[str, Any] | None:
    """What the line says if it ends a bundle."""
    if len(line) > _END_BYTES or b'"end"' not in line:
        return None
    try:
        said = _parsed(line, "")
    except StoreError:
        return None
    return said if said.get("end") is True else None


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
    except (OSError, EOFError, zlib.error) as error:  # gzip's own among them
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
