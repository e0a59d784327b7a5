"""`effbench reproduce --stored`: another condition over the same measurements, and nothing runs."""

from __future__ import annotations

import re

import pytest

from effbench.store import Store

MINE = """
question: Does a wider layer cost more?
gpu_seconds: 5
names: {width: model.module.width}
sweeps:
  main: [model=tiny, "model.module.width=16,32", bs=2, mode=eager]
evidence:
  ops: {_target_: effbench.evidence.registry.operators}
claims:
  widths:
    text: Two widths were measured.
    value: max(latency_ms) / min(latency_ms)
    holds: len(latency_ms) == 2
  operators:
    text: There are operators.
    holds: evidence.ops.prims > 1
"""


@pytest.fixture(scope="module")
def here(cli_in, tmp_path_factory):
    cli = cli_in(tmp_path_factory.mktemp("here"))
    cli.env["CUDA_VISIBLE_DEVICES"] = ""
    (cli.folder / "mine.yaml").write_text(MINE)
    cli.done = cli.run("reproduce", "mine.yaml", *cli.tiny)
    assert cli.done.code == 0, cli.done
    return cli


def stored(here, text, *words):
    (here.folder / "mine.yaml").write_text(text)
    done = here.run("reproduce", "mine.yaml", *here.tiny, "--stored", *words)
    with Store.open(here.db) as store:
        return done, {row["claim"]: row for row in store.verdicts()}, store.sweeps()


def test_a_condition_that_was_edited(here):
    with Store.open(here.db) as store:
        before = {row["claim"]: row for row in store.verdicts()}
        (sweep,) = store.sweeps()
    assert {row["verdict"] for row in before.values()} == {"confirmed"}
    done, after, sweeps = stored(here, MINE.replace("== 2", "== 3").replace("> 1", "> 10**9"))
    assert (done.code, done.err) == (0, ""), done
    assert {row["verdict"] for row in after.values()} == {"refuted"}
    assert [one.id for one in sweeps] == [sweep.id]
    assert after["widths"]["measured"]["value"] == before["widths"]["measured"]["value"]
    assert after["operators"]["measured"]["evidence"] == before["operators"]["measured"]["evidence"]
    assert "torch" in done.out, "on which machine"


def test_what_was_not_measured_is_named_and_nothing_is_judged(here):
    done, _, sweeps = stored(here, MINE.replace("16,32", "16,32,48"))
    assert done.code == 3, done
    assert "not judged on" in done.out
    assert "1 of the 3 cells of its sweep main were not measured" in done.out
    assert "holds nothing that was measured whole" in done.err
    assert len(sweeps) == 1


def test_what_was_measured_by_another_protocol_is_said_with_the_words_that_ask_for_it(here):
    (here.folder / "mine.yaml").write_text(MINE)
    done = here.run("reproduce", "mine.yaml", "--stored", "device=cpu")
    assert done.code == 3, done
    (words,) = re.findall(
        r"2 of the 2 cells of its sweep main were measured in another way: judge them with (.*)", done.out
    )
    assert "protocol=quick" in words and "protocol.budget_s=0.2" in words
    assert "not measured" not in done.out
    again = here.run("reproduce", "mine.yaml", "--stored", "device=cpu", *words.split())
    assert (again.code, again.err) == (0, ""), again
    assert "widths Two widths were measured.: confirmed" in again.out
    (here.folder / "mine.yaml").write_text(MINE.replace("16,32", "16,32,48"))
    done = here.run("reproduce", "mine.yaml", "--stored", "device=cpu", "baseline_mode=default", *here.tiny)
    assert (
        "2 of the 3 cells of its sweep main were measured in another way: judge them with baseline_mode=eager"
        in done.out
    )
    assert "; 1 of the 3 cells of its sweep main were not measured" in done.out


def test_evidence_that_was_not_gathered_is_named(here):
    others = "  others: {_target_: effbench.evidence.registry.operators}\n"
    more = MINE.replace("  ops:", f"{others}  ops:")
    done, *_ = stored(here, more.replace("evidence.ops.prims > 1", "evidence.others.prims > 1"))
    assert done.code == 3, done
    assert "its evidence others was not gathered" in done.out
    done, *_ = stored(here, more)
    assert done.code == 0, "no claim speaks of it, and no verdict could carry it"


def test_fresh_and_stored_contradict_each_other(here):
    done, *_ = stored(here, MINE, "--fresh")
    assert done.code == 2
    assert "leave one out" in done.err


def test_a_database_that_is_not_there(here):
    done = here.run("reproduce", "mine.yaml", "--stored", "--db", "nowhere.db")
    assert done.code == 2
    assert "nowhere.db" in done.err
    assert not (here.folder / "nowhere.db").exists()
