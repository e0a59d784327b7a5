"""How undisturbed the host is between batches of samples: what counts as a disturbance, and what a
trial does then."""

import os
import statistics

import pytest
from test_measure_timing import CPU, INPUTS, rules
from turned_clock import TurnedClock

from effbench.measure import host
from effbench.measure.host import CoreTimes, HostWatch, Reading
from effbench.measure.rules import Rules
from effbench.measure.timing import Timer


class MadeUpQueue:
    """Stands in for `RunQueue`: no thread waits."""

    def __init__(self, all_threads): ...
    def read_ms(self):
        return 0.0

    def close(self): ...


@pytest.fixture
def make(monkeypatch):
    """Makes a watch whose work takes `watch.speed()` ms, and whose pauses take no time."""

    def build(quiet_ms=None, **options):
        watch = HostWatch(quiet_ms, 1.1, moves=False, **options)
        watch.speed = lambda: 0.05
        monkeypatch.setattr(host, "piece", lambda: watch.speed())
        return watch

    monkeypatch.setattr(host, "RunQueue", MadeUpQueue)
    monkeypatch.setattr(host.time, "sleep", lambda seconds: None)
    return build


def reading(work_ms=0.05, waited_ms=0.0):
    return Reading(work_ms, waited_ms)


ON_CPU = {"all_threads": True}
#: On a GPU the fixed work on the calling thread tells, compared with this machine's quietest
#: moments. On the CPU the kernel tells how long threads waited; the work only tells if it is slower
#: than ever before. By name: options of the watch, the ms of the work before and after a batch, and
#: whether the batch counts.
BATCHES = {
    "within the tolerance": ({}, 0.05, 0.0549, True),
    "slow afterwards": ({}, 0.05, 0.0551, False),
    "slow before": ({}, 0.0551, 0.05, False),
    "all of this trial is slow": ({"quiet_ms": 0.03}, 0.05, 0.05, False),
    "slow, although faster than earlier trials": ({"quiet_ms": 9.0}, 8.0, 8.0, False),
    "the CPU's slower moments do not matter": ({"usual_high_ms": 9.0}, 0.2, 0.2, False),
    "CPU: slow, and nothing is known": (ON_CPU, 9.0, 9.0, True),
    "CPU: as in usual trials": (ON_CPU | {"usual_high_ms": 0.07}, 0.0769, 0.05, True),
    "CPU: slow afterwards": (ON_CPU | {"usual_high_ms": 0.07}, 0.05, 0.0771, False),
    "CPU: a GPU's quietest moments do not matter": (
        ON_CPU | {"usual_high_ms": 0.07, "quiet_ms": 0.01},
        0.05,
        0.05,
        True,
    ),
}


@pytest.mark.parametrize(
    ("options", "before_ms", "after_ms", "counts"), BATCHES.values(), ids=BATCHES
)
def test_which_batches_count(make, options, before_ms, after_ms, counts):
    watch = make(**options)
    with watch.watching():
        assert watch.is_undisturbed(reading(before_ms), reading(after_ms), 1.0) is counts


@pytest.mark.parametrize(
    ("all_threads", "waited_ms", "counts"),
    [(False, 19.0, True), (False, 21.0, False), (True, 49.0, True), (True, 51.0, False)],
)
def test_threads_may_wait_for_a_part_of_a_batch(make, all_threads, waited_ms, counts):
    """On the CPU, half of a tolerance of 0.1."""
    watch = make(all_threads=all_threads)
    with watch.watching():
        before, after = reading(waited_ms=100.0), reading(waited_ms=100.0 + waited_ms)
        assert watch.is_undisturbed(before, after, 1.0) is counts


SLOW = reading(9.0)


@pytest.mark.parametrize(
    ("options", "works_ms", "waited_ms", "slowdown"),
    [
        ({}, (0.1, 0.125, 0.3), 0.0, 2.5),
        ({"quiet_ms": 0.025}, (0.1,), 0.0, 4.0),
        ({}, (0.05,), 0.0, 1.0),
        ({}, (0.01,), 900.0, 1.0),
        (ON_CPU, (0.5,), 900.0, 1.0),
    ],
    ids=[
        "disturbed batches and the quietest moments",
        "those of earlier trials",
        "never disturbed",
        "waiting threads do not make the host faster",
        "the work of one thread tells nothing of several",
    ],
)
def test_the_slowdown_of_disturbed_moments(make, options, works_ms, waited_ms, slowdown):
    watch = make(**options)
    with watch.watching():
        for work_ms in works_ms:
            watch.is_undisturbed(reading(work_ms), reading(min(work_ms, 0.1), waited_ms), 1.0)
    assert watch.slowdown == pytest.approx(slowdown)


CHANGES, IS_SLOW = [0.08, 0.08, 0.096, 0.096], [0.08, 0.08, 0.084, 0.084]
#: By name: samples of disturbed moments, the ms of the work in them, and whether the samples ignore
#: the host.
IGNORING = {
    "they stay the same while it changes": ([1.0, 1.01] * 10, CHANGES, True),
    "they follow it": ([1.0, 1.06] * 10, CHANGES, False),
    "single calls are slower": ([1.0] * 18 + [1.5] * 2, CHANGES, True),
    "it is slow all the time": ([1.0] * 20, IS_SLOW, False),
    "it is undisturbed": ([1.0] * 20, [0.05] * 4, False),
    "too few to tell": ([1.0] * 9, CHANGES, False),
}


@pytest.mark.parametrize(("lost", "works_ms", "ignores"), IGNORING.values(), ids=IGNORING)
def test_times_that_stay_the_same_do_not_depend_on_the_host(make, lost, works_ms, ignores):
    watch = make(quiet_ms=0.05)
    watch.limit_ms = 0.055
    for work_ms in works_ms:
        watch.is_undisturbed(reading(), reading(work_ms), 0.003)
    assert watch.is_ignored_by(lost) is ignores


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

    @pytest.mark.parametrize(("moves", "expected"), [(True, {5}), (False, {3, 5, 7})])
    def test_a_thread_that_may_move_begins_on_the_quietest_core_and_gets_all_back(
        self, chosen, moves, expected
    ):
        with HostWatch(None, 1.1, moves).watching():
            assert chosen[-1] == expected
        assert chosen[-1] == {3, 5, 7}

    @pytest.mark.parametrize(
        ("options", "seconds", "core", "expected"),
        [
            ({"moves": True}, host.MOVE_AFTER_S / 2, {3}, []),
            ({"moves": True}, host.MOVE_AFTER_S, {5}, [host.PAUSE_S]),
            ({"moves": False}, host.MOVE_AFTER_S, {3}, [host.PAUSE_S]),
            ({"moves": True, "waits": False}, 9.0, {3}, []),
        ],
        ids=["it may pass", "moves", "cannot move", "does not wait"],
    )
    def test_after_a_while_it_moves_and_pauses(
        self, monkeypatch, chosen, options, seconds, core, expected
    ):
        pauses = []
        monkeypatch.setattr(host.time, "sleep", pauses.append)
        watch = HostWatch(None, 1.1, **options)
        with watch.watching():
            chosen.append({3})
            watch.is_undisturbed(SLOW, SLOW, seconds)
            watch.calm()
            assert chosen[-1] == core
        assert pauses == expected


class TestTiming:
    """A timer that watches the host, against a clock that the tests turn."""

    def test_latency_on_a_gpu_is_of_moments_with_undisturbed_work(self, monkeypatch, make):
        clock, watch = TurnedClock(monkeypatch), make()

        def slowness():
            return 2.0 if clock.now % 1.0 > 0.5 else 1.0

        watch.speed = lambda: 0.05 * slowness()
        step = clock.taking(lambda *args, **kwargs: 0.0002 * slowness())
        patient = rules(min_time_s=1.0, patience=2.0)
        with watch.watching():
            result = Timer(step, INPUTS, CPU, patient, host=watch).latency(4.0)
        assert {round(value, 3) for value in result.samples_ms} == {0.2}
        assert statistics.median(result.disturbed_ms) == pytest.approx(0.4)
        assert len(result.enqueue_ms) == len(result.samples_ms)
        assert 0.3 < watch.facts().disturbed_fraction < 0.8

    @pytest.mark.parametrize(
        ("changed", "seconds"),
        [({"patience": 1.5}, 3.0), ({"host_tolerance": None}, 0.5)],
        ids=["until its patience ends", "without discarding, until the median is known"],
    )
    def test_a_trial_without_an_undisturbed_moment(self, monkeypatch, make, changed, seconds):
        clock, watch = TurnedClock(monkeypatch), make(quiet_ms=0.01)
        step = clock.taking(lambda *args, **kwargs: 0.001)
        with watch.watching():
            result = Timer(step, INPUTS, CPU, rules(**changed), host=watch).latency(2.0)
        assert clock.now == pytest.approx(seconds, rel=0.1)
        assert result.samples_ms == []
        assert result.disturbed_ms == pytest.approx([1.0] * len(result.disturbed_ms))
        assert result.figure(Rules(), watch.slowdown).is_marked


def test_the_time_of_the_given_cores_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    host.STATISTICS.write_text(
        "cpu 0 0\ncpu0 300 0 0 900 0 0 0 100 0 0\ncpu1 400 0 0 900 0 0 0 100 0 0\nintr 1\n"
    )
    assert host.core_times({0}) == CoreTimes(3.0, 1.0)
    assert host.core_times({0, 1}) == CoreTimes(7.0, 2.0)


@pytest.mark.parametrize(
    ("tolerance", "all_threads", "matter"),
    [(1.1, True, True), (1.1, False, False), (1001.0, True, False)],
    ids=["the CPU", "a GPU", "not asked for"],
)
def test_when_the_use_of_all_cores_matters(tolerance, all_threads, matter):
    watch = HostWatch(None, tolerance, moves=False, all_threads=all_threads)
    with watch.watching():
        pass
    assert watch.facts().all_cores_matter is matter


def test_the_cores_that_a_partner_used_are_not_those_of_others(monkeypatch):
    times = iter([CoreTimes(0.0, 0.0), CoreTimes(1e6, 0.0)])
    monkeypatch.setattr(host, "core_times", lambda cores: next(times))
    watch = HostWatch(None, 1.1, moves=False)
    with watch.watching():
        pass
    alone = watch.facts().others_fraction
    assert watch.facts(partner_s=5e5).others_fraction == pytest.approx(alone / 2, rel=0.01)
    assert watch.facts(partner_s=2e6).others_fraction == 0.0
