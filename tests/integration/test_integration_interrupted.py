"""Ctrl-C and what comes after: recorded trials are kept, nothing runs on, resume goes on where it
stopped."""

import os
import pty
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from whole_sweeps import info_of, results_of

from effbench.store import Store

#: Base is quick; Waits never ends unless the file `go` is there
MATRIX = (
    "model=custom",
    "model.module._target_=mischief.Base,mischief.Waits",
    "model.inputs.x.shape=[4]",
    "bs=1,2",
    "protocol.rounds=2",
)
TRIALS = 8


@pytest.fixture
def waiting(cli, start_waiting):
    return partial(start_waiting, *cli.tiny, *MATRIX)


def recorded(cli) -> tuple[str, list[tuple[str, int]]]:
    """The only sweep's state, and (cell key, round) of its trials."""
    with Store.open(cli.db) as store:
        (sweep,) = store.sweeps()
        return sweep.state, [(trial.cell_key, trial.round) for trial in store.trials(sweep.id)]


def finish(cli, before: list[tuple[str, int]]) -> None:
    """Resume to the end: every trial once, those from before among them."""
    (cli.folder / "go").touch()
    done = cli.run("-m", "resume=last")
    assert done.code == 0, done
    state, after = recorded(cli)
    assert state == "completed"
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == TRIALS
    assert {row["status"] for row in results_of(cli.db)} == {"ok"}


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(cli, waiting):
    process = waiting()
    sweep_id = info_of(cli.db).id
    compiled = cli.cache / sweep_id / "environment" / "cell" / "kernel"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    state, before = recorded(cli)
    assert state == "interrupted"
    assert len(before) < TRIALS
    assert f"interrupted; resume with: effbench -m resume={sweep_id}\n" in out
    assert compiled.exists(), "what was compiled is kept for resume"
    finish(cli, before)
    assert list(cli.cache.iterdir()) == []


def test_ctrl_c_on_a_terminal(cli, waiting):
    terminal, end = pty.openpty()
    try:
        process = waiting(stdin=end, stdout=end, stderr=end, env={"TERM": "xterm"})
        os.close(end)
        os.killpg(process.pid, signal.SIGINT)
        shown = b""
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # the other end is closed: Linux says EIO
                break
    finally:
        os.close(terminal)
    assert process.wait(60) == 130
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "interrupted; resume with: effbench -m resume=" in text
    assert "Traceback" not in text
    assert all(part in shown for part in (b"\x1b[", b"trials", b"Base")), "live and coloured"
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor is back"
    assert recorded(cli)[0] == "interrupted"


def test_ctrl_c_before_the_first_trial(cli, processes):
    process = cli.start("-m", *cli.tiny, "model=tiny")
    processes.append(process)
    while not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text():
        time.sleep(0.01)  # until the fork server has started
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
