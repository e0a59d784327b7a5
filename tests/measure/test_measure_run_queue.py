"""How long threads wait for a core: with statistics that are made up, and on a core that another
process keeps busy."""

import multiprocessing
import os
import time
from types import SimpleNamespace

import pytest

from effbench.measure import host
from effbench.measure.host import RunQueue

OWN = 100  # this thread


class Tasks:
    """The kernel's statistics of threads, in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def wait(self, thread, ms):
        """Let a thread have waited for so long; it may be new."""
        path = self.folder / str(thread)
        path.mkdir(exist_ok=True)
        (path / "schedstat").write_text(f"123456789 {int(ms * 1e6)} 3\n")

    def end(self, thread):
        """Let a thread end: what was opened before cannot be read any more."""
        (self.folder / str(thread) / "schedstat").write_text("")


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "TASKS", tmp_path)
    monkeypatch.setattr(host.threading, "get_native_id", lambda: OWN)
    made = Tasks(tmp_path)
    made.wait(OWN, 5.0)
    return made


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
    tasks, opened, all_threads, expected
):
    tasks.wait(101, 7.0)
    assert opened(all_threads).read_ms() == pytest.approx(expected)


def test_a_thread_that_has_ended_keeps_what_it_waited(tasks, opened):
    tasks.wait(101, 7.0)
    queue = opened()
    queue.read_ms()
    tasks.end(101)
    tasks.wait(OWN, 6.0)
    assert [queue.read_ms() for _ in range(2)] == pytest.approx([13.0, 13.0])


@pytest.mark.parametrize("statistics", [None, "123456789 0 0\n", "off\n"])
def test_preemptions_count_where_the_kernel_does_not_count_waiting(
    tasks, opened, monkeypatch, statistics
):
    path = tasks.folder / str(OWN) / "schedstat"
    if statistics is None:
        path.unlink()
    else:
        path.write_text(statistics)
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
def one_core():
    """This thread runs on a single core during the test."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, before)


def keep_busy(core):
    os.sched_setaffinity(0, {core})
    while True:
        pass


@pytest.fixture
def neighbour(one_core):
    """A process that keeps this thread's core busy."""
    process = multiprocessing.get_context("fork").Process(
        target=keep_busy, args=(one_core,), daemon=True
    )
    process.start()
    time.sleep(0.2)
    yield process
    process.kill()
    process.join()


def test_a_busy_neighbour_on_the_core_makes_waiting_grow(neighbour, opened):
    queue = opened(all_threads=False)
    before_ms = queue.read_ms()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        sum(range(1000))
    assert queue.read_ms() - before_ms > 100
