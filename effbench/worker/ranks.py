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


class LostRankError(PartnerLostError):
    """Another rank ended or does not answer."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank = rank


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

    def name_of(self, rank: int) -> str:
        return f"rank {rank} of {self.size}"

    def first_reason(self, answers: list[Json]) -> str | None:
        """Return the reason of the first follower that gave one, with its rank, or None."""
        for rank, answer in enumerate(answers, 1):
            if answer["reason"] is not None:
                return f"{self.name_of(rank)}: {answer['reason']}"
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


class SeveralRanks(Ranks):
    """What the leader and the followers share. `partners`: connections to others by rank;
    `failures`: what they told about their failure."""

    shared: SharedOrders

    def __init__(self, request: RankRequest, device: torch.device) -> None:
        self.request = request
        self.rank, self.size = request.rank, request.size
        self.folder = Path(request.folder)
        self.device = device
        self.partners: dict[int, Partner] = {}
        self.failures: dict[int, Json] = {}
        self.poll = select.poll()

    def join(self) -> None:
        self.shared = SharedOrders(self.folder, self.size)
        self.meet()
        for partner in self.partners.values():
            self.poll.register(partner.connection, select.POLLIN)
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

    def meet(self) -> None:
        """Connect this process with the others."""
        raise NotImplementedError

    def partner(self, connection: socket.socket, rank: int) -> Partner:
        return Partner(connection, self.request.answer_s, self.name_of(rank))

    def send(self, rank: int, op: str, **values: object) -> None:
        """Send a message. Raises LostRankError."""
        try:
            self.partners[rank].send(op, **values)
        except PartnerLostError as error:
            raise LostRankError(rank, str(error)) from error

    def receive(self, rank: int) -> Json:
        """Wait for the next message of a rank. Raises LostRankError, and Ended if it failed."""
        try:
            message = self.partners[rank].receive()
        except PartnerLostError as error:
            raise LostRankError(rank, str(error)) from error
        if message["op"] == FAILED:
            self.failures[rank] = message
            raise Ended(Status(message["status"]), f"{self.name_of(rank)}: {message['reason']}")
        return message

    def ready(self, wait_s: float = 0.0) -> list[int]:
        """Return the ranks that have sent something or ended, as soon as there is one."""
        waiting = [rank for rank, partner in self.partners.items() if partner.has_message]
        if waiting:
            return waiting
        by_descriptor = {
            partner.connection.fileno(): rank for rank, partner in self.partners.items()
        }
        return [by_descriptor[descriptor] for descriptor, _ in self.poll.poll(1000 * wait_s)]

    def settle_failure(self, trial: Trial, failed_ns: int) -> None:
        if not self.partners:
            return
        own = {"status": trial.status, "reason": trial.reason, "ns": failed_ns}
        for rank in self.partners:
            with suppress(LostRankError):
                self.send(rank, FAILED, **own)
        # a collective fails a moment before or after the process that left it tells why
        for rank in self.ready(CAUSE_S):
            try:
                while rank not in self.failures:
                    self.receive(rank)
            except Ended:
                continue
            except LostRankError:
                trial.extra[RANKS] = {LOST: rank}
        for rank, failure in self.failures.items():
            if failure["ns"] < failed_ns and failure["reason"] != trial.reason:
                trial.status = Status(failure["status"])
                trial.reason = f"{self.name_of(rank)}: {failure['reason']}"


class LeadingRank(SeveralRanks):
    """Rank 0. `is_followed`: whether the followers make the calls that it orders."""

    is_followed = False

    def join(self) -> None:
        super().join()
        self.orders = Orders(self.shared)
        self.waiting = CallWaiting(self)

    def meet(self) -> None:
        listener = listen(self.folder)
        listener.settimeout(self.request.answer_s)
        with listener:
            while len(self.partners) < self.size - 1:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    missing = min(set(range(1, self.size)) - self.partners.keys())
                    reason = f"{self.name_of(missing)} did not come"
                    raise LostRankError(missing, reason) from None
                partner = Partner(connection, self.request.answer_s, "another rank")
                rank = partner.receive()["number"]
                partner.name = self.name_of(rank)
                self.partners[rank] = partner
        self.partners = dict(sorted(self.partners.items()))

    def barrier(self) -> None:
        self.gather()
        self.tell("go")

    def lead(self) -> None:
        self.barrier()
        self.is_followed = True

    def tell(self, op: str, **values: str) -> None:
        for rank in self.partners:
            self.send(rank, op, **values)

    def gather(self) -> list[Json]:
        return [self.receive(rank) for rank in self.partners]

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
        for rank, answer in zip(self.partners, answers, strict=True):
            if answer["text"] is not None:
                text = f"on the GPU of {self.name_of(rank)}: {answer['text']}"
                return Disturbance(DisturbanceKind(answer["kind"]), text)
        return None


class CallWaiting(Waiting):
    """How the leader waits until the followers are done with a call."""

    def __init__(self, leader: LeadingRank) -> None:
        super().__init__()
        self.leader = leader

    def look(self) -> None:
        """Raise Ended if a follower failed, and LostRankError if one ended, or if they do not
        answer."""
        leader = self.leader
        for rank in leader.ready():
            leader.receive(rank)
        if time.monotonic() - self.began_s > leader.request.answer_s:
            rank = leader.orders.slowest()
            reason = f"{leader.name_of(rank)} did not answer for {leader.request.answer_s:g} s"
            raise LostRankError(rank, reason)


class FollowingRank(SeveralRanks):
    """Any rank but 0."""

    leads = False

    def meet(self) -> None:
        deadline = time.monotonic() + self.request.answer_s
        connection = None
        while connection is None:
            try:
                connection = connect(self.folder)
            except OSError:  # the leader does not listen yet
                if time.monotonic() > deadline:
                    raise LostRankError(LEADER, f"{self.name_of(LEADER)} did not come") from None
                time.sleep(RETRY_S)
        name = self.name_of(LEADER)
        self.partners[LEADER] = Partner(connection, self.request.answer_s, name)
        self.send(LEADER, "hello", number=self.rank)

    def barrier(self) -> None:
        self.send(LEADER, "arrived")
        self.receive(LEADER)

    def serve(self, calls: FollowedOrders, tasks: Mapping[str, Callable[[Json], Json]]) -> None:
        """Make the calls that the leader orders, and do the tasks that it asks for, until the task
        END. `tasks`: name -> a function of the message that returns the answer. Raises
        LostRankError, Ended if another rank failed, and what calls and tasks raise."""
        self.barrier()
        waiting = OrderWaiting(self)
        task = ""
        while task != END:
            waiting.begin()
            while not waiting.has_message:
                order = calls.next()
                if order is None:
                    calls.poll()
                    waiting.wait()
                else:
                    calls.obey(order)
                    waiting.rounds = 0
            message = self.receive(LEADER)
            calls.obey_all()
            task = message["op"]
            self.send(LEADER, task, **tasks[task](message))


class OrderWaiting(Waiting):
    """How a follower waits for an order of the leader. `has_message`: whether it has said something
    else, or has ended."""

    has_message: bool

    def __init__(self, follower: FollowingRank) -> None:
        super().__init__()
        self.follower = follower

    def begin(self) -> None:
        super().begin()
        self.has_message = False

    def look(self) -> None:
        self.has_message = bool(self.follower.ready())


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
