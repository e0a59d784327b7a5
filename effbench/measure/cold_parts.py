"""How a process spent the time until its first answer inside torch's compiler, from torch's own
records.

torch records seconds by the name of a step of its compiler, and sums for each compilation. Steps
contain other steps, so the parts here are differences.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

#: Steps of Dynamo that contain all others of a compilation.
FRAMES = ("_compile.compile_inner",)
#: Steps of Inductor, and the loading of a result of its cache.
INDUCTOR = ("compile_fx_inner", "AOTAutogradCache.inductor_load")
#: The step of AOTAutograd in torch.export, which has no frames.
EXPORTED = ("create_aot_dispatcher_function",)
#: Columns of a compilation with the microseconds in which kernels were timed to choose one:
#: during Inductor's steps, and later in calls.
COMPILE_AUTOTUNE = "compile_time_autotune_time_us"
CALL_AUTOTUNE = "runtime_triton_autotune_time_us"


@dataclass(frozen=True)
class CompilerSeconds:
    """Seconds in torch's compiler, without overlaps. `trace`: Dynamo and AOTAutograd; `compile`:
    Inductor, Triton and the C++ compiler, or loading their results; `autotune`: timing
    kernels."""

    trace: float = 0.0
    compile: float = 0.0
    autotune: float = 0.0


def read() -> CompilerSeconds:
    """Return the seconds of all compilations of this process so far."""
    import torch._dynamo.utils as dynamo

    recorded = dynamo.compilation_time_metrics
    compilations = dynamo.get_compilation_metrics()
    inductor_s = seconds_of(recorded, INDUCTOR)
    traced_s = seconds_of(recorded, FRAMES) - inductor_s
    if not recorded.get(FRAMES[0]):
        traced_s = seconds_of(recorded, EXPORTED)
    compile_autotune_s = column(compilations, COMPILE_AUTOTUNE)
    return CompilerSeconds(
        trace=max(0.0, traced_s),
        compile=max(0.0, inductor_s - compile_autotune_s),
        autotune=compile_autotune_s + column(compilations, CALL_AUTOTUNE),
    )


def seconds_of(recorded: dict[str, list[float]], names: Iterable[str]) -> float:
    """Return the sum of the recorded seconds of these steps."""
    return sum(sum(recorded.get(name, ())) for name in names)


def column(compilations: Iterable[Any], name: str) -> float:
    """Return the sum in seconds of a column of microseconds, which some releases lack."""
    return sum(getattr(entry, name, None) or 0 for entry in compilations) / 1e6


class CaptureClock:
    """Adds up the seconds in which CUDA graphs are captured, from the beginning of
    `torch.cuda.graph` to its end, which all captures of torch use."""

    seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the captures of this context."""
        begin, end = torch.cuda.graph.__enter__, torch.cuda.graph.__exit__
        began_s = 0.0

        def begin_capture(graph: Any) -> Any:
            nonlocal began_s
            began_s = time.perf_counter()
            return begin(graph)

        def end_capture(graph: Any, *error: Any) -> Any:
            result = end(graph, *error)
            self.seconds += time.perf_counter() - began_s
            return result

        replace_methods(begin_capture, end_capture)
        try:
            yield
        finally:
            replace_methods(begin, end)


def replace_methods(begin: Any, end: Any) -> None:
    """Set the methods with which a capture begins and ends."""
    kind: Any = torch.cuda.graph
    kind.__enter__, kind.__exit__ = begin, end
