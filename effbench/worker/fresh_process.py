"""Start fresh processes, and follow their messages until they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from effbench.core import processes
from effbench.core.cell import Status
from effbench.core.message import Json, decode
from effbench.worker.failures import Failure
from effbench.worker.fresh_messages import (
    FIRST_CALL,
    IMPORTS,
    PARTS,
    CacheUse,
    FreshFolder,
    FreshRequest,
    FreshResult,
    PreparedSize,
)

#: Seconds after which to look for messages.
POLL_S = 0.1


@dataclass
class FreshRun:
    """How a fresh process ran. Times are of CLOCK_MONOTONIC in ns.

    `parts`: all parts, in order; `started_ns`: just before it was started; `ended_ns`: when each
    part ended; `answer`: the file of the first answer; `result`: empty until `is_complete`, and
    after a failure.
    """

    parts: list[str]
    answer: Path
    started_ns: int
    ended_ns: dict[str, int] = field(default_factory=dict)
    result: FreshResult = field(default_factory=FreshResult)
    failure: Failure | None = None
    is_complete: bool = False

    @property
    def part(self) -> str:
        """The part that has not ended, the last one after the first answer."""
        return self.parts[min(len(self.ended_ns), len(self.parts) - 1)]

    @property
    def cold_s(self) -> float:
        """Seconds from the start to the first answer."""
        return (self.ended_ns[FIRST_CALL] - self.started_ns) / 1e9

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part by name. The compiler's parts and imports are taken out
        of the last one, which is what remains of it."""
        seconds: dict[str, float] = {}
        before = self.started_ns
        for part, ns in self.ended_ns.items():
            seconds[part] = (ns - before) / 1e9
            before = ns
        inside = self.result.seconds
        imports_s = self.result.compiler_imports_s
        seconds |= inside
        seconds[IMPORTS] += imports_s
        seconds[FIRST_CALL] -= imports_s + sum(inside.values())
        return seconds

    def accept(self, message: Json) -> None:
        """Take a message of the process."""
        if "part" in message:
            self.ended_ns[message["part"]] = message["ns"]
            return
        self.is_complete = True
        if "failed" in message:
            self.failure = Failure(**message["failed"])
        else:
            self.result = result_of(message["result"])


def result_of(data: Mapping[str, Any]) -> FreshResult:
    """Return the result that a process sent as JSON."""
    result = FreshResult(**data)
    result.sizes = [PreparedSize(**size) for size in data["sizes"]]
    if data["cache"] is not None:
        result.cache = CacheUse(**data["cache"])
    return result


class FreshProcess:
    """A fresh process that runs. `path`: an empty folder for its files."""

    def __init__(self, request: FreshRequest, env: Mapping[str, str], path: Path) -> None:
        self.folder = FreshFolder(path)
        self.folder.request.write_text(json.dumps(asdict(request)))
        self.folder.messages.touch()
        self.oom_kills = processes.oom_kills()
        command = [sys.executable, "-m", "effbench.worker.fresh", str(path)]
        self.run = FreshRun(request.parts, self.folder.answer, time.monotonic_ns())
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def read(self) -> None:
        """Take the messages that it has sent so far; it may still write the last line."""
        lines, _, _ = self.folder.messages.read_bytes().rpartition(b"\n")
        for line in lines.splitlines():
            self.run.accept(decode(line))

    def failure(self) -> Failure:
        """Return how the process ended without a result."""
        code, where = self.process.returncode, f"(in {self.run.part})"
        if code == -signal.SIGKILL and processes.oom_kills() > self.oom_kills:
            reason = f"killed by the kernel: host memory ran out {where}"
            return Failure(str(Status.OOM), reason)
        reason = f"the fresh process exited with code {code} {where}"
        if code < 0:
            reason = f"the fresh process was killed by {processes.signal_name(-code)} {where}"
        return Failure(str(Status.CRASHED), reason)

    def kill(self) -> None:
        """Kill the process if it still runs."""
        self.process.kill()
        self.process.wait()


def run_together(
    requests: Sequence[FreshRequest],
    env: Mapping[str, str],
    folder: Path,
    announce: Callable[[str], None],
) -> list[FreshRun]:
    """Start a fresh process for each request at the same time, and return how they ran, once all
    have ended. `folder`: an empty one for their files. `announce`: called with the part that
    begins, of the process that is behind all others."""
    started: list[FreshProcess] = []
    try:
        for number, request in enumerate(requests):
            place = folder / str(number)
            place.mkdir()
            started.append(FreshProcess(request, env, place))
        follow(started, announce)
    finally:
        for process in started:
            process.kill()
    for process in started:
        if not process.run.is_complete:
            process.run.failure = process.failure()
    return [process.run for process in started]


def follow(started: Sequence[FreshProcess], announce: Callable[[str], None]) -> None:
    """Read the messages of the processes until all have ended."""
    announced = ""
    are_running = True
    while are_running:
        # before reading, so that no last message is lost
        are_running = any(process.is_running for process in started)
        for process in started:
            process.read()
        part = min((process.run.part for process in started), key=PARTS.index)
        if part != announced:
            announce(part)
            announced = part
        time.sleep(POLL_S)
