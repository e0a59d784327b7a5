"""One ordinary sweep, from the command line to the database, and everything that reads it afterwards."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from effbench.store import Store
from effbench.store.values import SAMPLE_LIMIT

MODES = "eager,default,reduce-overhead,cuda-graph"


@pytest.fixture(scope="module")
def swept(cli_in, tmp_path_factory):
    """`tiny` in four modes, two rounds."""
    cli = cli_in(tmp_path_factory.mktemp("swept"))
    cli.done = cli.sweep("model=tiny", "bs=2", f"mode={MODES}", "protocol.rounds=2", "sweep.name=first")
    return cli


@pytest.fixture(scope="module")
def trials(swept):
    """Trials by mode, in order."""
    with Store.open(swept.db) as store:
        (sweep,) = store.sweeps()
        names = {cell.key: cell.mode_name for cell in store.planned(sweep.id)}
        found: dict[str, list[dict]] = {}
        for trial in store.trials(sweep.id):
            trial["samples"] = store.samples(trial["id"])
            found.setdefault(names[trial["cell_key"]], []).append(trial)
    return found


def test_it_ends_well(swept):
    assert swept.done.code == 0, swept.done
    assert swept.done.err == ""
    assert "2 ok, 2 unsupported of 4 cells · database results/effbench.db" in swept.done.out
    assert "\x1b" not in swept.done.out, "plain where there is no terminal"


def test_nothing_is_left_in_the_working_directory(swept):
    assert sorted(path.name for path in swept.folder.iterdir()) == ["results"]
    assert sorted(path.name for path in (swept.folder / "results").iterdir()) == ["effbench.db"]


def test_states_of_the_sweep_and_its_results(swept, trials):
    with Store.open(swept.db) as store:
        (sweep,) = store.sweeps()
        rows = {row["mode"]: row for row in store.results(sweep.id)}
    assert (sweep.name, sweep.state, sweep.rounds, sweep.cells) == ("first", "completed", 2, 4)
    assert {mode: row["status"] for mode, row in rows.items()} == {
        "eager": "ok", "default": "ok", "reduce-overhead": "unsupported", "cuda-graph": "unsupported",
    }  # fmt: skip
    assert {mode: len(found) for mode, found in trials.items()} == {
        "eager": 2, "default": 2, "reduce-overhead": 1, "cuda-graph": 1,
    }  # fmt: skip
    assert rows["eager"]["speedup"] == 1
    assert rows["default"]["speedup"] == pytest.approx(rows["eager"]["latency_ms"] / rows["default"]["latency_ms"])
    assert rows["eager"]["dtype"] == "float32"
    for mode in ("reduce-overhead", "cuda-graph"):
        assert "needs CUDA" in rows[mode]["reason"]
        assert rows[mode]["latency_ms"] is None


def test_what_a_trial_records(trials):
    for mode in ("eager", "default"):
        for trial in trials[mode]:
            samples = trial["samples"]["latency_ms"]
            assert len(samples) == min(trial["latency_samples"], SAMPLE_LIMIT)
            assert trial["latency_samples"] >= 30 or trial["timing_s"] >= 0.2, "least samples, or the budget is spent"
            assert trial["latency_ms"] == pytest.approx(float(sorted(samples)[len(samples) // 2]), rel=0.1)
            assert 0 < trial["latency_min_ms"] <= trial["latency_ms"] <= trial["latency_p95_ms"]
            assert len(trial["samples"]["warmup_ms"]) == trial["warmup_calls"] >= 10
            assert trial["period_ms"] is None, "CPU: latency only"
            assert trial["peak_allocated_bytes"] is None
            assert trial["peak_host_bytes"] > 2**20
            assert 0 <= trial["rel_error"] < 1e-4
            assert trial["wall_s"] >= trial["timing_s"] + trial["warmup_s"]
            assert trial["phase"] == "facts"


def test_the_cache_is_cold_then_warm(trials):
    cold, warm = trials["default"]
    assert (cold["compile_cache"], warm["compile_cache"]) == ("cold", "warm")
    assert 0 < warm["compile_s"] < cold["compile_s"]
    assert cold["extra"]["cache"]["misses"] > 0
    assert warm["extra"]["cache"]["misses"] == 0 < warm["extra"]["cache"]["hits"]
    assert (cold["graph_breaks"], cold["recompiles"], cold["cudagraph_skips"]) == (0, 0, 0)
    for trial in trials["eager"]:
        assert trial["compile_cache"] is None
        assert trial["compile_s"] is None
        assert trial["graph_breaks"] is None


def test_compile_seconds_reach_the_results(swept):
    with Store.open(swept.db) as store:
        row = next(row for row in store.results() if row["mode"] == "default")
    assert 0 < row["compile_warm_s"] < row["compile_cold_s"]


def test_the_cache_goes_with_the_sweep(swept):
    assert [path for path in swept.cache.rglob("*") if path.is_file()] == []


def test_resuming_a_finished_sweep_runs_nothing(swept, trials):
    done = swept.run("-m", "resume=first")
    assert done.code == 0, done
    assert "every trial is recorded already" in done.out
    with Store.open(swept.db) as store:
        (sweep,) = store.sweeps()
        assert sweep.trials == sum(map(len, trials.values()))
        assert sweep.state == "completed"


@pytest.fixture
def read(swept, monkeypatch):
    """Runs a command where torch cannot be imported."""
    monkeypatch.setitem(sys.modules, "torch", None)
    return swept.run


class TestWithoutTorch:
    """What reads results does not need torch."""

    def test_in_a_fresh_interpreter(self, swept, tmp_path):
        (tmp_path / "torch.py").write_text("raise ImportError('torch is not installed')\n")
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), swept.env["PYTHONPATH"]])}
        done = swept.run_fresh("-m", *swept.tiny, "model=tiny", "db=none.db", env=env)
        assert done.code == 2
        assert "torch is not installed" in done.err
        assert "tiny" in swept.run_fresh("show", env=env).out

    def test_show(self, read):
        done = read("show")
        assert done.code == 0, done
        assert "tiny" in done.out
        assert "unsupported" in done.out
        assert json.loads(read("show", "--format", "json").out)

    def test_show_why(self, read):
        done = read("show", "--why")
        assert done.code == 0, done
        assert "not profiled" in done.out
        assert "needs CUDA" in done.out
        assert {row["status"] for row in json.loads(read("show", "--why", "--format", "json").out)} == {
            "ok",
            "unsupported",
        }

    def test_ls(self, read):
        assert "first" in read("ls").out
        assert read("ls", "--cells").out.count("tiny") == 4
        assert "needs CUDA" in read("ls", "--failures").out

    def test_export(self, read):
        rows = list(csv.DictReader(io.StringIO(read("export").out)))
        assert sorted(row["mode"] for row in rows) == sorted(MODES.split(","))
        lines = read("export", "--format", "jsonl").out.splitlines()
        assert {json.loads(line)["status"] for line in lines} == {"ok", "unsupported"}

    def test_report(self, swept, read, tmp_path):
        done = read("report", "--out", str(tmp_path / "site"))
        assert done.code == 0, done
        assert "tiny" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")

    def test_db(self, read):
        assert "sound" in read("db", "check").out
        assert "already" in read("db", "upgrade").out

    @pytest.mark.parametrize(
        "args", [["--help"], ["--cfg", "job"], ["show", "--help"], ["doctor", "--help"]], ids=" ".join
    )
    def test_help(self, read, args):
        assert read(*args).code == 0


def test_a_sweep_process_itself_never_imports_torch(swept):
    """Planning, scheduling and recording stay light: the fork server has torch, the sweep has not."""
    code = (
        "import sys; from effbench.cli import run\n"
        f"code = run(['-m', *{list(swept.tiny)!r}, 'model=tiny', 'db=light.db'])\n"
        "print('torch' in sys.modules, code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=swept.folder, env=swept.env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False 0", done
