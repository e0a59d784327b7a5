"""A re-run that was interrupted counts as far as it went."""

import pytest
from made_sweeps import EAGER, FAST, SLOW, environment

from effbench.analysis import confirm as rerun
from effbench.run.interpreters import Interpreter
from effbench.run.sweep import Outcome

HERE = Interpreter(folder="/new")
THERE = Interpreter(folder="/old")
NEW, OLD = (environment(flags={"folder": place.folder}) for place in (HERE, THERE))


def cut(figures, rounds):
    return {EAGER: {name: (values * 4)[:rounds] for name, values in figures.items()}}


@pytest.mark.parametrize(
    ("new", "old", "news", "verdict", "said"),
    [
        (6, 7, FAST, "check not finished against main", "not confirmed: 1.000"),
        (6, 0, SLOW, "check failed: 1 slower", "neither confirmed nor refuted: not run again"),
        (7, 6, SLOW, "check failed: 1 slower", "confirmed: 1.1"),
    ],
)
def test_complete_rounds_count(made, effbench, monkeypatch, new, old, news, verdict, said):
    """`new`, `old`: rounds of each side."""
    first = made.sweep({EAGER: FAST})
    assert effbench("baseline", "set", "main", first).code == 0
    facts = {"name": f"confirm:{made.sweep({EAGER: SLOW})}", "state": "interrupted"}
    again = made.sweep(
        cut(news, new),
        env=NEW,
        rounds=new,
        **facts,
    )
    made.sweep(
        cut(FAST, old),
        env=OLD,
        rounds=old,
        into=again,
        **facts,
    )
    ids = {HERE: NEW.id, THERE: OLD.id}
    outcome = Outcome(
        again,
        str(made.path),
        "interrupted",
        "ignore",
        [],
        ids,
    )
    read = rerun.read(
        str(made.path),
        outcome,
        THERE,
        HERE,
    )
    monkeypatch.setattr(rerun, "run_again", lambda *_: read)
    done = effbench("check", "--baseline", "main", "--confirm", "--metric", "latency_ms")
    assert done.code == 130
    assert f"interrupted while confirming (sweep {again})" in done.err
    text = " ".join(done.out.split())
    for words in (verdict, said, f"the re-run was interrupted after {min(new, old)} of 20 rounds"):
        assert words in text
