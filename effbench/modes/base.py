"""The base class of modes. A mode turns a module and example inputs into a step, a callable
equivalent to the module.

A new mode needs one class, and a YAML file under conf/mode/ whose `_target_` names the class and
whose other keys are its settings (docs/reference/extending.md).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import nn

from effbench.core.errors import ConfigError
from effbench.models.inputs import Args, Batch, Kwargs, Step

if TYPE_CHECKING:
    from effbench.core.cell import Cell

#: What a mode records about its preparation: plain values by name.
Facts = dict[str, Any]
#: The type of a setting that is a count: an integer of at least 0.
AtLeast0 = Annotated[int, "at least 0"]
#: Of an example whose mode needs neither batch sizes nor batch dimensions.
NO_BATCH = Batch((), ())


@dataclass(frozen=True)
class Example:
    """What a mode knows about the calls of the step that it prepares.

    `args`, `kwargs`: inputs of the first call, on the device. `batch`: the batch dimension of each
    input, and the calls' batch sizes. `cache_dir`: a folder shared by this cell's trials in this
    sweep, or None. `weights`: a hash of the module's state, for a mode that `stores_weights`.
    """

    args: Args
    kwargs: Kwargs = field(default_factory=dict)
    batch: Batch = NO_BATCH
    cache_dir: str | None = None
    weights: str = "unknown"

    def with_dims(self) -> Iterator[tuple[Any, int | None]]:
        """Return the inputs, those by position, then those by name, with their batch dimensions."""
        return zip((*self.args, *self.kwargs.values()), self.batch.dims, strict=True)


@dataclass(frozen=True)
class Prepared:
    """A step that is ready to be called, with facts about its preparation.

    `copy_inputs`: does only the copy into static buffers; None if the mode does not copy.
    `degraded`: why the step does not do what the mode's name promises, or None. `compile_cache`:
    "cold" or "warm", if the mode knows it better than Inductor's counters. `facts` are read at the
    end of the trial, so the step may add to them. `module`: the copy of the module that the step
    runs, if any.
    """

    step: Step
    copy_inputs: Step | None = None
    degraded: str | None = None
    compile_cache: str | None = None
    facts: Facts = field(default_factory=dict)
    module: nn.Module | None = None

    def checked_facts(self) -> Facts:
        """Return the facts. Raises TypeError if JSON cannot hold them."""
        try:
            json.dumps(self.facts)
        # hidden, because its frames would be named as the location
        except (TypeError, ValueError) as error:
            raise TypeError(f"facts of the mode must be plain values: {error}") from None
        return self.facts


class Mode(ABC):
    """The interface of modes, with defaults for a mode that only wraps the module.

    The fields of subclasses that are dataclasses are checked: `bool`, `AtLeast0` and `Literal`
    define the allowed values.
    """

    #: Whether to report the preparation as compile seconds.
    compiles: bool = False
    #: Whether a mode that compiles does so with Dynamo, so that its counters apply.
    uses_dynamo: bool = True
    #: Modules of torch's compiler that its preparation imports.
    compiler_modules: tuple[str, ...] = ()
    #: Whether it chooses kernels by timing them, which other work on the device would mislead.
    autotunes: bool = False
    #: Number of first calls that still prepare: 3 for cudagraph trees, which warm up, record, then
    #: replay.
    settling_calls: int = 1
    #: Phases that the mode supports. Without `generate`, its step does not see what others write to
    #: the buffers.
    phases: tuple[str, ...] = ("inference", "generate")
    #: Whether the step accepts only one shape, and hence no stream.
    static_shape: bool = False
    #: Whether the optimizer's step is part of a CUDA graph in training.
    captures_step: bool = False
    #: Whether a call changes the module's state as eager does; otherwise it is not compared.
    writes_state: bool = True
    #: Whether it runs a module that ranks share, with the collectives in its calls.
    splits: bool = True
    #: Whether the mode keeps some parts of graphs, or batch sizes, outside CUDA graphs.
    leaves_parts: bool = False
    #: Operators around which Inductor is to end and begin CUDA graphs.
    partition_ops: Sequence[str] = ()
    #: Whether it stores something in `cache_dir` that contains the module's weights.
    stores_weights: bool = False

    def __post_init__(self) -> None:
        """Check the settings. Raises ConfigError for a value that the field's annotation does not
        allow."""
        hints = get_type_hints(type(self), include_extras=True)
        for name, value in vars(self).items():
            check_setting(name, value, hints.get(name))

    def missing(self, device: torch.device) -> str | None:
        """Return why this mode cannot run on `device`, or None."""
        return None

    @abstractmethod
    def prepare(self, module: nn.Module, example: Example) -> Prepared:
        """Turn the module into a step. An exception becomes the status."""

    def prepare_forward(self, module: nn.Module, example: Example) -> Prepared:
        """Return what a training step calls in place of the module."""
        return self.prepare(module, example)

    def prepare_step(self, prepared: Prepared, example: Example) -> Prepared:
        """Prepare a whole training step, whose forward is that of `prepare_forward`. By default it
        stays as it is."""
        return prepared


def needs_cuda(device: torch.device, what: str) -> str | None:
    if device.type == "cuda":
        return None
    return f"{what} needs CUDA, but this cell runs on {device.type}"


def uncacheable(cell: Cell, mode: Mode) -> str | None:
    """Return why a fresh process cannot start this mode with the cell's cache, or None."""
    # here, because a fresh process imports this module and counts the seconds
    from effbench.core.cell import NO_CACHE, NO_CHANGE

    name, cache = cell.mode_name, cell.cache
    if cache == NO_CACHE:
        if cell.change != NO_CHANGE:
            return f"coldstart.change={cell.change} needs a cache, and this cell has cache=none"
    elif cache == "package":
        if not mode.stores_weights:
            return f"cache=package needs mode=aot-inductor, not {name}"
    elif cache is not None:
        if not mode.compiles:
            return f"{name} compiles nothing, so there is nothing to cache"
        if not mode.uses_dynamo:
            return f"what {name} compiles is a package: use cache=package"
    return None


def needs_compiler(device: torch.device) -> str | None:
    """Return which compiler Inductor lacks, or None: C++ for the CPU; Triton and its C compiler for
    CUDA."""
    if device.type == "cpu":
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler):
            return None
        return (
            f"Inductor needs a C++ compiler, but {compiler} was not found: install g++ (Debian:"
            " apt-get install g++) or set CXX"
        )
    if importlib.util.find_spec("triton") is None:
        return "Inductor needs Triton on CUDA: pip install triton"
    compilers = (os.environ.get("CC", "cc"), "gcc", "clang")
    if any(map(shutil.which, compilers)):
        return None
    return "Triton needs a C compiler: install gcc (Debian: apt-get install gcc) or set CC"


def check_setting(name: str, value: Any, hint: Any) -> None:
    """Raise ConfigError if the annotation does not allow `value`. For example, `no` on a command
    line is a text."""
    if hint == AtLeast0:
        is_allowed = type(value) is int and value >= 0
        allowed = "an integer of at least 0"
    elif hint is bool or get_origin(hint) is Literal:
        choices = get_args(hint) or (True, False)
        is_allowed = repr(value) in map(repr, choices)  # True is no 1
        # as the command line accepts them
        allowed = ", ".join(json.dumps(choice).strip('"') for choice in choices)
    else:
        return
    if not is_allowed:
        raise ConfigError(f"mode.{name} has the invalid value {value!r}; allowed: {allowed}")
