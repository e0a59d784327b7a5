"""An open-loop server: requests arrive at times drawn beforehand, whether or not the server is
busy.

An idle server takes all waiting requests, up to a largest batch, as one call. A request's latency
is the time from its arrival to the end of its call. Therefore a slow call also delays the requests
that arrive during it.

The host's speed is read while the server is idle. No sample is discarded, because a disturbance
also delays later requests, and long queues would be discarded most often.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from effbench.measure.timing import BATCH_MS, SPREAD, Figure, Timer, Timing, synchronizer
from effbench.metrics import significant
from effbench.stats.intervals import Interval, median_interval

SPARE_S = 0.0005  # idle time that a reading of the host's speed requires
LONGEST_S = 0.05  # a busy server reads the host's speed this often; it takes some 0.1 ms
KEPT_UP = 0.95  # fraction of the offered rate that a server must complete


@dataclass
class Served(Timing):
    """What a server did with `requests` that arrived in `seconds`. `samples_ms`: their latency in
    the order of their arrival; for the last `waiting` requests, which were not served, the time
    until the end. `calls`: batch size -> calls. `of_host`: samples by whether the host was
    undisturbed. `took_s`: until the last request was served."""

    requests: int = 0
    seconds: float = 0.0
    took_s: float = 0.0
    waiting: int = 0
    largest_queue: int = 0
    calls: Counter[int] = field(default_factory=Counter)
    of_host: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})

    def is_disturbed(self, least: int) -> bool:
        """Return whether the host was disturbed for most requests, unless this does not change
        their median."""
        if not self.of_host[False]:
            return False
        return self.apart().is_disturbed(len(self.samples_ms))

    def apart(self) -> Timing:
        """Return the latencies of undisturbed and disturbed moments as samples that count and that
        do not."""
        return Timing(self.of_host[True], disturbed_ms=self.of_host[False])

    def figure(self, least: int, discards: bool, slowdown: float, spread: float = SPREAD) -> Figure:
        """Return the median of all requests, because a disturbance also delays later ones. See
        `Timing.figure`."""
        median = median_interval(self.samples_ms)
        if not self.is_disturbed(least):
            return Figure(median, self, is_marked=False)
        apart = self.apart().figure(len(self.samples_ms), discards, slowdown).median
        low = min(median.value, apart.low)
        high = max(median.value, apart.high)
        return Figure(Interval(median.value, low, high), self, is_marked=True)

    @property
    def achieved_per_s(self) -> float:
        return (self.requests - self.waiting) / self.took_s

    def saturated(self) -> str | None:
        """Return that the server did not keep up with the requests, or None."""
        if not self.waiting:
            return None
        rates = " of ".join(
            significant(rate, 3) for rate in (self.achieved_per_s, self.requests / self.seconds)
        )
        return (
            f"saturated: the server completed {rates} requests per second, so the latency is a"
            " lower bound"
        )

    def facts(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "offered_per_s": self.requests / self.seconds,
            "achieved_per_s": self.achieved_per_s,
            "saturated": self.waiting > 0,
            "mean_batch": (self.requests - self.waiting) / max(1, self.calls.total()),
            "largest_queue": self.largest_queue,
            "calls_by_size": {str(size): self.calls[size] for size in sorted(self.calls)},
        }


def serve(timer: Timer, arrivals_s: Sequence[float], seconds: float) -> Served:
    """Serve requests that arrive at these times, ascending and below `seconds`. The timer has the
    inputs of each batch size, from 1 to the largest. The server stops soon after `seconds` if more
    than a batch of requests waits. If the GPU was disturbed, all is repeated."""
    inputs, renew, synchronize, clock = (
        timer.inputs,
        timer.renew,
        synchronizer(timer.device),
        time.perf_counter,
    )
    result = Served(requests=len(arrivals_s), seconds=seconds)
    samples, arrived = result.samples_ms, 0
    readings = _Readings(timer, samples, result.of_host)
    began = clock()
    while True:
        now, taken = clock() - began, len(samples)
        arrived = bisect_right(arrivals_s, now, arrived)
        queue = arrived - taken
        result.largest_queue = max(result.largest_queue, queue)
        if taken == len(arrivals_s) or (now >= seconds / KEPT_UP and queue > len(inputs)):
            break
        if not queue:
            readings.read_if_due(arrivals_s[taken] - now)
            _wait(began + arrivals_s[taken])
            continue
        size = min(queue, len(inputs))
        args, kwargs = given = inputs[size - 1]
        if renew:
            renew(given)
        timer.step(*args, **kwargs)
        synchronize()
        now = clock() - began
        samples += [1000 * (now - at) for at in arrivals_s[taken : taken + size]]
        result.calls[size] += 1
        readings.read_if_due(0.0)
    result.took_s, result.waiting = max(seconds, now), queue
    samples += [1000 * (now - at) for at in arrivals_s[taken:]]
    readings.read()
    return serve(timer, arrivals_s, seconds) if timer.watch and timer.watch.disturbed() else result


class _Readings:
    """Reads the host's speed, and sorts the samples between two readings by whether it was
    undisturbed."""

    def __init__(
        self, timer: Timer, samples: list[float], of_host: dict[bool, list[float]]
    ) -> None:
        self.host, self.samples, self.of_host, self.counted = timer.host, samples, of_host, 0
        self.at, self.last = time.perf_counter(), self.host and self.host.read()

    def read_if_due(self, idle_s: float) -> None:
        elapsed_s = time.perf_counter() - self.at
        if elapsed_s >= LONGEST_S or (idle_s >= SPARE_S and 1000 * elapsed_s >= BATCH_MS):
            self.read()

    def read(self) -> None:
        if self.host is None:
            return
        before, self.last, now = self.last, self.host.read(), time.perf_counter()
        undisturbed = self.host.is_undisturbed(before, self.last, now - self.at)
        self.of_host[undisturbed] += self.samples[self.counted :]
        self.at, self.counted = now, len(self.samples)


def _wait(until: float) -> None:
    """Return at this time of the clock, without sleep: a thread wakes up late, on a core that has
    slowed down."""
    while time.perf_counter() < until:
        pass
