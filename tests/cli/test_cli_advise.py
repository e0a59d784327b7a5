"""`effbench advise` over a database of known figures."""

import json

import pytest
from made_sweeps import MIB, a_cell, copied

from effbench.cli.advise import byte_size
from effbench.core.settings import shipped

SIZES = (1, 4, 16, 64)
#: ms of a call, MiB of its pool, seconds of preparation, by mode.
MODES = {
    "eager": (lambda bs: 4.0, None, None),
    "cuda-graph": (lambda bs: 1.0 + bs / 16, lambda bs: 2 + bs // 2, None),
    "default": (lambda bs: 3.0 + bs / 1000, None, 10.0),
}


def figures(one):
    ms, pool, compile_s = MODES[one.mode_name]
    calls = [ms(one.bs) * factor for factor in (0.99, 1.0, 1.01)]
    values = {"latency_ms": calls, "period_ms": [call / 2 for call in calls], "first_call_s": 0.5}
    values |= {
        "peak_reserved_bytes": (one.bs + 10) * MIB,
        "graph_pool_bytes": pool and pool(one.bs) * MIB,
    }
    return values | {
        "compile_s": compile_s,
        "compile_cache": compile_s and ["cold", "warm", "warm"],
    }


@pytest.fixture(scope="module")
def db(empty_db, tmp_path_factory):
    """Three modes at four sizes, two failures, and a stream that is no point of any curve."""
    stream = {"name": "uniform", "samples_per_call": 2.0, "sizes": [1, 3]}
    measured = [a_cell(mode, "net", bs) for bs in SIZES for mode in MODES]
    measured.append(a_cell("cuda-graph", "net", 3, stream=stream))
    failed = (
        {"status": "oom", "reason": "out of memory"},
        {"status": "incorrect", "reason": "off by 2"},
    )
    cells = {one: figures(one) for one in measured}
    cells |= {
        a_cell("cuda-graph", "net", bs): given for bs, given in zip((128, 30), failed, strict=True)
    }
    made = copied(empty_db, tmp_path_factory.mktemp("advise") / "a.db")
    made.sweep({measured[-1]: figures(measured[-1])}, rounds=3, name="streams")
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
            "mode --bs 1 --memory 10MiB",
            3,
            "left: eager, cuda-graph, default (needs 11.0 MiB of memory",
        ),
        ("mode --bs 128", 3, "cuda-graph (oom: out of memory)"),
        ("mode", 2, "1, 4, 16, 30, 64, 128; choose one with --bs"),
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
            "Run net at bs 1 with cuda-graph: 3.76× (3.68–3.85×) the speed of eager in latency;"
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


def test_one_round_rules_out_no_mode(made, effbench):
    cells = {a_cell(mode, "net"): {"latency_ms": [ms]} for mode, ms in TIMES.items()}
    made.sweep(cells, rounds=1)
    words = ("advise", "mode", "--db", str(made.path), "--format", "json")
    found = json.loads(effbench(*words).out)
    assert found["mode"] == "cuda-graph" and len(found["too_close_to_call"]) == 2
    assert "but too few rounds to rule out default, eager" in found["answer"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("2KiB", 2048), ("1.5GB", 1_500_000_000), ("1 TiB", 2**40)],
)
def test_byte_sizes(text, size):
    assert byte_size(text) == size


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
        (["eager"], "cuda-graph", "not compared, because the host was disturbed: eager"),
        # the last resort
        ([*TIMES], "cuda-graph", "its figure is marked (host disturbed); measure again"),
    ],
)
def test_marked_figures(made, effbench, marked, mode, said):
    cells = {}
    for name, ms in TIMES.items():
        times = [ms, ms * 1.001, ms * 1.002]
        figures = {"latency_ms": times, "period_ms": times}
        cells[a_cell(name, "net")] = figures | ({"disturbance": BUSY} if name in marked else {})
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


MODEL = (
    "advise",
    "mode",
    "tiny",
    "bs=2",
    "mode=eager,twin,cuda-graph",
    "protocol.budget_s=0.2",
    "protocol.min_time_s=0.02",
    "protocol.warmup_s=0.02",
    "protocol.host_tolerance=1000",
    "device=cpu",
    "--config-dir=conf",
    "--format=json",
)


@pytest.fixture(scope="module")
def measured(cli_in, tmp_path_factory):
    """A folder in which the model was measured, and the answer."""
    folder = tmp_path_factory.mktemp("advise") / "here"
    modes = folder / "conf" / "mode"
    modes.mkdir(parents=True)
    (modes / "twin.yaml").write_text("name: twin\n_target_: effbench.modes.eager.Eager\n")
    cli = cli_in(folder)
    done = cli.run(*MODEL)
    assert done.code == 0, done
    cli.answer = json.loads(done.out)
    return cli


def test_a_model_is_measured_once(measured):
    answer = measured.answer
    assert answer["is_new"]
    assert answer["answer"].startswith(f"Run tiny at bs 2 with {answer['mode']}: ")
    trials = {mode["mode"]: mode["trials"] for mode in answer["modes"]}
    assert trials == {"eager": 3, "twin": 3}
    assert "needs CUDA" in answer["excluded"]["cuda-graph"]
    matrix = "effbench -m model=tiny --config-dir=conf bs=2 mode=eager,twin,cuda-graph"
    assert answer["commands"][0].startswith(matrix)
    again = json.loads(measured.run(*MODEL).out)
    assert again == answer | {"is_new": False, "measured_at": again["measured_at"]}


def test_a_stored_sweep_gives_the_same_answer(measured):
    answer = measured.answer
    words = ("advise", "mode", "--sweep", answer["sweep"], "--format", "json")
    by_sweep = json.loads(measured.run(*words).out)
    assert by_sweep == {name: answer[name] for name in by_sweep}


def test_a_model_of_a_users_own_folder(cli):
    mine = cli.folder / "mine" / "model" / "score.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(
        (shipped("conf") / "model" / "tiny.yaml").read_text().replace("name: tiny", "name: score")
    )
    words = ("advise", "mode", "score", "bs=2", "mode=eager", "device=cuda")
    assert "unknown model 'score'" in cli.run(*words).err
    assert "no CUDA GPU" in cli.run(*words, "--config-dir", "mine").err


ONE_MODEL = "advise mode measures one model"


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("tiny bs=1,2 mode=eager device=cpu", 2, "one model at one batch size"),
        ("tiny mlp", 2, ONE_MODEL),
        ("tiny model=mlp", 2, ONE_MODEL),
        ("tiny --model mlp", 2, ONE_MODEL),
        ("--fresh", 2, ONE_MODEL),
        ("tinny", 2, "tiny"),
        ("tiny mode=eager device=cuda", 2, "no CUDA GPU"),
        ("--model tiny", 2, "no database"),
    ],
)
def test_refusals_for_a_model(cli, words, code, expected):
    done = cli.run("advise", "mode", *words.split())
    assert (done.code, done.out) == (code, "") and expected in done.err
