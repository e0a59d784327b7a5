"""`effbench advise` over a database of known figures."""

from __future__ import annotations

import json

import pytest

from effbench import cli
from effbench.analysis.advice import MIB
from effbench.cell import Cell, Environment, Status, Trial
from effbench.commands.advise import byte_size
from effbench.store import Store

SIZES = (1, 4, 16, 64)
#: ms of a call, MiB of its pool, seconds of preparation, by mode.
MODES = {
    "eager": (lambda bs: 4.0, None, None),
    "cuda-graph": (lambda bs: 1.0 + bs / 16, lambda bs: 2 + bs // 2, None),
    "default": (lambda bs: 3.0 + bs / 1000, None, 10.0),
}


def cell(mode, bs, model="net", **more):
    model = {"name": model, "module": {"_target_": "a.Net"}, "inputs": []}
    return Cell(model, bs, {"name": mode, "_target_": f"m.{mode}"}, "float32", "inference", "cpu", **more)


def trial(one, number, noise=0.01, **more):
    ms, pool, compile_s = MODES[one.mode_name]
    factor = 1 + noise * (number - 1)
    values = {"latency_ms": ms(one.bs) * factor, "latency_min_ms": ms(one.bs), "period_ms": ms(one.bs) / 2 * factor,
              "peak_reserved_bytes": (one.bs + 10) * MIB, "first_call_s": 0.5, "latency_samples": 100,
              "graph_pool_bytes": pool and pool(one.bs) * MIB,
              "compile_s": compile_s, "compile_cache": compile_s and ("warm" if number else "cold")}  # fmt: skip
    return Trial(one.key, number, Status.OK, **(values | more))


def fill(path, cells, trials):
    with Store.open(path, mode="write") as store:
        environment = Environment(None, None, None, None, "2.13", None, "3.11", "cpu", "Linux")
        store.add_environment(environment, {})
        sweep = store.begin_sweep(
            name="s", label=None, command=[], overrides=[], protocol={}, baseline_mode="eager", seed=0,
            git_revision=None, host={}, plan=cells, rounds=3,
        )  # fmt: skip
        for one in trials:
            store.record(sweep, environment.id, one)
    return str(path)


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    """Three modes at four sizes, one failure, and a stream that is no point of any curve."""
    cells = [cell(mode, bs) for bs in SIZES for mode in MODES]
    stream = {"name": "uniform", "samples_per_call": 2.0, "sizes": [1, 3]}
    streamed, failed = cell("cuda-graph", 3, stream=stream), cell("cuda-graph", 128)
    trials = [trial(one, number) for one in cells for number in range(3)]
    trials += [trial(streamed, 0), Trial(failed.key, 0, Status.OOM, "in prepare: out of memory")]
    return fill(tmp_path_factory.mktemp("advise") / "a.db", [*cells, streamed, failed], trials)


@pytest.fixture
def advise(db, capsys):
    def run(*words, code=0):
        assert cli.run(["advise", words[0], "--db", db, *words[1:]]) == code
        done = capsys.readouterr()
        return done.out if code == 0 else done.err

    return run


@pytest.fixture
def trace(tmp_path):
    """4 calls of 3 rows, 2 of 16, 1 of 40, 1 of 64."""
    path = tmp_path / "trace.csv"
    path.write_text("bs\n" + "\n".join(map(str, [3, 3, 3, 3, 16, 16, 40, 64])))
    return str(path)


class TestBuckets:
    def test_the_list_and_its_figures(self, advise, trace):
        found = json.loads(advise("buckets", "--trace", trace, "--format", "json"))
        best = found["advised"]
        # 40 and 64 rows as a graph take 3.5 and 5 ms, and a graph above the rest cannot leave 40 to eager's 4 ms
        assert best["sizes"] == [3, 16, 40]
        assert best["latency_ms"] == pytest.approx((4 * (1 + 3 / 16) + 2 * 2 + 3.5 + 4.0) / 8, rel=1e-3)
        assert best["fallbacks"] == pytest.approx(1 / 8)
        assert best["memory_bytes"] == (22 + 3 * 2) * MIB
        others = {one["name"]: one for one in found["others"]}
        assert others["exact"]["sizes"] == [3, 16, 40, 64]
        assert others["exact"]["latency_ms"] == pytest.approx(best["latency_ms"] + 1 / 8, rel=1e-3)
        assert others["no graph"]["latency_ms"] == pytest.approx(4.0, rel=1e-3)
        assert others["powers-of-two"]["padding_waste"] == pytest.approx((4 + 24) / (4 * 4 + 32 + 128))
        assert {"sglang", "sglang-classic", "vllm", "no-padding"} <= set(others)
        assert found["missing"] == ["cuda-graph bs=128: oom (in prepare: out of memory)"]
        assert all(best["latency_ms"] <= one["latency_ms"] for one in others.values())

    def test_a_size_between_that_failed(self, tmp_path, advise, trace):
        cells = [cell(mode, bs) for bs in SIZES for mode in ("eager", "cuda-graph")]
        failed = cell("cuda-graph", 3)
        bad = Trial(failed.key, 0, Status.INCORRECT, "off by 2")
        db = fill(tmp_path / "b.db", [*cells, failed], [*(trial(one, 0) for one in cells), bad])
        found = json.loads(advise("buckets", "--trace", trace, "--format", "json", "--db", db))
        assert 3 not in found["advised"]["sizes"]
        assert found["missing"] == ["cuda-graph bs=3: incorrect (off by 2)"]
        said = advise("buckets", "--trace", trace, "--db", db)
        assert "exact: a graph that failed when it was measured: 3" in said

    def test_a_largest_size_that_failed_needs_no_measuring_again(self, tmp_path, advise):
        path = tmp_path / "large.csv"
        path.write_text("bs\n3\n128\n")
        said = advise("buckets", "--trace", str(path))
        assert "so is the list: bs=128 was measured, and failed" in said
        assert "measure bs=128 first" not in said

    def test_a_budget(self, advise, trace):
        words = ("buckets", "--trace", trace, "--format", "json", "--memory-budget")
        found = json.loads(advise(*words, "14MiB"))["advised"]
        assert found["sizes"] == [3, 16]
        assert found["memory_bytes"] == (10 + 4) * MIB
        private = json.loads(advise(*words, "14MiB", "--pool", "private"))["advised"]
        assert private["sizes"] == [16]
        free = json.loads(advise(*words, "14MiB", "--per-graph", "0"))["advised"]
        assert free["sizes"] == [3, 16]
        assert json.loads(advise(*words, "1MiB"))["advised"]["sizes"] == []

    def test_the_table_says_what_it_rests_on(self, advise, trace):
        said = advise("buckets", "--trace", trace)
        assert "capture: [3, 16, 40]" in said
        assert "net, cuda-graph; trace of 8 calls, sizes 3 to 64" in said
        assert "advised: graph figures between measured sizes: 3, 40" in said
        assert "one pool for all: the largest graph's and 2.00 MiB a graph; no budget" in said
        assert "not measured: cuda-graph bs=128: oom" in said

    def test_markdown(self, advise, trace, tmp_path):
        advise("buckets", "--trace", trace, "--format", "markdown", "--out", str(tmp_path / "out.md"))
        lines = (tmp_path / "out.md").read_text().splitlines()
        assert lines[2].startswith("| capture list | graphs | latency a call |")
        assert lines[4].startswith("| advised | 3 |")

    def test_a_generated_trace_and_the_period(self, advise):
        words = ("buckets", "--stream", "uniform", "low=4", "high=4", "--format", "json")
        assert json.loads(advise(*words))["advised"]["latency_ms"] == pytest.approx(1.25, rel=1e-3)
        assert json.loads(advise(*words, "--metric", "period"))["advised"]["latency_ms"] == pytest.approx(
            0.625, rel=1e-3
        )

    def test_beyond_what_was_measured_it_says_so(self, advise):
        said = advise("buckets", "--stream", "uniform", "low=100", "high=100")
        assert "eager figures above the largest measured size, 64, a guess: 100" in said
        first = "measure bs=100 first, in cuda-graph and without a graph: what a call of 100 rows costs is a guess"
        assert f"{first}, and so is the list" in said
        assert "1.000×" not in said, "no list is ranked against a guess"

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            ("--stream uniform --model other", 3, "no result of other in this sweep; measured models: net"),
            ("--stream uniform --mode compile+graph", 3, "there are: eager, cuda-graph, default"),
            ("--stream uniform --mode default --memory-budget 1GiB", 3, "no memory of graphs was measured"),
            ("--stream none", 2, "none is no trace"),
            ("--stream uniform high", 2, "no KEY=VALUE"),
            ("--stream uniform high=x", 2, "needs a number"),
            ("--stream unifrom", 2, "no kind of stream"),
            ("--trace nowhere.csv", 2, "cannot read the stream nowhere.csv"),
            ("", 2, "one of the arguments --trace --stream is required"),
        ],
    )
    def test_refusals(self, advise, words, code, said):
        assert said in advise("buckets", *words.split(), code=code)


class TestMode:
    def test_by_the_call(self, advise):
        found = json.loads(advise("mode", "--bs", "16", "--format", "json"))
        assert found["best"] == "cuda-graph"
        assert [one["mode"] for one in found["modes"]] == ["cuda-graph", "default", "eager"]
        assert found["modes"][1]["break_even"] == pytest.approx(10_000 / (4 - 3.016), abs=1)
        assert found["too_close_to_call"] == []

    def test_few_calls_pay_nothing_back(self, advise):
        said = advise("mode", "--bs", "1", "--calls", "100")
        assert "run eager" not in said and "run cuda-graph: least latency over 100 calls with its preparation" in said
        said = advise("mode", "--bs", "64", "--calls", "1000")
        assert "run eager" in said
        assert "default is faster a call; from" in said

    def test_memory_and_what_is_out(self, advise):
        said = advise("mode", "--bs", "1", "--memory", "10MiB", code=3)
        assert "cuda-graph needs more memory than allowed" in said
        assert "out: cuda-graph (oom: in prepare: out of memory)" in advise_out(advise)

    def test_several_sizes(self, advise):
        assert "several batch sizes were measured: 1, 4, 16, 64, 128; choose one" in advise("mode", code=2)
        assert "bs=2 was not measured" in advise("mode", "--bs", "2", code=3)
        assert "no number of calls" in advise("mode", "--bs", "1", "--calls", "0", code=2)


def advise_out(advise):
    """At a size where one mode only failed there is nothing left: the reason is the error."""
    said = advise("mode", "--bs", "128", code=3)
    return said.replace("no mode is left: cuda-graph oom: in prepare", "out: cuda-graph (oom: in prepare").strip() + ")"


def test_too_close_to_call(tmp_path, capsys):
    cells = [cell("eager", 1), cell("default", 1)]
    trials = [trial(cells[0], number, noise=0.2) for number in range(3)]
    trials += [trial(cells[1], number, latency_ms=3.9 + number / 100) for number in range(3)]
    db = fill(tmp_path / "a.db", cells, trials)
    assert cli.run(["advise", "mode", "--db", db]) == 0
    said = capsys.readouterr().out
    assert "no significant winner: " in said
    assert "eager has the least preparation of them" in said


def test_several_models_are_told_apart(tmp_path, capsys):
    cells = [cell("eager", 1), cell("eager", 1, model="other")]
    db = fill(tmp_path / "a.db", cells, [trial(one, 0) for one in cells])
    assert cli.run(["advise", "mode", "--db", db]) == 2
    assert "several fit: net; other" in capsys.readouterr().err
    assert cli.run(["advise", "mode", "--db", db, "--model", "other"]) == 0
    assert "2% decides what is too close" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("2KiB", 2048), ("1.5GB", 1_500_000_000), ("4M", 4 * MIB), ("1 TiB", 2**40)]
)
def test_byte_sizes(text, size):
    assert byte_size(text) == size


@pytest.fixture
def little(tmp_path):
    """Eager at 1, 2 and 3 rows, a graph at 2 alone, with figures by which going on in a line flatters the graph."""
    cells = [cell("eager", 1), cell("eager", 2), cell("eager", 3), cell("cuda-graph", 2)]
    trials = [trial(one, 0) for one in cells]
    return fill(tmp_path / "little.db", cells, trials)


def test_a_list_that_rests_on_a_guess_is_not_ranked(little, tmp_path, capsys):
    (tmp_path / "trace").write_text("1\n3\n")
    words = ["advise", "buckets", "--trace", str(tmp_path / "trace"), "--db", little]
    assert cli.run(words) == 0
    said = capsys.readouterr().out
    assert "measure bs=" not in said, "the advised list itself rests on what was measured"
    assert "a guess: not ranked, as it rests on figures above the largest measured size" in said
    assert cli.run([*words, "--format", "markdown"]) == 0
    ratios = {line.split(" | ")[0][2:]: line for line in capsys.readouterr().out.splitlines() if " ms " in line}
    assert "1.000×" in ratios["advised"]
    assert "a guess" in ratios["exact"] and "×" not in ratios["exact"]
    assert "a guess" in ratios["sglang-classic"]
    assert cli.run([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["advised"]["guessed"] == []
    assert {one["name"]: one["guessed"] for one in found["others"]}["exact"] == [3]


def test_a_trace_above_all_that_was_measured(tmp_path, capsys):
    cells = [cell("eager", 2), cell("cuda-graph", 2)]
    db = fill(tmp_path / "a.db", cells, [trial(one, 0) for one in cells])
    (tmp_path / "trace").write_text("1\n3\n")
    assert cli.run(["advise", "buckets", "--trace", str(tmp_path / "trace"), "--db", db]) == 0
    said = capsys.readouterr().out
    assert "measure bs=3 first, in cuda-graph and without a graph" in said
    assert "×" not in said
