"""Progress of a sweep: a live table on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from effbench.analysis.interpreters import OWN, short_names
from effbench.analysis.swept import cell_names
from effbench.cell import Status, Trial
from effbench.metrics import METRICS, significant
from effbench.printable import one_line
from effbench.sweep.devices import Slot
from effbench.sweep.plan import CellRun, PlannedTrial, cells_of, interpreters_of
from effbench.terminal import Console, escape

LAST_RESULTS = 8
STYLES = {Status.OK: "green", Status.DEGRADED: "yellow", Status.NOISY: "yellow", Status.UNSUPPORTED: "dim"}


def count(number: int, what: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def duration(seconds: float) -> str:
    """`75` is `1 min 15 s`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


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
    return {run: " · ".join([cells[run.cell.key], *words[run.interpreter]]) for run in runs}


class TimeLeft:
    """Estimates the remaining time. The first trial of a cell compiles cold, so it counts separately."""

    def __init__(self) -> None:
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    def add(self, trial: PlannedTrial, record: Trial) -> None:
        self.seconds[trial.round == 0].append(record.wall_s or 0.0)

    def left(self, trials: Collection[PlannedTrial], slots: int) -> float | None:
        """Return seconds, or None before the first trial has ended."""
        known = {first: sum(values) / len(values) for first, values in self.seconds.items() if values}
        if not known:
            return None
        # a later trial starts from a filled cache: half the first one's time is a fair guess until one was seen
        first = known.get(True, known.get(False, 0.0))
        later = known.get(False, first / 2)
        return sum(first if trial.round == 0 else later for trial in trials) / max(1, slots)


class Progress:
    """Observes a sweep. Thread-safe. `quiet`: prints nothing."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console()
        self.quiet = quiet
        self.lock = threading.Lock()
        self.time_left = TimeLeft()
        self.running: dict[str, tuple[PlannedTrial | None, str, float]] = {}
        self.last: deque[tuple[PlannedTrial, Trial]] = deque(maxlen=LAST_RESULTS)
        self.left: set[PlannedTrial] = set()
        self.total = self.done = self.rounds = 0
        self.slots = 1
        self.title = ""
        self.names: dict[CellRun, str] = {}
        self.live: Live | None = None

    @contextmanager
    def showing(
        self,
        sweep_id: str,
        settings: Any,
        runs: Sequence[CellRun],
        trials: Sequence[PlannedTrial],
        slots: Sequence[Slot],
    ) -> Iterator[None]:
        self.names = {run: one_line(name) for run, name in run_names(runs).items()}
        self.left, self.total, self.slots = set(trials), len(trials), len(slots)
        self.done = 0
        self.rounds = settings.protocol["rounds"]
        where = ", ".join(slot.name for slot in slots)
        interpreters = len(interpreters_of(runs))
        under = f" × {interpreters} interpreters" if interpreters > 1 else ""
        cells = count(len(cells_of(runs)), "cell")
        size = f"{cells}{under} × {count(self.rounds, 'round')} ({settings.protocol['name']})"
        self.title = one_line(f"sweep {sweep_id} · {size} on {where}")
        if self.quiet:
            yield
        elif not trials:
            self.say(f"{self.title}: every trial is recorded already")
            yield
        elif not self.console.is_terminal:
            self.say(f"{self.title}: {count(len(trials), 'trial')} to run")
            yield
        else:
            self.live = Live(console=self.console, get_renderable=self.render, refresh_per_second=3, transient=True)
            self.live.start()
            try:
                yield
            finally:
                with suppress(OSError):  # a terminal that was closed
                    self.live.stop()
                self.live = None

    def note(self, text: str) -> None:
        """Print a line before the trials, unless quiet."""
        if not self.quiet:
            self.say(text)

    def say(self, text: str | Text) -> None:
        """Print a plain line. If the reader has left (`| head`), the output ends, not the sweep."""
        try:
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        except (SystemExit, OSError):  # rich turns a broken pipe into SystemExit
            self.quiet = True

    def started(self, slot: Slot, trial: PlannedTrial) -> None:
        with self.lock:
            self.running[slot.name] = (trial, "start", time.monotonic())

    def phase(self, slot: Slot, phase: str) -> None:
        with self.lock:
            trial, _, since = self.running.get(slot.name, (None, "", time.monotonic()))
            self.running[slot.name] = (trial, phase, since)

    def waiting(self, slot: Slot, trial: PlannedTrial) -> None:
        with self.lock:
            self.running[slot.name] = (trial, "waits: another effbench uses this device", time.monotonic())
        if not self.quiet and self.live is None:
            self.say(f"{slot.name} is in use by another effbench: waiting")

    def retried(self, slot: Slot, trial: PlannedTrial, reason: str) -> None:
        if not self.quiet:
            self.say(Text(f"{self.names[trial.run]} on {slot.name}: effbench tries this trial again: {reason}"))

    def ended(self, slot: Slot, trial: PlannedTrial, record: Trial) -> None:
        with self.lock:
            self.running.pop(slot.name, None)
            self.left.discard(trial)
            self.done += 1
            self.time_left.add(trial, record)
            self.last.append((trial, record))
            line = None if self.quiet or self.live is not None else self.line(trial, record)
        if line is not None:
            self.say(line)

    def added(self, trial: PlannedTrial) -> None:
        with self.lock:
            self.left.add(trial)
            self.total += 1

    def dropped(self, trials: Collection[PlannedTrial]) -> None:
        with self.lock:
            self.left.difference_update(trials)
            self.total -= len(trials)

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

    def render(self) -> RenderableType:
        with self.lock:
            left = self.time_left.left(self.left, self.slots)
            head = Text(self.title, style="bold")
            counts = Text(f"{self.done} of {self.total} trials done, ")
            counts.append("time left unknown yet" if left is None else f"about {duration(left)} left")
            now = Table.grid(padding=(0, 2))
            for slot, (trial, phase, since) in sorted(self.running.items()):
                what = escape(self.names[trial.run]) if trial else ""
                round = f"round {trial.round + 1}/{self.rounds}" if trial else ""
                now.add_row(f"[bold]{escape(slot)}[/]", what, round, escape(phase), duration(time.monotonic() - since))
            rows = Table(box=None, show_header=False, padding=(0, 2), show_edge=False)
            for trial, record in self.last:
                style = STYLES.get(record.status, "red")
                figure = "" if record.latency_ms is None else METRICS["latency_ms"].format(record.latency_ms)
                reason = escape((record.reason or "")[:80])
                rows.add_row(escape(self.names[trial.run]), f"[{style}]{record.status}[/]", figure, reason)
            bar = ProgressBar(total=max(1, self.total), completed=self.done, width=48)
            return Group(head, bar, counts, now, rows)
