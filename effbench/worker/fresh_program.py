"""What a fresh process does: the steps of a user's program up to its first answer, by the code that
trials use. It reports when each part ended. Afterwards it times more calls, or saves what it
compiled.

What it imports here counts as a part of the cold start, so this is little, and what is needed after
the first answer is imported then.
"""

from __future__ import annotations

import importlib
import json
import resource
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from effbench.core.message import MessagePipe
from effbench.measure.cache_keys import KeyObserver
from effbench.measure.cold_parts import CaptureClock
from effbench.measure.gradients import NO_GRAD, recording
from effbench.models.build import build_module, resolve_target, set_numerics
from effbench.models.inputs import Batch, Inputs, Step, make_set, to_channels_last
from effbench.models.spec import InputSpec, parse_inputs
from effbench.modes.base import Example, Mode, Prepared
from effbench.worker.fresh_messages import (
    BUILD,
    DEVICE,
    FIRST_CALL,
    IMPORTS,
    LOAD,
    CacheUse,
    FreshFolder,
    FreshRequest,
    FreshResult,
    PreparedSize,
)

#: Calls whose times are reported one by one, with the first one.
SINGLE_CALLS = 10
#: Seconds of calls in the steady state.
STEADY_S = 0.3
#: In place of the hash of the weights, because all processes of a cold start have the same.
WEIGHTS = "module"


class FreshProgram:
    """The parts of a cold start in order. `part`: the current one. `loaded`: what a package gave;
    None without one. `has_bundle`: whether the bundle could be read, if there is one. `steps`:
    those of all batch sizes, whose memory they keep. `inputs`: by batch size."""

    mode: Mode
    specs: dict[str, InputSpec]
    module: nn.Module
    prepared: Prepared
    step: Step

    def __init__(self, request: FreshRequest, answer_path: Path, pipe: MessagePipe) -> None:
        self.request = request
        self.answer_path = answer_path
        self.pipe = pipe
        self.part = IMPORTS
        self.result = FreshResult()
        self.loaded: Prepared | None = None
        self.has_bundle = True
        self.steps: list[Step] = []
        self.inputs: dict[int, Inputs] = {}
        self.device = torch.device(request.device)
        self.on_cuda = self.device.type == "cuda"
        self.dtype: torch.dtype = getattr(torch, request.dtype)

    def end(self, part: str) -> None:
        """Report that a part has ended now."""
        self.pipe.send(part=part, ns=time.monotonic_ns())
        parts = self.request.parts
        following = parts.index(part) + 1
        self.part = parts[min(following, len(parts) - 1)]

    def run(self) -> None:
        """Make the first answer, then what is asked for afterwards."""
        self.import_modules()
        self.end(IMPORTS)
        if DEVICE in self.request.parts:
            self.use_gpu()
            self.end(DEVICE)
        self.build()
        self.end(BUILD)
        if LOAD in self.request.parts:
            self.load()
            self.end(LOAD)
        self.observe_first_call()
        from effbench.core import processes

        if self.request.save_bundle:
            self.save_bundle(self.request.save_bundle)
        else:
            self.time_calls()
        self.result.cpu_s = processes.cpu_s()
        self.pipe.send(result=asdict(self.result))

    # --- the parts

    def import_modules(self) -> None:
        """Import the modules of model and mode."""
        request = self.request
        make_mode = resolve_target(request.mode)
        for target in request.imports:
            resolve_target(target)
        self.mode = make_mode(**request.settings)
        self.specs = parse_inputs(request.inputs)
        torch.set_num_threads(request.threads)
        if request.rank is not None:
            join_group(request.rank)

    def use_gpu(self) -> None:
        """Use CUDA for the first time."""
        if self.request.gpu_index is not None:
            torch.cuda.set_device(self.request.gpu_index)
        torch.empty(1, device=self.device)
        self.synchronize()

    def build(self) -> None:
        """Build the module, unless a package replaces it, and the inputs of each batch size."""
        request = self.request
        set_numerics(request.numerics)
        if request.package is None:
            seed = request.numerics.get("seed", 0)
            self.module = build_module(
                request.module, self.dtype, self.device, seed, request.attention
            )
        for bs in request.batch_sizes:
            self.inputs[bs] = make_set(self.specs, 1, bs, self.dtype, self.device, request.numerics)
        if request.package is None:
            self.finish_module()
        self.synchronize()

    def finish_module(self) -> None:
        """Make the weights that the first call makes, and set the memory format."""
        if any(map(nn.parameter.is_lazy, self.module.parameters())):
            args, kwargs = self.inputs[self.request.batch_sizes[-1]]
            with recording(NO_GRAD):
                self.module(*args, **kwargs)
        if self.request.numerics.get("channels_last"):
            self.module._apply(to_channels_last)

    def load(self) -> None:
        """Load the package, or the bundle into the caches."""
        if self.request.package:
            mode: Any = self.mode
            self.loaded = mode.load(Path(self.request.package), "warm")
        if self.request.bundle:
            bundle = Path(self.request.bundle).read_bytes()
            self.has_bundle = torch.compiler.load_cache_artifacts(bundle) is not None

    def observe_first_call(self) -> None:
        """Prepare and make the first answer, and take the records of torch's compiler."""
        observer, captures = KeyObserver(), CaptureClock()
        with observer.observing(), captures.running():
            self.answer_first()
        if self.on_cuda:
            self.result.seconds["capture"] = captures.seconds
        if self.mode.compiles and self.loaded is None:
            self.record_compilation(observer)

    def answer_first(self) -> None:
        """Prepare the batch sizes. The cold start ends with the answer to the last one."""
        answer = None
        self.import_compiler()
        with recording(self.request.grad_mode):
            for bs in self.request.batch_sizes:
                answer = self.prepare(bs)
            self.end(FIRST_CALL)
        self.result.waited_s = waited_s()
        from effbench.measure.accuracy import parts

        # before the next call may overwrite it
        torch.save(parts(answer), self.answer_path)

    def import_compiler(self) -> None:
        """Import the compiler's modules. The mode would import them now, too: earlier, its pool of
        processes would start earlier."""
        if self.loaded is not None:
            return
        began_s = time.perf_counter()
        for name in self.mode.compiler_modules:
            importlib.import_module(name)
        self.result.compiler_imports_s = time.perf_counter() - began_s

    def prepare(self, bs: int) -> Any:
        """Prepare a batch size, and return the answer of its first call."""
        began_s, before = time.perf_counter(), self.reserved_bytes()
        args, kwargs = self.inputs[bs]
        if not self.steps or self.mode.static_shape:
            self.prepared = self.loaded or self.prepare_mode(bs)
            self.step = self.prepared.step
            self.steps.append(self.step)
        answer = self.step(*args, **kwargs)
        self.synchronize()
        seconds = time.perf_counter() - began_s
        added = self.reserved_bytes() - before
        self.result.sizes.append(PreparedSize(bs, seconds, added if self.on_cuda else None))
        return answer

    def prepare_mode(self, bs: int) -> Prepared:
        """Return the step that the mode makes for calls with this batch size."""
        args, kwargs = self.inputs[bs]
        folder = str(Path(self.request.cache_dir) / f"bs{bs}")
        batch = Batch.of(self.specs, [bs])
        return self.mode.prepare(self.module, Example(args, kwargs, batch, folder, WEIGHTS))

    # --- after the first answer

    def record_compilation(self, observer: KeyObserver) -> None:
        """Record what the compiler did until the first answer."""
        from effbench.measure import cold_parts, counters

        self.result.seconds |= asdict(cold_parts.read())
        if not self.mode.uses_dynamo:
            return
        self.result.cache = cache_use(observer)
        if not self.has_bundle:
            self.result.cache.bypasses.append("torch could not read the bundle")
        self.result.degraded = counters.Observer().degraded_reason(counters.read(), self.device)

    def save_bundle(self, path: str) -> None:
        """Make the calls that still prepare, and write what was compiled."""
        args, kwargs = self.inputs[self.request.batch_sizes[-1]]
        with recording(self.request.grad_mode):
            for _ in range(self.mode.settling_calls):
                self.step(*args, **kwargs)
        self.synchronize()
        if not self.mode.uses_dynamo:
            return
        saved = torch.compiler.save_cache_artifacts()
        if saved is not None:
            Path(path).write_bytes(saved[0])

    def time_calls(self) -> None:
        """Time single calls and calls in the steady state, and record the memory."""
        given = self.inputs[self.request.batch_sizes[-1]]
        args, kwargs = given
        with recording(self.request.grad_mode):
            for _ in range(SINGLE_CALLS - 1):
                began_s = time.perf_counter()
                self.step(*args, **kwargs)
                self.synchronize()
                self.result.calls_ms.append((time.perf_counter() - began_s) * 1e3)
            self.result.steady_ms = self.time_steadily(given)
        self.result.degraded = self.prepared.degraded or self.result.degraded
        self.record_memory()

    def time_steadily(self, given: Inputs) -> list[float]:
        """Return the times of synchronised calls, in ms."""
        from effbench.measure.rules import Rules
        from effbench.measure.timing import Timer, no_garbage_collection

        rules = Rules.of(self.request.protocol)
        timer = Timer(self.step, [given], self.device, rules)
        with no_garbage_collection():
            return timer.latency(STEADY_S).samples_ms

    def record_memory(self) -> None:
        """Record the peaks since the process began."""
        from effbench.measure import memory

        result = self.result
        # Linux counts KiB
        result.peak_host_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peaks = memory.peaks(self.device)
        result.peak_allocated_bytes = peaks.allocated_bytes
        result.peak_reserved_bytes = peaks.reserved_bytes
        result.graph_pool_bytes = memory.graph_pool_bytes(self.device)

    # --- the device

    def synchronize(self) -> None:
        """Wait until the device is done."""
        if self.on_cuda:
            torch.cuda.synchronize()

    def reserved_bytes(self) -> int:
        """Return the device memory that torch has reserved."""
        return torch.cuda.memory_reserved() if self.on_cuda else 0


def join_group(rank: int) -> None:
    """Join a process group of two as this rank. The other one does not exist: collectives do
    nothing."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())


def cache_use(observer: KeyObserver) -> CacheUse:
    """Return what the caches of AOTAutograd and of Inductor answered so far."""
    from torch._dynamo.utils import counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    misses = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    misses += autograd["autograd_cache_miss"] + autograd["autograd_cache_bypass"]
    return CacheUse(
        hits=inductor["fxgraph_cache_hit"] + autograd["autograd_cache_hit"],
        misses=misses,
        keys=observer.keys,
        bypasses=observer.bypasses,
    )


def waited_s() -> float:
    """Return how long the main thread has waited for a core, because others ran there; 0 if the
    kernel does not count it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def run(folder: FreshFolder, pipe: MessagePipe) -> bool:
    """Run the program, and return whether it reached its end."""
    request = FreshRequest(**json.loads(folder.request.read_text()))
    program = FreshProgram(request, folder.answer, pipe)
    try:
        program.run()
    except BaseException as error:  # user code may raise anything
        from effbench.worker.failures import failure_of

        pipe.send(failed=asdict(failure_of(error, program.part)))
        return False
    return True
