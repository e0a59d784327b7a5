"""The fork server that a sweep's trials come from: replaced when it dies, and, where asked for, renewed each round.

All children of one server share its memory layout, and with it a bias that no number of them averages out. A server of
its own for each round turns that into spread between rounds, which the intervals know of.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from effbench.errors import WorkerError
from effbench.sweeping.workers import ForkServer


@dataclass
class Servers:
    """Thread-safe. `first` stays its owner's to close; `equip` readies a new one (imports what all trials need)."""

    first: ForkServer
    equip: Callable[[ForkServer], None] = lambda server: None
    make: Callable[[], ForkServer] = ForkServer
    renew: bool = False
    last_round: int = 0
    round: int | None = None
    current: ForkServer | None = None
    coming: ForkServer | None = None
    equipped: threading.Event = field(default_factory=threading.Event)  # is the coming one?
    users: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, round: int) -> ForkServer:
        """A live server for a trial of this round; give it back when the trial has ended.

        The next one loads while this round runs. Raises WorkerError if a new one does not come up.
        """
        with self.lock:
            current = self.current or self.first
            later = self.renew and self.round is not None and round > self.round
            # short rounds do not wait for it: it serves the first round that finds it loaded
            ready = self.coming is not None and self.equipped.is_set() and not self.coming.dead
            if ready and (later or current.dead):
                fresh, self.coming = self.coming, None
                self.retire(current)
                current = fresh
            elif current.dead:
                fresh = self.fresh()
                self.retire(current)
                current = fresh
            self.current = current
            self.round = round if self.round is None else max(round, self.round)
            if self.renew and self.coming is None and self.round < self.last_round:
                self.coming, self.equipped = self.make(), threading.Event()
                threading.Thread(target=self.load, args=(self.coming, self.equipped), daemon=True).start()
            self.users[id(current)] += 1
            return current

    def fresh(self) -> ForkServer:
        """Another server, ready; its taker closes it. Raises WorkerError if it does not come up."""
        server = self.make()
        try:
            server.wait_ready()
            self.equip(server)
        except BaseException:
            server.close()
            raise
        return server

    def load(self, server: ForkServer, equipped: threading.Event) -> None:
        """Ready the coming server beside the trials of this round. One that fails is left: the sweep has another."""
        try:
            server.wait_ready()
            self.equip(server)
        except WorkerError:
            server.close()
        else:
            equipped.set()

    def give_back(self, server: ForkServer) -> None:
        with self.lock:
            self.users[id(server)] -= 1
            if server is not self.current:
                self.retire(server)

    def retire(self, server: ForkServer) -> None:
        """Close one that nobody needs any more; its trials would end with it."""
        if server is not self.first and not self.users[id(server)]:
            server.close()

    def close(self) -> None:
        """Close all but the first."""
        with self.lock:
            for server in (self.current, self.coming):
                if server is not None and server is not self.first:
                    server.close()
            self.current = self.coming = None
