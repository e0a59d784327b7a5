"""One sweep: how it begins, is resumed, and ends if its database fails (it is gone, the disk is
full)."""

import os
import re
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from made_sweeps import a_cell, environment
from schedule_parts import FOLDER, A, B, Server, cell_runs, ok
from whole_sweeps import info_of

from effbench.core.errors import ConfigError, ResumeError, StoreError
from effbench.run import pool, resume
from effbench.run.compile_caches import make_cache_folders
from effbench.run.interpreters import HERE
from effbench.run.plan import CellRun, Settings, SweepPlan
from effbench.run.probe import ProbedMachine
from effbench.run.progress import Progress
from effbench.run.sweep import Command, open_sweep
from effbench.store import Store, liveness
from effbench.store.schema import SWEEP

DB = "db=postgresql://me:s3cret@host/x"
TRIALS = 4


@pytest.fixture
def db(made, monkeypatch):
    monkeypatch.setattr(pool, "probe", lambda *_: ProbedMachine(environment(), {}, [], {}))
    monkeypatch.setattr("effbench.run.executors.local.POLL_S", 0.01)
    monkeypatch.setattr("effbench.run.git.git", lambda *_: None)
    return made.path


def run_cells(settings, runs, command):
    with open_sweep(settings, runs, command) as opened:
        return opened.run(SweepPlan(runs))


def sweep(db, disturb=lambda: None, count=TRIALS, resume=None):
    """Run a sweep; `disturb()` happens while its third trial is measured."""

    def answer(request, env):
        if len(server.envs) == 3:
            disturb()
        return ok(request)

    server = Server(answer)
    settings = Settings.with_defaults(db=str(db), protocol={"rounds": 1}, resume=resume)
    return run_cells(settings, cell_runs(count, "cpu"), Command(["x"], {}, server))


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "folder deleted"])
def test_a_database_that_is_moved_or_deleted_ends_the_sweep(how, db, empty_db):
    happen = {
        "deleted": db.unlink,
        "moved": lambda: db.rename(db.with_name("elsewhere.db")),
        "replaced": lambda: shutil.copy(empty_db, db.with_name("other.db")).rename(db),
        "folder deleted": lambda: shutil.rmtree(db.parent),
    }
    with pytest.raises(StoreError, match="moved, deleted or replaced") as caught:
        sweep(db, happen[how])
    assert "its trials are lost: run the sweep again" in str(caught.value)
    assert db.exists() == (how == "replaced")
    if how == "replaced":
        with Store.open(db) as store:
            assert store.sweeps() == [], "the log of the old file is not applied to it"
    if how == "moved":
        db.with_name("elsewhere.db").rename(db)
        info = info_of(db)
        assert info.trials == 3, "including the trial that was running"
        assert info.state == "interrupted"
        assert f"move it back and continue with: effbench -m resume={info.id}" in str(caught.value)
        assert len(sweep(db, resume=info.id).latencies) == TRIALS


def test_a_second_ctrl_c_names_the_command_to_resume(db, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("effbench.run.progress.Progress.ended", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        sweep(db)
    info = info_of(db)
    assert info.state == "interrupted"
    assert info.trials == 1
    assert str(caught.value) == f"resume with: effbench -m resume={info.id} db={db}"


def test_a_full_disk_ends_the_sweep_with_the_command_to_resume_it(
    db, fill_disk, monkeypatch, effbench
):
    with pytest.raises(StoreError) as caught:
        sweep(db, fill_disk)
    message = str(caught.value)
    assert "disk is full" in message
    fill_disk(resource.RLIM_INFINITY)
    info = info_of(db)
    assert (info.state, info.trials) == ("running", 2), "the process that runs it has not ended"
    assert info.host["process"] == liveness.identity()
    assert f"resume={info.id} db={db}" in message
    monkeypatch.setattr(liveness, "has_ended", lambda process: True)
    assert "interrupted" in effbench("ls", "--db", str(db)).out
    assert sweep(db, resume=info.id).state == "completed"


def test_it_is_stored_without_the_password(db):
    command = Command(["-m", DB], {"bs": "bs=1", "db": DB}, Server())
    run_cells(Settings.with_defaults(db=str(db)), cell_runs(1, "cpu"), command)
    info = info_of(db)
    assert info.command == ["-m", "db=postgresql://me:***@host/x"]
    assert info.overrides == ["bs=1", "db=postgresql://me:***@host/x"]


def test_a_refused_resume_changes_nothing(db):
    done = sweep(db)
    with pytest.raises(
        ResumeError,
        match=r"has a different plan: 1 cell missing, 0 additional; only protocol.rounds may",
    ):
        sweep(db, count=TRIALS - 1, resume=done.sweep_id)
    info = info_of(db)
    assert info.state == "completed"
    assert info.rounds == 1
    assert info.trials == TRIALS


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (True, [[(0, 0), (1, 1), (2, 0)], [(3, 1), (4, 0)], [(5, 1)]]),
        (False, [[(0, 0), (1, 1), (2, 0)], [(3, 3), (4, 2)], [(5, 5)]]),
    ],
)
def test_added_rounds_compile_again_unless_the_caches_are_kept(db, tmp_path, keep, expected):
    """The caches of a completed sweep are gone, so another compilation has another number."""

    def answer(request, env):
        Path(request["cache_dir"]).mkdir(parents=True, exist_ok=True)
        return ok(request, compilation=request["compilation"])

    executor = {"keep_cache": keep, "cache_dir": str(tmp_path / "caches")}
    overrides = {"mode": "mode=eager", "protocol.rounds": "protocol.rounds=3"}
    found = []
    sweep_id = None
    for rounds in (3, 5, 6):
        server = Server(answer)
        protocol = {"rounds": rounds, "compilations": 2}
        settings = Settings.with_defaults(
            db=str(db), protocol=protocol, resume=sweep_id, executor=executor
        )
        command = Command([], overrides, server)
        sweep_id = run_cells(settings, cell_runs(1, "cpu"), command).sweep_id
        found.append([(request["round"], request["compilation"]) for request in server.sent])
        overrides = {}
    assert found == expected, "recorded trials are not repeated"
    info = info_of(db)
    assert (info.rounds, info.protocol["rounds"], info.trials) == (6, 6, 6)
    assert info.overrides == ["mode=eager", "protocol.rounds=6"]


def test_a_sweep_that_runs_is_not_resumed(db, monkeypatch):
    done = sweep(db)
    other = os.getppid()
    with Store.open(db, mode="write") as store:
        store.resume_sweep(done.sweep_id)
        host = store.find_sweep(done.sweep_id).host
        host["process"] |= {"pid": other, "started": liveness._started(other)}
        with store.writing() as connection:
            connection.execute(sa.update(SWEEP).values(host=host))
    running = f"still running in process {other}; wait for its end, or end it"
    with pytest.raises(ResumeError, match=running):
        sweep(db, resume=done.sweep_id)
    monkeypatch.setattr(liveness, "is_running", lambda process: False)
    assert sweep(db, resume=done.sweep_id).state == "completed"


# --- what may differ when a sweep is resumed ---


def info(*interpreters, trials=1):
    environments = {f"e{index}": one.facts() for index, one in enumerate(interpreters)}
    return SimpleNamespace(id="s", host={}, interpreters=environments, trials=trials)


MATRIX = [a_cell(bs=bs) for bs in (1, 2, 4)]


def taken_up(cells=MATRIX, interpreter=HERE, **changed):
    """Return the recorded sweep if it may be resumed with these cells, interpreter and settings."""
    words = {"name": "nightly", "label": None, "baseline_mode": "eager", "seed": 0}
    recorded = info(HERE, trials=0)
    vars(recorded).update(words, protocol={"rounds": 5, "host_tolerance": 0.1})
    store = SimpleNamespace(find_sweep=lambda name: recorded, planned=lambda sweep_id: MATRIX)
    settings = Settings.with_defaults(resume="last", **changed)
    plan = SweepPlan([CellRun(cell) for cell in cells])
    facts = info(interpreter).interpreters
    return resume.same_sweep(store, settings, plan, facts, Progress(quiet=True))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"protocol": {"rounds": 2}}, "protocol.rounds=5, not 2"),
        ({"sweep": {"name": "x"}}, "sweep.name=nightly, not x"),
        ({"protocol": {"host_tolerance": None}}, "protocol.host_tolerance=0.1, not null"),
        ({"cells": MATRIX[:2]}, "a different plan: 1 cell missing, 0 additional"),
        ({"cells": [*MATRIX, a_cell(bs=8)]}, "a different plan: 0 cells missing, 1 additional"),
        (
            {"interpreter": FOLDER},
            "interpreters=effbench's own interpreter, not folder=/before",
        ),
    ],
)
def test_what_may_not_differ(changed, error):
    with pytest.raises(ResumeError, match=f"^sweep s has {re.escape(error)}; only"):
        taken_up(**changed)


def test_there_may_be_more_rounds():
    assert taken_up(protocol={"rounds": 20}).id == "s"


@pytest.mark.parametrize(
    ("environment_id", "old", "note"),
    [
        ("e1", {}, None),
        ("other", {}, "hardware or software of python=/venvs/b/bin/python has changed"),
        ("e1", {"git_changes": "0123456789abcdef"}, "the folder of python=/venvs/b/bin/python has"),
    ],
)
def test_resuming_notes_what_has_changed(monkeypatch, environment_id, old, note):
    monkeypatch.setattr("effbench.run.git.git", lambda *_: None)
    recorded, current = info(A, B), info(A, B).interpreters.values()
    recorded.interpreters["e1"] |= old
    facts = dict(zip(("e0", environment_id), current, strict=True))
    changes = list(resume.changes(recorded, facts))
    assert len(changes) == (note is not None)
    assert all(change.startswith(note) for change in changes)


def test_compile_caches_need_folders_that_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/x; name another folder with executor"):
        make_cache_folders(Settings.with_defaults(executor={"cache_dir": f"{tmp_path}/file/x"}))


def own_process(**changed):
    return {**liveness.identity(), **changed}


@pytest.mark.parametrize("changed", [{"pid": 2**22 + 1}, {"started": "1"}, {"boot": "before"}])
def test_a_process_has_ended_if_its_number_is_nobodys_or_another_ones(changed):
    assert liveness.has_ended(own_process(**changed))


@pytest.mark.parametrize(
    "process",
    [
        own_process(),
        own_process(pid=2**22 + 1, hostname="elsewhere"),
        own_process(pid=2**22 + 1, namespace="pid:[1]"),
        own_process(pid="x"),
        None,
    ],
    ids=["own", "other host", "other container", "odd", "none"],
)
def test_a_process_that_cannot_be_seen_has_not_ended(process):
    assert not liveness.has_ended(process)
