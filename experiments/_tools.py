"""Tools that shipped experiments share: values as JSON, timing, compile caches, a counting backend,
logs, graphs."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from effbench.claims.checks import Facts
from effbench.core.printable import first_line, text_of
from effbench.measure.timing import synchronizer
from effbench.modes.graphs import Captured, GraphCapture


@dataclass
class Attempt:
    """The outcome of a call: a value or an exception."""

    value: Any = None
    raised: Exception | None = None

    @property
    def succeeded(self) -> bool:
        return self.raised is None

    def facts(self) -> Facts:
        return {"succeeded": self.succeeded, **error_facts(self.raised)}


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Attempt:
    """Call the function; return its value or its exception."""
    try:
        return Attempt(value=function(*args, **kwargs))
    except Exception as error:  # any exception is an observation
        return Attempt(raised=error)


def error_facts(error: Exception | None) -> Facts:
    """Return the type and first line of an error, both None without an error."""
    if error is None:
        return {"error_type": None, "error": None}
    return {"error_type": type(error).__name__, "error": first_line(text_of(error))}


def listed(tensor: torch.Tensor, most: int = 8) -> list:
    """Return the first row of a tensor (B, ...) as a list of at most `most` values, with NaN as
    text for JSON."""
    row = tensor.detach().cpu()
    if row.dim() > 1:
        row = row.flatten(1)[0]
    values = row.reshape(-1)[:most].tolist()
    return [finite(value) if isinstance(value, float) else value for value in values]


def finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether two tensors differ at most by the rounding of reordered float32 sums; NaN
    equals nothing."""
    return actual.shape == expected.shape and torch.allclose(
        actual.float(), expected.float(), rtol=1e-4, atol=1e-5
    )


def call_ms(function: Callable[..., Any], *args: Any, device: torch.device) -> float:
    """Return the time of one call in ms, from an idle device until the device is idle again."""
    synchronize = synchronizer(device)
    synchronize()
    began = time.perf_counter_ns()
    function(*args)
    synchronize()
    return (time.perf_counter_ns() - began) / 1e6


def median_ms(function: Callable[..., Any], *args: Any, device: torch.device) -> float:
    return statistics.median(call_ms(function, *args, device=device) for _ in range(30))


@contextmanager
def fresh_compile_cache() -> Iterator[None]:
    """Compile with an empty cache, in a folder below this process's caches."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch._inductor.utils import fresh_cache

    with fresh_cache(dir=cache_dir()):
        yield


class Counting:
    """A backend of torch.compile that keeps Dynamo's graphs and runs them unchanged."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.calls = 0

    def __call__(
        self, graph: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        self.graphs.append(graph)

        def run(*args: Any) -> Any:
            self.calls += 1
            return graph(*args)

        return run


@contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """Collect the first lines that a logger prints at WARNING and above."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(first_line(record.getMessage()))  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(handler)


@dataclass
class Recorded:
    """A CUDA graph that reads its inputs at their addresses during capture. Each replay overwrites
    `output`."""

    captured: Captured
    inputs: tuple[Any, ...]

    @property
    def output(self) -> Any:
        return self.captured.outputs

    def replay(self) -> Any:
        self.captured.replay()
        return self.output


def record(function: Callable[..., Any], *args: Any) -> Recorded:
    """Capture `function(*args)` on a separate stream after three warm-up calls there."""
    return Recorded(GraphCapture(warmups=3)(function, args, {}), args)
