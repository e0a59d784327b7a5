"""The workload of phase=generate: requests that generate tokens greedily, with a static key-value
cache.

The module is a decode step: token [B, T], position [T] -> logits of the last token [B, 1, V]. It
writes the keys and values of the tokens to buffers, at their positions. The mode makes the step for
one token, which has one static shape. The prompt is one eager call in every mode: its shape is
another one, and model.task=prefill measures it in any mode.

B requests of a batch, P tokens of the prompt, T tokens of a call, N generated tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from effbench.core.cell import Cell, Status
from effbench.core.errors import UnsupportedError
from effbench.measure.accuracy import Parts, parts
from effbench.measure.token_times import RequestLatency, RequestStep
from effbench.models.inputs import Inputs, Step
from effbench.modes.base import Example, Prepared
from effbench.workloads import state
from effbench.workloads.base import InputSets, copies, make_sets
from effbench.workloads.endings import Ended
from effbench.workloads.inference import Inference

INPUTS = ["token", "position"]


@dataclass(frozen=True)
class Length:
    """How many tokens a request has: the settings of a cell's `generate`."""

    prompt: int
    new_tokens: int


def length_of(cell: Cell) -> Length:
    return Length(**(cell.generate or {}))


class Generator(RequestStep):
    """Generates N tokens per call: `module` processes the prompt, and `step`, which is the module
    or another one (`with_step`), the tokens after it, each on its own.

    The host waits once, for the first token.
    """

    def __init__(self, module: Step, cell: Cell) -> None:
        length = length_of(cell)
        device = torch.device(cell.device)
        super().__init__(length.new_tokens, device)
        self.module = self.step = module
        # no inference tensors, for which Dynamo would compile a second graph, nor views of one
        # tensor, whose alignment differs, so that Inductor would copy them
        with torch.inference_mode(False):
            self.prompt = torch.arange(length.prompt, device=device)
            self.positions = [
                torch.tensor([position], device=device)
                for position in range(length.prompt, length.prompt + length.new_tokens - 1)
            ]
            self.tokens = [
                torch.zeros(cell.bs, 1, dtype=torch.int64, device=device)
                for _ in range(length.new_tokens)
            ]

    def with_step(self, step: Step) -> Generator:
        """Return a generator that calls another step, with the same tensors."""
        generator = copy.copy(self)
        generator.step = step
        return generator

    def logits_of(self, prompt: Tensor, tokens: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the logits [B, 1, V] that decide each token. `tokens`: those to go on with, read
        once each is needed."""
        yield self.module(prompt, self.prompt)
        for token, position in zip(tokens, self.positions, strict=False):
            yield self.step(token, position)

    def __call__(self, prompt: Tensor) -> list[Tensor]:
        """Return the tokens, [B, 1] each, which the next call overwrites."""
        tokens = self.tokens
        events = self.events
        read_ns = self.read_ns
        clock = time.perf_counter_ns
        self.began_ns = clock()
        for number, logits in enumerate(self.logits_of(prompt, tokens)):
            torch.argmax(logits, -1, out=tokens[number])
            if events:
                events[number].record()
                if not number:
                    torch.cuda.synchronize()
            read_ns[number] = clock()
        return tokens


class Generation(Inference):
    """Requests. Its step takes a prompt [B, P] and returns N tokens. `tokens`: eager's for each
    checked prompt, [B, 1] each, in host memory. `references`: the logits of some of them."""

    # the host waits for the first token
    has_period = False
    has_varied_calls = True
    step: Generator

    def __post_init__(self) -> None:
        super().__post_init__()
        self.length = length_of(self.cell)
        model = self.cell.model_name
        names = list(self.specs)
        if names != INPUTS:
            raise UnsupportedError(
                "phase=generate needs a decode step with the inputs token and position, in this"
                f" order; {model} has {', '.join(names)}"
            )
        slots = self.cell.model["module"].get("max_seq")
        wanted = self.length.prompt + self.length.new_tokens
        if slots is not None and wanted > slots:
            raise UnsupportedError(
                f"prompt and new tokens take {wanted} slots, but the cache of {model} has {slots};"
                f" set model.module.max_seq={wanted}"
            )

    def make_inputs(self, sets: int) -> None:
        """Make prompts [B, P]: two at least, because only others show a stale cache."""
        prompt = dataclasses.replace(self.specs["token"], shape=(self.length.prompt,))
        made = make_sets(self.cell, {"token": prompt}, max(2, sets))
        self.inputs = InputSets(made, made)

    def settling_calls(self) -> int:
        # a request makes several calls of the mode's step
        return math.ceil(self.mode.settling_calls / (self.length.new_tokens - 1))

    def prepare(self, example: Example) -> Prepared:
        eager = Generator(self.module, self.cell)
        one_token = (eager.tokens[0], eager.positions[0])
        prepared = self.make_step(dataclasses.replace(example, args=one_token))
        self.step = eager.with_step(prepared.step)
        return dataclasses.replace(prepared, step=self.step, copy_inputs=None)

    # --- comparison with eager

    def follow(
        self,
        step: Step,
        module: nn.Module,
        inputs: Sequence[Inputs],
        dtype: torch.dtype | None = None,
    ) -> Iterator[Parts]:
        """Yield the logits of the second, the middle and the last token of each request, in host
        memory. The first one is eager's in all modes.

        The requests go on with eager's tokens, because a tie between two tokens may go either way.
        """
        generator = step if isinstance(step, Generator) else Generator(module, self.cell)
        count = self.length.new_tokens
        compared = (1, count // 2, count - 1)
        for given, eager in zip(inputs, self.tokens, strict=True):
            (prompt,), _ = copies(given, dtype)
            with torch.inference_mode(False):  # tensors like those that the generator makes
                tokens = [token.to(self.device, copy=True) for token in eager]
            logits = {}
            for number, values in enumerate(generator.logits_of(prompt, tokens)):
                if number in compared:
                    logits[f"logits of token {number + 1}"] = values.detach().to("cpu", copy=True)
            yield logits

    def example_outputs(self) -> Parts:
        (prompt,), _ = copies(self.inputs.checked[0])
        logits = self.module(prompt, Generator(self.module, self.cell).prompt)
        shape = list(logits.shape) if isinstance(logits, Tensor) else []
        if shape[:-1] != [self.cell.bs, 1]:
            raise Ended(
                Status.ERROR,
                f"in check: phase=generate needs the logits [{self.cell.bs}, 1, vocabulary] of the"
                f" last token, got {shape or type(logits).__name__}",
            )
        return state.on_host(parts(logits))

    def take_reference(self) -> None:
        """Keep eager's requests with all prompts. Raises Ended for logits of another shape, or that
        are not finite."""
        # a call writes all slots that it reads, so that there is no state to restore
        self.choose_grad_mode(self.first_call(), state.Watch(self.module, ()), {})
        eager = Generator(self.module, self.cell)
        self.tokens: list[list[Tensor]] = []
        with self.context():
            for given in self.inputs.checked:
                (prompt,), _ = copies(given)
                self.tokens.append([token.to("cpu", copy=True) for token in eager(prompt)])
            self.references = list(self.follow(eager, self.module, self.inputs.checked))
        for logits in self.references:
            self.refuse_unusable(logits)
        names = {name for name in state.read(self.module) if name.kind == "parameter"}
        self.intact = state.Watch(self.module, names)

    # --- figures

    def figures(self, latency_ms: float) -> dict[str, Any]:
        trial = self.trial
        first: list[float] = []
        between: list[float] = []
        for request in trial.samples["latency_ms"]:
            if isinstance(request, RequestLatency):
                first.append(request.first_ms)
                between += request.between_ms
        trial.samples["ttft_ms"] = first
        trial.samples["tpot_ms"] = between
        trial.tokens_per_s = self.cell.bs * self.length.new_tokens * 1000 / latency_ms
        trial.ttft_ms = statistics.median(first)
        trial.tpot_ms = statistics.median(between)
        trial.tpot_p99_ms = float(np.quantile(between, 0.99))
        return {}
