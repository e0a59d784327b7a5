"""Progress of a sweep: a line per trial, and a live status below them on a terminal; nothing when quiet."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from effbench.cell import Status, Trial
from effbench.environments import OWN, short_names
from effbench.labels import cell_names
from effbench.metrics import METRICS, significant
from effbench.printable import one_line
from effbench.sweeping.devices import Slot
from effbench.sweeping.plan import CellRun, PlannedTrial, cells_of, interpreters_of
from effbench.terminal import Console

STYLES = {Status.OK: "green", Status.DEGRADED: "yellow", Status.NOISY: "yellow", Status.UNSUPPORTED: "dim"}


def count(number: int, what: str) -> str:
    """Return `1 cell`, `2 cells`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def run_names(runs: Sequence[CellRun]) -> dict[CellRun, str]:
    """Return a name for each cell run: the cell's, with a short name of its interpreter if there are several."""
    cells = cell_names(cells_of(runs))
    interpreters = interpreters_of(runs)
    words: dict[Any, list[str]] = {one: [] for one in interpreters}
    for by in OWN:
        paths = [getattr(one, by) for one in interpreters]
        if len(set(paths)) > 1:
            for one, name in zip(interpreters, short_names(paths, OWN[by]), strict=True):
                words[one].append(name)
    return {run: one_line(" · ".join([cells[run.cell.key], *words[run.interpreter]])) for run in runs}


class Progress:
    """Is told how a sweep goes, from several threads, and prints it. `quiet`: prints nothing."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console()
        self.quiet = quiet
        self.lock = threading.Lock()
        self.total = self.done = self.rounds = 0
        self.names: dict[CellRun, str] = {}
        self.live: Live | None = None
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.sweep_bar = Bars(*columns, console=self.console)
        self.slot_bars = Bars(text, TimeElapsedColumn(), console=self.console)
        self.slots: dict[str, TaskID] = {}
        self.running: dict[str, str] = {}

    @contextmanager
    def showing(
        self,
        sweep_id: str,
        settings: Any,
        runs: Sequence[CellRun],
        trials: Sequence[PlannedTrial],
        slots: Sequence[Slot],
    ) -> Iterator[None]:
        self.names = run_names(runs)
        self.total, self.done, self.rounds = len(trials), 0, settings.protocol["rounds"]
        interpreters = len(interpreters_of(runs))
        under = f" × {interpreters} interpreters" if interpreters > 1 else ""
        cells, rounds = count(len(cells_of(runs)), "cell"), count(self.rounds, "round")
        where = ", ".join(slot.name for slot in slots)
        title = f"sweep {sweep_id} · {cells}{under} × {rounds} ({settings.protocol['name']}) on {where}"
        left = f"{count(len(trials), 'trial')} to run" if trials else "every trial is recorded already"
        self.note(one_line(f"{title}: {left}"))
        if self.quiet or not trials or not self.console.is_terminal:
            yield
            return
        self.sweep_bar.add_task("trials", total=self.total)
        self.live = Live(Group(self.sweep_bar, self.slot_bars), console=self.console, transient=True)
        self.live.start()
        try:
            yield
        finally:
            with suppress(OSError):  # a terminal that was closed
                self.live.stop()
            self.live = None

    def note(self, text: str | Text) -> None:
        """Print a line, unless quiet. If the reader has left (`| head`), the output ends, not the sweep."""
        if self.quiet:
            return
        try:
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        except (SystemExit, OSError):  # rich turns a broken pipe into SystemExit
            self.quiet = True

    def started(self, slot: Slot, trial: PlannedTrial) -> None:
        with self.lock:
            self.running[slot.name] = f"{self.names[trial.run]} · round {trial.round + 1}/{self.rounds}"
            if slot.name in self.slots:
                self.slot_bars.remove_task(self.slots.pop(slot.name))
            self.slots[slot.name] = self.slot_bars.add_task("", total=None)
        self.phase(slot, "start")

    def phase(self, slot: Slot, phase: str) -> None:
        with self.lock:
            if slot.name in self.slots:
                text = one_line(f"{slot.name}  {self.running[slot.name]} · {phase}")
                self.slot_bars.update(self.slots[slot.name], description=text)

    def waiting(self, slot: Slot, trial: PlannedTrial) -> None:
        self.note(one_line(f"{slot.name} is in use by another effbench: waiting"))

    def retried(self, slot: Slot, trial: PlannedTrial, reason: str) -> None:
        self.note(one_line(f"{self.names[trial.run]} on {slot.name}: effbench tries this trial again: {reason}"))

    def ended(self, slot: Slot, trial: PlannedTrial, record: Trial) -> None:
        with self.lock:
            self.done += 1
            line = self.line(trial, record)
            self.refresh()
        self.note(line)

    def added(self, trial: PlannedTrial) -> None:
        with self.lock:
            self.total += 1
            self.refresh()

    def dropped(self, trials: Collection[PlannedTrial]) -> None:
        with self.lock:
            self.total -= len(trials)
            self.refresh()

    def refresh(self) -> None:
        for task in self.sweep_bar.task_ids:
            self.sweep_bar.update(task, completed=self.done, total=self.total)

    def line(self, trial: PlannedTrial, record: Trial) -> Text:
        """Return the line of an ended trial: `[ 3/21] mlp bs=8 eager float32 · round 1/5 · ok 0.123 ms (2.1 s)`."""
        width = len(str(self.total))
        text = Text(
            f"[{self.done:>{width}}/{self.total}] {self.names[trial.run]} · round {trial.round + 1}/{self.rounds} · "
        )
        if trial.attempt:
            text.append(f"try {trial.attempt + 1} · ")
        text.append(record.status.value, style=STYLES.get(record.status, "red"))
        if record.latency_ms is not None:
            text.append(f" {METRICS['latency_ms'].format(record.latency_ms)}")
        if record.compile_s is not None:
            state = f"{record.compile_cache} " if record.compile_cache else ""
            text.append(f", compiled {state}in {significant(record.compile_s, 2)} s")
        if record.reason:
            text.append(f": {one_line(record.reason)}")
        text.append(f" ({record.wall_s or 0:.1f} s)", style="dim")
        return text
