"""One trial, in a process of its own: build, reference, prepare, check, warm up, time; in a child of the server."""

from __future__ import annotations

import itertools
import math
import os
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import torch

from effbench.cell import Cell, Status, Trial, mode_settings
from effbench.measure import counters, memory, telemetry, timing, watch
from effbench.measure.profile import CALLS, profile
from effbench.message import DEVICE_PHASE, TrialRequest
from effbench.models.build import build_module, resolve_target
from effbench.models.inputs import Batch
from effbench.models.spec import InputSpec, parse_inputs
from effbench.modes import inductor
from effbench.modes.base import BatchDims, Mode, Prepared, uses_dynamo, with_defaults
from effbench.stats.intervals import median_interval
from effbench.worker import artifacts, ceilings, failures
from effbench.worker.failures import Ended
from effbench.worker.workload import Inference, copies, latency_facts, make_sets, sizes_of, workload_of

TRACED_MS = 50.0
ONE_SHAPE = "this mode has one static shape, and a stream has many batch sizes: use bucketed-graph, or one bs"


@dataclass
class Run:
    """The state that the parts of a trial share. `whole`: calls of one pass of a stream, else 1."""

    request: TrialRequest
    cell: Cell
    device: torch.device
    dtype: torch.dtype
    rules: timing.Rules
    trial: Trial
    say_phase: Callable[[str], None]
    user_cache: str | None  # Inductor's cache folder outside trials
    whole: int = 1
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str):
        """Announce the phase (so that a crash is known to be in it) and add up its seconds."""
        self.trial.phase = name
        self.say_phase(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def run(payload: dict[str, Any], say_phase: Callable[[str], None]) -> dict[str, Any]:
    """Entry point of the task `trial`: a TrialRequest as JSON in, a Trial as JSON out."""
    request = TrialRequest(**payload)
    cell = Cell.from_params(request.cell)
    trial = Trial(
        cell.key,
        request.round,
        Status.OK,
        attempt=request.attempt,
        gpu_index=request.gpu_index,
        gpu_uuid=request.gpu_uuid,
        pid=os.getpid(),
    )
    names = {f.name for f in fields(timing.Rules)}
    rules = timing.Rules(**{name: value for name, value in request.protocol.items() if name in names})
    user_cache = inductor.use_caches_in(request.cache_dir)
    device, dtype = torch.device(cell.device), getattr(torch, cell.dtype)
    whole = len(sizes_of(cell))
    state = Run(request, cell, device, dtype, rules, trial, say_phase, user_cache, whole)
    try:
        measure(state)
    except Ended as ended:
        trial.status, trial.reason = ended.status, ended.reason
    except SystemExit:  # the module meant to end its process: it may
        raise
    except BaseException as error:
        trial.status, trial.reason = failures.classify(error, trial.phase)
        trial.extra["traceback"] = failures.traceback_tail(error)
    for name in ("build", "check", "warmup", "timing"):
        if name in state.seconds:
            setattr(trial, f"{name}_s", state.seconds[name])
    trial.extra["phase_seconds"] = {name: round(value, 6) for name, value in state.seconds.items()}
    return trial.to_json()


def set_numerics(numerics: dict[str, Any]) -> None:
    """The flags that torch keeps globally; a fresh process has them at torch's defaults."""
    torch.set_float32_matmul_precision(numerics.get("matmul_precision", "highest"))
    if numerics.get("tf32"):
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = bool(numerics.get("tf32"))
    torch.backends.cudnn.benchmark = bool(numerics.get("cudnn_benchmark"))
    if numerics.get("deterministic"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(numerics.get("seed", 0))


def measure(run: Run) -> None:
    """Run the whole trial in order; fill `run.trial`."""
    cell, trial, device = run.cell, run.trial, run.device
    with run.phase(DEVICE_PHASE):  # before any user code: what fails here is tried again
        stay_on(run.request.cores)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise Ended(Status.UNSUPPORTED, "device=cuda, and torch sees no CUDA device here")
        gpu = telemetry.Telemetry.open(run.request.gpu_uuid if device.type == "cuda" else None)
        foreign = watch.busy_foreign_process(gpu, run.request.foreign_wait_s)
        shared = watch.is_shared(gpu)
        if device.type == "cuda":
            torch.empty(1, device=device)  # the context
    with run.phase("setup"):
        set_numerics(cell.numerics)
        mode = with_defaults(resolve_target(cell.mode["_target_"])(**mode_settings(cell.mode)))
        if reason := unsupported(cell, mode, device):
            raise Ended(Status.UNSUPPORTED, reason)
        if inductor.writes_cpp(mode, device):
            inductor.learn_vector_instructions(run.user_cache)
        if device.type == "cuda":
            memory.reset_peaks(device)
    with run.phase("build"):  # outside inference mode: its tensors cannot be parameters like any other
        seed, protocol = cell.numerics.get("seed", 0), run.request.protocol
        module = build_module(cell.model["module"], run.dtype, device, seed)
        specs = parse_inputs(
            {spec["name"]: {k: v for k, v in spec.items() if k != "name"} for spec in cell.model["inputs"]}
        )
        inputs, checked = make_sets(cell, specs, protocol.get("input_sets", 3), run.dtype, device, seed)
        mode.expect(Batch.of(specs, sizes_of(cell)))
        workload = workload_of(cell, mode, module, protocol.get("check_steps", 5), trial)
        timing.synchronizer(device)()
        trial.build_peak_allocated_bytes, _ = memory.peaks(device)
    mode.batch_dims, mode.cache_dir = batch_dims(specs), run.request.cache_dir
    partitions, dynamo = counters.Partitions(), uses_dynamo(mode)
    with workload.context(), counters.LogReasons() as reasons, partitions if dynamo else nullcontext():
        with run.phase("check"):
            references = workload.reference(checked)
        prepared = prepare(run, mode, workload, checked)
        step = prepared.step
        with run.phase("check"):
            workload.check(step, checked, references)
        read = counters.read()
        trial.compile_cache = (prepared.compile_cache or counters.cache_state(read)) if mode.compiles else None
        del references
        memory.reset_peaks(device)
        with run.phase("warmup"):
            warmup = timing.warm_up(step, inputs, device, run.rules, run.whole)
        trial.warmup_calls, trial.steady = warmup.calls, warmup.steady
        trial.samples["warmup_ms"] = warmup.samples_ms
        before = counters.read()
        with run.phase("timing"):
            noisy = time_step(run, step, inputs, gpu, shared)
        with run.phase("facts"):
            after = counters.read()
            if dynamo:
                record_counters(trial, after, reasons)
            trial.peak_allocated_bytes, trial.peak_reserved_bytes = memory.peaks(device)
            trial.graph_pool_bytes = memory.graph_pool_bytes(device)
            trial.process_gpu_bytes = gpu.process_bytes()
            trial.peak_host_bytes = memory.host_peak_bytes()
            pids = gpu.foreign_pids()
            trial.foreign_processes = None if pids is None else len(pids)
            if prepared.copy_inputs is not None:
                copying = timing.time_period(prepared.copy_inputs, inputs, run.rules, 0.02)
                trial.input_copy_ms = statistics.median(copying.samples_ms)
            diverged = workload.diverged(step, inputs)
        if run.request.profile and device.type == "cuda":
            with run.phase("profile"):
                look_inside(run, workload, step, inputs)
    trial.extra["facts"] = prepared.facts | prepared.late_facts()
    if cell.stream:
        trial.extra["facts"]["stream"] = latency_facts(trial.samples["latency_ms"], sizes_of(cell))
    if run.request.artifacts:
        with run.phase("artifacts"):
            artifacts.collect(run.request, trial, workload, step, inputs)
    if diverged:
        raise Ended(Status.INCORRECT, diverged)
    if after.graphs > before.graphs or after.recompiles > before.recompiles:
        raise Ended(Status.NOISY, "a graph was compiled while timing: these figures hold compile time")
    trial.extra |= partitions.to_json()
    if reason := (
        prepared.degraded
        or counters.degraded_reason(after, reasons, dynamo, device)
        or partitions.degraded_reason(reasons.cudagraph_skips)
    ):
        raise Ended(Status.DEGRADED, reason)
    if reason := foreign or noisy:
        raise Ended(Status.NOISY, reason)


def unsupported(cell: Cell, mode: Mode, device: torch.device) -> str | None:
    """Return why this mode cannot run this cell, or None."""
    if cell.phase not in mode.phases:
        return f"the mode {cell.mode_name} has no {cell.phase} step: it is for {', '.join(mode.phases)}"
    return mode.missing(device) or (ONE_SHAPE if cell.stream and mode.static_shape else None)


def batch_dims(specs: dict[str, InputSpec]) -> BatchDims:
    places = [spec.batch_dim for spec in specs.values() if not spec.keyword]
    return places, {name: spec.batch_dim for name, spec in specs.items() if spec.keyword}


def prepare(run: Run, mode: Mode, workload: Inference, inputs: list[timing.Inputs]) -> Prepared:
    """Prepare the mode and make its settling calls, both timed. In a stream every size has settling calls."""
    trial, synchronize = run.trial, timing.synchronizer(run.device)
    memory.reset_peaks(run.device)
    settling_calls = mode.settling_calls * (len(inputs) if run.cell.stream else 1)
    args, kwargs = copies(inputs[0])
    with run.phase("prepare"):
        start = time.perf_counter()
        prepared = workload.prepare(args, kwargs)
        synchronize()
        ready = time.perf_counter()
        step = prepared.step
        step(*args, **kwargs)
        synchronize()
        first = time.perf_counter()
        for i in range(1, settling_calls):
            args, kwargs = copies(inputs[i % len(inputs)])
            step(*args, **kwargs)
        synchronize()
        settled = time.perf_counter()
    trial.prepare_s = ready - start
    trial.first_call_s = first - start
    trial.compile_s = settled - start if mode.compiles else None
    trial.prepare_peak_allocated_bytes, _ = memory.peaks(run.device)
    return prepared


def stay_on(cores: list[int] | None) -> None:
    """Keep this process, and all that it starts, on these cores: no other trial runs there."""
    if cores:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(min(torch.get_num_threads(), len(cores)))


def look_inside(run: Run, workload: Inference, step: Callable, inputs: list[timing.Inputs]) -> None:
    """Make the profiled pass, and count the work of one call on the eager module. Failures cost these figures only."""
    trial = run.trial
    try:
        # enough work that the clocks of a few calls do not decide, and a dozen calls at least, in whole passes
        calls = max(CALLS, min(500, int(TRACED_MS / trial.period_ms)))
        calls = math.ceil(calls / run.whole) * run.whole
        found = profile(step, inputs, calls, partial(keep_busy, step, inputs, run.rules, trial))
        trial.gpu_busy_ms, trial.kernels = found.busy_ms or None, found.kernels
        trial.extra["profile"] = found.to_json()
        if run.cell.stream:  # its calls differ in work
            return
        counted = workload.count(*copies(inputs[0]))
    except Exception as error:
        trial.extra["profile_failed"] = failures.describe(error)
        return
    trial.flops, trial.min_bytes = counted.flops or None, counted.min_bytes
    if run.request.ceilings:
        numerics = run.cell.numerics
        fast = numerics.get("tf32") or numerics.get("matmul_precision", "highest") != "highest"
        dtype = "tf32" if run.cell.dtype == "float32" and fast else run.cell.dtype
        trial.compute_floor_ms, trial.memory_floor_ms = ceilings.floors(
            run.request.ceilings, dtype, counted.flops, counted.min_bytes
        )


def keep_busy(step: Callable, inputs: list[timing.Inputs], rules: timing.Rules, trial: Trial) -> None:
    """If the GPU is the bottleneck, trace it as it was timed: under load, at the clocks that it has then."""
    if trial.enqueue_ms < 0.7 * trial.period_ms:
        rotation = itertools.cycle(inputs)

        def play() -> None:
            for args, kwargs in itertools.islice(rotation, trial.calls_per_block):
                step(*args, **kwargs)

        timing.load(play, rules.load_s)


def time_step(
    run: Run, step: Callable, inputs: list[timing.Inputs], gpu: telemetry.Telemetry, shared: bool
) -> str | None:
    """Time latency, and on CUDA the period with the GPU watched. Return what disturbed it on every try, or None."""
    trial, rules = run.trial, run.rules
    on_cuda = run.device.type == "cuda"
    watcher = watch.GpuWatch(gpu, run.device, shared=shared) if on_cuda else timing.Watch()
    preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    with timing.no_garbage_collection():
        readings = [gpu.read()]
        watcher.begin()
        budget_s = rules.budget_s / 2 if on_cuda else rules.budget_s
        latency = timing.time_latency(step, inputs, run.device, rules, budget_s, watcher, run.whole)
        if on_cuda:
            watcher.begin()
            period = timing.time_period(step, inputs, rules, rules.budget_s / 2, watcher, run.whole)
        readings.append(gpu.read())
    trial.extra["preempted"] = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - preempted
    trial.samples["latency_ms"] = latency.samples_ms
    interval = median_interval(latency.samples_ms)
    trial.latency_ms, trial.latency_median_low_ms, trial.latency_median_high_ms = (
        interval.value,
        interval.low,
        interval.high,
    )
    trial.latency_min_ms = min(latency.samples_ms)
    trial.latency_p95_ms = float(np.quantile(latency.samples_ms, 0.95))
    trial.latency_samples = len(latency.samples_ms)
    if not on_cuda:
        return None
    watcher.end()
    trial.enqueue_ms = statistics.median(latency.enqueue_ms)
    trial.discarded_blocks = len(watcher.discarded)
    if watcher.discarded:
        trial.extra["discarded"] = watcher.discarded
    trial.samples["period_ms"] = period.samples_ms
    trial.period_ms = statistics.median(period.samples_ms)
    trial.period_samples = len(period.samples_ms)
    trial.calls_per_block = period.calls_per_block
    busy = gpu.busy()
    trial.sm_clock_mhz, trial.memory_clock_mhz = busy.sm_clock_mhz, busy.memory_clock_mhz
    trial.temperature_c, trial.power_w = busy.temperature_c, busy.power_w
    trial.clocks_event_reasons = ",".join(busy.clocks_event_reasons) or None
    trial.energy_mj = gpu.energy_per_call_mj()
    trial.extra["gpu_before"], trial.extra["gpu_after"] = (reading.to_json() for reading in readings)
    if watcher.noisy or run.cell.stream:  # the calls of a stream are of many sizes: their medians may differ
        return watcher.noisy
    return watch.busy_host(trial.enqueue_ms, trial.period_ms)


def record_counters(trial: Trial, read: counters.Counters, reasons: counters.LogReasons) -> None:
    trial.graph_breaks = read.graph_breaks
    trial.recompiles = read.recompiles
    trial.cudagraph_skips = read.cudagraph_skips
    trial.extra["graphs"] = read.graphs
    trial.extra["cache"] = {"hits": read.cache_hits, "misses": read.cache_misses}
    if read.break_reasons:
        trial.extra["graph_break_reasons"] = read.break_reasons
    if reasons.cudagraph_skips:
        trial.extra["cudagraph_skip_reasons"] = reasons.cudagraph_skips
