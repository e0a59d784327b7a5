"""The client of a fork server: start it, send requests, and return how they ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effbench import processes
from effbench.cell import Status
from effbench.errors import ConfigError, WorkerError
from effbench.message import MOST_BYTES, PROBE_PHASE, TRIAL_VARIABLE, MessageError, decode, encode
from effbench.printable import one_line
from effbench.sweeping.devices import TRANSIENT
from effbench.sweeping.interpreters import BOOTSTRAP, NEEDED, bytecode_variables, cache_home, lone_package, why_unfit

#: Disable a pool of compile workers and a CUDA check that initializes CUDA: a forked child would hang with either.
SERVER_ENVIRONMENT = {"TORCH_WARM_POOL": "0", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
#: The phase of a task whose process has just started.
START = "start"
POLL_S = 0.2
READY_TIMEOUT_S = 180.0
KILL_TIMEOUT_S = 15.0
LAST_WORDS_TIMEOUT_S = 2.0
#: Pause before each retry after a failure of the harness.
RETRY_PAUSES_S = (0.5, 2.0, 5.0)
#: Longest line from a server; escaping may lengthen a task's line.
MOST_LINE_BYTES = 4 * MOST_BYTES


@dataclass(eq=False)
class Request:
    """A task in a child of the server. `outcome`: the message `ended`, or {"died": reason} if the server ended.
    `waited_s`: how long it was made to wait, which does not count towards its timeout."""

    id: str
    on_phase: Callable[[Request, str], None]
    done: threading.Event = field(default_factory=threading.Event)
    outcome: dict[str, Any] = field(default_factory=dict)
    phase: str | None = None
    pid: int | None = None
    stopped: bool = False
    timed_out_s: float | None = None
    waited_s: float = 0.0
    waits_since: float | None = None

    def wait(self, waits: bool) -> None:
        """Note whether it has to wait from now on."""
        now = time.monotonic()
        if self.waits_since is not None:
            self.waited_s += now - self.waits_since
        self.waits_since = now if waits else None

    def end(self, outcome: dict[str, Any]) -> None:
        self.outcome = outcome
        self.done.set()

    @property
    def result(self) -> Any:
        """The task's result; None if it failed, timed out or was stopped."""
        return None if self.stopped or self.timed_out_s is not None else self.outcome.get("result")

    def failure(self) -> tuple[Status, str]:
        """Return the status and reason of a task without a result."""
        outcome, status = self.outcome, Status.CRASHED
        if self.timed_out_s is not None:
            status, reason = Status.TIMEOUT, f"not done after {self.timed_out_s:g} s"
        elif reason := outcome.get("died") or outcome.get("failed") or outcome.get("reason"):
            pass
        elif outcome["oom_killed"]:
            status, reason = Status.OOM, "killed by the kernel: host memory ran out"
        elif outcome["signal"]:
            number = outcome["signal"]
            known = number in set(signal.Signals)
            reason = f"killed by {signal.Signals(number).name if known else f'signal {number}'}"
        else:
            reason = f"the process exited with code {outcome['exit']}"
        return status, f"{reason} ({f'in {self.phase}' if self.phase else 'before it began'})"


class ForkServer:
    """A fork server. It is thread-safe, starts on construction and is ready some seconds later.

    `python`, `folder`: see Interpreter. `env`: variables of its process. Raises ConfigError if `python` cannot be run.
    """

    _ids = itertools.count(1)

    def __init__(
        self, python: str | None = None, preload: bool = True, folder: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        package_root = lone_package() if python else str(Path(__file__).resolve().parents[2])
        variables = {**os.environ, **(env or {})}
        search_path = os.pathsep.join(filter(None, [package_root, variables.get("PYTHONPATH")]))
        arguments = ["effbench.worker.server", ",".join(NEEDED), *([] if preload else ["--no-preload"])]
        self.python = python
        # torch's default is a folder in /tmp, where another user could put code
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache_home() / "inductor")}
        bytecode = {} if python else bytecode_variables()
        try:
            self.process = subprocess.Popen(
                [python or sys.executable, "-c", BOOTSTRAP, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={**caches, **variables, **bytecode, **SERVER_ENVIRONMENT, "PYTHONPATH": search_path},
                start_new_session=True,
            )
        except OSError as error:
            if python is None or error.errno in TRANSIENT:
                raise
            why = f"python={python} cannot be run: {error.strerror or error}; give the path of a Python interpreter"
            raise ConfigError(why) from None
        self.lock, self.sending = threading.Lock(), threading.Lock()
        self.requests: dict[str, Request] = {}
        self.ready = threading.Event()
        self.stop: threading.Event | None = None
        self.dead: str | None = None
        self.is_python = False
        self.unfit: str | None = None
        self.stderr: list[str] = []
        self.stderr_reader = threading.Thread(target=self.read_stderr, daemon=True, name="effbench-stderr")
        self.message_reader = threading.Thread(target=self.read_messages, daemon=True, name="effbench-messages")
        self.stderr_reader.start()
        self.message_reader.start()

    def wait_ready(self) -> None:
        """Wait for the server. Raises WorkerError if it does not start, ConfigError if its `python` is unsuitable."""
        if not self.ready.wait(READY_TIMEOUT_S):
            self.close()
            raise WorkerError(f"the fork server was not ready within {READY_TIMEOUT_S:.0f} s{self.last_words()}")
        if self.unfit:
            raise ConfigError(self.unfit)
        if self.dead and self.python and not self.is_python:
            why = f"{self.dead}{self.last_words()}"
            raise ConfigError(f"python={self.python} is not a working Python interpreter: {why}; give another path")
        if self.dead:
            raise WorkerError(f"the fork server ended while starting{self.last_words()}")

    def submit(
        self, task: str, payload: dict[str, Any], env: dict[str, str] | None = None,
        on_phase: Callable[[Request, str], None] = lambda request, phase: None,
    ) -> Request:  # fmt: skip
        """Start a task and return its request without waiting. If the server has ended, the request has ended too."""
        request = Request(f"{os.getpid()}-{next(self._ids)}", on_phase)
        with self.lock:
            if self.dead:
                request.end({"died": self.dead})
                return request
            self.requests[request.id] = request
        self.send({"op": "run", "id": request.id, "task": task, "payload": payload, "env": env or {}})
        return request

    def kill(self, request: Request) -> None:
        """Kill the task's process tree and wait until the server confirms it; kill a server that does not respond."""
        self.send({"op": "kill", "id": request.id})
        if not request.done.wait(KILL_TIMEOUT_S):
            self.process.kill()
            request.done.wait(KILL_TIMEOUT_S)

    def run(
        self, task: str, payload: dict[str, Any], timeout_s: float, env: dict[str, str] | None = None,
        on_phase: Callable[[Request, str], None] = lambda request, phase: None, stop: threading.Event | None = None,
    ) -> Request:  # fmt: skip
        """Run a task until it ends, times out or `stop` is set; return its request once its process tree has ended."""
        deadline = time.monotonic() + timeout_s
        request = self.submit(task, payload, env, on_phase)
        try:
            while not request.done.wait(min(POLL_S, timeout_s)):
                if stop is not None and stop.is_set():
                    request.stopped = True
                elif request.waits_since is None and time.monotonic() > deadline + request.waited_s:
                    request.timed_out_s = timeout_s
                else:
                    continue
                self.kill(request)
                break
        except BaseException:  # Ctrl-C: the task must not outlive the device lock
            self.kill(request)
            raise
        return request

    def call(
        self, task: str, payload: dict[str, Any], timeout_s: float, env: dict[str, str] | None = None,
        stop: threading.Event | None = None,
    ) -> Any:  # fmt: skip
        """Return the result of a task of the harness, with retries if the GPU failed or the task could not start.

        It ends early if `stop`, or the server's own `stop`, is set.

        Raises WorkerError if it fails or exceeds `timeout_s`.
        """
        self.wait_ready()
        for pause in (*RETRY_PAUSES_S, None):
            request = self.run(task, payload, timeout_s, env, stop=stop or self.stop)
            if request.result is not None:
                return request.result
            outcome = request.outcome
            retry = "failed" in outcome or (request.phase == PROBE_PHASE and "died" not in outcome)
            if not retry or pause is None or request.timed_out_s is not None or request.stopped:
                break
            time.sleep(pause)
        log = (outcome.get("log") or "").strip()
        last = f": {one_line(log.splitlines()[-1], 500)}" if log else ""
        raise WorkerError(f"{task} failed: {request.failure()[1]}{last}")

    def send(self, message: dict[str, Any]) -> None:
        # a lock of its own: a full pipe may block this until read_messages() has read what the server writes
        with self.sending, contextlib.suppress(BrokenPipeError, ValueError):  # read_messages() sees the end
            self.process.stdin.write(encode(message))
            self.process.stdin.flush()

    def close(self) -> None:
        """Close the server's input: it kills its children and exits. A server without tasks is killed, because it may
        be importing modules."""
        if not self.requests:
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
            try:
                while line := lines.readline(MOST_LINE_BYTES):
                    self.handle(decode(line))
            except MessageError as error:  # the messages after it are unreliable
                self.stderr.append(f"invalid message: {error}")
                self.process.kill()
        code = self.process.wait()
        self.stderr_reader.join(LAST_WORDS_TIMEOUT_S)
        with self.lock:
            self.dead = f"the fork server ended (code {code})"
            requests, self.requests = self.requests, {}
        for request in requests.values():
            # the kernel kills the task's process when its server dies, but not that process's children
            processes.kill_marked(request.pid, TRIAL_VARIABLE, request.id)
            request.end({"died": self.dead + self.last_words()})
        self.ready.set()

    def handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"event": "interpreter", "version": list(version), "missing": list(missing), "torch": torch}:
                self.is_python = True
                if self.python and (why := why_unfit(self.python, version, missing, torch)):
                    self.unfit = why
                    self.process.kill()
            case {"event": "ready"}:
                self.ready.set()
            case {"event": "started" | "phase" | "ended", "id": str(id)} if id not in self.requests:
                pass  # the request has ended
            case {"event": "started", "id": str(id), "pid": int(pid)}:
                self.requests[id].pid = pid
                self.requests[id].on_phase(self.requests[id], START)  # its own first phase may be seconds away
            case {"event": "phase", "id": str(id), "phase": str(phase)}:
                self.requests[id].phase = phase
                self.requests[id].on_phase(self.requests[id], phase)
            case {"event": "ended", "id": str(id), "result": _, "exit": _, "signal": _}:
                with self.lock:
                    request = self.requests.pop(id)
                request.end(message)
            case _:
                raise MessageError(f"unknown event: {str(message)[:200]}")

    def read_stderr(self) -> None:
        with self.process.stderr as lines:
            for line in lines:
                self.stderr.append(line.decode(errors="replace").rstrip())
                del self.stderr[:-50]

    def last_words(self) -> str:
        return f": {self.stderr[-1]}" if self.stderr else ""
