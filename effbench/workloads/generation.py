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
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from effbench.core.cell import Cell, Status
from effbench.core.errors import UnsupportedError
from effbench.measure import accuracy, timing
from effbench.models.inputs import Args, Inputs, Kwargs, Step
from effbench.modes.base import Prepared
from effbench.workloads import state
from effbench.workloads.base import InputSets, copies, make_sets
from effbench.workloads.calls import Calls
from effbench.workloads.endings import Ended

INPUTS = ["token", "position"]


@dataclass(frozen=True)
class Length:
    """How many tokens a request has: the settings of a cell's `generate`."""

    prompt: int
    new_tokens: int


def length_of(cell: Cell) -> Length:
    return Length(**(cell.generate or {}))


class RequestLatency(float):
    """The latency of a request in ms. `first_ms`: time to its first token; `between_ms`: times
    between its tokens."""

    first_ms: float
    between_ms: list[float]


class Generator:
    """Generates N tokens per call: `module` processes the prompt, and `step` the tokens after it,
    each on its own.

    The host waits once, for the first token. Times of tokens are CUDA events on a GPU, else
    readings of the host's clock.
    """

    def __init__(self, module: Step, step: Step, cell: Cell) -> None:
        self.module = module
        self.step = step
        length = length_of(cell)
        device = torch.device(cell.device)
        self.synchronize = timing.synchronizer(device)
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
        self.events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self.events = [torch.cuda.Event(enable_timing=True) for _ in self.tokens]
        self.began_ns = 0
        self.read_ns = [0] * length.new_tokens

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
                self.synchronize()
            read_ns[number] = clock()
        return tokens

    def sample(self, ms: float) -> RequestLatency:
        """Return the last call as a sample, after synchronising. `ms`: its whole time."""
        request = RequestLatency(ms)
        request.first_ms = (self.read_ns[0] - self.began_ns) / 1e6
        if self.events:
            pairs = pairwise(self.events)
            request.between_ms = [before.elapsed_time(after) for before, after in pairs]
        else:
            readings = pairwise(self.read_ns)
            request.between_ms = [(after - before) / 1e6 for before, after in readings]
        return request


@dataclass(frozen=True)
class EagerRequest:
    """Eager's tokens for a prompt, [B, 1] each, and the logits of some of them, in host memory."""

    tokens: list[Tensor]
    logits: accuracy.Parts


class Generation(Calls):
    """Requests. Its step takes a prompt [B, P] and returns N tokens. `references`: eager's requests
    with the checked prompts."""

    # the host waits for the first token
    has_period = False
    has_varied_calls = True
    step: Generator

    def __post_init__(self) -> None:
        super().__post_init__()
        self.length = length_of(self.cell)
        self.references: list[EagerRequest] = []
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

    def calling(self, step: Step) -> Generator:
        return Generator(self.module, step, self.cell)

    def settling_calls(self) -> int:
        # a request makes several calls of the mode's step
        return math.ceil(self.mode.settling_calls / (self.length.new_tokens - 1))

    def prepare(self, args: Args, kwargs: Kwargs) -> Prepared:
        generator = self.calling(self.module)
        example = (generator.tokens[0], generator.positions[0])
        prepared = self.make_step(example, {})
        generator.step = prepared.step
        self.step = generator
        return dataclasses.replace(prepared, step=generator, copy_inputs=None)

    def sample(self, ms: float) -> RequestLatency:
        return self.step.sample(ms)

    # --- comparison with eager

    def logits_after(
        self, generator: Generator, given: Inputs, tokens: Sequence[Tensor]
    ) -> accuracy.Parts:
        """Return the logits of the second, the middle and the last token of a request that goes on
        with these tokens, in host memory. The first one is eager's in all modes."""
        (prompt,), _ = copies(given)
        count = self.length.new_tokens
        compared = (1, count // 2, count - 1)
        logits = {}
        for number, values in enumerate(generator.logits_of(prompt, tokens)):
            if number in compared:
                logits[f"logits of token {number + 1}"] = values.detach().to("cpu", copy=True)
        return logits

    def example_outputs(self) -> accuracy.Parts:
        (prompt,), _ = copies(self.inputs.checked[0])
        logits = self.module(prompt, self.calling(self.module).prompt)
        given = type(logits).__name__
        if isinstance(logits, Tensor):
            if logits.shape[:-1] == (self.cell.bs, 1):
                return state.on_host(accuracy.parts(logits))
            given = str(list(logits.shape))
        wanted = f"the logits [{self.cell.bs}, 1, vocabulary] of the last token"
        raise Ended(Status.ERROR, f"in check: phase=generate needs {wanted}, got {given}")

    def take_reference(self) -> None:
        """Keep eager's requests with all prompts. Raises Ended for logits of another shape, or that
        are not finite."""
        # a call writes all slots that it reads, so that there is no state to restore
        self.choose_grad_mode(self.first_call(), start=lambda: None)
        for given in self.inputs.checked:
            eager = self.calling(self.module)
            (prompt,), _ = copies(given)
            with self.context():
                tokens = eager(prompt)
                logits = self.logits_after(eager, given, tokens)
            if accuracy.not_finite(logits) and not self.cell.model.get("allow_nonfinite"):
                raise Ended(Status.INCORRECT, "eager logits not finite")
            on_host = [token.to("cpu", copy=True) for token in tokens]
            self.references.append(EagerRequest(on_host, logits))
        for name, mark in state.marks(self.module).items():
            if name.kind == "parameter":
                self.intact[name] = mark

    def wrong(self) -> str | None:
        """Return which logits differ from eager's, or None. The step goes on with eager's tokens,
        because a tie between two tokens may go either way."""
        for given, eager in zip(self.inputs.checked, self.references, strict=True):
            with torch.inference_mode(False):  # tensors like those that the generator makes
                tokens = [token.to(self.device, copy=True) for token in eager.tokens]
            logits = self.logits_after(self.step, given, tokens)
            exact = partial(self.exact_logits, given, tokens)
            reason = self.differs(logits, eager.logits, exact)
            if reason is not None:
                return reason
        return None

    def exact_logits(self, given: Inputs, tokens: Sequence[Tensor]) -> accuracy.Parts:
        module = self.in_float64()
        return self.logits_after(Generator(module, module, self.cell), given, tokens)

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

    def unpaired(self) -> str | None:
        return "requests and streams are timed as a whole"
