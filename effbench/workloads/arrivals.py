"""The workload of an open-loop server: requests arrive at times drawn beforehand, whether or not
the server is busy.

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
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.core import streams
from effbench.core.quantities import significant
from effbench.measure.host import HostWatch
from effbench.measure.rules import Rules
from effbench.measure.samples import Timing, TimingFigure
from effbench.measure.timing import BATCH_MS, Timer, synchronizer
from effbench.stats.intervals import median_interval
from effbench.workloads.stream import StreamCalls

SPARE_S = 0.0005  # idle time that a reading of the host's speed requires
LONGEST_S = 0.05  # a busy server reads the host's speed this often; it takes some 0.1 ms
KEPT_UP = 0.95  # fraction of the offered rate that a server must complete


class Arrivals(StreamCalls):
    """Requests that arrive at random times, served in batches of many sizes."""

    # the host waits for requests to arrive
    has_period = False
    # the profiled batch sizes are not those that are served
    has_profile = False

    served: Served

    def time_latency(self, timer: Timer, budget_s: float) -> Timing:
        """Serve requests for `budget_s` seconds, or as many as a record may have samples."""
        stream = self.cell.stream or {}
        seconds = min(budget_s, timer.rules.max_samples / stream["rate"])
        arrivals_s = streams.arrival_times(stream["rate"], stream["seed"], seconds)
        self.served = serve(timer, arrivals_s, seconds)
        return self.served

    def figures(self, latency_ms: float) -> dict[str, Any]:
        self.degraded = self.degraded or self.served.saturated()
        return {"stream": self.served.facts()}


@dataclass
class Served(Timing):
    """What a server did with the requests that arrived in `seconds`. `samples_ms`: their latency in
    the order of their arrival; for the last `waiting` requests, which were not served, the time
    until the end. `calls`: batch size -> calls. `moments`: the same latencies, in undisturbed and
    disturbed moments of the host. `took_s`: until the last request was served."""

    seconds: float = 0.0
    took_s: float = 0.0
    waiting: int = 0
    calls: Counter[int] = field(default_factory=Counter)
    moments: Timing = field(default_factory=Timing)

    def figure(self, rules: Rules, slowdown: float = 1.0) -> TimingFigure:
        """Return the median of all requests, because a disturbance also delays later ones. It is
        marked if the host was disturbed for most of them, unless this does not change their median.
        See `Timing.figure`."""
        if self.moments.disturbed_ms and self.moments.is_disturbed(self.requests):
            strict = replace(rules, min_samples=self.requests)
            return replace(self.moments.figure(strict, slowdown), timing=self, disturbed_ms=[])
        return TimingFigure(median_interval(self.samples_ms), self)

    @property
    def requests(self) -> int:
        return len(self.samples_ms)

    @property
    def offered_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def achieved_per_s(self) -> float:
        return (self.requests - self.waiting) / self.took_s

    def saturated(self) -> str | None:
        """Return that the server did not keep up with the requests, or None."""
        if not self.waiting:
            return None
        achieved = significant(self.achieved_per_s, 3)
        offered = significant(self.offered_per_s, 3)
        return (
            f"saturated: the server completed {achieved} of {offered} requests per second, so the"
            " latency is a lower bound"
        )

    def facts(self) -> dict[str, Any]:
        return {
            "offered_per_s": self.offered_per_s,
            "achieved_per_s": self.achieved_per_s,
            "calls_by_size": {str(size): number for size, number in sorted(self.calls.items())},
        }


def serve(timer: Timer, arrivals_s: Sequence[float], seconds: float) -> Served:
    """Serve requests that arrive at these times, ascending and below `seconds`. The timer has the
    inputs of each batch size, from 1 to the largest. The server stops soon after `seconds` if more
    than a batch of requests waits. If the GPU was disturbed, all is repeated."""
    inputs = timer.inputs
    synchronize = synchronizer(timer.device)
    clock = time.perf_counter
    samples_ms: list[float] = []
    calls = Counter[int]()
    readings = Readings(timer.host)
    began = clock()
    while True:
        now = clock() - began
        taken = len(samples_ms)
        queue = bisect_right(arrivals_s, now, taken) - taken
        is_late = now >= seconds / KEPT_UP and queue > len(inputs)
        if is_late or taken == len(arrivals_s):
            break
        if not queue:
            readings.read_if_due(samples_ms, arrivals_s[taken] - now)
            wait_until(began + arrivals_s[taken])
            continue
        size = min(queue, len(inputs))
        args, kwargs = given = inputs[size - 1]
        if timer.kept:
            timer.kept.restore(given)
        timer.step(*args, **kwargs)
        synchronize()
        now = clock() - began
        samples_ms += [1000 * (now - at) for at in arrivals_s[taken : taken + size]]
        calls[size] += 1
        readings.read_if_due(samples_ms, 0.0)
    samples_ms += [1000 * (now - at) for at in arrivals_s[taken:]]
    readings.read(samples_ms)
    if timer.watch and timer.watch.discard_if_disturbed():
        return serve(timer, arrivals_s, seconds)
    return Served(
        samples_ms,
        seconds=seconds,
        took_s=max(seconds, now),
        waiting=queue,
        calls=calls,
        moments=readings.moments,
    )


class Readings:
    """Reads the host's speed, and sorts the samples between two readings by whether it was
    undisturbed: `moments`."""

    def __init__(self, host: HostWatch | None) -> None:
        self.host = host
        self.moments = Timing()
        self.at = time.perf_counter()
        if host:
            host.begin()

    def read_if_due(self, samples_ms: list[float], idle_s: float) -> None:
        """Read if it is time to, and the server is idle for long enough. See `read`."""
        elapsed_s = time.perf_counter() - self.at
        has_time = idle_s >= SPARE_S and 1000 * elapsed_s >= BATCH_MS
        if has_time or elapsed_s >= LONGEST_S:
            self.read(samples_ms)

    def read(self, samples_ms: list[float]) -> None:
        """Read the host's speed, and sort those `samples_ms` that came after the last reading."""
        if self.host is None:
            return
        now = time.perf_counter()
        moments = self.moments
        new_ms = samples_ms[moments.count :]
        if self.host.was_undisturbed(now - self.at):
            moments.samples_ms += new_ms
        else:
            moments.disturbed_ms += new_ms
        self.at = now


def wait_until(moment: float) -> None:
    """Return at this time of the clock, without sleep: a thread wakes up late, on a core that has
    slowed down."""
    while time.perf_counter() < moment:
        pass
