"""`effbench reproduce` and `effbench claims` as a user types them, without a GPU."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from effbench.claims import run as running
from effbench.claims.definition import find
from effbench.store import Store

REFERENCE = Path(__file__).parents[2] / "experiments" / "verdicts-h200.json"
MINE = '''"""Does a wider layer cost [more] :boom:?"""

from effbench.claims import Answer, Claim, geomean, interval, mean, ratio, where
from effbench.claims.checks import check

GPU_SECONDS = 5
SWEEPS = {
    "main": [
        "model=tiny",
        "model.module.width=16,512",
        "bs=64",
        "mode=eager,cuda-graph",
        "protocol.rounds=2",
    ]
}


@check()
def counted(device, start=3):
    return {"numbers": [start, start + 1], "none": None, "inner": {"a": {"x": 1}, "b": {"x": 2}}}


@Claim("wide", "A wider layer [of 512] is slower.", unit="×")
def wide(rows):
    slowdown = interval(ratio(where(rows, mode="eager"), "latency_ms", width=[512, 16]))
    also = {"largest": rows.bs.max(), "all of them": rows.latency_ms}
    return Answer(slowdown.above(1), slowdown, also)


@Claim("graph", "A CUDA graph is faster.", published="1.70x elsewhere")
def graph(main):
    return geomean(where(main, mode="cuda-graph").speedup).above(1)


@Claim("both", "Yes [and] no")
def both(rows):
    return Answer({"yes": True, "no": False})


@Claim("counts", "It counts")
def counts(counted):
    value = mean(counted.numbers) * 2
    also = {"x": [part.x for part in counted.inner.values()], "none": counted.none}
    return Answer(value.within(7, 7), value, also)


about = Claim("about", "Words", not_measurable="it is about words")


@Claim("gpu", "Of GPUs", needs="cuda")
def of_gpus(rows):
    return True


@Claim("pair", "Of two", needs="two GPUs")
def of_two(rows):
    return True
'''
CHECKED = '''"""Why?"""

from effbench.claims import Claim
from effbench.claims.checks import check

GPU_SECONDS = 1


@check()
def boom(device):
    {body}


@Claim("c", "a :fire:")
def c(boom):
    return boom.ok
'''


@pytest.fixture(scope="module")
def here(cli_in, tmp_path_factory):
    cli = cli_in(tmp_path_factory.mktemp("here"), imports=False)
    cli.env["CUDA_VISIBLE_DEVICES"] = ""
    (cli.folder / "mine.py").write_text(MINE)
    cli.tiny3 = [*cli.tiny, "protocol.rounds=3"]
    cli.done = cli.run("reproduce", "mine.py", *cli.tiny3)
    return cli


def verdicts(db):
    with Store.open(db) as store:
        return {row["claim"]: row for row in store.verdicts()}


def test_verdicts_are_printed_and_kept(here):
    assert (here.done.code, here.done.err) == (0, ""), here.done
    for text in (
        "mine: Does a wider layer cost [more] :boom:?",
        "wide A wider layer [of 512] is slower: ",
        "graph A CUDA graph is faster: not measurable here · unsupported: tiny",
        "both Yes [and] no: depends · holds for yes; not for no",
        "counts It counts: confirmed",
        "about Words: not measurable here · it is about words",
        f"gpu Of GPUs: not measurable here · {running.NO_CUDA}",
        f"pair Of two: not measurable here · {running.NO_SECOND_GPU}",
    ):
        assert text in here.done.out, text
    assert verdicts(here.db).keys() == {"wide", "graph", "both", "counts", "about", "gpu", "pair"}


def test_what_is_stored_of_a_claim_about_rows(here):
    row = verdicts(here.db)["wide"]
    facts = row["measured"]
    # a busy machine may say anything
    assert row["verdict"] in ("confirmed", "refuted", "undecided")
    assert facts["low"] < facts["value"] < facts["high"]
    assert facts["sweeps"] == [row["sweep_id"]]
    assert facts["evidence"] == {}
    assert facts["also"]["largest"] == 64
    assert len(facts["also"]["all of them"]) == 4


def test_what_is_stored_of_other_claims(here):
    rows = verdicts(here.db)
    assert rows["both"]["measured"]["parts"] == [
        {"label": "yes", "holds": True},
        {"label": "no", "holds": False},
    ]
    assert rows["counts"]["sweep_id"] is None, "it rests on a check alone"
    assert rows["counts"]["measured"]["also"] == {"x": [1, 2], "none": None}
    assert list(rows["counts"]["measured"]["evidence"]) == ["counted"]


def test_the_sweep_is_named(here):
    (sweep_id,) = verdicts(here.db)["wide"]["measured"]["sweeps"]
    assert here.done.out.endswith(f"sweeps: {sweep_id}\n")
    assert " mine " in here.run("ls").out


def test_ctrl_c_judges_nothing(here, monkeypatch):
    interrupted = SimpleNamespace(state="interrupted")
    monkeypatch.setattr(running, "hydra_sweep", lambda *args: interrupted)
    before = verdicts(here.db)
    assert here.run("reproduce", "mine.py", *here.tiny3).code == 130
    assert verdicts(here.db) == before


@pytest.fixture
def claims(here):
    def run(*args, code=0):
        done = here.run("claims", *args)
        assert (done.code, done.err == "") == (code, code == 0), done
        return done.err if code else done.out

    return run


@pytest.fixture
def records(claims):
    """Return all records by claim."""

    def load():
        return {row["claim"]: row for row in json.loads(claims("--format", "json"))}

    return load


def test_own_claims(here, records):
    listed = records()
    assert {"P1", *verdicts(here.db)} <= listed.keys(), "they are listed with the shipped ones"
    assert listed["wide"]["measured"]["unit"] == "×"
    assert listed["wide"]["statement"] == "A wider layer [of 512] is slower."
    assert listed["graph"]["published"] == "1.70x elsewhere"


def test_shipped_claims(records):
    shipped = records()
    assert {"P1", "O1", "S1"} <= shipped.keys()
    assert shipped["P1"]["reference"]
    assert "sweeps" not in shipped["P1"]["measured"]
    assert shipped["P1"]["machine"] == "NVIDIA H200, torch 2.11.0+cu130 (reference)"


def test_a_mistake_and_a_failed_check_cost_themselves_alone(here):
    (here.folder / "raises.py").write_text(CHECKED.replace("{body}", "raise ValueError('no')"))
    (here.folder / "wrong.py").write_text(MINE.replace("model=tiny", "model=tinny"))
    (here.folder / "typo.py").write_text(CHECKED.replace("{body}", "return {'okay': True}"))
    words = ("raises.py", "wrong.py", "typo.py", "graph-weights", "operators", "device=cpu")
    done = here.run("reproduce", *words, "db=other.db")
    assert done.code == 2, done
    assert "c a :fire:: not measured yet · error: ValueError: no" in done.out
    assert "not measured yet · it cannot be judged: AttributeError" in done.out
    assert "it needs CUDA, but this runs on cpu" in done.out
    assert "wrong: unknown model 'tinny'" in done.err
    assert "typo.py: claim c: " in done.err
    assert verdicts(here.folder / "other.db").keys() == {"c", "S1", "S14"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("reproduce nowhere.py", "nowhere.py: running it raised FileNotFoundError"),
        ("reproduce bs=4", "no experiment given"),
        ("reproduce storage bss=4", "reproduce takes no setting 'bss'; it takes model, bs, "),
        ("reproduce mine.py resume=last", "takes no setting 'resume'"),
        ("claims --db nowhere.db", "nowhere.db"),
    ],
)
def test_mistakes(here, words, text):
    done = here.run(*words.split())
    assert done.code == 2 and text in done.err, done
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 2


#: Claims that a CPU decides.
JUDGED = ["O9", "O10", "S5", "S6", "S7", "S8", "S9", "S10", "S12", "S14", "S17", "S18"]


@pytest.fixture(scope="module")
def on_cpu(here):
    """The verdicts of the shipped experiments that need no GPU and measure no times."""
    names = [
        experiment.name
        for experiment in find(["all"])
        if not experiment.sweeps or all(claim.needs for claim in experiment.claims)
    ]
    of_times = ("warmup-calls", "habits", "compiled-call")
    names = [name for name in names if name not in of_times]
    done = here.run("reproduce", *names, "--db", "all.db", "--quiet", "device=cpu")
    assert (done.code, done.err) == (0, ""), done
    return verdicts(here.folder / "all.db")


@pytest.mark.slow
def test_without_a_gpu_some_claims_have_the_verdicts_of_the_reference(on_cpu):
    reference = {row["claim"]: row for row in json.loads(REFERENCE.read_text())}
    decided = ("confirmed", "refuted", "depends")
    judged = [claim for claim, row in on_cpu.items() if row["verdict"] in decided]
    assert sorted(judged) == sorted(JUDGED)
    for claim in judged:
        row, known = on_cpu[claim], reference[claim]
        assert (row["verdict"], row["reason"]) == (known["verdict"], known["reason"]), claim
