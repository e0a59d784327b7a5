"""Calls that all ranks of a trial make together: the leader times them and orders them from the
others, the followers.

Before each of its calls the leader writes an order into memory that the ranks share, and the
followers look for it there without a pause, because a message through a socket would take longer
than some calls. A follower notes there, too, when a call was complete on its device. The clock is
one for all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from effbench.core.message import RankRequest
from effbench.measure.timing import SampledStep
from effbench.models.inputs import Args, Inputs, KeptInputs, Kwargs, Step

NAME = "orders"
#: Orders that the memory holds at a time. The leader waits if a follower is farther behind.
CAPACITY = 1 << 14
#: An order has 16 bits: its kind, and below it the number of the input set.
ORDER_BITS, INPUT_BITS = 16, 14
MOST_INPUTS = 1 << INPUT_BITS
#: When a call ended, in ns, has the lower bits of a word, and the number of the call those above.
#: Two ends that are compared are less than nine minutes apart.
END_BITS = 40
END_MASK = (1 << END_BITS) - 1
NUMBER_MASK = (1 << 64 - END_BITS) - 1
WORD_BYTES = 8
#: Words of a rank, in a cache line of its own: how many orders it has taken, and its newest end.
RANK_WORDS = 8
#: Rounds of waiting after which other threads may use the core now and then, and between two looks
#: at the other processes.
ROUNDS, LOOK_ROUNDS = 100, 500


class OrderKind(IntEnum):
    """What a follower does with an input set: call the step of the trial or that of the baseline
    with it, or restore its values."""

    OWN = 0
    BASELINE = 1
    RESTORE = 2


class SharedOrders:
    """The memory of the orders, a file that each rank maps, and how a rank waits for others.

    `orders`: each is a single word that holds its own number, from 1, so that it is either complete
    or not there yet. `taken`, `ends`: of each rank, how many orders it has taken, and when its
    newest call ended. `look`: looks at the other processes now and then.
    """

    def __init__(self, request: RankRequest, look: Callable[[], None]) -> None:
        length = WORD_BYTES * (CAPACITY + RANK_WORDS * request.size)
        path = Path(request.folder, NAME)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, length)  # the first of the ranks fills it with zeros
            memory = mmap.mmap(descriptor, length)
        finally:
            os.close(descriptor)
        words = memoryview(memory).cast("Q")
        self.orders = words[:CAPACITY]
        self.taken = words[CAPACITY::RANK_WORDS]
        self.ends = words[CAPACITY + 1 :: RANK_WORDS]
        self.rank = request.rank
        self.look = look
        self.rounds = 0  # of waiting, without success

    def wait(self) -> None:
        """Wait for a moment, without sleeping. Raises what `look` raises."""
        self.rounds += 1
        if self.rounds % LOOK_ROUNDS == 0:
            self.look()
        if self.rounds > ROUNDS:
            os.sched_yield()


class Orders(SharedOrders):
    """The leader's side: it gives orders, and waits for their ends. `inputs`: the input sets that
    all ranks have; `number`: of the newest order."""

    def __init__(self, request: RankRequest, look: Callable[[], None]) -> None:
        super().__init__(request, look)
        self.followers = range(1, request.size)
        self.number = 0
        self.limit = CAPACITY // 2  # of the number, before looking how far the followers are
        self.numbers: dict[int, int] = {}

    def use(self, inputs: Sequence[Inputs]) -> None:
        """Order something with these input sets from now on."""
        if len(inputs) > MOST_INPUTS:
            raise ValueError(f"at most {MOST_INPUTS:,} input sets, not {len(inputs):,}")
        self.numbers = {key_of(*given): number for number, given in enumerate(inputs)}

    def give(self, kind: OrderKind, given: Inputs) -> None:
        """Order something of all followers."""
        if self.number >= self.limit:
            self.wait_for_room()
        number = self.number = self.number + 1
        order = kind << INPUT_BITS | self.numbers[key_of(*given)]
        self.orders[number % CAPACITY] = number << ORDER_BITS | order

    def wait_for_room(self) -> None:
        """Wait until no follower is so far behind that new orders would replace its next ones."""
        self.rounds = 0
        for rank in self.followers:
            while self.number - self.taken[rank] > CAPACITY // 2:
                self.wait()
        self.limit = self.number + CAPACITY // 4

    def ends_after(self, moment_ns: int) -> list[int]:
        """Wait until all followers have completed the newest call. Return how many ns after this
        moment each was done, negative before it."""
        self.rounds = 0
        number = self.number & NUMBER_MASK
        after_ns = []
        for rank in self.followers:
            while self.ends[rank] >> END_BITS != number:
                self.wait()
            later_ns = (self.ends[rank] - moment_ns) & END_MASK
            if later_ns > END_MASK // 2:  # the bits of a negative difference
                later_ns -= END_MASK + 1
            after_ns.append(later_ns)
        return after_ns


def key_of(args: Args, kwargs: Kwargs) -> int:
    """Return what tells apart the input sets: the identity of the first argument."""
    for value in args or kwargs.values():
        return id(value)
    return 0


class RanksCall(float):
    """The latency of a call in ms, until the slowest rank was done. `spread_ms`: time from the end
    on the first rank until then."""

    spread_ms: float


class LedStep(SampledStep):
    """The leader's step. A call of it is one of all ranks, and a sample of it lasts until the
    slowest one is done."""

    def __init__(self, step: Step, kind: OrderKind, orders: Orders) -> None:
        self.step = step
        self.kind = kind
        self.orders = orders

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.orders.give(self.kind, (args, kwargs))
        return self.step(*args, **kwargs)

    def sample(self, ms: float) -> RanksCall:
        """Wait for the other ranks, and return the call until the slowest one was done."""
        ended_ns = time.perf_counter_ns()
        after_ns = self.orders.ends_after(ended_ns)
        last_ns = max(0, *after_ns)
        call = RanksCall(ms + last_ns / 1e6)
        call.spread_ms = (last_ns - min(0, *after_ns)) / 1e6
        return call


class LedInputs(KeptInputs):
    """The leader's kept inputs: all ranks restore theirs."""

    def __init__(self, kept: KeptInputs, orders: Orders) -> None:
        super().__init__(())
        self.values = kept.values
        self.orders = orders

    def restore(self, given: Inputs) -> None:
        self.orders.give(OrderKind.RESTORE, given)
        super().restore(given)


class FollowedOrders(SharedOrders):
    """A follower's side: it does what the leader orders. `steps`: those that can be ordered;
    `kept`: of the input sets."""

    def __init__(
        self,
        request: RankRequest,
        look: Callable[[], None],
        device: torch.device,
        inputs: Sequence[Inputs],
        kept: KeptInputs,
    ) -> None:
        super().__init__(request, look)
        self.inputs = inputs
        self.kept = kept
        self.steps: dict[int, Step] = {}
        self.number = 0  # of the newest order
        self.complete: torch.cuda.Event | None = None
        self.is_pending = False  # whether the event of the newest call is to be waited for
        if device.type == "cuda":
            self.complete = torch.cuda.Event()

    @property
    def has_next(self) -> bool:
        number = self.number + 1
        return self.orders[number % CAPACITY] >> ORDER_BITS == number

    def obey_all(self) -> None:
        """Do what has been ordered so far."""
        while self.has_next:
            self.obey_next()

    def obey_next(self) -> None:
        """Do what the next order says."""
        self.rounds = 0
        self.number += 1
        order = self.orders[self.number % CAPACITY] & (1 << ORDER_BITS) - 1
        given = self.inputs[order % MOST_INPUTS]
        kind = order >> INPUT_BITS
        if kind == OrderKind.RESTORE:
            self.kept.restore(given)
        else:
            args, kwargs = given
            self.steps[kind](*args, **kwargs)
        self.taken[self.rank] = self.number
        if self.complete is None:
            self.note_end()
            return
        # nobody waits for a call that another one follows immediately
        self.is_pending = not self.has_next
        if self.is_pending:
            self.complete.record()

    def wait(self) -> None:
        """Note the end of the newest call, if it has just been completed on the device, and wait
        for a moment."""
        if self.is_pending and self.complete is not None and self.complete.query():
            self.note_end()
            self.is_pending = False
        super().wait()

    def note_end(self) -> None:
        end_ns = time.perf_counter_ns() & END_MASK
        self.ends[self.rank] = (self.number & NUMBER_MASK) << END_BITS | end_ns
