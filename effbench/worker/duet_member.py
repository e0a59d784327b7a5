"""The phase `duet` of a trial: it is timed in turn with another trial, instead of alone.

Both members prepare one after the other, meet at a socket and hand each other a token. Afterwards
they work one after the other again, the leader first, so that no other step disturbs a profile or a
series. If the partner is lost, the trial is timed alone.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from effbench.core.meeting import Partner, PartnerLostError, connect, listen
from effbench.core.message import DuetRequest
from effbench.measure import timing
from effbench.measure.duet import DuetResult, DuetStep
from effbench.measure.host import RunQueue
from effbench.measure.watch import GpuWatch
from effbench.worker.context import CompilationWatch, TrialContext


@dataclass(frozen=True)
class DuetMember:
    """This trial's part in a duet. `step`: has warmed up; `compilation`: since the duet began."""

    context: TrialContext
    watcher: GpuWatch
    request: DuetRequest
    step: DuetStep
    compilation: CompilationWatch

    def listen(self) -> socket | None:
        """Get ready before the phase that tells the sweep to start the partner. Return the socket
        of the leader, to whom the other member connects. Raises PartnerLostError."""
        if not self.request.leads:
            return None
        try:
            return listen(Path(self.request.folder))
        except OSError as error:
            raise PartnerLostError(f"no socket to meet at: {error.strerror or error}") from error

    def meet(self, listener: socket | None) -> Partner:
        """Wait for the partner and return it. `listener`: from `listen`. Raises
        PartnerLostError."""
        if listener is not None:
            connection, _ = listener.accept()
            listener.close()
        else:
            try:
                connection = connect(Path(self.request.folder))
            except OSError as error:
                raise PartnerLostError("the other member of the duet had ended") from error
        return Partner(connection, self.request.answer_s)

    def take(self, partner: Partner) -> DuetResult:
        """Time both steps in turn, and return what both members record. Raises PartnerLostError."""
        self.watcher.restart()
        with timing.no_garbage_collection():
            if self.request.leads:
                return self.lead(partner)
            return self.follow(partner)

    def lead(self, partner: Partner) -> DuetResult:
        hello = partner.receive()
        if hello["op"] != "hello":  # the sweep connected instead
            raise PartnerLostError(hello["reason"])
        depends_on_host = self.step.latency.depends_on_host or hello["depends_on_host"]
        self.watcher.begin()
        with self.context.host_watched(depends_on_host, moves=True) as host:
            pairs = self.step.lead(partner, host)
            end = partner.ask("end")
        # the partner is no foreign process: it belongs to the sweep
        self.watcher.check_and_end()
        facts = None
        if host:
            facts = host.facts(end["process_s"])
        void = self.compilation.compiled() or end["compiled"]
        result = DuetResult(pairs, facts, self.watcher.disturbance, void)
        partner.send("result", result=result.to_json())
        return result

    def follow(self, partner: Partner) -> DuetResult:
        partner.send("hello", depends_on_host=self.step.latency.depends_on_host)
        run_queue = RunQueue(all_threads=not self.context.on_cuda)
        began_s = time.process_time()
        self.watcher.begin()
        with closing(run_queue):
            self.step.follow(partner, run_queue)
        self.watcher.look()
        process_s = time.process_time() - began_s
        answer = partner.ask("end", process_s=process_s, compiled=self.compilation.compiled())
        return DuetResult.from_json(answer["result"])
