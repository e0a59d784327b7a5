"""Ctrl-C and what comes after: recorded trials are kept, nothing runs on, resume goes on where it
stopped."""

import os
import pty
import re
import signal
import time
from pathlib import Path

import pytest
from whole_sweeps import info_of, results_of

from effbench.store import Store

#: Base is quick; Waits never ends unless the file `go` is there
MATRIX = (
    "model=custom",
    "model.module._target_=mischief.Base,mischief.Waits",
    "model.inputs.x.shape=[4]",
    "bs=1,2,3,4",
)
TRIALS = 8


@pytest.fixture
def cli(cli_in, tmp_path):
    """`effbench` in an empty folder; what is run in this process runs on the shared fork server."""
    folder = tmp_path / "here"
    folder.mkdir()
    return cli_in(folder, imports=False)


@pytest.fixture
def go(workshop):
    """On the shared fork server nothing waits."""
    path = workshop.folder / "go"
    path.touch()
    yield
    path.unlink()


def recorded(db: Path) -> tuple[str, list[tuple[str, int]]]:
    """The only sweep's state, and (cell key, round) of its trials."""
    with Store.open(db) as store:
        (sweep,) = store.sweeps()
        return sweep.state, [(trial.cell_key, trial.round) for trial in store.trials(sweep.id)]


def read_to_the_end(terminal: int) -> bytes:
    """Return all that is shown on a terminal until its other end is closed."""
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # Linux says EIO
            return shown


def test_ctrl_c_on_a_terminal_keeps_what_is_done_and_resume_goes_on(cli, start_waiting, go):
    terminal, end = pty.openpty()
    try:
        streams = {"stdin": end, "stdout": end, "stderr": end}
        process = start_waiting(*cli.tiny, *MATRIX, env={"TERM": "xterm"}, **streams)
        os.close(end)
        sweep_id = info_of(cli.db).id
        compiled = cli.cache / sweep_id / "environment" / "cell" / "kernel"
        compiled.parent.mkdir(parents=True)
        compiled.touch()
        os.killpg(process.pid, signal.SIGINT)
        shown = read_to_the_end(terminal)
    finally:
        os.close(terminal)
    assert process.wait(60) == 130
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert f"interrupted; resume with: effbench -m resume={sweep_id}" in text
    assert "Traceback" not in text
    assert all(part in shown for part in (b"\x1b[", b"trials", b"Base")), "live and coloured"
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor is back"
    state, before = recorded(cli.db)
    assert state == "interrupted"
    assert len(before) < TRIALS
    assert compiled.exists(), "what was compiled is kept for resume"
    done = cli.run("-m", "resume=last")
    assert done.code == 0, done
    state, after = recorded(cli.db)
    assert state == "completed"
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == TRIALS
    assert {row["status"] for row in results_of(cli.db)} == {"ok"}
    assert list(cli.cache.iterdir()) == []


def test_ctrl_c_before_the_first_trial(cli, processes):
    process = cli.start("-m", *cli.tiny, "model=tiny")
    processes.append(process)
    while not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text():
        time.sleep(0.01)  # until the fork server has started
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
