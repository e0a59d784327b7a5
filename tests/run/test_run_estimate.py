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


def span(round=0, mode="eager", **protocol):
    settings = Settings.with_defaults(protocol=protocol)
    return protocol_span(PlannedTrial(CellRun(cell(mode)), round), settings)


@pytest.mark.parametrize(("enough", "certain"), [(None, 10), (0.01, 1)])
def test_rounds_that_may_end_early_count_only_for_the_longest_duration(enough, certain):
    spans = [span(round, enough_interval=enough, rounds=10) for round in range(10)]
    assert sum(one.low_s > 0 for one in spans) == certain


def stored(cell, cache, seconds):
    """A stored trial, as `Store.durations` gives it."""
    of_cell = (cell.device, cell.phase, cell.mode_name, cell.model_name)
    return TrialDuration(*of_cell, compile_cache=cache, wall_s=seconds)


M, K, NEW = (cell("default", model, "cuda") for model in ("m", "k", "n"))
KNOWN = [
    stored(M, "cold", 100.0),
    stored(M, "warm", 10.0),
    stored(M, "warm", 30.0),
    stored(K, "warm", 50.0),
    stored(cell("eager"), None, 3.0),
]


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        # two of three rounds are cold; on two GPUs
        ([M], "duration: about 2 min, as earlier trials took"),
        # the mean of all models: 100 cold and 30 warm
        ([NEW], "duration: about 2 min, as earlier trials took"),
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
    now = 100.0

    def __call__(self):
        return self.now


def make(runs=4, rounds=5, compilations=2):
    planned = trials(runs, rounds)
    clock = Clock()
    return TimeLeft(planned, len(planned), compilations, clock), planned, clock


def run(left, clock, trial, seconds=10.0, **facts):
    clock.now += seconds
    record = Trial(trial.run.cell.key, trial.round, Status.OK, wall_s=seconds, **facts)
    left.ended(trial, record)


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


def test_the_time_left_is_that_of_similar_trials():
    left, planned, clock = make(runs=2, rounds=5, compilations=1)
    assert left.seconds() is None
    run(left, clock, planned[0], 100.0, compile_s=90.0, compile_cache="cold")
    assert left.seconds() == pytest.approx(100 + 8 * 10)
    run(left, clock, planned[1], 20.0)
    assert left.seconds() == pytest.approx(8 * 15)
    clock.now += 12
    assert left.seconds() == pytest.approx(8 * 15 - 12)
    clock.now += 500
    assert left.seconds() == 0


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
