"""`effbench baseline`, and `effbench ls --failures`: reasons, tracebacks, one line if there is
nothing to list."""

import json
import shutil

import pytest
from made_sweeps import a_cell, environment


def test_set_ls_rm(made, effbench):
    first = made.sweep([a_cell()], label="v1")
    # options stand anywhere
    done = effbench("baseline", "set", "main", "--note", "[red]good \udcff", "last")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"baseline main on NVIDIA H200: sweep {first}\n"
    listed = effbench("baseline", "ls").out
    for text in ("main", "NVIDIA H200", first, "v1", "[red]good"):
        assert text in listed
    second = made.sweep([a_cell()], name="nightly")
    assert f"sweep {second} (was {first})" in effbench("baseline", "set", "main", "nightly").out
    assert (
        effbench("baseline", "set", "main", second).out
        == f"baseline main on NVIDIA H200: sweep {second}\n"
    )
    listed = effbench("baseline", "ls").out
    assert "(nightly)" in listed and "good" not in listed
    assert second in effbench("ls").out
    made.delete_sweep(second)
    assert "gone" in effbench("baseline", "ls").out
    assert (
        effbench("baseline", "rm", "main").out
        == f"removed baseline main on NVIDIA H200 (sweep {second})\n"
    )


def test_sweeps_are_marked_in_the_list_of_sweeps(made, effbench):
    first = made.sweep([a_cell()])
    second = made.sweep({a_cell(): {}, a_cell("default"): {"status": "error"}}, state="interrupted")
    assert "baseline" not in effbench("ls").out
    said = effbench("baseline", "set", "main").out
    assert (
        "that sweep is interrupted (1 error)" in said
        and f"(effbench ls --failures --sweep {second})" in said
    )
    effbench("baseline", "set", "v1", first)
    made.sweep([a_cell()], env=environment(gpu_name="NVIDIA A100"), into=first)
    effbench("baseline", "set", "main", first)  # on two kinds of hardware, and named once
    heading, *rows = effbench("ls").out.splitlines()
    assert heading.split()[:3] == ["sweep", "name", "baseline"]
    assert (
        "not on NVIDIA B200; use one of these"
        in effbench("baseline", "rm", "main", "--on", "NVIDIA B200").err
    )
    removed = effbench("baseline", "rm", "main", "--on", "NVIDIA A100").out
    assert removed == f"removed baseline main on NVIDIA A100 (sweep {first})\n"
    assert (
        "NVIDIA A100" not in (listed := effbench("baseline", "ls").out)
        and listed.count("NVIDIA H200") == 2
    )
    marked = {
        row.split()[0]: row[heading.index("baseline") : heading.index("started")].strip()
        for row in rows
    }
    assert marked == {first: "main, v1", second: ""}


def test_refusals(made, effbench):
    made.sweep([a_cell()])
    for words, code, said in (
        ((), 2, "set|ls|rm"),
        *(
            (("set", name), 2, "cannot name a baseline")
            for name in ("a b", "last", "20260101-000000-abcd", "@a")
        ),
        (("set", "main", "nowhere"), 3, "no sweep 'nowhere'"),
        (("rm", "main"), 3, "`effbench baseline set main last` sets it"),
        (("ls",), 3, "has no baseline"),
    ):
        done = effbench("baseline", *words)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
        assert said in done.err
    for words in ([], ["--format", "markdown"]):
        done = effbench(
            "report", "--baseline", "main", "--out", str(made.path.with_name("out")), *words
        )
        assert (done.code, done.err.count("\n")) == (3, 1) and "no baseline 'main'" in done.err
        assert not made.path.with_name("out").exists()
    other = made.path.with_name("o ther.db")
    shutil.copy(made.path, other)
    for words in (("rm", "main"), ("ls",)):
        said = effbench("baseline", *words, "--db", str(other)).err
        assert f"`effbench baseline set main last --db '{other}'`" in said


def test_a_report_says_if_it_does_not_compare_with_the_chosen_baseline(made, effbench):
    first, second = made.sweep([a_cell()]), made.sweep([a_cell()])
    effbench("baseline", "set", "main", first)
    words = ("report", "--baseline", "main", "--format", "markdown", "--sweep")
    assert effbench(*words, second).err == ""
    done = effbench(*words, first)
    assert done.code == 0
    said = "compared with nothing: 'main' names no other sweep on NVIDIA H200"
    assert done.err == f"effbench: sweep {first} is {said}\n"
    effbench("baseline", "set", "main", second)
    assert f"{second} is compared with the previous sweep" in effbench(*words, second).err


@pytest.fixture
def failed(made):
    """One ok cell; one that fails in two rounds with a traceback; one that crashes and left a
    log."""
    error = {"status": "error", "reason": "in check: ValueError: x (mine.py:4 in forward)"}
    crash = {"status": "crashed", "reason": "SIGSEGV"}
    made.sweep({a_cell(): {}, a_cell("default"): error, a_cell("cuda-graph"): crash}, rounds=2)
    for status, name in (("error", "traceback"), ("crashed", "log")):
        for number in range(2):
            extra = json.dumps({name: f"first line\n  {status} of round {number + 1}"})
            made.sql(
                f"UPDATE trial SET extra = '{extra}' WHERE status = '{status}' AND round = {number}"
            )


@pytest.mark.usefixtures("failed")
def test_failures_with_the_traceback_of_the_last_trial(effbench):
    done = effbench("ls", "--failures", "--traceback")
    assert done.code == 0
    assert "mine.py:4 in forward" in done.out
    assert "    first line\n      error of round 2\n" in done.out
    assert "crashed of round 2" in done.out
    assert "of round 1" not in done.out


@pytest.mark.usefixtures("failed")
def test_failures_without_tracebacks(effbench):
    assert "first line" not in effbench("ls", "--failures").out


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize(
    ("options", "error"),
    [(["--traceback"], "--failures"), (["--sweep", "nowhere"], "--sweep needs --cells")],
)
def test_options_that_need_another_one(effbench, options, error):
    done = effbench("ls", *options)
    assert done.code == 2
    assert error in done.err


def test_no_failures_is_a_line(made, effbench):
    for cells, number in (([a_cell(), a_cell("default")], "2 cells"), ([a_cell()], "1 cell")):
        sweep = made.sweep(cells)
        for words in (["--failures"], ["--failures", "--traceback"]):
            done = effbench("ls", *words)
            assert (done.code, done.out) == (0, f"no failures in sweep {sweep}: {number} ok\n")


def test_a_baseline_with_marked_cells_says_that_their_times_are_not_guarded(made, effbench):
    made.sweep({a_cell(): {}, a_cell("default"): {"disturbance": "host busy"}})
    done = effbench("baseline", "set", "main")
    assert (done.code, done.err) == (0, "")
    assert "note: 1 of 2 results marked (host disturbed): their times are not guarded" in done.out
    made.sweep([a_cell()])
    assert "note" not in effbench("baseline", "set", "main").out
