"""Turns of a device's trials: while one is timed, those that prepare ahead stand still.

A trial takes its turn by locking a file, so that it cannot fail to give it back. The sweep learns
this from its phases and stops the process trees of the others until it has ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from effbench import processes
from effbench.errors import WorkerError
from effbench.message import TURN_PHASE
from effbench.sweeping.client import Request
from effbench.sweeping.devices import Slot


class Turns:
    """The running trials of a slot. Thread-safe. `is_shared`: whether there are several at a
    time."""

    def __init__(self, slot: Slot, is_shared: bool) -> None:
        self.slot, self.is_shared = slot, is_shared
        self.changed = threading.Condition()
        self.users = self.loners = 0
        self.device_lock = ExitStack()
        self.lock = threading.Lock()
        self.phases: dict[Request, str] = {}
        self.stopped: set[Request] = set()
        self.owner: Request | None = None

    def path(self, folder: Path) -> Path:
        """Return the file that a trial locks to take its turn; create its folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"turn-{self.slot.name.replace(' ', '-')}"

    @contextmanager
    def joined(
        self,
        timeout_s: float,
        stop: threading.Event,
        on_wait: Callable[[], None],
        alone: bool = False,
    ) -> Iterator[bool]:
        """Yield True while holding the device's lock, together with the slot's other trials or
        `alone`; see `Slot.locked`."""
        has_joined = False
        try:
            with self.changed:
                self.loners += alone
                self.changed.wait_for(lambda: not (self.users if alone else self.loners))
                lock = None if self.users else self.slot.locked(timeout_s, stop, on_wait)
                has_joined = lock is None or self.device_lock.enter_context(lock)
                self.users += has_joined
            yield has_joined
        # it ends the sweep: the slot's other trials need not wait as long, one after the other
        except WorkerError:
            stop.set()
            raise
        finally:
            with self.changed:
                self.users -= has_joined
                self.loners -= alone
                if not self.users:
                    self.device_lock.close()
                self.changed.notify_all()

    def phase(self, request: Request, phase: str) -> None:
        """Note a trial's phase. The one after TURN_PHASE means that it has its turn."""
        with self.lock:
            if request.done.is_set():  # it was killed
                return
            if self.phases.get(request) == TURN_PHASE:
                self.owner = request
            self.phases[request] = phase
            self.update()

    def ended(self, request: Request) -> None:
        with self.lock:
            request.wait(False)  # it may have died while it had to wait
            self.phases.pop(request, None)
            self.stopped.discard(request)
            if self.owner is request:
                self.owner = None
            self.update()

    def update(self) -> None:
        """Stop the trials that must stand still, and continue the others."""
        for request, phase in self.phases.items():
            stands = self.owner not in (None, request)
            if stands != (request in self.stopped):
                self.stopped ^= {request}
                processes.signal_tree(request.pid, signal.SIGSTOP if stands else signal.SIGCONT)
            request.wait(stands or phase == TURN_PHASE)
