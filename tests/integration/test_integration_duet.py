"""Duets for real, on the CPU: their records, the command, and members that die, hang or are
interrupted."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from whole_sweeps import info_of

from effbench.core.cell import Status
from effbench.core.errors import EffbenchError
from effbench.core.meeting import ALONE, DUET
from effbench.store import Store

#: A network that misbehaves once it is timed in turn with its partner.
NET = """
import os
import sys
import time
from pathlib import Path

import torch


def is_in_duet():
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "effbench.measure.duet":
            return True
        frame = frame.f_back
    return False


class Net(torch.nn.Module):
    def __init__(self, what="nothing", seconds=0.001):
        super().__init__()
        self.what, self.seconds = what, seconds

    def forward(self, x):
        time.sleep(self.seconds)
        if self.what == "nothing" or not is_in_duet():
            return x * 2
        if self.what == "die":
            os._exit(9)
        if self.what == "raise":
            raise ValueError("bad weather")
        if self.what == "hang" or Path("hang").exists():
            Path("hangs").touch()
            time.sleep(1000)
        return x * 2
"""
MODEL = (
    "model=custom",
    "model.module._target_=net.py:Net",
    "model.inputs.x.shape=[8]",
    "mode=eager",
    "threads=1",
)
GOOD, BAD = "+model.module.what=nothing", "+model.module.what={}"


@pytest.fixture(scope="module")
def place(cli_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("duet") / "here"
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    return cli_in(folder)


def duet(place, first, second, *more):
    return place.run("duet", first, second, *MODEL, *place.tiny, *more)


def sides_of(db):
    """The trials of the cells of the last sweep, in each environment, by the arguments of their
    modules."""
    with Store.open(db) as store:
        sweep_id = store.find_sweep("last").id
        modules = {cell.key: cell.model["module"] for cell in store.planned(sweep_id)}
        names = {key: module.get("what", module.get("seconds")) for key, module in modules.items()}
        return [
            {names[key]: trials for key, trials in store.history(sweep_id, row.id).items()}
            for row in store.environments_of(sweep_id)  # none before the first trial
        ]


SLOW, FAST = "+model.module.seconds=0.004", "+model.module.seconds=0.002"


@pytest.fixture(scope="module")
def answered(place):
    """A duet whose second side is slower, which fails it on request, with its answer."""
    options = (
        "protocol.rounds=3",
        "--fail-above",
        "10",
        "--format",
        "json",
        "--out",
        "answer.json",
    )
    done = duet(place, FAST, SLOW, *options)
    assert done.code == 1, done
    (cell,) = json.loads((place.folder / "answer.json").read_text())["cells"]
    return place, cell


def test_the_command_answers(answered):
    _, cell = answered
    assert re.match(
        rf"{re.escape(FAST)} is [12]\.\d+× as fast as {re.escape(SLOW)} \(.*; 3 duets\)$",
        cell["sentence"],
    )
    assert 1.4 < cell["figures"][0]["ratio"] < 2.5 and cell["duets"] == 3


@pytest.fixture(scope="module")
def members(answered):
    """The three trials of each member."""
    place, _ = answered
    (sides,) = sides_of(place.db)
    assert (info_of(place.db).name, info_of(place.db).state) == ("duet", "completed")
    return list(sides.values())


def shared(trial):
    """What both members of a duet have in common."""
    return trial.status, trial.latency_samples, trial.host_ms, trial.extra[DUET]["latency"]


def test_both_members_record_the_same_turns(members):
    first, second = (list(map(shared, trials)) for trials in members)
    assert first == second
    assert [status for status, *_ in first] == [Status.OK] * 3


def test_the_first_member_alternates(members):
    leads, others = ([trial.extra[DUET]["leads"] for trial in trials] for trials in members)
    assert leads in ([True, False, False], [False, True, True])
    assert others == [not lead for lead in leads]


@pytest.mark.parametrize(
    "words", [["show"], ["report"], ["compare", "last", "--by", "model.module.seconds"]]
)
def test_other_commands_read_it(answered, words):
    place, _ = answered
    assert place.run(*words).code == 0


@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [("die", Status.CRASHED, "exited with code 9"), ("raise", Status.ERROR, "bad weather")],
)
def test_a_member_that_dies_ends_the_duet_with_its_status(place, what, status, reason):
    done = duet(place, GOOD, BAD.format(what), "protocol.rounds=3")
    assert done.code == 1, done
    assert f"+model.module.what={what} has no figures to compare: {status}" in done.out
    (sides,) = sides_of(place.db)
    (bad,), (good,) = sides[what], sides["nothing"]
    assert (bad.status, reason in bad.reason) == (status, True)
    assert good.status is Status.OK and good.latency_ms > 0
    assert good.extra[DUET][ALONE].startswith("the other member of the duet ended")
    assert good.extra["phase_seconds"]["duet"] > 0


def test_a_member_that_hangs_times_out_and_the_other_one_is_timed_alone(place):
    done = duet(place, GOOD, BAD.format("hang"), "timeout_s=8")
    assert done.code == 1, done
    (sides,) = sides_of(place.db)
    (bad,), (good,) = sides["hang"], sides["nothing"]
    assert (bad.status, bad.reason) == (Status.TIMEOUT, "not done after 8 s (in timing)")
    lost = "the other member of the duet did not answer for 2 s"
    assert (good.status, good.extra[DUET][ALONE]) == (Status.OK, lost)


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ctrl_c_ends_both_and_complete_duets_count(place, processes):
    for name in ("hang", "hangs"):
        (place.folder / name).unlink(missing_ok=True)
    process = place.start(
        "duet", GOOD, BAD.format("later"), *MODEL, *place.tiny, "--db", "interrupted.db"
    )
    processes.append(process)
    db = Path(place.folder / "interrupted.db")

    def has_a_duet():
        try:
            return [len(sides) for sides in sides_of(db)] == [2]
        except EffbenchError:  # there is no database or sweep yet
            return False

    wait_for(has_a_duet)
    (place.folder / "hang").touch()
    wait_for((place.folder / "hangs").exists)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "interrupted (sweep" in err
    sweep, (sides,) = info_of(db), sides_of(db)
    assert sweep.state == "interrupted"
    numbers = {len(trials) for trials in sides.values()}
    assert len(numbers) == 1, "both members of each complete duet"
    assert re.search(rf"\({numbers.pop()} duet|; \d+ duets?\)", out)
    (place.folder / "hang").unlink()
    done = place.run("-m", "resume=last", "db=interrupted.db")
    assert done.code == 2
    assert (
        f"sweep {sweep.id} is a duet, which cannot be resumed; run it again: effbench duet "
        in done.err
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("eager", "mode=eager", "model=tiny"), "A and B are the same cell"),
        (("", "eager", "model=tiny"), "a side is empty"),
        (("eager", "default,eager", "model=tiny"), "one cell each"),
        (("eager", "default", "--fail-above", "x"), "--fail-above: invalid float value"),
    ],
)
def test_wrong_sides_are_refused(place, words, error):
    done = place.run("duet", *words, "device=cpu")
    assert done.code == 2, done
    assert error in done.err and len(done.err.splitlines()) <= 2
