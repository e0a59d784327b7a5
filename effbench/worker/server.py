"""The fork server: `python -m effbench.worker.server`.

It imports torch and its compiler once, never touches CUDA, reads messages on standard input and forks one child a
task; a child has its own session, dies with the server, and answers through a pipe of its own. When standard input
closes, every child's process tree is ended and the server exits, so that no kill of the sweep leaves an orphan.
`--no-preload` forks from a bare interpreter: `isolation=spawn` starts one such server a trial.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effbench.message import TRIAL_VARIABLE, MessageError, decode, encode
from effbench.worker import processes

PRELOAD = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "torch._functorch.aot_autograd")
#: What a process's first compilation imports lazily (0.5 s of it). Private, and different from release to release: a
#: name that is gone is left to the compilation itself.
PRELOAD_IF_THERE = (
    "torch._dynamo.backends.inductor",
    "torch._dynamo.backends.cudagraphs",
    "torch._dynamo.backends.distributed",
    "torch._dynamo.backends.onnxrt",
    "torch._dynamo.backends.tensorrt",
    "torch._dynamo.backends.torchxla",
    "torch._dynamo.backends.tvm",
    "torch._dynamo.repro.after_dynamo",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.halide",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.mps",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.compiler_bisector",
    "torch._inductor.cudagraph_trees",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
    "sympy.tensor.tensor",
)
LOG_TAIL = 4000


@dataclass
class Child:
    """A running task."""

    id: str
    pid: int
    pipe: int
    log: Any
    started: float
    oom_kills: int
    buffer: bytearray = field(default_factory=bytearray)
    result: dict[str, Any] | None = None
    killed: bool = False


class Server:
    """One select loop over standard input, the children's pipes and SIGCHLD. Single-threaded: forks are safe."""

    def __init__(self) -> None:
        # our own copies: a task's prints must never reach the messages
        self.messages_in = os.dup(0)
        self.messages_out = os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        self.children: dict[str, Child] = {}
        self.buffer = bytearray()
        self.closing = False
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = socket.socketpair()
        for end in (self.wake_read, self.wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C reaches the whole foreground group; ending is the sweep's decision
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        processes.adopt_orphans()
        self.selector.register(self.messages_in, selectors.EVENT_READ, self.read_messages)
        self.selector.register(self.wake_read, selectors.EVENT_READ, self.drain_wakeups)

    def send(self, message: dict[str, Any]) -> None:
        data = encode(message)
        try:
            while data:
                data = data[os.write(self.messages_out, data) :]
        except BrokenPipeError:
            self.closing = True

    def serve(self) -> None:
        while not self.closing:
            for key, _ in self.selector.select(timeout=5.0):
                key.data()
            self.reap()
        for child in self.children.values():
            processes.kill_tree(child.pid)
        processes.kill_below(os.getpid())  # orphans of theirs that were adopted

    def drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.wake_read.recv(4096):
                pass

    def read_messages(self) -> None:
        data = os.read(self.messages_in, 1 << 16)
        if not data:
            self.closing = True
            return
        self.buffer += data
        while (end := self.buffer.find(b"\n")) >= 0:
            line = bytes(self.buffer[:end])
            del self.buffer[: end + 1]
            try:
                self.handle(decode(line))
            except MessageError as error:
                self.send({"event": "refused", "reason": str(error)})

    def handle(self, message: dict[str, Any]) -> None:
        if message["op"] == "kill":
            if child := self.children.get(message["id"]):
                child.killed = True
                processes.kill_tree(child.pid)
        elif message["op"] == "run" and message["task"] == "preload":
            self.preload(message)
        elif message["op"] == "run":
            self.fork(message)
        else:
            raise MessageError(f"unknown operation {message['op']!r}")

    def preload(self, message: dict[str, Any]) -> None:
        """Import effbench's own model modules here, so that every child finds torchvision or transformers loaded, and
        learn here what every compilation of C++ would ask the machine."""
        errors = {}
        for name in message["payload"]["modules"]:
            try:
                importlib.import_module(name)
            except Exception as error:  # the trial meets the same error and reports it as its status
                errors[name] = f"{type(error).__name__}: {error}"
        if modes := message["payload"]["modes"]:
            learn_for(modes)
        settle()
        self.send({"event": "ended", "id": message["id"], "result": {"errors": errors}, "exit": 0, "signal": None})

    def fork(self, message: dict[str, Any]) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        server = os.getpid()
        oom_kills = processes.oom_kills()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self.become_child(message, server, write_end, log.fileno())
        os.close(write_end)
        child = Child(message["id"], pid, read_end, log, started, oom_kills)
        self.children[child.id] = child
        self.selector.register(read_end, selectors.EVENT_READ, lambda: self.read_child(child))
        self.send({"event": "started", "id": child.id, "pid": pid})

    def become_child(self, message: dict[str, Any], server: int, pipe: int, log: int) -> None:
        """Never returns."""
        code = 1
        try:
            os.setsid()
            processes.die_with_parent(server)
            processes.prefer_as_oom_victim()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.close(self.messages_in)
            os.close(self.messages_out)
            self.selector.close()
            for other in self.children.values():
                os.close(other.pipe)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(message.get("env") or {})
            os.environ[TRIAL_VARIABLE] = message["id"]
            sys.path.insert(0, str(Path.cwd()))

            def say(item: dict[str, Any]) -> None:
                data = encode(item)
                while data:
                    data = data[os.write(pipe, data) :]

            task = importlib.import_module(f"effbench.worker.{message['task']}")
            say({"result": task.run(message["payload"], lambda phase: say({"phase": phase}))})
            code = 0
        except BaseException as error:
            import traceback

            traceback.print_exc()
            # SystemExit of a task that meant to leave: its code is a fact worth keeping
            if isinstance(error, SystemExit) and isinstance(error.code, int | None):
                code = error.code or 0
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def read_child(self, child: Child) -> None:
        try:
            while data := os.read(child.pipe, 1 << 16):
                child.buffer += data
        except BlockingIOError:
            pass
        else:  # end of file: the process has closed its end, reap() follows
            with contextlib.suppress(KeyError):
                self.selector.unregister(child.pipe)
        while (end := child.buffer.find(b"\n")) >= 0:
            item = json.loads(child.buffer[:end])
            del child.buffer[: end + 1]
            if "phase" in item:
                self.send({"event": "phase", "id": child.id, "phase": item["phase"]})
            else:
                child.result = item["result"]

    def reap(self) -> None:
        by_pid = {child.pid: child for child in self.children.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                self.end(by_pid[pid], os.waitstatus_to_exitcode(status))

    def end(self, child: Child, code: int) -> None:
        self.read_child(child)
        with contextlib.suppress(KeyError):
            self.selector.unregister(child.pipe)
        os.close(child.pipe)
        del self.children[child.id]
        self.kill_leftovers(child)
        child.log.seek(max(0, child.log.seek(0, os.SEEK_END) - LOG_TAIL))
        log = child.log.read().decode(errors="replace")
        child.log.close()
        self.send(
            {
                "event": "ended",
                "id": child.id,
                "pid": child.pid,
                "result": child.result,
                "exit": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "log": log,
                "oom_killed": code == -signal.SIGKILL and not child.killed and processes.oom_kills() > child.oom_kills,
                "seconds": time.monotonic() - child.started,
            }
        )

    def kill_leftovers(self, child: Child) -> None:
        """End what the task left behind: its session, and orphans that now hang below this server."""
        table = processes.process_table()
        processes.kill(processes.descendants(child.pid, table))  # not the pid itself: it is free for reuse
        running = {other.pid for other in self.children.values()}
        orphans = {
            pid
            for pid, (parent, session) in table.items()
            if parent == os.getpid()
            and pid not in running
            and session not in running
            and processes.environment_of(pid, TRIAL_VARIABLE) in (None, child.id)
        }
        for pid in orphans:
            processes.kill_tree(pid)


def learn_for(modes: list[tuple[str, str]]) -> None:
    """`modes`: target and device of effbench's own that will be run."""
    import torch

    from effbench.models.build import resolve_target
    from effbench.modes import vector_instructions

    if any(vector_instructions.writes_cpp(resolve_target(target), torch.device(device)) for target, device in modes):
        vector_instructions.learn(os.environ.get(vector_instructions.FOLDER))


def settle() -> None:
    """Move everything loaded out of the garbage collector's reach: children then share these pages."""
    gc.collect()
    gc.freeze()


def main() -> None:
    started = time.monotonic()
    server = Server()
    if "--no-preload" not in sys.argv[1:]:
        for name in PRELOAD:
            importlib.import_module(name)
        for name in PRELOAD_IF_THERE:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    settle()
    server.send({"event": "ready", "pid": os.getpid(), "seconds": time.monotonic() - started})
    server.serve()


if __name__ == "__main__":
    main()
