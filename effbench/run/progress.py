"""Print the progress of a sweep: a line per trial and, on a terminal, a live status below with the
time left; nothing when quiet."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from rich.live import Live
from rich.text import Text

from effbench.core.cell import Status, Trial
from effbench.core.disturbances import DisturbanceKind
from effbench.core.environments import labels
from effbench.core.labels import cell_names
from effbench.core.metrics import METRICS
from effbench.core.printable import about, count, one_line
from effbench.core.quantities import significant
from effbench.core.terminal import Console
from effbench.run.client import START
from effbench.run.plan import CellRun, Settings, cells_of, interpreters_of
from effbench.run.schedule import TrialGroup

LOGGER = logging.getLogger(__name__)
STYLES = {Status.OK: "green", Status.DEGRADED: "yellow", Status.UNSUPPORTED: "dim"}


def run_names(runs: Sequence[CellRun]) -> dict[CellRun, str]:
    """Return a name for each cell run: the cell's name and, with several interpreters, the
    interpreter's short name."""
    cells = cell_names(cells_of(runs))
    added = labels({interpreter: interpreter.flags for interpreter in interpreters_of(runs)})
    return {
        run: one_line(" · ".join([cells[run.cell.key], *added[run.interpreter].values()]))
        for run in runs
    }


def work_text(
    settings: Settings,
    runs: Sequence[CellRun],
    groups: Iterable[TrialGroup],
    slots: Sequence[str],
) -> str:
    """Return `3 cells × 2 folders × 5 rounds (standard) on GPU 0: 30 trials to run`. `groups`:
    those to run; `slots`: names of devices."""
    factors = [count(len(cells_of(runs)), "cell")]
    interpreters = interpreters_of(runs)
    if len(interpreters) > 1:
        is_same_python = len({interpreter.python for interpreter in interpreters}) == 1
        noun = "folder" if is_same_python else "interpreter"
        factors.append(count(len(interpreters), noun))
    factors.append(f"{count(settings.protocol.rounds, 'round')} ({settings.protocol.name})")
    left = "all trials are already recorded"
    number = sum(len(group.runs) for group in groups)
    if number:
        left = f"{count(number, 'trial')} to run"
    return one_line(f"{' × '.join(factors)} on {', '.join(slots)}: {left}")


#: What disturbed a trial -> the note next to its time.
NOTES: dict[DisturbanceKind | None, str] = {
    DisturbanceKind.HOST: "host busy",
    DisturbanceKind.CLOCKS: "GPU clocks reduced",
    DisturbanceKind.PROCESS: "GPU shared",
    DisturbanceKind.UNSTEADY: "unsteady",
}


def time_text(record: Trial) -> str:
    """Return the latency of a trial, or its cold start, as its line shows it: `2.70 ms`, or `~2.70
    ms (host busy)` if it was disturbed."""
    metric = METRICS["latency_ms" if record.cold_s is None else "cold_s"]
    value = getattr(record, metric.name)
    if value is None:
        return ""
    time = metric.format(value)
    if record.disturbance is None:
        return time
    note = NOTES.get(record.disturbance_kind, "disturbed")
    return f"~{time} ({note})"


def compile_text(record: Trial) -> str:
    """Return how long a trial compiled, and from which cache: `compiled in 3.1 s (cold cache)`."""
    if record.compile_s is None:
        return ""
    text = f"compiled in {significant(record.compile_s, 2)} s"
    if record.compile_cache:
        return f"{text} ({record.compile_cache} cache)"
    return text


class TimeLeft:
    """Tracks how much of a sweep is done, and estimates its end whenever a trial ends: those that
    are left take as long as those that have ended. The caller serialises the calls.

    `groups`: the trials to run; `whole`: the number of trials of the whole sweep, including
    recorded ones, to which the percentage refers: a trial that is no longer needed counts as done.
    """

    def __init__(self, groups: Iterable[TrialGroup], whole: int) -> None:
        #: Trials of each run.
        self.left = Counter(run for group in groups for run in group.runs)
        self.whole = whole
        self.began_s = time.monotonic()
        self.number_ended = 0
        self.ends_s = 0.0

    def ended(self, run: CellRun) -> None:
        self.left -= Counter([run])  # none if the run was dropped
        self.number_ended += 1
        mean_s = self.passed_s() / self.number_ended
        self.ends_s = time.monotonic() + mean_s * self.left.total()

    def dropped(self, run: CellRun) -> None:
        """Note that the remaining rounds of this run are not needed."""
        del self.left[run]

    def passed_s(self) -> float:
        """Return the seconds since the first trial began."""
        return time.monotonic() - self.began_s

    def percent(self) -> int:
        """Return the percentage of the sweep that is done; 100 only when nothing is left."""
        return 100 * (self.whole - self.left.total()) // self.whole

    def seconds(self) -> float:
        """Return the estimated seconds until the end; 0 before a trial has ended."""
        return max(0.0, self.ends_s - time.monotonic())


@dataclass
class SlotStatus:
    """What a slot does: `phase` of a trial of this round."""

    slot: str
    round: int
    phase: str = START


class Progress:
    """Prints the progress of a sweep. Thread-safe. `quiet`: print nothing."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or Console()
        self.quiet = quiet
        self.lock = threading.Lock()
        self.rounds = 0
        self.time_left = TimeLeft([], whole=0)
        self.names: dict[CellRun, str] = {}
        self.running: dict[CellRun, SlotStatus] = {}
        self.live: Live | None = None
        self.waited: set[str] = set()

    @contextmanager
    def showing(
        self,
        sweep_id: str,
        settings: Settings,
        runs: Sequence[CellRun],
        groups: Sequence[TrialGroup],
        slots: Sequence[str],
    ) -> Iterator[None]:
        """Print the title and, on a terminal, show the live status in this context. `groups`: the
        trials to run; `slots`: names of devices."""
        self.names = run_names(runs)
        self.rounds = settings.protocol.rounds
        self.time_left = TimeLeft(groups, len(runs) * self.rounds)
        self.note(f"sweep {sweep_id} · {work_text(settings, runs, groups, slots)}")
        if self.quiet or not groups or not self.console.is_terminal:
            yield
            return
        self.live = Live(get_renderable=self.status, console=self.console, transient=True)
        self.live.start()
        try:
            yield
        finally:
            with suppress(OSError):  # the terminal was closed
                self.live.stop()
            self.live = None

    def status(self) -> Text:
        """Return the live status: how much is done, the time left, and what each slot is
        running."""
        with self.lock:
            passed = timedelta(seconds=round(self.time_left.passed_s()))
            lines = [f"{self.time_left.percent()} % done in {passed}{self.left()}"]
            for run, trial in self.running.items():
                lines.append(f"{trial.slot}  {self.name(run, trial.round)} · {trial.phase}")
        return Text("\n".join(map(one_line, lines)), no_wrap=True, overflow="ellipsis")

    def left(self) -> str:
        """Return the time left as the end of a line; nothing at the end of the sweep, and before it
        can be estimated."""
        seconds = self.time_left.seconds()
        if not seconds:
            return ""
        return f" · {about(seconds)} left"

    def note(self, text: str | Text) -> None:
        """Log a line, and print it unless quiet. If the reader has exited (`| head`), stop
        printing, but not the sweep."""
        LOGGER.info("%s", text)
        if self.quiet:
            return
        try:
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        except (SystemExit, OSError):  # rich turns a broken pipe into SystemExit
            self.quiet = True

    def name(self, run: CellRun, round: int) -> str:
        return f"round {round + 1}/{self.rounds} · {self.names[run]}"

    def started(self, slot: str, run: CellRun, round: int) -> None:
        with self.lock:
            self.running[run] = SlotStatus(slot, round)

    def phase(self, run: CellRun, phase: str) -> None:
        with self.lock:
            if run in self.running:  # a message from a killed trial may arrive late
                self.running[run].phase = phase

    def waiting(self, slot: str) -> None:
        """Tell that another effbench has the slot's lock, once per slot."""
        if slot not in self.waited:
            self.waited.add(slot)
            self.note(one_line(f"{slot} is in use by another effbench; waiting"))

    def retried(self, slot: str, run: CellRun, reason: str) -> None:
        self.note(one_line(f"{self.names[run]} on {slot}: retrying this trial: {reason}"))

    def dropped(self, run: CellRun) -> None:
        """Note that the remaining rounds of this run are not needed."""
        with self.lock:
            self.time_left.dropped(run)

    def ended(self, run: CellRun, record: Trial) -> None:
        """Print the line of a finished trial:

        ` 14 % · round 1/5 · mlp bs=8 eager · ok 0.123 ms · took 2.1 s · about 4 min left`
        """
        with self.lock:
            self.running.pop(run, None)
            self.time_left.ended(run)
            percent = self.time_left.percent()
            left = "" if self.live else self.left()  # the live status has it
        line = Text(f"{percent:>3} % · {self.name(run, record.round)} · ")
        line.append(record.status.value, style=STYLES.get(record.status, "red"))
        figures = ", ".join(filter(None, [time_text(record), compile_text(record)]))
        if figures:
            line.append(f" {figures}")
        if record.reason:
            line.append(f": {one_line(record.reason)}")
        line.append(f" · took {record.wall_s or 0:.1f} s{left}", style="dim")
        self.note(line)
