"""Warm-up and stopping, against a clock that the tests turn."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time

import pytest
import torch
from turned_clock import TurnedClock

from effbench.measure import memory, telemetry, timing

CPU = torch.device("cpu")
RULES = timing.Rules(
    budget_s=2.0,
    min_time_s=0.5,
    min_samples=30,
    target_interval=0.005,
    max_samples=100_000,
    warmup_calls=10,
    warmup_s=0.2,
    max_warmup_calls=300,
    min_block_ms=1.0,
)
INPUTS = [((i,), {"k": i}) for i in range(3)]


def test_warm_up_takes_the_least_calls_and_the_least_time(monkeypatch):
    clock = TurnedClock(monkeypatch, itertools.repeat(0.001))
    done = timing.warm_up(clock.step, INPUTS, CPU, RULES)
    assert (done.calls, done.steady) == (200, True)
    assert done.samples_ms == [pytest.approx(1.0)] * 200
    assert clock.calls[:4] == [*INPUTS, INPUTS[0]], "inputs rotate"


def test_slow_calls_need_no_ten_of_them(monkeypatch):
    clock = TurnedClock(monkeypatch, itertools.repeat(0.9))
    assert timing.warm_up(clock.step, INPUTS, CPU, dataclasses.replace(RULES, budget_s=60)).calls == 3


def test_warm_up_goes_on_until_steady(monkeypatch):
    # 250 calls that grow quicker, then a plateau
    falling = (0.02 / (1 + i / 10) for i in range(250))
    clock = TurnedClock(monkeypatch, itertools.chain(falling, itertools.repeat(0.02 / 26)))
    done = timing.warm_up(clock.step, INPUTS, CPU, dataclasses.replace(RULES, budget_s=60, max_warmup_calls=10_000))
    assert done.steady
    assert done.calls > 100


def test_warm_up_that_never_gets_steady_says_so(monkeypatch):
    clock = TurnedClock(monkeypatch, (0.001 * 1.05**i for i in itertools.count()))
    done = timing.warm_up(clock.step, INPUTS, CPU, dataclasses.replace(RULES, budget_s=1e9))
    assert (done.calls, done.steady) == (300, False)


def test_warm_up_ends_with_the_budget(monkeypatch):
    clock = TurnedClock(monkeypatch, (0.01 * 1.1**i for i in itertools.count()))
    done = timing.warm_up(clock.step, INPUTS, CPU, RULES)
    assert not done.steady
    assert done.seconds >= RULES.budget_s
    assert done.calls < 300


@pytest.mark.parametrize(
    ("samples", "steady"),
    [([1.0] * 10, True), ([1.0] * 5 + [2.0] * 5, False), ([9.0] * 40 + [1.0] * 40, True), ([1.0], False), ([], False),
     ([1.0] * 5 + [0.5] * 5, False), ([1.0] * 5 + [1.04] * 5, True)],
)  # fmt: skip
def test_is_steady(samples, steady):
    assert timing.is_steady(samples) is steady


class TestLatency:
    def test_stops_when_the_median_is_known(self, monkeypatch):
        clock = TurnedClock(monkeypatch, itertools.repeat(0.001))
        done = timing.time_latency(clock.step, INPUTS, CPU, RULES, 2.0)
        assert 0.5 <= done.seconds < 0.55
        assert done.samples_ms == [pytest.approx(1.0)] * done.calls

    def test_takes_the_least_samples_of_slow_calls(self, monkeypatch):
        clock = TurnedClock(monkeypatch, itertools.repeat(0.05))
        assert timing.time_latency(clock.step, INPUTS, CPU, RULES, 10.0).calls >= 30

    def test_noise_uses_the_budget_up_and_no_more(self, monkeypatch):
        clock = TurnedClock(monkeypatch, itertools.cycle([0.001, 0.002]))
        done = timing.time_latency(clock.step, INPUTS, CPU, RULES, 2.0)
        assert 2.0 <= done.seconds < 2.1

    def test_a_call_longer_than_the_budget_is_made_once(self, monkeypatch):
        clock = TurnedClock(monkeypatch, itertools.repeat(30.0))
        done = timing.time_latency(clock.step, INPUTS, CPU, RULES, 2.0)
        assert done.samples_ms == [pytest.approx(30_000)]

    def test_never_more_than_the_most_samples(self, monkeypatch):
        clock = TurnedClock(monkeypatch, itertools.cycle([1e-6, 3e-6]))
        rules = dataclasses.replace(RULES, max_samples=500)
        assert timing.time_latency(clock.step, INPUTS, CPU, rules, 2.0).calls == 500


def test_every_call_is_counted_for_the_energy(monkeypatch):
    """Each run begins with a block that is not timed: its calls use energy as well."""

    class Event:
        def __init__(self, enable_timing=False): ...
        def record(self):
            self.at = time.perf_counter()

        def synchronize(self): ...
        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    class Polled(timing.Watch):
        said = 0

        def poll(self, calls):
            assert calls <= len(made)
            self.said = calls

    made = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    rules = dataclasses.replace(RULES, min_time_s=0.05, min_block_ms=1.0, load_s=0.0)
    watch = Polled()
    before = timing.choose_block
    monkeypatch.setattr(timing, "choose_block", lambda *args: (before(*args), made.clear())[0])
    timing.time_period(lambda *args, **kwargs: (made.append(1), time.sleep(0.002)), INPUTS, rules, 0.3, watch)
    assert watch.said == len(made) > 0


def test_no_garbage_is_collected_while_timing():
    assert gc.isenabled()
    with pytest.raises(RuntimeError), timing.no_garbage_collection():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()


def test_memory_without_cuda_is_unknown_not_zero():
    assert memory.peaks(CPU) == (None, None)
    assert memory.graph_pool_bytes(CPU) is None
    before = memory.host_peak_bytes()
    block = bytearray(before + 2**26)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    assert memory.host_peak_bytes() >= before + 2**26


class TestTelemetry:
    def test_without_a_gpu_nothing_is_known(self):
        gpu = telemetry.Telemetry.open(None)
        gpu.poll(10)
        assert gpu.read() == gpu.busy() == telemetry.Reading()
        assert (gpu.process_bytes(), gpu.foreign_pids(), gpu.energy_per_call_mj()) == (None, None, None)

    def test_without_nvml_a_uuid_is_harmless(self):
        assert telemetry.Telemetry.open("GPU-00000000-0000-0000-0000-000000000000").read() == telemetry.Reading()

    def test_energy_is_taken_between_changes_of_the_counter(self):
        gpu = telemetry.Telemetry()
        mark = telemetry.EnergyMark
        # the first mark is where polling began: the counter had changed some time before
        gpu.marks = [mark(90, 0, 0.0), mark(100, 10, 0.05), mark(200, 60, 0.2), mark(300, 110, 0.5)]
        assert gpu.energy_per_call_mj() == 2
        gpu.marks.pop()
        assert gpu.energy_per_call_mj() is None, "too short to tell"

    def test_busy_takes_medians_and_all_reasons(self):
        gpu = telemetry.Telemetry()
        gpu.readings = [
            telemetry.Reading(1000, 2000, 50, 100.0, ("gpu_idle",)),
            telemetry.Reading(1900, 2000, 60, None, ("sw_power_cap",)),
            telemetry.Reading(1800, None, 61, 300.0, ("sw_power_cap",)),
        ]
        assert gpu.busy() == telemetry.Reading(1800, 2000, 60, 200.0, ("gpu_idle", "sw_power_cap"))
