"""How a sweep ends when its database fails: the file is gone, or the disk is full."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from effbench.sweeping import conduct, plan
from effbench.sweeping.sites import Site
from made_sweeps import a_cell, environment
from schedule_parts import Server, ok, units

from effbench.errors import StoreError
from effbench.store import Store, liveness
from effbench.sweep.interpreters import HERE
from effbench.sweep.progress import Progress

TRIALS = 4


@pytest.fixture
def db(made, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(conduct, "preload", lambda server, cells: None)
    monkeypatch.setattr("effbench.sweep.schedule.POLL_S", 0.01)
    monkeypatch.setattr("effbench.sweep.interpreters._git", lambda *_: None)
    return made.path


def sweep(db, disturb, resume=None):
    """Run a sweep of four trials; `disturb()` happens while the third of this run is measured."""

    def answer(request, env):
        if len(server.envs) == 3:
            disturb()
        return ok(request)

    server = Server(answer)
    settings = plan.Settings.with_defaults(db=str(db), protocol={"rounds": 1}, resume=resume)
    with Store.open(db, mode="write") as store:
        return conduct.run_ready(
            store, settings, units(TRIALS, "cpu"), conduct.Command(["x"], []),
            {HERE: Site(HERE, server, environment(), {}, [])}, Progress(quiet=True), threading.Event(), None,
        )  # fmt: skip


def recovered(error) -> Path:
    """The file that the message names, to be given to the command that it names, too."""
    found = re.search(r"is in (\S+)\nContinue with: effbench -m resume=(\S+) db=(\S+)$", str(error))
    assert found, error
    assert found[1] == found[3]
    return Path(found[1])


def replace(db, empty_db):
    shutil.copy(empty_db, db.with_name("other.db")).rename(db)


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "folder deleted"])
def test_nothing_is_lost_when_the_database_is(db, how, empty_db, tmp_path):
    happen = {
        "deleted": lambda: db.unlink(),
        "moved": lambda: db.rename(db.with_name("elsewhere.db")),
        "replaced": lambda: replace(db, empty_db),
        "folder deleted": lambda: shutil.rmtree(db.parent),
    }
    with pytest.raises(StoreError, match="moved, deleted or replaced") as caught:
        sweep(db, happen[how])
    copy = recovered(caught.value)
    assert (copy.parent == db.parent) == (how != "folder deleted")
    assert Store.check(copy) == []
    with Store.open(copy) as store:
        info = store.find_sweep("last")
        assert (info.state, info.trials) == ("interrupted", 3), "the trial that was running is saved, and the last"
    assert db.exists() == (how == "replaced")
    assert not list(tmp_path.rglob("*-wal")), "it would be taken for the log of the next file of that name"
    if how == "replaced":
        with Store.open(db) as store:
            assert store.sweeps() == []
    if how == "moved":
        done = sweep(copy, lambda: None, resume=info.id)
        assert (done.sweep_id, done.state, len(done.latencies)) == (info.id, "completed", TRIALS)


def test_a_database_deleted_after_the_last_trial(db):
    class Last(Progress):
        def ended(self, slot, job, trial):
            db.unlink(missing_ok=True)

    settings = plan.Settings.with_defaults(db=str(db), protocol={"rounds": 1})
    site = Site(HERE, Server(), environment(), {}, [])
    with Store.open(db, mode="write") as store, pytest.raises(StoreError) as caught:
        conduct.run_ready(
            store, settings, units(1, "cpu"), conduct.Command([], []), {HERE: site}, Last(quiet=True),
            threading.Event(), None,
        )  # fmt: skip
    with Store.open(recovered(caught.value)) as store:
        assert (store.find_sweep("last").state, store.find_sweep("last").trials) == ("completed", 1)


@pytest.fixture
def fill_disk():
    """A function after which files of this process grow no more: what a full disk looks like to SQLite."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size=512: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_the_sweep_with_the_command_to_resume_it(db, fill_disk, monkeypatch, effbench):
    with pytest.raises(StoreError) as caught:
        sweep(db, fill_disk)
    message = str(caught.value)
    assert "disk" in message
    fill_disk(resource.RLIM_INFINITY)
    with Store.open(db) as store:
        info = store.find_sweep("last")
    assert (info.state, info.trials) == ("running", 2), "this process, which runs it, is there"
    assert info.host["process"] == liveness.identity()
    assert f"resume={info.id} db={db}" in message
    monkeypatch.setattr(liveness, "has_ended", lambda process: True)
    assert "interrupted" in effbench("ls", "--db", str(db)).out
    assert sweep(db, lambda: None, resume=info.id).state == "completed"


class TestLiveness:
    def test_this_process_lives(self):
        assert not liveness.has_ended(liveness.identity())

    def test_one_that_ended(self):
        with subprocess.Popen(["true"]) as process:
            known = {**liveness.identity(), "pid": process.pid, "started": liveness._started(process.pid)}
        assert liveness.has_ended(known)

    def test_its_number_may_be_another_processs_now(self):
        assert liveness.has_ended({**liveness.identity(), "started": "1"})

    @pytest.mark.parametrize("changed", [{"hostname": "elsewhere"}, {"namespace": "pid:[1]"}])
    def test_what_is_not_seen_from_here_may_live(self, changed):
        assert not liveness.has_ended({**liveness.identity(), "pid": 2**22 + 1, **changed})

    @pytest.mark.parametrize("known", [None, "x", {}, {"pid": "x"}, {"pid": 2**70}])
    def test_what_is_no_identity(self, known):
        assert not liveness.has_ended({**liveness.identity(), **known} if isinstance(known, dict) and known else known)

    def test_none_outlives_a_restart_of_its_host(self):
        assert liveness.has_ended({**liveness.identity(), "boot": "before"})

    def test_a_running_sweep_belongs_to_the_process_that_said_so_last(self, made):
        sweep_id = made.sweep([a_cell()], state="interrupted")
        made.sql("UPDATE sweep SET state = 'running', host = '{\"process\": null}'")
        with Store.open(made.path, mode="write") as store:
            assert store.find_sweep(sweep_id).state == "running"
            store.finish_sweep(sweep_id, "running")
            assert store.find_sweep(sweep_id).host["process"] == liveness.identity()
