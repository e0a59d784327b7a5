"""How long threads wait for a core: with statistics that are made up, and on a core that another
process keeps busy."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from effbench.measure import host
from effbench.measure.host import RunQueue

OWN = 100  # this thread


def statistics_of(thread):
    """The file with the kernel's statistics of a thread, which may be new."""
    folder = host.TASKS / str(thread)
    folder.mkdir(exist_ok=True)
    return folder / "schedstat"


def let_wait(thread, ms):
    """Let a thread have waited for so long."""
    statistics_of(thread).write_text(f"123456789 {int(ms * 1e6)} 3\n")


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """The statistics of this thread are made up."""
    monkeypatch.setattr(host, "TASKS", tmp_path)
    monkeypatch.setattr(host.threading, "get_native_id", lambda: OWN)
    let_wait(OWN, 5.0)


@pytest.fixture
def opened():
    """Makes run queues, and closes them with the test."""
    made = []

    def make(all_threads=True):
        made.append(RunQueue(all_threads))
        return made[-1]

    yield make
    for queue in made:
        queue.close()


@pytest.mark.parametrize(("all_threads", "expected"), [(True, 12.0), (False, 5.0)])
def test_the_waiting_of_all_threads_is_added_up_or_that_of_this_one_counts(
    made_up, opened, all_threads, expected
):
    let_wait(101, 7.0)
    assert opened(all_threads).read_ms() == pytest.approx(expected)


def test_a_thread_that_has_ended_keeps_what_it_waited(made_up, opened):
    let_wait(101, 7.0)
    queue = opened()
    queue.read_ms()
    # what was opened before cannot be read any more
    statistics_of(101).write_text("")
    let_wait(OWN, 6.0)
    assert [queue.read_ms() for _ in range(2)] == pytest.approx([13.0, 13.0])


@pytest.mark.parametrize("statistics", ["", "123456789 0 0\n", "off\n"])
def test_preemptions_count_where_the_kernel_does_not_count_waiting(
    made_up, opened, monkeypatch, statistics
):
    statistics_of(OWN).write_text(statistics)
    usage = SimpleNamespace(ru_nivcsw=4)
    monkeypatch.setattr(host.resource, "getrusage", lambda who: usage)
    queue = opened()
    before = queue.read_ms()
    usage.ru_nivcsw = 6
    assert queue.read_ms() - before == 2 * host.SLICE_MS


def test_a_container_without_proc(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(host, "TASKS", tmp_path / "task")
    monkeypatch.setattr(host, "STATISTICS", tmp_path / "stat")
    assert not opened().is_counted
    assert host.core_times({0}) == host.CoreTimes(0.0, 0.0)


# --- on this machine ---


@pytest.fixture
def neighbour(processes):
    """A process that keeps the only core busy on which this thread may run."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    processes.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    time.sleep(0.2)
    yield
    os.sched_setaffinity(0, cores)


def test_a_busy_neighbour_on_the_core_makes_waiting_grow(neighbour, opened):
    queue = opened(all_threads=False)
    before_ms = queue.read_ms()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        sum(range(1000))
    assert queue.read_ms() - before_ms > 100
