"""ONE trial, in a process of its own: build, reference, prepare, check, warm up, time; in a child of the server."""

from __future__ import annotations

import itertools
import os
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from effbench.cell import Cell, Status, Trial, mode_settings
from effbench.measure import accuracy, ceilings, counters, memory, telemetry, timing, watch, work
from effbench.measure.partitions import Partitions
from effbench.measure.profile import CALLS, profile
from effbench.message import DEVICE_PHASE, TrialRequest
from effbench.models.build import build_module, resolve_target
from effbench.models.spec import InputSpec, parse_inputs
from effbench.modes import vector_instructions
from effbench.modes.base import BatchDims
from effbench.stats.intervals import median_interval
from effbench.worker import artifacts, failures, stream, training
from effbench.worker.failures import Ended

TRACED_MS = 50.0


@dataclass
class Run:
    """What the parts of a trial share."""

    request: TrialRequest
    cell: Cell
    device: torch.device
    dtype: torch.dtype
    rules: timing.Rules
    trial: Trial
    say_phase: Callable[[str], None]
    user_cache: str | None  # where Inductor would have kept what it compiles
    trainer: training.Trainer | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str):
        """Announces the phase (so that a crash is known to be in it) and adds its seconds up."""
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
    user_cache = os.environ.get(vector_instructions.FOLDER)
    if request.cache_dir:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(request.cache_dir) / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(Path(request.cache_dir) / "triton")
    device, dtype = torch.device(cell.device), getattr(torch, cell.dtype)
    state = Run(request, cell, device, dtype, rules, trial, say_phase, user_cache)
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
    """The whole trial in order; fills `run.trial`."""
    cell, trial, device = run.cell, run.trial, run.device
    with run.phase(DEVICE_PHASE):  # before any code of the user: what fails here is tried again
        stay_on(run.request.cores)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise Ended(Status.UNSUPPORTED, "device=cuda, and torch sees no CUDA device here")
        gpu = telemetry.Telemetry.open(run.request.gpu_uuid if device.type == "cuda" else None)
        stranger = watch.busy_stranger(gpu, run.request.foreign_wait_s)
        shared = watch.is_shared(gpu)
        if device.type == "cuda":
            torch.empty(1, device=device)  # the context
    with run.phase("setup"):
        set_numerics(cell.numerics)
        mode = resolve_target(cell.mode["_target_"])(**mode_settings(cell.mode))
        if reason := training.refusal(mode, cell) or mode.missing(device) or stream.unsupported(cell, mode):
            raise Ended(Status.UNSUPPORTED, reason)
        if vector_instructions.writes_cpp(mode, device):
            vector_instructions.learn(run.user_cache)
        if device.type == "cuda":
            memory.reset_peaks(device)
    with run.phase("build"):  # outside inference mode: its tensors cannot be parameters like any other
        seed = cell.numerics.get("seed", 0)
        module = build_module(cell.model["module"], run.dtype, device, seed)
        specs = parse_inputs({spec["name"]: without_name(spec) for spec in cell.model["inputs"]})
        sets = run.request.protocol.get("input_sets", 3)
        inputs, checked = stream.make_sets(cell, specs, sets, run.dtype, device, seed)
        stream.inform(cell, mode, specs)
        if cell.phase == training.TRAINING:
            run.trainer = training.Trainer(cell, mode, module, run.request.protocol.get("check_steps", 5), trial)
        timing.synchronizer(device)()
        trial.build_peak_allocated_bytes, _ = memory.peaks(device)
    if hasattr(mode, "batch_dims"):
        mode.batch_dims = batch_dims(specs)
    if hasattr(mode, "cache_dir"):
        mode.cache_dir = run.request.cache_dir
    uses_dynamo = getattr(mode, "uses_dynamo", mode.compiles)
    partitions = Partitions()
    watched = partitions if uses_dynamo else nullcontext()
    with nullcontext() if run.trainer else torch.inference_mode(), counters.LogReasons() as reasons, watched:
        with run.phase("check"):
            references = run.trainer.reference(checked) if run.trainer else reference_outputs(run, module, checked)
        step, prepared = prepare(run, mode, module, checked, references)
        read = counters.read()
        trial.compile_cache = (prepared.compile_cache or counters.cache_state(read)) if mode.compiles else None
        del references
        memory.reset_peaks(device)
        with run.phase("warmup"):
            warmup = stream.timers(cell).warm_up(step, inputs, device, run.rules)
        trial.warmup_calls, trial.steady = warmup.calls, warmup.steady
        trial.samples["warmup_ms"] = warmup.samples_ms
        before = counters.read()
        with run.phase("timing"):
            noisy = time_step(run, step, inputs, gpu, shared)
        with run.phase("facts"):
            after = counters.read()
            if uses_dynamo:
                record_counters(trial, after, reasons)
            trial.peak_allocated_bytes, trial.peak_reserved_bytes = memory.peaks(device)
            trial.graph_pool_bytes = memory.graph_pool_bytes(device)
            trial.process_gpu_bytes = gpu.process_bytes()
            trial.peak_host_bytes = memory.host_peak_bytes()
            pids = gpu.foreign_pids()
            trial.foreign_processes = None if pids is None else len(pids)
            if prepared.copy_inputs is not None:
                copies = timing.time_period(prepared.copy_inputs, inputs, run.rules, 0.02)
                trial.input_copy_ms = statistics.median(copies.samples_ms)
            diverged = run.trainer.diverged(step, inputs) if run.trainer else None
        if run.request.profile and device.type == "cuda":
            with run.phase("profile"):
                look_inside(run, module, step, inputs)
    trial.extra["facts"] = prepared.facts | prepared.late_facts() | stream.facts(cell, trial.samples["latency_ms"])
    if run.request.artifacts:
        with run.phase("artifacts"):
            artifacts.collect(run, mode, module, step, inputs)
    if diverged:
        raise Ended(Status.INCORRECT, diverged)
    if after.graphs > before.graphs or after.recompiles > before.recompiles:
        raise Ended(Status.NOISY, "a graph was compiled while timing: these figures hold compile time")
    trial.extra |= partitions.to_json()
    if reason := (
        prepared.degraded
        or counters.degraded_reason(after, reasons, uses_dynamo, device)
        or partitions.degraded_reason(reasons.cudagraph_skips)
    ):
        raise Ended(Status.DEGRADED, reason)
    if reason := stranger or noisy:
        raise Ended(Status.NOISY, reason)


def without_name(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "name"}


def batch_dims(specs: dict[str, InputSpec]) -> BatchDims:
    places = [spec.batch_dim for spec in specs.values() if not spec.keyword]
    return places, {name: spec.batch_dim for name, spec in specs.items() if spec.keyword}


def copies(inputs: timing.Inputs) -> timing.Inputs:
    """Copies that are tensors like those they are made of: clones made in inference mode are of another kind, for which
    Dynamo would compile a second graph."""
    with torch.inference_mode(False):
        return accuracy.clone(inputs)


def reference_outputs(run: Run, module: torch.nn.Module, inputs: list[timing.Inputs]) -> list[Any]:
    """Eager's outputs for all input sets, cloned. The module gets copies: it may write into its inputs."""
    references = []
    for given in inputs:
        args, kwargs = copies(given)
        references.append(accuracy.kept(module(*args, **kwargs)))
    timing.synchronizer(run.device)()
    if not accuracy.leaves(references[0]):
        kind = type(references[0]).__name__
        advice = "return tensors, or a tuple, list or dict of them"
        raise Ended(Status.ERROR, f"in check: the output ({kind}) holds no tensor to compare: {advice}")
    if not run.cell.model.get("allow_nonfinite"):
        for reference in references:
            if reason := accuracy.not_finite(reference):
                raise Ended(Status.INCORRECT, reason)
    return references


def prepare(run: Run, mode: Any, module: torch.nn.Module, inputs: list[timing.Inputs], references: Any) -> Any:
    """Prepare the mode (timed), make its settling calls (timed), and check every input set against eager."""
    trial, synchronize = run.trial, timing.synchronizer(run.device)
    memory.reset_peaks(run.device)
    args, kwargs = copies(inputs[0])
    with run.phase("prepare"):
        start = time.perf_counter()
        prepared = run.trainer.prepare(mode, args, kwargs) if run.trainer else mode.prepare(module, args, kwargs)
        synchronize()
        ready = time.perf_counter()
        step = prepared.step
        step(*args, **kwargs)
        synchronize()
        first = time.perf_counter()
        for i in range(1, stream.settling_calls(run.cell, mode, inputs)):
            args, kwargs = copies(inputs[i % len(inputs)])
            step(*args, **kwargs)
        synchronize()
        settled = time.perf_counter()
    trial.prepare_s = ready - start
    trial.first_call_s = first - start
    trial.compile_s = settled - start if mode.compiles else None
    trial.prepare_peak_allocated_bytes, _ = memory.peaks(run.device)
    with run.phase("check"):
        if run.trainer:
            run.trainer.check(step, inputs, references)
            return step, prepared
        tolerance = run.cell.model.get("tolerance")
        for given, reference in zip(inputs, references, strict=True):
            args, kwargs = copies(given)
            output = accuracy.kept(step(*args, **kwargs))
            synchronize()
            verdict = accuracy.compare(output, reference, tolerance)
            if verdict.error is not None:
                trial.rel_error = max(trial.rel_error or 0.0, verdict.error)
            if verdict.correct:
                continue
            if not verdict.only_values:
                raise Ended(Status.INCORRECT, str(verdict.reason))
            # too strict for this dtype? Then float64 is the judge
            trial.extra["judged_by_float64"] = True
            if reason := float64_judgement(run, module, given, output, reference):
                raise Ended(Status.INCORRECT, f"{verdict.reason}; {reason}")
    return step, prepared


def float64_judgement(
    run: Run, module: torch.nn.Module, given: timing.Inputs, output: Any, reference: Any
) -> str | None:
    """None where `output` is as near to the float64 result as eager's is. A module that cannot run in float64 has no
    such judge."""
    args, kwargs = copies(given)
    try:
        exact = accuracy.float64_twin(module)(*args, **kwargs)
        return accuracy.compare_with_float64(output, reference, exact, run.cell.model.get("tolerance"))
    except Exception as error:
        return f"no float64 reference ({failures.describe(error)})"


def stay_on(cores: list[int] | None) -> None:
    """Keep this process, and all that it starts, on these cores: nobody else's trial runs there."""
    if cores:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(min(torch.get_num_threads(), len(cores)))


def look_inside(run: Run, module: torch.nn.Module, step: Callable, inputs: list[timing.Inputs]) -> None:
    """The profiled pass, and the work of one call counted on the eager module. What fails here costs these figures."""
    trial = run.trial
    try:
        calls = stream.whole_passes(run.cell, calls_to_trace(trial))
        found = profile(step, inputs, calls, partial(keep_busy, step, inputs, run.rules, trial))
        trial.gpu_busy_ms, trial.kernels = found.busy_ms or None, found.kernels
        trial.extra["profile"] = found.to_json()
        if run.cell.stream:  # the work of which call?
            return
        args, kwargs = copies(inputs[0])
        counted = run.trainer.count(args, kwargs) if run.trainer else work.count(module, args, kwargs)
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


def calls_to_trace(trial: Trial) -> int:
    """So much work that the clocks of a few calls do not decide, and a dozen calls at least."""
    return max(CALLS, min(500, int(TRACED_MS / trial.period_ms)))


def keep_busy(step: Callable, inputs: list[timing.Inputs], rules: timing.Rules, trial: Trial) -> None:
    """Where the GPU is what limits, trace it as it was timed: under load, at the clocks that it has then."""
    if trial.enqueue_ms < 0.7 * trial.period_ms:
        rotation = itertools.cycle(inputs)

        def play() -> None:
            for args, kwargs in itertools.islice(rotation, trial.calls_per_block):
                step(*args, **kwargs)

        timing.load(play, rules.load_s)


def time_step(
    run: Run, step: Callable, inputs: list[timing.Inputs], gpu: telemetry.Telemetry, shared: bool
) -> str | None:
    """Latency, and on CUDA the period with the GPU watched. Returns what disturbed it on every try, or None."""
    trial, rules = run.trial, run.rules
    on_cuda = run.device.type == "cuda"
    timers = stream.timers(run.cell)
    watcher = watch.GpuWatch(gpu, run.device, shared=shared) if on_cuda else timing.Watch()
    preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    with timing.no_garbage_collection():
        readings = [gpu.read()]
        watcher.begin()
        latency = timers.time_latency(
            step, inputs, run.device, rules, rules.budget_s / 2 if on_cuda else rules.budget_s, watcher
        )
        if on_cuda:
            watcher.begin()
            period = timers.time_period(step, inputs, rules, rules.budget_s / 2, watcher)
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
