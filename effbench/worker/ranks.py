"""The ranks of a trial that uses several devices: one process each.

Rank 0 leads. It decides what is timed, and gives the trial's record; the others follow. They have a
process group for the collectives of the model. What the trial itself has to tell them goes through
sockets in a private folder, so that no collective of it falls into a timed call or a captured
graph.

A rank that fails ends, which the others notice: no rank tells why, or waits for long. The sweep
finds out which failure was the first (run/ranks.py), and ends ranks that hang.
"""

from __future__ import annotations

import os
import select
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from effbench.core.cell import Trial
from effbench.core.disturbances import Disturbance, DisturbanceKind
from effbench.core.meeting import Partner, connect, listen
from effbench.core.message import Json, RankRequest
from effbench.measure.led_step import (
    FollowedOrders,
    LedInputs,
    LedStep,
    OrderKind,
    Orders,
    RanksCall,
)
from effbench.measure.samples import Timing
from effbench.models.inputs import Inputs, KeptInputs, Step

#: The sweep ends a trial whose collectives hang, and finds out which rank did not arrive.
COLLECTIVE_TIMEOUT = timedelta(days=1)
#: Seconds between two attempts to connect, or two looks at the others.
RETRY_S = 0.01
#: Seconds in which a rank that may be the cause of this one's failure ends.
CAUSE_S = 0.5
#: Seconds after which a rank that says nothing waits for this one, which has failed.
SILENT_S = 30.0
LEADER = 0


class Task(StrEnum):
    """What the leader asks of the followers."""

    PHASE = auto()  # announce it
    WATCH = auto()  # begin to watch the GPU and compilations
    COMPILED = auto()  # tell what has been compiled since then
    DISTURBANCE = auto()  # tell what has disturbed the GPU since then
    FACTS = auto()  # take facts
    CHECK = auto()  # compare the results after timing
    BASELINE = auto()  # prepare the baseline
    END = auto()  # tell why the trial is degraded, and end


def name_of(rank: int, size: int) -> str:
    return f"rank {rank} of {size}"


class Ranks:
    """The ranks of a trial as seen by rank 0, which leads the others; often it is the only one.

    `others`: the connections to other ranks by their numbers. `is_followed`: whether they make the
    calls that this one orders.
    """

    leads = True
    is_followed = False

    def __init__(self, request: RankRequest, device: torch.device) -> None:
        self.request = request
        self.size = request.size
        self.folder = Path(request.folder)
        self.device = device
        self.others: dict[int, Partner] = {}

    def join(self) -> None:
        """Meet the other ranks and make the process group. Raises PartnerLostError."""
        if self.size == 1:
            return
        self.meet()
        rank = self.request.rank
        # each rank sees its own device first, so that torch.cuda.set_device(LOCAL_RANK) selects it
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(self.size), LOCAL_RANK="0")
        # all ranks run on this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        backend, bound = "gloo", None
        if self.device.type == "cuda":
            backend, bound = "nccl", torch.device("cuda", 0)
        dist.init_process_group(
            backend,
            store=dist.FileStore(str(self.folder / "store"), self.size),
            rank=rank,
            world_size=self.size,
            timeout=COLLECTIVE_TIMEOUT,
            device_id=bound,
        )

    def meet(self) -> None:
        """Connect this process with others, and prepare to order calls."""
        listeners = {rank: listen(self.folder, str(rank)) for rank in range(1, self.size)}
        for rank, listener in listeners.items():
            with listener:
                connection, _ = listener.accept()
            self.others[rank] = Partner(connection, None, name_of(rank, self.size))
        self.orders = Orders(self.request, self.look)

    # --- what the leader says

    def barrier(self) -> None:
        """Wait until all ranks are here. Raises PartnerLostError."""
        self.gather()
        self.tell("go")

    def lead(self) -> None:
        """Begin to order calls, once all ranks are ready. Raises PartnerLostError."""
        self.barrier()
        self.is_followed = True

    def tell(self, op: str, **values: str) -> None:
        for other in self.others.values():
            other.send(op, **values)

    def gather(self) -> list[Json]:
        return [other.receive() for other in self.others.values()]

    def announce(self, phase: str) -> None:
        """Tell the followers which phase has begun."""
        if self.is_followed:
            self.ask(Task.PHASE, name=phase)

    @contextmanager
    def together(self, task: Task) -> Iterator[list[Json]]:
        """Let the followers do a task while this process does its part in this context. The value
        is a list that then has their answers, in order."""
        answers: list[Json] = []
        self.tell(task)
        yield answers
        answers += self.gather()

    def ask(self, task: Task, **values: str) -> list[Json]:
        """Let the followers do a task, and return their answers, in order."""
        self.tell(task, **values)
        return self.gather()

    def first_reason(self, answers: list[Json]) -> str | None:
        """Return the reason of the first follower that gave one, with its rank, or None."""
        for rank, answer in enumerate(answers, 1):
            if answer["reason"] is not None:
                return f"{name_of(rank, self.size)}: {answer['reason']}"
        return None

    def reason(self, task: Task, find: Callable[[], str | None]) -> str | None:
        """Let all ranks do a task, this one by a call of `find`, and return the first reason, or
        None."""
        with self.together(task) as answers:
            reason = find()
        return reason or self.first_reason(answers)

    def newest_disturbance(self) -> Disturbance | None:
        """Return what has disturbed the GPU of a follower since the task WATCH, or None."""
        answers = self.ask(Task.DISTURBANCE)
        text = self.first_reason(answers)
        if text is None:
            return None
        kind = next(answer["kind"] for answer in answers if answer["reason"] is not None)
        return Disturbance(DisturbanceKind(kind), text)

    def led(self, step: Step, inputs: Sequence[Inputs], kind: OrderKind = OrderKind.OWN) -> Step:
        """Return the step whose calls all ranks make."""
        if self.size == 1:
            return step
        self.orders.use(inputs)
        return LedStep(step, kind, self.orders)

    def led_inputs(self, kept: KeptInputs) -> KeptInputs:
        """Return the kept inputs that all ranks restore, those of their steps."""
        if self.size == 1:
            return kept
        return LedInputs(kept, self.orders)

    # --- other ranks that end

    def polled(self, event: int, wait_s: float = 0.0) -> list[int]:
        """Return the ranks on whose connections there is this event, as soon as there is one."""
        poll = select.poll()
        for other in self.others.values():
            poll.register(other.connection, event)
        descriptors = dict(poll.poll(1000 * wait_s))
        return [
            rank for rank, other in self.others.items() if other.connection.fileno() in descriptors
        ]

    def look(self) -> None:
        """Look at the others while waiting for them. Raises PartnerLostError if one has ended."""
        for rank in self.polled(select.POLLRDHUP):
            raise self.others[rank].lost(None)

    def is_awaited(self) -> bool:
        """Return whether another rank waits for this one, which has failed: it has nothing to say
        for a while, because it is in a collective."""
        deadline = time.monotonic() + SILENT_S
        while len(self.polled(select.POLLIN)) < len(self.others):
            if time.monotonic() > deadline:
                return True
            time.sleep(RETRY_S)
        return False

    def leave(self) -> int | None:
        """End the connections after a failure. Return a rank that had done so before, or does in a
        moment; None if nothing did."""
        # a collective fails a moment before or after the process that left it has ended
        left = self.polled(select.POLLRDHUP, CAUSE_S)
        for other in self.others.values():
            other.connection.close()
        return min(left, default=None)


class FollowingRank(Ranks):
    """The ranks of a trial as seen by any other one, which only talks to the leader. `is_told`:
    whether the leader has sent a message, or has ended."""

    leads = False
    is_told = False

    def meet(self) -> None:
        while LEADER not in self.others:
            try:
                connection = connect(self.folder, str(self.request.rank))
            except OSError:  # the leader does not listen yet
                time.sleep(RETRY_S)
            else:
                self.others[LEADER] = Partner(connection, None, name_of(LEADER, self.size))

    @property
    def leader(self) -> Partner:
        return self.others[LEADER]

    def barrier(self) -> None:
        self.leader.ask("arrived")

    def serve(self, calls: FollowedOrders, do: Callable[[Task, Json], None]) -> None:
        """Make the calls that the leader orders, and do the tasks that it asks for, until the last
        one. `do`: does a task, of which it gets the message, and answers. Raises PartnerLostError,
        and what calls and tasks raise."""
        self.barrier()
        task: Task | None = None
        while task is not Task.END:
            self.is_told = False
            while not self.is_told:
                if calls.has_next:
                    calls.obey_next()
                else:
                    calls.wait()
            message = self.leader.receive()
            calls.obey_all()
            task = Task(message["op"])
            do(task, message)

    def look(self) -> None:
        self.is_told = self.leader.has_message or bool(self.polled(select.POLLIN))

    def answer(self, **values: Any) -> None:
        """Answer the leader's newest task."""
        self.leader.send("answer", **values)


def ranks_of(request: RankRequest | None, device: torch.device) -> Ranks:
    """Return the ranks of a trial as seen by this process. `request`: None if it is the only
    one."""
    request = request or RankRequest(LEADER, 1, "")
    if request.rank == LEADER:
        return Ranks(request, device)
    return FollowingRank(request, device)


# --- facts of several ranks

#: Quantities of a trial for which the rank with the most decides.
LARGEST = (
    "prepare_s",
    "first_call_s",
    "compile_s",
    "build_peak_allocated_bytes",
    "prepare_peak_allocated_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "graph_pool_bytes",
    "process_gpu_bytes",
    "peak_host_bytes",
    "graph_breaks",
    "recompiles",
    "cudagraph_skips",
)
#: Key in `Trial.extra`: `peak_allocated_bytes` of each rank.
PEAKS = "ranks_peak_allocated_bytes"


def facts_of(trial: Trial) -> Json:
    """Return what the trial of a rank found out about its process and its GPU."""
    return {name: getattr(trial, name) for name in (*LARGEST, "foreign_processes")}


def merge_facts(trial: Trial, others: list[Json]) -> None:
    """Add what the followers found out to the leader's trial."""
    if not others:
        return
    everyone = [facts_of(trial), *others]
    for name in LARGEST:
        known = [facts[name] for facts in everyone if facts[name] is not None]
        setattr(trial, name, max(known, default=None))
    peaks = [facts["peak_allocated_bytes"] for facts in everyone]
    trial.ranks = len(everyone)
    trial.ranks_peak_allocated_bytes = total(peaks)
    if trial.ranks_peak_allocated_bytes is not None:
        trial.extra[PEAKS] = peaks
    trial.foreign_processes = total([facts["foreign_processes"] for facts in everyone])
    trial.energy_mj = None  # of the leader's GPU alone


def total(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None if one is unknown."""
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    return sum(known)


def record_spread(trial: Trial, calls: Timing) -> None:
    """Record how far apart the ranks end a call, if there are several."""
    spreads_ms = [call.spread_ms for call in calls.samples_ms if isinstance(call, RanksCall)]
    if spreads_ms:
        trial.rank_spread_ms = statistics.median(spreads_ms)
