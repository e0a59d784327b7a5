"""Warm-up and stopping, against a clock that the tests turn; memory and telemetry without a GPU."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time

import pytest
import torch
from turned_clock import TurnedClock

from effbench.measure import memory, telemetry, timing
from effbench.worker.stream import latency_facts

CPU = torch.device("cpu")
RULES = timing.Rules(
    budget_s=2.0, min_time_s=0.5, min_samples=30, target_interval=0.005, max_samples=100_000,
    warmup_calls=10, warmup_s=0.2, max_warmup_calls=300, min_block_ms=1.0,
)  # fmt: skip
INPUTS = [((i,), {"k": i}) for i in range(3)]
SIZES = [3, 1, 3, 2]
STREAM = [((size,), {}) for size in SIZES]
STREAM_RULES = dataclasses.replace(
    RULES, budget_s=1.0, min_time_s=0.01, min_samples=8, target_interval=0.5, max_samples=4000,
    warmup_calls=6, warmup_s=0.0, max_warmup_calls=40,
)  # fmt: skip


def rules(**changed):
    return dataclasses.replace(RULES, **changed)


def test_warm_up_takes_the_least_calls_and_the_least_time(monkeypatch):
    clock = TurnedClock(monkeypatch, itertools.repeat(0.001))
    done = timing.warm_up(clock.step, INPUTS, CPU, RULES)
    assert (done.calls, done.steady) == (200, True)
    assert done.samples_ms == [pytest.approx(1.0)] * 200
    assert clock.calls[:4] == [*INPUTS, INPUTS[0]], "inputs rotate"


@pytest.mark.parametrize(
    ("durations", "changed", "calls", "steady"),
    [
        (itertools.repeat(0.9), {"budget_s": 60}, 3, True),  # slow calls need no ten of them
        ((0.001 * 1.05**i for i in itertools.count()), {"budget_s": 1e9}, 300, False),
        ((0.01 * 1.1**i for i in itertools.count()), {}, 32, False),  # the budget
        # 250 calls that grow quicker, then a plateau
        (itertools.chain((0.02 / (1 + i / 10) for i in range(250)), itertools.repeat(0.02 / 26)),
         {"budget_s": 60, "max_warmup_calls": 10_000}, None, True),
    ],
)  # fmt: skip
def test_warm_up_ends(monkeypatch, durations, changed, calls, steady):
    done = timing.warm_up(TurnedClock(monkeypatch, durations).step, INPUTS, CPU, rules(**changed))
    assert done.steady == steady
    assert done.calls == calls if calls else done.calls > 100


def test_is_steady():
    for samples, steady in (
        ([1.0] * 10, True), ([1.0] * 5 + [2.0] * 5, False), ([9.0] * 40 + [1.0] * 40, True), ([1.0], False),
        ([], False), ([1.0] * 5 + [0.5] * 5, False), ([1.0] * 5 + [1.04] * 5, True),
    ):  # fmt: skip
        assert timing.is_steady(samples) is steady


class TestLatency:
    def timed(self, monkeypatch, durations, budget_s=2.0, **changed):
        clock = TurnedClock(monkeypatch, durations)
        return timing.time_latency(clock.step, INPUTS, CPU, rules(**changed), budget_s)

    def test_stops_when_the_median_is_known(self, monkeypatch):
        done = self.timed(monkeypatch, itertools.repeat(0.001))
        assert 0.5 <= done.seconds < 0.55
        assert done.samples_ms == [pytest.approx(1.0)] * done.calls

    def test_its_limits(self, monkeypatch):
        assert self.timed(monkeypatch, itertools.repeat(0.05), 10.0).calls >= 30, "the least samples of slow calls"
        noisy = self.timed(monkeypatch, itertools.cycle([0.001, 0.002]))
        assert 2.0 <= noisy.seconds < 2.1, "noise uses up the budget and no more"
        assert self.timed(monkeypatch, itertools.repeat(30.0)).samples_ms == [pytest.approx(30_000)]
        assert self.timed(monkeypatch, itertools.cycle([1e-6, 3e-6]), max_samples=500).calls == 500


class TestStream:
    """Whole passes, every size with its weight, disturbed passes thrown away whole."""

    @pytest.fixture
    def clock(self, monkeypatch):
        """With `step`, a call of 0.2 ms for each of its size."""
        clock = TurnedClock(monkeypatch)
        clock.step = clock.taking(lambda size: size * 2e-4)
        return clock

    def warm_up(self, step, **changed):
        return timing.warm_up(step, STREAM, CPU, dataclasses.replace(STREAM_RULES, **changed), 4)

    def test_warm_up_is_whole_passes(self, clock):
        found = self.warm_up(clock.step)
        assert (found.calls, found.steady) == (8, True)
        assert found.samples_ms == pytest.approx([0.6, 0.2, 0.6, 0.4] * 2)
        assert [args[0] for args, _ in clock.calls] == SIZES * 2

    def test_warm_up_until_passes_are_steady(self, clock):
        falling = self.warm_up(clock.taking(lambda size: size * 2e-4 * (4 if len(clock.calls) <= 4 else 1)))
        assert falling.steady and 8 < falling.calls < 40
        clock.calls.clear()
        growing = self.warm_up(clock.taking(lambda size: size * 2e-4 * 1.2 ** len(clock.calls)), max_warmup_calls=12)
        assert (growing.calls, growing.steady) == (12, False)

    def test_latency_is_whole_passes_in_order(self, clock):
        found = timing.time_latency(clock.step, STREAM, CPU, STREAM_RULES, 1.0, whole=4)
        assert found.calls == len(found.samples_ms) == len(found.enqueue_ms) == len(clock.calls)
        assert found.calls >= 4 * timing.FEWEST_PASSES
        assert [args[0] for args, _ in clock.calls] == SIZES * (found.calls // 4)
        facts = latency_facts(found.samples_ms, SIZES)["by_size"]
        assert {size: entry["calls"] for size, entry in facts.items()} == {"1": 1, "2": 1, "3": 2}
        assert [facts[size]["latency_ms"] for size in "123"] == pytest.approx([0.2, 0.4, 0.6])
        assert timing.time_latency(clock.step, STREAM, CPU, STREAM_RULES, 0.0, whole=4).calls == 4, "at least a pass"

    def test_disturbed_passes_are_thrown_away_whole(self, clock):
        class Twice(timing.Watch):
            looks = 0

            def disturbed(self):
                self.looks += 1
                return self.looks in (2, 3)

        found = timing.time_latency(clock.step, STREAM, CPU, STREAM_RULES, 1.0, Twice(), 4)
        assert found.calls % 4 == 0
        assert len(clock.calls) > found.calls == len(found.enqueue_ms)
        assert found.seconds == pytest.approx(sum(found.samples_ms) / 1e3), "nor is their time counted"

    def test_facts_and_rules_count_passes(self):
        facts = latency_facts([1.0, 10.0, 1.0, 10.0, 3.0, 20.0], [1, 8])
        assert facts["passes"] == 3
        assert facts["by_size"] == {"1": {"calls": 1, "latency_ms": 1.0}, "8": {"calls": 1, "latency_ms": 10.0}}
        assert (facts["latency_mean_ms"], facts["latency_p50_ms"]) == pytest.approx((7.5, 6.5))
        found = timing.rules_of_passes(dataclasses.replace(STREAM_RULES, max_samples=10), 4)
        assert (found.max_samples, found.min_samples) == (2, timing.FEWEST_PASSES)


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
        def poll(self, calls):
            assert calls <= len(made)
            self.counted = calls

    made, watch, choose_block = [], Polled(), timing.choose_block
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    monkeypatch.setattr(timing, "choose_block", lambda *args: (choose_block(*args), made.clear())[0])
    short = rules(min_time_s=0.05, load_s=0.0)
    timing.time_period(lambda *args, **kwargs: (made.append(1), time.sleep(0.002)), INPUTS, short, 0.3, watch)
    assert watch.counted == len(made) > 0


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


def test_telemetry_without_nvml_knows_nothing():
    for uuid in (None, "GPU-00000000-0000-0000-0000-000000000000"):
        gpu = telemetry.Telemetry.open(uuid)
        gpu.poll(10)
        assert gpu.read() == gpu.busy() == telemetry.Reading()
        assert (gpu.process_bytes(), gpu.foreign_pids(), gpu.energy_per_call_mj()) == (None, None, None)
        assert (gpu.used_bytes(), gpu.utilization(), gpu.working_pids(0.0)) == (None, None, None)


def test_energy_and_readings_of_a_busy_gpu():
    gpu, mark = telemetry.Telemetry(), telemetry.EnergyMark
    # the first mark is where polling began: the counter had changed some time before
    gpu.marks = [mark(90, 0, 0.0), mark(100, 10, 0.05), mark(200, 60, 0.2), mark(300, 110, 0.5)]
    assert gpu.energy_per_call_mj() == 2
    gpu.marks.pop()
    assert gpu.energy_per_call_mj() is None, "too short"
    gpu.readings = [
        telemetry.Reading(1000, 2000, 50, 100.0, ("gpu_idle",)),
        telemetry.Reading(1900, 2000, 60, None, ("sw_power_cap",)),
        telemetry.Reading(1800, None, 61, 300.0, ("sw_power_cap",)),
    ]
    assert gpu.busy() == telemetry.Reading(1800, 2000, 60, 200.0, ("gpu_idle", "sw_power_cap"))
