"""The task of phase=coldstart: start fresh processes, and time them up to their first answer.

This process, which the fork server forked, supervises: it takes eager's reference, lets a fresh
process make the caches, starts the fresh processes that are timed, and compares their first answer
with the reference. The program of the fresh processes is `fresh.py`.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from effbench.core.cell import NO_CACHE, Cell, Status, mode_settings
from effbench.core.disturbances import Disturbance
from effbench.core.folders import cache_home
from effbench.core.message import DEVICE_PHASE, Json, MessagePipe, TrialRequest
from effbench.core.printable import count
from effbench.measure.accuracy import Parts, parts
from effbench.measure.cache_keys import differences
from effbench.measure.gradients import recording
from effbench.measure.host import CoreClock, CoreUse
from effbench.measure.samples import Timing
from effbench.measure.timing import LATENCY
from effbench.worker import why_marked
from effbench.worker.cold_caches import BUNDLE, PACKAGE, ColdCaches, Made, Versions
from effbench.worker.context import TrialContext
from effbench.worker.fresh_messages import CacheUse, FreshRequest
from effbench.worker.fresh_process import FreshRun, run_together
from effbench.worker.probe import version
from effbench.worker.step_times import StepTimes
from effbench.worker.trial import RunningTrial, record_of
from effbench.workloads import quantization, state
from effbench.workloads.base import copies
from effbench.workloads.endings import Ended, without_float64
from effbench.workloads.inference import Inference

#: Key in `Trial.extra` of what a cold start found besides its figures.
EXTRA = "coldstart"
#: The phase in which a fresh process makes the caches.
FILL = "fill"
#: A call is as fast as steady ones if it takes at most this many times their median, or no longer
#: than the slowest twentieth of them.
AS_FAST = 1.25
#: Variables with which the fork server keeps its children from hanging.
OF_SERVER = ("TORCH_WARM_POOL", "PYTORCH_NVML_BASED_CUDA_CHECK")
#: Variable with the folder in which servers keep bytecode where Python must not write any.
BYTECODE_FOLDER = "PYTHONPYCACHEPREFIX"
#: Modules that contain another module: of coldstart.change=constant, and of a library.
SCALED, NETWORK = "effbench.models.scaled.Scaled", "effbench.models.libraries.network"
#: The constant that scales outputs when the cache is made, and afterwards, with
#: coldstart.change=constant.
MADE_SCALE, SCALE = 2.0, 3.0
#: The rank of a process with coldstart.change=rank, among two.
RANK = 1
#: Why a cache was not used whose keys are the same, or of which torch does not tell the keys.
UNKNOWN = "a detail that torch does not log"
#: Kind of cache -> why compiled C++ code is not in it.
LACKS = {BUNDLE: " (a bundle has no compiled C++ code)"}
#: Values of `cache_reuse`.
WHOLE, PART, NONE = "whole", "part", "none"


def run_task(payload: Json, pipe: MessagePipe) -> Json:
    """Measure the cold start that a TrialRequest as JSON asks for, and return its Trial as
    JSON."""
    request = TrialRequest(**payload)
    cell = Cell(**request.cell)
    measured = measured_cell(cell)
    context = TrialContext(replace(request, cell=measured.params()), pipe)
    context.trial.cell_key = cell.key
    # eager's reference is that of the first inputs
    context.rules = replace(context.rules, input_sets=1)
    return record_of(context, lambda: RunningColdStart(context, filling_cell(cell)).perform())


def measured_cell(cell: Cell) -> Cell:
    """Return the cell that a process runs which uses the cache."""
    if cell.change == "bs":
        return replace(cell, bs=2 * cell.bs)
    if cell.change == "constant":
        return scaled_cell(cell, SCALE)
    return cell


def filling_cell(cell: Cell) -> Cell:
    """Return the cell that the process runs which makes the cache."""
    if cell.change == "constant":
        return scaled_cell(cell, MADE_SCALE)
    return cell


def scaled_cell(cell: Cell, scale: float) -> Cell:
    """Return the cell with a module whose outputs are multiplied by `scale`."""
    module = {
        "_target_": SCALED,
        "module": cell.model["module"],
        "scale": scale,
    }
    return replace(cell, model={**cell.model, "module": module})


def targets_of(module: Mapping[str, Any]) -> list[str]:
    """Return what importing a module and what it is made of means."""
    target = module["_target_"]
    targets = [target]
    if target == SCALED:
        targets += targets_of(module["module"])
    if target == NETWORK:
        targets.append(f"effbench.models.libraries.{module['library']}.network")
    return targets


class RunningColdStart:
    """A cold start. `cell`: what the measured processes run; `filling`: what the process runs that
    makes the caches. `reference`: eager's first answer; `made`: what made the caches; None without
    them; `use`: of the cores by others, while processes ran; `recompiled`: how many C++ libraries a
    measured process compiled."""

    reference: Parts
    use: CoreUse
    made: Made | None = None
    recompiled = 0

    def __init__(self, context: TrialContext, filling: Cell) -> None:
        self.context = context
        self.request = context.request
        self.cell = context.cell
        self.filling = filling
        self.trial = context.trial
        self.settings = context.cell.coldstart or {}
        self.cache = context.cell.cache or NO_CACHE
        self.eager = RunningTrial(context)
        self.extra: dict[str, Any] = {}

    def perform(self) -> None:
        """Measure the cold start, and compare the first answer with eager's."""
        self.trial.extra[EXTRA] = self.extra
        self.refuse()
        with self.context.phase(DEVICE_PHASE):
            self.eager.take_device()
        with self.context.phase("setup"):
            self.eager.set_up()
        with self.context.phase("build"):
            self.eager.build()
        with self.context.phase("check"):
            self.take_reference()
        with tempfile.TemporaryDirectory(prefix="effbench-cold-") as folder:
            place = Path(folder)
            caches = self.caches()
            with caches.locked():
                self.prepare_caches(caches, place)
                runs = self.measure(caches, place)
            self.extra["processes"] = [{"cold_s": run.cold_s, **run.seconds()} for run in runs]
            slowest = max(runs, key=lambda run: run.cold_s)
            self.record(slowest)
            with self.context.phase("check"):
                self.check(slowest.answer)
        if slowest.result.degraded:
            raise Ended(Status.DEGRADED, slowest.result.degraded)

    def refuse(self) -> None:
        """Raise Ended for what a cold start does not support."""
        reason = None
        if self.cell.numerics.get("quantize"):
            reason = "phase=coldstart does not support numerics.quantize"
        if self.cache == PACKAGE and self.cell.change == "bs":
            reason = "a package only accepts the batch size with which it was made"
        if self.cache == PACKAGE and self.settings.get("sizes", 1) > 1:
            reason = "a package has one batch size: use coldstart.sizes=1"
        if self.cell.change == "gpu" and self.request.other_gpu is None:
            reason = "coldstart.change=gpu needs a second GPU"
        if reason is not None:
            raise Ended(Status.UNSUPPORTED, reason)

    # --- the reference

    def take_reference(self) -> None:
        """Keep eager's first answer and the way in which its calls record gradients, and free the
        module's memory."""
        workload = self.eager.workload
        assert isinstance(workload, Inference)
        names = {name for name in state.read(workload.module) if name.kind != "parameter"}
        unused = state.save(workload.module, names)
        workload.take_reference()
        # the first answer is that of a module that was not called before
        state.restore(workload.module, unused, self.context.device)
        with workload.context():
            self.reference = workload.example_outputs()
        self.grad_mode = workload.grad_mode
        self.comparison = workload.comparison
        self.inputs = {name: asdict(spec) for name, spec in workload.specs.items()}
        self.release()

    def release(self) -> None:
        """Free the memory of the module."""
        del self.eager.workload
        gc.collect()
        if self.context.on_cuda:
            torch.cuda.empty_cache()

    def check(self, path: Path) -> None:
        """Compare the first answer of a process, which is in this file, with eager's. Raises Ended
        if it is wrong."""
        # the process may have used another GPU
        answer: Parts = torch.load(path, map_location=self.context.device, weights_only=False)
        verdict = self.comparison.compare(answer, self.reference)
        self.trial.rel_error = verdict.error
        reason = verdict.reason
        if reason is not None and verdict.only_values:
            reason = self.wrong_in_float64(answer, reason)
        if reason is not None:
            raise Ended(Status.INCORRECT, reason)

    def wrong_in_float64(self, answer: Parts, reason: str) -> str | None:
        """Return the reason, continued, unless the answer is about as close to the result in
        float64 as eager's."""
        self.eager.build()
        workload = self.eager.workload
        args, kwargs = copies(workload.inputs.checked[0], torch.float64)
        try:
            module = quantization.double(workload.module)
            with recording(self.grad_mode):
                exact = parts(module(*args, **kwargs))
        except Exception as error:  # a module may raise anything in an unexpected dtype
            return without_float64(reason, error)
        more = self.comparison.compare_with_float64(answer, self.reference, exact)
        return f"{reason}; {more}" if more else None

    # --- the caches

    def caches(self) -> ColdCaches:
        """Return the caches of this cell."""
        assert self.request.cache_dir is not None
        folder = Path(self.request.cache_dir)
        if self.cell.change == "constant":  # another module fills them
            folder = folder / self.cell.change
        return ColdCaches(folder)

    def prepare_caches(self, caches: ColdCaches, place: Path) -> None:
        """Set what made the caches that this cell uses, after making them if necessary."""
        if self.cache == NO_CACHE:
            return
        self.made = caches.made()
        if self.made is None:
            with self.context.phase(FILL):
                self.made = self.fill(caches, place)

    def fill(self, caches: ColdCaches, place: Path) -> Made:
        """Let a fresh process make the caches."""
        caches.clear()
        with caches.live(NO_CACHE) as live:
            request = self.fresh_request(self.filling, live)
            request = replace(request, save_bundle=str(caches.bundle))
            (run,) = self.run([request], self.environment(live), place / "fill")
            caches.keep(live)
        use = run.result.cache or CacheUse()
        made = Made(self.versions(), caches.sizes(), use.keys)
        caches.write(made)
        return made

    def versions(self) -> Versions:
        """Return what compiled code depends on here."""
        triton = None
        gpu = None
        if self.context.on_cuda:
            gpu = torch.cuda.get_device_name()
            triton = version("triton")
        return Versions(torch.__version__, triton, torch.version.cuda, gpu)

    # --- the processes

    def measure(self, caches: ColdCaches, place: Path) -> list[FreshRun]:
        """Run the fresh processes, and return what they found."""
        with caches.live(self.cache, is_moved=self.cell.change == "folder") as live:
            before = set(live.rglob("*.so"))
            request = self.changed_request(self.fresh_request(self.cell, live), caches)
            requests = [request] * self.settings.get("processes", 1)
            environment = self.environment(live) | self.changed_environment()
            with self.context.phase("timing"):
                runs = self.run(requests, environment, place / "measured")
            self.recompiled = len(set((live / "inductor").rglob("*.so")) - before)
        return runs

    def fresh_request(self, cell: Cell, live: Path) -> FreshRequest:
        """Return what a fresh process does for a cell, without a cache to load."""
        sizes = range(self.settings.get("sizes", 1))
        return FreshRequest(
            module=cell.model["module"],
            attention=cell.model.get("attention"),
            imports=targets_of(cell.model["module"]),
            inputs=self.inputs,
            mode=cell.mode["_target_"],
            settings=mode_settings(cell.mode),
            # from the largest one, so that the memory of smaller ones is there
            batch_sizes=[cell.bs * 2**size for size in reversed(sizes)],
            dtype=cell.dtype,
            device=cell.device,
            numerics=cell.numerics,
            grad_mode=self.grad_mode,
            threads=self.trial.threads or 1,
            cache_dir=str(live),
            protocol=self.request.protocol,
        )

    def changed_request(self, request: FreshRequest, caches: ColdCaches) -> FreshRequest:
        """Return the request of a measured process: with the cache to load, and the change."""
        if self.cache == BUNDLE and caches.bundle.is_file():
            request = replace(request, bundle=str(caches.bundle))
        if self.cache == PACKAGE:
            request = replace(request, package=str(caches.package), imports=[])
        if self.cell.change == "gpu":
            request = replace(request, gpu_index=1)
        if self.cell.change == "rank":
            request = replace(request, rank=RANK)
        return request

    def environment(self, live: Path) -> dict[str, str]:
        """Return the variables of a fresh process."""
        variables = without_servers(os.environ, self.cell.env)
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(live / "inductor")
        variables["TRITON_CACHE_DIR"] = str(live / "triton")
        return variables

    def changed_environment(self) -> dict[str, str]:
        """Return the variables that differ from when the cache was made."""
        if self.cell.change == "gpu":
            visible = [os.environ.get("CUDA_VISIBLE_DEVICES", "0"), str(self.request.other_gpu)]
            return {"CUDA_VISIBLE_DEVICES": ",".join(visible)}
        if self.cell.change == "rank":
            return {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": "2"}
        return {}

    def announce(self, part: str) -> None:
        """Announce a part of the measured processes as a phase."""
        if self.trial.phase != FILL:
            self.trial.phase = part
            self.context.pipe.send(phase=part)

    def run(
        self,
        requests: list[FreshRequest],
        environment: Mapping[str, str],
        folder: Path,
    ) -> list[FreshRun]:
        """Run fresh processes at the same time. Raises Ended if one failed."""
        folder.mkdir()
        clock = CoreClock(os.sched_getaffinity(0))
        runs = run_together(requests, environment, folder, self.announce)
        use = clock.read()
        for run in runs:
            if run.failure is not None:
                run.failure.record(self.trial)
                raise Ended(self.trial.status, run.failure.reason)
        self.use = use.without(sum(run.result.cpu_s for run in runs))
        return runs

    # --- figures

    def record(self, run: FreshRun) -> None:
        """Set the figures of the trial: those of the slowest process."""
        trial, result = self.trial, run.result
        trial.cold_s = run.cold_s
        for part, seconds in run.seconds().items():
            setattr(trial, f"cold_{part}_s", seconds)
        disturbance = self.disturbance_of(result.waited_s)
        timing = Timing(result.steady_ms)
        figure = timing.figure(self.context.rules)
        if disturbance is not None:
            figure = figure.down_to_fastest()
        StepTimes({LATENCY: figure}, timing, disturbance=disturbance).record(trial)
        trial.steady_call = steady_call(
            [result.sizes[-1].s * 1e3, *result.calls_ms], result.steady_ms
        )
        trial.peak_host_bytes = result.peak_host_bytes
        trial.peak_allocated_bytes = result.peak_allocated_bytes
        trial.peak_reserved_bytes = result.peak_reserved_bytes
        trial.graph_pool_bytes = result.graph_pool_bytes
        if self.made is not None:
            self.record_cache(self.made, result.cache)
        self.extra["calls_ms"] = result.calls_ms
        self.extra["sizes"] = [asdict(size) for size in reversed(result.sizes)]

    def disturbance_of(self, waited_s: float) -> Disturbance | None:
        """Return why the times are marked because others used the cores, or None. `waited_s`: how
        long the main thread waited for one."""
        # processes that start at once also wait for each other
        fraction = min(waited_s, self.use.others_s) / (self.trial.cold_s or 1.0)
        self.trial.disturbed_fraction = fraction
        rules, on_cuda = self.context.rules, self.context.on_cuda
        return why_marked.of_cold_start(self.use, fraction, rules, on_cuda)

    def record_cache(self, made: Made, use: CacheUse | None) -> None:
        """Set how much of its cache the process used, and why not all of it."""
        trial = self.trial
        trial.cache_bytes = made.bytes.get(self.cache)
        trial.cache_reuse = WHOLE  # of a package, which has no keys
        reasons: list[str] = []
        if use is not None:
            trial.cache_hits, trial.cache_misses = use.hits, use.misses
            if use.misses or not use.hits:
                trial.cache_reuse = PART if use.hits else NONE
                reasons = self.missed(made, use)
            elif self.recompiled:
                trial.cache_reuse = PART
                reasons = [f"{count(self.recompiled, 'C++ file')}{LACKS.get(self.cache, '')}"]
        self.extra["missed"] = reasons

    def missed(self, made: Made, use: CacheUse) -> list[str]:
        """Return why the process did not use all of its cache."""
        reasons = made.versions.differences(self.versions()) + differences(made.keys, use.keys)
        return list(dict.fromkeys(reasons + use.bypasses)) or [UNKNOWN]


def without_servers(variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this process as a user's program has them, without those that the
    fork server has added. `given`: those of the cell, which stay."""
    users = {name: variables[name] for name in variables if name not in OF_SERVER or name in given}
    # torch may have no bytecode, which then is compiled at every start
    if users.get(BYTECODE_FOLDER) == str(cache_home() / "bytecode"):
        del users[BYTECODE_FOLDER]
        users["PYTHONDONTWRITEBYTECODE"] = "1"
    return users


def steady_call(calls_ms: list[float], steady_ms: list[float]) -> int | None:
    """Return the number of the first call, from 1, that is as fast as those in the steady state;
    None if none of these calls is."""
    slowest_ms = float(np.quantile(steady_ms, 0.95))
    limit_ms = max(AS_FAST * statistics.median(steady_ms), slowest_ms)
    for number, ms in enumerate(calls_ms, 1):
        if ms <= limit_ms:
            return number
    return None
