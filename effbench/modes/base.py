"""What every mode is: it turns (module, example inputs) into a step, a callable with the module's meaning.

A new mode is one class in one file plus its YAML under conf/mode/, whose `_target_` names the class and whose other
keys are the constructor's keyword arguments (docs/extending.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from effbench.errors import ConfigError


@dataclass
class Prepared:
    """A step ready to be called, with the facts of its preparation.

    `copy_inputs` does only the copy into static buffers (None where the mode copies nothing); `degraded` says why the
    step is not what its name promises. `compile_cache`: "cold" or "warm" where the mode knows it better than Inductor's
    counters. `facts` are read when the trial ends: the step may go on adding to them; `late_facts` gives those that are
    known only after the calls.
    """

    step: Callable[..., Any]
    copy_inputs: Callable[..., Any] | None = None
    degraded: str | None = None
    compile_cache: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    late_facts: Callable[[], dict[str, Any]] = dict


#: Where each input has its batch dimension: of the positional ones in order, and of the named ones.
BatchDims = tuple[list[int | None], dict[str, int | None]] | None


#: Turns a forward into a training step over it: a callable with the same arguments that gives the loss.
StepOver = Callable[[Callable[..., Any]], Callable[..., torch.Tensor]]


class Mode(Protocol):
    """`compiles`: its preparation is reported as compile seconds. `settling_calls`: how many first calls still prepare
    (cudagraph trees warm up, record, then replay: three).

    What follows is for the modes that have it. `uses_dynamo` (as `compiles`, where it is absent): Dynamo's counters say
    what became of it. `static_shape = True`: it takes no stream of batch sizes. `wraps_in_cpp = True`:
    it compiles C++ on every device. Before it calls `prepare`, a worker
    sets `batch_dims` (`BatchDims`) and `cache_dir` (a folder that this cell's trials of this sweep share, or None),
    and calls `expect(batch)` with a `models.batch.Batch`.

    A mode for phase=training says so: `phases = ("inference", "training")`. Its training step is then one over the step
    that `prepare` makes, or, where it has a method `prepare_training(module, step_over: StepOver, args, kwargs)`, what
    that prepares. `captures_step = True`: the optimizer's step will be in a CUDA graph.
    """

    compiles: bool
    settling_calls: int

    def missing(self, device: torch.device) -> str | None:
        """Why this mode cannot run on `device`, or None."""

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        """Turn the module into a step. `args` and `kwargs` are real inputs on the device; exceptions are the cell's."""


class Positional(torch.nn.Module):
    """A module as one that takes its tensors by position only: the named ones come last, in the order of the example
    `kwargs`; what is no tensor is baked in."""

    def __init__(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.inner = module
        self.names = list(kwargs)
        values = (*args, *kwargs.values())
        self.baked = [None if isinstance(value, torch.Tensor) else value for value in values]
        self.places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
        self.train(module.training)

    def tensors(self, args: tuple, kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """The inputs of a call in the order in which `forward` takes them."""
        values = (*args, *(kwargs[name] for name in self.names))
        return tuple(values[i] for i in self.places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        values = list(self.baked)
        for i, tensor in zip(self.places, tensors, strict=True):
            values[i] = tensor
        count = len(values) - len(self.names)
        return self.inner(*values[:count], **dict(zip(self.names, values[count:], strict=True)))


def needs_cuda(device: torch.device, what: str) -> str | None:
    return None if device.type == "cuda" else f"{what} needs CUDA, and this cell runs on {device.type}"


def needs_compiler(device: torch.device) -> str | None:
    """Inductor writes C++ for the CPU and Triton for CUDA, whose launcher is C: either needs a compiler."""
    import os

    if device.type == "cuda":
        try:
            import triton  # noqa: F401
        except ImportError:
            return "Inductor needs Triton on CUDA: pip install triton"
        if not any(shutil.which(name) for name in (os.environ.get("CC"), "gcc", "clang", "cc") if name):
            return "Triton needs a C compiler: install gcc (Debian: apt-get install gcc) or set CC"
        return None
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        advice = "install g++ (Debian: apt-get install g++) or set CXX"
        return f"Inductor needs a C++ compiler and {compiler} is not found: {advice}"
    return None


def truth(name: str, value: Any) -> bool:
    """The value of a switch: `no` on a command line is a text, and would count as true. Raises ConfigError."""
    if not isinstance(value, bool):
        raise ConfigError(f"mode.{name}={value} is not allowed; it takes true or false")
    return value


def whole_number(name: str, value: Any) -> int:
    """The value of a setting that counts something. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"mode.{name}={value} is not allowed; it takes a whole number from 0")
    return value
