"""Work in a fork: the result is that of this process, whatever happens to the fork, and no fork outlives its block."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from effbench.processes import alongside

#: A command whose fork sleeps, after printing its id.
SLEEPING = """
import os, time
from effbench import cli
from effbench.commands import db
from effbench.processes import alongside

os.sched_getaffinity = lambda _: {0, 1}
os.register_at_fork(after_in_parent=lambda: time.sleep(0.2))  # Python ignores what such a hook raises

def sleep():
    print(os.getpid(), flush=True)
    time.sleep(1000)

def run(args):
    with alongside(sleep) as result:
        result()

db.run = run
cli.main(["db", "check"])
"""


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def traced(folder: Path, fail: Exception | None = None) -> int:
    """Leave a file that is named after this process; return its id, or fail."""
    (folder / str(os.getpid())).touch()
    if fail is not None:
        raise fail
    return os.getpid()


def test_work_runs_in_another_process(tmp_path, capfd):
    with alongside(partial(traced, tmp_path)) as result:
        pid = result()
    assert pid != os.getpid() and [path.name for path in tmp_path.iterdir()] == [str(pid)]
    assert multiprocessing.active_children() == [] and capfd.readouterr() == ("", "")


def test_one_cpu_needs_no_fork(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with alongside(partial(traced, tmp_path)) as result:
        assert list(tmp_path.iterdir()) == []
        assert result() == os.getpid()


def test_without_a_fork_the_work_is_done_here(tmp_path, monkeypatch):
    def fail():
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", fail)
    with alongside(partial(traced, tmp_path)) as result:
        assert result() == os.getpid()


def test_an_error_is_raised_here(tmp_path, capfd):
    with pytest.raises(ZeroDivisionError) as error, alongside(partial(traced, tmp_path, ZeroDivisionError())) as result:
        result()
    assert error.traceback[-1].name == "traced"
    assert len(list(tmp_path.iterdir())) == 2, "the fork failed as well"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_work_of_a_killed_fork_is_repeated(number):
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), number)
        return os.getpid()

    with alongside(work) as result:
        assert result() == here


def test_the_end_of_the_block_interrupts_a_fork(tmp_path, wait_gone):
    def work() -> None:
        part = tmp_path / "part"
        part.write_text(str(os.getpid()))
        part.rename(tmp_path / "begun")
        try:
            time.sleep(1000)
        finally:
            (tmp_path / "ended").touch()

    with pytest.raises(KeyError), alongside(work):
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        raise KeyError
    assert (tmp_path / "ended").exists()
    wait_gone(int((tmp_path / "begun").read_text()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_no_fork_outlives_a_command(number, code, processes, wait_gone):
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPING],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # scripts in the background ignore it
    )  # fmt: skip
    processes.append(process)
    pid = int(process.stdout.readline())
    if number == signal.SIGINT:  # a terminal sends it to both
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert err == ("effbench: interrupted\n" if number == signal.SIGINT else "")
    wait_gone(pid)
