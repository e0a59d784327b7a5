"""A re-run that was interrupted counts as far as it went; it tells how many rounds it has."""

import pytest
from made_sweeps import EAGER, FAST, SLOW, a_cell, environment

from effbench.cell import Status, Trial
from effbench.comparison import confirm as rerun
from effbench.comparison.confirm import Rerun, RerunProgress, planned_rounds
from effbench.sweeping.estimate import Durations
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


@pytest.mark.parametrize(
    ("mode", "protocol", "sides", "text"),
    [
        ("eager", {}, 2, "3 to 20 duets of old and new"),
        ("eager", {"duet": False}, 2, "5 to 20 rounds, old and new alternating"),
        ("cuda-graph", {}, 1, "5 to 20 rounds, the new side alone"),
        ("eager", {"rounds": 5}, 1, "5 rounds, the new side alone"),
    ],
)
def test_the_plan_of_a_re_run(mode, protocol, sides, text):
    settings = Settings.with_defaults(protocol={"rounds": 20, **protocol})
    assert planned_rounds([a_cell(mode)], settings, sides).text == text


@pytest.mark.parametrize(
    ("rounds", "parallel", "text"),
    [(20, 0.5, "80 s to 6 min"), (20, 1, "40 s to 3 min"), (3, 1, "about 40 s")],
)
def test_the_duration_of_a_re_run(rounds, parallel, text):
    """The first of at least three rounds compiles: 20 s, the others take 9 s."""
    cell = a_cell("default")
    durations = Durations()
    for cache, wall_s in (("cold", 20.0), ("warm", 9.0)):
        trial = Trial(cell.key, 0, Status.OK, wall_s=wall_s, compile_cache=cache)
        durations.add(cell, trial)
    protocol = {"rounds": rounds, "compilations": 1}
    settings = Settings.with_defaults(protocol=protocol)
    plan = planned_rounds([cell], settings, sides=2)
    assert plan.duration([cell], settings, durations, parallel) == text


def test_the_duration_of_unknown_cells():
    settings = Settings.with_defaults(protocol={"rounds": 20})
    plan = planned_rounds([EAGER], settings, sides=2)
    assert plan.duration([EAGER], settings, Durations(), 1) == "duration unknown"


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
