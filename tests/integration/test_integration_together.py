"""Several sweeps at once on one database, and the Python API."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from effbench.store import Store


@pytest.mark.slow
def test_two_sweeps_at_once_on_one_database(cli, processes):
    matrix = ("model=tiny", "bs=1,2,3,4", "mode=eager", "protocol.rounds=3")
    for name in ("one", "two"):
        processes.append(cli.start("-m", *cli.tiny, *matrix, f"sweep.name={name}"))
    done = [(process, *process.communicate(timeout=120)) for process in processes]
    assert [(process.returncode, err) for process, _, err in done] == [(0, ""), (0, "")]
    with Store.open(cli.db) as store:
        assert sorted(sweep.name for sweep in store.sweeps()) == ["one", "two"]
        for sweep in store.sweeps():
            assert (sweep.state, sweep.trials, sweep.statuses) == ("completed", 12, {"ok": 4})
        spans = [
            (trial["started_at"].timestamp(), trial["started_at"].timestamp() + trial["wall_s"])
            for sweep in store.sweeps()
            for trial in store.trials(sweep.id)
        ]
    assert Store.check(str(cli.db)) == []
    spans.sort()
    # the device's lock keeps them apart; times are stored to the millisecond
    for (_, ended), (started, _) in pairwise(spans):
        assert started >= ended - 0.05


API = """
import threading
import effbench

tiny = {tiny!r}
first = effbench.sweep([*tiny, "model=tiny", "bs=1,2", "sweep.name=api"])
frame = first.results()
assert first.state == "completed" and list(frame["bs"]) == [1, 2], frame
assert list(frame["status"]) == ["ok", "ok"]
assert len(effbench.results(sweep="api")) == 2

for wrong, error in [
    (["bs=0"], effbench.ConfigError), (["modle=tiny"], effbench.ConfigError), (["word"], effbench.UsageError),
    (["--cfg", "job"], effbench.UsageError), ("model=tiny", effbench.UsageError), (["db=."], effbench.StoreError),
]:
    try:
        effbench.sweep(wrong)
    except error:
        pass
    else:
        raise AssertionError(wrong)

# in a thread, and again in the same process
found = []
thread = threading.Thread(target=lambda: found.append(effbench.sweep([*tiny, "model=tiny", "bs=3"])))
thread.start()
thread.join()
assert len(effbench.results(sweep=None)) == 3, found
import sys
print("torch" in sys.modules)
"""


@pytest.mark.slow
def test_the_python_api(cli):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", API.format(tiny=list(cli.tiny))],
        cwd=cli.folder, env=cli.env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "False"
    assert not any("[1/2]" in line for line in lines), "quiet"
