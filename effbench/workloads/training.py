"""The workload of phase=training: training steps of a module, the state that they change, and how
to restore it.

A step zeroes the gradients, then runs forward, loss, backward and the optimizer. It is built from
the module or a compiled form of it: a mode provides the forward, or captures the whole step.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from effbench.core.cell import Cell, Status
from effbench.core.errors import UnsupportedError
from effbench.core.parallel import Parallel, ParallelKind
from effbench.measure import flops
from effbench.measure.accuracy import not_finite
from effbench.measure.training_accuracy import (
    Exact,
    Named,
    TrainingComparison,
    Trajectory,
)
from effbench.models.build import set_seed
from effbench.models.inputs import Args, Inputs, Kwargs, Step
from effbench.modes.base import Example, Mode, Prepared
from effbench.workloads import dropout, quantization
from effbench.workloads.base import Workload, copies
from effbench.workloads.endings import Ended, without_float64
from effbench.workloads.losses import make_loss
from effbench.workloads.state import is_dense, on_host, same, save

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
#: Added to the reason if eager's own loss depends on the seed.
RANDOM = (
    "; eager's loss depends on the random seed, so no mode can be compared with it: switch off what"
    " is random in your module; for example, set its dropout to 0, such as model.module.dropout=0"
)
#: Steps in which DistributedDataParallel arranges and times its collectives.
UNCAPTURED = 11
#: How many other seeds are tried. A kernel that adds in another order may change a few losses.
OTHER_SEEDS = 8
#: Relative rounding error of a loss in float32.
ROUNDING = 1e-7


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a cell's training; `settings.Training` documents them."""

    optimizer: str
    implementation: str
    lr: float
    set_to_none: bool
    loss: str


class TrainingSteps(Workload):
    """Training steps over the module. `initial`: its whole state, except parameters that stay
    frozen. `wrapped`: the module with averaged gradients, or the module itself."""

    reference: Trajectory

    def __post_init__(self) -> None:
        super().__post_init__()
        self.module.train()
        self.settings = TrainingSettings(**(self.cell.training or {}))
        self.loss = make_loss(self.settings.loss, self.seed + 104729)
        dropout_off = dropout.switch_off(self.module)
        if dropout_off:
            self.trial.extra["dropout_off"] = dropout_off
        self.wrapped = self.module
        self.parameters = self.trained()
        if not self.parameters:
            raise UnsupportedError(
                "nothing to train: no parameter of the module requires a gradient"
            )
        self.optimizer = self.new_optimizer(self.parameters)
        # also frozen parameters: a momentum encoder writes to them in forward
        self.initial = save(self.module)

    @classmethod
    def unsupported(cls, cell: Cell, mode: Mode) -> str | None:
        if cell.numerics.get("quantize"):
            return "numerics.quantize does not support phase=training"
        return super().unsupported(cell, mode)

    def trained(self) -> dict[str, Tensor]:
        """Return the parameters that require gradients by name."""
        named = self.module.named_parameters()
        return {name: value for name, value in named if value.requires_grad}

    def new_optimizer(self, parameters: dict[str, Tensor]) -> torch.optim.Optimizer:
        """Return an optimizer, whose step may become part of a CUDA graph. Raises UnsupportedError
        if it cannot count its steps there."""
        name = self.settings.optimizer
        implementation = self.settings.implementation
        is_capturable = implementation == "capturable"
        if is_capturable and (self.device.type == "cpu" or name == "sgd"):
            raise UnsupportedError(
                "training.implementation=capturable needs CUDA and an optimizer that counts its"
                " steps, which sgd does not"
            )
        flags = {
            "foreach": implementation in ("foreach", "capturable"),
            "fused": implementation == "fused",
        }
        if name != "sgd":
            # it must count its steps on the device, because a graph cannot count on the host
            flags["capturable"] = is_capturable or self.mode.captures_step
        # torch warns if such an optimizer steps outside a graph, which the warm-up does
        warnings.filterwarnings("ignore", message=".*capturable=True.*")
        return OPTIMIZERS[name](parameters.values(), lr=self.settings.lr, **flags)

    # --- several devices

    def split(self, parallel: Parallel) -> None:
        from effbench.models.parallel import data_parallel

        super().split(parallel)
        if parallel.kind is ParallelKind.DATA:
            has_unused = self.parameters.keys() != self.reference.last.keys()
            self.wrapped = data_parallel(self.module, self.device, has_unused)
        self.parameters = self.trained()
        self.optimizer = self.new_optimizer(self.parameters)
        self.restore()

    def unsplit(self) -> TrainingSteps:
        other = super().unsplit()
        other.reference = self.reference
        return other

    # --- state

    @property
    def buffers(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.ran.named_buffers() if is_dense(value)}

    def state(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    def restore(self) -> None:
        """Restore the initial parameters, buffers, attributes and optimizer state (zeros), and the
        random seed. Tensors are changed in place, because CUDA graphs use their addresses."""
        self.restore_state(self.ran)
        for value in tree_leaves(list(self.optimizer.state.values())):
            if isinstance(value, Tensor):
                value.zero_()
        set_seed(self.seed)

    # --- steps

    def make_step(self, example: Example) -> Prepared:
        forward = self.mode.prepare_forward(self.wrapped, example)
        prepared = dataclasses.replace(forward, step=self.step_over(forward.step), copy_inputs=None)
        if self.wrapped is not self.module:
            prepared = dataclasses.replace(prepared, module=self.module)
            if self.mode.captures_step:
                self.settle(prepared.step, example)
        return self.mode.prepare_step(prepared, example)

    def settle(self, step: Step, example: Example) -> None:
        """Make the first steps with averaged gradients, which a CUDA graph cannot capture."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(UNCAPTURED):
                step(*example.args, **example.kwargs)
        torch.cuda.current_stream(self.device).wait_stream(stream)

    def step_over(self, forward: Callable[..., Any]) -> Callable[..., Tensor]:
        """Return a training step that calls `forward`. It returns the loss before the update, a
        detached scalar."""
        zero_grad = self.optimizer.zero_grad
        update = self.optimizer.step
        set_to_none = self.settings.set_to_none
        loss_of = self.loss
        written = self.written

        def step(*args: Any, **kwargs: Any) -> Tensor:
            # else an input that the module writes to would carry the graph of the step before
            if written:
                args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
            zero_grad(set_to_none=set_to_none)
            output = forward(*args, **kwargs)
            loss = loss_of(output, self.by_name(args, kwargs))
            loss.backward()
            update()
            return loss.detach()

        return step

    def follow(self, step: Step) -> Trajectory:
        """Run steps from the initial state and return their trajectory. A separate optimizer
        applies the same gradients to a copy of the parameters."""
        self.restore()
        alone = {
            name: value.detach().clone().requires_grad_() for name, value in self.parameters.items()
        }
        optimizer = self.new_optimizer(alone)
        losses: list[float] = []
        first: Named = {}
        before: Named = {}
        for number in range(self.check_steps):
            if number == self.check_steps - 1:
                before = on_host(self.state())
            given = self.inputs_of_step(number)
            args, kwargs = copies(given)
            losses.append(float(step(*args, **kwargs)))
            self.written |= self.changed_inputs(given, (args, kwargs)).keys()
            gradients = gradients_of(self.parameters)
            for name, value in alone.items():
                value.grad = gradients.get(name)
            optimizer.step()
            first = first or on_host(gradients)
        return Trajectory(
            losses=losses,
            first=first,
            last=on_host(gradients),
            parameters=on_host(self.parameters),
            buffers=on_host(self.buffers),
            before=before,
            alone=on_host(alone),
        )

    def inputs_of_step(self, number: int) -> Inputs:
        """Return the inputs of step `number` (from 0). The last step has a set of its own, to
        expose stale inputs."""
        inputs = self.inputs.checked
        if number == self.check_steps - 1:
            return inputs[-1]
        return inputs[number % max(1, len(inputs) - 1)]

    # --- comparison with eager

    def take_reference(self) -> None:
        """Keep the trajectory of eager's steps. Raises Ended if it is not finite."""
        self.reference = self.follow(self.step_over(self.module))
        reason = self.reference.not_finite()
        if reason is not None:
            raise Ended(
                Status.INCORRECT,
                f"in eager, {reason}; if training diverged, choose a smaller training.lr",
            )
        # weights that stay frozen need no restoring
        frozen = {
            name
            for name in self.initial
            if name.kind == "parameter" and name.path not in self.parameters
        }
        for name, value in save(self.module, frozen).items():
            if same(value, self.initial[name]):
                del self.initial[name]
        self.restore()

    def exact(self, state: Named, number: int) -> Exact:
        """Run forward and backward of step `number` in float64, on a copy with the (rounded)
        parameters and buffers of `state`."""
        module = quantization.double(self.module)
        module.zero_grad()
        parameters = dict(module.named_parameters())
        buffers = dict(module.named_buffers())
        with torch.no_grad():
            for name, value in {**parameters, **buffers}.items():
                if name in state:  # frozen parameters are unchanged
                    value.copy_(state[name])
        set_seed(self.seed)
        loss = self.loss_of(module, copies(self.inputs_of_step(number), torch.float64))
        loss.backward()
        return Exact(float(loss.detach()), on_host(gradients_of(parameters)), on_host(buffers))

    def check(self) -> None:
        trajectory = self.follow(self.step)
        start = {
            name.path: value for name, value in self.initial.items() if name.kind != "attribute"
        }
        tolerance = self.comparison.limit(self.comparison.dtype)
        comparison = TrainingComparison(trajectory, self.reference, start, tolerance, self.device)
        verdict = comparison.verdict()
        reason = verdict.reason
        self.trial.rel_error = verdict.error
        facts: dict[str, Any] = {
            "steps": len(trajectory.losses),
            "losses": trajectory.losses,
            "judged_by_float64": False,
        }
        self.trial.extra["training"] = facts
        # not even float64 can judge other random numbers
        if reason is not None and self.unsplit().is_random():
            reason = f"{reason}{RANDOM}"
        elif reason is not None and verdict.only_values:
            facts["judged_by_float64"] = True
            last = self.check_steps - 1
            try:
                unsplit = self.unsplit()
                reason = comparison.far_from_float64(
                    unsplit.exact(start, 0),
                    unsplit.exact(trajectory.before, last),
                    unsplit.exact(self.reference.before, last),
                )
            except Exception as error:  # a module may raise anything in an unexpected dtype
                reason = without_float64(str(reason), error)
        if reason is not None:
            raise Ended(Status.INCORRECT, reason)
        self.restore()

    def is_random(self) -> bool:
        """Return whether the loss of eager's first step changes with most seeds, by much more than
        without another seed: some kernels add in another order in some calls."""
        loss = self.reference.losses[0]
        noise = ROUNDING * abs(loss)
        changes = []
        try:
            for number in range(1, OTHER_SEEDS + 1):
                noise = max(noise, abs(self.eager_loss(self.seed) - loss))
                changes.append(abs(self.eager_loss(self.seed + number) - loss))
        except RuntimeError:  # such as no memory for it: the reason stays as it is
            return False
        return median(changes) > 10 * noise

    def eager_loss(self, seed: int) -> float:
        """Return eager's loss in the initial state, with random numbers of this seed."""
        self.restore()
        set_seed(seed)
        return float(self.loss_of(self.module, copies(self.inputs_of_step(0))).detach())

    def loss_of(self, module: nn.Module, given: Inputs) -> Tensor:
        args, kwargs = given
        return self.loss(module(*args, **kwargs), self.by_name(args, kwargs))

    def wrong_after_timing(self) -> str | None:
        """Return a reason if the loss or a parameter is not finite after the timed steps, else
        None."""
        given = self.inputs.checked[0]
        self.kept.restore(given)
        args, kwargs = given
        name = not_finite({"the loss": self.step(*args, **kwargs), **self.state()})
        if name is None:
            return None
        return f"{name} is not finite after timing: training diverged; choose a smaller training.lr"

    # --- figures

    def count_flops(self, args: Args, kwargs: Kwargs) -> int:
        if self.parallel is not None:
            return self.rank_flops
        return flops.count_call(self.step_over(self.module), args, kwargs)

    def unpaired(self) -> str | None:
        return "each side's training steps change the other side's weights"


def gradients_of(parameters: Named) -> dict[str, Tensor]:
    """Return the gradients of these parameters by name, dense ones."""
    return {
        name: value.grad.to_dense() for name, value in parameters.items() if value.grad is not None
    }
