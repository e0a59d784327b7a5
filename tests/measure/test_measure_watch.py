"""What disturbs timing: discarded, timed again, and in the end noisy. The GPU is made up."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import pytest
import torch

from effbench.measure import timing, watch
from effbench.measure.telemetry import Reading, Telemetry

CPU = torch.device("cpu")
RULES = timing.Rules(
    budget_s=1.0, min_time_s=0.1, min_samples=5, target_interval=0.005, max_samples=1000,
    warmup_calls=1, warmup_s=0.0, max_warmup_calls=10, min_block_ms=1.0,
)  # fmt: skip
INPUTS = [((), {})]


class Gpu(Telemetry):
    """Answers what its lists say, the last of each for ever."""

    def __init__(self, events=((),), pids=(None,), used=(None,), busy=(0,), working=(None,)):
        super().__init__()
        self.answers = {
            name: itertools.chain(values[:-1], itertools.repeat(values[-1]))
            for name, values in {
                "events": events,
                "pids": pids,
                "used": used,
                "busy": busy,
                "working": working,
            }.items()
        }

    def read(self):
        return Reading(clocks_event_reasons=tuple(next(self.answers["events"])))

    def foreign_pids(self):
        found = next(self.answers["pids"])
        return None if found is None else set(found)

    def used_bytes(self):
        return next(self.answers["used"])

    def utilization(self):
        return next(self.answers["busy"])

    def working_pids(self, since):
        found = next(self.answers["working"])
        return None if found is None else set(found)


@pytest.fixture
def reserved(monkeypatch):
    """What torch holds on the GPU, in MiB, call by call."""
    values = [0]
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: values[0] * 2**20)
    return values


def watching(**answers):
    made = watch.GpuWatch(Gpu(**answers), CPU)
    made.begin()
    return made


def test_a_quiet_gpu_disturbs_nothing():
    made = watching()
    assert [made.disturbed() for _ in range(5)] == [False] * 5
    assert (made.discarded, made.noisy) == ([], None)


@pytest.mark.parametrize("event", sorted(watch.SLOWDOWNS))
def test_lowered_clocks_disturb(event):
    made = watching(events=[(event,), ("gpu_idle",)])
    assert (made.disturbed(), made.disturbed()) == (True, False)
    assert made.discarded == [f"clocks lowered ({event})"]
    assert made.noisy is None


@pytest.mark.parametrize("event", ["sw_power_cap", "gpu_idle", "applications_clocks_setting"])
def test_a_gpus_own_pace_does_not(event):
    assert not watching(events=[(event,)]).disturbed()


def test_what_was_seen_between_looks_counts():
    made = watching()
    made.gpu.readings.append(Reading(clocks_event_reasons=("hw_slowdown",)))
    assert (made.disturbed(), made.disturbed()) == (True, False)


def test_after_three_retries_it_is_kept_and_noisy():
    made = watching(events=[("hw_slowdown",)])
    assert [made.disturbed() for _ in range(6)] == [True] * 3 + [False] * 3
    assert len(made.discarded) == 3
    assert made.noisy == "while timing, on every try: clocks lowered (hw_slowdown)"


def test_a_process_that_comes_disturbs_and_one_that_was_there_does_not():
    assert not watching(pids=[{7}, {7}]).disturbed()
    made = watching(pids=[{7}, {7, 8, 9}])
    assert made.disturbed()
    assert made.discarded == ["another process began to use this GPU (pid 8, 9)"]


def test_a_process_that_was_there_disturbs_when_it_works():
    made = watching(pids=[{7, 8}], working=[{1}, {1, 8}, {1}])
    assert [made.disturbed() for _ in range(3)] == [False, True, False]
    assert made.discarded == ["another process works on this GPU (pid 8)"]


class TestRestAfterwards:
    """Where NVML cannot tell whose the work is."""

    @pytest.fixture(autouse=True)
    def no_cuda(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)

    def ended(self, slept=None, **answers):
        made = watching(**answers)
        made.end((slept if slept is not None else []).append)
        return made

    def test_a_busy_gpu_at_rest_is_somebody_elses(self):
        assert "another process kept this GPU busy" in self.ended(pids=[{7}], busy=[40]).noisy

    def test_what_nvml_reports_late_is_looked_at(self):
        made = watching(pids=[{7}], working=[None, {1, 7}])
        assert not made.disturbed()
        made.end(lambda seconds: None)
        assert made.noisy == "another process works on this GPU (pid 7)"

    def test_an_idle_one_is_not(self):
        slept = []
        assert self.ended(slept, pids=[{7}], busy=[0]).noisy is None
        assert slept == [2 * watch.SAMPLING_S]

    def test_no_rest_where_nobody_is_or_nvml_tells(self):
        slept = []
        self.ended(slept, pids=[set()], busy=[40])
        self.ended(slept, pids=[{7}], working=[{1}], busy=[40])
        assert slept == []

    def test_memory_of_others_before_the_trial(self, reserved):
        made = watch.GpuWatch(Gpu(busy=[40]), CPU, shared=True)
        made.begin()
        made.end(lambda seconds: None)
        assert "another process" in made.noisy


class Sample:
    def __init__(self, pid, util, at):
        self.pid, self.smUtil, self.timeStamp = pid, util, int(at * 1e6)


def test_working_pids_are_those_with_a_recent_kernel():
    mine = os.getpid()
    samples = [Sample(mine, 50, 20.0), Sample(7, 30, 20.0), Sample(8, 0, 20.0), Sample(9, 30, 5.0)]
    for answer, expected in ((samples, {mine, 7}), (samples[1:], None), (None, None)):
        # None: NVML cannot tell, or it numbers processes otherwise than this one does
        nvml = SimpleNamespace(ask=lambda function, handle, since, answer=answer: answer)
        assert Telemetry(nvml, object()).working_pids(10.0) == expected


def test_memory_that_is_not_ours_tells_of_a_process_that_nvml_does_not_list(reserved):
    made = watching(used=[600 * 2**20, 2600 * 2**20])
    assert made.disturbed()
    assert made.discarded == ["another process took 2000 MiB of this GPU"]


def clock(monkeypatch, seconds=0.001):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: round(now[0] * 1e9))

    def step():
        now[0] += seconds

    return step


class Once(timing.Watch):
    """Throws the second run of samples away, and remembers how many calls there were."""

    def __init__(self):
        self.looks = 0

    def disturbed(self):
        self.looks += 1
        return self.looks == 2


def test_discarded_samples_are_gone_and_their_time_is_not_counted(monkeypatch):
    step = clock(monkeypatch)
    calls = []
    taken = timing.time_latency(lambda: (calls.append(1), step()), INPUTS, CPU, RULES, 1.0, Once())
    assert len(calls) > taken.calls == len(taken.samples_ms) == len(taken.enqueue_ms)
    assert taken.seconds == pytest.approx(taken.calls * 0.001)


class TestStranger:
    """Before a trial touches the GPU."""

    def test_a_free_gpu(self):
        assert watch.busy_foreign_process(Gpu(used=[2**20]), 9.0) is None
        assert watch.busy_foreign_process(Gpu(), 9.0) is None, "nobody can tell"

    def test_memory_that_lies_there_unused(self):
        assert watch.busy_foreign_process(Gpu(used=[2**34], busy=[0]), 9.0) is None
        assert watch.busy_foreign_process(Gpu(used=[2**34], busy=[None]), 9.0) is None

    def test_is_waited_for(self):
        slept = []
        assert watch.busy_foreign_process(Gpu(used=[2**34], busy=[90, 40, 0]), 9.0, slept.append) is None
        assert len(slept) == 2

    def test_that_stays_makes_the_trial_noisy(self):
        reason = watch.busy_foreign_process(Gpu(used=[2**34], busy=[90]), 0.0)
        assert reason == "another process keeps this GPU busy (16384 MiB in use before the trial)"
