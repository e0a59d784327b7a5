"""The base of every mode: it turns (module, example inputs) into a step, a callable with the module's meaning.

A new mode is one class in one file plus its YAML under conf/mode/, whose `_target_` names the class and whose other
keys are its settings (docs/reference/extending.md).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NewType, get_args, get_origin, get_type_hints

import torch

from effbench.errors import ConfigError
from effbench.models.inputs import Batch

#: Where each input has its batch dimension: of the positional ones in order, and of the named ones.
BatchDims = tuple[list[int | None], dict[str, int | None]] | None
#: Turns a forward into a training step over it: a callable with the same arguments that returns the loss.
StepOver = Callable[[Callable[..., Any]], Callable[..., torch.Tensor]]
#: The type of a setting that counts something: 0 or more.
Count = NewType("Count", int)


@dataclass
class Prepared:
    """A step ready to be called, with the facts of its preparation.

    `copy_inputs` does only the copy into static buffers (None if the mode copies nothing); `degraded` says why the
    step is not what its name promises. `compile_cache`: "cold" or "warm" if the mode knows it better than Inductor's
    counters. `facts` are read when the trial ends: the step may go on adding to them; `late_facts` returns those that
    are known only after the calls.
    """

    step: Callable[..., Any]
    copy_inputs: Callable[..., Any] | None = None
    degraded: str | None = None
    compile_cache: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    late_facts: Callable[[], dict[str, Any]] = dict


class Mode(ABC):
    """What the worker asks of a mode, with the defaults of one that only wraps the module.

    Subclasses that are dataclasses have their fields checked: `bool`, `Count` and `Literal` say what is allowed.
    """

    #: The preparation is reported as compile seconds.
    compiles: bool = False
    #: Dynamo's counters apply to it; None: as `compiles`.
    uses_dynamo: bool | None = None
    #: First calls that still prepare (cudagraph trees warm up, record, then replay: three).
    settling_calls: int = 1
    phases: tuple[str, ...] = ("inference",)
    #: It takes no stream of batch sizes.
    static_shape: bool = False
    #: In training, the optimizer's step will be in a CUDA graph.
    captures_step: bool = False
    #: It compiles C++ on every device.
    wraps_in_cpp: bool = False
    #: Set by the worker before `prepare`.
    batch_dims: BatchDims = None
    #: Set by `expect`: which inputs have a batch dimension, and which sizes will come.
    batch: Batch | None = None
    #: Set by the worker before `prepare`: a folder that this cell's trials of this sweep share, or None.
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a field whose value its annotation does not allow."""
        hints = get_type_hints(type(self))
        for setting in dataclasses.fields(self):
            check_setting(setting.name, getattr(self, setting.name), hints[setting.name])

    def missing(self, device: torch.device) -> str | None:
        """Return why this mode cannot run on `device`, or None."""
        return None

    def expect(self, batch: Batch) -> None:
        """Learn, before `prepare`, which inputs have a batch dimension and which sizes will come."""
        self.batch = batch

    @abstractmethod
    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        """Turn the module into a step. `args` and `kwargs` are real inputs on the device; exceptions are the cell's."""

    def prepare_training(
        self, module: torch.nn.Module, step_over: StepOver, args: tuple, kwargs: dict[str, Any]
    ) -> Prepared:
        """Return the training step: by default one over the step that `prepare` returns."""
        prepared = self.prepare(module, args, kwargs)
        return dataclasses.replace(prepared, step=step_over(prepared.step), copy_inputs=None)


def with_defaults(mode: Any) -> Mode:
    """Return the mode; what a user's class that is not derived from Mode does not define gets Mode's defaults."""
    if not isinstance(mode, Mode):
        own = type(mode)
        mode.__class__ = type(own.__name__, (own, Mode), {})
    return mode


def uses_dynamo(mode: Mode | type[Mode]) -> bool:
    return bool(mode.compiles if mode.uses_dynamo is None else mode.uses_dynamo)


class Positional(torch.nn.Module):
    """A module that takes its tensors by position only: the named ones come last, in the order of the example
    `kwargs`; values that are not tensors are baked in."""

    def __init__(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.inner = module
        self.names = list(kwargs)
        values = (*args, *kwargs.values())
        self.baked = [None if isinstance(value, torch.Tensor) else value for value in values]
        self.places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
        self.train(module.training)

    def tensors(self, args: tuple, kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Return the inputs of a call in the order in which `forward` takes them."""
        values = (*args, *(kwargs[name] for name in self.names))
        return tuple(values[i] for i in self.places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        values = list(self.baked)
        for i, tensor in zip(self.places, tensors, strict=True):
            values[i] = tensor
        count = len(values) - len(self.names)
        return self.inner(*values[:count], **dict(zip(self.names, values[count:], strict=True)))

    def calling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step with the module's own arguments over `function`, which takes this module's; where the two are
        the same, `function` itself."""
        if not self.names and not any(value is not None for value in self.baked):
            return function

        def step(*args: Any, **kwargs: Any) -> Any:
            return function(*self.tensors(args, kwargs))

        return step


def needs_cuda(device: torch.device, what: str) -> str | None:
    return None if device.type == "cuda" else f"{what} needs CUDA, and this cell runs on {device.type}"


def needs_compiler(device: torch.device) -> str | None:
    """Inductor writes C++ for the CPU and Triton for CUDA, whose launcher is C: either needs a compiler."""
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


def check_setting(name: str, value: Any, hint: Any) -> None:
    """Raise ConfigError unless `value` is what the annotation allows: `no` on a command line is a text, not false."""
    if hint is Count:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"mode.{name} is {value!r}; allowed: a whole number from 0")
        return
    choices = (True, False) if hint is bool else get_args(hint) if get_origin(hint) is Literal else None
    if choices and not any(type(value) is type(choice) and value == choice for choice in choices):
        words = ", ".join({None: "null", True: "true", False: "false"}.get(choice, choice) for choice in choices)
        raise ConfigError(f"mode.{name} is {value!r}; allowed: {words}")
