"""Devices in use by others, and servers of a trial of its own; with made-up parts."""

from __future__ import annotations

import errno
import os
import stat
import threading

import filelock
import pytest
from effbench.sweeping import locks
from effbench.sweeping import schedule as scheduling
from schedule_parts import Server, gpus, ok, units

from effbench.errors import WorkerError
from effbench.sweep.plan import jobs_of


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


class TestLockFolder:
    """Other users of the machine may have put anything there."""

    @pytest.fixture(autouse=True)
    def path(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        return tmp_path / "effbench-locks"

    def test_everybody_may_add_files_and_only_their_owner_removes_them(self, path):
        assert locks.folder() == path
        assert stat.S_IMODE(path.stat().st_mode) == 0o1777
        path.chmod(0o777)
        locks.folder()
        assert stat.S_IMODE(path.stat().st_mode) == 0o1777

    @pytest.mark.parametrize("is_there", [True, False])
    def test_a_link_is_not_followed(self, path, tmp_path, is_there):
        target = tmp_path / "private"
        if is_there:
            target.mkdir(mode=0o700)
        path.symlink_to(target)
        with pytest.raises(WorkerError, match=r"not a folder.*remove it.*TMPDIR"):
            locks.folder()
        assert target.exists() == is_there
        if is_there:
            assert stat.S_IMODE(target.stat().st_mode) == 0o700

    def test_a_file_in_its_place(self, path):
        path.write_text("mine")
        with pytest.raises(WorkerError, match=r"not a folder.*remove it"):
            locks.folder()
        assert path.read_text() == "mine"

    def test_a_folder_of_another_user_must_be_sticky(self, path, monkeypatch):
        path.mkdir()
        path.chmod(0o777)
        monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
        if path.stat().st_uid == 0:
            locks.folder()  # root may do anything anyway
            os.chown(path, 65534, 65534)
        with pytest.raises(WorkerError, match=r"another user.*chmod 1777"):
            locks.folder()
        if os.geteuid() == 0:
            path.chmod(0o1777)
            assert locks.folder() == path

    def test_no_temporary_folder(self, monkeypatch):
        def missing():
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

        monkeypatch.setattr("tempfile.gettempdir", missing)
        with pytest.raises(WorkerError, match=r"No usable temporary.*TMPDIR"):
            locks.folder()


class TestLockFile:
    def test_it_is_neither_followed_nor_emptied(self, tmp_path):
        kept = tmp_path / "thesis.tex"
        kept.write_text("all of it")
        (tmp_path / "a.lock").symlink_to(kept)
        with pytest.raises(WorkerError, match=r"a.lock \(it is a link\).*remove it"):
            locks.try_lock(tmp_path / "a.lock")
        (tmp_path / "b.lock").hardlink_to(kept)
        locks.try_lock(tmp_path / "b.lock").release()
        assert kept.read_text() == "all of it"

    def test_what_is_no_file_does_not_hang(self, tmp_path):
        os.mkfifo(tmp_path / "a.lock")
        (tmp_path / "b.lock").mkdir()
        for name in ("a.lock", "b.lock"):
            with pytest.raises(WorkerError, match=rf"{name}.*remove it"):
                locks.try_lock(tmp_path / name)

    def test_one_that_may_not_be_opened(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(WorkerError, match=r"Permission denied.*TMPDIR"):
            locks.try_lock(tmp_path / "a.lock")

    def test_reading_is_enough_for_one_of_another_user(self, tmp_path, monkeypatch):
        path = tmp_path / "a.lock"
        path.touch()
        real = os.open

        def read_only(name, flags, *more):
            if flags & os.O_RDWR and not flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(name, flags, *more)

        monkeypatch.setattr(os, "open", read_only)
        held = locks.try_lock(path)
        assert locks.try_lock(path) is None
        held.release()
        locks.try_lock(path).release()


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
