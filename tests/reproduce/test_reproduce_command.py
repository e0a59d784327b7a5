"""`effbench reproduce` and `effbench claims` as a user types them, without a GPU."""

from __future__ import annotations

import json
import shlex
import signal
import time

import pytest

from effbench.commands import reproduce
from effbench.commands.parser import Parser
from effbench.reproduce.experiment import load_all
from effbench.store import Store

MINE = """
question: Does a wider layer cost more?
gpu_seconds: 5
names: {width: model.module.width}
sweeps:
  main: [model=tiny, "model.module.width=16,512", "bs=64", "mode=eager,cuda-graph"]
tables:
  - {title: "Latency [ms]", rows: [bs, width], value: latency_ms}
claims:
  wide:
    text: A wider layer [of 512] is slower.
    value: only(relative(latency_ms, 'width', 512)[width == 16 and trials > 0])
    unit: ×
    holds: value > 1
  graph:
    text: A CUDA graph is faster.
    holds: all(speedup[mode == 'cuda-graph'] > 1)
    published: 1.70x elsewhere
"""


@pytest.fixture(scope="module")
def here(cli_in, tmp_path_factory):
    cli = cli_in(tmp_path_factory.mktemp("here"))
    cli.env["CUDA_VISIBLE_DEVICES"] = ""
    (cli.folder / "mine.yaml").write_text(MINE.replace("[width == 16 and", "[mode == 'eager' and width == 16 and"))
    cli.done = cli.run("reproduce", "mine.yaml", *cli.tiny, "protocol.rounds=3")
    return cli


def test_verdicts_are_printed_and_kept(here):
    assert here.done.code == 0, here.done
    assert here.done.err == ""
    assert "mine: Does a wider layer cost more?" in here.done.out
    assert "Latency [ms]" in here.done.out
    assert "wide A wider layer [of 512] is slower.: " in here.done.out
    assert "graph A CUDA graph is faster.: not measurable here · a CUDA graph needs CUDA" in here.done.out
    with Store.open(here.db) as store:
        rows = {row["claim"]: row for row in store.verdicts()}
        (sweep,) = store.sweeps()
    low, high = (rows["wide"]["measured"][name] for name in ("low", "high"))  # a busy machine may say anything
    said = "confirmed" if low > 1 else "refuted" if high <= 1 else "undecided"
    assert rows["wide"]["verdict"] == said
    assert low < rows["wide"]["measured"]["value"] < high
    assert rows["wide"]["sweep_id"] == sweep.id
    assert rows["graph"]["verdict"] == "not measurable here"


@pytest.mark.slow
def test_without_a_gpu_the_shipped_evidence_is_judged_and_the_rest_is_unsupported(here):
    """Of the evidence those that have parts for a GPU alone; tests of evidence run every piece."""
    names = [one.name for one in load_all() if one.needs == "cuda"] + ["inductor", "graph-limits", "graph-weights"]
    done = here.run("reproduce", *names, "--db", "all.db", "--quiet", "device=cpu")
    assert (done.code, done.err) == (0, ""), done
    assert "not measured yet" not in done.out
    assert "S16 Inductor does not need Triton.: undecided · holds for the CPU; not measured for a GPU (" in done.out


def test_options_stand_anywhere_and_a_protocol_brings_its_own_settings(here):
    text = MINE.replace(
        '"mode=eager,cuda-graph"', "mode=eager, protocol.rounds=3, protocol.budget_s=3, protocol.enough_interval=0.5"
    )
    (here.folder / "rounds.yaml").write_text(text.replace("wide:", "wide2:").replace("graph:", "graph2:"))
    done = here.run("reproduce", "rounds.yaml", "--db", "rounds.db", *here.tiny, "protocol.budget_s=0.1")
    assert done.code == 0, done
    assert "give it again to keep it): protocol.rounds=3, protocol.enough_interval=0.5" in done.out
    with Store.open(here.folder / "rounds.db") as store:
        (sweep,) = store.sweeps()
    assert (sweep.rounds, sweep.protocol["name"]) == (1, "quick")
    assert sweep.protocol["budget_s"] == 0.1, "what the user gives stays"


def test_names_stay_as_they_are_written(here):
    (here.folder / "own.py").write_text("def boom(device):\n    raise ValueError('no')\n")
    (here.folder / "named.yaml").write_text(
        "question: 'q :boom: [b]'\ngpu_seconds: 1\nevidence: {a: {_target_: own.py:boom}}\n"
        "claims: {c: {text: 'a :fire:', holds: evidence.a.ok}}\n"
    )
    done = here.run("reproduce", "named.yaml", "--db", "named.db")
    assert done.code == 0, done
    assert "named: q :boom: [b]" in done.out
    assert "error boom: ValueError: no" in done.out
    assert "c a :fire:: not measured yet" in done.out


@pytest.mark.slow
def test_ctrl_c_while_evidence_is_gathered(here):
    (here.folder / "waits.py").write_text(
        "import pathlib, time\n\n\ndef waits(device):\n    pathlib.Path('began').touch()\n    time.sleep(120)\n"
    )
    (here.folder / "waiting.yaml").write_text(
        "question: q\ngpu_seconds: 1\nevidence: {a: {_target_: waits.py:waits}}\n"
        "claims: {c: {text: t, holds: evidence.a.ok}}\n"
    )
    process = here.start("reproduce", "waiting.yaml", "--db", "waiting.db")
    deadline = time.monotonic() + 60
    while not (here.folder / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "go on with: effbench reproduce waiting.yaml --db waiting.db" in out


def test_a_verdict_tells_what_was_asked_otherwise(here):
    asked = [word for word in here.tiny if not word.startswith("device=")]
    done = here.run("reproduce", "mine.yaml", *here.tiny, "protocol.rounds=3", "bs=32", "--db", "asked.db", "--quiet")
    assert done.code == 0, done
    told = here.run("claims", "--db", "asked.db", "--experiment", "mine.yaml", "--format", "json")
    (wide,) = [one for one in json.loads(told.out) if one["claim"] == "wide"]
    assert wide["reason"].endswith(f"; asked with {' '.join(asked)} protocol.rounds=3 bs=32"), wide["reason"]
    assert "bs=32" in wide["measured"]["overrides"]


@pytest.mark.parametrize("name", ["storage", "small-batches"])
def test_a_setting_that_no_sweep_would_refuse(here, name):
    done = here.run("reproduce", name, "bss=4", "--quiet", "--db", "none.db")
    assert (done.code, done.err.strip()) == (
        2, "effbench: unknown setting 'bss': did you mean bs?; effbench --help lists all settings"
    ), done  # fmt: skip


def test_again_nothing_is_measured(here):
    done = here.run("reproduce", "mine.yaml", *here.tiny, "protocol.rounds=3", "--quiet")
    assert done.code == 0, done
    assert "4 rows were measured before (--fresh measures them anew)" in done.out
    assert "Latency" not in done.out
    with Store.open(here.db) as store:
        assert len(store.sweeps()) == 1


def ledger(here, *args):
    done = here.run("claims", "--experiment", "mine.yaml", *args)
    assert (done.code, done.err) == (0, ""), done
    return done.out


def test_the_ledger(here):
    rows = {row["claim"]: row for row in json.loads(ledger(here, "--format", "json"))}
    assert {"P1", "O1", "S1", "wide", "graph"} <= rows.keys()
    assert rows["wide"]["measured"]["unit"] == "×"
    assert rows["wide"]["machine"]
    assert (rows["P1"]["verdict"], rows["P1"]["reason"]) == ("not measured yet", "effbench reproduce small-batches")
    table = ledger(here)
    assert "A CUDA graph is faster." in " ".join(table.split())
    markdown = ledger(here, "--format", "markdown", "--out", "site/claims.md")
    assert markdown == ""
    text = (here.folder / "site" / "claims.md").read_text()
    assert "| graph | A CUDA graph is faster. | not measurable here |" in text
    assert "- graph: 1.70x elsewhere" in text
    other = {row["claim"]: row for row in json.loads(ledger(here, "--format", "json", "--gpu", "H200"))}
    assert other["wide"]["verdict"] == "not measured yet"


def test_the_ledger_before_anything_was_measured(cli):
    done = cli.run("claims", "--format", "json")
    assert done.code == 0, done
    assert {row["verdict"] for row in json.loads(done.out)} == {"not measured yet", "not measurable here"}
    assert list(cli.folder.iterdir()) == []


def test_the_list_of_experiments(cli):
    done = cli.run("reproduce")
    assert done.code == 0, done
    assert "graph-weights" in done.out
    assert "minutes of one GPU" in done.out


def test_unsupported_evidence_is_an_answer(here):
    done = here.run("reproduce", "graph-weights", "s4", "db=other.db")
    assert done.code == 0, done
    assert "weight_updates needs CUDA" in done.out
    assert done.out.count("not measurable here · unsupported:") == 4
    assert "4 not measurable here" in done.out
    with Store.open(here.folder / "other.db") as store:
        assert {row["verdict"] for row in store.verdicts()} == {"not measurable here"}


@pytest.mark.parametrize(
    "words, said",
    [
        (["reproduce", "graph-wieghts"], "no experiment 'graph-wieghts'; nearest: graph-weights"),
        (["reproduce", "nowhere.yaml"], "cannot read the experiment nowhere.yaml"),
        (["reproduce", "--fresh"], "which experiment?"),
        (["reproduce", "--stored"], "which experiment?"),
        (["reproduce", "protocol=quick"], "which experiment?"),
        (["claims", "--experiment", "nowhere.yaml"], "cannot read the experiment nowhere.yaml"),
        (["claims", "--db", "nowhere.db"], "nowhere.db"),
        (["claims", "--format", "xml"], "invalid choice: 'xml'"),
    ],
    ids=" ".join,
)
def test_mistakes(here, words, said):
    done = here.run(*words)
    assert done.code == 2, done
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_sweep_that_means_nothing_here_has_no_table(here):
    (here.folder / "gpus.yaml").write_text(
        "question: x?\ngpu_seconds: 1\nsweeps: {one: [model=tiny, bs=1], two: [model=tiny, bs=2]}\n"
        "tables: [{title: Of all, value: latency_ms}, {title: Of two, value: latency_ms, sweep: two}]\n"
        "claims: {g: {text: a, needs: cuda, holds: max(latency_ms) > 1}}\n"
    )
    done = here.run("reproduce", "gpus.yaml", *here.tiny, "db=sixth.db")
    assert done.code == 0, done
    assert "g a: not measurable here" in done.out
    assert "Of all" not in done.out and "Of two" not in done.out


@pytest.mark.parametrize(
    "piece, said",
    [
        ("_target_: nosuch.thing", "evidence ops: _target_=nosuch.thing: no module named nosuch"),
        ("_target_: effbench.evidence.registry.operators, foo: 1", "has no setting 'foo'; it has: none"),
    ],
)
def test_evidence_that_there_is_not_is_said_before_anything_runs(here, piece, said):
    sweeps = "sweeps: {main: [model=tiny]}\n"
    (here.folder / "piece.yaml").write_text(
        f"question: x?\ngpu_seconds: 1\n{sweeps}evidence: {{ops: {{{piece}}}}}\n"
        "claims: {p: {text: a, holds: evidence.ops.prims > 1}}\n"
    )
    done = here.run("reproduce", "piece.yaml", *here.tiny, "db=fourth.db")
    assert done.code == 2, done
    assert "piece.yaml: evidence ops: " in done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (here.folder / "fourth.db").exists()


@pytest.mark.parametrize("words", [("reproduce",), ("claims", "--experiment")], ids=" ".join)
def test_a_file_in_another_encoding(here, words):
    (here.folder / "latin.yaml").write_bytes("question: Größe?\n".encode("latin-1"))
    done = here.run(*words, "latin.yaml")
    assert done.code == 2, done
    assert "latin.yaml is no YAML that can be read" in done.err
    assert "Traceback" not in done.err


def test_settings_of_a_model_or_mode_stay_beside_another_choice(here):
    words = ("mine.yaml", *here.tiny, "mode=eager", "db=seventh.db")
    done = here.run("reproduce", *words, "model=pointer-chase")
    assert done.code == 0, done
    assert "unexpected keyword argument 'width'" in done.out
    (here.folder / "pools.yaml").write_text(MINE.replace('"mode=eager,cuda-graph"', "mode=cuda-graph, mode.warmups=5"))
    done = here.run("reproduce", "pools.yaml", *words[1:], "mode=eager,default")
    assert done.code == 2, done
    assert "mode default has no setting 'warmups'" in done.err


def test_evidence_whose_module_fails_has_a_status(here):
    (here.folder / "fails_on_import.py").write_text("import no_such_package\n")
    (here.folder / "piece.yaml").write_text(
        "question: x?\ngpu_seconds: 1\nevidence: {own: {_target_: fails_on_import.thing}}\n"
        "claims: {p: {text: a, holds: evidence.own.works}}\n"
    )
    done = here.run("reproduce", "piece.yaml", "device=cpu", "db=fifth.db")
    assert done.code == 0, done
    assert "not measured yet · error: " in done.out
    assert "imports no_such_package, which is not installed" in done.out


def test_the_command_that_goes_on():
    parser = Parser()
    reproduce.add_arguments(parser)
    for words, said in [
        (["O10", "--db", "my o.db", "protocol=quick", "--quiet"], "O10 protocol=quick --db 'my o.db' --quiet"),
        (["all", "model.module.width=16,32"], "all model.module.width=16,32"),
        (["a b.yaml", "bs=[1,2]", "--fresh"], "'a b.yaml' 'bs=[1,2]' --fresh"),
    ]:
        again = reproduce.again(parser.parse_args(words))
        assert again == f"effbench reproduce {said}"
        assert parser.parse_args(shlex.split(again)[2:]) == parser.parse_args(words)


def test_a_mistake_in_one_experiment_does_not_keep_the_others_from_running(here):
    (here.folder / "wrong.yaml").write_text(
        "question: x?\ngpu_seconds: 1\nsweeps: {main: [model=tinny]}\nclaims: {a: {text: a, holds: max(speedup) > 1}}\n"
    )
    (here.folder / "typo.yaml").write_text(
        "question: x?\ngpu_seconds: 1\nevidence: {ops: {_target_: effbench.evidence.registry.operators}}\n"
        "claims: {b: {text: b, holds: evidence.ops.prim > 1}, c: {text: c, holds: evidence.ops.prims > 1}}\n"
    )
    done = here.run("reproduce", "wrong.yaml", "typo.yaml", "operators", "db=third.db")
    assert done.code == 2, done
    assert "wrong: unknown model 'tinny'" in done.err
    assert "claim b of typo.yaml" in done.err
    assert "not run" in done.out
    with Store.open(here.folder / "third.db") as store:
        assert {row["claim"]: row["verdict"] for row in store.verdicts()}.keys() == {"b", "c", "S14"}
