"""The host's speed between batches of samples, and on two busy cores."""

import dataclasses
import itertools
import multiprocessing
import os
import platform
import statistics
import time
from types import SimpleNamespace

import pytest
import torch
from test_measure_timing import CPU, INPUTS, rules
from turned_clock import TurnedClock

from effbench.cell import Cell
from effbench.config import Protocol
from effbench.measure import host
from effbench.measure import timing as timing_module
from effbench.measure.host import HostWatch, Reading
from effbench.measure.timing import Timer, Timing
from effbench.message import TrialRequest
from effbench.sweeping.schedule import RECENT_TRIALS, usual_host_ms


@pytest.fixture
def watch(monkeypatch):
    """A watch whose work takes as long as `watch.speed()` says, in ms."""
    made = HostWatch(None, 1.1, moves=False, team=False)
    made.speed = lambda: 0.05
    monkeypatch.setattr(host, "piece", lambda: made.speed())
    monkeypatch.setattr(host.time, "sleep", lambda seconds: None)
    return made


def test_a_batch_counts_if_the_work_before_and_after_it_is_undisturbed(watch):
    with watch.watching():
        quiet = watch.read()
        for before, after, counts in (
            (quiet, quiet, True), (quiet, quiet._replace(ms=0.0549), True), (quiet, quiet._replace(ms=0.0551), False),
            (quiet._replace(ms=0.2), quiet, False),
        ):  # fmt: skip
            assert watch.is_undisturbed(before, after, 1.0) is counts
        for preemptions, seconds, counts in ((1, 0.1, False), (1, 0.2, True), (7, 1.0, False), (6, 1.0, True)):
            after = quiet._replace(preemptions=quiet.preemptions + preemptions)
            assert watch.is_undisturbed(quiet, after, seconds) is counts, "their slices may take 2 % of the batch"
    assert watch.disturbed_fraction == pytest.approx(3.1 / 6.3) and watch.low_ms == pytest.approx(0.05)
    watch.speed = lambda: 0.03
    for _ in range(2 * host.EVERY):
        watch.read()
    assert not watch.is_undisturbed(quiet, quiet, 1.0), "the host was slow at first"


def test_the_work_of_a_team_counts_if_there_is_one(monkeypatch):
    times = iter(range(0, 10**9, 50_000))
    monkeypatch.setattr(host.time, "perf_counter_ns", lambda: next(times))
    watch = HostWatch(None, 1.1, moves=False, team=True)
    with watch.watching():
        quiet = watch.read()
        assert quiet[:2] == (0.05, 0.05)
        for team_ms, counts in ((0.0649, True), (0.0651, False)):
            other = quiet._replace(team_ms=team_ms)
            assert watch.is_undisturbed(other, quiet, 1.0) is watch.is_undisturbed(quiet, other, 1.0) is counts


def test_what_is_known_of_the_machine_counts_where_all_of_the_trial_is_slow(watch):
    watch.known_ms = 0.03
    with watch.watching():
        reading = watch.read()
        assert not watch.is_undisturbed(reading, reading, 1.0)
    assert "disturbed for 100 % of the timing" in watch.reason()
    watch.known_ms = 9.0
    with watch.watching():
        watch.readings.clear()
        reading = [watch.read() for _ in range(host.EVERY)][-1]
        assert watch.is_undisturbed(reading, reading, 1.0), "this trial is faster than what was known"


def test_latency_is_of_undisturbed_moments_alone(monkeypatch, watch):
    """The host is twice as slow for half of every second."""
    clock = TurnedClock(monkeypatch)
    slow = lambda: 2.0 if clock.now % 1.0 > 0.5 else 1.0  # noqa: E731
    step, watch.speed = clock.taking(lambda *args, **kwargs: 0.0002 * slow()), lambda: 0.05 * slow()
    found = Timer(step, INPUTS, CPU, rules(min_time_s=1.0), host=watch)
    with watch.watching():
        timing = found.latency(4.0)
    assert {round(value, 3) for value in timing.samples_ms} == {0.2}
    assert statistics.median(timing.disturbed_ms) == pytest.approx(0.4) and not timing.is_disturbed(30)
    assert len(timing.enqueue_ms) == len(timing.samples_ms) and 0.3 < watch.disturbed_fraction < 0.8


def test_a_trial_without_an_undisturbed_moment_ends_and_has_its_figure(monkeypatch, watch):
    clock = TurnedClock(monkeypatch, itertools.repeat(0.001))
    watch.known_ms = 0.01
    with watch.watching():
        timing = Timer(clock.step, INPUTS, CPU, rules(), host=watch).latency(2.0)
    assert clock.now == pytest.approx(host.PATIENCE * 2.0, rel=0.05)
    assert timing.is_disturbed(30) and statistics.median(timing.samples_ms) == pytest.approx(1.0)
    few = Timing(samples_ms=[1.0] * 29, disturbed_ms=[2.0] * 100)
    assert few.is_disturbed(30) and not dataclasses.replace(few, samples_ms=[1.0] * 30).is_disturbed(30)
    assert not Timing(samples_ms=[1.0]).is_disturbed(30), "a call of seconds"
    for lost, kept, disturbed in ((1.0, 29, False), (0.5, 29, True), (1.0, timing_module.FEWEST_SAMPLES - 1, True)):
        assert Timing([1.0] * kept, disturbed_ms=[lost, *[lost] * 99]).is_disturbed(30) is disturbed, (lost, kept)


def test_the_thread_moves_to_a_quieter_core_and_back(monkeypatch):
    here, chosen = {3, 5, 7}, [{3, 5, 7}]
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: here)
    monkeypatch.setattr(host.os, "sched_setaffinity", lambda pid, cores: chosen.append(set(cores)))
    monkeypatch.setattr(host, "piece", lambda: 0.05 if chosen[-1] != {5} else 0.04)
    monkeypatch.setattr(host.time, "sleep", lambda seconds: None)
    slow = Reading(9.0, 0.0, 0)
    for moves in (True, False):
        watch = HostWatch(None, 1.1, moves=moves, team=False)
        with watch.watching():
            assert chosen[-1] == ({5} if moves else here)
            chosen.append({3})
            watch.is_undisturbed(slow, slow, host.MOVE_AFTER_S / 2)
            watch.calm()
            assert chosen[-1] == {3}, "it may pass"
            watch.is_undisturbed(slow, slow, host.MOVE_AFTER_S)
            watch.calm()
            assert chosen[-1] == ({5} if moves else {3})
        assert chosen[-1] == here


def test_a_calibration_looks_for_the_quietest_moments_on_every_core(monkeypatch):
    """The last core becomes quiet when four fifths of the time have passed."""
    before, now = os.sched_getaffinity(0), [0]

    def piece():
        return 0.04 if now[0] > 400 and os.sched_getaffinity(0) == {max(before)} else 0.09

    monkeypatch.setattr(host, "piece", piece)
    monkeypatch.setattr(host.time, "monotonic", lambda: now.append(now.pop() + 1) or now[0])
    facts = host.undisturbed(CPU, 500.0)
    assert facts == {"host_ms": pytest.approx(0.04), "hostname": platform.node()}
    assert os.sched_getaffinity(0) == before and now == [501]


def test_the_usual_speed_is_a_low_quantile_of_recent_trials():
    assert usual_host_ms([]) is None and usual_host_ms([0.5]) == 0.5
    assert usual_host_ms([9.0] + [0.1 * n for n in range(1, 10)]) == pytest.approx(0.28)
    assert usual_host_ms([0.04, 0.06]) == pytest.approx(0.044), "not below all values"
    assert usual_host_ms([0.01] * 20 + [1.0] * RECENT_TRIALS) == 1.0, "an older machine is forgotten"


def spin(stop: float) -> None:
    """Keep a core busy for a second, then rest for one and a half."""
    while time.time() < stop:
        until = time.time() + 1.0
        while time.time() < until:
            pass
        time.sleep(1.5)


@pytest.mark.slow
def test_busy_cores_cost_time_or_make_the_trial_noisy_but_never_change_the_figure():
    """On every core a loop is busy for 1 s and rests for 1.5 s."""
    from effbench.worker import trial

    torch.set_num_threads(1)
    module = {"_target_": "torch.nn.Linear", "in_features": 16, "out_features": 16}
    model = {"name": "tiny", "module": module, "inputs": [{"name": "x", "shape": [16]}]}
    mode = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}
    cell = Cell(model, 8, mode, "float32", "inference", "cpu")

    def measured(host_ms=None):
        request = TrialRequest(cell.params(), vars(Protocol(budget_s=1.0)), host_ms=host_ms)
        return SimpleNamespace(**trial.run(request.to_json(), lambda phase: None))

    quiet = min((measured() for _ in range(3)), key=lambda record: record.host_ms)
    stop = time.time() + 25
    loops = [multiprocessing.get_context("fork").Process(target=spin, args=(stop,)) for _ in range(os.cpu_count())]
    for loop in loops:
        loop.start()
    try:
        busy = [measured(quiet.host_ms) for _ in range(4)]
    finally:
        for loop in loops:
            loop.kill()
            loop.join()
    assert max(record.disturbed_fraction for record in busy) > 0.1
    for record in busy:
        assert record.status == "noisy" or record.latency_ms == pytest.approx(quiet.latency_ms, rel=0.1)
