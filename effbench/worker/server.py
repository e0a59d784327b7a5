"""The fork server: `python -m effbench.worker.server`.

It imports torch and its compiler once, never touches CUDA, reads messages on standard input and
forks one child per task. A child has its own session, dies with the server and answers through its
own pipe. When standard input closes, the server kills every child's process tree and exits.
`--no-preload`: do not import torch, for `isolation=spawn`.

It is ready once torch is imported: a probe needs no more and runs while it imports the compiler.
All other tasks wait for the compiler, so that all trials start from the same modules.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from effbench.core import processes
from effbench.core.message import TRIAL_VARIABLE, Json, MessageError, MessagePipe, TaskEnd, decode

#: In the order of their dependencies and in small parts, because the server answers messages in
#: between.
PRELOAD = (
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.fsdp",
    "torch._dynamo.trace_rules",
    "torch._dynamo",
    "torch._inductor.utils",
    "torch._inductor.compile_fx",
    "torch._functorch.aot_autograd",
    # a process's first compilation imports these lazily (0.5 s); they are private, and some
    # releases lack some of them
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.halide",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.mps",
    "torch._inductor.codegen.wrapper_fxir",
    "torch._inductor.compiler_bisector",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.package",
    "torch._subclasses.schema_check_mode",
    "torch._dynamo.repro.aoti",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
    "sympy.tensor.tensor",
    "effbench.worker.trial",
)
LOG_BYTES = 1 << 20  # bytes to keep of the end of a task's output
READ_BYTES = 1 << 20  # all that a pipe holds: 16 pages, of up to 64 KiB


def take_lines(buffer: bytearray, data: bytes) -> Iterator[bytes]:
    """Append `data` to the buffer, then yield and remove its complete lines."""
    buffer += data
    if b"\n" not in data:
        return
    *lines, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    yield from lines


@dataclass(frozen=True)
class TaskRequest:
    """A request to run a task: `name`, a module next to this one that has `run_task(payload,
    pipe)`, with its `payload` and further environment variables. `preload` is the server's own."""

    id: str
    name: str
    payload: Json
    env: dict[str, str]


@dataclass
class Child:
    """A running task."""

    id: str
    pid: int
    results: int  # reading end of its result pipe
    prints: int  # reading end of the pipe for its output
    oom_kills: int  # the machine's count when the task began
    buffer: bytearray = field(default_factory=bytearray)
    log: bytearray = field(default_factory=bytearray)
    result: Any = None
    killed: bool = False


class Server:
    """A select loop over standard input, the children's pipes and SIGCHLD. One thread, so that
    forks are safe."""

    def __init__(self) -> None:
        # private copies, because a task's output must not mix with the messages
        self.messages_in, self.messages_out = os.dup(0), MessagePipe(os.dup(1))
        with Path(os.devnull).open() as null:
            os.dup2(null.fileno(), 0)
        os.dup2(2, 1)
        self.children: dict[int, Child] = {}  # by pid
        self.to_import: list[str] = []
        self.buffer = bytearray()
        self.closing = False
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = socket.socketpair()
        self.wake_write.setblocking(False)
        signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C reaches the whole foreground group, but the sweep decides when the server ends
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        processes.adopt_orphans()
        self.selector.register(self.messages_in, selectors.EVENT_READ, self.read_messages)
        self.selector.register(
            self.wake_read, selectors.EVENT_READ, lambda: self.wake_read.recv(4096)
        )

    def send(self, event: str, **facts: Any) -> None:
        try:
            self.messages_out.send(event=event, **facts)
        except BrokenPipeError:
            self.closing = True

    def send_end(self, id: str, end: TaskEnd) -> None:
        self.send("ended", id=id, end=vars(end))

    def serve(self) -> None:
        while not self.closing:
            events = self.selector.select(timeout=0.0 if self.to_import else 5.0)
            for key, _ in events:
                key.data()
            self.reap()
            if self.to_import and not events:
                self.import_next()
        for child in self.children.values():
            processes.kill_tree(child.pid)
        # orphans that this process has adopted
        processes.kill_descendants(os.getpid())

    def read_messages(self) -> None:
        data = os.read(self.messages_in, READ_BYTES)
        self.closing = self.closing or not data
        for line in take_lines(self.buffer, data):
            message = decode(line)
            id = message["id"]
            if message["op"] == "run":
                self.begin(TaskRequest(id, message["task"], message["payload"], message["env"]))
                continue
            for child in self.children.values():
                if child.id == id:
                    child.killed = True
                    processes.kill_tree(child.pid)

    def begin(self, task: TaskRequest) -> None:
        """Run a task in a child, or import modules here."""
        if task.name == "preload":
            self.preload(**task.payload)
            self.send_end(task.id, TaskEnd({}))
            return
        if task.name != "probe":  # which needs no compiler
            self.import_all()
        self.fork(task)

    def import_next(self) -> None:
        with suppress(ImportError):  # some releases of torch lack some modules
            importlib.import_module(self.to_import.pop(0))
        if not self.to_import:
            importlib.import_module("torch._dynamo").list_backends()  # imports all backends
            freeze_imports()

    def import_all(self) -> None:
        while self.to_import:
            self.import_next()

    def preload(
        self, modules: list[str], networks: list[Json], modes: list[tuple[str, str]]
    ) -> None:
        """Import effbench's own model modules and the classes of networks (of torchvision,
        transformers), and query the machine for C++ compilation once, so that the children do not
        have to."""
        self.import_all()
        for name in modules:
            # the trial gets the same error and reports it as its status
            with suppress(Exception):
                importlib.import_module(name)
        if networks:
            from effbench.models import libraries

            for network in networks:
                with suppress(Exception):
                    libraries.check(**network)
        if modes:
            from effbench.modes import inductor

            inductor.learn_for(modes)
        freeze_imports()

    def fork(self, task: TaskRequest) -> None:
        server = os.getpid()
        oom_kills = processes.oom_kills()
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            pid = os.fork()
        except OSError as error:  # too many processes or files, or no memory
            for end in ends:
                os.close(end)
            failed = f"the fork server could not start a process: {error}"
            self.send_end(task.id, TaskEnd(failed=failed))
            return
        results, results_end, prints, prints_end = ends
        child = Child(task.id, pid, results, prints, oom_kills)
        self.children[pid] = child
        if pid == 0:
            self.become_child(task, server, results_end, prints_end)
        os.close(results_end)
        os.close(prints_end)
        self.watch(results, partial(self.read_results, child))
        self.watch(prints, partial(self.read_prints, child))
        self.send("started", id=child.id, pid=pid)

    def become_child(
        self,
        task: TaskRequest,
        server: int,
        results: int,
        prints: int,
    ) -> NoReturn:
        code = 1
        try:
            os.setsid()
            processes.die_with_parent(server)
            processes.prefer_as_oom_victim()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.close(self.messages_in)
            os.close(self.messages_out.end)
            for child in self.children.values():
                os.close(child.results)
                os.close(child.prints)
            os.dup2(prints, 1)
            os.dup2(prints, 2)
            os.close(prints)
            os.environ.update(task.env)
            os.environ[TRIAL_VARIABLE] = task.id
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(f"effbench.worker.{task.name}")
            pipe = MessagePipe(results)
            pipe.send(result=module.run_task(task.payload, pipe))
            code = 0
        except BaseException:  # user code may raise anything
            traceback.print_exc()
        finally:  # under no circumstances may this process continue as a second server
            with suppress(Exception):  # a task may have closed or replaced its streams
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def read_prints(self, child: Child) -> None:
        child.log += self.read_pipe(child.prints)
        del child.log[:-LOG_BYTES]

    def read_results(self, child: Child) -> None:
        for line in take_lines(child.buffer, self.read_pipe(child.results)):
            message = {}
            with suppress(MessageError):  # user code can write to that pipe, too
                message = decode(line)
            child.result = message.get("result", child.result)
            if "phase" in message:
                self.send("phase", id=child.id, phase=str(message["phase"]))

    def read_pipe(self, pipe: int) -> bytes:
        """Return what is in the pipe."""
        data = b""
        with suppress(BlockingIOError):  # nothing yet
            data = os.read(pipe, READ_BYTES)
            if not data:  # end of file: the process has closed its end, and reap() follows
                self.unwatch(pipe)
        return data

    def watch(self, pipe: int, read: Callable[[], None]) -> None:
        os.set_blocking(pipe, False)
        self.selector.register(pipe, selectors.EVENT_READ, read)

    def unwatch(self, pipe: int) -> None:
        with suppress(KeyError):
            self.selector.unregister(pipe)

    def reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                child = self.children.pop(pid, None)
                if child is not None:  # else it is an orphan
                    self.end(child, os.waitstatus_to_exitcode(status))

    def end(self, child: Child, code: int) -> None:
        self.read_results(child)
        self.read_prints(child)
        for pipe in (child.results, child.prints):
            self.unwatch(pipe)
            os.close(pipe)
        self.kill_leftovers(child)
        is_strange = code == -signal.SIGKILL and not child.killed
        end = TaskEnd(
            result=child.result,
            pid=child.pid,
            code=code,
            log=child.log.decode(errors="replace"),
            oom_killed=is_strange and processes.oom_kills() > child.oom_kills,
        )
        self.send_end(child.id, end)

    def kill_leftovers(self, child: Child) -> None:
        """Kill the processes that the task left behind: its session, and orphans that this server
        has adopted."""
        # not the pid: it may belong to a new process
        processes.kill_descendants(child.pid)
        for pid, (parent, session) in processes.process_table().items():
            is_orphan = parent == os.getpid() and not {pid, session} & self.children.keys()
            if is_orphan and processes.environment_of(pid, TRIAL_VARIABLE) in (None, child.id):
                processes.kill_tree(pid)


class HeapFacts(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def fill_heap() -> None:
    """Allocate the free pieces that imports have left in glibc's heap, about 700 of 1 MB. Otherwise
    a trial's small objects, such as autograd's nodes, scatter over them; a training step of 0.5 ms
    took 2 % longer."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):  # another C library, or glibc before 2.33
        return
    libc.mallinfo2.restype = HeapFacts
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.sbrk.argtypes = [ctypes.c_long]
    facts = libc.mallinfo2()
    top = libc.sbrk(0) - facts.keepcost  # what lies above is one piece
    bottom = top - facts.arena
    for size in range(1 << 16, 16, -16):
        pointer = libc.malloc(size) or 0
        while bottom <= pointer < top:
            pointer = libc.malloc(size) or 0
        libc.free(pointer)


def freeze_imports() -> None:
    """Exempt all loaded objects from garbage collection, so that children share their memory pages,
    and leave no holes in the heap."""
    gc.freeze()
    gc.enable()
    fill_heap()


def main() -> None:
    server = Server()
    if "--no-preload" not in sys.argv[1:]:
        gc.disable()  # until all is imported: collections take a tenth of that time
        importlib.import_module("torch")
        server.to_import += PRELOAD
    server.send("ready", pid=os.getpid())
    server.serve()


if __name__ == "__main__":
    main()
