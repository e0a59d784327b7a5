"""The times of the tokens of a request."""

from __future__ import annotations

from itertools import pairwise

import torch

from effbench.measure.timing import SampledStep


class RequestLatency(float):
    """The latency of a request in ms. `first_ms`: time to its first token; `between_ms`: times
    between its tokens."""

    first_ms: float
    between_ms: list[float]


class RequestStep(SampledStep):
    """A step whose calls are requests. It notes when the last one began (`began_ns`), and when each
    of its tokens was made.

    `events`: of each token on a GPU, else empty. `read_ns`: the host's clock after each token. A
    call writes both in place, because anything else would take time during it.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.began_ns = 0
        self.read_ns = [0] * tokens
        self.events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(tokens)]

    def sample(self, ms: float) -> RequestLatency:
        """Return the last request as a sample, after synchronising. `ms`: its whole time."""
        request = RequestLatency(ms)
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
