"""Run a trial in a child of the fork server: build, reference, prepare, check, warm up, time."""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from effbench import streams
from effbench.cell import Cell, Status, Trial, mode_settings
from effbench.cores import physical_cores
from effbench.measure import counters, memory, timing, watch
from effbench.measure.duet import LATENCY, PERIOD, DuetResult, figures_of
from effbench.measure.gpu import Gpu
from effbench.measure.host import HostWatch
from effbench.measure.pairs import Pairs
from effbench.measure.profile import CALLS, profile
from effbench.measure.serving import serve
from effbench.meeting import DUET, PartnerLostError
from effbench.message import DEVICE_PHASE, DUET_PHASE, TURN_PHASE, TrialRequest
from effbench.metrics import significant
from effbench.models.build import build_module, declared_inputs, resolve_target, set_numerics
from effbench.models.inputs import Batch
from effbench.models.signature import module_mismatch
from effbench.models.spec import parse_inputs
from effbench.modes import inductor
from effbench.modes.base import Mode, uses_dynamo
from effbench.printable import describe
from effbench.worker import artifacts, failures, generation, quantization, state
from effbench.worker.duets import Duet
from effbench.worker.failures import Ended
from effbench.worker.first_call import first_success
from effbench.worker.generation import Generation
from effbench.worker.pairing import OWN_PART, BaselineStep, Pairing, forget_pairs, unpaired
from effbench.worker.training import Training
from effbench.worker.workload import (
    Inference,
    batch_sizes_of,
    copies,
    has_lengths,
    latency_facts,
    make_sets,
    sizes_of,
    varied_dims,
)

TRACED_MS = 50.0
COPY_BUDGET_S = 0.02
# where the protocol has none: then disturbed samples count, but they are still told apart
HOST_TOLERANCE = 0.1


def run(payload: dict[str, Any], say_phase: Callable[[str], None]) -> dict[str, Any]:
    """Run the trial of a TrialRequest as JSON, and return its Trial as JSON."""
    running = RunningTrial(TrialRequest(**payload), say_phase)
    trial = running.trial
    try:
        running.run()
    except Ended as ended:
        trial.status, trial.reason = ended.status, ended.reason
    except SystemExit:  # the module may end its process
        raise
    except BaseException as error:  # user code may raise anything
        trial.status, trial.reason = failures.classify(error, trial.phase)
        trial.extra["traceback"] = failures.traceback_tail(error)
    for name in (
        ("warmup", "timing") if running.request.is_ahead else ("build", "check", "warmup", "timing")
    ):
        setattr(trial, f"{name}_s", running.seconds.get(name))
    if running.is_ahead:
        trial.prepare_s = trial.first_call_s = trial.compile_s = None
    trial.extra["phase_seconds"] = {
        name: round(value, 6) for name, value in running.seconds.items()
    }
    return trial.to_json()


class RunningTrial:
    """The phases of a trial in order, and their shared state. Each phase sets its fields of
    `trial`."""

    def __init__(self, request: TrialRequest, say_phase: Callable[[str], None]) -> None:
        self.request, self.say_phase, self.seconds, self.is_ahead = (
            request,
            say_phase,
            {},
            request.is_ahead,
        )
        self.cell = cell = Cell.from_params(request.cell)
        self.trial = Trial(
            cell.key, request.round, Status.OK, attempt=request.attempt, pid=os.getpid()
        )
        self.device = torch.device(cell.device)
        self.on_cuda = self.device.type == "cuda"
        self.synchronize = timing.synchronizer(self.device)
        self.rules = timing.Rules.of(request.protocol)
        self.is_open_loop = cell.stream is not None and "rate" in cell.stream
        # Inductor's folder outside trials
        self.user_cache = inductor.use_caches_in(request.cache_dir)

    def phase(self, name: str, part: Callable[[], Any]) -> Any:
        """Run a part of the trial as this phase: announce it, which locates a crash, and add up its
        seconds."""
        self.trial.phase = name
        self.say_phase(name)
        start = time.perf_counter()
        try:
            return part()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def run(self) -> None:
        self.phase(DEVICE_PHASE, self.take_device)
        self.phase("setup", self.set_up)
        if self.request.turn and not self.is_ahead:
            self.phase(TURN_PHASE, self.take_turn)
        # not in inference mode, whose tensors cannot be ordinary parameters
        self.phase("build", self.build)
        self.observer = counters.Observer(uses_dynamo(self.mode))
        with ExitStack() as entered:
            entered.enter_context(self.observer)
            references = self.phase("check", partial(self.workload.reference, self.checked))
            # eager's calls have shown which one the module allows
            entered.enter_context(self.workload.context())
            memory.reset_peaks(self.device)
            self.phase("prepare", self.prepare)
            self.trial.prepare_peak_allocated_bytes, _ = memory.peaks(self.device)
            self.phase("check", partial(self.workload.check, self.step, self.checked, references))
            if self.mode.compiles:
                self.trial.compile_cache = (
                    self.prepared.compile_cache or counters.read().cache_state
                )
            for given in (*self.inputs, *self.checked):
                self.workload.renew(given)
            if self.is_ahead:
                self.phase(TURN_PHASE, self.take_turn)
            memory.reset_peaks(self.device)
            timer = timing.Timer(
                self.step, self.inputs, self.device, self.rules, self.watcher, self.whole
            )
            timer.renew = self.workload.renew if self.workload.written else None
            if self.cell.generate:
                timer.sample = self.step.sample
            self.phase("warmup", partial(self.warm_up, timer))
            if self.on_cuda and (error := self.phase("warmup", timing.shorten_gaps)):
                self.trial.extra["context_error"] = error
            self.time(timer)
            self.phase("facts", self.take_facts)
            wrong = self.phase(
                "check", partial(self.workload.after_timing, self.step, self.checked, references)
            )
            if self.request.baseline and wrong is None and self.compiled is None:
                self.phase("pairs", partial(self.take_pairs, timer))
            if self.request.protocol.get("profile") and self.on_cuda:
                self.phase("profile", self.take_profile)
        facts = self.trial.extra["facts"] = self.prepared.all_facts()
        if self.cell.stream:
            served = self.served.facts() if self.is_open_loop else None
            facts["stream"] = latency_facts(
                self.trial.samples["latency_ms"], self.cell.stream["sizes"], served
            )
        if self.cell.generate:
            facts["generation"] = self.workload.figures(self.trial.samples["latency_ms"])
        if self.request.artifacts:
            collect = partial(
                artifacts.collect, self.request, self.trial, self.workload, self.step, self.inputs
            )
            self.phase("artifacts", collect)
        self.judge(wrong)

    def take_device(self) -> None:
        """Prepare the device before any user code runs; a failure here is retried."""
        if self.request.cores:  # no other trial runs on them
            os.sched_setaffinity(0, self.request.cores)
        threads = self.cell.threads or min(
            torch.get_num_threads(), len(physical_cores(os.sched_getaffinity(0)))
        )
        torch.set_num_threads(threads)
        self.trial.threads = threads
        self.threads = threads if self.on_cuda and self.request.is_ahead else None
        if self.threads:  # threads of several trials on the same cores wait for each other
            torch.set_num_threads(1)
        if self.on_cuda and not torch.cuda.is_available():
            # the probe may have seen the GPU
            status = Status.ERROR if self.request.gpu_uuid else Status.UNSUPPORTED
            raise Ended(status, "device=cuda, but torch sees no CUDA device")
        self.gpu = Gpu.open(self.request.gpu_uuid if self.on_cuda else None)
        self.watcher = watch.GpuWatch(self.gpu, self.device)
        follows = self.request.duet is not None and not self.request.duet.leads
        if not self.request.turn and not follows:  # else other trials of this sweep may be at work
            self.watcher.wait_until_free(self.request.foreign_wait_s)
        if self.on_cuda:
            torch.empty(1, device=self.device)  # creates the CUDA context

    def take_turn(self) -> None:
        """Wait for the turn on this device. It lasts until the process ends; meanwhile the sweep
        stops the others."""
        fcntl.flock(
            os.open(self.request.turn, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX
        )
        # None: they are unknown, as in a container
        self.watcher.shared = self.gpu.foreign_pids() != set()

    def set_up(self) -> None:
        set_numerics(self.cell.numerics)
        mode = self.mode = resolve_target(self.cell.mode["_target_"])(
            **mode_settings(self.cell.mode)
        )
        self.trial.compilation = self.request.compilation if mode.compiles else None
        # other trials would mislead autotuning, which warm caches spare
        self.is_ahead &= not (mode.autotunes and self.request.is_cold)
        if reason := unsupported(self.cell, mode, self.device):
            raise Ended(Status.UNSUPPORTED, reason)
        if inductor.writes_cpp(mode, self.device):
            inductor.learn_vector_instructions(self.user_cache)
        if self.on_cuda:
            memory.reset_peaks(self.device)

    def build(self) -> None:
        cell, mode, protocol = self.cell, self.mode, self.request.protocol
        dtype, seed = getattr(torch, cell.dtype), cell.numerics.get("seed", 0)
        module = build_module(cell.model["module"], dtype, self.device, seed)
        named = {
            spec["name"]: {k: v for k, v in spec.items() if k != "name"}
            for spec in cell.model["inputs"]
        }
        specs, sets = parse_inputs(named or declared_inputs(module)), protocol.get("input_sets", 3)
        passed = {name: spec.keyword for name, spec in specs.items()}
        if reason := module_mismatch(module, passed):
            raise Ended(Status.ERROR, f"in build: {reason}")
        # the first call makes the weights
        if any(map(torch.nn.parameter.is_lazy, module.parameters())):
            ((args, kwargs), *_), _ = make_sets(cell, specs, 1, dtype, self.device, seed)
            first_success(partial(module, *args, **kwargs))
        if cell.numerics.get("channels_last"):
            # as Module.to, which fails if there are 5-d weights
            module._apply(
                lambda it: it.to(memory_format=torch.channels_last) if it.dim() == 4 else it
            )
        if kind := cell.numerics.get("quantize"):
            (given, *_), _ = make_sets(cell, specs, 1, dtype, self.device, seed)
            quantized = self.trial.extra["quantized"] = quantization.quantize(module, kind, given)
            self.trial.quantization_error = quantized["error"]
        mode.batch = Batch.of(specs, batch_sizes_of(cell), varied_dims(cell, specs))
        if cell.phase == "training":
            self.workload = Training(cell, mode, module, self.trial, protocol.get("check_steps", 5))
        elif cell.phase == "generate":
            self.workload = Generation(cell, mode, module, self.trial, [*specs])
        else:
            self.workload = Inference(cell, mode, module, self.trial)
        given = generation.prompts(specs, cell) if cell.generate else specs
        sets = max(2, sets) if cell.generate else sets  # a stale cache shows only if prompts differ
        self.inputs, self.checked = make_sets(cell, given, sets, dtype, self.device, seed)
        self.whole = len(sizes_of(cell))
        self.workload.names = [name for name, spec in specs.items() if not spec.keyword]
        self.synchronize()
        self.trial.build_peak_allocated_bytes, _ = memory.peaks(self.device)
        mode.cache_dir = self.request.cache_dir

    def prepare(self) -> None:
        """Prepare the mode and make its settling calls, both timed. In a stream each size has
        settling calls, and a request makes several calls."""
        trial, mode, inputs = self.trial, self.mode, self.checked
        settling_calls = mode.settling_calls * (len(inputs) if self.cell.stream else 1)
        if self.cell.generate:
            settling_calls = math.ceil(settling_calls / (self.cell.generate["new_tokens"] - 1))
        args, kwargs = copies(inputs[0])
        if mode.stores_weights:
            mode.weights = state.digest(self.workload.module)
        # Dynamo compiles again if it changes later
        torch.set_num_threads(self.threads or torch.get_num_threads())
        start = time.perf_counter()
        self.prepared = self.workload.prepare(args, kwargs)
        self.synchronize()
        trial.prepare_s = time.perf_counter() - start
        step = self.step = self.prepared.step
        step(*args, **kwargs)
        self.synchronize()
        trial.first_call_s = time.perf_counter() - start
        for i in range(1, settling_calls):
            args, kwargs = copies(inputs[i % len(inputs)])
            step(*args, **kwargs)
        self.synchronize()
        trial.compile_s = time.perf_counter() - start if mode.compiles else None

    def warm_up(self, timer: timing.Timer) -> None:
        """Warm up and record it."""
        warmup = timer.warm_up()
        self.trial.warmup_calls = len(warmup.samples_ms)
        self.trial.steady = warmup.steady
        self.trial.samples["warmup_ms"] = warmup.samples_ms

    @property
    def host_tolerance(self) -> float:
        return self.request.protocol.get("host_tolerance") or HOST_TOLERANCE

    @property
    def spread(self) -> float:
        """Ratio of the bounds of a median from which its calls have several speeds."""
        return max(timing.SPREAD, 1 + self.host_tolerance)

    @property
    def has_period(self) -> bool:
        """Whether back-to-back calls are timed. Not on the CPU, and not of requests, because the
        host waits for their first token, or for their arrival."""
        return self.on_cuda and not self.cell.generate and not self.is_open_loop

    def time(self, timer: timing.Timer) -> None:
        """Time the step, in turn with another trial if it is a member of a duet. If a graph was
        compiled meanwhile, warm up and time it once more."""
        if self.request.duet is not None and self.took_duet(timer):
            self.compiled = None
            return
        for is_last in (False, True):
            self.before = counters.read()
            self.phase("timing", partial(self.take_timings, timer))
            self.compiled = compiled_between(self.before, counters.read())
            if self.compiled is None or is_last:
                return
            self.trial.extra["timed_again"] = self.compiled
            self.phase("warmup", partial(self.warm_up, timer))

    def took_duet(self, timer: timing.Timer) -> bool:
        """Time the step in turn with the other member of the duet. Return False if it has to be
        timed alone."""
        before = counters.read()

        def compiled() -> str | None:
            return compiled_between(before, counters.read())

        duet = self.duet = Duet(
            self.request.duet, timer, self.watcher, partial(self.host_watch, moves=True), compiled
        )
        self.forget_timing()
        try:
            self.phase("warmup", partial(duet.prepare, self.recent_ms, self.has_period))
            self.phase(DUET_PHASE, duet.meet)
            result = self.phase("timing", partial(self.take_duet, duet))
            why_alone = result.void
        except PartnerLostError as lost:
            why_alone = str(lost)
        if not duet.leads:
            self.phase(DUET_PHASE, duet.wait_for_leader)
        self.trial.extra[DUET] = duet.facts(why_alone)
        if why_alone is None:
            self.set_duet(result, duet)
            return True
        if compiled() is not None:
            self.trial.extra["timed_again"] = compiled()
            self.phase("warmup", partial(self.warm_up, timer))
        return False

    def take_duet(self, duet: Duet) -> DuetResult:
        """Time both members of the duet in turn. Raises PartnerLostError."""
        preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        gpu_before = self.gpu.read()
        result = duet.take()
        self.trial.extra["preempted"] = (
            resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - preempted
        )
        if self.on_cuda:
            self.trial.extra["gpu_before"], self.trial.extra["gpu_after"] = (
                gpu_before,
                self.gpu.read(),
            )
        return result

    def set_duet(self, result: DuetResult, duet: Duet) -> None:
        """Set what the series of the duet found, which is the same data in both members."""
        trial, watcher = self.trial, self.watcher
        is_alike = self.request.duet.is_alike
        found = {
            name: figures_of(pairs, self.rules, self.spread, is_alike)
            for name, pairs in result.pairs.items()
        }
        figures = {
            name: both.leader if duet.leads else both.follower for name, both in found.items()
        }
        trial.host_ms, trial.host_high_ms = result.host_ms, result.host_high_ms
        trial.disturbed_fraction = result.disturbed_fraction
        disturbance = result.disturbance
        for name, both in found.items():
            series = result.pairs[name]
            counts = trial.extra[DUET][name] = {
                "pairs": len(series.undisturbed),
                "disturbed": len(series.disturbed),
            }
            if series.disturbed:
                slow = figures_of(Pairs(series.disturbed), self.rules)
                of_slow = slow.leader if duet.leads else slow.follower
                counts["disturbed_ms"] = of_slow.median.value
                trial.samples[f"{name}_disturbed_ms"] = of_slow.timing.samples_ms
            if figures[name].is_marked:
                disturbance = disturbance or result.host_reason
            disturbance = disturbance or both.varies
        calls = duet.step.latency.calls_of(found[LATENCY].pairs)
        figures[LATENCY].timing.enqueue_ms = calls.enqueue_ms
        self.set_latency(figures[LATENCY], calls.samples_ms)
        if duet.step.period is not None:
            figures[PERIOD].timing.calls_per_block = duet.step.period.calls
            self.set_period(figures[PERIOD])
            for name, value in watcher.facts().items():
                setattr(trial, name, value)
            disturbance = disturbance or watch.busy_host(
                trial.latency_ms, trial.enqueue_ms, trial.period_ms
            )
        trial.disturbance = watcher.disturbance = disturbance

    @property
    def recent_ms(self) -> float:
        """About how long a call takes: the median of the newest ones of the warm-up."""
        return statistics.median(self.trial.samples["warmup_ms"][-10:])

    def take_timings(self, timer: timing.Timer) -> None:
        """Measure the latency and the period, if there is one, while watching the host and the
        GPU."""
        trial, watcher = self.trial, self.watcher
        self.forget_timing()
        preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        with self.host_watched(timer), timing.no_garbage_collection():
            gpu_before = self.gpu.read()
            timings = self.run_timers(timer)
            gpu_after = self.gpu.read()
        trial.extra["preempted"] = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - preempted
        if self.on_cuda:
            watcher.end()
            trial.discarded_blocks = len(watcher.discarded)
            if watcher.discarded:
                trial.extra["discarded"] = watcher.discarded
            trial.extra["gpu_before"], trial.extra["gpu_after"] = gpu_before, gpu_after
        figures = self.figures_of(timings, timer.host)
        self.set_latency(figures["latency"])
        if self.has_period:
            self.set_period(figures["period"])
            for name, value in watcher.facts().items():
                setattr(trial, name, value)
        # the two medians of a stream may come from different batch sizes
        if self.has_period and not self.cell.stream and watcher.disturbance is None:
            watcher.disturbance = watch.busy_host(
                trial.latency_ms, trial.enqueue_ms, trial.period_ms
            )
        trial.disturbance = watcher.disturbance

    def forget_timing(self) -> None:
        """Remove what an earlier timing found and the next one may not find."""
        self.watcher.restart()
        for name in ("latency_disturbed_ms", "period_disturbed_ms"):
            self.trial.samples.pop(name, None)
        self.trial.extra.pop("discarded", None)
        self.trial.host_ms = self.trial.host_high_ms = self.trial.disturbed_fraction = None

    def run_timers(self, timer: timing.Timer) -> dict[str, timing.Timing]:
        """Run the timers and return their samples by name."""
        budget_s = self.rules.budget_s * (OWN_PART if self.request.baseline else 1)
        self.watcher.begin()
        if self.is_open_loop:
            stream = self.cell.stream
            seconds = min(budget_s, self.rules.max_samples / stream["rate"])
            arrivals_s = streams.arrival_times(stream["rate"], stream["seed"], seconds)
            self.served = serve(timer, arrivals_s, seconds)
            return {"latency": self.served}
        if not self.has_period:
            return {"latency": timer.latency(budget_s)}
        latency = timer.latency(budget_s / 2)
        self.watcher.begin()
        return {"latency": latency, "period": timer.period(budget_s / 2)}

    def figures_of(
        self, timings: dict[str, timing.Timing], host: HostWatch | None
    ) -> dict[str, timing.Figure]:
        """Return what the timers found, record the samples that do not count, and mark the trial if
        too few do."""
        trial, watcher, least = self.trial, self.watcher, self.rules.min_samples
        slowdown = host.slowdown if host else 1.0
        discards = self.rules.discards
        figures = {
            name: measured.figure(least, discards, slowdown, self.spread)
            for name, measured in timings.items()
        }
        is_marked = any(figure.is_marked for figure in figures.values())
        can_be_gpu_bound = self.has_period and not watcher.discarded and not self.cell.stream
        if host and is_marked and can_be_gpu_bound:
            every = timing.without_host(timings["latency"], timings["period"])
            if every:
                trial.host_ms = trial.host_high_ms = trial.disturbed_fraction = None
                latency, period = every
                return {
                    "latency": latency.figure(least, discards, slowdown=1.0),
                    "period": period.figure(least, discards, slowdown=1.0),
                }
        for name, measured in timings.items():
            if measured.disturbed_ms:
                trial.samples[f"{name}_disturbed_ms"] = measured.disturbed_ms
        if not is_marked and watcher.disturbance is None:
            watcher.disturbance = self.variation(figures)
        if not is_marked and host and host.crowding is not None:
            watcher.disturbance = host.crowding
            figures = {name: figure.down_to_fastest() for name, figure in figures.items()}
        if is_marked and watcher.disturbance is None:
            is_by_gpu = watcher.discarded and not (host and host.disturbed_fraction)
            watcher.disturbance = (
                watcher.discarded[-1] if is_by_gpu or host is None else host.reason()
            )
        return figures

    def variation(self, figures: dict[str, timing.Figure]) -> str | None:
        """Return that calls of the same size had several speeds, or None.

        Not every hypervisor tells how much of the CPU other virtual machines take.
        """
        if self.cell.stream or self.cell.generate:  # their calls differ by themselves
            return None
        for name, figure in figures.items():
            if figure.varies:
                low, high = significant(figure.median.low, 3), significant(figure.median.high, 3)
                return f"unsteady: the median of the {name} is anywhere from {low} to {high} ms"
        return None

    def set_latency(self, figure: timing.Figure, calls_ms: list[float] | None = None) -> None:
        """Set the latency. `calls_ms`: the times of single calls, if the samples are not."""
        trial, samples = self.trial, figure.timing.samples_ms
        calls = samples if calls_ms is None else calls_ms
        trial.samples["latency_ms"] = samples
        trial.latency_ms, trial.latency_samples = figure.median.value, len(samples)
        trial.latency_median_low_ms, trial.latency_median_high_ms = (
            figure.median.low,
            figure.median.high,
        )
        trial.latency_min_ms = min(calls)
        trial.latency_p95_ms, trial.latency_p99_ms = (
            float(value) for value in np.quantile(calls, (0.95, 0.99))
        )
        if self.has_period:
            trial.enqueue_ms = statistics.median(figure.timing.enqueue_ms)

    def set_period(self, figure: timing.Figure) -> None:
        trial, samples = self.trial, figure.timing.samples_ms
        trial.samples["period_ms"] = samples
        trial.period_ms, trial.period_samples = figure.median.value, len(samples)
        trial.period_median_low_ms, trial.period_median_high_ms = (
            figure.median.low,
            figure.median.high,
        )
        trial.calls_per_block = figure.timing.calls_per_block

    @contextmanager
    def host_watched(self, timer: timing.Timer) -> Iterator[None]:
        """Watch the host in this context, if the step depends on its speed."""
        if not timer.waits_for_host(self.recent_ms):
            timer.host = None
            yield
            return
        host = timer.host = self.host_watch()
        with host.watching():
            yield
        self.trial.host_ms, self.trial.host_high_ms = host.low_ms, host.high_ms
        self.trial.disturbed_fraction = host.disturbed_fraction

    def host_watch(self, moves: bool | None = None) -> HostWatch:
        """Return a watch of the host. `moves`: whether the calling thread may choose its core;
        None: on a GPU."""
        return HostWatch(
            self.request.host_ms,
            1 + self.host_tolerance,
            moves=self.on_cuda if moves is None else moves,
            all_threads=not self.on_cuda,
            usual_high_ms=self.request.host_high_ms,
            waits=self.rules.patience > 1.0,
        )

    def take_pairs(self, timer: timing.Timer) -> None:
        """Time the baseline and the mode in turn, if possible. A failure affects only the paired
        speedups."""
        trial, workload = self.trial, self.workload
        reason = unpaired(self.cell, workload)
        if reason is None:
            try:
                reason = self.pairs_of(timer)
            # the baseline may lack memory, or meet a state that it does not expect
            except Exception as error:
                reason = describe(error)
        if reason is not None:
            forget_pairs(trial, reason)

    def pairs_of(self, timer: timing.Timer) -> str | None:
        """Take the pairs, and return why they do not count, or None."""
        workload = self.workload
        baseline = BaselineStep.of(
            self.request.baseline, workload.module, self.checked, self.device
        )
        if baseline.missing is not None:
            return baseline.missing
        baseline.prepare(self.mode.batch, self.request.cache_dir)
        before = counters.read()
        for module in (workload.module, workload.ran, baseline.module):
            state.restore(module, workload.initial, self.device)
        pairing = Pairing(
            self.trial, baseline.step, timer, self.watcher, self.host_watch, self.spread
        )
        pairing.take(self.has_period)
        return compiled_between(before, counters.read())

    def take_facts(self) -> None:
        """Record counters, memory and processes."""
        trial, device = self.trial, self.device
        after = self.after = counters.read()
        if self.observer.dynamo:
            trial.graph_breaks, trial.recompiles = after.graph_breaks, after.recompiles
            trial.cudagraph_skips = after.cudagraph_skips
            trial.extra["graphs"] = after.graphs
            trial.extra["cache"] = {"hits": after.cache_hits, "misses": after.cache_misses}
            if after.break_reasons:
                trial.extra["graph_break_reasons"] = after.break_reasons
            if self.observer.cudagraph_skips:
                trial.extra["cudagraph_skip_reasons"] = list(self.observer.cudagraph_skips)
        trial.peak_allocated_bytes, trial.peak_reserved_bytes = memory.peaks(device)
        trial.graph_pool_bytes = memory.graph_pool_bytes(device)
        if (processes := self.gpu.processes()) is not None:
            trial.process_gpu_bytes = processes[os.getpid()]
            trial.foreign_processes = len(self.gpu.foreign_pids() or ())
        # Linux counts KiB
        trial.peak_host_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self.prepared.copy_inputs is not None and self.on_cuda:
            rules = replace(self.rules, load_s=COPY_BUDGET_S)
            copying = timing.Timer(self.prepared.copy_inputs, self.inputs, device, rules).period(
                COPY_BUDGET_S
            )
            trial.input_copy_ms = statistics.median(copying.samples_ms)

    def take_profile(self) -> None:
        """Profile some calls, and count the work of one eager call. A failure affects only these
        figures."""
        trial, cell = self.trial, self.cell

        def load() -> None:
            # if the GPU is the bottleneck, profile it under load, at the same clocks as in timing
            if trial.period_ms and trial.enqueue_ms < 0.7 * trial.period_ms:
                timing.load(
                    self.step,
                    itertools.cycle(self.inputs),
                    trial.calls_per_block,
                    self.rules.load_s,
                )

        try:
            # whole passes, long enough to average over clock changes, and at least CALLS calls; or
            # one request
            calls = max(CALLS, min(500, int(TRACED_MS / trial.period_ms))) if trial.period_ms else 1
            profiled = profile(
                self.step, self.inputs, math.ceil(calls / self.whole) * self.whole, load
            )
            trial.kernel_fingerprint = profiled.fingerprint
            if self.is_open_loop:  # the profiled batch sizes are not those that were served
                return
            trial.gpu_busy_ms, trial.kernels = profiled.busy_ms or None, profiled.kernels
            trial.extra["profile"] = profiled.facts
            # the work differs between calls, and a request makes many
            if cell.stream or cell.generate:
                return
            counted = self.workload.count(*copies(self.inputs[0]))
        # from the profiler, or from the module under the counter's dispatch mode
        except Exception as error:
            trial.extra["profile_failed"] = describe(error)
            return
        trial.flops, trial.min_bytes = counted.flops or None, counted.min_bytes

    def judge(self, wrong: str | None) -> None:
        """Raise Ended with the status, unless the trial is ok. `wrong`: what is wrong with the
        results."""
        if wrong:
            raise Ended(Status.INCORRECT, wrong)
        if self.compiled:
            raise Ended(Status.DEGRADED, f"{self.compiled}, twice: the times include compiling")
        if parts := self.observer.parts:
            self.trial.extra["cudagraph_parts"] = {"all": parts, "captured": self.observer.captured}
        reason = self.prepared.degraded or self.workload.degraded
        if reason := reason or self.observer.degraded_reason(self.after, self.device):
            raise Ended(Status.DEGRADED, reason)
        if self.is_open_loop and (reason := self.served.saturated()):
            raise Ended(Status.DEGRADED, reason)


def compiled_between(before: counters.Counters, after: counters.Counters) -> str | None:
    """Return that a graph was compiled between these readings, with the guard that failed if one
    did, or None."""
    if after.recompiles > before.recompiles:
        return f"a graph was compiled again while it was timed ({after.recompile_reason})"
    if after.graphs > before.graphs:
        return "a graph was compiled while it was timed"
    return None


def unsupported(cell: Cell, mode: Mode, device: torch.device) -> str | None:
    """Return why this mode cannot run this cell, or None."""
    if cell.phase not in mode.phases:
        return (
            f"the mode {cell.mode_name} does not support phase={cell.phase}; it supports"
            f" {', '.join(mode.phases)}"
        )
    if cell.phase == "training" and cell.numerics.get("quantize"):
        return "numerics.quantize does not support phase=training"
    cores = len(os.sched_getaffinity(0))
    if cell.threads is not None and cell.threads > cores:  # they would wait for each other
        return f"threads={cell.threads} needs as many cores, and this process may use {cores}"
    if reason := mode.missing(device):
        return reason
    if cell.stream and (mode.static_shape or (mode.static_lengths and has_lengths(cell))):
        if has_lengths(cell):
            return "this mode has one static length, but the stream has many: use stream=none"
        return (
            "this mode has one static shape, but a stream has many batch sizes: use bucketed-graph,"
            " or one bs"
        )
    names = [spec["name"] for spec in cell.model.get("inputs", ())]
    return generation.unsuitable(cell, names) if cell.generate and names else None
