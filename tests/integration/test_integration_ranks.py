"""A rank that dies, hangs or raises: the trial tells which one and why, and leaves no process."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from whole_sweeps import trials_of

EXPECTED = {
    "IsKilled": ("crashed", "rank 1 of 2: killed by SIGKILL (in check)"),
    "IsStopped": ("timeout", "rank 1 of 2 did not arrive; it is stopped"),
    "Raises": ("error", "rank 1 of 2: in prepare: ValueError: bad weather (ranks.py:"),
}
CELL = ("model=custom", "model.inputs.x.shape=[4]", "mode=eager", "parallel=tp2")


@pytest.fixture
def pids(cli):
    """The folder with a file for each process of a rank."""
    shutil.copy(Path(__file__).parent / "failing_ranks.py", cli.folder / "ranks.py")
    folder = cli.folder / "pids"
    folder.mkdir()
    return folder


def test_each_failure_names_its_rank_and_leaves_no_process(cli, pids, wait_gone):
    targets = ",".join(f"ranks.{name}" for name in EXPECTED)
    done = cli.sweep(f"model.module._target_={targets}", *CELL, "timeout_s=8")
    assert (done.code, done.err) == (1, "")
    ended = {trial["model"]: trial for trial in trials_of(cli.db)}
    for name, (status, reason) in EXPECTED.items():
        assert ended[name]["status"] == status, ended[name]
        assert reason in ended[name]["reason"]
    files = list(pids.iterdir())
    assert len(files) == 2 * len(EXPECTED)
    for file in files:
        wait_gone(int(file.name))


def test_ctrl_c_ends_ranks_that_wait_for_each_other(cli, pids, processes, wait_gone):
    target = "model.module._target_=ranks.Hangs"
    process = cli.start("-m", *cli.tiny, target, *CELL)
    processes.append(process)
    while not (cli.folder / "hangs").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; resume with: effbench -m resume=" in out
    assert len(list(pids.iterdir())) == 2
    for file in pids.iterdir():
        wait_gone(int(file.name))
