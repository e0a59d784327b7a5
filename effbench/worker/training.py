"""Training steps of a module, the state that they change, and how to restore it.

A step zeroes the gradients, then runs forward, loss, backward and the optimizer. `Training` builds
it from the module or a compiled form of it: a mode provides the forward, or captures the whole
step.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from effbench.cell import Cell, Status, Trial
from effbench.errors import UnsupportedError
from effbench.measure import accuracy, gradients, work
from effbench.measure.timing import Inputs
from effbench.measure.training_accuracy import Comparison, Exact, Named, Trajectory
from effbench.models.build import resolve_target, set_seed
from effbench.models.inputs import HOST_ELEMENTS
from effbench.modes.base import Mode, Prepared, required
from effbench.worker import dropout, quantization
from effbench.worker.failures import Ended, without_float64
from effbench.worker.state import is_dense, on_host, places, restore, same, save
from effbench.worker.workload import Inference

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
#: Added to the reason if eager's own loss depends on the seed.
RANDOM = (
    "; eager's loss depends on the random seed, so the module draws random numbers: modes cannot be"
    " compared"
)

DETACHED = (
    "the loss depends on no parameter that requires a gradient: forward or training.loss"
    " detaches it"
)

#: Why a second backward fails, as of a key-value cache.
KEEPS_GRAPH = (
    "keeps values of the step before with their graph: detach them in forward, or use"
    " phase=inference"
)

#: Maps a module's output, and its inputs by name, to a scalar.
Loss = Callable[[Any, dict[str, Any]], Tensor]


def make_optimizer(
    parameters: Iterable[Tensor], settings: dict[str, Any], captured: bool = False
) -> torch.optim.Optimizer:
    """Return an optimizer with these `settings` (optimizer, implementation, lr). `captured`: its
    step will be part of a CUDA graph. Raises UnsupportedError if torch lacks this implementation
    for these parameters."""
    parameters = list(parameters)
    name, how = settings["optimizer"], settings["implementation"]
    flags: dict[str, Any] = {"foreach": how in ("foreach", "capturable"), "fused": how == "fused"}
    if how == "capturable" and name == "sgd":
        raise UnsupportedError(
            "sgd has no capturable implementation, because it does not count steps; use another one"
        )
    if how == "capturable" and parameters[0].device.type != "cuda":
        raise UnsupportedError(
            f"a capturable optimizer needs CUDA, but this cell runs on {parameters[0].device}"
        )
    # torch finds out in the first step
    if how == "fused" and any(it.is_complex() for it in parameters):
        how_else = "choose training.implementation=foreach"
        raise UnsupportedError(
            f"{name} has no fused implementation for complex parameters; {how_else}"
        )
    if name != "sgd":
        # the optimizer must count its steps on the device, because a graph cannot count on the host
        flags["capturable"] = captured or how == "capturable"
    # torch warns if such an optimizer steps outside a graph, which the warm-up does
    warnings.filterwarnings("ignore", message=".*capturable=True.*")
    try:
        return OPTIMIZERS[name](parameters, lr=settings["lr"], **flags)
    except RuntimeError as error:
        if how == "fused":
            why = str(error).splitlines()[0]
            what = (
                f"{name} has no fused implementation for these parameters; choose"
                " training.implementation=foreach"
            )
            raise UnsupportedError(f"{what} ({why})") from error
        raise


class MeanSquare:
    """Sum over the float outputs of the mean square distance from a fixed random target, in
    float32."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.targets: list[Tensor] = []

    def __call__(self, output: Any, inputs: dict[str, Any]) -> Tensor:
        outs = floats(output)
        if not self.targets:
            self.targets = [target_like(out, self.seed + i) for i, out in enumerate(outs)]
        pairs = zip(outs, self.targets, strict=True)
        return functools.reduce(
            torch.add, [(out - target.to(out.dtype)).square().mean() for out, target in pairs]
        )


class Mean:
    """Sum of the means of the float outputs, in float32. `scale`: the same of their magnitudes,
    which cannot cancel."""

    scale: float | None = None

    def __call__(self, output: Any, inputs: dict[str, Any]) -> Tensor:
        outs = floats(output)
        if self.scale is None:
            self.scale = sum(float(out.detach().abs().mean()) for out in outs)
        return functools.reduce(torch.add, [out.mean() for out in outs])


def user_loss(function: Loss, name: str) -> Loss:
    """Return a user's loss as a callable that raises ValueError for anything but a tensor with one
    element."""

    def loss(output: Any, inputs: dict[str, Any]) -> Tensor:
        value = function(output, inputs)
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"training.loss={name} must return a tensor with one element, got {kind}"
            )
        return value.reshape(())

    return loss


def loss_of(name: str, seed: int) -> Loss:
    """Return the loss that `training.loss` names."""
    if name == "mean-square":
        return MeanSquare(seed)
    return Mean() if name == "mean" else user_loss(resolve_target(name), name)


def floats(output: Any) -> list[Tensor]:
    """Return the float outputs as real tensors of float32 or a wider dtype, without empty ones,
    whose mean is NaN."""
    tensors = (
        [output]
        if isinstance(output, Tensor)
        else accuracy.tensors(accuracy.parts(output, copy=False)).values()
    )
    outs = [
        accuracy.as_real(tensor)
        for tensor in tensors
        if accuracy.is_inexact(tensor) and tensor.numel()
    ]
    if not outs:
        raise ValueError(
            "the output has no float tensor to compute a loss from; return one, or use"
            " phase=inference"
        )
    return [out.to(torch.promote_types(out.dtype, torch.float32)) for out in outs]


def target_like(out: Tensor, seed: int) -> Tensor:
    """Return normal values in the shape of `out`. Unless `out` is huge, they are the same on all
    devices."""
    where = torch.device("cpu") if out.numel() <= HOST_ELEMENTS else out.device
    generator = torch.Generator(where).manual_seed(seed)
    return torch.randn(out.shape, generator=generator, device=where, dtype=torch.float32).to(
        out.device
    )


class Training(Inference):
    """The workload of phase=training: training steps over the module, and the initial state to
    restore."""

    def __init__(
        self, cell: Cell, mode: Mode, module: nn.Module, trial: Trial, check_steps: int
    ) -> None:
        super().__init__(cell, mode, module.train(), trial)
        self.settings, self.steps, self.captured = (
            cell.training or {},
            check_steps,
            mode.captures_step,
        )
        self.seed = cell.numerics.get("seed", 0)
        self.grad_mode = gradients.GRAD
        self.loss = self.new_loss()
        self.dropped: list[dropout.Probability] = []
        self.without_dropout(dropout.known(module))
        self.parameters = {
            name: value for name, value in module.named_parameters() if value.requires_grad
        }
        if not self.parameters:
            raise UnsupportedError(
                "nothing to train: no parameter of the module requires a gradient"
            )
        self.optimizer = make_optimizer(self.parameters.values(), self.settings, self.captured)
        # on the host, because device memory is measured
        self.initial = on_host(self.state())
        # also frozen parameters: a momentum encoder writes to them in forward
        self.others = self.untrained()

    def new_loss(self) -> Loss:
        return loss_of(self.settings["loss"], self.seed + 104729)

    def named(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a call by name."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def untrained(self) -> dict[str, Any]:
        """Return copies of all state except the trained parameters."""
        trained = {f"parameter {name}" for name in self.parameters}
        return save(self.module, places(self.module).keys() - trained)

    def without_dropout(self, probabilities: list[dropout.Probability]) -> None:
        """Set these probabilities to 0, and record all that were changed."""
        dropout.switch_off(probabilities)
        self.dropped += probabilities
        if self.dropped:
            self.trial.extra["dropout_off"] = dropout.described(self.dropped)

    def find_dropout(self, given: Inputs) -> None:
        """Switch off dropout that no library defines, which only calls of the module reveal."""
        suspects = dropout.suspects(self.module)
        if not suspects:
            return
        tried = {(id(vars(one.owner)), one.name) for group in suspects for one in group}
        held = {name: (id(values), key) for name, (values, key) in places(self.module).items()}
        # otherwise each restoring would undo what is tried
        self.others = {
            name: value for name, value in self.others.items() if held.get(name) not in tried
        }
        found = dropout.guilty(suspects, ForwardLoss(self, given))
        self.restore()
        self.without_dropout(found)
        self.others = self.untrained()

    @property
    def buffers(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.ran.named_buffers() if is_dense(value)}

    def state(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    def named_gradients(self) -> Named:
        grads = {name: value.grad for name, value in self.parameters.items()}
        return {
            name: it if it is None or it.layout is torch.strided else it.to_dense()
            for name, it in grads.items()
        }

    def step_over(self, forward: Callable[..., Any]) -> Callable[..., Tensor]:
        """Return a training step that calls `forward`. It returns the loss before the update, a
        detached scalar."""
        zero_grad, update = self.optimizer.zero_grad, self.optimizer.step
        set_to_none, loss_of, written = self.settings["set_to_none"], self.loss, self.written

        def step(*args: Any, **kwargs: Any) -> Tensor:
            # else an input that the module writes to would carry the graph of the step before
            if written:
                args, kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
            zero_grad(set_to_none=set_to_none)
            loss = loss_of(forward(*args, **kwargs), self.named(args, kwargs))
            if not loss.requires_grad:
                raise ValueError(DETACHED)
            try:
                loss.backward()
            except RuntimeError as error:
                if "backward through the graph a second time" not in str(error):
                    raise
                state = ((name, held[key]) for name, (held, key) in places(self.ran).items())
                kept = next(
                    (name for name, value in state if getattr(value, "grad_fn", None)), None
                )
                if kept is None:
                    raise
                raise ValueError(f"the {kept} {KEEPS_GRAPH}") from None  # torch names no tensor
            update()
            return loss.detach()

        return step

    def restore(self) -> None:
        """Restore the initial parameters, buffers, attributes and optimizer state (zeros), and the
        random seed. Tensors are changed in place, because CUDA graphs use their addresses."""
        restore(self.ran, self.others, self.device)
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(self.initial[name])
            for value in work.tensors(list(self.optimizer.state.values())):
                value.zero_()
        set_seed(self.seed)

    def follow(self, step: Callable[..., Tensor], inputs: Sequence[Inputs]) -> Trajectory:
        """Run steps from the initial state and return their trajectory. A separate optimizer
        applies the same gradients to a copy of the parameters."""
        self.restore()
        alone = {
            name: value.detach().clone().requires_grad_() for name, value in self.parameters.items()
        }
        optimizer = make_optimizer(alone.values(), self.settings, self.captured)
        losses, first, before = [], {}, {}
        for number in range(self.steps):
            if number == self.steps - 1:
                before = on_host(self.state())
            given = self.inputs_of(inputs, number)
            args, kwargs = accuracy.clone(given)
            losses.append(step(*args, **kwargs).clone())
            intact, after = self.tensors_of(given), self.tensors_of((args, kwargs)).items()
            self.written |= {name for name, value in after if not torch.equal(value, intact[name])}
            for name, value in self.named_gradients().items():
                alone[name].grad = None if value is None else value.detach().clone()
            optimizer.step()
            first = first or on_host(self.named_gradients())
        return Trajectory(
            losses=[float(loss) for loss in losses],
            first=first,
            last=on_host(self.named_gradients()),
            parameters=on_host(self.parameters),
            buffers=on_host(self.buffers),
            before=before,
            alone=on_host(alone),
            scale=getattr(self.loss, "scale", None),
        )

    def inputs_of(self, inputs: Sequence[Inputs], number: int) -> Inputs:
        """Return the inputs of step `number` (from 0). The last step has a set of its own, to
        expose stale inputs."""
        return inputs[-1] if number == self.steps - 1 else inputs[number % max(1, len(inputs) - 1)]

    def exact(self, state: Named, given: Inputs) -> Exact:
        """Run forward and backward in float64, on a copy with the (rounded) parameters and buffers
        of `state`."""
        module = quantization.double(self.module)
        module.zero_grad()
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        with torch.no_grad():
            for name, value in {**parameters, **buffers}.items():
                if name in state:  # frozen parameters are unchanged
                    value.copy_(state[name])
        set_seed(self.seed)
        args, kwargs = accuracy.wide(accuracy.clone(given))
        loss = self.loss(module(*args, **kwargs), self.named(args, kwargs))
        loss.backward()
        gradients = {name: value.grad for name, value in parameters.items() if value.requires_grad}
        return Exact(float(loss.detach()), on_host(gradients), on_host(buffers))

    def reference(self, inputs: Sequence[Inputs]) -> Trajectory:
        """Return the trajectory of eager's steps. Raises Ended if it is not finite, or if they
        create a parameter."""
        self.find_dropout(inputs[0])
        eager = self.follow(self.step_over(self.module), inputs)
        if reason := eager.not_finite():
            raise Ended(Status.INCORRECT, reason)
        for name, value in self.module.named_parameters():
            if value.requires_grad and value is not self.parameters.get(name):
                how = "do so in __init__, or use a lazy module"
                raise Ended(
                    Status.ERROR,
                    f"the optimizer lacks {name}, which forward creates or unfreezes; {how}",
                )
        now = save(self.module, self.others)
        # weights that stay frozen need no restoring
        self.others = {
            name: value
            for name, value in self.others.items()
            if not (name.startswith("parameter ") and same(value, now.get(name)))
        }
        self.restore()
        return eager

    def made(self, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        prepared = self.mode.prepare_training(self.module, self.step_over, args, kwargs)
        return required(prepared, self.mode.prepare_training)

    def check(self, step: Callable, inputs: Sequence[Inputs], references: Trajectory) -> None:
        """Compare the mode's steps with eager's, then restore the initial state. Raises Ended if
        they differ."""
        trajectory = self.follow(step, inputs)
        tolerance = self.tolerance or accuracy.limit_of(getattr(torch, self.cell.dtype), None)
        comparison = Comparison(trajectory, references, self.initial, tolerance)
        reason = comparison.wrong()
        doubts = [] if reason else list(comparison.doubts(self.device))
        self.trial.rel_error = comparison.error()
        self.trial.extra["training"] = {
            "steps": len(trajectory.losses),
            "losses": trajectory.losses,
            "judged_by_float64": bool(doubts),
            "not_within_tolerance": len(doubts),
        }
        if doubts:
            try:
                reason = comparison.far_from_float64(
                    lambda state, n: self.exact(state, self.inputs_of(inputs, n))
                )
            except Exception as error:  # a module may raise anything in an unexpected dtype
                reason = without_float64(doubts[0], error)
        if reason:
            raise Ended(
                Status.INCORRECT, reason + (RANDOM if self.is_random(inputs, references) else "")
            )
        self.restore()

    def is_random(self, inputs: Sequence[Inputs], references: Trajectory) -> bool:
        """Return whether the loss of eager's first step changes with the seed."""
        try:
            self.restore()
            set_seed(self.seed + 1)
            args, kwargs = accuracy.clone(self.inputs_of(inputs, 0))
            loss = float(self.step_over(self.module)(*args, **kwargs))
        except RuntimeError:  # such as no memory for it: the reason stays as it is
            return False
        return not math.isclose(loss, references.losses[0], rel_tol=1e-3)

    def after_timing(
        self, step: Callable, inputs: Sequence[Inputs], references: Trajectory
    ) -> str | None:
        """Return a reason if the loss or a parameter is not finite after the timed steps, else
        None."""
        self.renew(inputs[0])
        args, kwargs = inputs[0]
        loss = float(step(*args, **kwargs))
        name = accuracy.not_finite(self.state())
        if math.isfinite(loss) and name is None:
            return None
        reason = f"{name} is not finite" if math.isfinite(loss) else f"the loss is {loss:g}"
        return f"{reason} after timing: training diverged; choose a smaller training.lr"

    def count(self, args: tuple, kwargs: dict[str, Any]) -> work.Work:
        """Count the FLOPs of an eager step and its least bytes. They include one read and one write
        of each trained parameter, gradient and optimizer state, and the parts of inputs, buffers
        and frozen parameters that are read or written, but no activations."""
        frozen = [value for value in self.module.parameters() if not value.requires_grad]
        outer = [*frozen, *self.buffers.values(), *work.tensors((args, kwargs))]
        eager, _ = work.observe(outer, lambda: self.step_over(self.module)(*args, **kwargs))
        trained = [value for value in self.parameters.values() if value.grad is not None]
        state = work.tensors([self.optimizer.state.get(parameter, {}) for parameter in trained])
        moved = [*trained, *(value.grad for value in trained), *state]
        return work.Work(eager.flops, eager.min_bytes + 2 * sum(value.nbytes for value in moved))


class ForwardLoss:
    """Eager's first forward and its loss, from the initial state and for any seed."""

    def __init__(self, training: Training, given: Inputs) -> None:
        self.training, self.given, self.loss_of = training, given, training.new_loss()

    def start(self, number: int) -> None:
        self.training.restore()
        set_seed(self.training.seed + number)

    def call(self) -> Any:
        args, kwargs = accuracy.clone(self.given)
        self.inputs = self.training.named(args, kwargs)
        return self.training.module(*args, **kwargs)

    def loss(self, output: Any) -> float:
        return float(self.loss_of(output, self.inputs).detach())

    def eval_loss(self) -> float:
        module = self.training.module.eval()
        try:
            return self.loss(self.call())
        finally:
            module.train()
