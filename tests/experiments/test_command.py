"""`effbench reproduce` and `effbench claims` as a user types them, without a GPU."""

import json
from pathlib import Path

import pytest

from effbench.cell import Environment
from effbench.experiments.definition import load_all
from effbench.store import Store

REFERENCE = Path(__file__).parents[2] / "experiments" / "verdicts-h200.json"
MINE = '''"""Does a wider layer cost [more] :boom:?"""

from effbench.experiments import Answer, Claim, Pivot, geomean, interval, ratio, where

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
TABLES = [Pivot("Latency [ms]", "latency_ms", rows=["bs", "width"])]


@Claim("wide", "A wider layer [of 512] is slower.", unit="×")
def wide(rows):
    slowdown = interval(ratio(where(rows, mode="eager"), "latency_ms", width=[512, 16]))
    return slowdown.above(1)


@Claim("graph", "A CUDA graph is faster.", published="1.70x elsewhere")
def graph(main):
    return geomean(where(main, mode="cuda-graph").speedup).above(1)


@Claim("both", "Yes [and] no")
def both(rows):
    return Answer({"yes": True, "no": False})
'''
CHECKED = '''"""Why?"""

from effbench.experiments import Claim
from effbench.experiments.checks import check

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
        "Latency [ms]",
        "wide A wider layer [of 512] is slower: ",
        "graph A CUDA graph is faster: not measurable here · a CUDA graph needs CUDA",
        "both Yes [and] no: depends · holds for yes; not for no",
    ):
        assert text in here.done.out, text
    rows = verdicts(here.db)
    # a busy machine may say anything
    low, high = (rows["wide"]["measured"][name] for name in ("low", "high"))
    assert rows["wide"]["verdict"] == (
        "confirmed" if low > 1 else "refuted" if high <= 1 else "undecided"
    )
    assert low < rows["wide"]["measured"]["value"] < high
    assert rows["graph"]["verdict"] == "not measurable here"


def test_again_nothing_is_measured_and_an_edited_claim_is_judged(here):
    done = here.run("reproduce", "mine.py", *here.tiny3, "--quiet")
    assert done.code == 0 and "4 rows reused (--fresh measures them again)" in done.out
    (here.folder / "mine.py").write_text(MINE.replace("above(1)", "above(10**9)"))
    done = here.run("reproduce", "mine.py", *here.tiny3, "--stored")
    (here.folder / "mine.py").write_text(MINE)
    assert (done.code, done.err) == (0, ""), done
    assert "on " in done.out and verdicts(here.db)["wide"]["verdict"] == "refuted"


def test_stored_results_need_the_settings_of_their_measurement(here):
    done = here.run("reproduce", "mine.py", "--stored", "device=cpu")
    assert done.code == 3
    assert "4 of 4 cells of the sweep main were not measured with these settings" in done.out
    assert "no complete results of these experiments in results/effbench.db" in done.err
    assert "repeat the overrides of the measurement" in done.err


def test_machines_of_the_same_name_show_their_environments(here, tmp_path):
    path = tmp_path / "copy.db"
    path.write_bytes(Path(here.db).read_bytes())
    with Store.open(path, mode="write") as store:  # as after an update that changes no version
        (row,) = store.environments()
        facts = {name: row[name] for name in Environment.__dataclass_fields__}
        twin = store.add_environment(Environment(**facts | {"flags": {"X": "1"}}), {})
    done = here.run("reproduce", "mine.py", *here.tiny3, "--stored", "--quiet", f"db={path}")
    assert f", environment {row['id']})" in done.out and f", environment {twin})" in done.out


@pytest.fixture
def claims(here):
    def run(*args, code=0):
        done = here.run("claims", *args)
        assert (done.code, done.err == "") == (code, code == 0), done
        return done.err if code else done.out

    return run


@pytest.fixture
def records(claims):
    """Records by claim: those of effbench, or of the files alone."""

    def load(*args):
        return {row["claim"]: row for row in json.loads(claims("--format", "json", *args))}

    return load


MINE_ALONE = ("--experiment", "mine.py")


def test_own_claims(claims, records):
    own = records(*MINE_ALONE, *MINE_ALONE)
    assert own.keys() == {"wide", "graph", "both"}, "those of the file alone, each once"
    assert own["wide"]["measured"]["unit"] == "×" and own["wide"]["machine"]
    assert not own["wide"]["reference"]
    elsewhere = records(*MINE_ALONE, "--gpu", "H200")["wide"]
    assert elsewhere["verdict"] == "not measured yet"
    assert elsewhere["reason"] == "effbench reproduce mine.py"


def test_shipped_claims(records):
    shipped = records()
    assert {"P1", "O1", "S1"} <= shipped.keys()
    assert shipped["P1"]["reference"] and "sweeps" not in shipped["P1"]["measured"]
    assert shipped["P1"]["machine"] == "NVIDIA H200, torch 2.11.0+cu130 (reference)"
    assert records("--gpu", "H200")["P1"] == shipped["P1"], "the reference machine has an H200"


def test_claims_of_this_cpu(records):
    wide = records(*MINE_ALONE)["wide"]
    cpu = wide["machine"].rpartition(", torch")[0]
    assert records(*MINE_ALONE, "--gpu", cpu)["wide"] == wide
    unmeasured = records("--gpu", cpu)["P1"]
    assert unmeasured["verdict"] == "not measured yet"
    assert unmeasured["reason"] == "effbench reproduce small-batches"


def test_claims_as_markdown(here, claims):
    assert claims(*MINE_ALONE, "--format", "markdown", "--out", "site/claims.md") == ""
    text = (here.folder / "site" / "claims.md").read_text()
    assert "| graph | A CUDA graph is faster. | not measurable here |" in text
    assert "| 1.70x elsewhere |" in text


def test_claims_that_do_not_exist(here, claims, records):
    (here.folder / "none.py").write_text(MINE.partition("@Claim")[0])
    assert "no claim in none.py" in claims("--experiment", "none.py", code=3)
    (here.folder / "other").mkdir()
    (here.folder / "other" / "mine.py").write_text(MINE)
    error = claims(*MINE_ALONE, "--experiment", "other/mine.py", code=2)
    assert "need different names" in error
    error = claims("--gpu", "foo", code=2)
    assert "no GPU or CPU has 'foo' in its name; known: " in error and "NVIDIA H200" in error
    assert records(*MINE_ALONE)["wide"]["machine"].rpartition(", torch")[0] in error


def test_checks_that_fail_or_are_unsupported(here):
    (here.folder / "raises.py").write_text(CHECKED.replace("{body}", "raise ValueError('no')"))
    done = here.run(
        "reproduce", "raises.py", "--fresh", "graph-weights", "s4", "db=other.db", "device=cpu"
    )
    assert done.code == 0, done
    assert "c a :fire:: not measured yet · error: ValueError: no" in done.out
    assert "weights needs CUDA" in done.out and "4 not measurable here" in done.out
    assert done.out.count("not measurable here · unsupported:") == 4


def test_a_mistake_costs_itself_alone(here):
    (here.folder / "wrong.py").write_text(MINE.replace("model=tiny", "model=tinny"))
    (here.folder / "typo.py").write_text(CHECKED.replace("{body}", "return {'okay': True}"))
    done = here.run("reproduce", "wrong.py", "typo.py", "operators", "db=third.db")
    assert done.code == 2, done
    assert (
        "wrong: unknown model 'tinny'" in done.err
        and "typo.py: claim c: " in done.err
        and "not run" in done.out
    )
    assert verdicts(here.folder / "third.db").keys() == {"c", "S14"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("reproduce nowhere.py", "cannot read the experiment nowhere.py"),
        ("reproduce storage --fresh --stored", "not allowed with"),
        ("reproduce storage bss=4", "reproduce takes no setting 'bss': did you mean bs?"),
        ("reproduce mine.py resume=last", "takes no setting 'resume'"),
        ("reproduce mine.py python=/usr/bin/python3", "takes no setting 'python'"),
        ("reproduce storage --stored --db nowhere.db", "nowhere.db"),
        ("claims --db nowhere.db", "nowhere.db"),
        ("claims --format xml", "invalid choice: 'xml'"),
    ],
)
def test_mistakes(here, words, text):
    done = here.run(*words.split())
    assert done.code == 2 and text in done.err, done
    assert "Traceback" not in done.err and len(done.err.splitlines()) <= 2


def truths(facts, path=""):
    """Dotted name -> value of every fact that is true or false."""
    if isinstance(facts, dict):
        return {
            key: held
            for name in facts
            for key, held in truths(facts[name], f"{path}.{name}").items()
        }
    return {path: facts} if isinstance(facts, bool) else {}


#: Claims that a CPU decides.
JUDGED = ["O9", "O10", "S5", "S6", "S7", "S8", "S9", "S10", "S12", "S14", "S17", "S18"]


@pytest.fixture(scope="module")
def on_cpu(here):
    """The output and the verdicts of the shipped experiments that need no GPU and measure no
    times."""
    names = [
        experiment.name
        for experiment in load_all()
        if not experiment.sweeps or all(claim.needs for claim in experiment.claims)
    ]
    names = [name for name in names if name not in ("warmup-calls", "habits")]  # of times
    done = here.run("reproduce", *names, "--db", "all.db", "--quiet", "device=cpu")
    assert (done.code, done.err) == (0, ""), done
    return done.out, verdicts(here.folder / "all.db")


@pytest.fixture(scope="module")
def expected():
    return {row["claim"]: row for row in json.loads(REFERENCE.read_text())}


@pytest.mark.slow
def test_without_a_gpu_some_claims_are_judged(on_cpu, expected):
    out, rows = on_cpu
    assert "not measured yet" not in out
    undecided = "undecided · holds for the CPU; not measured for a GPU ("
    assert f"S16 Inductor does not need Triton: {undecided}" in out
    cpu, before = (
        found["S16"]["measured"]["evidence"]["triton"]["facts"]["cpu"] for found in (rows, expected)
    )
    assert truths(cpu) == truths(before)
    decided = ("confirmed", "refuted", "depends")
    assert {claim for claim, row in rows.items() if row["verdict"] in decided} == set(JUDGED)


@pytest.mark.slow
@pytest.mark.parametrize("claim", JUDGED)
def test_without_a_gpu_checks_observe_what_they_observed_beside_one(on_cpu, expected, claim):
    row, known = on_cpu[1][claim], expected[claim]
    assert (row["verdict"], row["reason"]) == (known["verdict"], known["reason"])
    measured, before = row["measured"], known["measured"]
    assert truths(measured["evidence"]) == truths(before["evidence"])
    if claim in ("S6", "S7", "S12"):
        assert measured["also"] == before["also"]
