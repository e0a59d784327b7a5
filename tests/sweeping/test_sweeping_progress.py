"""What a sweep prints while it runs, on consoles that are made up."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console
from schedule_parts import gpus, units

from effbench.sweep.plan import Job
from effbench.sweep.progress import Progress

SETTINGS = SimpleNamespace(protocol={"rounds": 1, "name": "quick"})


class Closing(io.StringIO):
    """A terminal that may be closed."""

    is_closed = False

    def write(self, text):
        if self.is_closed:
            raise OSError(5, "Input/output error")
        return super().write(text)


def showing(progress):
    planned = units(1)
    job = Job(planned[0].cell, 0)
    return job, progress.showing("an-id", SETTINGS, planned, [job], gpus(1))


def test_a_trial_that_is_tried_again_is_told_with_its_reason():
    file = io.StringIO()
    progress = Progress(Console(file=file))
    job, shown = showing(progress)
    with shown:
        progress.retried(gpus(1)[0], job, "no [red] memory")
    assert "tries this trial again: no [red] memory" in file.getvalue()


def test_a_terminal_that_is_closed_does_not_end_the_sweep():
    file = Closing()
    progress = Progress(Console(file=file, force_terminal=True))
    _, shown = showing(progress)
    with shown:
        file.is_closed = True
    assert progress.live is None
