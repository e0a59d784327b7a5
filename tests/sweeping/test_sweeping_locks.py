"""Devices in use by others, and servers of a trial of its own; with made-up parts."""

from __future__ import annotations

import threading

import filelock
import pytest
from schedule_parts import Server, gpus, ok, units

from effbench.errors import WorkerError
from effbench.sweeping import schedule as scheduling
from effbench.sweeping.jobs import jobs_of


class TestLock:
    def test_a_device_in_use_is_waited_for(self, make):
        schedule = make()
        schedule.observer.waiting_now.clear()
        held = filelock.FileLock(schedule.slots[0].lock_path)
        held.acquire()
        runner = threading.Thread(target=schedule.run, args=(jobs_of(units(2), 1, 0, {}),))
        runner.start()
        assert schedule.observer.waiting_now.wait(20)
        assert schedule.observer.order == []
        held.release()
        runner.join(20)
        assert len(schedule.recorded) == 2
        assert schedule.observer.waited == ["GPU 0"], "said once"

    def test_other_devices_do_not_wait(self, make):
        schedule = make(slots=gpus(2))
        with filelock.FileLock(schedule.slots[0].lock_path):
            runner = threading.Thread(target=schedule.run, args=(jobs_of(units(4), 1, 0, {}),))
            runner.start()
            # one job is with the slot that waits
            while len(schedule.recorded) < 3:
                assert runner.is_alive()
                threading.Event().wait(0.01)
            assert {slot for slot, _ in schedule.observer.order} == {"GPU 1"}
        runner.join(20)
        assert len(schedule.recorded) == 4

    def test_waiting_ends_some_time(self, make):
        schedule = make(lock_timeout_s=0.05)
        with (
            filelock.FileLock(schedule.slots[0].lock_path),
            pytest.raises(WorkerError, match=r"GPU 0 was in use .*resume=last"),
        ):
            schedule.run(jobs_of(units(1), 1, 0, {}))
        assert schedule.recorded == []

    def test_a_stop_ends_waiting(self, make):
        stop = threading.Event()
        schedule = make(stop=stop)
        with filelock.FileLock(schedule.slots[0].lock_path):
            runner = threading.Thread(target=schedule.run, args=(jobs_of(units(1), 1, 0, {}),))
            runner.start()
            assert schedule.observer.waiting_now.wait(20)
            stop.set()
            runner.join(20)
        assert not runner.is_alive()
        assert schedule.recorded == []

    def test_the_lock_is_held_while_a_trial_runs_and_not_after(self, make):
        seen = []

        def answer(request, env):
            try:
                filelock.FileLock(schedule.slots[0].lock_path).acquire(timeout=0)
            except filelock.Timeout:
                seen.append("held")
            return ok(request)

        schedule = make(Server(answer))
        schedule.run(jobs_of(units(2), 1, 0, {}))
        assert seen == ["held", "held"]
        with filelock.FileLock(schedule.slots[0].lock_path).acquire(timeout=0):
            pass


class Spawned(Server):
    """What ForkServer() is replaced with."""

    made: list

    def __init__(self, preload=True):
        super().__init__()
        self.preload = preload
        self.closed = False
        Spawned.made.append(self)

    def wait_ready(self): ...

    def close(self):
        self.closed = True


@pytest.fixture
def spawned(monkeypatch):
    Spawned.made = []
    monkeypatch.setattr(scheduling, "ForkServer", Spawned)
    return Spawned.made


def test_spawn_takes_a_fresh_server_each_and_closes_it(make, spawned):
    shared = Server()
    make(shared, isolation="spawn").run(jobs_of(units(2), 1, 0, {}))
    assert [(server.preload, server.closed, len(server.envs)) for server in spawned] == [(False, True, 1)] * 2
    assert shared.envs == []


def test_a_cell_with_variables_is_spawned_with_them(make, spawned):
    shared = Server()
    make(shared).run(jobs_of([*units(1), *units(1, env={"FOO": "1"})], 1, 0, {}))
    assert len(shared.envs) == 1
    (server,) = spawned
    assert server.envs == [{"CUDA_VISIBLE_DEVICES": "GPU-0", "FOO": "1"}]


def test_a_dead_server_is_replaced(make, spawned):
    dead = Server()
    dead.dead = "the fork server ended"
    schedule = make(dead)
    schedule.run(jobs_of(units(3), 1, 0, {}))
    (new,) = spawned
    assert (len(new.envs), new.preload) == (3, True)
    assert [trial.status for trial in schedule.recorded] == ["ok"] * 3
