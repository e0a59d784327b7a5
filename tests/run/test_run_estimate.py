"""How long trials take: by earlier ones, by the protocol, and how much time a sweep has left."""

import pytest
from schedule_parts import CPU, cell_runs, gpus, trials

from effbench.core.cell import Cell, Status, Trial
from effbench.core.printable import about, between, duration
from effbench.run.estimate import Durations, TimeLeft, duration_text, protocol_span
from effbench.run.plan import CellRun, PlannedTrial, Settings
from effbench.store.trials import TrialDuration

TARGETS = {
    "eager": "effbench.modes.eager.Eager",
    "default": "effbench.modes.compiled.Compiled",
}


def cell(mode="eager", model="m", device="cpu", **settings):
    node = {"name": mode, "_target_": TARGETS.get(mode, "mine.Mode"), **settings}
    return Cell({"name": model}, 1, node, "float32", "inference", device)


# --- before a sweep ---


def span(round=0, mode="eager", timeout_s=900.0, **protocol):
    settings = Settings.with_defaults(protocol=protocol, timeout_s=timeout_s)
    return protocol_span(PlannedTrial(CellRun(cell(mode)), round), settings)


def test_a_longer_budget_and_compilation_lengthen_a_trial():
    eager, longer, compiled = span(), span(budget_s=25.0), span(mode="default")
    assert longer.high_s == eager.high_s + 20
    assert compiled.high_s > eager.high_s
    assert eager.low_s == longer.low_s == compiled.low_s
    assert span(timeout_s=0.5).low_s == span(timeout_s=0.5).high_s == 0.5


@pytest.mark.parametrize(("enough", "certain"), [(None, 10), (0.01, 1)])
def test_rounds_that_may_end_early_count_only_for_the_longest_duration(enough, certain):
    spans = [span(round, enough_interval=enough, rounds=10) for round in range(10)]
    assert sum(one.low_s > 0 for one in spans) == certain


def stored(cell, cache, seconds):
    """A stored trial, as `Store.durations` gives it."""
    of_cell = (cell.device, cell.phase, cell.mode_name, cell.model_name)
    return TrialDuration(*of_cell, compile_cache=cache, wall_s=seconds)


KNOWN = [
    stored(cell("default", "m", "cuda"), "cold", 100.0),
    stored(cell("default", "m", "cuda"), "warm", 10.0),
    stored(cell("default", "m", "cuda"), "warm", 30.0),
    stored(cell("default", "k", "cuda"), "warm", 50.0),
    stored(cell("eager"), None, 3.0),
]


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        # two of three rounds are cold; on two GPUs
        ([cell("default", "m", "cuda")], "duration: about 2 min, as earlier trials took"),
        # the mean of all models: 100 cold and 30 warm
        ([cell("default", "n", "cuda")], "duration: about 2 min, as earlier trials took"),
        ([cell("eager")], "duration: a few seconds, as earlier trials took"),
        ([], "duration: none, because all trials are recorded"),
    ],
)
def test_a_plan_takes_as_long_as_similar_trials_took(cells, text):
    settings = Settings.with_defaults(protocol={"rounds": 3, "compilations": 2})
    planned = trials([CellRun(one) for one in cells], 3)
    assert duration_text(planned, settings, [*gpus(2), CPU], Durations.of(KNOWN)) == text


def test_a_plan_that_is_new_here_has_the_bounds_of_the_protocol():
    settings = Settings.with_defaults(protocol={"rounds": 1})
    planned = trials([CellRun(cell("eager")), CellRun(cell("mine"))])
    text = duration_text(planned, settings, [CPU], Durations.of(KNOWN))
    new = span(mode="mine")
    assert text.startswith(f"duration: {between(3 + new.low_s, 3 + new.high_s)}, from the protocol")


# --- during a sweep ---


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def make(runs=4, rounds=5, compilations=2, whole=None):
    planned = trials(runs, rounds)
    clock = Clock()
    return TimeLeft(planned, whole or len(planned), compilations, clock), planned, clock


def run(left, clock, trial, seconds=10.0, status=Status.OK, **facts):
    clock.now += seconds
    left.ended(
        trial,
        Trial(
            trial.run.cell.key,
            trial.round,
            status,
            wall_s=seconds,
            **facts,
        ),
    )


def test_the_percentage_grows_and_is_100_when_nothing_is_left():
    left, planned, clock = make()
    seen = []
    for trial in planned[:12]:
        run(left, clock, trial)
        seen.append(left.percent())
    assert seen == [5 * number for number in range(1, 13)]
    for one in cell_runs(4):
        left.dropped(one)
    assert left.percent() == 100


def test_a_resumed_sweep_begins_where_it_ended():
    left, _, _ = make(runs=2, rounds=5, whole=20)
    assert left.percent() == 50


def test_the_time_left_is_that_of_similar_trials():
    left, planned, clock = make(runs=2, rounds=5, compilations=1)
    assert left.seconds() is None
    run(
        left,
        clock,
        planned[0],
        100.0,
        compile_s=90.0,
        compile_cache="cold",
    )
    assert left.seconds() == pytest.approx(100 + 8 * 10)
    run(left, clock, planned[1], 20.0)
    assert left.seconds() == pytest.approx(8 * 15)
    clock.now += 12
    assert left.seconds() == pytest.approx(8 * 15 - 12)
    clock.now += 500
    assert left.seconds() == 0


def test_the_time_left_is_that_of_all_devices():
    left, planned, clock = make(runs=4, rounds=2, compilations=0)
    clock.now += 10
    for trial in planned[:4]:
        left.ended(trial, Trial(trial.run.cell.key, 0, Status.OK, wall_s=10.0))
    assert left.seconds() == pytest.approx(10)


def test_rounds_of_a_cell_that_failed_do_not_count():
    left, planned, clock = make(runs=2, rounds=3, compilations=0)
    run(left, clock, planned[0], 900.0, Status.TIMEOUT)
    run(left, clock, planned[1], 10.0)
    assert left.seconds() == pytest.approx(20)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (44, "40 s"), (95, "2 min"), (5400, "1.5 h"), (50 * 3600, "2 days")],
)
def test_durations_are_rounded(seconds, text):
    assert duration(seconds) == text


def test_durations_in_words():
    assert about(4) == "a few seconds"
    assert about(240) == "about 4 min"
    assert between(50, 240) == "50 s to 4 min"
    assert between(120, 240) == "2 to 4 min"
    assert between(240, 250) == "about 4 min"
