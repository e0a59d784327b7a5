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
    """The memory of the orders, a file in `folder` that each of the `size` ranks maps.

    An order is a single word that holds its own number, from 1, so that it is either complete or
    not there yet.
    """

    def __init__(self, folder: Path, size: int) -> None:
        length = WORD_BYTES * (CAPACITY + RANK_WORDS * size)
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, length)  # the first of the ranks fills it with zeros
            memory = mmap.mmap(descriptor, length)
        finally:
            os.close(descriptor)
        self.words = memoryview(memory).cast("Q")
        self.size = size

    def taken_of(self, rank: int) -> int:
        """Return the place of the word that counts the orders which this rank has taken."""
        return CAPACITY + RANK_WORDS * rank

    def end_of(self, rank: int) -> int:
        """Return the place of the word with this rank's newest end of a call."""
        return self.taken_of(rank) + 1


class Waiting:
    """Rounds of waiting for other processes, without sleeping. `look`: looks at them now and then,
    and raises an exception if waiting is in vain."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look
        self.begin()

    def begin(self) -> None:
        self.rounds = 0
        self.began_s = time.monotonic()

    def wait(self) -> None:
        """Wait for a moment. Raises what `look` raises."""
        self.rounds += 1
        if self.rounds % LOOK_ROUNDS == 0:
            self.look()
        if self.rounds > ROUNDS:
            os.sched_yield()


class Orders:
    """The leader's side: it gives orders, and waits for their ends. `number`: of the newest one."""

    def __init__(self, shared: SharedOrders) -> None:
        self.shared = shared
        self.words = shared.words
        self.number = 0
        self.limit = CAPACITY // 2  # of the number, before looking how far the followers are
        self.followers = range(1, shared.size)

    def give(self, order: int) -> None:
        """Order something of all followers."""
        number = self.number = self.number + 1
        self.words[number % CAPACITY] = number << ORDER_BITS | order

    def wait_for_room(self, waiting: Waiting) -> None:
        """Wait until no follower is so far behind that new orders would replace its next ones."""
        waiting.begin()
        for rank in self.followers:
            place = self.shared.taken_of(rank)
            while self.number - self.words[place] > CAPACITY // 2:
                waiting.wait()
        self.limit = self.number + CAPACITY // 4

    def slowest(self) -> int:
        """Return the follower that has taken the fewest orders."""
        return min(self.followers, key=lambda rank: self.words[self.shared.taken_of(rank)])

    def ends_after(self, moment_ns: int, waiting: Waiting) -> list[int]:
        """Wait until all followers have completed the newest call. Return how many ns after this
        moment each was done, negative before it."""
        waiting.begin()
        number = self.number & NUMBER_MASK
        after_ns = []
        for rank in self.followers:
            place = self.shared.end_of(rank)
            while self.words[place] >> END_BITS != number:
                waiting.wait()
            later_ns = (self.words[place] - moment_ns) & END_MASK
            if later_ns > END_MASK // 2:  # the bits of a negative difference
                later_ns -= END_MASK + 1
            after_ns.append(later_ns)
        return after_ns


class RanksCall(float):
    """The latency of a call in ms, until the slowest rank was done. `spread_ms`: time from the end
    on the first rank until then."""

    spread_ms: float


class InputNumbers:
    """The numbers of input sets, by the arguments of a call."""

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        if len(inputs) > MOST_INPUTS:
            raise ValueError(f"at most {MOST_INPUTS:,} input sets, not {len(inputs):,}")
        self.numbers = {
            self.key_of(args, kwargs): number for number, (args, kwargs) in enumerate(inputs)
        }

    def key_of(self, args: Args, kwargs: Kwargs) -> int:
        """Return what tells apart the arguments: the first one's identity."""
        for value in args or kwargs.values():
            return id(value)
        return 0

    def number_of(self, args: Args, kwargs: Kwargs) -> int:
        return self.numbers[self.key_of(args, kwargs)]


class LedStep(SampledStep):
    """The leader's step. A call of it is one of all ranks, and a sample of it lasts until the
    slowest one is done. `waiting`: looks after the followers."""

    def __init__(
        self,
        step: Step,
        kind: OrderKind,
        inputs: Sequence[Inputs],
        orders: Orders,
        waiting: Waiting,
    ) -> None:
        self.step = step
        self.prefix = kind << INPUT_BITS
        self.inputs = InputNumbers(inputs)
        self.orders = orders
        self.waiting = waiting

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        orders = self.orders
        if orders.number >= orders.limit:
            orders.wait_for_room(self.waiting)
        orders.give(self.prefix | self.inputs.number_of(args, kwargs))
        return self.step(*args, **kwargs)

    def sample(self, ms: float) -> RanksCall:
        """Wait for the other ranks, and return the call until the slowest one was done."""
        ended_ns = time.perf_counter_ns()
        after_ns = self.orders.ends_after(ended_ns, self.waiting)
        last_ns = max(0, *after_ns)
        call = RanksCall(ms + last_ns / 1e6)
        call.spread_ms = (last_ns - min(0, *after_ns)) / 1e6
        return call


class LedInputs(KeptInputs):
    """The leader's kept inputs: all ranks restore theirs."""

    def __init__(self, kept: KeptInputs, inputs: Sequence[Inputs], orders: Orders) -> None:
        super().__init__(())
        self.values = kept.values
        self.inputs = InputNumbers(inputs)
        self.orders = orders

    def restore(self, given: Inputs) -> None:
        order = OrderKind.RESTORE << INPUT_BITS
        self.orders.give(order | self.inputs.number_of(*given))
        super().restore(given)


class FollowedOrders:
    """A follower's side: it does what the leader orders. `steps`: those that can be ordered."""

    def __init__(
        self,
        shared: SharedOrders,
        rank: int,
        device: torch.device,
        inputs: Sequence[Inputs],
        kept: KeptInputs,
    ) -> None:
        self.words = shared.words
        self.taken_place = shared.taken_of(rank)
        self.end_place = shared.end_of(rank)
        self.inputs = inputs
        self.kept = kept
        self.steps: dict[int, Step] = {}
        self.taken = 0
        self.complete: torch.cuda.Event | None = None
        self.is_pending = False  # whether the event of the newest call is to be waited for
        if device.type == "cuda":
            self.complete = torch.cuda.Event()

    def next(self) -> int | None:
        """Return the next order, None if it is not there yet."""
        number = self.taken + 1
        word = self.words[number % CAPACITY]
        if word >> ORDER_BITS != number:
            return None
        return word & (1 << ORDER_BITS) - 1

    def obey_all(self) -> None:
        """Do what has been ordered so far."""
        order = self.next()
        while order is not None:
            self.obey(order)
            order = self.next()

    def obey(self, order: int) -> None:
        """Do what this order says."""
        given = self.inputs[order % MOST_INPUTS]
        kind = order >> INPUT_BITS
        if kind == OrderKind.RESTORE:
            self.kept.restore(given)
        else:
            args, kwargs = given
            self.steps[kind](*args, **kwargs)
        self.taken += 1
        self.words[self.taken_place] = self.taken
        if self.complete is None:
            self.note_end()
            return
        # nobody waits for a call that another one follows immediately
        self.is_pending = self.next() is None
        if self.is_pending:
            self.complete.record()

    def poll(self) -> None:
        """Note the end of the newest call, if it has just been completed on the device."""
        if self.is_pending and self.complete is not None and self.complete.query():
            self.note_end()
            self.is_pending = False

    def note_end(self) -> None:
        end_ns = time.perf_counter_ns() & END_MASK
        self.words[self.end_place] = (self.taken & NUMBER_MASK) << END_BITS | end_ns
