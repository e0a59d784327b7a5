"""The trial of a rank that follows: up to the check it does the same as the leader's, and then what
the leader orders."""

from __future__ import annotations

from dataclasses import replace

from effbench.core.message import Json
from effbench.core.printable import describe
from effbench.measure import memory, timing
from effbench.measure.led_step import FollowedOrders, OrderKind
from effbench.worker import pairing
from effbench.worker.ranks import END, FollowingRank, facts_of
from effbench.worker.trial import CHECK, FACTS, RunningTrial
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
            seed = self.cell.numerics.get("seed", 0) + RANK_SEED * self.ranks.rank
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
            self.ranks.shared,
            self.ranks.rank,
            self.device,
            workload.inputs.timed,
            workload.kept,
        )
        self.calls.steps[OrderKind.OWN] = workload.step
        tasks = {
            "phase": self.enter,
            "watch": self.watch,
            "disturbance": self.report_disturbance,
            FACTS: self.report_facts,
            CHECK: self.check,
            pairing.BASELINE: self.prepare_baseline,
            END: self.report_end,
        }
        with timing.no_garbage_collection():
            self.ranks.serve(self.calls, tasks)

    def judge(self) -> None:
        """The leader judges the trial."""

    # --- tasks

    def enter(self, message: Json) -> Json:
        """Announce the leader's phase as this process's."""
        self.trial.phase = message["name"]
        self.context.pipe.send(phase=message["name"])
        return {}

    def watch(self, message: Json) -> Json:
        """Begin to monitor the GPU."""
        self.watcher.restart()
        self.watcher.begin()
        return {}

    def report_disturbance(self, message: Json) -> Json:
        """Tell what has disturbed the GPU since `watch`."""
        self.watcher.check_and_end()
        disturbance = self.watcher.disturbance
        if disturbance is None:
            return {"text": None}
        return {"kind": disturbance.kind, "text": disturbance.text}

    def report_facts(self, message: Json) -> Json:
        self.take_facts()
        return facts_of(self.trial)

    def check(self, message: Json) -> Json:
        return {"reason": self.workload.wrong_after_timing()}

    def prepare_baseline(self, message: Json) -> Json:
        """Prepare the baseline, if possible."""
        workload = self.workload
        try:
            step = pairing.prepare_baseline(
                self.request.baseline or {}, workload, self.request.cache_dir
            )
        except Exception as error:  # as in the leader, this leaves the trial without pairs
            return {"reason": describe(error)}
        workload.restore_state(workload.module)
        workload.restore_state(workload.ran)
        self.calls.steps[OrderKind.BASELINE] = step
        return {"reason": None}

    def report_end(self, message: Json) -> Json:
        return {"reason": self.degraded_reason()}
