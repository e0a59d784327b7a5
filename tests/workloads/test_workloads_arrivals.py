"""An open-loop server, against a clock that the tests turn."""

import statistics
from types import SimpleNamespace

import pytest
import torch
from turned_clock import TurnedClock

from effbench.core.streams import arrival_times
from effbench.measure import host
from effbench.measure.host import HostWatch
from effbench.measure.rules import Rules
from effbench.measure.timing import Timer
from effbench.workloads import arrivals
from effbench.workloads.arrivals import serve

HIGH = 4
RULES = Rules(budget_s=2.0, min_block_ms=1.0)


@pytest.fixture
def clock(monkeypatch):
    turned = TurnedClock(monkeypatch)

    def wait(until):
        turned.now = max(turned.now, until) + 1e-9  # beyond rounding errors

    monkeypatch.setattr(arrivals, "wait_until", wait)
    turned.now = 100.0
    return turned


def served(step, rate=50.0, **options):
    """Four seconds of requests."""
    inputs = [((size,), {}) for size in range(1, HIGH + 1)]
    timer = Timer(
        step,
        inputs,
        torch.device("cpu"),
        RULES,
        **options,
    )
    return serve(timer, arrival_times(rate, 0, 4.0), 4.0)


@pytest.fixture
def quick_gpu(monkeypatch, clock):
    """A step of 0.6 ms, whose work the GPU ends 0.4 ms later."""
    monkeypatch.setattr(arrivals, "synchronizer", lambda device: clock.taking(lambda: 0.0004))
    return clock.taking(lambda size: 0.0006)


def test_at_a_low_rate_a_request_takes_as_long_as_its_call(quick_gpu):
    result = served(quick_gpu)
    assert len(result.samples_ms) == len(arrival_times(50.0, 0, 4.0)) == result.requests
    assert statistics.median(result.samples_ms) == pytest.approx(1.0, rel=1e-3)
    facts = result.facts()
    assert facts["achieved_per_s"] == facts["offered_per_s"] == result.requests / 4
    assert result.saturated() is None
    assert sum(size * number for size, number in result.calls.items()) == result.requests


def test_the_inputs_of_each_call_are_restored(clock, quick_gpu):
    restored = []
    served(quick_gpu, kept=SimpleNamespace(restore=restored.append))
    assert restored == [call for call in clock.calls if call != ((), {})]


def test_a_stall_shows_in_all_requests_that_arrive_during_it(clock):
    result = served(clock.taking(lambda size: 1.0 if 101 <= clock.now < 102 else 0.001))
    times = arrival_times(50.0, 0, 4.0)
    ended = 2.0
    delayed = 0
    for arrival, latency_ms in zip(times, result.samples_ms, strict=True):
        if 1.1 < arrival < ended:
            delayed += 1
            assert latency_ms >= 1000 * (ended - arrival), "from its arrival on"
    assert delayed > 30
    assert result.saturated() is None


def test_all_is_served_again_if_the_gpu_was_disturbed(clock):
    looks = iter([True, False])
    step, gpu = (
        clock.taking(lambda size: 0.001),
        SimpleNamespace(discard_if_disturbed=lambda: next(looks)),
    )
    requests = served(step, watch=gpu).requests
    served_requests = sum(size for (size,), _ in clock.calls)
    assert served_requests == 2 * requests


def test_a_saturated_server_stops_and_counts_the_requests_that_wait(clock):
    result = served(clock.taking(lambda size: 0.01), rate=800.0)
    assert clock.now < 104.5, "it does not serve all that wait"
    facts = result.facts()
    assert facts["achieved_per_s"] == pytest.approx(400, rel=0.01)
    assert "completed 399 of 789 requests per second" in result.saturated()
    last = arrival_times(800.0, 0, 4.0)[-1]
    waited_ms = 1000 * (clock.now - 100 - last)
    assert result.samples_ms[-1] == pytest.approx(waited_ms, abs=0.01), "until the end"
    assert facts["calls_by_size"][str(HIGH)] > 390


@pytest.fixture
def served_on_a_slow_host(monkeypatch, clock):
    """Serves for four seconds, of which the host is slow in the first ones: then calls take four
    times as long."""
    monkeypatch.setattr(host.RunQueue, "read_ms", lambda queue: 0.0)

    def serve(slow_s):
        def slowness():
            return 4.0 if clock.now < 100 + slow_s else 1.0

        monkeypatch.setattr(host, "piece", lambda: 0.05 * slowness())
        watch = HostWatch(0.05, 1.1, moves=False)
        with watch.watching():
            result = served(clock.taking(lambda size: 0.001 * slowness()), host=watch)
        return result, watch

    return serve


@pytest.mark.parametrize(("slow_s", "is_marked"), [(1.0, False), (3.0, True), (4.0, True)])
def test_a_trial_is_marked_if_the_host_was_disturbed_for_most_requests(
    served_on_a_slow_host, slow_s, is_marked
):
    result, watch = served_on_a_slow_host(slow_s)
    assert result.figure(RULES, watch.slowdown).is_marked is is_marked
    assert watch.facts().disturbed_fraction == pytest.approx(slow_s / 4, abs=0.05)


def test_the_bounds_of_a_marked_figure_hold_the_medians_of_quiet_and_slow_moments(
    served_on_a_slow_host,
):
    result, watch = served_on_a_slow_host(3.0)
    median = result.figure(RULES, watch.slowdown).median
    assert median.low <= statistics.median(result.moments.samples_ms) < median.value
    assert median.value <= statistics.median(result.moments.disturbed_ms) <= median.high
