"""Fork servers of a sweep, per interpreter: the first one is probed, then they are preloaded,
replaced when they die, and renewed each round.

All children of a server share its memory layout, and thus a bias that averaging over children does
not remove. A new server per round turns this bias into variation between rounds, which the
intervals include.
"""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from effbench.core.errors import ConfigError, InterpreterError, WorkerError
from effbench.core.labels import grouped
from effbench.core.message import Json, ProbedGpu
from effbench.run.client import ForkServer
from effbench.run.interpreters import HERE, Interpreter
from effbench.run.interrupts import StoppedError
from effbench.run.plan import CellRun
from effbench.run.probe import PROBE_TIMEOUT_S, ProbedMachine, probe

NEEDS = "trials need Python 3.11 and torch 2.11, or newer, numpy and nvidia-ml-py"


def start(
    interpreter: Interpreter, preload: bool = True, env: Mapping[str, str] | None = None
) -> ForkServer:
    """Start a server of this interpreter; see `ForkServer`."""
    return ForkServer(**interpreter.given, preload=preload, env=env)


class ServerPool:
    """The fork servers of one interpreter. Thread-safe.

    `first`: the first server. `is_lent`: leave it open. `to_preload`: what each server does before
    its first trial, as `probe.to_preload` returns it, or None. `last_round`: up to this one each
    round has a new server. `stop`: once it is set, `shared` and `separate` raise StoppedError
    instead of waiting for a server.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        first: ForkServer,
        stop: threading.Event,
        to_preload: Json | None = None,
        last_round: int = 0,
        is_lent: bool = True,
    ) -> None:
        self.interpreter = interpreter
        self.stop = stop
        self.to_preload = to_preload
        self.last_round = last_round
        self.lent = first if is_lent else None
        self.current = first
        self.round = 0
        self.next: ForkServer | None = None
        #: Servers that have preloaded.
        self.loaded: set[ForkServer] = set()
        self.users: Counter[ForkServer] = Counter()
        #: Also held while the current server loads, which takes seconds.
        self.lock = threading.Lock()

    @contextmanager
    def shared(self, round: int) -> Iterator[ForkServer]:
        """Yield a live server for a trial of this round. Raises WorkerError if a new server does
        not start, and StoppedError."""
        server = self.take(round)
        try:
            yield server
        finally:
            self.give_back(server)

    @contextmanager
    def separate(self, preload: bool, env: Mapping[str, str]) -> Iterator[ForkServer]:
        """Yield a server of its own for a trial. `preload`: torch and the models; `env`: variables
        of its process. Raises as `shared` does."""
        with closing(start(self.interpreter, preload, env)) as server:
            server.wait_ready(self.stop)
            if preload:
                self.load(server)
            yield server

    def take(self, round: int) -> ForkServer:
        """Return the shared server of this round and count its user. The next server loads while
        this round runs.

        Several threads that need a server at the same time wait for the one that loads it.
        """
        with self.lock:
            self.advance(round)
            if self.current.dead:
                used, self.current = self.current, start(self.interpreter)
                self.retire(used)
            if self.current not in self.loaded:
                self.load(self.current)
            self.start_next(round)
            self.users[self.current] += 1
            return self.current

    def advance(self, round: int) -> None:
        """Make the next server the current one if it has loaded and a new round begins, or the
        current one is dead.

        Short rounds do not wait for the next server: the first round that starts after it has
        loaded uses it.
        """
        used, following = self.current, self.next
        if following is None or following.dead or following not in self.loaded:
            return
        if used.dead or round > self.round:
            self.current, self.next = following, None
            self.retire(used)

    def start_next(self, round: int) -> None:
        """Start the server of the next round, unless it was started or this is the last round with
        a new server."""
        if self.next is not None and self.next.dead and round > self.round:
            self.next = None  # it did not load: a round later another one may
        self.round = max(round, self.round)
        if self.next is None and self.round < self.last_round:
            self.next = start(self.interpreter)
            threading.Thread(target=self.load_next, args=(self.next,), daemon=True).start()

    def give_back(self, server: ForkServer) -> None:
        with self.lock:
            self.users[server] -= 1
            if server is not self.current:
                self.retire(server)

    def load(self, server: ForkServer) -> None:
        """Preload the models once the server is ready. If it does not get ready, raise WorkerError,
        or StoppedError once `stop` is set."""
        server.wait_ready(self.stop)
        if self.to_preload is not None:
            server.call("preload", self.to_preload, PROBE_TIMEOUT_S, self.stop)
        self.loaded.add(server)

    def load_next(self, server: ForkServer) -> None:
        try:
            self.load(server)
        except (WorkerError, StoppedError):  # the sweep keeps its current server
            server.close()

    def retire(self, server: ForkServer) -> None:
        """Close a server, unless it is lent, or in use, because its trials would end with it."""
        if server is not self.lent and not self.users[server]:
            server.close()

    def close(self) -> None:
        """Close all servers except a lent one, once no thread uses the pool."""
        for server in (self.current, self.next):
            if server is not None:
                self.retire(server)


# --- the first servers ---


@dataclass(frozen=True)
class ProbedServer:
    """The first server of an interpreter, and what it found on its machine. `is_lent`: it stays
    open after the sweep."""

    server: ForkServer
    machine: ProbedMachine
    is_lent: bool


Servers = Mapping[Interpreter, ProbedServer]


def environment_ids(servers: Servers) -> dict[Interpreter, str]:
    """Return the id of the environment of each interpreter."""
    return {interpreter: probed.machine.environment.id for interpreter, probed in servers.items()}


def gpus_of(servers: Servers) -> list[ProbedGpu]:
    """Return the GPUs of the machine: those of the interpreter that sees most."""
    return max((probed.machine.gpus for probed in servers.values()), key=len)


@contextmanager
def open_servers(
    runs: Sequence[CellRun],
    baseline_mode: str,
    stop: threading.Event,
    lent: ForkServer | None = None,
) -> Iterator[Servers]:
    """Start a server for each interpreter of these runs, probe it with its cells, and yield the
    servers; close them at the end. In cells, device and dtype may be `auto`. `lent`: a server of
    effbench's own interpreter, which stays open.

    Raises ConfigError as `probe` does, and InterpreterError if a `python` cannot run trials.
    """
    wanted = grouped(runs, lambda run: run.interpreter)
    with ExitStack() as started:
        first: dict[Interpreter, ForkServer] = {}
        for interpreter in wanted:  # all load in parallel
            if lent is not None and interpreter == HERE:
                first[interpreter] = lent
            else:
                with errors_of(interpreter):
                    server = start(interpreter)
                first[interpreter] = started.enter_context(closing(server))
        # meanwhile: the first record needs it, and the next trial would wait
        importlib.import_module("numpy")
        servers = {}
        for interpreter, server in first.items():
            cells = [run.cell for run in wanted[interpreter]]
            with errors_of(interpreter):
                machine = probe(server, cells, baseline_mode, interpreter, stop)
            servers[interpreter] = ProbedServer(server, machine, is_lent=server is lent)
        yield servers


@contextmanager
def errors_of(interpreter: Interpreter) -> Iterator[None]:
    """Name the interpreter in errors of this context."""
    try:
        yield
    except ConfigError as error:
        if interpreter == HERE:
            raise
        raise ConfigError(f"{interpreter}: {error}") from error
    except (WorkerError, OSError) as error:
        if interpreter.python is None:
            raise
        raise InterpreterError(f"{interpreter}: {error}; {NEEDS}") from error
