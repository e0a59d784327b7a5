"""The client of a fork server: start it, send requests, and return how they ended."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from effbench.core import processes, warning_filters
from effbench.core.cell import Status
from effbench.core.errors import InterpreterError, WorkerError
from effbench.core.folders import cache_home, is_plain, plain_path, worker_variables
from effbench.core.message import (
    DUET_PHASE,
    PROBE_PHASE,
    TRIAL_VARIABLE,
    MessageError,
    decode,
    encode,
)
from effbench.core.printable import one_line
from effbench.run.devices import TRANSIENT
from effbench.run.interpreters import (
    BOOTSTRAP,
    NEEDED,
    bytecode_variables,
    lone_package,
    why_unfit,
)
from effbench.run.interrupts import POLL_S, StoppedError

LOGGER = logging.getLogger(__name__)
#: Disable a pool of compile workers and a CUDA check that initializes CUDA: a forked child would
#: hang with either.
SERVER_ENVIRONMENT = {"TORCH_WARM_POOL": "0", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
#: Variables that name the folder of temporary files; Inductor compiles some files there.
TEMPORARY_VARIABLES = ("TMPDIR", "TEMP", "TMP")
#: The phase of a task whose process has just started.
START = "start"
READY_TIMEOUT_S = 180.0
KILL_TIMEOUT_S = 15.0
#: How long a server may take to end a task after Ctrl-C. A server that imports a module does not
#: answer.
STOP_TIMEOUT_S = 0.2
LAST_WORDS_TIMEOUT_S = 2.0
#: Pause before each retry after a failure of the harness.
RETRY_PAUSES_S = (0.5, 2.0, 5.0)

#: A message to or from a server, or a part of it.
Message = dict[str, Any]


def attempts(stop: threading.Event) -> Iterator[bool]:
    """Yield, for each attempt at something that the harness may fail to do, whether it is the last
    one; pause before each further one. Raises StoppedError if `stop` is set meanwhile."""
    for pause_s in RETRY_PAUSES_S:
        yield False
        if stop.wait(pause_s):
            raise StoppedError
    yield True


def ignore_phase(phase: str) -> None:
    """Do nothing about a phase."""


@dataclass(eq=False)
class ServerRequest:
    """A task in a child of the server. `on_phase`: called with each phase that begins. `outcome`:
    the message `ended`, or {"died": reason} if the server ended. `waited_s`: for how long it waited
    for the other member of its duet, which does not count towards its timeout."""

    id: str
    on_phase: Callable[[str], None] = ignore_phase
    done: threading.Event = field(default_factory=threading.Event)
    outcome: Message = field(default_factory=dict)
    phase: str | None = None
    pid: int | None = None
    stopped: bool = False
    timed_out_s: float | None = None
    waited_s: float = 0.0
    waits_since: float | None = None

    def begin(self, phase: str) -> None:
        """Note the phase that begins."""
        self.end_wait()
        if phase == DUET_PHASE:
            self.waits_since = time.monotonic()
        self.phase = phase
        self.on_phase(phase)

    def end_wait(self) -> None:
        if self.waits_since is not None:
            self.waited_s += time.monotonic() - self.waits_since
            self.waits_since = None

    def end(self, outcome: Message) -> None:
        self.end_wait()
        self.outcome = outcome
        self.done.set()

    @property
    def result(self) -> Any:
        """The task's result; None if it failed, timed out or was stopped."""
        if self.stopped or self.timed_out_s is not None:
            return None
        return self.outcome.get("result")

    @property
    def may_succeed_later(self) -> bool:
        """Whether a task of the harness failed because the GPU did, or could not start."""
        if self.timed_out_s is not None:
            return False
        if "failed" in self.outcome:
            return True
        return self.phase == PROBE_PHASE and "died" not in self.outcome

    def failure(self) -> tuple[Status, str]:
        """Return the status and reason of a task without a result."""
        where = "before it began"
        if self.phase:
            where = f"in {self.phase}"
        status = Status.CRASHED
        if self.timed_out_s is not None:
            status = Status.TIMEOUT
        elif self.outcome.get("oom_killed"):
            status = Status.OOM
        return status, f"{self.end_of_process()} ({where})"

    def end_of_process(self) -> str:
        """Return how the process of a task without a result ended, or why it did not start."""
        outcome = self.outcome
        if self.timed_out_s is not None:
            return f"not done after {self.timed_out_s:g} s"
        if outcome.get("oom_killed"):
            return "killed by the kernel: host memory ran out"
        for name in ("died", "failed"):
            if outcome.get(name):
                return str(outcome[name])
        number = outcome["signal"]
        if number in set(signal.Signals):
            return f"killed by {signal.Signals(number).name}"
        if number:
            return f"killed by signal {number}"
        return f"the process exited with code {outcome['exit']}"


def server_variables(package_root: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server's process. `package_root`: the folder that contains
    effbench; `given`: variables that replace those of this process."""
    variables = {**os.environ, **worker_variables(), **given, **SERVER_ENVIRONMENT}
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package_root, variables.get("PYTHONPATH")])
    )
    # torch's default is a folder in /tmp, where another user could put code
    variables[INDUCTOR_CACHE] = variables.get(INDUCTOR_CACHE) or str(cache_home() / "inductor")
    for name in (INDUCTOR_CACHE, *TEMPORARY_VARIABLES):
        folder = variables.get(name)
        if folder and not is_plain(folder):
            variables[name] = str(plain_path(Path(folder), name))
    filters = variables.get(warning_filters.VARIABLE)
    if filters:
        variables[warning_filters.VARIABLE] = warning_filters.without_errors(filters)
    return variables


def why_failed(request: ServerRequest) -> str:
    """Return why a task of the harness has no result, with the last line of its output."""
    _, reason = request.failure()
    log = (request.outcome.get("log") or "").strip()
    if not log:
        return reason
    return f"{reason}: {one_line(log.splitlines()[-1], 500)}"


def start_process(
    python: str | None,
    preload: bool,
    folder: str | None,
    env: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start the process of a fork server. Raises InterpreterError if `python` cannot be run."""
    package_root = lone_package() if python else str(Path(__file__).resolve().parents[2])
    variables = server_variables(package_root, env)
    if not python:
        variables |= bytecode_variables()
    command = [python or sys.executable, "-c", BOOTSTRAP, "effbench.worker.server"]
    command.append(",".join(NEEDED))
    if not preload:
        command.append("--no-preload")
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        if python is None or error.errno in TRANSIENT:
            raise
        raise InterpreterError(
            f"python={python} cannot be run: {error.strerror or error}; give the path of a Python"
            " interpreter"
        ) from None


def pipe_of(pipe: IO[bytes] | None) -> IO[bytes]:
    """Return a pipe that the process was started with."""
    assert pipe is not None
    return pipe


class ForkServer:
    """A fork server. It is thread-safe, starts on construction and is ready some seconds later.

    `python`, `folder`: see Interpreter. `env`: variables of its process. Raises InterpreterError if
    `python` cannot be run. `stop`: once it is set, waiting for the server and for its tasks ends
    with StoppedError.
    """

    _ids = itertools.count(1)
    #: Never set, unless a sweep replaces it by its own.
    stop = threading.Event()
    #: Whether its pool has preloaded the models.
    is_loaded = False

    def __init__(
        self,
        python: str | None = None,
        preload: bool = True,
        folder: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.python = python
        self.process = start_process(
            python,
            preload,
            folder,
            env or {},
        )
        LOGGER.info("started fork server %d of %s", self.process.pid, python or sys.executable)
        self.lock, self.sending = threading.Lock(), threading.Lock()
        self.requests: dict[str, ServerRequest] = {}
        self.ready = threading.Event()
        self.dead: str | None = None
        self.is_python = False
        self.unfit: str | None = None
        self.stderr: list[str] = []
        self.stderr_reader = threading.Thread(target=self.read_stderr, daemon=True)
        self.message_reader = threading.Thread(target=self.read_messages, daemon=True)
        self.stderr_reader.start()
        self.message_reader.start()

    def wait_ready(self) -> None:
        """Wait for the server. Raises WorkerError if it does not start, InterpreterError if its
        `python` is unsuitable, and StoppedError."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.ready.wait(POLL_S):
            if self.stop.is_set():
                raise StoppedError
            if time.monotonic() > deadline:
                self.close()
                why = f"was not ready within {READY_TIMEOUT_S:.0f} s{self.last_words()}"
                raise WorkerError(f"the fork server {why}")
        if self.unfit:
            raise InterpreterError(self.unfit)
        if self.dead and self.python and not self.is_python:
            why = f"{self.dead}{self.last_words()}"
            raise InterpreterError(
                f"python={self.python} is not a working Python interpreter: {why}; give another"
                " path"
            )
        if self.dead:
            raise WorkerError(f"the fork server ended while starting{self.last_words()}")

    def submit(
        self,
        task: str,
        payload: Message,
        env: dict[str, str] | None = None,
        on_phase: Callable[[str], None] = ignore_phase,
    ) -> ServerRequest:
        """Start a task and return its request without waiting. If the server has ended, the request
        has ended too."""
        request = ServerRequest(f"{os.getpid()}-{next(self._ids)}", on_phase)
        with self.lock:
            if self.dead:
                request.end({"died": self.dead})
                return request
            self.requests[request.id] = request
        self.send(
            {"op": "run", "id": request.id, "task": task, "payload": payload, "env": env or {}}
        )
        return request

    def kill(self, request: ServerRequest) -> None:
        """Kill the task's process tree and wait until the server confirms it; kill a server that
        does not respond.

        After Ctrl-C a server has little time. One that has not started the task has none: it is
        importing a module.
        """
        self.send({"op": "kill", "id": request.id})
        timeout_s = KILL_TIMEOUT_S
        if request.stopped:
            timeout_s = STOP_TIMEOUT_S
            if request.pid is None:
                timeout_s = 0.0
        if request.done.wait(timeout_s):
            return
        self.process.kill()
        request.done.wait(KILL_TIMEOUT_S)
        if request.pid is not None:  # nobody waits for it any more: it may still hold its GPU
            processes.wait_until_gone(request.pid, KILL_TIMEOUT_S)

    def complete(
        self,
        task: str,
        payload: Message,
        timeout_s: float,
        env: dict[str, str] | None = None,
        on_phase: Callable[[str], None] = ignore_phase,
    ) -> ServerRequest:
        """Run a task until it ends, times out or the server is to stop; return its request once its
        process tree has ended."""
        deadline = time.monotonic() + timeout_s
        request = self.submit(task, payload, env, on_phase)
        try:
            while not request.done.wait(min(POLL_S, timeout_s)):
                if self.stop.is_set():
                    request.stopped = True
                    self.kill(request)
                    break
                if request.waits_since is None and time.monotonic() > deadline + request.waited_s:
                    request.timed_out_s = timeout_s
                    self.kill(request)
                    break
        except BaseException:  # Ctrl-C: the task must not outlive the device lock
            request.stopped = True
            self.kill(request)
            raise
        return request

    def call(
        self,
        task: str,
        payload: Message,
        timeout_s: float,
        env: dict[str, str] | None = None,
    ) -> Any:
        """Return the result of a task of the harness, with retries if the GPU failed or the task
        could not start.

        Raises WorkerError if it fails or exceeds `timeout_s`, and StoppedError if the server was to
        stop before it ended.
        """
        self.wait_ready()
        for is_last in attempts(self.stop):
            request = self.complete(task, payload, timeout_s, env)
            if request.result is not None:
                return request.result
            if request.stopped:
                raise StoppedError
            if is_last or not request.may_succeed_later:
                break
        raise WorkerError(f"{task} failed: {why_failed(request)}")

    def send(self, message: Message) -> None:
        # a lock of its own: a full pipe may block this until read_messages() has read what the
        # server writes; a broken one is left to read_messages(), which sees the end
        stdin = pipe_of(self.process.stdin)
        with self.sending, contextlib.suppress(BrokenPipeError, ValueError):
            stdin.write(encode(message))
            stdin.flush()

    def close(self) -> None:
        """Close the server's input: it kills its children and exits. A server that may be importing
        modules is killed: one without tasks, or with a task that has no process."""
        requests = list(self.requests.values())
        if not requests or any(request.pid is None for request in requests):
            self.process.kill()
        with contextlib.suppress(BrokenPipeError, ValueError):
            pipe_of(self.process.stdin).close()
        try:
            self.process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.message_reader.join(LAST_WORDS_TIMEOUT_S)

    def read_messages(self) -> None:
        with pipe_of(self.process.stdout) as lines:
            try:
                for line in lines:
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
            # the kernel kills the task's process when its server dies, but not that process's
            # children
            processes.kill_marked(request.pid, TRIAL_VARIABLE, request.id)
            request.end({"died": self.dead + self.last_words()})
        self.ready.set()

    def handle(self, message: Message) -> None:
        match message:
            case {"event": "ready"}:
                self.ready.set()
            case {"event": "interpreter", "version": list(), "missing": list(), "torch": _}:
                self.is_python = True
                if self.python:
                    self.unfit = why_unfit(self.python, message)
                if self.unfit:
                    self.process.kill()
            case {"event": "started" | "phase" | "ended", "id": str(id)} if id not in self.requests:
                pass  # the request has ended
            case {"event": "started", "id": str(id), "pid": int(pid)}:
                request = self.requests[id]
                request.pid = pid
                request.on_phase(START)  # its own first phase may be seconds away
            case {"event": "phase", "id": str(id), "phase": str(phase)}:
                self.requests[id].begin(phase)
            case {"event": "ended", "id": str(id), "result": _, "exit": _, "signal": _}:
                with self.lock:
                    request = self.requests.pop(id)
                request.end(message)
            case _:
                raise MessageError(f"unknown event: {str(message)[:200]}")

    def read_stderr(self) -> None:
        with pipe_of(self.process.stderr) as lines:
            for line in lines:
                self.stderr.append(line.decode(errors="replace").rstrip())
                del self.stderr[:-50]

    def last_words(self) -> str:
        return "".join(f": {line}" for line in self.stderr[-1:])
