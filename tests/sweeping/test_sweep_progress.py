"""What a sweep prints while it runs, on consoles that are made up."""

import io
from dataclasses import replace

import pytest
from schedule_parts import A, cell_runs, trials

from effbench.cell import Status, Trial
from effbench.sweeping.interpreters import HERE, Interpreter
from effbench.sweeping.plan import CellRun, Settings
from effbench.sweeping.progress import Progress, disturbance_note, run_names
from effbench.sweeping.time_left import TimeLeft
from effbench.terminal import Console


class Closing(io.StringIO):
    """A terminal that may be closed."""

    is_closed = False

    def write(self, text):
        if self.is_closed:
            raise OSError(5, "Input/output error")
        return super().write(text)


def shown(file, act, quiet=False, runs=2, **console):
    progress = Progress(Console(file=file, **console), quiet=quiet)
    planned = trials(runs, 2)
    settings = Settings.with_defaults(protocol={"rounds": 2, "name": "quick"})
    with progress.showing(
        "an-id", settings, list(dict.fromkeys(t.run for t in planned)), planned, ["GPU 0"]
    ):
        act(progress, "GPU 0", planned[0])
    return progress


def run_one(progress, slot, trial):
    progress.waiting(slot)
    progress.started(slot, trial)
    progress.phase(trial, "timing")
    progress.retried(slot, trial, "no [red] memory")
    progress.resized(-1)
    record = Trial(
        trial.run.cell.key,
        0,
        Status.DEGRADED,
        "two\nlines",
        latency_ms=0.5,
        compile_s=3.0,
        wall_s=2.0,
    )
    progress.ended(trial, record)


def test_lines_of_a_sweep():
    file = io.StringIO()
    shown(file, run_one)
    title, waiting, retried, ended = file.getvalue().splitlines()
    assert title == "sweep an-id · 2 cells × 2 rounds (quick) on GPU 0: 4 trials to run"
    assert "in use by another effbench" in waiting
    assert "retrying this trial: no [red] memory" in retried
    assert ended.startswith(" 50 % · round 1/2 · m bs=")
    assert (
        "degraded 0.500 ms, compiled in 3.0 s: two lines · took 2.0 s · a few seconds left" in ended
    )
    shown(quiet := io.StringIO(), run_one, quiet=True)
    assert quiet.getvalue() == ""


def test_cells_are_told_apart_by_their_threads():
    cells = [replace(cell_runs(1)[0].cell, threads=threads) for threads in (None, 1, 2)]
    names = run_names([CellRun(cell) for cell in cells])
    assert ["threads" in name for name in names.values()] == [False, True, True]
    assert len(set(names.values())) == 3


FOLDER = Interpreter(folder="/before")


@pytest.mark.parametrize(
    ("interpreters", "words"),
    [((HERE, FOLDER), "2 folders"), ((HERE, A), "2 interpreters"), ((A, FOLDER), "2 interpreters")],
)
def test_the_title_names_what_differs_between_interpreters(interpreters, words):
    file = io.StringIO()
    shown(file, lambda *_: None, runs=cell_runs(1, interpreters=interpreters))
    assert f"1 cell × {words} × 2 rounds" in file.getvalue()


def test_a_terminal_that_is_closed_does_not_end_the_sweep():
    file = Closing()

    def close(progress, slot, trial):
        file.is_closed = True
        run_one(progress, slot, trial)

    assert shown(file, close, force_terminal=True).live is None


REASON = (
    "the host was disturbed for 100 % of the timing (slowed down, or busy with other processes), "
    "so too few samples count"
)


def disturbed(*args, **facts):
    record = Trial(*args, **facts)
    record.disturbance = REASON
    return record


def line_of(record):
    def end(progress, slot, trial):
        record.cell_key = trial.run.cell.key
        progress.ended(trial, record)

    file = io.StringIO()
    shown(file, end)
    return file.getvalue().splitlines()[-1]


def test_a_disturbed_time_has_a_tilde_and_a_short_note():
    line = line_of(disturbed("", 0, Status.OK, latency_ms=2.7, wall_s=1.0))
    assert " · ok ~2.70 ms (host busy) · took 1.0 s" in line
    assert "of the timing" not in line
    line = line_of(
        disturbed("", 0, Status.OK, latency_ms=2.7, compile_s=3.0, compile_cache="cold", wall_s=9.0)
    )
    assert "ok ~2.70 ms (host busy), compiled in 3.0 s (cold cache) · took 9.0 s" in line
    assert "ok 2.70 ms · took" in line_of(Trial("", 0, Status.OK, latency_ms=2.7, wall_s=1.0))
    assert "error: no memory · took" in line_of(
        disturbed("", 0, Status.ERROR, "no memory", wall_s=1.0)
    )


@pytest.mark.parametrize(
    ("disturbance", "note"),
    [
        ("the host was busy during latency timing: enqueueing a call took 3 ms", "host busy"),
        (
            "during timing, on every attempt: clocks reduced (hw_thermal_slowdown)",
            "GPU clocks reduced",
        ),
        ("another process works on this GPU (pid 7)", "GPU shared"),
        (
            "a graph was compiled during timing: the figures include compile time",
            "includes compile time",
        ),
        ("sunspots", "disturbed"),
    ],
)
def test_notes_on_disturbances(disturbance, note):
    assert disturbance_note(disturbance) == note


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
    left.started(trial)
    clock.now += seconds
    left.ended(trial, Trial(trial.run.cell.key, trial.round, status, wall_s=seconds, **facts))


def test_the_percentage_only_grows():
    left, planned, clock = make()
    seen = []
    for number, trial in enumerate(planned):
        if number == 6:
            left.resized(4)  # further attempts
        if number == 12:
            left.resized(-3)  # a cell is known well enough
        run(left, clock, trial)
        seen.append(left.percent())
    assert seen == sorted(seen) and seen[0] == 5 and seen[-1] < 100
    left.resized(-left.left)
    assert (left.percent(), left.seconds()) == (100, 0.0)


def test_a_resumed_sweep_begins_where_it_ended():
    left, _, _ = make(runs=2, rounds=5, whole=20)
    assert left.percent() == 50


def test_the_time_left_is_that_of_similar_trials():
    left, planned, clock = make(runs=2, rounds=5, compilations=1)
    assert left.seconds() is None
    run(left, clock, planned[0], 100.0, compile_s=90.0, compile_cache="cold")
    assert left.seconds() == pytest.approx(100 + 4 * 10 + 4 * 10)
    run(left, clock, planned[1], 20.0)
    assert left.seconds() == pytest.approx(4 * 10 + 4 * 20)
    for trial in planned[2:4]:
        run(left, clock, trial, 30.0)
    assert left.seconds() == pytest.approx(3 * 30 + 3 * 25)
    left.started(planned[4])
    clock.now += 12
    assert left.seconds() == pytest.approx(3 * 30 + 3 * 25 - 12)


def test_time_left_counts_devices_failures_and_trials_that_are_not_needed():
    left, planned, clock = make(runs=4, rounds=2, compilations=0)
    for trial in planned[:4]:
        left.started(trial)
    clock.now += 10
    for trial in planned[:4]:
        left.ended(trial, Trial(trial.run.cell.key, 0, Status.OK, wall_s=10.0))
    assert left.seconds() == pytest.approx(10), "four devices"
    left.resized(-1)
    assert left.seconds() == pytest.approx(7.5)
    left, planned, clock = make(runs=2, rounds=3, compilations=0)
    run(left, clock, planned[0], 900.0, Status.TIMEOUT)
    left.resized(-2)
    run(left, clock, planned[1], 10.0)
    assert left.seconds() == pytest.approx(20), "those of the failed cell do not count"


def test_a_trial_that_hangs_does_not_take_the_time_of_others():
    left, planned, clock = make(runs=2, rounds=2, compilations=0)
    run(left, clock, planned[0], 10.0)
    left.started(planned[1])
    clock.now += 500
    assert left.seconds() == pytest.approx(20)


def test_many_cells_are_not_counted_again_for_every_line():
    left, planned, clock = make(runs=2, rounds=5, compilations=0)

    class Slow(Clock):
        def __call__(self):
            self.now += 1.0  # each look takes a second
            return self.now

    left.clock = Slow()
    run(left, clock, planned[0])
    left.estimate = lambda now, elapsed_s: calls.append(now) or 1000.0
    calls = []
    seen = [left.seconds() for _ in range(50)]
    assert len(calls) == 1 and seen == sorted(seen, reverse=True)
