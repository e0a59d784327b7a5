"""`effbench coldstart` from the command line to fresh processes: a sweep, and a cache to ship."""

import json

import pytest

QUICK = ("device=cpu", "protocol.host_tolerance=1000")


@pytest.fixture(scope="module")
def made(cli_in, tmp_path_factory):
    """A folder with a database, and a cache of `tiny` at the batch size 1."""
    cli = cli_in(tmp_path_factory.mktemp("coldstart"))
    cli.done = cli.run("coldstart", "tiny", *QUICK, "--make", "cache")
    return cli


@pytest.mark.slow
def test_a_cache_is_made(made):
    assert made.done.code == 0, made.done
    first, second = made.done.out.splitlines()
    assert first.startswith("The cache holds (") and "the first answer came after" in first
    assert 'load_cache_artifacts(open("cache/bundle.bin", "rb")' in second
    assert (made.folder / "cache" / "bundle.bin").stat().st_size > 0
    assert not (made.folder / "results").exists(), "nothing is recorded"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bs", "code", "reuse", "missed"),
    [("bs=1", 0, "part", "C++ file"), ("bs=4", 1, "none", "now (4, ")],
)
def test_a_cache_is_tried(made, bs, code, reuse, missed):
    done = made.run("coldstart", "tiny", bs, *QUICK, "--try", "cache", "--format", "json")
    record = json.loads(done.out)
    assert (done.code, record["status"], record["cache_reuse"]) == (code, "ok", reuse)
    assert missed in "".join(record["missed"])


@pytest.mark.slow
def test_a_sweep_tells_what_the_first_answer_costs(made):
    words = ("mode=eager,default", "cache=none,bundle", "protocol.rounds=1")
    done = made.run("coldstart", "tiny", *words, *QUICK, "--format", "json")
    assert done.code == 0, done
    rows = {(row["mode"], row["cache"]): row for row in json.loads(done.out)["rows"]}
    assert rows.keys() == {("eager", "none"), ("default", "none"), ("default", "bundle")}
    assert rows["default", "none"]["cold_s"] > rows["eager", "none"]["cold_s"]
    parts = [value or 0 for name, value in rows["default", "bundle"].items() if "cold_" in name]
    assert sum(parts) == pytest.approx(2 * rows["default", "bundle"]["cold_s"], rel=0.03)
