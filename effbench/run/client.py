"""The client of a fork server: start it, send requests, and return how they ended."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from effbench.core import processes, warning_filters
from effbench.core.cell import Status, Trial
from effbench.core.errors import WorkerError
from effbench.core.folders import cache_home, check_plain, current_user
from effbench.core.message import (
    BEFORE_USER_CODE,
    DUET_PHASE,
    PROBE_PHASE,
    TRIAL_VARIABLE,
    Json,
    MessageError,
    TaskEnd,
    decode,
    encode,
)
from effbench.core.printable import one_line
from effbench.run.interpreters import bytecode_variables, lone_package
from effbench.run.interrupts import POLL_S, StoppedError

LOGGER = logging.getLogger(__name__)
#: Disable a pool of compile workers and a CUDA check that initializes CUDA: a forked child would
#: hang with either. Also disable what the profiler writes to stderr.
SERVER_ENVIRONMENT = {
    "TORCH_WARM_POOL": "0",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "KINETO_LOG_LEVEL": "99",
}
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
#: Pause before each retry after a failure of the harness.
RETRY_PAUSES_S = (0.5, 2.0, 5.0)
#: Stands for a stop that is never asked for.
NEVER = threading.Event()


def attempts(stop: threading.Event) -> Iterator[bool]:
    """Yield, for each attempt at something that the harness may fail to do, whether it is the last
    one; pause before each further one. Raises StoppedError if `stop` is set meanwhile."""
    for pause_s in RETRY_PAUSES_S:
        yield False
        if stop.wait(pause_s):
            raise StoppedError
    yield True


@dataclass(eq=False)
class ServerRequest:
    """A task in a child of the server.

    `begun`: the phases in the order in which they began, and None at its end; `ForkServer.phases`
    takes them. `phases_begun`: the number of its own phases. `ended_s`: when it ended, by the
    monotonic clock. `waited_s`: for how long it waited for the other member of its duet, which does
    not count towards its timeout. `rank_name`: of the rank of a trial, if it alone failed;
    `explanation`: why it timed out.
    """

    id: str
    begun: SimpleQueue[str | None] = field(default_factory=SimpleQueue)
    done: threading.Event = field(default_factory=threading.Event)
    outcome: TaskEnd = field(default_factory=TaskEnd)
    phase: str | None = None
    phases_begun: int = 0
    pid: int | None = None
    ended_s: float | None = None
    stopped: bool = False
    timed_out_s: float | None = None
    waited_s: float = 0.0
    rank_name: str = ""
    explanation: str = ""

    def begin(self, phase: str) -> None:
        """Note the phase that begins."""
        self.phase = phase
        self.phases_begun += 1
        self.begun.put(phase)

    def end(self, outcome: TaskEnd) -> None:
        self.outcome = outcome
        self.ended_s = time.monotonic()
        self.done.set()
        self.begun.put(None)

    @property
    def result(self) -> Any:
        """The task's result; None if it did not complete."""
        return self.outcome.result

    @property
    def may_succeed_later(self) -> bool:
        """Whether a task of the harness failed because the GPU did, or could not start."""
        if self.timed_out_s is not None or self.outcome.died:
            return False
        return bool(self.outcome.failed) or self.phase == PROBE_PHASE

    @property
    def is_early(self) -> bool:
        """Whether a trial ended before any code of the user ran."""
        return self.phase in BEFORE_USER_CODE or bool(self.outcome.failed)

    def record(self, cell_key: str, round: int) -> Trial:
        """Return the record of a trial that has ended, or a record of how its process did."""
        record = self.sent_record(cell_key, round)
        if record is None:
            record = Trial(cell_key, round, *self.failure())
            record.phase = self.phase
            record.pid = self.outcome.pid
            if self.outcome.log:
                record.extra["log"] = self.outcome.log
        if self.rank_name:
            record.reason = f"{self.rank_name}: {record.reason}"
        return record

    def sent_record(self, cell_key: str, round: int) -> Trial | None:
        """Return the record that the process sent, or one that tells that it is invalid."""
        if self.result is None:
            return None
        try:
            return Trial.from_json(self.result)
        except ValueError as error:
            return Trial(
                cell_key,
                round,
                Status.CRASHED,
                f"its process sent an invalid trial record: {error}",
            )

    def failure(self) -> tuple[Status, str]:
        """Return the status and reason of a task without a result."""
        where = f"in {self.phase}" if self.phase else "before it began"
        if self.timed_out_s is not None:
            reason = f"not done after {self.timed_out_s:g} s ({where})"
            if self.explanation:
                reason = f"{reason}: {self.explanation}"
            return Status.TIMEOUT, reason
        if self.outcome.oom_killed:
            return Status.OOM, f"killed by the kernel: host memory ran out ({where})"
        return Status.CRASHED, f"{self.end_of_process()} ({where})"

    def end_of_process(self) -> str:
        """Return how the process of a task without a result ended, or why it did not start."""
        reason = self.outcome.died or self.outcome.failed
        if reason:
            return reason
        code = self.outcome.code
        if code >= 0:
            return f"the process exited with code {code}"
        return f"killed by {processes.signal_name(-code)}"


def server_variables(python: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server's process. `given`: variables that replace those of this
    process."""
    # libraries ask for the user's name, which a container may lack
    variables = {"USER": current_user(), **os.environ, **given, **SERVER_ENVIRONMENT}
    package_root = str(Path(__file__).resolve().parents[2])
    if python:
        package_root = lone_package()
    else:
        variables |= bytecode_variables()
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package_root, variables.get("PYTHONPATH")])
    )
    # torch's default is a folder in /tmp, where another user could put code
    variables[INDUCTOR_CACHE] = variables.get(INDUCTOR_CACHE) or str(cache_home() / "inductor")
    for name in (INDUCTOR_CACHE, *TEMPORARY_VARIABLES):
        check_plain(variables.get(name, ""), name)
    filters = variables.get(warning_filters.VARIABLE, "")
    variables[warning_filters.VARIABLE] = warning_filters.without_errors(filters)
    return variables


class ForkServer:
    """A fork server. It is thread-safe, starts on construction and is ready some seconds later.

    `python`, `folder`: see Interpreter. `env`: variables of its process. `dead`: how it ended, None
    as long as it runs.
    """

    dead: str | None = None

    def __init__(
        self,
        python: str | None = None,
        preload: bool = True,
        folder: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        # -P: a folder torch/ in the working directory is not imported
        command = [python or sys.executable, "-P", "-m", "effbench.worker.server"]
        if not preload:
            command.append("--no-preload")
        variables = server_variables(python, env or {})
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # `read_messages` closes it
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                cwd=folder,
                env=variables,
                start_new_session=True,
            )
        except OSError:
            self.errors.close()
            raise
        LOGGER.info("started fork server %d of %s", self.process.pid, command[0])
        self.lock, self.sending = threading.Lock(), threading.Lock()
        self.requests: dict[str, ServerRequest] = {}
        #: Set once it has started, or has ended.
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self.read_messages, daemon=True)
        self.reader.start()

    def wait_ready(self, stop: threading.Event = NEVER) -> None:
        """Wait for the server. Raises WorkerError if it does not start or has ended, and
        StoppedError once `stop` is set."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.ready.wait(POLL_S):
            if stop.is_set():
                raise StoppedError
            if time.monotonic() > deadline:
                self.close()
                raise WorkerError(f"not ready within {READY_TIMEOUT_S:.0f} s: {self.dead}")
        if self.dead is not None:
            raise WorkerError(self.dead)

    def submit(
        self,
        task: str,
        payload: Json,
        env: dict[str, str] | None = None,
    ) -> ServerRequest:
        """Start a task and return its request without waiting. If the server has ended, the request
        has ended too."""
        request = ServerRequest(uuid.uuid4().hex)
        with self.lock:
            if self.dead:
                request.end(TaskEnd(died=self.dead))
                return request
            self.requests[request.id] = request
        self.send(
            {"op": "run", "id": request.id, "task": task, "payload": payload, "env": env or {}}
        )
        return request

    def kill(self, request: ServerRequest) -> None:
        """Kill the task's process tree and wait until the server confirms it; kill a server that
        does not respond, which after Ctrl-C has little time."""
        self.send({"op": "kill", "id": request.id})
        timeout_s = STOP_TIMEOUT_S if request.stopped else KILL_TIMEOUT_S
        if request.done.wait(timeout_s):
            return
        self.process.kill()
        request.done.wait(KILL_TIMEOUT_S)
        if request.pid is not None:  # nobody waits for it any more: it may still hold its GPU
            processes.wait_until_gone(request.pid, KILL_TIMEOUT_S)

    def phases(
        self, request: ServerRequest, timeout_s: float, stop: threading.Event = NEVER
    ) -> Iterator[str]:
        """Yield the phases of a task as they begin, until its process tree has ended: by itself, or
        killed after `timeout_s`, or once `stop` is set."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                since_s = time.monotonic()
                is_waiting = request.phase == DUET_PHASE
                phase: str | None = ""
                with contextlib.suppress(Empty):
                    phase = request.begun.get(timeout=min(POLL_S, timeout_s))
                if is_waiting:
                    request.waited_s += time.monotonic() - since_s
                if phase is None:
                    return
                if phase:
                    yield phase
                if stop.is_set():
                    request.stopped = True
                    self.kill(request)
                elif not is_waiting and time.monotonic() > deadline + request.waited_s:
                    request.timed_out_s = timeout_s
                    self.kill(request)
        except BaseException:  # Ctrl-C: the task must not outlive the device lock
            request.stopped = True
            self.kill(request)
            raise

    def complete(
        self,
        task: str,
        payload: Json,
        timeout_s: float,
        env: dict[str, str] | None = None,
        stop: threading.Event = NEVER,
    ) -> ServerRequest:
        """Run a task until it ends, times out or `stop` is set; return its request once its process
        tree has ended."""
        request = self.submit(task, payload, env)
        for _ in self.phases(request, timeout_s, stop):
            pass
        return request

    def call(
        self, task: str, payload: Json, timeout_s: float, stop: threading.Event = NEVER
    ) -> Any:
        """Return the result of a task of the harness, with retries if the GPU failed or the task
        could not start.

        Raises WorkerError if it fails or exceeds `timeout_s`, and StoppedError if `stop` was set
        before it ended.
        """
        self.wait_ready(stop)
        for is_last in attempts(stop):
            request = self.complete(task, payload, timeout_s, stop=stop)
            if request.result is not None:
                return request.result
            if request.stopped:
                raise StoppedError
            if is_last or not request.may_succeed_later:
                break
        _, reason = request.failure()
        raise WorkerError(f"{task} failed: {reason}{last_words(request.outcome.log)}")

    def send(self, message: Json) -> None:
        # a lock of its own: a full pipe may block this until read_messages() has read what the
        # server writes; a broken one is left to read_messages(), which sees the end
        assert self.process.stdin is not None
        with self.sending, contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(encode(message))
            self.process.stdin.flush()

    def close(self) -> None:
        """Kill the server, and with it its tasks."""
        self.process.kill()
        self.reader.join(KILL_TIMEOUT_S)

    def read_messages(self) -> None:
        """Handle the server's messages until it ends."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with contextlib.suppress(MessageError):  # another program may print anything
                    self.handle(decode(line))
        code = self.process.wait()
        with self.sending, contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with self.errors:
            self.errors.seek(0)
            words = last_words(self.errors.read().decode(errors="replace"))
        with self.lock:
            self.dead = f"the fork server ended (code {code}){words}"
            requests, self.requests = self.requests, {}
        for request in requests.values():
            # the kernel kills the task's process when its server dies, but not that process's
            # children
            processes.kill_marked(request.pid, TRIAL_VARIABLE, request.id)
            request.end(TaskEnd(died=self.dead))
        self.ready.set()

    def handle(self, message: Json) -> None:
        if message["event"] == "ready":
            self.ready.set()
            return
        request = self.requests.get(message["id"])
        if request is None:  # it has ended
            return
        match message["event"]:
            case "started":
                request.pid = message["pid"]
                request.begun.put(START)  # its own first phase may be seconds away
            case "phase":
                request.begin(message["phase"])
            case "ended":
                with self.lock:
                    del self.requests[request.id]
                request.end(TaskEnd(**message["end"]))


def last_words(text: str) -> str:
    """Return the last line of an output, after a colon; nothing if it is empty."""
    lines = text.strip().splitlines()
    return f": {one_line(lines[-1], 500)}" if lines else ""
