"""The sweep's end of the fork server: starts it, sends tasks, hands their outcomes back."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effbench.errors import WorkerError
from effbench.message import MOST_BYTES, PROBE_PHASE, TRIAL_VARIABLE, MessageError, decode, encode
from effbench.printable import one_line
from effbench.sweeping.interpreters import lone_package

#: Without these two a forked child hangs: a pool of compile workers, and a CUDA check that starts CUDA.
SERVER_ENVIRONMENT = {"TORCH_WARM_POOL": "0", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
READY_TIMEOUT_S = 180.0
KILL_TIMEOUT_S = 15.0
LAST_WORDS_TIMEOUT_S = 2.0
#: How long to wait before each further try of what failed in the harness.
RETRY_PAUSES_S = (0.5, 2.0, 5.0)
#: Longest line from a server: it escapes what a task may have sent as it is.
MOST_LINE_BYTES = 4 * MOST_BYTES


@dataclass
class Task:
    """Something that runs in a child of the server. `outcome` is the message `ended`, or {"died": reason}."""

    id: str
    on_phase: Callable[[str], None]
    done: threading.Event = field(default_factory=threading.Event)
    outcome: dict[str, Any] = field(default_factory=dict)
    phase: str | None = None
    pid: int | None = None

    def end(self, outcome: dict[str, Any]) -> None:
        self.outcome = outcome
        self.done.set()


class ForkServer:
    """One per interpreter. Thread-safe; starts on construction and is ready some seconds later.

    `python`: its executable, None: this one. `folder`: its working directory, None: this one's.
    """

    _ids = itertools.count(1)

    def __init__(self, python: str | None = None, preload: bool = True, folder: str | None = None) -> None:
        package_root = lone_package() if python else str(Path(__file__).resolve().parents[2])
        search_path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        command = [python or sys.executable, "-P", "-m", "effbench.worker.server"] + (
            [] if preload else ["--no-preload"]
        )
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **SERVER_ENVIRONMENT, "PYTHONPATH": search_path},
            start_new_session=True,
        )
        self.lock = threading.Lock()
        self.tasks: dict[str, Task] = {}
        self.ready = threading.Event()
        self.dead: str | None = None
        self.stderr: list[str] = []
        self.stderr_reader, self.message_reader = (
            threading.Thread(target=target, daemon=True, name=f"effbench-{target.__name__}")
            for target in (self.read_stderr, self.read_messages)
        )
        self.stderr_reader.start()
        self.message_reader.start()

    def wait_ready(self) -> None:
        """Raises WorkerError with what the server said if it does not come up."""
        if not self.ready.wait(READY_TIMEOUT_S):
            self.close()
            raise WorkerError(f"the fork server was not ready within {READY_TIMEOUT_S:.0f} s{self.last_words()}")
        if self.dead:
            raise WorkerError(f"the fork server ended while starting{self.last_words()}")

    def submit(
        self,
        task: str,
        payload: dict[str, Any],
        env: dict[str, str] | None = None,
        on_phase: Callable[[str], None] = lambda phase: None,
    ) -> Task:
        """Start a task; never blocks on it. A dead server ends the task at once."""
        entry = Task(f"{os.getpid()}-{next(self._ids)}", on_phase)
        with self.lock:
            if self.dead:
                entry.end({"died": self.dead})
                return entry
            self.tasks[entry.id] = entry
        self.send({"op": "run", "id": entry.id, "task": task, "payload": payload, "env": env or {}})
        return entry

    def kill(self, task: Task) -> None:
        """End the task's whole process tree and wait for the server's word on it; a silent server is ended too."""
        self.send({"op": "kill", "id": task.id})
        if not task.done.wait(KILL_TIMEOUT_S):
            self.process.kill()
            task.done.wait(KILL_TIMEOUT_S)

    def call(
        self, task: str, payload: dict[str, Any], timeout_s: float, env: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Run a task of the harness itself to its end; try again where it failed at the GPU or could not start.

        Raises WorkerError if it fails or takes too long.
        """
        self.wait_ready()
        for pause in (*RETRY_PAUSES_S, None):
            entry = self.submit(task, payload, env)
            if not entry.done.wait(timeout_s):
                self.kill(entry)
                raise WorkerError(f"{task} took longer than {timeout_s:.0f} s (in {entry.phase})")
            result = entry.outcome.get("result")
            if result is not None:
                return result
            retry = "failed" in entry.outcome or (entry.phase == PROBE_PHASE and "died" not in entry.outcome)
            if not retry or pause is None:
                break
            time.sleep(pause)
        raise WorkerError(f"{task} failed in {entry.phase}: {how_it_ended(entry.outcome)}")

    def send(self, message: dict[str, Any]) -> None:
        with self.lock, contextlib.suppress(BrokenPipeError, ValueError):  # read_messages() sees the end
            self.process.stdin.write(encode(message))
            self.process.stdin.flush()

    def close(self) -> None:
        """Close its input: the server ends every child and exits. One that still loads has no child yet."""
        if not self.ready.is_set():
            self.process.kill()
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.close()
        try:
            self.process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.message_reader.join(LAST_WORDS_TIMEOUT_S)

    def read_messages(self) -> None:
        with self.process.stdout as lines:
            while line := lines.readline(MOST_LINE_BYTES):
                try:
                    self.handle(decode(line))
                except MessageError as error:  # nothing that follows can be relied on
                    self.stderr.append(f"not understood: {error}")
                    self.process.kill()
                    break
        code = self.process.wait()
        self.stderr_reader.join(LAST_WORDS_TIMEOUT_S)
        with self.lock:
            self.dead = f"the fork server ended (code {code})"
            tasks, self.tasks = self.tasks, {}
        for task in tasks.values():
            kill_leftovers(task)
            task.end({"died": self.dead + self.last_words()})
        self.ready.set()

    def handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"event": "ready"}:
                self.ready.set()
            case {"event": "refused", "reason": reason}:
                self.stderr.append(f"refused: {reason}")
            case {"event": "started", "id": str(id), "pid": int(pid)}:
                if task := self.tasks.get(id):
                    task.pid = pid
            case {"event": "phase", "id": str(id), "phase": str(phase)}:
                if task := self.tasks.get(id):
                    task.phase = phase
                    task.on_phase(phase)
            case {"event": "ended", "id": str(id), "result": _, "exit": _, "signal": _}:
                with self.lock:
                    task = self.tasks.pop(id, None)
                if task:
                    task.end(message)
            case _:
                raise MessageError(f"no event of this version: {str(message)[:200]}")

    def read_stderr(self) -> None:
        with self.process.stderr as lines:
            for line in lines:
                self.stderr.append(line.decode(errors="replace").rstrip())
                del self.stderr[:-50]

    def last_words(self) -> str:
        return f": {self.stderr[-1]}" if self.stderr else ""


def kill_leftovers(task: Task) -> None:
    """End what a task of a dead server had started: its session, and what carries its mark in the environment.

    The kernel ends the task's own process with its server, and nothing below it.
    """
    mark = f"{TRIAL_VARIABLE}={task.id}".encode()
    for _ in range(5):  # until nothing new turns up
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        found = [pid for pid in pids if belongs(pid, task.pid, mark)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def belongs(pid: int, session: int | None, mark: bytes) -> bool:
    """False for what has ended and waits to be reaped."""
    try:
        state, _, _, found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False
    return state != "Z" and (int(found) == session or mark in environment)


def how_it_ended(outcome: dict[str, Any]) -> str:
    """One line: the signal or the exit code of a task without a result, with the last line that it printed."""
    if reason := outcome.get("died") or outcome.get("failed") or outcome.get("reason"):
        return reason
    how = f"killed by signal {outcome['signal']}" if outcome["signal"] else f"exited with code {outcome['exit']}"
    log = (outcome.get("log") or "").strip()
    return f"{how}: {one_line(log.splitlines()[-1], 500)}" if log else how
