"""Two interpreters in one sweep, with real fork servers: two checkouts of a module, and a virtual environment."""

from __future__ import annotations

import signal
import sys
import threading
import venv
from pathlib import Path

import pytest

from effbench.analysis.environments import names_by
from effbench.store import Store
from effbench.sweeping.conduct import run_cells
from effbench.sweeping.interpreters import Unit, cells_of, resolve
from effbench.sweeping.plan import Settings
from effbench.sweeping.planned import Command
from effbench.sweeping.progress import Progress

NET = """
import time
import torch
from shared import SLEEP_S, LARGEST

class Net(torch.nn.Module):
    def forward(self, x):
        if len(x) > LARGEST:
            raise ValueError("too large for the new one")
        time.sleep(SLEEP_S)
        return x + 1
"""
MODEL = ("model=custom", "model.module._target_=net.Net", "model.inputs.x.shape=[4]")
ROUNDS = 3


@pytest.fixture(scope="module")
def swept(cli_in, tmp_path_factory):
    """Two checkouts, old and new, in one sweep that is stopped after its first trials and gone on with. The new one is
    slower, and fails at bs=2."""
    cli = cli_in(tmp_path_factory.mktemp("halves"))
    for name, sleep_s, largest in (("old", 0, 9), ("new", 0.004, 1)):
        folder = cli.folder / name
        folder.mkdir()
        (folder / "net.py").write_text(NET)
        (folder / "shared.py").write_text(f"SLEEP_S = {sleep_s}\nLARGEST = {largest}\n")
    overrides = (*MODEL, "bs=1,2", "folder=old,new", f"protocol.rounds={ROUNDS}")
    process = cli.start("-m", *cli.tiny, *overrides)
    for line in process.stdout:
        if line.startswith("["):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, (out, err)
    with Store.open(cli.db) as store:
        cli.before = store.trials(store.find_sweep("last").id)
    cli.done = cli.run("-m", "resume=last")
    with Store.open(cli.db) as store:
        (cli.sweep,) = store.sweeps()
        cli.trials, cli.rows = store.trials(cli.sweep.id), store.results(cli.sweep.id)
        cli.environments = store.environments(row["environment_id"] for row in cli.rows)
        cli.cells = store.planned(cli.sweep.id)
    cli.half_of = names_by(cli.environments, "folder")
    cli.size_of = {cell.key: cell.bs for cell in cli.cells}
    return cli


@pytest.mark.slow
def test_each_folder_has_its_environment(swept):
    assert sorted(swept.half_of.values()) == ["new", "old"]
    flags = {swept.half_of[row["id"]]: row["flags"]["folder"] for row in swept.environments}
    assert flags == {name: str(swept.folder / name) for name in ("old", "new")}
    facts = swept.sweep.host["environments"]
    assert {swept.half_of[one]: (found["folder"], found["given"]) for one, found in facts.items()} == {
        name: (str(swept.folder / name), ["folder"]) for name in ("old", "new")
    }
    assert (swept.sweep.host["executable"], swept.sweep.host["folder"]) == (sys.executable, str(swept.folder))


@pytest.mark.slow
def test_each_runs_its_own_code(swept):
    found = {swept.half_of[row["environment_id"]]: row for row in swept.rows if row["bs"] == 1}
    assert {name: (row["status"], row["trials"]) for name, row in found.items()} == {
        "old": ("ok", ROUNDS), "new": ("ok", ROUNDS),
    }  # fmt: skip
    assert found["new"]["latency_ms"] > 4 > found["old"]["latency_ms"]
    assert found["new"]["cell_key"] == found["old"]["cell_key"]
    assert found["new"]["speedup"] == found["old"]["speedup"] == 1, "a baseline is one's own"


@pytest.mark.slow
def test_a_failure_costs_one_half_alone(swept):
    found = {swept.half_of[row["environment_id"]]: row for row in swept.rows if row["bs"] == 2}
    assert {name: (row["status"], row["trials"]) for name, row in found.items()} == {
        "old": ("ok", ROUNDS), "new": ("error", 1),
    }  # fmt: skip
    assert "too large for the new one" in found["new"]["reason"]
    assert swept.done.code == 1


@pytest.mark.slow
def test_they_take_turns_in_going_first(swept):
    order = sorted(swept.trials, key=lambda trial: (trial["round"], trial["started_at"]))
    small = [trial for trial in order if swept.size_of[trial["cell_key"]] == 1]
    turns = [[swept.half_of[t["environment_id"]] for t in small if t["round"] == number] for number in range(ROUNDS)]
    assert turns == [["old", "new"], ["new", "old"], ["old", "new"]]
    first = [swept.size_of[trial["cell_key"]] for trial in order if trial["round"] == 0]
    assert first in ([1, 1, 2, 2], [2, 2, 1, 1]), "a pair is not torn apart"


@pytest.mark.slow
def test_what_was_recorded_is_not_run_again(swept):
    assert 0 < len(swept.before) < len(swept.trials) == 3 * ROUNDS + 1
    assert [trial["id"] for trial in swept.trials][: len(swept.before)] == [trial["id"] for trial in swept.before]
    assert "differs" not in swept.done.out
    assert swept.sweep.state == "completed"


@pytest.mark.slow
def test_tables_name_the_halves(swept):
    assert "2 cells × 2 interpreters × 3 rounds" in swept.done.out
    assert "3 ok, 1 error of 2 cells in 2 environments" in swept.done.out
    assert "Net bs=1 eager float32 · new · round 3/3 · ok" in swept.done.out
    assert "error Net folder=new bs=2 eager float32: " in swept.done.out
    table = swept.run("show", "--format", "markdown", "--metric", "latency_ms").out.splitlines()
    assert table[0] == "| model | folder | bs | eager |"
    assert [line.split("|")[2].strip() for line in table[2:]] == ["old", "old", "new", "new"], "in the order given"
    listed = swept.run("ls", "--cells").out
    assert listed.count("folder=old") == listed.count("folder=new") == 2


@pytest.mark.slow
def test_given_cells_run_under_given_interpreters(swept, another_python):
    """What confirms a suspicion: cells out of the database, again, without a command line."""
    old = resolve(another_python(swept.folder / "venv"), str(swept.folder / "old"))
    new = resolve(folder=str(swept.folder / "new"))
    (small,) = (cell for cell in swept.cells if cell.bs == 1)
    quick = {"budget_s": 0.2, "min_time_s": 0.02, "warmup_s": 0.02, "rounds": 2}
    settings = Settings.with_defaults(
        db=str(swept.db), protocol=quick, sweep={"name": "again"}, executor={"cache_dir": str(swept.cache)}
    )
    units = [Unit(small, old), Unit(small, new)]
    outcome = run_cells(settings, units, Command(["check"], []), None, Progress(quiet=True), threading.Event())
    fast, slow = outcome.latencies
    assert slow > 4 > fast > 0
    with Store.open(swept.db) as store:
        sweep = store.find_sweep("again")
        trials = store.trials(sweep.id)
        facts = sweep.host["environments"]
        assert store.planned(sweep.id) == cells_of(units)
    assert (outcome.state, sweep.state, sweep.command) == ("completed", "completed", ["check"])
    ids = [outcome.environments[old], outcome.environments[new]]
    assert [trial["environment_id"] for trial in trials] == [*ids, *ids[::-1]], "A-B, B-A"
    assert facts[ids[0]]["python"] == old.python
    assert (facts[ids[1]]["python"], facts[ids[1]]["given"]) == (sys.executable, ["folder"])
    assert ids[1] in swept.half_of, "the same interpreter is the same environment"


def test_a_python_that_will_not_do_is_refused_at_once(cli, tmp_path):
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    done = cli.sweep("model=tiny", f"python={bare / 'bin' / 'python'}")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"effbench: python={bare / 'bin' / 'python'} lacks torch, numpy, nvidia-ml-py\nmend: ")
    done = cli.sweep("model=tiny", "python=nowhere/python")
    assert done.code == 2
    assert done.err == (
        f"effbench: python=nowhere/python: there is no {Path(cli.folder) / 'nowhere' / 'python'}; "
        "give the path of an interpreter\n"
    )
