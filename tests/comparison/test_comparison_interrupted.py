"""A re-run that was interrupted counts as far as it went, and tells how long it takes."""

import pytest
from made_sweeps import EAGER, FAST, SLOW, a_cell, environment

from effbench.cell import Status, Trial
from effbench.comparison import confirm as rerun
from effbench.comparison.confirm import Rerun, plan_text
from effbench.comparison.rerun_progress import (
    RerunProgress,
    duration_text,
    expected_s,
    seconds_of_trials,
)
from effbench.store import Store
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, PlannedTrial, Settings
from effbench.sweeping.run import Outcome

HERE, THERE = Interpreter(folder="/new"), Interpreter(folder="/old")
NEW, OLD = (environment(flags={"folder": place.folder}) for place in (HERE, THERE))


@pytest.fixture
def interrupted(made, effbench, monkeypatch):
    """Check a sweep whose confirmation was interrupted after these rounds of each side."""

    def call(new, old, *options, news=SLOW, alone=False):
        first = made.sweep({EAGER: FAST})
        assert effbench("baseline", "set", "main", first).code == 0
        second = made.sweep({EAGER: SLOW})
        again = made.sweep(
            {EAGER: cut(news, new)},
            env=NEW,
            name=f"confirm:{second}",
            rounds=new,
            state="interrupted",
        )
        if not alone:
            made.sweep(
                {EAGER: cut(FAST, old)}, env=OLD, rounds=old, into=again, state="interrupted"
            )
        ids = {HERE: NEW.id} | ({} if alone else {THERE: OLD.id})
        outcome = Outcome(again, str(made.path), "interrupted", "ignore", [], ids)
        found = Rerun(outcome, HERE) if alone else Rerun(outcome, HERE, THERE)
        monkeypatch.setattr(rerun, "run_again", lambda *_: found)
        return (
            effbench(
                "check", "--baseline", "main", "--confirm", "--metric", "latency_ms", *options
            ),
            again,
        )

    return call


def cut(figures, rounds):
    return {name: (values * 4)[:rounds] for name, values in figures.items()}


def test_complete_pairs_confirm(interrupted):
    done, again = interrupted(14, 15)
    text = " ".join(done.out.split())
    assert done.code == 130 and f"interrupted while confirming (sweep {again})" in done.err
    assert "confirmed: 1.1" in text and "(old and new alternating, 14 pairs)" in text
    assert (
        "note: the re-run was interrupted after 14 of 20 rounds; verdicts use complete pairs"
        in text
    )
    assert (
        "check failed: 1 slower against main; the re-run was interrupted after 14 of 20 rounds"
        in text
    )
    assert "not run again" not in text


def test_complete_pairs_clear(interrupted):
    done, _ = interrupted(6, 6, news=FAST)
    text = " ".join(done.out.split())
    assert done.code == 130 and "not confirmed: 1.000" in text and "6 pairs" in text
    assert (
        "check not finished against main: the re-run was interrupted after 6 of 20 rounds" in text
    )


def test_too_few_pairs_settle_nothing(interrupted):
    done, _ = interrupted(3, 3)
    text = " ".join(done.out.split())
    assert (done.code, "▲ slower" in text) == (130, True)
    assert "neither confirmed nor refuted: " in text and "but only 3 pairs" in text


def test_a_cell_that_only_one_side_ran_settles_nothing(interrupted):
    done, _ = interrupted(6, 0)
    text = " ".join(done.out.split())
    assert "neither confirmed nor refuted: not run again" in text and "after 0 of 20 rounds" in text


def test_the_new_side_alone(interrupted):
    done, _ = interrupted(7, 0, alone=True)
    text = " ".join(done.out.split())
    assert "confirmed: 1.1" in text and "after 7 of 20 rounds; verdicts use complete rounds" in text


def test_expected_durations(made):
    def trials(seconds, caches):
        return {"wall_s": seconds, "compile_cache": caches, "compilation": 0}

    compiled, plain = a_cell("default"), a_cell()
    first = made.sweep(
        {compiled: trials([9.0, 2.0, 2.0], ["cold", "warm", "warm"]), plain: {"wall_s": 1.0}},
        rounds=3,
    )
    with Store.open(made.path) as store:
        known = seconds_of_trials(store, [first], [compiled, plain, a_cell("cuda-graph")])
    assert known == {
        (compiled.key, True): 9.0,
        (compiled.key, False): 2.0,
        (plain.key, True): 1.0,
        (plain.key, False): 1.0,
    }
    assert expected_s(known, [compiled, plain], 2, 20, 3) == 2 * (3 * 9 + 17 * 2 + 20)
    assert expected_s(known, [compiled, plain], 2, 20, 3, slots=2) == 3 * 9 + 17 * 2 + 20
    assert expected_s(known, [a_cell("cuda-graph")], 1, 5, 3) is None
    settings = Settings.with_defaults(protocol={"rounds": 20, "compilations": 3})
    said = plan_text([plain], 2, settings, known, 1)
    assert said == "3 to 20 duets of old and new: about 6 s to 40 s"
    apart = Settings.with_defaults(protocol={"rounds": 20, "compilations": 3, "duet": False})
    said = plan_text([plain], 2, apart, known, 1)
    assert said == "5 to 20 rounds, old and new alternating: about 10 s to 40 s"
    assert plan_text([a_cell("cuda-graph")], 1, settings, known, 1).endswith(
        "the new side alone; duration unknown"
    )
    five = Settings.with_defaults(protocol={"rounds": 5, "compilations": 3})
    assert plan_text([plain], 1, five, known, 1) == "5 rounds, the new side alone: about 5 s"


def test_duration_texts():
    for seconds, text in (
        (0, "1 s"),
        (89, "89 s"),
        (90, "2 min"),
        (3600, "60 min"),
        (5400, "1 h 30 min"),
    ):
        assert duration_text(seconds) == text


def test_the_time_left_is_updated_each_round(capsys):
    progress = RerunProgress(quiet=True)
    run = CellRun(EAGER, HERE)
    trials = [PlannedTrial(run, number) for number in range(10)]
    settings = Settings.with_defaults(protocol={"rounds": 10, "compilations": 1, "name": "quick"})
    with progress.showing("s", settings, [run], trials, ["GPU 0"]):
        for trial in trials[:2]:
            progress.started("GPU 0", trial)
            progress.ended(trial, Trial(EAGER.key, trial.round, Status.OK, wall_s=60.0))
        progress.started("GPU 0", trials[2])
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in said] == [
        "round 2 of 10",
        "round 3 of 10",
    ]
    assert all(line.endswith(" left") for line in said)
