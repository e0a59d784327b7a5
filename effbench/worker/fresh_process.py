"""Start fresh processes, and follow their messages until they end."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from effbench.core import processes
from effbench.core.cell import Status
from effbench.core.message import Json, MessageError, decode
from effbench.worker.fresh_messages import (
    FIRST_CALL,
    IMPORTS,
    PARTS,
    CacheUse,
    FreshFailure,
    FreshRequest,
    FreshResult,
    PreparedSize,
)

READ_BYTES = 1 << 16
#: Seconds after which to look whether a process has ended: its children may hold the pipe.
POLL_S = 1.0
#: Seconds in which a process that has sent its result must end.
END_S = 10.0


@dataclass
class FreshRun:
    """How a fresh process ran. Times are of CLOCK_MONOTONIC in ns.

    `parts`: all parts, in order; `started_ns`: just before it was started; `ended_ns`: when each
    part ended; `answered_ns`: when the message of the first answer arrived.
    """

    parts: list[str]
    started_ns: int
    ended_ns: dict[str, int] = field(default_factory=dict)
    answered_ns: int = 0
    result: FreshResult | None = None
    failure: FreshFailure | None = None

    @property
    def part(self) -> str:
        """The part that has not ended, the last one after the first answer."""
        return self.parts[min(len(self.ended_ns), len(self.parts) - 1)]

    @property
    def is_complete(self) -> bool:
        """Whether the process has sent its result, or how it failed."""
        return self.result is not None or self.failure is not None

    @property
    def cold_s(self) -> float:
        """Seconds from the start to the first answer, measured here."""
        return (self.answered_ns - self.started_ns) / 1e9

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part by name. The compiler's parts and imports are taken out
        of the last one, which is what remains of it."""
        seconds: dict[str, float] = {}
        before = self.started_ns
        for part, ns in self.ended_ns.items():
            seconds[part] = (ns - before) / 1e9
            before = ns
        if self.result is not None:
            inside = self.result.seconds
            imports_s = self.result.compiler_imports_s
            seconds |= inside
            seconds[IMPORTS] += imports_s
            seconds[FIRST_CALL] -= imports_s + sum(inside.values())
        return seconds

    def accept(self, message: Json, arrived_ns: int) -> None:
        """Take a message of the process."""
        if "part" in message:
            self.ended_ns[message["part"]] = message["ns"]
            if message["part"] == FIRST_CALL:
                self.answered_ns = arrived_ns
        elif "result" in message:
            self.result = result_of(message["result"])
        elif "failed" in message:
            self.failure = FreshFailure(**message["failed"])


def result_of(data: Mapping[str, Any]) -> FreshResult:
    """Return the result that a process sent as JSON."""
    result = FreshResult(**data)
    result.sizes = [PreparedSize(**size) for size in data["sizes"]]
    if data["cache"] is not None:
        result.cache = CacheUse(**data["cache"])
    return result


class FreshProcess:
    """A fresh process that runs. `folder`: where its request is written."""

    def __init__(self, request: FreshRequest, env: Mapping[str, str], folder: Path) -> None:
        path = folder / "request.json"
        path.write_text(json.dumps(asdict(request)))
        self.pipe, end = os.pipe()
        os.set_blocking(self.pipe, False)
        self.buffer = b""
        self.is_closed = False
        self.oom_kills = processes.oom_kills()
        command = [sys.executable, "-m", "effbench.worker.fresh", str(path), str(end)]
        self.run = FreshRun(request.parts, time.monotonic_ns())
        self.process = subprocess.Popen(
            command,
            env=env,
            pass_fds=[end],
            stdin=subprocess.DEVNULL,
        )
        os.close(end)

    @property
    def is_done(self) -> bool:
        """Whether it has sent all messages, or has ended."""
        return self.run.is_complete or self.is_closed or self.process.poll() is not None

    def read(self) -> None:
        """Take the messages that have arrived."""
        while not self.is_closed:
            try:
                data = os.read(self.pipe, READ_BYTES)
            except BlockingIOError:  # nothing more yet
                return
            arrived_ns = time.monotonic_ns()
            self.is_closed = not data
            *lines, self.buffer = (self.buffer + data).split(b"\n")
            for line in lines:
                with suppress(MessageError):  # user code can write to that pipe, too
                    self.run.accept(decode(line), arrived_ns)

    def end(self) -> None:
        """Wait for its end, and kill it if that takes long. Without a result or failure of its own,
        how it ended is the failure."""
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if not self.run.is_complete:
            self.run.failure = self.failure()

    def failure(self) -> FreshFailure:
        """Return how the process ended without a result."""
        code, where = self.process.returncode, f"(in {self.run.part})"
        if code == -signal.SIGKILL and processes.oom_kills() > self.oom_kills:
            reason = f"killed by the kernel: host memory ran out {where}"
            return FreshFailure(str(Status.OOM), reason, "")
        reason = f"the fresh process exited with code {code} {where}"
        if code < 0:
            reason = f"the fresh process was killed by {signal.Signals(-code).name} {where}"
        return FreshFailure(str(Status.CRASHED), reason, "")

    def close(self) -> None:
        """Kill the process if it still runs."""
        os.close(self.pipe)
        self.process.kill()
        self.process.wait()


def run_together(
    requests: Sequence[FreshRequest],
    env: Mapping[str, str],
    folder: Path,
    announce: Callable[[str], None],
) -> list[FreshRun]:
    """Start a fresh process for each request at the same time, and return how they ran, once all
    have ended. `folder`: an empty one for their requests. `announce`: called with the part that
    begins, of the process that is behind all others."""
    started: list[FreshProcess] = []
    try:
        with selectors.DefaultSelector() as selector:
            for number, request in enumerate(requests):
                place = folder / str(number)
                place.mkdir()
                process = FreshProcess(request, env, place)
                started.append(process)
                selector.register(process.pipe, selectors.EVENT_READ, process)
            follow(selector, started, announce)
        for process in started:
            process.end()
    finally:
        for process in started:
            process.close()
    return [process.run for process in started]


def follow(
    selector: selectors.BaseSelector,
    started: Sequence[FreshProcess],
    announce: Callable[[str], None],
) -> None:
    """Read the messages of the processes until all have sent them or have ended."""
    announced = ""
    running = list(started)
    while running:
        part = min((process.run.part for process in started), key=PARTS.index)
        if part != announced:
            announce(part)
            announced = part
        for key, _ in selector.select(POLL_S):
            key.data.read()
        for process in list(running):
            if process.is_done:
                process.read()
                selector.unregister(process.pipe)
                running.remove(process)
