"""The socket at which the two members of a duet meet, or the ranks of a trial, and the messages
that they exchange: lines of plain JSON.

The member that was started first listens. The sweep connects instead of its partner if that one
does not come. Of the ranks the leader listens. Standard library only, because the sweep and its
workers import this module.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from effbench.core.message import decode, encode

#: Key in `Trial.extra` of a member of a duet: a mapping, which has the key ALONE if it was timed
#: alone.
DUET, ALONE = "duet", "alone"
NAME = "duet"
READ_BYTES = 1 << 16
OTHER_MEMBER = "the other member of the duet"


class PartnerLostError(Exception):
    """The other member of a duet, or another rank, ended, does not answer or will not come; the
    text says why."""


@contextmanager
def address(folder: Path, name: str) -> Iterator[str]:
    """Yield an address of the socket with this name in this folder. The paths of sockets may have
    107 characters, those of temporary folders are sometimes longer, and a descriptor shortens
    them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen(folder: Path, name: str = NAME) -> socket.socket:
    """Return a socket in this folder at which another process can connect. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (folder / name).unlink(missing_ok=True)  # of an earlier attempt of this trial
        with address(folder, name) as path:
            listener.bind(path)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def connect(folder: Path, name: str = NAME) -> socket.socket:
    """Return a connection to the process that listens in this folder. Raises OSError if none
    does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(folder, name) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def call_off(folder: Path, reason: str) -> None:
    """Tell the member that waits in this folder, if one does, that its partner will not come, and
    why."""
    with suppress(OSError), connect(folder) as connection:
        connection.sendall(encode({"op": "absent", "reason": reason}))


class Partner:
    """The connection to another process. `answer_s`: the longest wait for a message, None without
    a limit; `name`: of that process in errors."""

    def __init__(
        self, connection: socket.socket, answer_s: float | None, name: str = OTHER_MEMBER
    ) -> None:
        self.connection = connection
        self.answer_s = answer_s
        self.name = name
        connection.settimeout(answer_s)
        self.received = bytearray()

    @property
    def has_message(self) -> bool:
        """Whether a message has been received that `receive` has not returned yet."""
        return b"\n" in self.received

    def send(self, op: str, **values: Any) -> None:
        """Send a message. Raises PartnerLostError."""
        try:
            self.connection.sendall(encode({"op": op, **values}))
        except OSError as error:
            raise self.lost(error) from error

    def receive(self) -> dict[str, Any]:
        """Wait for the next message and return it. Raises PartnerLostError."""
        while not self.has_message:
            try:
                data = self.connection.recv(READ_BYTES)
            except OSError as error:
                raise self.lost(error) from error
            if not data:
                raise self.lost(None)
            self.received += data
        line, _, self.received = self.received.partition(b"\n")
        return decode(line)

    def ask(self, op: str, **values: Any) -> dict[str, Any]:
        """Send a message and return the answer. Raises PartnerLostError."""
        self.send(op, **values)
        return self.receive()

    def wait_for_end(self) -> None:
        """Wait until the other member closes the connection, for as long as it takes."""
        with suppress(OSError):
            self.connection.settimeout(None)
            while self.connection.recv(READ_BYTES):
                pass

    def lost(self, error: OSError | None) -> PartnerLostError:
        what = "ended"
        if error is not None:
            what = f"ended ({error})"
        if isinstance(error, TimeoutError):
            what = f"did not answer for {self.answer_s:g} s"
        return PartnerLostError(f"{self.name} {what}")
