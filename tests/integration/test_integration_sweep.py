"""One ordinary sweep, from the command line to the database, and everything that reads it
afterwards."""

import os
import shlex
import statistics
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
    states = {row["mode"]: (row["status"], row["trials"]) for row in results_of(measured.db)}
    assert states == {
        "eager": ("ok", 2),
        "default": ("ok", 2),
        "reduce-overhead": ("unsupported", 1),
        "cuda-graph": ("unsupported", 1),
    }


@pytest.fixture(scope="module")
def rows(measured):
    """Results by mode."""
    return {row["mode"]: row for row in results_of(measured.db)}


def test_speedups_come_from_pairs(rows, trials):
    eager, default = rows["eager"], rows["default"]
    assert eager["speedup"] == 1
    separate = eager["latency_ms"] / default["latency_ms"]
    assert default["separate_speedup"] == pytest.approx(separate)
    ratios = [trial["pair_speedup"] for trial in trials["default"]]
    assert default["speedup_from"] == "pairs"
    assert default["speedup"] == pytest.approx(statistics.geometric_mean(ratios))
    assert all(trial["pair_speedup"] is None for trial in trials["eager"])


def test_a_mode_that_needs_a_gpu_has_a_reason_and_no_time(rows):
    assert "needs CUDA" in rows["cuda-graph"]["reason"]
    assert rows["cuda-graph"]["latency_ms"] is None


def test_figures_of_a_trial(trials):
    trial = trials["default"][0]
    samples = trial["samples"]["latency_ms"]
    assert len(samples) == min(trial["latency_samples"], SAMPLE_LIMIT)
    assert trial["latency_samples"] >= 30 or trial["timing_s"] >= 0.2, (
        "least samples, or the budget is spent"
    )
    median = statistics.median(map(float, samples))
    assert trial["latency_ms"] == pytest.approx(median, rel=0.1)
    assert 0 < trial["latency_min_ms"] <= trial["latency_ms"] <= trial["latency_p95_ms"]
    assert len(trial["samples"]["warmup_ms"]) == trial["warmup_calls"] >= 10
    assert trial["wall_s"] >= trial["timing_s"] + trial["warmup_s"]
    assert trial["period_ms"] is None, "CPU: latency only"
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
    assert measured.run(*words, "db=again.db").code == 0
    with Store.open(measured.folder / "again.db") as store:
        (again,) = store.planned(store.find_sweep("last").id)
    (measured.folder / "again.db").unlink()
    assert again.key == eager.key


def test_resuming_a_finished_sweep_runs_nothing(measured, trials):
    done = measured.run("-m", "resume=first")
    assert done.code == 0, done
    assert "all trials are already recorded" in done.out
    with Store.open(measured.db) as store:
        (sweep,) = store.sweeps()
        assert (sweep.trials, sweep.state) == (sum(map(len, trials.values())), "completed")


@pytest.mark.slow
def test_a_sweep_without_torch_is_refused_and_results_are_shown(measured, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not installed')\n")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), measured.env["PYTHONPATH"]])}

    def fresh(*words):
        process = measured.start(*words, env=env)
        return *process.communicate(timeout=240), process.returncode

    _, err, code = fresh("-m", *measured.tiny, "model=tiny", "db=none.db")
    (measured.folder / "none.db").unlink()
    assert (code, "torch is not installed" in err) == (2, True)
    assert "tiny" in fresh("show")[0]


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
