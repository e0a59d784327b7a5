"""The trial of a rank that follows: up to the check it does the same as the leader's, and then what
the leader orders."""

from __future__ import annotations

from dataclasses import replace

from effbench.core.message import Json
from effbench.core.printable import describe
from effbench.measure import memory, timing
from effbench.measure.led_step import FollowedOrders, OrderKind
from effbench.worker import pairing
from effbench.worker.context import CompilationWatch
from effbench.worker.ranks import FollowingRank, Task, facts_of
from effbench.worker.trial import RunningTrial
from effbench.workloads.base import make_sets

#: Distance between the seeds of two ranks' batches.
RANK_SEED = 15_485_863


class FollowingTrial(RunningTrial):
    """The phases of a trial in a process that follows. Its record only tells how it ended."""

    ranks: FollowingRank

    def build(self) -> None:
        """Build what the leader builds. If each rank has batches of its own, those that are timed
        are others."""
        super().build()
        if self.parallel is not None and self.parallel.has_own_batches:
            seed = self.cell.numerics.get("seed", 0) + RANK_SEED * self.ranks.request.rank
            cell = replace(self.cell, numerics={**self.cell.numerics, "seed": seed})
            workload = self.workload
            timed = make_sets(cell, workload.specs, self.rules.input_sets)
            workload.inputs = replace(workload.inputs, timed=timed)

    def measure(self) -> None:
        """Prepare the step, then make the calls and do the tasks that the leader wants, until the
        end."""
        self.prepare_and_check()
        workload = self.workload
        workload.keep_inputs()
        memory.reset_peaks(self.device)
        if self.on_cuda:
            timing.shorten_gaps()
        self.calls = FollowedOrders(
            self.ranks.request,
            self.ranks.look,
            self.device,
            workload.inputs.timed,
            workload.kept,
        )
        self.calls.steps[OrderKind.OWN] = workload.step
        with timing.no_garbage_collection():
            self.ranks.serve(self.calls, self.do)

    def judge(self) -> None:
        """The leader judges the trial."""

    # --- tasks

    def do(self, task: Task, message: Json) -> None:
        """Do what the leader asks for, and answer."""
        answer = self.ranks.answer
        match task:
            case Task.PHASE:
                self.trial.phase = message["name"]
                self.context.pipe.send(phase=message["name"])
                answer()
            case Task.WATCH:
                self.compilation = CompilationWatch(self.ranks)
                self.watcher.restart()
                self.watcher.begin()
                answer()
            case Task.COMPILED:
                answer(reason=self.compilation.compiled_here())
            case Task.DISTURBANCE:
                self.report_disturbance()
            case Task.FACTS:
                self.take_facts()
                answer(**facts_of(self.trial))
            case Task.CHECK:
                answer(reason=self.workload.wrong_after_timing())
            case Task.BASELINE:
                self.prepare_baseline()
            case Task.END:
                answer(reason=self.degraded_reason())

    def report_disturbance(self) -> None:
        """Tell what has disturbed the GPU since the task WATCH."""
        self.watcher.check_and_end()
        disturbance = self.watcher.disturbance
        if disturbance is None:
            self.ranks.answer(reason=None)
            return
        self.ranks.answer(reason=f"on its GPU: {disturbance.text}", kind=disturbance.kind)

    def prepare_baseline(self) -> None:
        """Prepare the baseline. A failure leaves the trial without pairs, unless this rank fails
        alone: then the others wait for it."""
        workload = self.workload
        try:
            step = pairing.prepare_baseline(
                self.request.baseline or {}, workload, self.request.cache_dir
            )
        except Exception as error:
            self.ranks.answer(reason=describe(error))
            if self.ranks.is_awaited():
                raise
            return
        workload.restore_state(workload.module)
        workload.restore_state(workload.ran)
        self.calls.steps[OrderKind.BASELINE] = step
        self.ranks.answer(reason=None)
