"""Run a trial in a child of the fork server: build, reference, prepare, check, warm up, time, take
pairs, profile. Of a trial with several ranks this is the process that leads it, and
`worker/following.py` the others.

`RunningTrial.judge` decides whether it is `degraded`. A cell is `degraded` if that is the worst
status of its trials (`CountedTrials.decisive` in `store/summary.py`), in the order of
`core.cell.SEVERITY`. `mark_noisy` (`store/source.py`) decides for imported trials of earlier
versions.
"""

from __future__ import annotations

import faulthandler
import math
import os
import resource
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from effbench.core.cell import COLDSTART, Cell, Status, mode_settings
from effbench.core.cores import physical_cores
from effbench.core.errors import UnsupportedError
from effbench.core.message import DEVICE_PHASE, LOST_RANK, Json, MessagePipe, TrialRequest
from effbench.core.parallel import NONE, Parallel
from effbench.measure import counters, memory, profile, timing
from effbench.measure.cold_parts import CaptureClock
from effbench.measure.gpu import Gpu
from effbench.measure.trace import attention_kernels, collective_times, record_calls, trace_of
from effbench.measure.watch import GpuWatch
from effbench.models.build import build_module_of, resolve_target, set_numerics
from effbench.models.inputs import Step
from effbench.models.spec import parse_inputs
from effbench.modes import inductor
from effbench.modes.base import Example, Mode, Prepared, uncacheable
from effbench.worker import failures
from effbench.worker.context import TrialContext
from effbench.worker.pairing import add_pairs
from effbench.worker.ranks import Task, merge_facts, record_spread
from effbench.worker.step_timer import StepTimer
from effbench.worker.step_times import StepTimes
from effbench.workloads import quantization, state
from effbench.workloads.base import Workload, copies, finish_building, make_sets
from effbench.workloads.endings import Ended
from effbench.workloads.select import workload_of

TRACED_MS = 50.0
COPY_BUDGET_S = 0.02


def run_task(payload: Json, pipe: MessagePipe) -> Json:
    """Run the trial of a TrialRequest as JSON, and return its Trial as JSON."""
    # here, because that module imports this one
    from effbench.worker.following import FollowingTrial

    request = TrialRequest(**payload)
    if request.rank is not None:
        # the sweep asks for the stacks of ranks that hang
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    context = TrialContext(request, pipe)
    running = RunningTrial if context.ranks.leads else FollowingTrial
    return record_of(context, lambda: running(context).perform())


def record_of(context: TrialContext, perform: Callable[[], None]) -> Json:
    """Run what a trial does, and return its Trial as JSON, with the status and the reason of what
    it raised."""
    trial = context.trial
    try:
        perform()
    except Ended as ended:
        trial.status, trial.reason = ended.status, ended.reason
    except BaseException as error:  # user code may raise anything
        failures.failure_of(error, trial.phase).record(trial)
    if not trial.status.is_measured and context.request.rank is not None:
        trial.extra[LOST_RANK] = context.ranks.leave()
    seconds = context.seconds
    trial.build_s = seconds.get("build")
    trial.check_s = seconds.get("check")
    trial.warmup_s = seconds.get("warmup")
    trial.timing_s = seconds.get("timing")
    trial.extra["phase_seconds"] = {name: round(value, 6) for name, value in seconds.items()}
    return trial.to_json()


class RunningTrial:
    """The phases of a trial in order, and their shared state. Each phase sets its fields of
    `trial`. `ranks`: the processes that run the trial together. `wrong`: what is wrong with the
    step's results after timing, or None. `degraded`: why it did not
    run as its names say, or None. `compiler_counters`: after timing."""

    watcher: GpuWatch
    mode: Mode
    workload: Workload
    prepared: Prepared
    led_step: Step
    times: StepTimes
    wrong: str | None
    degraded: str | None
    observer: counters.Observer
    compiler_counters: counters.Counters

    def __init__(self, context: TrialContext) -> None:
        self.context = context
        self.request = context.request
        self.cell = context.cell
        self.rules = context.rules
        self.trial = context.trial
        self.ranks = context.ranks
        self.parallel = Parallel.parse(self.cell.parallel or NONE)
        self.device = context.device
        self.on_cuda = context.on_cuda
        self.synchronize = timing.synchronizer(context.device)

    def perform(self) -> None:
        with self.context.phase(DEVICE_PHASE):
            self.take_device()
            self.ranks.join()
        with self.context.phase("setup"):
            self.set_up()
        # not in inference mode, whose tensors cannot be parameters
        with self.context.phase("build"):
            self.build()
        self.observer = counters.Observer(
            self.mode.compiles and self.mode.uses_dynamo,
            flex=self.cell.model.get("attention") == "flex",
            leaves_parts=self.mode.leaves_parts,
            partition_ops=self.mode.partition_ops,
        )
        with self.observer:
            with self.context.phase("check"):
                self.workload.take_reference()
            if self.parallel is not None:
                with self.context.phase("split"):
                    self.workload.split(self.parallel)
                    self.ranks.barrier()
            with self.workload.context():  # eager's calls have shown which one the module allows
                self.measure()
        self.judge()

    def measure(self) -> None:
        """Prepare and time the step, and measure everything else about it."""
        self.prepare_and_check()
        self.ranks.lead()
        step_timer = StepTimer(self.context, self.workload, self.make_timer(), self.watcher)
        step_timer.warm_up()
        if self.on_cuda:
            with self.context.phase("warmup"):
                error = timing.shorten_gaps()
            if error:
                self.trial.extra["context_error"] = error
        self.times = step_timer.time()
        self.times.record(self.trial)
        record_spread(self.trial, self.times.calls)
        if step_timer.has_period:
            self.watcher.record(self.trial)
        with self.context.phase("facts"):
            with self.ranks.together(Task.FACTS) as others:
                self.take_facts()
            merge_facts(self.trial, others)
        with self.context.phase("check"):
            self.wrong = self.ranks.reason(Task.CHECK, self.workload.wrong_after_timing)
        if self.request.baseline and self.wrong is None and self.times.compiled is None:
            with self.context.phase("pairs"):
                add_pairs(self.request.baseline, step_timer, self.times.latency_ms)
        if self.rules.profile:
            with self.context.phase("profile"):
                if self.on_cuda:
                    with self.context.optional("profile_failed"):
                        self.take_profile()
                with self.context.optional("no_trace"):
                    self.take_trace()
        facts = self.workload.figures(self.times.latency_ms)  # which may be a reason
        self.trial.extra["facts"] = self.prepared.checked_facts() | facts
        self.degraded = self.ranks.reason(Task.END, self.degraded_reason)

    # --- preparation

    def take_device(self) -> None:
        """Prepare the device before any user code runs; a failure here is retried."""
        request = self.request
        if request.cores:  # no other trial runs on them
            os.sched_setaffinity(0, request.cores)
        threads = self.cell.threads
        if threads is None:
            cores = physical_cores(os.sched_getaffinity(0))
            threads = min(torch.get_num_threads(), len(cores))
        torch.set_num_threads(threads)
        self.trial.threads = threads
        gpu = Gpu()
        if self.on_cuda:
            if not torch.cuda.is_available():
                # the probe may have seen the GPU
                status = Status.ERROR if request.gpu_uuid else Status.UNSUPPORTED
                raise Ended(status, "device=cuda, but torch sees no CUDA device")
            gpu = Gpu.open(request.gpu_uuid)
        self.watcher = GpuWatch(gpu)
        if request.duet is None or request.duet.leads:  # else the leader is at work
            self.watcher.wait_until_free(request.foreign_wait_s)
        if self.on_cuda:
            torch.empty(1, device=self.device)  # creates the CUDA context

    def set_up(self) -> None:
        """Make the mode. Raises Ended if it cannot run this cell."""
        set_numerics(self.cell.numerics)
        make_mode = resolve_target(self.cell.mode["_target_"])
        mode = self.mode = make_mode(**mode_settings(self.cell.mode))
        self.trial.compilation = self.request.compilation if mode.compiles else None
        reason = unsupported(self.cell, mode, self.device)
        if reason is not None:
            raise Ended(Status.UNSUPPORTED, reason)
        if inductor.writes_cpp(mode, self.device):
            inductor.learn_vector_instructions()
        inductor.use_caches_in(self.request.cache_dir)
        if self.on_cuda:
            memory.reset_peaks(self.device)

    def build(self) -> None:
        """Build the module, the workload and its inputs."""
        cell, mode, trial = self.cell, self.mode, self.trial
        module = build_module_of(cell, self.device)
        described = {}
        for spec in cell.model["inputs"]:
            described[spec["name"]] = {key: spec[key] for key in spec if key != "name"}
        specs = parse_inputs(described or module.inputs)
        kind = workload_of(cell)
        finish_building(module, cell, specs)
        if cell.numerics.get("quantize"):
            example = make_sets(cell, specs, 1)[0]
            trial.quantization_error = quantization.quantize(
                module, cell.numerics["quantize"], example
            )
        self.workload = kind(cell, mode, module, trial, specs, self.rules.check_steps)
        self.workload.make_inputs(self.rules.input_sets)
        self.synchronize()
        trial.build_peak_allocated_bytes = memory.peaks(self.device).allocated_bytes

    def prepare_and_check(self) -> None:
        """Prepare the mode's step, and compare its results with eager's."""
        memory.reset_peaks(self.device)
        with self.context.phase("prepare"), self.observer.watching_flex():
            self.prepare()
        self.trial.prepare_peak_allocated_bytes = memory.peaks(self.device).allocated_bytes
        with self.context.phase("check"):
            self.workload.check()
        if self.mode.compiles:
            self.trial.compile_cache = self.prepared.compile_cache or counters.read().cache_state

    def prepare(self) -> None:
        """Prepare the mode and make its settling calls, both timed."""
        trial, mode, workload = self.trial, self.mode, self.workload
        args, kwargs = copies(workload.inputs.checked[0])
        example = Example(args, kwargs, workload.batch(), self.request.cache_dir)
        if mode.stores_weights:
            example = replace(example, weights=state.digest(workload.module))
        captures = CaptureClock()
        with captures.running():
            start = time.perf_counter()
            self.prepared = workload.prepare(example)
            self.synchronize()
            trial.prepare_s = time.perf_counter() - start
            workload.step(*args, **kwargs)
            self.synchronize()
            trial.first_call_s = time.perf_counter() - start
            self.make_settling_calls()
            if mode.compiles:
                trial.compile_s = time.perf_counter() - start
        if self.on_cuda:
            trial.cold_capture_s = captures.seconds

    def make_settling_calls(self) -> None:
        """Make the calls after the first one that still prepare."""
        inputs = self.workload.inputs.checked
        for number in range(1, self.workload.settling_calls()):
            args, kwargs = copies(inputs[number % len(inputs)])
            self.workload.step(*args, **kwargs)
        self.synchronize()

    # --- timing

    def make_timer(self) -> timing.Timer:
        """Return the timer of the step, after keeping the inputs that it writes to."""
        workload = self.workload
        workload.keep_inputs()
        memory.reset_peaks(self.device)
        inputs = workload.inputs.timed
        self.led_step = self.ranks.led(workload.step, inputs)
        kept = None
        if workload.written:
            kept = self.ranks.led_inputs(workload.kept)
        return timing.Timer(
            self.led_step,
            inputs,
            self.device,
            self.rules,
            self.watcher,
            whole=workload.calls_per_pass(),
            kept=kept,
        )

    # --- facts

    def take_facts(self) -> None:
        """Record counters, memory and processes."""
        trial, gpu = self.trial, self.watcher.gpu
        self.compiler_counters = counters.read()
        if self.observer.dynamo:
            self.record_compilation()
        peaks = memory.peaks(self.device)
        trial.peak_allocated_bytes = peaks.allocated_bytes
        trial.peak_reserved_bytes = peaks.reserved_bytes
        trial.graph_pool_bytes = memory.graph_pool_bytes(self.device)
        processes = gpu.processes()
        if processes is not None:
            trial.process_gpu_bytes = processes[os.getpid()]
            trial.foreign_processes = len(gpu.foreign_pids())
        # Linux counts KiB
        trial.peak_host_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        copy_inputs = self.prepared.copy_inputs
        if copy_inputs is not None and self.on_cuda:
            rules = replace(self.rules, load_s=COPY_BUDGET_S)
            timer = timing.Timer(copy_inputs, self.workload.inputs.timed, self.device, rules)
            trial.input_copy_ms = statistics.median(timer.period(COPY_BUDGET_S).samples_ms)

    def record_compilation(self) -> None:
        """Record what Dynamo and Inductor did."""
        trial, extra, counted = self.trial, self.trial.extra, self.compiler_counters
        trial.graph_breaks = counted.graph_breaks
        trial.recompiles = counted.recompiles
        trial.cudagraph_skips = counted.cudagraph_skips
        extra["graphs"] = counted.graphs
        if self.observer.parts:
            extra["pieces"] = self.observer.parts
            extra["captured_pieces"] = self.observer.captured
        extra["cache"] = {"hits": counted.cache_hits, "misses": counted.cache_misses}
        if counted.break_reasons:
            extra["graph_break_reasons"] = counted.break_reasons
        if self.observer.cudagraph_skips:
            extra["cudagraph_skip_reasons"] = list(self.observer.cudagraph_skips)

    def take_profile(self) -> None:
        """Profile some calls, and count the FLOPs of one eager call."""
        trial, workload = self.trial, self.workload
        inputs = workload.inputs.timed
        period_ms = self.times.period_ms
        calls = 1
        if period_ms:  # long enough to average over clock changes
            calls = max(profile.CALLS, min(500, int(TRACED_MS / period_ms)))
        whole = workload.calls_per_pass()
        calls = math.ceil(calls / whole) * whole
        load_s = self.rules.load_s  # at the same clocks as in timing
        if self.times.waits_for_launches:
            load_s = 0.0
        profiled = profile.profile(self.led_step, inputs, calls, load_s, trial.calls_per_block or 1)
        trial.kernel_fingerprint = profiled.fingerprint
        if not workload.has_profile:
            return
        trial.gpu_busy_ms = profiled.busy_ms or None
        trial.kernels = profiled.kernels
        trial.extra["profile"] = profiled.facts
        if workload.has_varied_calls:  # so does their work
            return
        trial.flops = workload.count_flops(*copies(inputs[0])) or None

    def take_trace(self) -> None:
        """Trace some calls, which explain their latency. Raises UnsupportedError, and what the step
        or the profiler raises."""
        workload = self.workload
        latency_ms = self.times.latency_ms
        if workload.has_varied_calls or not workload.has_profile:
            raise UnsupportedError("its calls differ")
        inputs = workload.inputs.timed
        recorded = record_calls(self.led_step, inputs, self.device, latency_ms)
        if self.ranks.size > 1:
            times = collective_times(recorded)
            self.trial.collective_ms = times.ms
            self.trial.exposed_collective_ms = times.exposed_ms
        traced = trace_of(recorded)
        if "attention" in self.cell.model:
            self.trial.extra["attention_kernels"] = attention_kernels(traced)
        self.trial.trace = traced.to_json()

    def judge(self) -> None:
        """Raise Ended with the status, unless the trial is ok.

        A trial is `degraded` if its step ran, but not as the name of its mode or cell promises:
        - it compiled in both timings (`StepTimes.compiled`);
        - the mode says so (`Prepared.degraded`): `bucketed-graph` has no graph for any call;
        - the workload says so (`Workload.degraded`): eager writes to an input and the mode does
          not, or a server is saturated;
        - Dynamo or Inductor says so (`Observer.degraded_reason`): nothing was compiled, Dynamo gave
          up, FlexAttention ran unfused, or something ran outside a CUDA graph.
        """
        if self.wrong:
            raise Ended(Status.INCORRECT, self.wrong)
        if self.times.compiled:
            raise Ended(
                Status.DEGRADED, f"{self.times.compiled}, twice: the times include compiling"
            )
        if self.degraded:
            raise Ended(Status.DEGRADED, self.degraded)

    def degraded_reason(self) -> str | None:
        """Return why the step of this process did not run as its names say, or None."""
        return (
            self.prepared.degraded
            or self.workload.degraded
            or self.observer.degraded_reason(self.compiler_counters, self.device)
            or self.nothing_captured()
        )

    def nothing_captured(self) -> str | None:
        """Return that a mode which leaves out parts left out everything, or None."""
        if self.on_cuda and self.mode.leaves_parts and self.trial.graph_pool_bytes is None:
            return "no CUDA graph was captured: the options of the mode leave out all calls"
        return None


def unsupported(cell: Cell, mode: Mode, device: torch.device) -> str | None:
    """Return why this mode cannot run this cell, or None."""
    # a fresh process calls the module
    phase = "inference" if cell.phase == COLDSTART else cell.phase
    if phase not in mode.phases:
        return (
            f"the mode {cell.mode_name} does not support phase={cell.phase}; it supports"
            f" {', '.join(mode.phases)}"
        )
    cores = len(os.sched_getaffinity(0))
    if cell.threads is not None and cell.threads > cores:  # they would wait for each other
        return f"threads={cell.threads} needs as many cores, and this process may use {cores}"
    return (
        mode.missing(device) or uncacheable(cell, mode) or workload_of(cell).unsupported(cell, mode)
    )
