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


@dataclass
class Prepared:
    """A step ready to be called, with the facts of its preparation.

    `copy_inputs` does only the copy into static buffers (None where the mode copies nothing); `degraded` says why the
    step is not what its name promises.
    """

    step: Callable[..., Any]
    copy_inputs: Callable[..., Any] | None = None
    degraded: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


#: Turns a forward into a training step over it: a callable with the same arguments that gives the loss.
StepOver = Callable[[Callable[..., Any]], Callable[..., torch.Tensor]]


class Mode(Protocol):
    """`compiles`: its preparation is reported as compile seconds. `settling_calls`: how many first calls still prepare
    (cudagraph trees warm up, record, then replay: three).

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
