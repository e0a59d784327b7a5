"""The ranks of a trial that uses several devices: one process each.

Rank 0 leads. It decides what is timed, and gives the trial's record; the others follow. They have a
process group for the collectives of the model. What the trial itself has to tell them goes through
sockets in a private folder, so that no collective of it falls into a timed call or a captured
graph.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from effbench.core.cell import Status, Trial
from effbench.core.disturbances import Disturbance, DisturbanceKind
from effbench.core.meeting import Partner, PartnerLostError, connect, listen
from effbench.core.message import LOST, RANKS, Json, RankRequest
from effbench.measure.led_step import (
    FollowedOrders,
    LedInputs,
    LedStep,
    OrderKind,
    Orders,
    RanksCall,
    SharedOrders,
    Waiting,
)
from effbench.measure.samples import Timing
from effbench.models.inputs import Inputs, KeptInputs, Step
from effbench.workloads.endings import Ended

#: Key in the mapping `Trial.extra[RANKS]` of a trial that was timed: the peaks of all ranks.
PEAKS = "peak_allocated_bytes"
#: The sweep ends a trial whose collectives hang, and finds out which rank did not arrive.
COLLECTIVE_TIMEOUT = timedelta(days=1)
#: Seconds between two attempts to connect, and of waiting for the failure of a rank that may be the
#: cause of this one's.
RETRY_S, CAUSE_S = 0.01, 0.5
LEADER = 0
#: Messages: a rank failed, and the last task.
FAILED, END = "failed", "end"


def name_of(rank: int, size: int) -> str:
    return f"rank {rank} of {size}"


class LostRankError(PartnerLostError):
    """Another rank ended or does not answer."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank = rank


class OtherRank(Partner):
    """The connection to another rank. `failure`: what it told about its failure, or None."""

    failure: Json | None = None

    def __init__(self, connection: socket.socket, request: RankRequest, rank: int) -> None:
        super().__init__(connection, request.answer_s, name_of(rank, request.size))
        self.rank = rank

    def receive(self) -> Json:
        """Wait for the next message and return it. Raises LostRankError, and Ended if the rank
        failed."""
        message = super().receive()
        if message["op"] == FAILED:
            self.failure = message
            raise Ended(Status(message["status"]), f"{self.name}: {message['reason']}")
        return message

    def lost(self, error: OSError | None) -> PartnerLostError:
        return LostRankError(self.rank, str(super().lost(error)))


class Ranks:
    """The ranks as seen by the process that leads the trial. Here it is the only one, and nobody
    has to be told anything."""

    size = 1
    leads = True

    def join(self) -> None:
        """Meet the other ranks and make the process group. Raises LostRankError."""

    def barrier(self) -> None:
        """Wait until all ranks are here. Raises LostRankError, and Ended if one failed."""

    def lead(self) -> None:
        """Begin to order calls, once all ranks are ready."""

    def announce(self, phase: str) -> None:
        """Tell the followers which phase has begun."""

    @contextmanager
    def together(self, task: str) -> Iterator[list[Json]]:
        """Let the followers do a task while this process does its part in this context. The value
        is a list that then has their answers, in order."""
        yield []

    def first_reason(self, answers: list[Json]) -> str | None:
        """Return the reason of the first follower that gave one, with its rank, or None."""
        for rank, answer in enumerate(answers, 1):
            if answer["reason"] is not None:
                return f"{name_of(rank, self.size)}: {answer['reason']}"
        return None

    def led(self, step: Step, inputs: Sequence[Inputs], kind: OrderKind = OrderKind.OWN) -> Step:
        """Return the step whose calls all ranks make."""
        return step

    def led_inputs(self, kept: KeptInputs, inputs: Sequence[Inputs]) -> KeptInputs:
        """Return the kept inputs that all ranks restore."""
        return kept

    def watch(self) -> None:
        """Let the followers begin to monitor their GPUs."""

    def newest_disturbance(self) -> Disturbance | None:
        """Return what has disturbed the GPU of a follower since `watch`, or None."""
        return None

    def settle_failure(self, trial: Trial, failed_ns: int) -> None:
        """Tell the other ranks that this trial failed, and set its outcome to that of the rank that
        failed before it, if one did. `failed_ns`: when this one failed, by `perf_counter_ns`."""


class SeveralRanks(Ranks, ABC):
    """What the leader and the followers share. `others`: those that this rank is connected with,
    in order."""

    shared: SharedOrders

    def __init__(self, request: RankRequest, device: torch.device) -> None:
        self.request = request
        self.rank, self.size = request.rank, request.size
        self.folder = Path(request.folder)
        self.device = device
        self.others: list[OtherRank] = []
        self.poll = select.poll()

    def join(self) -> None:
        self.shared = SharedOrders(self.folder, self.size)
        self.others += self.meet()
        for other in self.others:
            self.poll.register(other.connection, select.POLLIN)
        # its own device is always the first one
        os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.size), LOCAL_RANK="0")
        # all ranks run on this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        backend, bound = "gloo", None
        if self.device.type == "cuda":
            backend, bound = "nccl", torch.device("cuda", 0)
        dist.init_process_group(
            backend,
            store=dist.FileStore(str(self.folder / "store"), self.size),
            rank=self.rank,
            world_size=self.size,
            timeout=COLLECTIVE_TIMEOUT,
            device_id=bound,
        )

    @abstractmethod
    def meet(self) -> list[OtherRank]:
        """Connect this process with others. Raises LostRankError."""

    def absent(self, rank: int) -> LostRankError:
        return LostRankError(rank, f"{name_of(rank, self.size)} did not come")

    def ready(self, wait_s: float = 0.0) -> list[OtherRank]:
        """Return the ranks that have sent something or ended, as soon as there is one."""
        ready = [other for other in self.others if other.has_message]
        if ready:
            return ready
        descriptors = dict(self.poll.poll(1000 * wait_s))
        return [other for other in self.others if other.connection.fileno() in descriptors]

    def settle_failure(self, trial: Trial, failed_ns: int) -> None:
        if not self.others:
            return
        own = {"status": trial.status, "reason": trial.reason, "ns": failed_ns}
        for other in self.others:
            with suppress(LostRankError):
                other.send(FAILED, **own)
        # a collective fails a moment before or after the process that left it tells why
        for other in self.ready(CAUSE_S):
            try:
                while other.failure is None:
                    other.receive()
            except Ended:
                continue
            except LostRankError:
                trial.extra[RANKS] = {LOST: other.rank}
        for other in self.others:
            failure = other.failure
            if failure and failure["ns"] < failed_ns and failure["reason"] != trial.reason:
                trial.status = Status(failure["status"])
                trial.reason = f"{other.name}: {failure['reason']}"


class LeadingRank(SeveralRanks):
    """Rank 0. `is_followed`: whether the followers make the calls that it orders."""

    is_followed = False

    def join(self) -> None:
        super().join()
        self.orders = Orders(self.shared)
        self.waiting = Waiting(self.look)

    def meet(self) -> list[OtherRank]:
        ranks = range(1, self.size)
        listeners = [listen(self.folder, str(rank)) for rank in ranks]
        others = []
        for rank, listener in zip(ranks, listeners, strict=True):
            listener.settimeout(self.request.answer_s)
            with listener:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    raise self.absent(rank) from None
            others.append(OtherRank(connection, self.request, rank))
        return others

    def look(self) -> None:
        """Look at the followers while waiting for a call of theirs. Raises Ended if one failed, and
        LostRankError if one ended or does not answer."""
        for other in self.ready():
            other.receive()
        if time.monotonic() - self.waiting.began_s > self.request.answer_s:
            raise self.others[self.orders.slowest() - 1].lost(TimeoutError())

    def barrier(self) -> None:
        self.gather()
        self.tell("go")

    def lead(self) -> None:
        self.barrier()
        self.is_followed = True

    def tell(self, op: str, **values: str) -> None:
        for other in self.others:
            other.send(op, **values)

    def gather(self) -> list[Json]:
        return [other.receive() for other in self.others]

    def announce(self, phase: str) -> None:
        if self.is_followed:
            self.tell("phase", name=phase)
            self.gather()

    @contextmanager
    def together(self, task: str) -> Iterator[list[Json]]:
        answers: list[Json] = []
        self.tell(task)
        yield answers
        answers += self.gather()

    def led(self, step: Step, inputs: Sequence[Inputs], kind: OrderKind = OrderKind.OWN) -> Step:
        return LedStep(step, kind, inputs, self.orders, self.waiting)

    def led_inputs(self, kept: KeptInputs, inputs: Sequence[Inputs]) -> KeptInputs:
        return LedInputs(kept, inputs, self.orders)

    def watch(self) -> None:
        with self.together("watch"):
            pass

    def newest_disturbance(self) -> Disturbance | None:
        with self.together("disturbance") as answers:
            pass
        for other, answer in zip(self.others, answers, strict=True):
            if answer["text"] is not None:
                text = f"on the GPU of {other.name}: {answer['text']}"
                return Disturbance(DisturbanceKind(answer["kind"]), text)
        return None


class FollowingRank(SeveralRanks):
    """Any rank but 0. `is_told`: whether the leader has sent a message, or has ended."""

    leads = False
    is_told = False

    def meet(self) -> list[OtherRank]:
        deadline = time.monotonic() + self.request.answer_s
        while True:
            try:
                connection = connect(self.folder, str(self.rank))
            except OSError:  # the leader does not listen yet
                if time.monotonic() > deadline:
                    raise self.absent(LEADER) from None
                time.sleep(RETRY_S)
            else:
                return [OtherRank(connection, self.request, LEADER)]

    @property
    def leader(self) -> OtherRank:
        return self.others[0]

    def barrier(self) -> None:
        self.leader.ask("arrived")

    def serve(self, calls: FollowedOrders, tasks: Mapping[str, Callable[[Json], Json]]) -> None:
        """Make the calls that the leader orders, and do the tasks that it asks for, until the task
        END. `tasks`: name -> a function of the message that returns the answer. Raises
        LostRankError, Ended if another rank failed, and what calls and tasks raise."""
        self.barrier()
        waiting = Waiting(self.look)
        task = ""
        while task != END:
            self.is_told = False
            while not self.is_told:
                order = calls.next()
                if order is None:
                    calls.poll()
                    waiting.wait()
                else:
                    calls.obey(order)
                    waiting.rounds = 0
            message = self.leader.receive()
            calls.obey_all()
            task = message["op"]
            self.leader.send(task, **tasks[task](message))

    def look(self) -> None:
        self.is_told = bool(self.ready())


def ranks_of(request: RankRequest | None, device: torch.device) -> Ranks:
    """Return the ranks of a trial as seen by this process."""
    if request is None:
        return Ranks()
    if request.rank == LEADER:
        return LeadingRank(request, device)
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
)


def facts_of(trial: Trial) -> Json:
    """Return what a follower's trial found out about its process and its GPU."""
    facts = {name: getattr(trial, name) for name in LARGEST}
    return facts | {"foreign_processes": trial.foreign_processes}


def merge_facts(trial: Trial, others: list[Json]) -> None:
    """Add what the followers found out to the leader's trial."""
    if not others:
        return
    everyone = [facts_of(trial), *others]
    for name in LARGEST:
        known = [facts[name] for facts in everyone if facts[name] is not None]
        if known:
            setattr(trial, name, max(known))
    foreign = [facts["foreign_processes"] for facts in everyone]
    if None not in foreign:
        trial.foreign_processes = sum(foreign)
    peaks = [facts[PEAKS] for facts in everyone]
    trial.extra[RANKS] = {PEAKS: peaks}
    trial.ranks = len(everyone)
    if None not in peaks:
        trial.ranks_peak_allocated_bytes = sum(peaks)
    trial.energy_mj = None  # of the leader's GPU alone


def record_spread(trial: Trial, calls: Timing) -> None:
    """Record how far apart the ranks end a call, if there are several."""
    spreads_ms = [call.spread_ms for call in calls.samples_ms if isinstance(call, RanksCall)]
    if spreads_ms:
        trial.rank_spread_ms = statistics.median(spreads_ms)
