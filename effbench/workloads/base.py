"""The protocol of workloads: what is done with the module of a cell.

A workload makes the inputs, says what one call is, compares the mode's calls with eager's, and adds
figures of its own. A trial treats all workloads alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from effbench.core.cell import Cell, Trial
from effbench.core.parallel import NONE, Parallel
from effbench.measure import flops, gradients
from effbench.measure.accuracy import Comparison
from effbench.measure.samples import Timing
from effbench.measure.timing import Timer
from effbench.models.build import build_module_of
from effbench.models.inputs import (
    Args,
    Batch,
    Inputs,
    KeptInputs,
    Kwargs,
    Step,
    make_set,
    to_channels_last,
)
from effbench.models.spec import InputSpec
from effbench.modes.base import Example, Mode, Prepared
from effbench.workloads import state
from effbench.workloads.endings import GradientAttempts

Specs = Mapping[str, InputSpec]


def copies(inputs: Inputs, dtype: torch.dtype | None = None) -> Inputs:
    """Return copies of the inputs as ordinary tensors, floats in `dtype` unless it is None. Clones
    made in inference mode are inference tensors, for which Dynamo would compile a second graph."""

    def copy(value: Tensor) -> Tensor:
        copied = value.detach().clone()
        if dtype is not None and copied.is_floating_point():
            return copied.to(dtype)
        return copied

    with torch.inference_mode(False):
        copied: Inputs = tree_map_only(Tensor, copy, inputs)
        return copied


def make_sets(cell: Cell, specs: Specs, sets: int) -> list[Inputs]:
    """Return `sets` inputs of the cell's batch size, each with other values."""
    dtype = getattr(torch, cell.dtype)
    return [
        make_set(specs, number, cell.bs, dtype, cell.device, cell.numerics)
        for number in range(1, sets + 1)
    ]


def finish_building(module: nn.Module, cell: Cell, specs: Specs) -> None:
    """Make the weights that the first call makes, and set the memory format."""
    if any(map(nn.parameter.is_lazy, module.parameters())):
        args, kwargs = make_sets(cell, specs, 1)[0]
        for attempt in GradientAttempts():
            with attempt:
                module(*args, **kwargs)
    if cell.numerics.get("channels_last"):
        module._apply(to_channels_last)


def unsplittable(cell: Cell, mode: Mode) -> str | None:
    """Return why the mode cannot run this cell on several devices, or None."""
    parallel = Parallel.parse(cell.parallel or NONE)
    if parallel is None:
        return None
    wanted = "training" if parallel.has_own_batches else "inference"
    setting = f"parallel={cell.parallel}"
    if cell.phase != wanted:
        return f"{setting} supports phase={wanted}, not phase={cell.phase}"
    if cell.stream is not None:
        return f"{setting} does not support streams"
    if cell.numerics.get("quantize"):
        return f"{setting} does not support numerics.quantize"
    if not mode.splits:
        return f"the mode {cell.mode_name} does not support {setting}"
    if getattr(mode, "regional", False):
        return f"mode.regional does not support {setting}: it copies the module"
    return None


@dataclass(frozen=True)
class InputSets:
    """Inputs on the device. `timed`: those of the calls of a pass, in order; `checked`: those whose
    results are compared with eager's."""

    timed: list[Inputs]
    checked: list[Inputs]


@dataclass(eq=False)
class Workload(ABC):
    """What is done with a module in a trial, which it records in `trial`.

    `specs`: the inputs of the module by name. `check_steps`: training steps to compare. `step`:
    what is timed, once it is prepared. `ran`: the module that the step runs, which may be a copy.
    `initial`: the module's initial state, as far as eager changes it. `written`: inputs that the
    step writes to; `kept`: their values. `parallel`: how the module is split, once it is;
    `whole_initial`: the initial state before that. `rank_flops`: of each rank's calls then.
    `degraded`: which effect of eager's calls the mode lacks, or why the figures are not those that
    the cell asks for; None after an ok trial. `grad_mode`: how all calls record gradients.
    """

    cell: Cell
    mode: Mode
    module: nn.Module
    trial: Trial
    specs: Specs
    check_steps: int = 5

    #: Whether back-to-back calls are timed on a GPU.
    has_period = True
    #: Whether calls differ by themselves: then their times vary without a disturbance.
    has_varied_calls = False
    #: Whether a profile of its inputs shows the calls that are timed.
    has_profile = True

    def __post_init__(self) -> None:
        self.device = torch.device(self.cell.device)
        self.seed: int = self.cell.numerics.get("seed", 0)
        tolerance = self.cell.model.get("tolerance")
        self.comparison = Comparison(getattr(torch, self.cell.dtype), tolerance, self.device)
        self.positional = [name for name, spec in self.specs.items() if not spec.keyword]
        self.inputs = InputSets([], [])
        self.step: Step = self.module
        self.ran = self.module
        self.initial: state.State = {}
        self.written: set[str] = set()
        self.kept = KeptInputs([])
        self.parallel: Parallel | None = None
        self.whole_initial: state.State = {}
        self.rank_flops = 0
        self.degraded: str | None = None
        self.grad_mode = gradients.GRAD

    # --- what a cell needs

    @classmethod
    def unsupported(cls, cell: Cell, mode: Mode) -> str | None:
        """Return why the mode cannot run this workload, or None."""
        if cell.parallel is None:
            return None
        return unsplittable(cell, mode)

    def batch(self) -> Batch:
        """Return the batch sizes of the calls, and the dimension of each input that they vary."""
        return Batch.of(self.specs, [self.cell.bs])

    def make_inputs(self, sets: int) -> None:
        """Set the inputs. `sets`: how many with other values there are."""
        made = make_sets(self.cell, self.specs, sets)
        self.inputs = InputSets(made, made)

    # --- several devices

    def split(self, parallel: Parallel) -> None:
        """Split the module over the ranks of the process group, after `take_reference`, and make
        again what depends on its parameters. Calls start in the initial state. Raises
        UnsupportedError if the module cannot be split."""
        from effbench.models import parallel as models_parallel

        communication = models_parallel.Communication()
        # the counter may lack an operator
        with suppress(Exception), self.context(), communication:
            self.rank_flops = self.count_flops(*copies(self.inputs.checked[0]))
        self.parallel = parallel
        self.whole_initial = dict(self.initial)
        if not parallel.has_own_batches:
            if communication.seen or models_parallel.has_parts(self.module):
                return  # the module is tensor parallel by itself
            self.rank_flops //= parallel.size
        with gradients.outside_inference_mode():
            models_parallel.split(self.module, parallel, self.device)

    def unsplit(self) -> Self:
        """Return this workload with a module that is not split, built again if necessary."""
        if self.parallel is None:
            return self
        with gradients.outside_inference_mode(), torch.enable_grad():
            module = build_module_of(self.cell, self.device)
            finish_building(module, self.cell, self.specs)
            other = type(self)(
                self.cell,
                self.mode,
                module,
                self.trial,
                self.specs,
                self.check_steps,
            )
        other.inputs = self.inputs
        other.initial = self.whole_initial
        return other

    # --- calls

    def context(self) -> AbstractContextManager[None]:
        """Return the context in which all calls are made."""
        return gradients.recording(self.grad_mode)

    def make_step(self, example: Example) -> Prepared:
        """Return the step that the mode makes of the module."""
        return self.mode.prepare(self.module, example)

    def prepare(self, example: Example) -> Prepared:
        """Prepare the step that is timed. Raises TypeError if the user's mode returns something
        else."""
        prepared = self.make_step(example)
        if not isinstance(prepared, Prepared):
            mode, kind = type(self.mode).__name__, type(prepared).__name__
            raise TypeError(f"{mode} must return effbench.modes.base.Prepared, got {kind}")
        self.step = prepared.step
        if prepared.module is not None:
            self.ran = prepared.module
        return prepared

    def settling_calls(self) -> int:
        """Return how many first calls still prepare."""
        return self.mode.settling_calls

    def by_name(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """Return the inputs of a call by name."""
        return dict(zip(self.positional, args, strict=False), **kwargs)

    def input_tensors(self, given: Inputs) -> dict[str, Tensor]:
        """Return the input tensors by names like `input x`."""
        return {f"input {name}": value for name, value in self.by_name(*given).items()}

    def changed_inputs(self, given: Inputs, after: Inputs) -> dict[str, Tensor]:
        """Return the input tensors of a call, by names like `input x`, that have other values than
        the `given` ones, whose dtypes may be others."""
        before = self.input_tensors(given)
        return {
            name: value
            for name, value in self.input_tensors(after).items()
            if not torch.equal(value, before[name].to(value))
        }

    def keep_inputs(self) -> None:
        """Keep the values of the inputs that the step writes to, before it is timed."""
        tensors: list[Tensor] = []
        for given in (*self.inputs.timed, *self.inputs.checked):
            by_name = self.input_tensors(given)
            tensors += [by_name[name] for name in self.written]
        self.kept = KeptInputs(tensors)

    def restore_state(self, module: nn.Module) -> None:
        """Restore the initial state of eager in this module."""
        state.restore(module, self.initial, self.device)

    # --- comparison with eager

    @abstractmethod
    def take_reference(self) -> None:
        """Keep eager's results. Raises Ended if nothing can be compared with them."""

    @abstractmethod
    def check(self) -> None:
        """Compare the step's results with eager's, then restore the initial state. Raises Ended if
        they differ."""

    @abstractmethod
    def wrong_after_timing(self) -> str | None:
        """Return a reason if the results became wrong during timing, else None."""

    # --- figures

    def calls_per_pass(self) -> int:
        """Return after how many calls the inputs repeat, as far as their sizes matter."""
        return 1

    def time_latency(self, timer: Timer, budget_s: float) -> Timing:
        """Time calls, one at a time."""
        return timer.latency(budget_s)

    def count_flops(self, args: Args, kwargs: Kwargs) -> int:
        """Count the FLOPs of one eager call; of this rank's part of it if ranks share it."""
        if self.parallel is not None:
            return self.rank_flops
        return flops.count(self.module, args, kwargs)

    def figures(self, latency_ms: float) -> dict[str, Any]:
        """Set further figures of the timed trial, and return further facts."""
        return {}

    def unpaired(self) -> str | None:
        """Return why the baseline's and the mode's calls cannot alternate in one process, or
        None."""
        return None
