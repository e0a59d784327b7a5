"""`effbench advise` over a database of known figures."""

import json

import pytest
from made_sweeps import MIB, a_cell, copied

from effbench.analysis.advice import rows_at
from effbench.analysis.predict import shipped as shipped_fit
from effbench.core.settings import shipped
from effbench.render.advice import prediction_advice
from effbench.store import Store


def figures(ms):
    """Of a mode whose calls take this long."""
    calls = [ms * factor for factor in (0.99, 1.0, 1.01)]
    return {"latency_ms": calls, "first_call_s": 0.5, "peak_reserved_bytes": 11 * MIB}


@pytest.fixture(scope="module")
def db(empty_db, tmp_path_factory):
    """Two modes at two sizes, a failure, and a sweep of a stream."""
    made = copied(empty_db, tmp_path_factory.mktemp("advise") / "a.db")
    stream = {"name": "uniform", "samples_per_call": 2.0, "sizes": [1, 3]}
    made.sweep([a_cell("cuda-graph", "net", 3, stream=stream)], rounds=3, name="streams")
    cells = {a_cell("cuda-graph", "net", 128): {"status": "oom", "reason": "out of memory"}}
    for bs, ms in ((1, 1.0625), (64, 5.0)):
        cells[a_cell("eager", "net", bs)] = figures(4.0)
        cells[a_cell("cuda-graph", "net", bs)] = figures(ms)
    made.sweep(cells, rounds=3)
    return str(made.path)


@pytest.fixture
def advise(db, effbench):
    def run(*words, code=0):
        done = effbench("advise", words[0], "--db", db, *words[1:])
        assert done.code == code, done
        return done.out if code == 0 else done.err

    return run


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("mode --model other --sweep last", 3, "measured models: net"),
        ("mode --sweep streams", 3, "run a sweep without stream, as in bs=1,8,64"),
        (
            "mode --bs 1 --memory 0.01",
            3,
            "left: eager (needs 11.0 MiB of memory, more",
        ),
        ("mode --bs 128", 3, "cuda-graph (oom: out of memory)"),
        ("mode", 2, "1, 64, 128; choose one with --bs"),
        ("mode --bs 2", 3, "bs=2 was not measured"),
    ],
)
def test_refusals(advise, words, code, expected):
    assert expected in advise(*words.split(), code=code)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--bs 1 --calls 100",
            "Run net at bs 1 with cuda-graph: 3.76× (3.68–3.85) the speed of eager in latency;"
            " preparation takes 0.5 s; lowest latency over 100 calls including preparation.",
        ),
        (
            "--bs 64 --calls 1000",
            "Run net at bs 64 with eager: preparation takes 0.5 s; lowest latency over 1,000 calls"
            " including preparation.",
        ),
    ],
)
def test_the_sentence(advise, words, sentence):
    assert json.loads(advise("mode", *words.split(), "--format", "json"))["answer"] == sentence


BUSY = "host busy for 80 % of the timing"
TIMES = {"eager": 4.0, "cuda-graph": 1.0, "default": 2.0}


@pytest.mark.parametrize(
    ("marked", "mode", "said"),
    [
        ([], "cuda-graph", "lowest latency."),
        (
            ["cuda-graph"],
            "default",
            "lowest latency; not compared, because the host was disturbed: cuda-graph; measure",
        ),
        (["eager"], "cuda-graph", "~4.00× ("),  # a gain over a marked baseline is marked
        # the last resort
        ([*TIMES], "cuda-graph", "its figure is marked (host disturbed); measure again"),
    ],
)
def test_marked_figures(made, effbench, marked, mode, said):
    cells = {}
    for name, ms in TIMES.items():
        times = [ms, ms * 1.001, ms * 1.002]
        cells[a_cell(name, "net")] = {"latency_ms": times, "period_ms": times}
    for name in marked:
        cells[a_cell(name, "net")]["disturbance"] = BUSY
    made.sweep(cells, rounds=3)
    words = ("advise", "mode", "--db", str(made.path))
    found = json.loads(effbench(*words, "--format", "json").out)
    assert (found["mode"], found["marked"]) == (mode, dict.fromkeys(marked, BUSY))
    assert said in found["answer"]
    assert ("~" in effbench(*words).out) is bool(marked), "the figures are shown"


def test_the_sweep_with_most_unmarked_results_of_a_model_answers(made, effbench):
    def sweep(rounds, modes=("eager", "default"), **more):
        return made.sweep({a_cell(mode, "net"): more for mode in modes}, rounds=rounds)

    quiet = sweep(3)
    sweep(1)
    sweep(5, disturbance=BUSY)
    sweep(5, modes=["eager"])
    done = effbench("advise", "mode", "--model", "net", "--db", str(made.path))
    assert f"nothing was measured (cuda, bfloat16): sweep {quiet}" in done.out
    missing = effbench("advise", "mode", "--model", "mlp", "--db", str(made.path))
    assert missing.code == 3
    assert "no ok result of mlp in a completed sweep; `effbench advise mode mlp`" in missing.err


ANSWER = ("advise", "mode", "score", "bs=2", "mode=eager,twin,cuda-graph", "--config-dir=conf")


@pytest.fixture(scope="module")
def measured(cli_in, tmp_path_factory):
    """A folder in which a model of its own was measured, and the answer."""
    cli = cli_in(tmp_path_factory.mktemp("advise"))
    conf = cli.folder / "conf"
    for group in ("model", "mode"):
        (conf / group).mkdir(parents=True)
    tiny = (shipped("conf") / "model" / "tiny.yaml").read_text()
    (conf / "model" / "score.yaml").write_text(tiny.replace("name: tiny", "name: score"))
    (conf / "mode" / "twin.yaml").write_text("name: twin\n_target_: effbench.modes.eager.Eager\n")
    quick = cli.tiny[1:]  # with the command's own protocol
    cli.answer = json.loads(cli.run(*ANSWER, *quick, "--format=json").out)
    return cli


def test_a_model_is_measured(measured):
    answer = measured.answer
    assert answer["answer"].startswith(f"Run score at bs 2 with {answer['mode']}: ")
    trials = {mode["mode"]: mode["trials"] for mode in answer["modes"]}
    assert trials == {"eager": 3, "twin": 3}
    assert "needs CUDA" in answer["excluded"]["cuda-graph"]


ONE_MODEL = "advise mode measures one model"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tiny bs=1,2 mode=eager device=cpu", "one model at one batch size"),
        ("tiny mlp", ONE_MODEL),
        ("tiny --model mlp", ONE_MODEL),
        ("tinny", "tiny"),
        ("tiny mode=eager device=cuda", "torch sees no GPU"),
        ("--model tiny", "no database"),
    ],
)
def test_refusals_for_a_model(cli, words, expected):
    done = cli.run("advise", "mode", *words.split())
    assert (done.code, done.out) == (2, "") and expected in done.err


def test_without_a_gpu_nothing_is_predicted(measured):
    words = ("advise", "mode", "score", "bs=2", "--predict", "--config-dir=conf")
    done = measured.run(*words, *measured.tiny[1:], "dtype=float32")
    assert done.code == 3
    reason = "no prediction: it was fitted on calls of inference in bfloat16 on one NVIDIA"
    assert reason in done.err
    assert done.err.endswith("\nomit --predict to measure the modes\n")


def test_predictions_are_printed(made):
    cell = a_cell("eager", "net")
    kernels = [{"name": "nvjet_64x8", "count": 8.0, "ms": 0.9}]
    figures = {"enqueue_ms": 0.3, "latency_ms": 4.0, "extra": {"profile": {"top": kernels}}}
    sweep_id = made.sweep({cell: figures}, rounds=1)
    with Store.open(made.path) as store:
        eager = rows_at(store.results(sweep_id))[0]
        found = prediction_advice(eager, shipped_fit().predict(eager, store.trials(sweep_id)[-1]))
    assert found.answer.startswith("net at bs 8: compile+graph is predicted to have 4.25× (")
    assert "may be faster." in found.answer
    assert [*found.data["modes"][0]] == ["mode", "latency", "speedup"]


@pytest.mark.parametrize("word", ["mode=eager", "--calls=9", "--memory=1", "--metric=period"])
def test_predictions_are_of_latencies_from_eager(cli, word):
    done = cli.run("advise", "mode", "tiny", "--predict", word)
    assert done.code == 2 and "omit mode=, --calls, --memory, --metric" in done.err
