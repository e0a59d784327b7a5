"""Duets for real, on the CPU: their records, the command, and members that die, hang or are
interrupted."""

import json
import os
import re
import signal
import threading
import time

import pytest
from whole_sweeps import info_of

from effbench.core.cell import Status
from effbench.core.errors import EffbenchError
from effbench.core.meeting import ALONE, DUET
from effbench.store import Store

MODEL = (
    "model=custom",
    "model.module._target_=mischief.InDuet",
    "model.inputs.x.shape=[8]",
    "mode=eager",
    "threads=1",
)
GOOD, BAD = "+model.module.what=nothing", "+model.module.what={}"


@pytest.fixture(scope="module")
def place(cli_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("duet") / "here"
    folder.mkdir()
    return cli_in(folder, imports=False)


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
        "protocol.profile=true",
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
    assert "Python" in cell["cause"]


@pytest.fixture(scope="module")
def members(answered):
    """The three trials of each member."""
    place, _ = answered
    (sides,) = sides_of(place.db)
    assert (info_of(place.db).name, info_of(place.db).state) == ("duet", "completed")
    return list(sides.values())


def shared(trial):
    """What both members of a duet have in common."""
    return trial.status, trial.latency_samples, trial.host_ms, trial.disturbed_fraction


def test_both_members_record_the_same_turns(members):
    first, second = (list(map(shared, trials)) for trials in members)
    assert first == second
    assert [status for status, *_ in first] == [Status.OK] * 3


@pytest.mark.parametrize("words", [["show"], ["compare", "last", "--by", "model.module.seconds"]])
def test_other_commands_read_it(answered, words):
    place, _ = answered
    assert place.run(*words).code == 0


def test_a_member_that_dies_ends_the_duet_with_its_status(place):
    done = duet(place, GOOD, BAD.format("die"), "protocol.rounds=3")
    assert done.code == 1, done
    assert "+model.module.what=die has no figures to compare: crashed" in done.out
    (sides,) = sides_of(place.db)
    (bad,), (good,) = sides["die"], sides["nothing"]
    assert bad.status is Status.CRASHED
    assert "exited with code 9" in bad.reason
    assert good.status is Status.OK and good.latency_ms > 0
    assert good.extra[DUET][ALONE].startswith("the other member of the duet ended")
    assert good.extra["phase_seconds"]["duet"] > 0


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def files(workshop):
    """Of the working directory of the fork server: `hang` makes members hang, of which `hangs`
    tells."""
    paths = [workshop.folder / name for name in ("hang", "hangs")]
    for path in paths:
        path.unlink(missing_ok=True)
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


def test_ctrl_c_ends_both_and_complete_duets_count(place, files):
    db = place.folder / "interrupted.db"
    hang, hangs = files

    def has_a_duet():
        try:
            return [len(sides) for sides in sides_of(db)] == [2]
        except EffbenchError:  # there is no database or sweep yet
            return False

    def press():
        wait_for(has_a_duet)
        hang.touch()
        wait_for(hangs.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    done = duet(place, GOOD, BAD.format("later"), "--db", "interrupted.db")
    thread.join()
    assert done.code == 130, done
    assert "interrupted (sweep" in done.err
    sweep, (sides,) = info_of(db), sides_of(db)
    assert sweep.state == "interrupted"
    numbers = {len(trials) for trials in sides.values()}
    assert len(numbers) == 1, "both members of each complete duet"
    assert re.search(rf"\({numbers.pop()} duet|; \d+ duets?\)", done.out)
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
        (("", "eager", "model=tiny"), "is no override such as mode=default, and no mode"),
        (("eager", "default,eager", "model=tiny"), "one cell each"),
        (("eager", "default", "--fail-above", "x"), "--fail-above: invalid float value"),
    ],
)
def test_wrong_sides_are_refused(place, words, error):
    done = place.run("duet", *words, "device=cpu")
    assert done.code == 2, done
    assert error in done.err and len(done.err.splitlines()) <= 2
