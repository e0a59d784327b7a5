"""`effbench baseline`, and `effbench ls --failures`: reasons, tracebacks, one line if there is
nothing to list."""

import shutil

import pytest
from made_sweeps import a_cell, environment


@pytest.fixture
def baseline(effbench):
    """Returns what `effbench baseline …` prints."""

    def call(*words):
        done = effbench("baseline", *words)
        assert (done.code, done.err) == (0, "")
        return done.out

    return call


def test_set_and_ls(made, baseline, effbench):
    first = made.sweep([a_cell()], label="v1")
    # options stand anywhere
    said = baseline("set", "main", "--note", "[red]good \udcff", "last")
    assert said == f"baseline main on NVIDIA H200: sweep {first}\n"
    listed = baseline("ls")
    for text in (first, "v1", "[red]good"):
        assert text in listed
    second = made.sweep([a_cell()], name="nightly")
    assert f"sweep {second} (was {first})" in baseline("set", "main", "nightly")
    listed = baseline("ls")
    assert "(nightly)" in listed and "good" not in listed
    (marked,) = [line for line in effbench("ls").out.splitlines() if " main " in line]
    assert marked.startswith(second)


def test_a_baseline_whose_sweep_was_deleted(made, baseline):
    sweep = made.sweep([a_cell()])
    baseline("set", "main")
    made.delete_sweep(sweep)
    assert "gone" in baseline("ls")
    assert baseline("rm", "main") == f"removed baseline main on NVIDIA H200 (sweep {sweep})\n"


def test_a_baseline_on_two_kinds_of_hardware(made, baseline):
    sweep = made.sweep([a_cell()])
    made.sweep([a_cell()], env=environment(gpu_name="NVIDIA A100"), into=sweep)
    baseline("set", "main")
    removed = [f"removed baseline main on NVIDIA {gpu} (sweep {sweep})" for gpu in ("A100", "H200")]
    assert baseline("rm", "main").splitlines() == removed


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 2, "required: action"),
        ("set", 2, "baseline set: name the baseline"),
        ("set @a", 2, "cannot name a baseline"),
        ("set last", 2, "cannot name a baseline"),
        ("set 20260101-000000-abcd", 2, "cannot name a baseline"),
        ("set main nowhere", 3, "no sweep 'nowhere'"),
        ("rm main", 3, "`effbench baseline set main last` sets it"),
        ("ls", 3, "has no baseline"),
    ],
)
def test_refusals(made, effbench, words, code, said):
    made.sweep([a_cell()])
    done = effbench("baseline", *words.split())
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert said in done.err


def test_a_proposed_command_names_the_database(empty_db, effbench, tmp_path):
    other = tmp_path / "o ther.db"
    shutil.copy(empty_db, other)
    said = effbench("baseline", "rm", "main", "--db", str(other)).err
    assert f"`effbench baseline set main last --db '{other}'`" in said


#: What each trial leaves: an error its traceback, a crash its log.
TRACES = """
UPDATE trial SET extra = json_object(
    iif(status = 'error', 'traceback', 'log'),
    'first line' || char(10) || '  ' || status || ' of round ' || round
)
"""


def test_failures_with_the_traceback_of_the_last_trial(made, effbench):
    error = {"status": "error", "reason": "in check: ValueError: x"}
    crash = {"status": "crashed", "reason": "SIGSEGV"}
    made.sweep({a_cell(): {}, a_cell("default"): error, a_cell("cuda-graph"): crash}, rounds=2)
    made.sql(TRACES)
    out = effbench("ls", "--failures", "--traceback").out
    assert "    first line\n      error of round 1\n" in out
    assert "crashed of round 1" in out
    assert "of round 0" not in out
    assert "first line" not in effbench("ls", "--failures").out


def test_no_failures_is_a_line(made, effbench):
    sweep = made.sweep([a_cell(), a_cell("default")])
    listed = effbench("ls", "--failures", "--traceback").out
    assert listed == f"no failures in sweep {sweep}: 2 cells ok\n"
