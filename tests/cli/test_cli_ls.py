"""`effbench ls --failures`: reasons, tracebacks, and one line if there is nothing to list."""

import json

from made_sweeps import a_cell


def test_failures_with_their_tracebacks(made, effbench):
    """One ok cell; one that fails in two rounds with a traceback; one that crashes and left a log."""
    error = {"status": "error", "reason": "in check: ValueError: x (mine.py:4 in forward)"}
    crash = {"status": "crashed", "reason": "SIGSEGV"}
    made.sweep({a_cell(): {}, a_cell("default"): error, a_cell("cuda-graph"): crash}, rounds=2)
    for status, name in (("error", "traceback"), ("crashed", "log")):
        for number in range(2):
            extra = json.dumps({name: f"first line\n  {status} of round {number + 1}"})
            made.sql(f"UPDATE trial SET extra = '{extra}' WHERE status = '{status}' AND round = {number}")
    done = effbench("ls", "--failures", "--traceback")
    assert done.code == 0 and "mine.py:4 in forward" in done.out
    assert "    first line\n      error of round 2\n" in done.out, "the last trial's, as it was"
    assert "crashed of round 2" in done.out and "of round 1" not in done.out
    assert "first line" not in effbench("ls", "--failures").out
    done = effbench("ls", "--traceback")
    assert done.code == 2 and "--failures" in done.err


def test_no_failures_is_a_line(made, effbench):
    sweep = made.sweep([a_cell(), a_cell("default")])
    for words in (["--failures"], ["--failures", "--traceback"]):
        done = effbench("ls", *words)
        assert (done.code, done.out) == (0, f"no failures in sweep {sweep}: 2 cells ok\n")
