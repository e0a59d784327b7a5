"""What a user sees while a sweep runs: a live table on a terminal, plain lines elsewhere, nothing when quiet."""

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
from effbench.analysis.row_labels import cell_names
from effbench.cell import Status, Trial
from effbench.metrics import METRICS, significant
from effbench.printable import one_line
from effbench.sweeping.interpreters import Unit, UnitKey, cells_of, interpreters_of
from effbench.sweeping.jobs import Job
from effbench.sweeping.schedule import Slot
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


def unit_names(units: Sequence[Unit]) -> dict[UnitKey, str]:
    """A name for each cell; where there are several interpreters, with the short name of its own."""
    cells = cell_names(cells_of(units))
    interpreters = interpreters_of(units)
    words: dict[Any, list[str]] = {one: [] for one in interpreters}
    for by in OWN:
        paths = [getattr(one, by) for one in interpreters]
        if len(set(paths)) > 1:
            for one, name in zip(interpreters, short_names(paths, OWN[by]), strict=True):
                words[one].append(name)
    return {unit.key: " · ".join([cells[unit.cell.key], *words[unit.interpreter]]) for unit in units}


class Estimate:
    """Time left: the first trial of a cell compiles cold and is told apart from the later ones."""

    def __init__(self) -> None:
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    def add(self, job: Job, trial: Trial) -> None:
        self.seconds[job.round == 0].append(trial.wall_s or 0.0)

    def left(self, jobs: Collection[Job], slots: int) -> float | None:
        """Seconds, or None before the first trial has ended."""
        known = {first: sum(values) / len(values) for first, values in self.seconds.items() if values}
        if not known:
            return None
        # a later trial starts from a filled cache: half the first one's time is a fair guess until one was seen
        first = known.get(True, known.get(False, 0.0))
        later = known.get(False, first / 2)
        return sum(first if job.round == 0 else later for job in jobs) / max(1, slots)


class Progress:
    """Observes a sweep. Thread-safe. `quiet`: says nothing at all."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console()
        self.quiet = quiet
        self.lock = threading.Lock()
        self.estimate = Estimate()
        self.running: dict[str, tuple[Job | None, str, float]] = {}
        self.last: deque[tuple[Job, Trial]] = deque(maxlen=LAST_RESULTS)
        self.left: set[Job] = set()
        self.total = self.done = self.rounds = 0
        self.slots = 1
        self.title = ""
        self.names: dict[UnitKey, str] = {}
        self.live: Live | None = None

    @contextmanager
    def showing(
        self, sweep_id: str, settings: Any, units: Sequence[Unit], jobs: Sequence[Job], slots: Sequence[Slot]
    ) -> Iterator[None]:
        self.names = {key: one_line(name) for key, name in unit_names(units).items()}
        self.left, self.total, self.slots = set(jobs), len(jobs), len(slots)
        self.done = 0
        self.rounds = settings.protocol["rounds"]
        where = ", ".join(slot.name for slot in slots)
        halves = len(interpreters_of(units))
        under = f" × {halves} interpreters" if halves > 1 else ""
        cells = count(len(cells_of(units)), "cell")
        size = f"{cells}{under} × {count(self.rounds, 'round')} ({settings.protocol['name']})"
        self.title = one_line(f"sweep {sweep_id} · {size} on {where}")
        if self.quiet:
            yield
            return
        if not jobs:
            self.say(f"{self.title}: every trial is recorded already")
            yield
            return
        if not self.console.is_terminal:
            self.say(f"{self.title}: {count(len(jobs), 'trial')} to run")
            yield
            return
        self.live = Live(console=self.console, get_renderable=self.render, refresh_per_second=3, transient=True)
        self.live.start()
        try:
            yield
        finally:
            with suppress(OSError):  # a terminal that was closed
                self.live.stop()
            self.live = None

    def note(self, text: str) -> None:
        """A line of its own, before the trials."""
        if not self.quiet:
            self.say(text)

    def say(self, text: str | Text) -> None:
        """A plain line. A reader that has left (`| head`) ends the output, never the sweep."""
        try:
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        except (SystemExit, OSError):  # rich turns a broken pipe into SystemExit
            self.quiet = True

    def started(self, slot: Slot, job: Job) -> None:
        with self.lock:
            self.running[slot.name] = (job, "start", time.monotonic())

    def phase(self, slot: Slot, phase: str) -> None:
        with self.lock:
            job, _, since = self.running.get(slot.name, (None, "", time.monotonic()))
            self.running[slot.name] = (job, phase, since)

    def waiting(self, slot: Slot, job: Job) -> None:
        with self.lock:
            self.running[slot.name] = (job, "waits: another effbench uses this device", time.monotonic())
        if not self.quiet and self.live is None:
            self.say(f"{slot.name} is in use by another effbench: waiting")

    def retried(self, slot: Slot, job: Job, reason: str) -> None:
        if not self.quiet:
            self.say(Text(f"{self.names[job.key]} on {slot.name}: effbench tries this trial again: {reason}"))

    def ended(self, slot: Slot, job: Job, trial: Trial) -> None:
        with self.lock:
            self.running.pop(slot.name, None)
            self.left.discard(job)
            self.done += 1
            self.estimate.add(job, trial)
            self.last.append((job, trial))
            line = None if self.quiet or self.live is not None else self.line(job, trial)
        if line is not None:
            self.say(line)

    def added(self, job: Job) -> None:
        with self.lock:
            self.left.add(job)
            self.total += 1

    def dropped(self, jobs: Collection[Job]) -> None:
        with self.lock:
            self.left.difference_update(jobs)
            self.total -= len(jobs)

    def line(self, job: Job, trial: Trial) -> Text:
        """One ended trial: `[ 3/21] mlp bs=8 eager float32 · round 1/5 · ok 0.123 ms (2.1 s)`."""
        width = len(str(self.total))
        text = Text(
            f"[{self.done:>{width}}/{self.total}] {self.names[job.key]} · round {job.round + 1}/{self.rounds} · "
        )
        if job.attempt:
            text.append(f"try {job.attempt + 1} · ")
        text.append(trial.status.value, style=STYLES.get(trial.status, "red"))
        if trial.latency_ms is not None:
            text.append(f" {METRICS['latency_ms'].format(trial.latency_ms)}")
        if trial.compile_s is not None:
            state = f"{trial.compile_cache} " if trial.compile_cache else ""
            text.append(f", compiled {state}in {significant(trial.compile_s, 2)} s")
        if trial.reason:
            text.append(f": {one_line(trial.reason)}")
        text.append(f" ({trial.wall_s or 0:.1f} s)", style="dim")
        return text

    def render(self) -> RenderableType:
        with self.lock:
            left = self.estimate.left(self.left, self.slots)
            head = Text(self.title, style="bold")
            counts = Text(f"{self.done} of {self.total} trials done, ")
            counts.append("time left unknown yet" if left is None else f"about {duration(left)} left")
            now = Table.grid(padding=(0, 2))
            for slot, (job, phase, since) in sorted(self.running.items()):
                what = escape(self.names[job.key]) if job else ""
                round = f"round {job.round + 1}/{self.rounds}" if job else ""
                now.add_row(f"[bold]{escape(slot)}[/]", what, round, escape(phase), duration(time.monotonic() - since))
            rows = Table(box=None, show_header=False, padding=(0, 2), show_edge=False)
            for job, trial in self.last:
                style = STYLES.get(trial.status, "red")
                figure = "" if trial.latency_ms is None else METRICS["latency_ms"].format(trial.latency_ms)
                reason = escape((trial.reason or "")[:80])
                rows.add_row(escape(self.names[job.key]), f"[{style}]{trial.status}[/]", figure, reason)
            bar = ProgressBar(total=max(1, self.total), completed=self.done, width=48)
            return Group(head, bar, counts, now, rows)
