"""How undisturbed the host is between batches of samples: what counts as a disturbance, and what a
trial does then."""

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
from effbench.measure.host import CoreTimes, HostWatch, Reading
from effbench.measure.timing import Timer
from effbench.message import TrialRequest


class MadeUpQueue:
    """Stands in for `RunQueue`: the threads have waited for `waited_ms` so far."""

    def __init__(self, all_threads):
        self.all_threads = all_threads
        self.waited_ms = 0.0

    def read_ms(self):
        return self.waited_ms

    def close(self): ...


@pytest.fixture
def make(monkeypatch):
    """Makes a watch whose work takes `watch.speed()` ms, and whose pauses take no time;
    `watch.pauses` lists them."""

    def build(quiet_ms=None, tolerance=1.1, moves=False, **options):
        watch = HostWatch(quiet_ms, tolerance, moves, **options)
        watch.speed = lambda: 0.05
        watch.pauses = []
        monkeypatch.setattr(host, "piece", lambda: watch.speed())
        monkeypatch.setattr(host.time, "sleep", watch.pauses.append)
        return watch

    monkeypatch.setattr(host, "RunQueue", MadeUpQueue)
    return build


def reading(work_ms=0.05, waited_ms=0.0):
    return Reading(work_ms, waited_ms)


class TestOnGpu:
    """The fixed work on the calling thread tells, compared with this machine's quietest moments."""

    @pytest.mark.parametrize(
        ("before_ms", "after_ms", "counts"),
        [
            (0.05, 0.05, True),
            (0.05, 0.0549, True),
            (0.05, 0.0551, False),
            (0.0551, 0.05, False),
            (0.2, 0.2, False),
        ],
    )
    def test_a_batch_counts_if_the_work_before_and_after_it_is_undisturbed(
        self, make, before_ms, after_ms, counts
    ):
        watch = make()
        with watch.watching():
            assert watch.is_undisturbed(reading(before_ms), reading(after_ms), 1.0) is counts

    def test_earlier_trials_tell_if_all_of_this_one_is_slow(self, make):
        watch = make(quiet_ms=0.03)
        with watch.watching():
            assert not watch.is_undisturbed(reading(0.05), reading(0.05), 1.0)

    def test_a_trial_that_is_faster_than_earlier_ones_tells_itself(self, make):
        watch = make(quiet_ms=9.0)
        with watch.watching():
            assert watch.is_undisturbed(reading(0.05), reading(0.05), 1.0)
            assert not watch.is_undisturbed(reading(8.0), reading(8.0), 1.0)

    def test_the_limit_falls_once_the_host_shows_that_it_was_slow_at_first(self, make):
        watch = make()
        with watch.watching():
            watch.speed = lambda: 0.03
            assert watch.is_undisturbed(reading(0.05), reading(0.05), 1.0)
            for _ in range(2 * host.EVERY):
                watch.read()
            assert not watch.is_undisturbed(reading(0.05), reading(0.05), 1.0)

    def test_what_earlier_trials_on_the_cpu_found_does_not_matter(self, make):
        watch = make(usual_high_ms=9.0)
        with watch.watching():
            assert not watch.is_undisturbed(reading(0.2), reading(0.2), 1.0)


class TestOnCpu:
    """The kernel tells how long threads waited; the work only tells if it is slower than ever
    before."""

    @pytest.mark.parametrize("work_ms", [0.05, 0.2, 9.0])
    def test_the_work_does_not_matter_as_long_as_nothing_is_known_of_the_machine(
        self, make, work_ms
    ):
        watch = make(all_threads=True)
        with watch.watching():
            assert watch.is_undisturbed(reading(work_ms), reading(work_ms), 1.0)

    @pytest.mark.parametrize(("work_ms", "counts"), [(0.05, True), (0.0769, True), (0.0771, False)])
    def test_the_work_may_take_as_long_as_in_the_slower_moments_of_usual_trials(
        self, make, work_ms, counts
    ):
        watch = make(all_threads=True, usual_high_ms=0.07)
        with watch.watching():
            assert watch.is_undisturbed(reading(work_ms), reading(0.05), 1.0) is counts
            assert watch.is_undisturbed(reading(0.05), reading(work_ms), 1.0) is counts

    def test_the_quietest_moments_of_trials_on_a_gpu_do_not_matter(self, make):
        watch = make(quiet_ms=0.01, all_threads=True, usual_high_ms=0.07)
        with watch.watching():
            assert watch.is_undisturbed(reading(0.05), reading(0.05), 1.0)


@pytest.mark.parametrize(("all_threads", "part"), [(False, 0.02), (True, 0.05)], ids=["GPU", "CPU"])
@pytest.mark.parametrize("seconds", [0.003, 1.0])
@pytest.mark.parametrize(("share", "counts"), [(0.0, True), (0.95, True), (1.05, False)])
def test_threads_may_wait_for_a_part_of_a_batch(make, all_threads, part, seconds, share, counts):
    """On the CPU, half of a tolerance of 0.1."""
    waited_ms = 1000 * seconds * part * share
    watch = make(all_threads=all_threads)
    with watch.watching():
        before, after = reading(waited_ms=100.0), reading(waited_ms=100.0 + waited_ms)
        assert watch.is_undisturbed(before, after, seconds) is counts


def test_a_reading_has_the_faster_of_two_works_and_the_time_that_threads_waited(make):
    watch = make()
    works = iter([0.09, 0.05])
    watch.speed = lambda: next(works)
    watch.run_queue.waited_ms = 7.0
    assert watch.read() == Reading(work_ms=0.05, waited_ms=7.0)


@pytest.mark.parametrize("all_threads", [True, False])
def test_the_threads_of_the_step_are_watched(make, all_threads):
    assert make(all_threads=all_threads).run_queue.all_threads is all_threads


SLOW = reading(9.0)


class TestFigures:
    """What a watch tells of a trial."""

    def test_the_disturbed_fraction_is_that_of_the_measured_time(self, make):
        watch = make()
        assert watch.disturbed_fraction is None
        with watch.watching():
            watch.is_undisturbed(reading(), reading(), 3.0)
            watch.is_undisturbed(SLOW, SLOW, 1.0)
        assert watch.disturbed_fraction == 0.25

    def test_the_reason_names_the_disturbed_fraction(self, make):
        watch = make()
        with watch.watching():
            watch.is_undisturbed(reading(), reading(), 1.0)
            watch.is_undisturbed(SLOW, SLOW, 4.0)
        assert watch.reason() == "host busy for 80 % of the timing"

    def test_the_quietest_moments_are_a_low_quantile_of_all_readings(self, make):
        watch = make()
        watch.readings = [0.1 * number for number in range(1, 12)]
        assert watch.low_ms == pytest.approx(0.2)

    def test_the_slower_moments_are_a_high_quantile_of_readings_after_batches_without_waiting(
        self, make
    ):
        watch = make(all_threads=True)
        assert watch.high_ms is None
        with watch.watching():
            for number in range(1, 12):
                watch.is_undisturbed(reading(), reading(0.1 * number), 1.0)
            watch.is_undisturbed(reading(), reading(9.0, waited_ms=900.0), 1.0)
        assert watch.high_ms == pytest.approx(1.0)

    def test_the_slowdown_compares_disturbed_batches_with_the_quietest_moments(self, make):
        watch = make()
        with watch.watching():
            for work_ms in (0.1, 0.125, 0.3):
                watch.is_undisturbed(reading(work_ms), reading(), 1.0)
        assert watch.slowdown == pytest.approx(2.5)

    def test_the_quietest_moments_of_earlier_trials_count_for_the_slowdown(self, make):
        watch = make(quiet_ms=0.025)
        with watch.watching():
            watch.is_undisturbed(reading(0.1), reading(0.1), 1.0)
        assert watch.slowdown == pytest.approx(4.0)

    def test_a_host_that_was_never_disturbed_has_no_slowdown(self, make):
        watch = make()
        with watch.watching():
            watch.is_undisturbed(reading(), reading(), 1.0)
        assert watch.slowdown == 1.0

    def test_waiting_threads_do_not_make_the_host_faster(self, make):
        watch = make()
        with watch.watching():
            watch.is_undisturbed(reading(0.01), reading(0.01, waited_ms=900.0), 1.0)
        assert watch.slowdown == 1.0

    def test_the_work_of_one_thread_tells_no_slowdown_of_several(self, make):
        watch = make(all_threads=True)
        with watch.watching():
            watch.is_undisturbed(reading(0.5), reading(0.5, waited_ms=900.0), 1.0)
        assert watch.slowdown == 1.0


class TestCalming:
    """After a while of disturbed batches the thread moves to a quieter core, or waits for a
    moment."""

    @pytest.fixture
    def chosen(self, monkeypatch):
        """The cores that the thread was given, of which 5 is the quietest."""
        chosen = [{3, 5, 7}]
        monkeypatch.setattr(host, "RunQueue", MadeUpQueue)
        monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {3, 5, 7})
        monkeypatch.setattr(
            host.os, "sched_setaffinity", lambda pid, cores: chosen.append(set(cores))
        )
        monkeypatch.setattr(host, "piece", lambda: 0.05 if chosen[-1] != {5} else 0.04)
        return chosen

    @pytest.fixture
    def pauses(self, monkeypatch):
        pauses = []
        monkeypatch.setattr(host.time, "sleep", pauses.append)
        return pauses

    @pytest.mark.parametrize(("moves", "expected"), [(True, {5}), (False, {3, 5, 7})])
    def test_a_thread_that_may_move_begins_on_the_quietest_core_and_gets_all_back(
        self, chosen, moves, expected
    ):
        with HostWatch(None, 1.1, moves).watching():
            assert chosen[-1] == expected
        assert chosen[-1] == {3, 5, 7}

    @pytest.mark.parametrize(
        ("options", "seconds", "core", "has_paused"),
        [
            ({"moves": True}, host.MOVE_AFTER_S / 2, {3}, False),
            ({"moves": True}, host.MOVE_AFTER_S, {5}, True),
            ({"moves": False}, host.MOVE_AFTER_S, {3}, True),
            ({"moves": True, "waits": False}, 9.0, {3}, False),
        ],
        ids=["it may pass", "moves", "cannot move", "does not wait"],
    )
    def test_after_a_while_it_moves_and_pauses(
        self, chosen, pauses, options, seconds, core, has_paused
    ):
        watch = HostWatch(None, 1.1, **options)
        with watch.watching():
            chosen.append({3})
            watch.is_undisturbed(SLOW, SLOW, seconds)
            watch.calm()
            assert chosen[-1] == core
        assert pauses == ([host.PAUSE_S] if has_paused else [])

    def test_an_undisturbed_batch_begins_the_while_again(self, make):
        watch = make()
        with watch.watching():
            for batch in (SLOW, reading(), SLOW):
                watch.is_undisturbed(batch, batch, 0.6 * host.MOVE_AFTER_S)
            watch.calm()
        assert watch.pauses == []


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


class TestTiming:
    """A timer that watches the host, against a clock that the tests turn."""

    def busy_half_of_the_time(self, clock):
        return clock.now % 1.0 > 0.5

    def test_latency_on_a_gpu_is_of_moments_with_undisturbed_work(self, monkeypatch, make):
        clock, watch = TurnedClock(monkeypatch), make()
        factor = lambda: 2.0 if self.busy_half_of_the_time(clock) else 1.0  # noqa: E731
        watch.speed = lambda: 0.05 * factor()
        step = clock.taking(lambda *args, **kwargs: 0.0002 * factor())
        with watch.watching():
            result = Timer(
                step, INPUTS, CPU, rules(min_time_s=1.0, patience=2.0), host=watch
            ).latency(4.0)
        assert {round(value, 3) for value in result.samples_ms} == {0.2}
        assert statistics.median(result.disturbed_ms) == pytest.approx(0.4)
        assert len(result.enqueue_ms) == len(result.samples_ms)
        assert 0.3 < watch.disturbed_fraction < 0.8

    def test_latency_on_the_cpu_is_of_moments_without_waiting(self, monkeypatch, make):
        """Although the work of one thread has two speeds all the time."""
        clock, watch = TurnedClock(monkeypatch), make(all_threads=True)
        watch.speed = lambda: 0.05 if clock.now % 0.1 > 0.05 else 0.09

        def seconds(*args, **kwargs):
            if not self.busy_half_of_the_time(clock):
                return 0.0002
            watch.run_queue.waited_ms += 0.2
            return 0.0004

        with watch.watching():
            timer = Timer(
                clock.taking(seconds), INPUTS, CPU, rules(min_time_s=1.0, patience=2.0), host=watch
            )
            result = timer.latency(4.0)
        assert {round(value, 3) for value in result.samples_ms} == {0.2}
        assert statistics.median(result.disturbed_ms) == pytest.approx(0.4)
        assert not result.figure(30, True, watch.slowdown).is_marked

    @pytest.mark.parametrize("patience", [1.0, 1.5, 3.0])
    def test_a_trial_without_an_undisturbed_moment_ends_when_its_patience_does(
        self, monkeypatch, make, patience
    ):
        clock, watch = TurnedClock(monkeypatch), make(quiet_ms=0.01)
        step = clock.taking(lambda *args, **kwargs: 0.001)
        with watch.watching():
            result = Timer(step, INPUTS, CPU, rules(patience=patience), host=watch).latency(2.0)
        assert clock.now == pytest.approx(patience * 2.0, rel=0.05)
        assert result.samples_ms == []
        assert result.disturbed_ms == pytest.approx([1.0] * len(result.disturbed_ms))
        assert result.figure(30, True, watch.slowdown).is_marked

    def test_patience_is_not_used_up_once_enough_is_known(self, monkeypatch, make):
        clock, watch = TurnedClock(monkeypatch), make()
        step = clock.taking(lambda *args, **kwargs: 0.001)
        with watch.watching():
            Timer(step, INPUTS, CPU, rules(patience=9.0), host=watch).latency(2.0)
        assert clock.now == pytest.approx(0.5, rel=0.1)

    def test_without_discarding_a_disturbed_host_costs_no_further_time(self, monkeypatch, make):
        clock, watch = TurnedClock(monkeypatch), make(quiet_ms=0.01)
        step = clock.taking(lambda *args, **kwargs: 0.001)
        with watch.watching():
            result = Timer(step, INPUTS, CPU, rules(discards=False), host=watch).latency(2.0)
        assert clock.now == pytest.approx(0.5, rel=0.1), "the median is known"
        assert (result.samples_ms, len(result.disturbed_ms)) == ([], pytest.approx(500, rel=0.1))

    def test_there_is_a_sample_however_short_the_budget_is(self, monkeypatch, make):
        clock, watch = TurnedClock(monkeypatch), make()

        def work():
            clock.now += 0.01
            return 0.05

        watch.speed = work
        step = clock.taking(lambda *args, **kwargs: 0.001)
        with watch.watching():
            result = Timer(step, INPUTS, CPU, rules(), host=watch).latency(0.001)
        assert result.all_samples().samples_ms == [pytest.approx(1.0)]


def spin(stop):
    """Keep a core busy for a second, then rest for one and a half."""
    while time.time() < stop:
        until = time.time() + 1.0
        while time.time() < until:
            pass
        time.sleep(1.5)


@pytest.mark.slow
def test_busy_cores_cost_time_or_mark_the_trial_but_never_give_a_wrong_figure(other_processes):
    """On every core a loop is busy for 1 s and rests for 1.5 s."""
    from effbench.worker import trial

    module = {"_target_": "torch.nn.Linear", "in_features": 16, "out_features": 16}
    model = {"name": "tiny", "module": module, "inputs": [{"name": "x", "shape": [16]}]}
    mode = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}
    cell = Cell(model, 8, mode, "float32", "inference", "cpu", threads=1)
    before = torch.get_num_threads()

    def measured(host_high_ms=None):
        request = TrialRequest(
            cell.params(), vars(Protocol(budget_s=1.0)), host_high_ms=host_high_ms
        )
        return SimpleNamespace(**trial.run(request.to_json(), lambda phase: None))

    try:
        quiet = min((measured() for _ in range(3)), key=lambda record: record.disturbed_fraction)
        for _ in range(os.cpu_count()):
            other_processes(spin, time.time() + 25)
        busy = [measured(quiet.host_high_ms) for _ in range(4)]
    finally:
        torch.set_num_threads(before)
    assert {record.status for record in (quiet, *busy)} == {"ok"}
    assert max(record.disturbed_fraction for record in busy) > 0.1
    for record in busy:
        if record.disturbance is None:
            assert record.latency_ms == pytest.approx(quiet.latency_ms, rel=0.15)
        else:
            assert record.latency_median_low_ms <= 1.15 * quiet.latency_ms


class TestOtherProcesses:
    @pytest.fixture
    def kernel_says(self, tmp_path, monkeypatch):
        """Write what the kernel says of two cores, in ticks."""
        file = tmp_path / "stat"
        monkeypatch.setattr(host, "STATISTICS", file)

        def write(first, second, stolen=0):
            file.write_text(
                f"cpu 0 0\ncpu0 {first} 0 0 900 0 0 0 {stolen} 0 0\ncpu1 {second} 0 0 900 0 0 0"
                f" {stolen} 0 0\nintr 1\n"
            )

        return write

    def test_the_time_of_the_given_cores_counts(self, kernel_says):
        ticks = os.sysconf("SC_CLK_TCK")
        kernel_says(3 * ticks, 4 * ticks, stolen=ticks)
        assert host.core_times({0}) == CoreTimes(3.0, 1.0)
        assert host.core_times({0, 1}) == CoreTimes(7.0, 2.0)

    def test_without_statistics_it_is_unknown(self, kernel_says):
        assert host.core_times({0}) is None

    @pytest.mark.parametrize(
        ("fraction", "tolerance", "all_threads", "is_crowded"),
        [
            (0.6, 1.1, True, True),
            (0.4, 1.1, True, False),
            (0.6, 1.1, False, False),
            (0.6, 1001.0, True, False),
        ],
        ids=["crowded", "room", "a GPU", "not asked for"],
    )
    def test_when_cores_are_crowded(self, fraction, tolerance, all_threads, is_crowded):
        watch = HostWatch(None, tolerance, moves=False, all_threads=all_threads)
        assert watch.crowding is None, "before it was watched"
        watch.others_fraction = fraction
        assert (watch.crowding is not None) is is_crowded
        assert watch.theft is None
        watch.stolen_fraction = fraction / 4
        assert (watch.theft is not None) is (all_threads and tolerance < 2 and fraction > 0.4)
        if watch.theft:
            assert (
                watch.crowding == "host busy: other virtual machines took 15 % of the cores' time"
            )
