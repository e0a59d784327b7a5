"""What a sweep prints while it runs, on consoles that are made up."""

import io
from dataclasses import replace

import pytest
from schedule_parts import FOLDER, A, cell_runs, groups, runs_of

from effbench.core.cell import Status, Trial
from effbench.core.disturbances import DisturbanceKind
from effbench.core.terminal import Console
from effbench.run.interpreters import HERE
from effbench.run.plan import CellRun, Settings
from effbench.run.progress import Progress, run_names


class Closing(io.StringIO):
    """A terminal that may be closed."""

    is_closed = False

    def write(self, text):
        if self.is_closed:
            raise OSError(5, "Input/output error")
        return super().write(text)


def shown(file, act, quiet=False, runs=2, **console):
    progress = Progress(Console(file=file, **console), quiet=quiet)
    planned = groups(runs, 2)
    settings = Settings.with_defaults(protocol={"rounds": 2, "name": "quick"})
    distinct = runs_of(planned)
    with progress.showing("an-id", settings, distinct, planned, ["GPU 0"]):
        act(progress, "GPU 0", distinct[0])
    return progress


def run_one(progress, slot, run):
    progress.waiting(slot)
    progress.started(slot, run, 0)
    progress.phase(run, "timing")
    progress.retried(slot, run, "no [red] memory")
    record = Trial(
        run.cell.key,
        0,
        Status.DEGRADED,
        "two\nlines",
        latency_ms=0.5,
        compile_s=3.0,
        wall_s=2.0,
    )
    progress.dropped(run)
    progress.ended(run, record)


def test_lines_of_a_sweep():
    file = io.StringIO()
    shown(file, run_one)
    title, waiting, retried, ended = file.getvalue().splitlines()
    assert title == "sweep an-id · 2 cells × 2 rounds (quick) on GPU 0: 4 trials to run"
    assert "in use by another effbench" in waiting
    assert "retrying this trial: no [red] memory" in retried
    assert ended.startswith(" 50 % · round 1/2 · m bs=")
    took = "degraded 0.500 ms, compiled in 3.0 s: two lines · took 2.0 s · a few seconds left"
    assert took in ended


def test_cells_are_told_apart_by_their_threads():
    cells = [replace(cell_runs(1)[0].cell, threads=threads) for threads in (None, 1, 2)]
    names = run_names([CellRun(cell) for cell in cells])
    assert ["threads" in name for name in names.values()] == [False, True, True]
    assert len(set(names.values())) == 3


MARKED = {"latency_ms": 2.7, "disturbance": "why"}


@pytest.mark.parametrize(
    ("interpreters", "words"), [((HERE, FOLDER), "2 folders"), ((A, FOLDER), "2 interpreters")]
)
def test_the_title_names_what_differs_between_interpreters(interpreters, words):
    file = io.StringIO()
    shown(file, lambda *_: None, runs=cell_runs(1, interpreters=interpreters))
    assert f"1 cell × {words} × 2 rounds" in file.getvalue()


def test_a_terminal_that_is_closed_does_not_end_the_sweep():
    file = Closing()

    def close(progress, slot, run):
        file.is_closed = True
        run_one(progress, slot, run)

    assert shown(file, close, force_terminal=True).live is None


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"latency_ms": 2.7}, " · ok 2.70 ms · took 1.0 s"),
        ({"latency_ms": 2.7, "cold_s": 9.1}, " · ok 9.10 s · took 1.0 s"),
        ({**MARKED, "disturbance_kind": DisturbanceKind.PROCESS}, " · ok ~2.70 ms (GPU shared) · "),
        (
            {"latency_ms": 2.7, "compile_s": 3.0, "compile_cache": "cold"},
            "ok 2.70 ms, compiled in 3.0 s (cold cache) · ",
        ),
        ({"status": Status.ERROR, "reason": "no memory"}, " · error: no memory · took"),
    ],
    ids=["ok", "cold start", "GPU shared", "compiled", "error"],
)
def test_the_line_of_a_trial(facts, text):
    def end(progress, slot, run):
        record = Trial(run.cell.key, 0, Status.OK, wall_s=1.0)
        progress.ended(run, replace(record, **facts))

    file = io.StringIO()
    shown(file, end)
    assert text in file.getvalue().splitlines()[-1]
