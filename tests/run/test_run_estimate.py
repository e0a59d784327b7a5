"""How long trials take: by the protocol, and by those of the sweep that have ended."""

from dataclasses import replace

import pytest
from schedule_parts import CPU, cell_runs, gpus, groups, trials_of

from effbench.core.cell import Cell
from effbench.core.printable import about, between, duration
from effbench.run.dry_run import duration_text
from effbench.run.plan import CellRun, Settings
from effbench.run.progress import TimeLeft

# --- before a sweep ---

PROTOCOL = {
    "warmup_s": 0.7,
    "max_warmup_s": 15.0,
    "min_time_s": 9.0,
    "budget_s": 40.0,
    "load_s": 0.0,
}


@pytest.mark.parametrize(
    ("mode", "slots", "timeout_s", "enough", "text"),
    [
        ("eager", [CPU], 900.0, None, "20 s to 2 min"),
        ("eager", gpus(2), 900.0, None, "10 s to 60 s"),
        ("compiled", [CPU], 900.0, None, "20 s to 4 min"),
        ("compiled", [CPU], 30.0, None, "20 s to 60 s"),
        ("eager", [CPU], 900.0, 0.01, "10 s to 2 min"),
    ],
)
def test_a_plan_has_the_bounds_of_the_protocol(mode, slots, timeout_s, enough, text):
    protocol = {**PROTOCOL, "rounds": 2, "enough_interval": enough}
    node = {"name": mode, "_target_": f"effbench.modes.{mode}.Mode"}
    cell = Cell({"name": "m"}, 1, node, "float32", "inference", slots[0].device)
    planned = groups([CellRun(cell)], 2)
    made = Settings.with_defaults(protocol=protocol, timeout_s=timeout_s)
    bounds = duration_text(planned, made, slots)
    assert bounds == f"duration: {text}, from the protocol and usual compile times"


def test_the_bound_of_a_cold_start_counts_the_process_that_fills_the_cache():
    node = {"name": "compiled", "_target_": "effbench.modes.compiled.Mode"}
    cell = Cell({"name": "m"}, 1, node, "float32", "inference", "cpu")
    cold = replace(cell, phase="coldstart", cache="folder")
    settings = Settings.with_defaults(protocol=PROTOCOL | {"rounds": 2})
    texts = [duration_text(groups([CellRun(each)], 2), settings, [CPU]) for each in (cell, cold)]
    bounds = [text.partition(",")[0] for text in texts]
    assert bounds == ["duration: 20 s to 4 min", "duration: 20 s to 8 min"]


# --- during a sweep ---


class Sweep:
    """A sweep whose trials take as long as `run` says."""

    def __init__(self, monkeypatch, runs, rounds):
        self.now_s = 100.0
        monkeypatch.setattr("effbench.run.progress.time.monotonic", lambda: self.now_s)
        planned = groups(runs, rounds)
        self.runs = [run for run, _ in trials_of(planned)]
        self.left = TimeLeft(planned, len(self.runs))

    def run(self, number, seconds=10.0):
        self.now_s += seconds
        self.left.ended(self.runs[number])


def test_the_percentage_grows_and_is_100_when_nothing_is_left(monkeypatch):
    sweep = Sweep(monkeypatch, runs=4, rounds=5)
    seen = []
    for number in range(12):
        sweep.run(number)
        seen.append(sweep.left.percent())
    assert seen == [5 * number for number in range(1, 13)]
    for one in cell_runs(4):
        sweep.left.dropped(one)
    assert sweep.left.percent() == 100


def test_trials_that_are_left_take_as_long_as_those_that_have_ended(monkeypatch):
    sweep = Sweep(monkeypatch, runs=2, rounds=5)
    assert sweep.left.seconds() == 0
    sweep.run(0, 100.0)
    assert sweep.left.seconds() == pytest.approx(9 * 100)
    sweep.run(1, 20.0)
    assert sweep.left.seconds() == pytest.approx(8 * 60)
    sweep.now_s += 12
    assert sweep.left.seconds() == pytest.approx(8 * 60 - 12)
    sweep.now_s += 500
    assert sweep.left.seconds() == 0


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
    assert between(120, 240) == "2 min to 4 min"
    assert between(240, 250) == "about 4 min"
