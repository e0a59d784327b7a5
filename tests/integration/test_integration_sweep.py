"""One ordinary sweep, from the command line to the database, and everything that reads it
afterwards."""

import shlex
import subprocess
import sys

import pytest
from whole_sweeps import info_of, results_of, trials_of

from effbench.render.data import device_sweeps_of
from effbench.store import Store
from effbench.store.values import SAMPLE_LIMIT


@pytest.fixture(scope="module")
def measured(cli_in, tmp_path_factory):
    """A sweep of `tiny` in four modes and two rounds; `done` is how it ended. Only to be read."""
    cli = cli_in(tmp_path_factory.mktemp("measured"))
    modes = "eager,default,reduce-overhead,cuda-graph"
    cli.done = cli.sweep(
        "model=tiny", "bs=2", f"mode={modes}", "protocol.rounds=2", "sweep.name=first"
    )
    return cli


@pytest.fixture(scope="module")
def trials(measured):
    """Trials by mode, in order."""
    found: dict[str, list[dict]] = {}
    for trial in trials_of(measured.db):
        found.setdefault(trial["mode"], []).append(trial)
    return found


def test_it_ends_well_and_leaves_nothing_behind(measured):
    done = measured.done
    assert (done.code, done.err) == (0, ""), done
    assert "2 ok, 2 unsupported of 4 cells · database results/effbench.db" in done.out
    assert "failures:" not in done.out, "unsupported cells are no failures"
    assert "\x1b" not in done.out, "plain if the output is no terminal"
    results = measured.db.parent
    log = results / "logs" / f"{info_of(measured.db).id}.log"
    files = {path for path in measured.folder.rglob("*") if path.is_file()}
    assert files == {measured.db, results / ".gitignore", log}
    assert [path for path in measured.cache.rglob("*") if path.is_file()] == []


def test_states_of_the_sweep_and_its_results(measured):
    sweep = info_of(measured.db)
    assert (sweep.name, sweep.state, sweep.rounds, sweep.cells) == ("first", "completed", 2, 4)
    rows = {row["mode"]: row for row in results_of(measured.db)}
    assert {mode: (row["status"], row["trials"]) for mode, row in rows.items()} == {
        "eager": ("ok", 2),
        "default": ("ok", 2),
        "reduce-overhead": ("unsupported", 1),
        "cuda-graph": ("unsupported", 1),
    }
    assert rows["eager"]["speedup"] == 1
    assert rows["default"]["speedup"] > 0
    assert rows["default"]["speedup_from"] == "pairs"
    assert "needs CUDA" in rows["cuda-graph"]["reason"]
    assert rows["cuda-graph"]["latency_ms"] is None


def test_figures_of_a_trial(trials):
    trial = trials["default"][0]
    samples = trial["samples"]["latency_ms"]
    assert len(samples) == min(trial["latency_samples"], SAMPLE_LIMIT)
    assert 0 < trial["latency_min_ms"] <= trial["latency_ms"] <= trial["latency_p95_ms"]
    assert len(trial["samples"]["warmup_ms"]) == trial["warmup_calls"] >= 10
    assert trial["wall_s"] >= trial["timing_s"] + trial["warmup_s"]
    assert trial["peak_host_bytes"] > 2**20
    assert 0 <= trial["rel_error"] < 1e-4


def test_the_cache_is_cold_then_warm(trials):
    cold, warm = trials["default"]
    assert (cold["compile_cache"], warm["compile_cache"]) == ("cold", "warm")
    assert 0 < warm["compile_s"] < cold["compile_s"]
    assert cold["extra"]["cache"]["misses"] > 0
    assert warm["extra"]["cache"]["misses"] == 0 < warm["extra"]["cache"]["hits"]
    assert (cold["graph_breaks"], cold["recompiles"], cold["cudagraph_skips"]) == (0, 0, 0)
    eager = trials["eager"][0]
    assert eager["compile_cache"] is eager["compile_s"] is eager["graph_breaks"] is None


def test_each_cell_has_the_command_that_runs_it_again(measured):
    with Store.open(measured.db) as store:
        sweep = store.find_sweep("first")
        (eager,) = (cell for cell in store.planned(sweep.id) if cell.mode_name == "eager")
        (place,) = store.environments()
        (swept,) = device_sweeps_of(store, sweep, measured.db)
        command = swept.command(eager.key, place.id)
    words = shlex.split(command)[1:]
    assert {"model=tiny", "bs=2", "mode=eager"} <= set(words)


def test_a_sweep_writes_its_log_next_to_the_database(cli):
    done = cli.sweep("model=tiny", "--verbose")
    assert done.code == 0, done
    with Store.open(cli.db) as store:
        sweep = store.find_sweep("last")
    assert "-v" not in sweep.command
    assert "--verbose" not in sweep.command
    text = (cli.db.parent / "logs" / f"{sweep.id}.log").read_text()
    for logged in (f"sweep {sweep.id}", "tiny"):
        assert logged in text
        assert logged in done.err
    assert "composed the configurations of 1 jobs" in done.err
    assert cli.run("show", "-v").code == 0


API = """
import os, sys, threading
import effbench

tiny = {tiny!r}
first = effbench.sweep([*tiny, "model=tiny", "bs=1,2", "sweep.name=api"])
assert first.state == "completed" and list(first.results()["bs"]) == [1, 2]
assert len(effbench.results(sweep="api")) == 2
here = os.getcwd()
os.chdir("/")
assert len(first.results()) == 2, "its database is found from another folder"
os.chdir(here)
# in a thread, and again in the same process
thread = threading.Thread(target=effbench.sweep, args=[[*tiny, "model=tiny", "bs=3"]])
thread.start()
thread.join()
assert len(effbench.results(sweep=None)) == 3
# from an iterator, and in a program that uses Hydra itself
import hydra
from hydra.core.global_hydra import GlobalHydra

with hydra.initialize(version_base="1.3", config_path=None):
    fourth = effbench.sweep(word for word in [*tiny, "model=tiny", "bs=4"])
    assert list(fourth.results()["bs"]) == [4] and GlobalHydra.instance().is_initialized()
assert "HYDRA_FULL_ERROR" not in os.environ
print("torch" in sys.modules)
"""


@pytest.mark.slow
def test_the_python_api(cli):
    words = [sys.executable, "-W", "error", "-c", API.format(tiny=list(cli.tiny))]
    done = subprocess.run(
        words, cwd=cli.folder, env=cli.env, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr, done.stdout) == (
        0,
        "",
        "False\n",
    ), "quiet, and without torch"
