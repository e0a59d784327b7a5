"""What was imported, or begun by another user, is data: no command runs anything that it
recorded."""

import shlex
import sys
from pathlib import Path

import pytest
from made_sweeps import FAST, SLOW, copied, environment, sql

from effbench.analysis import confirm as rerun
from effbench.cli import show
from effbench.core.cell import Cell
from effbench.render.data import read
from effbench.run.interpreters import Interpreter
from effbench.run.sweep import Outcome
from effbench.store import Store

MARKER = Path("marker")
FORGED = [
    "model=custom",
    "model.module._target_=subprocess.getoutput",
    f"+model.module.cmd=touch {MARKER}",
    "bs=1",
]


def a_cell(target="torch.nn.Linear", **arguments):
    module = {"_target_": target, **arguments}
    mode = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}
    env = {"LD_PRELOAD": "/evil.so"}
    return Cell({"name": "net", "module": module}, 8, mode, "float32", "inference", "cpu", env=env)


OWN = a_cell()
EVIL = a_cell("subprocess.getoutput", cmd=f"touch {MARKER}")


def facts(python=sys.executable):
    """What a sweep says of the interpreter that ran it."""
    told = {
        "python": python,
        "folder": str(Path.cwd()),
        "given": [],
        "git_revision": None,
        "git_description": None,
    }
    return {"environments": {environment().id: told}}


@pytest.fixture
def stranger(empty_db, tmp_path):
    """Another database, with sweeps to import."""
    return copied(empty_db, tmp_path / "stranger.db")


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path):
    yield
    assert not (tmp_path / MARKER).exists(), "the forged command ran"


def forged(stranger, **changed):
    return stranger.sweep(
        {EVIL: SLOW}, overrides=FORGED, state="interrupted", host=facts(), **changed
    )


def taken(stranger, effbench):
    done = effbench("import", str(stranger.path))
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize("user", ["another", None])
def test_only_the_user_who_began_a_sweep_resumes_and_confirms_it(user, made, effbench, rerun_of):
    """Sweeps of older versions do not name their user."""
    user_fact = {"user": user} if user else {}
    host = facts() | user_fact
    made.sweep({OWN: FAST}, host=facts(python="/bin/sh") | user_fact)
    effbench("baseline", "set", "main")
    sweep_id = made.sweep({OWN: SLOW}, host=host, overrides=["bs=8"], state="interrupted")
    done = effbench("-m", f"resume={sweep_id}", "--dry-run")
    assert ("was begun by the user another" in done.err) is (user is not None)
    effbench(*CHECK, "--sweep", sweep_id)
    assert bool(rerun_of) is (user is None)


def test_an_imported_sweep_is_not_resumed(made, stranger, effbench):
    sweep_id = forged(stranger)
    taken(stranger, effbench)
    assert "interrupted, imported" in effbench("ls").out
    done = effbench("-m", "resume=last")
    assert done.code == 2
    assert f"{sweep_id} was imported" in done.err and "it is data" in done.err


def test_the_mark_survives_a_chain_of_databases_and_files(made, stranger, effbench):
    sweep_id = forged(stranger)
    assert effbench("export", "--db", str(stranger.path), "--out", "x.db").code == 0
    # the file itself cannot say that it was not imported
    sql("x.db", "UPDATE sweep SET imported_at = NULL")
    assert effbench("import", "x.db").code == 0
    assert effbench("import", str(made.path), "--db", "next.db").code == 0
    for db in (made.path, "next.db"):
        assert effbench("-m", f"resume={sweep_id}", f"db={db}").code == 2


@pytest.fixture
def rerun_of(made, monkeypatch):
    """In the place of a re-run: records a sweep in which `OWN` is slow; which interpreters were to
    run."""
    asked: list[Interpreter] = []

    def run(request, cells, *sides):
        asked.extend(sides)
        again, ids = None, {}
        for one in asked:
            env = environment(flags=one.given)
            again, ids[one] = made.sweep({OWN: SLOW}, env=env, into=again, name="confirm:x"), env.id
        return Outcome(again, request.db, "completed", "ignore", [], ids)

    monkeypatch.setattr(rerun, "measure_again", run)
    return asked


CHECK = ("check", "--baseline", "main", "--confirm", "--metric", "latency_ms", "--format", "json")


def test_the_cells_of_an_imported_sweep_are_not_confirmed(made, stranger, effbench, rerun_of):
    before = stranger.sweep({EVIL: FAST}, host=facts())
    forged(stranger)
    taken(stranger, effbench)
    effbench("baseline", "set", "main", before)
    done = effbench(*CHECK)
    assert (done.code, rerun_of) == (1, [])
    assert "was imported" in done.out and "neither confirmed nor refuted" in done.out


def test_of_an_imported_baseline_the_interpreter_is_not_run(
    made, stranger, effbench, rerun_of, tmp_path
):
    evil = tmp_path / "python"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path / MARKER}\n")
    evil.chmod(0o755)
    before = stranger.sweep({OWN: FAST}, host=facts(str(evil)))
    taken(stranger, effbench)
    effbench("baseline", "set", "main", before)
    made.sweep({OWN: SLOW}, host=facts())
    done = effbench(*CHECK)
    assert (done.code, rerun_of) == (1, [])
    assert "nothing was run again: sweep" in done.out and "was imported" in done.out


def test_a_bundle_adds_no_cell_to_a_sweep_of_ones_own(made, effbench, rerun_of, tmp_path):
    own = made.sweep({OWN: FAST}, host=facts())
    effbench("baseline", "set", "main")
    checked = made.sweep({OWN: SLOW}, host=facts(), overrides=["bs=8"])
    bundle = copied(made.path, tmp_path / "bundle.db")
    with Store.open(bundle.path, mode="write") as store:
        store.extend_sweep(checked, [EVIL])
    done = taken(bundle, effbench)
    assert "2 sweeps: 2 already there" in done.out
    with Store.open(made.path) as store:
        assert [store.find_sweep(sweep).imported_at for sweep in (own, checked)] == [None, None]
        assert [cell.cell_key for cell in store.results(checked)] == [OWN.key]
    assert rerun_of == []


def test_a_state_that_was_imported_counts_too(made, effbench, tmp_path):
    sweep_id = made.sweep({OWN: FAST}, rounds=1, state="interrupted")
    bundle = copied(made.path, tmp_path / "bundle.db")
    for is_marked in (False, True):
        taken(bundle, effbench)
        with Store.open(made.path) as store:
            assert (store.find_sweep(sweep_id).imported_at is not None) is is_marked
        with Store.open(bundle.path, mode="write") as store:
            store.finish_sweep(sweep_id, "completed")


def test_no_command_is_shown_that_runs_an_imported_sweep(made, stranger, effbench):
    stranger.sweep({OWN: FAST, EVIL: None}, state="interrupted", host=facts())
    taken(stranger, effbench)
    with Store.open(made.path) as store:
        (subject,) = read(store, str(made.path)).device_sweeps
        assert subject.command(OWN.key, environment().id) is None


def test_the_commands_after_a_sweep_are_quoted(empty_db, effbench, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    db = "it's mine; $(touch marker).db"
    sweep_id = copied(empty_db, Path(db)).sweep({OWN: FAST})
    assert show.end_of_sweep(Outcome(sweep_id, db, "interrupted", "fail", [])) == 130
    last = shlex.split(capsys.readouterr().out.splitlines()[-1].partition("resume with: ")[2])
    assert last == ["effbench", "-m", f"resume={sweep_id}", f'db="{db}"']
