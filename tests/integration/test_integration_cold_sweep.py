"""A sweep of cold starts, from the command line to the database, and the commands that read it."""

import pytest
from whole_sweeps import info_of, results_of, trials_of

# it compiles in two processes, and then starts four
pytestmark = pytest.mark.slow

WORDS = (
    "model=tiny",
    "phase=coldstart",
    "mode=eager,default",
    "cache=none,folder",
    "exclude=[{mode:default,cache:none}]",
)


@pytest.fixture(scope="module")
def measured(cli_in, tmp_path_factory):
    """A sweep of two rounds; `done` is how it ended. Only to be read."""
    cli = cli_in(tmp_path_factory.mktemp("cold"))
    cli.done = cli.sweep(*WORDS, "protocol.rounds=2", "sweep.name=cold")
    return cli


@pytest.fixture(scope="module")
def results(measured):
    """Mode and cache -> the result."""
    return {(row["mode"], row["params"]["cache"]): row for row in results_of(measured.db)}


def test_it_ends_well_and_leaves_nothing_behind(measured):
    done = measured.done
    assert (done.code, done.err) == (0, ""), done
    assert "2 ok, 1 unsupported of 3 cells" in done.out
    assert "cold start: time from the start of a fresh process" in done.out
    assert [path for path in measured.cache.rglob("*") if path.is_file()] == []


def test_the_cache_is_filled_once_and_used_whole(measured, results):
    cached = results["default", "folder"]
    assert (cached["status"], cached["trials"], cached["compilations"]) == ("ok", 2, 1)
    assert (cached["cache_reuse"], cached["cache_misses"]) == ("whole", 0)
    assert cached["cache_hits"] > 0
    assert cached["cache_bytes"] > 1000
    trials = [trial for trial in trials_of(measured.db) if trial["mode"] == "default"]
    first, second = (trial["extra"]["phase_seconds"] for trial in trials)
    assert "fill" in first
    assert "fill" not in second


def test_eager_without_a_cache_is_the_baseline(results):
    eager, cached = results["eager", "none"], results["default", "folder"]
    assert 0 < eager["cold_ci_low_s"] < eager["cold_s"] < eager["cold_ci_high_s"]
    assert cached["speedup"] == pytest.approx(eager["latency_ms"] / cached["latency_ms"])
    reason = results["eager", "folder"]["reason"]
    assert reason == "eager compiles nothing, so there is nothing to cache"


def test_commands_read_it(measured):
    shown = measured.run("show", "--metric", "cold_imports_s")
    assert (shown.code, shown.err) == (0, ""), shown
    assert "cache" in shown.out
    again = measured.run("-m", f"resume={info_of(measured.db).id}")
    assert again.code == 0, again
    assert "all trials are already recorded" in again.out
