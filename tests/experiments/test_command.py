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
    assert (done.code, done.err) == (0, ""), done
    assert "on " in done.out and verdicts(here.db)["wide"]["verdict"] == "refuted"
    with Store.open(here.db, mode="write") as store:  # as after an update that changes no version
        (row,) = store.environments()
        facts = {name: row[name] for name in Environment.__dataclass_fields__}
        twin = store.add_environment(Environment(**facts | {"flags": {"X": "1"}}), {})
    done = here.run("reproduce", "mine.py", *here.tiny3, "--stored", "--quiet")
    assert all(f", environment {name})" in done.out for name in (row["id"], twin)), done.out
    (here.folder / "mine.py").write_text(MINE)
    done = here.run("reproduce", "mine.py", "--stored", "device=cpu")
    assert (
        done.code == 3
        and "4 of 4 cells of the sweep main were not measured with these settings" in done.out
    )
    assert (
        "no complete results" in done.err and "repeat the overrides of the measurement" in done.err
    )


def test_claims(here):
    def claims(*args, own=("--experiment", "mine.py")):
        done = here.run("claims", *own, *args)
        assert (done.code, done.err) == (0, ""), done
        return done.out

    def by_id(*args):
        shipped, mine = (
            json.loads(claims("--format", "json", *args, own=own))
            for own in ((), ("--experiment", "mine.py"))
        )
        assert {"P1", "O1", "S1"} <= {row["claim"] for row in shipped} and len(mine) == 3, (
            "those of the file alone"
        )
        return {row["claim"]: row for row in (*shipped, *mine)}

    rows = by_id()
    assert rows["wide"]["measured"]["unit"] == "×" and rows["wide"]["machine"]
    assert (
        rows["P1"]["reference"]
        and rows["P1"]["machine"] == "NVIDIA H200, torch 2.11.0+cu130 (reference)"
    )
    assert not rows["wide"]["reference"] and "sweeps" not in rows["P1"]["measured"]
    assert claims("--format", "markdown", "--out", "site/claims.md") == ""
    text = (here.folder / "site" / "claims.md").read_text()
    assert (
        "| graph | A CUDA graph is faster. | not measurable here |" in text
        and "| 1.70x elsewhere |" in text
    )
    other = by_id("--gpu", "H200")
    assert (other["wide"]["verdict"], other["wide"]["reason"]) == (
        "not measured yet",
        "effbench reproduce mine.py",
    )
    assert claims("--format", "json", "--experiment", "mine.py").count('"claim": "wide"') == 1, (
        "named twice"
    )
    assert other["P1"] == rows["P1"], "the reference machine has an H200"
    cpu = rows["wide"]["machine"].rpartition(", torch")[0]
    own = by_id("--gpu", cpu)
    assert own["wide"] == rows["wide"]
    assert (own["P1"]["verdict"], own["P1"]["reason"]) == (
        "not measured yet",
        "effbench reproduce small-batches",
    )
    (here.folder / "none.py").write_text(MINE.partition("@Claim")[0])
    done = here.run("claims", "--experiment", "none.py")
    assert (done.code, done.out) == (3, "") and "no claim in none.py" in done.err
    (here.folder / "other").mkdir()
    (here.folder / "other" / "mine.py").write_text(MINE)
    done = here.run("claims", "--experiment", "mine.py", "--experiment", "other/mine.py")
    assert (done.code, done.out) == (2, "") and "need different names" in done.err
    done = here.run("claims", "--gpu", "foo")
    assert (done.code, done.out) == (
        2,
        "",
    ) and "no GPU or CPU has 'foo' in its name; known: " in done.err
    assert (
        "NVIDIA H200" in done.err and rows["wide"]["machine"].rpartition(", torch")[0] in done.err
    )


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


def test_mistakes(here):
    for words, said in (
        ("reproduce nowhere.py", "cannot read the experiment nowhere.py"),
        ("reproduce storage --fresh --stored", "not allowed with"),
        ("reproduce storage bss=4", "reproduce takes no setting 'bss': did you mean bs?"),
        ("reproduce mine.py resume=last", "takes no setting 'resume'"),
        ("reproduce mine.py python=/usr/bin/python3", "takes no setting 'python'"),
        ("reproduce storage --stored --db nowhere.db", "nowhere.db"),
        ("claims --db nowhere.db", "nowhere.db"),
        ("claims --format xml", "invalid choice: 'xml'"),
    ):
        done = here.run(*words.split())
        assert done.code == 2 and said in done.err, done
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


@pytest.mark.slow
def test_without_a_gpu_the_shipped_checks_observe_what_they_observed_beside_one(here):
    names = [
        one.name for one in load_all() if not one.sweeps or all(claim.needs for claim in one.claims)
    ]
    names = [name for name in names if name not in ("warmup-calls", "habits")]  # of times
    done = here.run("reproduce", *names, "--db", "all.db", "--quiet", "device=cpu")
    assert (done.code, done.err) == (0, ""), done
    assert "not measured yet" not in done.out
    assert (
        "S16 Inductor does not need Triton: undecided · holds for the CPU; not measured for a GPU ("
        in done.out
    )
    expected = {row["claim"]: row for row in json.loads(REFERENCE.read_text())}
    rows = verdicts(here.folder / "all.db")
    cpu, before = (
        found["S16"]["measured"]["evidence"]["triton"]["facts"]["cpu"] for found in (rows, expected)
    )
    assert truths(cpu) == truths(before)
    judged = {
        claim
        for claim, row in rows.items()
        if row["verdict"] in ("confirmed", "refuted", "depends")
    }
    assert judged == {"O9", "O10", "S5", "S6", "S7", "S8", "S9", "S10", "S12", "S14", "S17", "S18"}
    for claim in judged:
        found, known = rows[claim], expected[claim]
        assert (found["verdict"], found["reason"]) == (known["verdict"], known["reason"]), claim
        found, known = found["measured"], known["measured"]
        assert truths(found["evidence"]) == truths(known["evidence"]), claim
        assert claim not in ("S6", "S7", "S12") or found["also"] == known["also"], claim
