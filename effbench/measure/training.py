"""A training step over a module, the state that it changes, and how to restore it.

One step: gradients zeroed, forward, loss, backward, optimizer. `Training` makes such a step over any callable that
means the module (the module itself, its compiled form): a mode provides the forward, or captures the whole step.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from effbench.errors import UnsupportedError
from effbench.measure import accuracy, work
from effbench.measure.timing import Inputs
from effbench.measure.training_accuracy import Exact, Trajectory
from effbench.models.inputs import HOST_ELEMENTS

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
#: Classes outside torch that drop at random while training, and the attribute with the probability.
RANDOM = {"StochasticDepth": "p", "DropPath": "drop_prob"}


def make_optimizer(
    parameters: Iterable[Tensor], settings: dict[str, Any], captured: bool = False
) -> torch.optim.Optimizer:
    """Return the optimizer of `settings` (optimizer, implementation, lr). `captured`: its step will be in a CUDA graph.

    Raises UnsupportedError for an implementation that does not exist for these parameters.
    """
    parameters = list(parameters)
    name, how = settings["optimizer"], settings["implementation"]
    flags: dict[str, Any] = {"foreach": how in ("foreach", "capturable"), "fused": how == "fused"}
    if how == "capturable":
        if name == "sgd":
            raise UnsupportedError(
                "sgd has no capturable implementation and needs none: it counts no steps on the host"
            )
        if parameters[0].device.type != "cuda":
            raise UnsupportedError(f"a capturable optimizer needs CUDA, and this cell runs on {parameters[0].device}")
    if name != "sgd":
        # the step is counted on the device: a graph cannot count on the host
        flags["capturable"] = captured or how == "capturable"
    # torch warns if such an optimizer takes a step outside a graph, as it must for warm-up
    warnings.filterwarnings("ignore", message=".*capturable=True.*")
    try:
        return OPTIMIZERS[name](parameters, lr=settings["lr"], **flags)
    except RuntimeError as error:
        if how == "fused":
            raise UnsupportedError(f"{name} has no fused implementation here: {str(error).splitlines()[0]}") from error
        raise


class MeanSquare:
    """The squared distance of every float output from a fixed random target, averaged over its elements, in float32."""

    scale: float | None = None

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.targets: list[Tensor] = []

    def __call__(self, output: Any, inputs: dict[str, Any]) -> Tensor:
        outs = floats(output)
        if not self.targets:
            self.targets = [target_like(out, self.seed + i) for i, out in enumerate(outs)]
        pairs = zip(outs, self.targets, strict=True)
        return total([(out - target.to(out.dtype)).square().mean() for out, target in pairs])


class Mean:
    """The mean of every float output, in float32. `scale`: the mean of their magnitudes, since a mean may cancel."""

    def __init__(self) -> None:
        self.scale: float | None = None

    def __call__(self, output: Any, inputs: dict[str, Any]) -> Tensor:
        outs = floats(output)
        if self.scale is None:
            self.scale = sum(float(out.detach().abs().mean()) for out in outs)
        return total([out.mean() for out in outs])


class UserLoss:
    """A user's callable(output, inputs) -> scalar; `inputs` maps the names of the model's inputs to tensors."""

    scale: float | None = None

    def __init__(self, function: Callable[[Any, dict[str, Any]], Tensor], name: str) -> None:
        self.function = function
        self.name = name

    def __call__(self, output: Any, inputs: dict[str, Any]) -> Tensor:
        loss = self.function(output, inputs)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"training.loss={self.name} gave {found}; it must give a tensor with one element")
        return loss.reshape(())


def floats(output: Any) -> list[Tensor]:
    """Return the float outputs as real tensors of float32 at least."""
    outs = [accuracy.as_real(leaf) for _, leaf in accuracy.leaves(output) if accuracy.is_inexact(leaf)]
    if not outs:
        raise ValueError("the output holds no float tensor: training needs a loss")
    return [out.to(torch.promote_types(out.dtype, torch.float32)) for out in outs]


def total(terms: list[Tensor]) -> Tensor:
    """Return their sum, without a needless kernel."""
    return functools.reduce(torch.add, terms)


def target_like(out: Tensor, seed: int) -> Tensor:
    """Return normal values in the shape of `out`, the same on every device unless it is huge."""
    where = torch.device("cpu") if out.numel() <= HOST_ELEMENTS else out.device
    generator = torch.Generator(where).manual_seed(seed)
    return torch.randn(out.shape, generator=generator, device=where, dtype=torch.float32).to(out.device)


def without_dropout(module: nn.Module) -> int:
    """Set every dropout layer's probability to 0, since compilers draw other masks than eager; return their number."""
    found = 0
    for part in module.modules():
        known = {nn.modules.dropout._DropoutNd: "p", nn.MultiheadAttention: "dropout", nn.RNNBase: "dropout"}
        name = next((name for kind, name in known.items() if isinstance(part, kind)), RANDOM.get(type(part).__name__))
        if name and getattr(part, name, None):
            setattr(part, name, 0.0)
            found += 1
    return found


class Training:
    """The module in training mode with its optimizer and loss, and its initial state to return to.

    `names`: names of the model's positional inputs. `captured`: the step will be in a CUDA graph.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: dict[str, Any],
        loss: Callable[[Any, dict[str, Any]], Tensor],
        names: Sequence[str],
        seed: int,
        captured: bool = False,
    ) -> None:
        self.module = module.train()
        self.dropped = without_dropout(module)
        self.settings, self.loss, self.names, self.seed, self.captured = settings, loss, names, seed, captured
        self.parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if not self.parameters:
            raise UnsupportedError("nothing to train: no parameter of the module requires a gradient")
        self.buffers = dict(module.named_buffers())
        self.optimizer = make_optimizer(self.parameters.values(), settings, captured)
        # on the host: the device's memory is what is measured
        self.initial = on_host({**self.parameters, **self.buffers})

    def step_over(self, forward: Callable[..., Any]) -> Callable[..., Tensor]:
        """Return a training step; its result is the loss before the step, a detached scalar."""
        zero_grad, update = self.optimizer.zero_grad, self.optimizer.step
        set_to_none, loss_of, names = self.settings["set_to_none"], self.loss, self.names

        def step(*args: Any, **kwargs: Any) -> Tensor:
            zero_grad(set_to_none=set_to_none)
            loss = loss_of(forward(*args, **kwargs), {**dict(zip(names, args, strict=False)), **kwargs})
            loss.backward()
            update()
            return loss.detach()

        return step

    def restore(self) -> None:
        """Restore parameters, buffers and the optimizer's state from before the first step, in place: a CUDA graph
        knows them by address. These optimizers begin with a state of zeros."""
        with torch.no_grad():
            for name, value in {**self.parameters, **self.buffers}.items():
                value.copy_(self.initial[name])
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
        torch.manual_seed(self.seed)

    def gradients(self) -> dict[str, Tensor | None]:
        return {name: value.grad for name, value in self.parameters.items()}

    def follow(self, step: Callable[..., Tensor], inputs: Sequence[Inputs], steps: int) -> Trajectory:
        """Take `steps` steps from the initial state, one input set after the other; a separate optimizer takes the same
        steps, given the same gradients."""
        self.restore()
        alone = {name: value.detach().clone().requires_grad_() for name, value in self.parameters.items()}
        optimizer = make_optimizer(alone.values(), self.settings, self.captured)
        losses: list[Tensor] = []
        first: dict[str, Tensor | None] = {}
        before: dict[str, Tensor] = {}
        for number in range(steps):
            if number == steps - 1:
                before = on_host({**self.parameters, **self.buffers})
            args, kwargs = accuracy.clone(inputs_of(inputs, number, steps))
            losses.append(step(*args, **kwargs).clone())
            for name, value in self.gradients().items():
                alone[name].grad = None if value is None else value.detach().clone()
            optimizer.step()
            first = first or on_host(self.gradients())
        return Trajectory(
            [float(loss) for loss in losses],
            first,
            on_host(self.gradients()),
            on_host(self.parameters),
            on_host(self.buffers),
            before,
            on_host(alone),
            self.loss.scale,  # type: ignore[attr-defined]
        )

    def exact(self, state: dict[str, Tensor], given: Inputs) -> Exact:
        """Return loss, gradients and buffers of one step in float64 on a copy with the (rounded) parameters and buffers
        of `state`."""
        gradients = self.gradients()
        self.set_gradients(dict.fromkeys(gradients))
        try:
            module = copy.deepcopy(self.module).double()
        finally:
            self.set_gradients(gradients)
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        with torch.no_grad():
            for name, value in {**parameters, **buffers}.items():
                if name in state:  # a frozen parameter is as it was
                    value.copy_(state[name])
        torch.manual_seed(self.seed)
        args, kwargs = accuracy.clone(given)
        args, kwargs = tuple(map(accuracy.wide, args)), {name: accuracy.wide(v) for name, v in kwargs.items()}
        loss = self.loss(module(*args, **kwargs), {**dict(zip(self.names, args, strict=False)), **kwargs})
        loss.backward()
        gradients = {name: value.grad for name, value in parameters.items() if value.requires_grad}
        return Exact(float(loss.detach()), on_host(gradients), on_host(buffers))

    def set_gradients(self, gradients: dict[str, Tensor | None]) -> None:
        for name, value in gradients.items():
            self.parameters[name].grad = value

    def not_finite(self, loss: Tensor) -> str | None:
        """Return what is not finite any more, or None."""
        if not math.isfinite(float(loss)):
            return f"the loss is {float(loss):g}"
        for name, value in {**self.parameters, **self.buffers}.items():
            if accuracy.is_inexact(value) and not bool(torch.isfinite(value).all()):
                return f"{name} is not finite"
        return None

    def count(self, args: tuple, kwargs: dict[str, Any]) -> work.Work:
        """Count the FLOPs of forward and backward (torch's FlopCounterMode on an eager step) and the least bytes of a
        step.

        A lower bound: each trained parameter and each tensor of the optimizer's state read and written once, each
        gradient written and read once; the parts of inputs, buffers and frozen parameters that are read and written.
        Activations do not count.
        """
        from torch.utils.flop_counter import FlopCounterMode

        frozen = [value for value in self.module.parameters() if not value.requires_grad]
        traffic = work.Traffic([*frozen, *self.buffers.values(), *work.tensors((args, kwargs))])
        flops = FlopCounterMode(display=False)
        with flops, traffic:
            self.step_over(self.module)(*args, **kwargs)
        trained = [value for value in self.parameters.values() if value.grad is not None]
        state = [
            value
            for parameter in trained
            for value in self.optimizer.state.get(parameter, {}).values()
            if isinstance(value, Tensor)
        ]
        moved = sum(value.nbytes for value in [*trained, *(value.grad for value in trained), *state])
        return work.Work(flops.get_total_flops(), traffic.bytes() + 2 * moved)


def on_host(tensors: dict[str, Tensor | None]) -> dict[str, Any]:
    """Return copies in host memory; None stays."""
    return {name: None if value is None else value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def inputs_of(inputs: Sequence[Inputs], number: int, steps: int) -> Inputs:
    """Return the inputs of a step, counted from 0. The last step has its own set, which exposes stale inputs."""
    if number == steps - 1:
        return inputs[-1]
    return inputs[number % max(1, len(inputs) - 1)]
