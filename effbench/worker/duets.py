"""The phase `duet` of a trial: it is timed in turn with another trial, instead of alone.

Both members prepare one after the other, meet at a socket and hand each other a token. Afterwards
they work one after the other again, the leader first, so that no other step disturbs a profile or a
series. If the partner is lost, the trial is timed alone.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from effbench.core.disturbances import Disturbance
from effbench.core.meeting import Partner, PartnerLostError, connect, listen
from effbench.core.message import DuetRequest
from effbench.measure import timing
from effbench.measure.duet import DuetResult, DuetStep
from effbench.measure.host import RunQueue
from effbench.measure.timing import Timer
from effbench.worker.context import CompilationWatch, TrialContext


@dataclass
class DuetMember:
    """This trial's part in a duet, which begins once this is made."""

    context: TrialContext
    request: DuetRequest
    timer: Timer

    def __post_init__(self) -> None:
        self.compilation = CompilationWatch()
        self.listener: socket.socket | None = None
        self.partner: Partner | None = None
        self.partner_depends_on_host = True

    def prepare(self, latency_ms: float, has_period: bool) -> None:
        """Get ready before the phase that tells the sweep to start the partner. Raises
        PartnerLostError."""
        self.step = DuetStep(self.timer, latency_ms, has_period)
        if not self.request.leads:
            return
        try:
            self.listener = listen(Path(self.request.folder))
        except OSError as error:
            raise PartnerLostError(f"no socket to meet at: {error.strerror or error}") from error

    def meet(self) -> None:
        """Wait for the partner. Raises PartnerLostError."""
        if self.listener is None:
            try:
                connection = connect(Path(self.request.folder))
            except OSError as error:
                raise PartnerLostError("the other member of the duet had ended") from error
            self.partner = Partner(connection, self.request.answer_s)
            self.partner.send("hello", depends_on_host=self.step.latency.depends_on_host)
            return
        connection, _ = self.listener.accept()
        self.listener.close()
        self.partner = Partner(connection, self.request.answer_s)
        hello = self.partner.receive()
        if hello["op"] != "hello":  # the sweep connected instead
            raise PartnerLostError(hello["reason"])
        self.partner_depends_on_host = hello["depends_on_host"]

    def take(self) -> DuetResult:
        """Time both steps in turn, and return what both members record. Raises PartnerLostError."""
        if self.partner is None:
            raise PartnerLostError("the other member of the duet did not come")
        with timing.no_garbage_collection():
            if self.request.leads:
                return self.lead(self.partner)
            return self.follow(self.partner)

    def lead(self, partner: Partner) -> DuetResult:
        depends_on_host = self.step.latency.depends_on_host or self.partner_depends_on_host
        self.context.watcher.begin()
        with self.context.host_watched(depends_on_host, moves=True) as host:
            pairs = self.step.lead(partner, host)
            end = partner.ask("end")
            if host:
                host.partner_s = end["process_s"]
        result = DuetResult(pairs, disturbance=self.disturbance_of_gpu())
        if host:
            result.host = host.facts()
            result.disturbance = result.disturbance or host.crowding
        result.void = self.compilation.compiled() or end["compiled"]
        partner.send("result", result=result.to_json())
        return result

    def disturbance_of_gpu(self) -> Disturbance | None:
        """Return what has disturbed the GPU, or None. The partner is no foreign process: it belongs
        to the sweep."""
        watcher = self.context.watcher
        watcher.disturbance = watcher.disturbance or watcher.newest_disturbance()
        if self.context.on_cuda:
            watcher.end()
        return watcher.disturbance

    def follow(self, partner: Partner) -> DuetResult:
        run_queue = RunQueue(all_threads=not self.context.on_cuda)
        began_s = time.process_time()
        self.context.watcher.begin()
        try:
            self.step.follow(partner, run_queue)
        finally:
            run_queue.close()
        self.context.watcher.look()
        process_s = time.process_time() - began_s
        answer = partner.ask("end", process_s=process_s, compiled=self.compilation.compiled())
        return DuetResult.from_json(answer["result"])

    def wait_for_leader(self) -> None:
        """Wait until the leader has ended, if this member has met it."""
        if self.partner is not None:
            self.partner.wait_for_end()
