"""The workload of phase=generate: requests that generate tokens greedily, with a static key-value
cache.

The module is a decode step: token [B, T], position [T] -> logits of the last token [B, 1, V]. It
writes the keys and values of the tokens to buffers, at their positions. The mode makes the step for
one token, which has one static shape. The prompt is one eager call in every mode: its shape is
another one, and model.task=prefill measures it in any mode.

B requests of a batch, P tokens of the prompt, T tokens of a call, N generated tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from effbench.cell import Cell, Status, Trial
from effbench.errors import UnsupportedError
from effbench.measure import accuracy, timing
from effbench.measure.timing import Inputs
from effbench.models.spec import InputSpec
from effbench.modes.base import Mode, Prepared
from effbench.worker import state
from effbench.worker.failures import Ended
from effbench.worker.workload import Inference, copies

INPUTS = ["token", "position"]
#: Called with the number of each token, from 0, and the logits [B, 1, V] that decided it.
See = Callable[[int, Tensor], None]


def unsuitable(cell: Cell, names: Sequence[str]) -> str | None:
    """Return why a module with inputs of these names cannot generate the cell's tokens, or None."""
    if [*names] != INPUTS:
        needs = "a decode step with the inputs token and position, in this order"
        return f"phase=generate needs {needs}; {cell.model_name} has {', '.join(names)}"
    slots, wanted = cell.model["module"].get("max_seq"), sum(cell.generate.values())
    if slots is None or wanted <= slots:
        return None
    advice = f"set model.module.max_seq={wanted}"
    return (
        f"prompt and new tokens take {wanted} slots, but the cache of {cell.model_name} has"
        f" {slots}; {advice}"
    )


def prompts(specs: Mapping[str, InputSpec], cell: Cell) -> dict[str, InputSpec]:
    """Return the description of a request's only input, its prompt [B, P]."""
    return {"token": dataclasses.replace(specs["token"], shape=(cell.generate["prompt"],))}


class Request(float):
    """The latency of a request in ms. `first_ms`: time to its first token; `between_ms`: times
    between its tokens."""

    first_ms: float
    between_ms: list[float]


class Generator:
    """Generates N tokens per call: `module` processes the prompt, and `step` the tokens after it,
    each on its own.

    The host waits once, for the first token. Times of tokens are CUDA events on a GPU, else
    readings of the host's clock. `logits`: those of the last token.
    """

    def __init__(
        self, module: Callable[..., Tensor], step: Callable[..., Tensor], cell: Cell
    ) -> None:
        self.module, self.step = module, step
        first, count, device = (
            cell.generate["prompt"],
            cell.generate["new_tokens"],
            torch.device(cell.device),
        )
        self.synchronize = timing.synchronizer(device)
        # no inference tensors, for which Dynamo would compile a second graph, nor views of one
        # tensor, whose alignment differs, so that Inductor would copy them
        with torch.inference_mode(False):
            self.prompt = torch.arange(first, device=device)
            self.positions = [
                torch.tensor([first + number], device=device) for number in range(count - 1)
            ]
            self.tokens = [
                torch.zeros(cell.bs, 1, dtype=torch.int64, device=device) for _ in range(count)
            ]
        self.events = (
            [torch.cuda.Event(enable_timing=True) for _ in self.tokens]
            if device.type == "cuda"
            else []
        )
        self.read_ns = [0] * count

    def __call__(
        self, prompt: Tensor, fed: Sequence[Tensor] | None = None, see: See | None = None
    ) -> list[Tensor]:
        """Return the tokens, [B, 1] each, which the next call overwrites. `fed`: the tokens to go
        on with, instead of the generated ones."""
        fed, events, read_ns, clock = (
            fed or self.tokens,
            self.events,
            self.read_ns,
            time.perf_counter_ns,
        )
        self.began_ns = clock()
        logits = self.module(prompt, self.prompt)
        for number, token in enumerate(self.tokens):
            if number:
                logits = self.step(fed[number - 1], self.positions[number - 1])
            torch.argmax(logits, -1, out=token)
            if events:
                events[number].record()
            if not number:
                self.synchronize()
            read_ns[number] = clock()
            if see:
                see(number, logits)
        self.logits = logits
        return self.tokens

    def sample(self, ms: float) -> Request:
        """Return the last call as a sample, after synchronising. `ms`: its whole time."""
        request = Request(ms)
        request.first_ms = (self.read_ns[0] - self.began_ns) / 1e6
        if self.events:
            request.between_ms = [
                before.elapsed_time(after) for before, after in pairwise(self.events)
            ]
        else:
            request.between_ms = [
                (after - before) / 1e6 for before, after in pairwise(self.read_ns)
            ]
        return request


class Generation(Inference):
    """The workload of phase=generate. Its step takes a prompt [B, P] and returns N tokens."""

    def __init__(
        self, cell: Cell, mode: Mode, module: nn.Module, trial: Trial, names: Sequence[str]
    ) -> None:
        super().__init__(cell, mode, module, trial)
        if reason := unsuitable(cell, names):
            raise UnsupportedError(reason)
        if getattr(module, "has_cross", False):
            raise UnsupportedError(
                "phase=generate does not run encoders, so the time to the first token would be"
                " wrong"
            )

    def calling(self, step: Callable[..., Tensor], module: nn.Module | None = None) -> Generator:
        return Generator(module or self.module, step, self.cell)

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        generator = self.calling(self.module)
        prepared = self.made((generator.tokens[0], generator.positions[0]), {})
        generator.step = prepared.step
        return dataclasses.replace(prepared, step=generator, copy_inputs=None)

    def generated(
        self,
        step: Generator,
        given: Inputs,
        fed: Sequence[Tensor] | None = None,
        see: See | None = None,
    ) -> tuple[Tensor, accuracy.Parts]:
        """Return the tokens [B, N] and the last token's logits, in host memory."""
        (prompt,), _ = copies(given)
        tokens = step(prompt, fed, see)
        return torch.cat(tokens, 1).cpu(), {"logits": step.logits.detach().to("cpu", copy=True)}

    def example(self, given: Inputs) -> accuracy.Parts:
        (prompt,), _ = copies(given)
        logits = self.module(prompt, self.calling(self.module).prompt)
        if not isinstance(logits, Tensor) or logits.shape[:-1] != (self.cell.bs, 1):
            shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            wanted = f"the logits [{self.cell.bs}, 1, vocabulary] of the last token"
            raise Ended(Status.ERROR, f"in check: phase=generate needs {wanted}, got {shape}")
        return state.on_host(accuracy.parts(logits))

    def reference(self, inputs: Sequence[Inputs]) -> Any:
        """Return eager's tokens and last logits for all prompts. Raises Ended for logits of another
        shape."""
        # a call writes all slots that it reads, so that there is no state to restore
        self.choose_grad_mode(inputs[0], self.first_call(inputs[0]), start=lambda: None)
        eager = self.calling(self.module)
        with self.context():
            references = [self.generated(eager, given) for given in inputs]
        if any(accuracy.not_finite(it) for _, it in references) and not self.cell.model.get(
            "allow_nonfinite"
        ):
            raise Ended(Status.INCORRECT, "eager logits not finite")
        self.intact = state.marks(
            self.module, {f"parameter {name}" for name, _ in self.module.named_parameters()}
        )
        return references

    def wrong(
        self, step: Generator, inputs: Sequence[Inputs], references: Sequence[Any]
    ) -> str | None:
        """Return which token differs from eager's, or how the last logits do. A token may differ if
        it is a tie in eager; then the mode continues with eager's tokens, so that all others are
        compared too."""
        for given, (eager, wanted) in zip(inputs, references, strict=True):
            tokens, logits = self.generated(step, given)
            with torch.inference_mode(False):  # tensors like those that the generator makes
                fed = [token.to(self.device, copy=True).contiguous() for token in eager.split(1, 1)]
            if not torch.equal(tokens, eager):
                forced, logits = self.generated(step, given, fed)
                # up to its first difference, a request continues with the same tokens as eager's
                differs = tokens != eager
                chosen = torch.where(differs & (differs.cumsum(1) == 1), tokens, forced)
                if reason := self.no_tie(given, fed, eager, chosen):
                    return reason
                tied = self.trial.extra.get("tied_tokens", 0)
                self.trial.extra["tied_tokens"] = max(tied, int((chosen != eager).sum()))

            def exact(given: Inputs = given, fed: Sequence[Tensor] = fed) -> accuracy.Parts:
                module = self.in_float64()
                return self.generated(self.calling(module, module), given, fed)[1]

            if reason := self.judged(logits, wanted, exact):
                return reason
        return None

    def no_tie(
        self, given: Inputs, fed: Sequence[Tensor], eager: Tensor, chosen: Tensor
    ) -> str | None:
        """Return a text about the first of the `chosen` tokens [B, N] that is no tie with eager's,
        or None.

        A tie: eager's logits of the two tokens differ by at most twice the tolerance times the root
        mean square of all logits (without masks), because either may be off by the tolerance.
        """
        found: list[str] = []
        tolerance = accuracy.limit_of(getattr(torch, self.cell.dtype), self.tolerance)

        def see(number: int, logits: Tensor) -> None:
            for row in (chosen[:, number] != eager[:, number]).nonzero().flatten().tolist():
                values, token, right = (
                    logits[row, 0].double(),
                    int(chosen[row, number]),
                    int(eager[row, number]),
                )
                gap, limit = (
                    float(values[right] - values[token]),
                    2 * tolerance * accuracy.rms(values, values),
                )
                if not gap <= limit:
                    where = (
                        f"token {number + 1} of request {row + 1} is {token}, but eager's is"
                        f" {right}"
                    )
                    found.append(
                        f"{where}, whose logit is {gap:.3g} larger (a tie: at most {limit:.3g})"
                    )

        self.generated(self.calling(self.module), given, fed, see)
        if not found:
            return None
        again, _ = self.generated(self.calling(self.module), given)
        random = (
            "; called again, eager generates other tokens, too: the module is random, or its state"
            " changed"
        )
        return found[0] + ("" if torch.equal(again, eager) else random)

    def figures(self, requests: Sequence[Request]) -> dict[str, Any]:
        """Set the trial's figures of tokens, and return further ones. `requests`: the timed
        ones."""
        trial, count = self.trial, self.cell.generate["new_tokens"]
        first = trial.samples["ttft_ms"] = [request.first_ms for request in requests]
        between = trial.samples["tpot_ms"] = [
            ms for request in requests for ms in request.between_ms
        ]
        trial.ttft_ms, trial.tpot_ms = statistics.median(first), statistics.median(between)
        trial.tpot_p99_ms = float(np.quantile(between, 0.99))
        per_request = 1000 * count / trial.latency_ms
        trial.tokens_per_s = self.cell.bs * per_request
        facts = {"requests": len(requests) * self.cell.bs, "tokens_per_s_per_request": per_request}
        for name, values in (("latency", requests), ("ttft", first), ("tpot", between)):
            p50, p99 = (float(value) for value in np.quantile(values, (0.5, 0.99)))
            facts |= {f"{name}_p50_ms": p50, f"{name}_p99_ms": p99}
        return facts
