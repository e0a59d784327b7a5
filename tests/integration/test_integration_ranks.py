"""A rank that dies, hangs or raises: the trial tells which one and why, and leaves no process."""

import shutil
from pathlib import Path

import pytest
from whole_sweeps import trials_of

EXPECTED = {
    "IsKilled": ("crashed", ["rank 1 of 2: killed by SIGKILL (in check)"]),
    "IsStopped": (
        "timeout",
        ["not done after 8 s (in ", "rank 1 of 2 did not arrive; it is stopp"],
    ),
    "Hangs": ("timeout", ["(in check): rank 1 of 2 did not arrive", "it is at ranks.py:"]),
    "Raises": (
        "error",
        ["rank 1 of 2: in check: ValueError: bad weather (ranks.py:"],
    ),
    "RaisesLater": ("error", ["rank 1 of 2: in ", "ValueError: bad weather"]),
    "LacksMemory": ("oom", ["rank 1 of 2: in check: no room"]),
    "Leaves": ("crashed", ["rank 1 of 2: the process exited with code 3 (in check)"]),
}


@pytest.mark.parametrize(
    "names",
    [
        ("IsKilled", "IsStopped", "Raises"),
        pytest.param(
            ("Hangs", "RaisesLater", "LacksMemory", "Leaves"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_failure_names_its_rank_and_leaves_no_process(cli, wait_gone, names):
    shutil.copy(Path(__file__).parent / "failing_ranks.py", cli.folder / "ranks.py")
    pids = cli.folder / "pids"
    pids.mkdir()
    targets = ",".join(f"ranks.{name}" for name in names)
    done = cli.sweep(
        "model=custom",
        f"model.module._target_={targets}",
        "model.inputs.x.shape=[4]",
        "mode=eager",
        "parallel=tp2",
        "timeout_s=8",
    )
    assert (done.code, done.err) == (1, "")
    ended = {trial["model"]: trial for trial in trials_of(cli.db)}
    for name in names:
        status, parts = EXPECTED[name]
        reason = ended[name]["reason"]
        assert ended[name]["status"] == status, reason
        for part in parts:
            assert part in reason
    left = [int(file.name) for file in pids.iterdir()]
    assert len(left) == 2 * len(names)
    for pid in left:
        wait_gone(pid)
